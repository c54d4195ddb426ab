"""Trials, and what their harness says besides metrics. Names and fields: spec rest-api.md §6."""

from __future__ import annotations

import math
from typing import Annotated, Any, cast

from fastapi import Body
from pydantic import BeforeValidator, Field

from api.schemas.base import I64, Map, Pagination, Real, Timestamp, Wire, example
from api.schemas.metrics import Metrics


class MetricsWorkload(Wire):
    """v1MetricsWorkload."""

    total_batches: int
    metrics: Metrics
    end_time: Timestamp | None = None
    num_inputs: int = 0


class CheckpointWorkload(Wire):
    """v1CheckpointWorkload."""

    uuid: str
    state: str
    total_batches: int
    end_time: Timestamp | None = None
    resources: dict[str, I64] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)


class Trial(Wire):
    """trialv1Trial."""

    id: int
    experiment_id: int
    state: str
    hparams: dict[str, Any]
    restarts: int = 0
    start_time: Timestamp
    end_time: Timestamp | None = None
    total_batches_processed: int = 0
    best_validation: MetricsWorkload | None = None
    latest_validation: MetricsWorkload | None = None
    best_checkpoint: CheckpointWorkload | None = None
    searcher_metric_value: Real | None = None
    summary_metrics: dict[str, Any] | None = None
    checkpoint_count: int = 0
    total_checkpoint_size: I64 = 0
    runner_state: str = ""
    task_id: str = ""
    task_ids: list[str] = Field(default_factory=list[str])
    wall_clock_time: Real = 0.0
    warm_start_checkpoint_uuid: str | None = None
    metadata: dict[str, Any] | None = None
    log_policy_matched: str | None = None
    log_retention_days: int | None = None
    # ours: where the trial stands in the search, and why it ended or waits
    rung: int | None = None
    bracket: int | None = None
    run_id: int = 0
    message: str = ""


class CompleteOperation(Wire, json_schema_extra=example({"op": {"length": "100"}, "searcherMetric": 0.25})):
    """v1CompleteValidateAfterOperation.

    Attributes:
        op: It has the length that was completed.
        searcher_metric: The value of the searcher's metric.
        wants_next: Answer with the next operation as soon as it is decided. Without it the answer waits for the record.
    """

    op: Map
    searcher_metric: Any = None
    wants_next: bool = False


class EarlyExit(Wire, json_schema_extra=example({"reason": "EXITED_REASON_INVALID_HP"})):
    """v1TrialEarlyExit."""

    reason: str


class Progress(Wire, json_schema_extra=example({"progress": 0.5})):
    """How far a trial came, as a fraction."""

    progress: float


def _progress(value: Any) -> Any:
    fraction = cast("dict[str, Any]", value).get("progress") if isinstance(value, dict) else value
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction < math.inf:
        raise ValueError("expected a number of 0 or more")
    return cast(Any, value)


#: Older harnesses send a number, in the units of the search.
ProgressBody = Annotated[float | Progress, BeforeValidator(_progress), Body(examples=[{"progress": 0.5}])]


class RunnerState(Wire, json_schema_extra=example({"state": "TRAINING"})):
    """What the trial does now."""

    state: str = ""


class TrialsResponse(Wire):
    """A page of trials."""

    trials: list[Trial]
    pagination: Pagination


class TrialResponse(Wire):
    """Trial, as recorded."""

    trial: Trial
