"""Curves of a metric over the steps of a trial, thinned out to what a plot can show.

A long curve is not read as a whole: of each of some thousand ranges of steps the first report is found by the index,
and among these the largest-triangle rule keeps the points that shape the line. What lies between two reports that were
found is not seen, so a single outlier of a curve of a million points may be missing from it. Source of the rule:
S. Steinarsson, "Downsampling Time Series for Visual Representation", 2013.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, cast, func, literal, select
from sqlalchemy.orm import Session

from api.schemas.base import number
from database.models import Metric

#: Reports that are looked at for one curve.
_CANDIDATES = 5000


@dataclass(frozen=True, slots=True)
class Point:
    """One report of the metric."""

    batches: int
    value: float
    time: datetime
    epoch: float | None


def curve(
    session: Session, trial_id: int, group: str, name: str, *, most: int, start: int = 0, end: int | None = None
) -> list[Point]:
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
    of_curve = (Metric.trial_id == trial_id, Metric.group_name == group, ~Metric.archived)
    steps = [Metric.total_batches >= start]
    if end is not None:
        steps.append(Metric.total_batches <= end)
    columns = select(Metric.total_batches, Metric.metrics, Metric.reported_at)
    some = columns.where(*of_curve, *steps).order_by(Metric.total_batches).limit(_CANDIDATES + 1)
    rows = session.execute(some).all()
    if len(rows) > _CANDIDATES:
        rows = session.execute(columns.where(Metric.id.in_(_spread(session, of_curve, steps)))).all()
    points = [point for row in rows if (point := _point(name, *row)) is not None]
    points.sort(key=lambda point: point.batches)
    return thinned(points, most)


def _spread(
    session: Session, of_curve: Sequence[ColumnElement[bool]], steps: Sequence[ColumnElement[bool]]
) -> Sequence[int]:
    """Ids of the first report in each of `_CANDIDATES` ranges of equal width, and of the last report of all."""
    bounds = select(func.min(Metric.total_batches), func.max(Metric.total_batches)).where(*of_curve, *steps)
    low, high = (int(bound or 0) for bound in session.execute(bounds).one())
    width = max(1, -(-(high - low + 1) // _CANDIDATES))
    # each range is one look into the index: no other bound on the steps, or SQLite would begin at that one each time
    begin = select(cast(literal(low), BigInteger).label("start")).cte("ranges", recursive=True)
    following = typing.cast("ColumnElement[int]", begin.c.start) + width
    ranges = begin.union_all(select(following).where(following <= high))
    start = typing.cast("ColumnElement[int]", ranges.c.start)
    first = (
        select(Metric.id)
        .where(*of_curve, Metric.total_batches >= start, Metric.total_batches < start + width)
        .order_by(Metric.total_batches)
        .limit(1)
        .scalar_subquery()
    )
    found = session.scalars(select(first).select_from(ranges)).all()
    last = session.scalar(select(Metric.id).where(*of_curve, *steps).order_by(Metric.total_batches.desc()).limit(1))
    return [id_ for id_ in (*found, last) if id_ is not None]


def _point(name: str, batches: int | None, metrics: dict[str, Any], time: datetime) -> Point | None:
    value = number(metrics.get(name))
    if value is None or not math.isfinite(value):
        return None
    return Point(batches or 0, value, time, number(metrics.get("epoch")))


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
