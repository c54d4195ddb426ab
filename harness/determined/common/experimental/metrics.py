"""Metrics that trials reported."""

from __future__ import annotations

import datetime

from determined.common.experimental._rows import Shown, moment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class TrialMetrics(Shown):
    """One report of metrics.

    Attributes:
        trial_id: Whose.
        trial_run_id: Of which run of the trial; it is started anew after a failure.
        steps_completed: After how many batches.
        end_time: When it was reported.
        group: "training", "validation", or a name of the user's.
        metrics: Name -> value; NaN and infinities are strings.
        batch_metrics: The same for each batch, where the trial reported it.
    """

    def __init__(
        self,
        trial_id: int,
        trial_run_id: int,
        steps_completed: int,
        end_time: datetime.datetime | None,
        metrics: dict[str, Any],
        group: str,
        batch_metrics: list[dict[str, Any]] | None = None,
    ) -> None:
        self.trial_id = trial_id
        self.trial_run_id = trial_run_id
        self.steps_completed = steps_completed
        self.end_time = end_time
        self.metrics = metrics
        self.group = group
        self.batch_metrics = batch_metrics

    @property
    def total_batches(self) -> int:
        """`steps_completed`, under the name of the older releases."""
        return self.steps_completed

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(trial_id={self.trial_id}, group={self.group!r}, "
            f"steps_completed={self.steps_completed}, metrics={self.metrics})"
        )

    def row(self) -> dict[str, Any]:
        """As a row of a table: a metric a column."""
        return {
            "trial_id": self.trial_id,
            "trial_run_id": self.trial_run_id,
            "group": self.group,
            "steps_completed": self.steps_completed,
            "end_time": self.end_time,
            **self.metrics,
        }


class TrainingMetrics(TrialMetrics):
    """A report of the group "training"."""

    def __init__(self, total_batches: int | None = None, **kwargs: Any) -> None:
        super().__init__(**_with_steps(total_batches, kwargs), group="training")


class ValidationMetrics(TrialMetrics):
    """A report of the group "validation"."""

    def __init__(self, total_batches: int | None = None, **kwargs: Any) -> None:
        super().__init__(**_with_steps(total_batches, kwargs), group="validation")


def metrics_of(body: dict[str, Any]) -> TrialMetrics:
    """From a v1MetricsReport."""
    values: dict[str, Any] = body.get("metrics") or {}
    found = values.get("avg_metrics")
    group = str(body["group"])
    common: dict[str, Any] = {
        "trial_id": int(body["trialId"]),
        "trial_run_id": int(body.get("trialRunId") or 0),
        "steps_completed": int(body.get("totalBatches") or 0),
        "end_time": moment(body.get("endTime")),
        "metrics": values.get("validation_metrics") or {} if found is None else found,
        "batch_metrics": values.get("batch_metrics"),
    }
    if group == "training":
        return TrainingMetrics(**common)
    if group == "validation":
        return ValidationMetrics(**common)
    return TrialMetrics(**common, group=group)


def _with_steps(total_batches: int | None, kwargs: dict[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in kwargs.items() if name != "group"}
    return known if total_batches is None else {**known, "steps_completed": total_batches}
