"""Replays of a trace as a picture: utilization, waits, and each user's slots over time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cli.simulation import Case

_MOST_USERS_DRAWN = 9
_BINS = 300

Span = tuple[float, float, int]
"""From when until when, and how many slots."""


def check(output: Path) -> None:
    """Raises: ValueError if it can't be drawn. A simulation may take minutes: that is better said before."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("plots need matplotlib: pip install 'undeterred[plot]'") from None
    known: Any = Figure().canvas.get_supported_filetypes()
    suffix = output.suffix.removeprefix(".").lower()
    if suffix not in known:
        raise ValueError(f"--plot: {str(output)!r}: expected a name that ends with .png or .svg")
    if not output.parent.is_dir():
        raise ValueError(f"--plot: {str(output)!r}: there is no folder {str(output.parent)!r}")


def draw(cases: Sequence[Case], output: Path) -> None:
    """Draw utilization, waits, and each user's slots over time. Raises: ValueError, if it can't be written."""
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(12, 4 + 3 * len(cases)), layout="constrained")
    grid: Any = figure.add_gridspec(1 + len(cases), 2)
    end_s = max([run.gone_s for case in cases for run in case.outcome.runs], default=0.0) or 1.0
    _draw_utilization(figure.add_subplot(grid[0, 0]), cases, end_s)
    _draw_waits(figure.add_subplot(grid[0, 1]), cases)
    users = _most_busy(cases)
    for row, case in enumerate(cases, 1):
        _draw_shares(figure.add_subplot(grid[row, :]), case, users, end_s)
    try:
        figure.savefig(output, dpi=120)
    except OSError as error:
        raise ValueError(f"{output} can't be written: {error.strerror}") from None


def _draw_utilization(axes: Any, cases: Sequence[Case], end_s: float) -> None:
    for case in cases:
        jobs = [request.job for request in case.outcome.requests]
        spans = [
            (run.start_s, run.gone_s if run.asked_s is None else run.asked_s, jobs[run.place].slots)
            for run in case.outcome.runs
        ]
        axes.plot(_hours(end_s), _percents(spans, case.outcome.slots, end_s), label=case.name)
    axes.set(title="slots that work", xlabel="hours", ylabel="%", ylim=(0, 105))
    axes.legend()


def _draw_waits(axes: Any, cases: Sequence[Case]) -> None:
    for case in cases:
        waits = sorted(request.wait_s for request in case.outcome.requests if request.wait_s is not None)
        parts = [100 * number / len(waits) for number in range(1, len(waits) + 1)]
        axes.step([max(wait, 1.0) for wait in waits], parts, where="post", label=case.name)
    axes.set(title="waits", xlabel="seconds, at most", ylabel="% of requests", xscale="log", ylim=(0, 105))
    axes.legend()


def _draw_shares(axes: Any, case: Case, users: Sequence[str], end_s: float) -> None:
    spans: dict[str, list[Span]] = {user: [] for user in users}
    others: list[Span] = []
    for run in case.outcome.runs:
        job = case.outcome.requests[run.place].job
        spans.get(job.user, others).append((run.start_s, run.gone_s, job.slots))
    layers = {user or "(nobody)": held for user, held in spans.items()} | ({"others": others} if others else {})
    heights = [_percents(held, case.outcome.slots, end_s) for held in layers.values()]
    if heights:
        axes.stackplot(_hours(end_s), heights, labels=list(layers))
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.set(title=f"slots held, by user: {case.name}", xlabel="hours", ylabel="%", ylim=(0, 105))


def _most_busy(cases: Sequence[Case]) -> list[str]:
    shares: Mapping[str, float] = cases[0].figures.shares
    most = sorted(shares, key=lambda user: (-shares[user], user))[:_MOST_USERS_DRAWN]
    return sorted(most)


def _hours(end_s: float) -> list[float]:
    return [(at + 0.5) * end_s / _BINS / 3600 for at in range(_BINS)]


def _percents(spans: Iterable[Span], slots: int, end_s: float) -> list[float]:
    """The mean of the slots in each of the bins from 0 to `end_s`, as percents of all slots."""
    width = end_s / _BINS
    partly = [0.0] * _BINS  # slot-seconds of spans that begin or end in the bin
    change = [0] * (_BINS + 1)  # slots of spans that cover whole bins, from one bin to the next
    for start_s, stop_s, held in spans:
        first, last = min(int(start_s / width), _BINS - 1), min(int(stop_s / width), _BINS - 1)
        if first == last:
            partly[first] += held * (stop_s - start_s)
            continue
        partly[first] += held * ((first + 1) * width - start_s)
        partly[last] += held * (stop_s - last * width)
        change[first + 1] += held
        change[last] -= held
    means: list[float] = []
    covering = 0
    for at in range(_BINS):
        covering += change[at]
        means.append(100 * (covering + partly[at] / width) / max(slots, 1))
    return means
