"""Curves of a metric over the steps of a trial, thinned out to what a plot can show.

Of a long curve the extremes of some thousand ranges of steps are looked at, and among these the largest-triangle rule
keeps the points that shape the line. Source of the rule: S. Steinarsson, "Downsampling Time Series for Visual
Representation", 2013.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from sqlalchemy.orm import Session

from api.queries import curve_bands
from api.queries.series import Series, Wanted, series

#: Ranges of steps of which the extremes are looked at.
_COLUMNS = 1250


@dataclass(frozen=True, slots=True)
class Point:
    """One report of the metric."""

    batches: int
    value: float
    time: datetime
    epoch: float | None


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of a metric, by steps.

    Attributes:
        points: As many as were asked for, or fewer.
        unsealed: The trial and the group, if it is time for blocks of their reports: `MetricsWriter.add_unsealed`.
    """

    points: list[Point]
    unsealed: list[tuple[int, str]]


def curve(
    session: Session, trial_id: int, group: str, name: str, *, most: int, start: int = 0, end: int | None = None
) -> Curve:
    """At most `most` points of a metric, by steps. Reports without a number there (NaN included) are left out.

    Args:
        session: to read with.
        trial_id: whose curve.
        group: of the reports.
        name: of the metric.
        most: points, at least 3.
        start: first step.
        end: last step; None: the last one there is.
    """
    wanted = Wanted([trial_id], group, name, start, end, columns=_COLUMNS)
    found = series(session, wanted)
    numbers = found.by_trial.get(trial_id)
    if numbers is not None:
        numbers = numbers.at(np.isfinite(numbers.values))
    if numbers is None or not len(numbers.steps):
        return Curve([], found.unsealed)
    some = curve_bands.thinned(numbers, _COLUMNS, int(numbers.steps[0]), int(numbers.steps[-1]))
    return Curve(thinned(_points(some), most), found.unsealed)


def _points(some: Series) -> list[Point]:
    assert some.times is not None  # both were asked for
    assert some.epochs is not None
    rows = zip(*(column.tolist() for column in (some.steps, some.values, some.times, some.epochs)), strict=True)
    return [
        Point(step, value, datetime.fromtimestamp(time, UTC), None if math.isnan(epoch) else epoch)
        for step, value, time, epoch in rows
    ]


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most `most` (3 or more) of these points, in order: the first, the last, and those that shape the line."""
    if len(points) <= most:
        return list(points)
    kept = [points[0]]
    width = (len(points) - 2) / (most - 2)
    for bucket in range(most - 2):
        begin, end = int(bucket * width) + 1, int((bucket + 1) * width) + 1
        after = points[end : int((bucket + 2) * width) + 1] or points[-1:]
        x = sum(point.batches for point in after) / len(after)
        y = sum(point.value for point in after) / len(after)
        last = kept[-1]
        kept.append(
            max(
                points[begin:end],
                key=lambda p, last=last, x=x, y=y: abs(
                    (last.batches - x) * (p.value - last.value) - (last.batches - p.batches) * (y - last.value)
                ),
            )
        )
    return [*kept, points[-1]]
