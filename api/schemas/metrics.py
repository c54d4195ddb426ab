"""Reports of metrics. Names and fields: spec rest-api.md §6."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from api.schemas.base import Instant, Map, Wire, example


class Metrics(Wire):
    """v1Metrics."""

    avg_metrics: Map = Field(default_factory=dict)
    batch_metrics: list[Any] | None = None


class MetricReport(Wire):
    """One report of one group: v1TrialMetrics with its group."""

    group: str
    trial_run_id: int
    steps_completed: int | None = None
    report_time: Instant | None = None
    metrics: Metrics


class MetricReports(
    Wire,
    json_schema_extra=example(
        {
            "reports": [
                {"group": "training", "trialRunId": 1, "stepsCompleted": 100, "metrics": {"avgMetrics": {"loss": 0.25}}}
            ]
        }
    ),
):
    """Ours: several reports of one trial, in order."""

    reports: list[MetricReport]


class Curves(
    Wire,
    json_schema_extra=example(
        {
            "group": "training",
            "trialRunId": 1,
            "stepsCompleted": [100, 200],
            "reportTimes": [1790000000.5, 1790000001.0],
            "metrics": {"loss": [0.5, 0.25], "lr": [0.1, None]},
        }
    ),
):
    """Ours: many reports of one group, as columns.

    Attributes:
        group: Of all of them.
        trial_run_id: Whose they are.
        steps_completed: Of each report; they ascend.
        report_times: When each was made, in seconds since 1970; None: now.
        metrics: By name, the number of each report; null where it has none.
    """

    group: str
    trial_run_id: int
    steps_completed: list[int]
    report_times: list[float] | None = None
    metrics: dict[str, list[Any]]


class TrialMetrics(
    Wire, json_schema_extra=example({"trialRunId": 1, "stepsCompleted": 100, "metrics": {"avgMetrics": {"loss": 0.25}}})
):
    """v1TrialMetrics, as the older routes bind it."""

    trial_run_id: int
    steps_completed: int | None = None
    report_time: Instant | None = None
    metrics: Metrics


class ReportTrialMetricsRequest(
    Wire,
    json_schema_extra=example(
        {
            "group": "validation",
            "metrics": {"trialRunId": 1, "stepsCompleted": 100, "metrics": {"avgMetrics": {"loss": 0.25}}},
        }
    ),
):
    """v1ReportTrialMetricsRequest."""

    group: str
    metrics: TrialMetrics
