"""System metrics of a trial for plots: what the profiler of its containers measured of their machines."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from api.schemas.base import Instant, Wire


class SystemRequest(Wire):
    """Which part of them.

    Attributes:
        start: From this time on; None: from the first report on.
        end: Until this time; None: until the last report.
        columns: Of pixels that the plot has.
    """

    start: Instant | None = None
    end: Instant | None = None
    columns: int = Field(default=300, ge=10, le=1000)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise ValueError(f"start: {self.start.isoformat()}: expected a time before end, {self.end.isoformat()}")
        return self


class SystemSeries(Wire):
    """One measure of one host, or of one device of it. Both lists have the same length.

    Attributes:
        group: cpu, memory, disk, network, gpu; timing: what older training loops measured of themselves.
        agent_id: The host.
        device: UUID of a GPU, or path of a disk; empty: of the whole host.
        name: Of the measure, as it was reported.
        times: Seconds since 1970, in order.
        values: In the unit of the measure, which depends on its name.
    """

    group: str
    agent_id: str
    device: str
    name: str
    times: list[float]
    values: list[float]


class SystemRun(Wire):
    """When the trial held slots; `ended_at` None: it still does."""

    run_id: int
    started_at: Instant
    ended_at: Instant | None = None


class SystemMetrics(Wire):
    """Of a trial, with the runs that they were measured in.

    Attributes:
        series: By group, host, device and name.
        runs: The newest ones, by their number.
        is_whole: False: there are more reports or series than one response has; the newest reports are in it.
    """

    series: list[SystemSeries]
    runs: list[SystemRun]
    is_whole: bool = True
