"""Series of the profiler, as clients up to 0.21 send them. Names and fields: spec rest-api.md §6."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from api.schemas.base import Instant, Wire, example


class ProfilerLabels(Wire):
    """v1TrialProfilerMetricLabels: which series."""

    trial_id: int
    name: str
    agent_id: str = ""
    gpu_uuid: str = ""
    metric_type: str = "PROFILER_METRIC_TYPE_SYSTEM"


class ProfilerBatch(Wire):
    """v1TrialProfilerMetricsBatch: values of one series, with their times."""

    labels: ProfilerLabels
    values: list[float] = Field(default_factory=list[float])
    timestamps: list[Instant] = Field(default_factory=list[Any])
    batches: list[int] = Field(default_factory=list[int])


class ProfilerBatches(
    Wire,
    json_schema_extra=example(
        {
            "batches": [
                {
                    "labels": {"trialId": 9, "name": "cpu_util_simple"},
                    "values": [12.5],
                    "timestamps": ["2026-01-31T12:00:00Z"],
                }
            ]
        }
    ),
):
    """v1PostTrialProfilerMetricsBatchRequest."""

    batches: list[ProfilerBatch] = Field(default_factory=list[ProfilerBatch])
