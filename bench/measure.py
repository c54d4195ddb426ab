"""How a figure is taken: warm up, repeat, median and spread, with the machine's load beside it."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Figure:
    """A measured figure. `goal` and `theirs` are in the same unit."""

    what: str
    values: Sequence[float]
    unit: str
    goal: float | None = None
    theirs: str = ""
    more_is_better: bool = False
    note: str = ""

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(self.values)

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is met; None if there is none."""
        if self.goal is None:
            return None
        return self.median >= self.goal if self.more_is_better else self.median <= self.goal

    def row(self) -> str:
        """A row of the table in docs/benchmarks.md."""
        goal = f"{self.goal:g} {self.unit}" if self.goal is not None else ""
        met = {True: "yes", False: "**no**", None: ""}[self.is_met]
        spread = f"{_short(min(self.values))}-{_short(max(self.values))}" if len(self.values) > 1 else ""
        return (
            f"| {self.what} | {self.theirs} | {goal} | {_short(self.median)} {self.unit} | {spread} | "
            f"{len(self.values)} | {met} | {self.note} |"
        )


HEADER = (
    "| what | Determined 0.38.1 | goal | median | min-max | runs | met | note |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |"
)


def _short(value: float) -> str:
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def repeat(measure: Callable[[], float], runs: int, warm_up: int = 1) -> list[float]:
    """The values of `runs` measurements after `warm_up` that are not counted."""
    for _ in range(warm_up):
        measure()
    return [measure() for _ in range(runs)]


def p95(values: Sequence[float]) -> float:
    """The 95th percentile: one of the values."""
    return sorted(values)[int(len(values) * 0.95)]


def processor_time(*processes: psutil.Process) -> float:
    """Seconds that these processes and every PostgreSQL of this machine have used."""
    total = 0.0
    for process in processes:
        total += sum(process.cpu_times()[:2])
    for process in psutil.process_iter(["name", "cpu_times"]):
        if process.info["name"] == "postgres" and process.info["cpu_times"] is not None:
            total += sum(process.info["cpu_times"][:2])
    return total


def load() -> str:
    """The machine's load over the last minute."""
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
