"""Curves of one metric for plots: of each column of pixels the first, the last, the smallest and the largest value.

A spike of one report stays visible, which a rule that keeps only the shape may lose. What is short is read as it is; of
what is long the engine of the database reads each report, and hands out four values a column.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Float, case, cast, func, literal, null, select
from sqlalchemy.orm import Session

from api.schemas.base import number
from database.models import Metric

#: Reports that are read one by one; more are put together by the engine.
_READ_SINGLY = 60_000


@dataclass
class Curve:
    """Of one trial, by steps. `times` in seconds since 1970; a value is None where a report has no number there.

    NaN and infinities are kept as such.
    """

    trial_id: int
    batches: list[int] = field(default_factory=list[int])
    times: list[float] = field(default_factory=list[float])
    epochs: list[float | None] = field(default_factory=list[float | None])
    values: list[float] = field(default_factory=list[float])


def curves(
    session: Session,
    trial_ids: Sequence[int],
    group: str,
    name: str,
    *,
    columns: int,
    start: int = 0,
    end: int | None = None,
) -> list[Curve]:
    """The curves of trials, each of at most four points a column.

    Args:
        session: To read with.
        trial_ids: Whose.
        group: Of the reports.
        name: Of the metric.
        columns: Of pixels, over the steps that are shown.
        start: First step.
        end: Last step; None: the last one there is.
    """
    shown = [Metric.trial_id.in_(trial_ids), Metric.group_name == group, ~Metric.archived]
    shown.append(Metric.total_batches >= start)
    if end is not None:
        shown.append(Metric.total_batches <= end)
    bounds = select(func.count(), func.min(Metric.total_batches), func.max(Metric.total_batches)).where(*shown)
    count, low, high = session.execute(bounds).one()
    if not count or low is None or high is None:
        return []
    if count > _READ_SINGLY and high > low and '"' not in name:  # no path of SQLite's can hold that
        ids = _extremes(session, shown, name, low, max(1, -(-(high - low + 1) // columns)))
        rows = _rows(session, shown, ids)
    else:
        rows = _rows(session, shown, None)
    found: dict[int, Curve] = {}
    for trial_id, batches, time, metrics in rows:
        value = number(metrics.get(name))
        if value is None:
            continue
        curve = found.setdefault(trial_id, Curve(trial_id))
        curve.batches.append(batches)
        curve.times.append(time.timestamp())
        curve.epochs.append(number(metrics.get("epoch") if name != "epoch" else value))
        curve.values.append(value)
    return [thinned(curve, columns, low, high) for curve in found.values()]


def _rows(session: Session, shown: Sequence[ColumnElement[bool]], ids: Sequence[int] | None) -> Iterable[Any]:
    statement = select(Metric.trial_id, Metric.total_batches, Metric.reported_at, Metric.metrics).where(*shown)
    statement = statement.order_by(Metric.trial_id, Metric.total_batches)
    if ids is None:
        return session.execute(statement)
    found: list[Any] = []
    for begin in range(0, len(ids), 20_000):
        found += session.execute(statement.where(Metric.id.in_(ids[begin : begin + 20_000])))
    return sorted(found, key=lambda row: (row[0], row[1]))


def _extremes(session: Session, shown: Sequence[ColumnElement[bool]], name: str, low: int, width: int) -> Sequence[int]:
    """Ids of the reports that a plot has to show: in each column of each trial four at most."""
    value = _number(session, name)
    column = cast((Metric.total_batches - low) / width, BigInteger)
    reports = select(
        Metric.id.label("id"), Metric.trial_id.label("trial"), Metric.total_batches.label("step"),
        value.label("value"), column.label("column"),
    ).where(*shown).subquery()  # fmt: skip

    def place(*order: Any) -> ColumnElement[int]:
        return func.row_number().over(partition_by=(reports.c.trial, reports.c.column), order_by=order)

    is_none = _nulls_last(reports.c.value)
    ranked = select(
        reports.c.id,
        place(reports.c.step).label("first"),
        place(reports.c.step.desc()).label("last"),
        place(is_none, reports.c.value).label("least"),
        place(is_none, reports.c.value.desc()).label("most"),
    ).subquery()
    wanted = (ranked.c.first == 1) | (ranked.c.last == 1) | (ranked.c.least == 1) | (ranked.c.most == 1)
    return session.scalars(select(ranked.c.id).where(wanted)).all()


def _number(session: Session, name: str) -> ColumnElement[Any]:
    """The metric as a number, NULL where it is none: by the engine's own types, as a million are read at once."""
    if session.get_bind().dialect.name == "postgresql":
        element = Metric.metrics[name]
        return case((func.jsonb_typeof(element) == "number", cast(element.as_string(), Float)), else_=null())
    path = f'$."{name}"'
    is_number = func.json_type(Metric.metrics, path).in_(("integer", "real"))
    return case((is_number, func.json_extract(Metric.metrics, path)), else_=null())


def _nulls_last(value: Any) -> ColumnElement[int]:
    return case((value.is_(None), literal(1)), else_=literal(0))


def thinned(curve: Curve, columns: int, low: int, high: int) -> Curve:
    """At most four points in each of `columns` equal ranges of steps; a column's order stays."""
    if len(curve.batches) <= 4 * columns:
        return curve
    width = max(1, -(-(high - low + 1) // columns))
    kept: list[int] = []
    begin = 0
    while begin < len(curve.batches):
        column = (curve.batches[begin] - low) // width
        end = begin
        while end < len(curve.batches) and (curve.batches[end] - low) // width == column:
            end += 1
        kept += sorted({begin, end - 1, *_least_and_most(curve.values, begin, end)})
        begin = end
    return Curve(
        curve.trial_id,
        [curve.batches[i] for i in kept],
        [curve.times[i] for i in kept],
        [curve.epochs[i] for i in kept],
        [curve.values[i] for i in kept],
    )


def _least_and_most(values: Sequence[float], begin: int, end: int) -> set[int]:
    """Where the smallest and the largest number are, and the first one that is none: it is drawn as such."""
    numbers = [i for i in range(begin, end) if math.isfinite(values[i])]
    odd = next((i for i in range(begin, end) if not math.isfinite(values[i])), None)
    found: set[int] = set() if odd is None else {odd}
    if numbers:
        found |= {min(numbers, key=values.__getitem__), max(numbers, key=values.__getitem__)}
    return found
