"""System metrics of a trial, by time: of each column of pixels the smallest and the largest value.

Reports are nested by host, and for GPUs and disks by device. The engine of the database takes them apart: an hour of
one host with eight GPUs, sampled each second, are 18,000 reports of 90,000 values.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Float, Text, case, cast, func, literal, null, select, true
from sqlalchemy.orm import Session

from database.engines import on_postgresql
from database.models import Allocation, Metric

#: Reports that are looked at, and points of all series together.
MOST_REPORTS, MOST_POINTS = 100_000, 100_000
#: Runs that are marked.
_MOST_RUNS = 500
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class Series:
    """One measure of one host, or of one device of it, by time (seconds since 1970)."""

    group: str
    agent_id: str
    device: str
    name: str
    times: list[float] = field(default_factory=list[float])
    values: list[float] = field(default_factory=list[float])


def of_trial(
    session: Session, trial_id: int, *, columns: int, start: datetime | None = None, end: datetime | None = None
) -> tuple[list[Series], bool]:
    """All series of a trial, and whether these are all values that were reported.

    Args:
        session: To read with.
        trial_id: Whose.
        columns: Of pixels, over the time that is shown; at most two points of each series are in one.
        start: First moment; None: that of the first report.
        end: Last moment; None: that of the last report.
    """
    shown = [Metric.trial_id == trial_id, Metric.total_batches.is_(None)]
    if start is not None:
        shown.append(Metric.reported_at >= start)
    if end is not None:
        shown.append(Metric.reported_at <= end)
    newest = select(Metric.reported_at).where(*shown).order_by(Metric.reported_at.desc())
    if (high := session.scalar(newest.limit(1))) is None:
        return [], True
    is_cut = (low := session.scalar(newest.offset(MOST_REPORTS - 1).limit(1))) is not None
    if low is None:
        low = session.scalar(select(func.min(Metric.reported_at)).where(*shown)) or high
    width = max((high - low) / columns, timedelta(milliseconds=1))
    shown.append(Metric.reported_at >= low)
    rows = _columns(session, shown, (low - _EPOCH).total_seconds(), width.total_seconds())
    found = list(_series(rows[:MOST_POINTS]))
    if len(rows) > MOST_POINTS:  # the last one is not whole
        found = found[:-1]
    return found, not is_cut and len(rows) <= MOST_POINTS


def runs(session: Session, trial_id: int) -> list[tuple[int, datetime, datetime | None]]:
    """Number, start and end of the newest runs of a trial, by their number."""
    columns = select(Allocation.run_id, Allocation.started_at, Allocation.ended_at)
    statement = columns.where(Allocation.trial_id == trial_id).order_by(Allocation.run_id.desc()).limit(_MOST_RUNS)
    return list(session.execute(statement).tuples())[::-1]


def _series(rows: Sequence[Any]) -> Iterator[Series]:
    """A column with one report is a point; of others the smallest value comes first."""
    for labels, columns in itertools.groupby(rows, key=lambda row: tuple(row[:4])):
        series = Series(*labels)
        for *_, first, last, least, most in columns:
            series.times += [first] if least == most else [first, last]
            series.values += [least] if least == most else [least, most]
        yield series


def _columns(session: Session, shown: Sequence[ColumnElement[bool]], low_s: float, width_s: float) -> Sequence[Any]:
    """Labels, first and last time, smallest and largest value of each column; a row too many tells of more."""
    is_postgres = on_postgresql(session)
    statement, (group, agent, device, name, time, value) = (_postgres if is_postgres else _sqlite)(shown)
    labels = (group, agent, device, name)
    column = cast(func.floor((time - low_s) / width_s), BigInteger)
    table = statement.with_only_columns(
        *labels, func.min(time), func.max(time), func.min(value), func.max(value)
    ).where(value.is_not(None))  # fmt: skip
    ordered = table.group_by(*labels, column).order_by(*labels, column).limit(MOST_POINTS + 1)
    return session.execute(ordered).all()


def _sqlite(shown: Sequence[ColumnElement[bool]]) -> tuple[Any, tuple[Any, ...]]:
    hosts = func.json_each(Metric.metrics).table_valued("key", "value", "type", name="hosts")
    values = func.json_each(_where(hosts.c.type == "object", hosts.c.value)).table_valued(
        "key", "value", "type", name="named"
    )
    inner = func.json_each(_where(values.c.type == "object", values.c.value)).table_valued(
        "key", "value", "type", name="inner_"
    )
    is_nested = inner.c.key.is_not(None)
    kind, value = func.coalesce(inner.c.type, values.c.type), func.coalesce(inner.c.value, values.c.value)
    number = case((kind.in_(("integer", "real")), cast(value, Float)), else_=null())
    time = (func.julianday(Metric.reported_at) - 2440587.5) * 86400.0
    return _joined(shown, hosts, values, inner, is_nested, time, number)


def _postgres(shown: Sequence[ColumnElement[bool]]) -> tuple[Any, tuple[Any, ...]]:
    def each(value: Any, name: str) -> Any:
        return func.jsonb_each(value).table_valued("key", "value", name=name)

    def is_object(value: Any) -> Any:
        return func.jsonb_typeof(value) == "object"

    hosts = each(Metric.metrics, "hosts").lateral("hosts")
    values = each(_where(is_object(hosts.c.value), hosts.c.value), "named").lateral("named")
    inner = each(_where(is_object(values.c.value), values.c.value), "inner_").lateral("inner_")
    is_nested = inner.c.key.is_not(None)
    value = func.coalesce(inner.c.value, values.c.value)
    number = case((func.jsonb_typeof(value) == "number", cast(cast(value, Text), Float)), else_=null())
    time = cast(func.extract("epoch", Metric.reported_at), Float)
    return _joined(shown, hosts, values, inner, is_nested, time, number)


def _where(condition: Any, value: Any) -> Any:
    return case((condition, value), else_=null())


def _joined(
    shown: Sequence[ColumnElement[bool]], hosts: Any, values: Any, inner: Any, is_nested: Any, time: Any, number: Any
) -> tuple[Any, tuple[Any, ...]]:
    tables = Metric.__table__.join(hosts, true()).join(values, true()).outerjoin(inner, true())
    device = case((is_nested, values.c.key), else_=literal(""))
    name = func.coalesce(inner.c.key, values.c.key)
    return select(literal(1)).select_from(tables).where(*shown), (
        Metric.group_name, hosts.c.key, device, name, time, number,
    )  # fmt: skip
