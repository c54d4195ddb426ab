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
