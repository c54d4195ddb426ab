"""Reports of metrics. Names and fields: spec rest-api.md §6."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, cast

from pydantic import Field, ModelWrapValidatorHandler, PrivateAttr, model_validator

from api.schemas.base import Instant, Map, Wire, example
from api.schemas.body import checked

#: So many reports in a request may become columns, for which they are not read one by one.
MANY_REPORTS = 960


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


class ReadReports(Wire):
    """Reports, each of which was checked."""

    reports: list[MetricReport]


class MetricReports(
    ReadReports,
    json_schema_extra=example(
        {
            "reports": [
                {"group": "training", "trialRunId": 1, "stepsCompleted": 100, "metrics": {"avgMetrics": {"loss": 0.25}}}
            ]
        }
    ),
):
    """Ours: several reports of one trial, in order.

    Many of them are not read yet: to make a message of each takes longer than to store them.
    """

    _unread: list[Any] = PrivateAttr(default_factory=list[Any])

    @model_validator(mode="wrap")
    @classmethod
    def _read_if_few(cls, value: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        given = cast(dict[str, Any], value).get("reports") if isinstance(value, dict) else None
        if not isinstance(given, list) or len(cast(list[Any], given)) < MANY_REPORTS:
            return read(value)
        made = cls.model_construct(reports=[])
        made._unread = cast(list[Any], given)
        return made

    @property
    def unread(self) -> list[Any]:
        """Plain JSON, if they are many; `reports` is empty then."""
        return self._unread

    @staticmethod
    def read(some: Sequence[Any]) -> list[MetricReport]:
        """Some of them, each of which is checked. Raises: BadRequest."""
        return checked(ReadReports, {"reports": some}).reports


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
