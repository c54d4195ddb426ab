"""Reads reports of trials, from rows of `metrics` and from packed blocks: who reads does not see which of them it was.

Several statements read them, and a report may go into a block, or become a row again, between two. On PostgreSQL they
are made in a `snapshot`, or by who has locked the trial; SQLite's readers see one moment anyway.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, cast

import numpy as np
from sqlalchemy import ColumnElement, Connection, Engine, Table, and_, func, insert, select, union, update
from sqlalchemy.orm import Session

from database.engines import on_postgresql
from database.models import Metric, MetricBlock, MetricColumn
from database.number_columns import Integers, unpack_integers
from database.report_blocks import Block, Report, ids_in, unpack

_Reader = Session | Connection
_METRICS = cast("Table", Metric.__table__)
#: What is read of a row, in the order of `Report`.
_ROW = tuple(getattr(Metric, name) for name in Report._fields)
#: Whether the reports of a block are no rows.
IS_PACKED: ColumnElement[bool] = MetricBlock.packed.is_not(None)


@contextmanager
def snapshot(session: Session) -> Generator[Session]:
    """A session whose statements see one moment: this one on SQLite, on PostgreSQL one of its own.

    If this one holds a connection of the pool, the other has one outside of it: where each of many waited for a second
    one, none would give back its first.
    """
    engine = session.get_bind().engine
    if engine.dialect.name == "sqlite":
        yield session
        return
    lone = Engine(engine.pool.recreate(), engine.dialect, engine.url) if session.in_transaction() else None
    try:
        bound = (lone or engine).execution_options(isolation_level="REPEATABLE READ")
        with Session(bound, expire_on_commit=False) as own:
            yield own
    finally:
        if lone is not None:
            lone.dispose()


def as_report(row: Sequence[Any]) -> Report:
    """A row of `_ROW`'s columns; its time in UTC on both engines."""
    report = Report(*row)
    return report if report.reported_at.tzinfo is UTC else report._replace(reported_at=_utc(report.reported_at))


def _utc(time: datetime) -> datetime:
    return time.astimezone(UTC)


def rows_between(reader: _Reader, trial_id: int, group: str, first: int, last: int) -> list[Report]:
    """The current reports from one step to another that are rows, by step."""
    statement = select(*_ROW).where(
        Metric.trial_id == trial_id, Metric.group_name == group, ~Metric.archived,
        Metric.total_batches.between(first, last),
    )  # fmt: skip
    return [as_report(row) for row in reader.execute(statement.order_by(Metric.total_batches))]


def has_packed(reader: _Reader, trial_ids: Collection[int], groups: Collection[str] | None = None) -> set[int]:
    """Those of these trials that have packed blocks, of these groups or of any."""
    statement = select(MetricBlock.trial_id).where(MetricBlock.trial_id.in_(trial_ids), IS_PACKED)
    if groups is not None:
        statement = statement.where(MetricBlock.group_name.in_(groups))
    return set(reader.execute(statement.distinct()).scalars())


def blocks(reader: _Reader, *which: ColumnElement[bool]) -> Iterator[Block]:
    """Packed blocks that fulfil conditions, by trial, group and step."""
    statement = (
        select(
            MetricBlock.trial_id, MetricBlock.group_name, MetricBlock.first_step, MetricBlock.last_step,
            MetricBlock.steps, MetricBlock.times, MetricBlock.packed,
            MetricColumn.name, MetricColumn.numbers, MetricColumn.places,
        )
        .outerjoin(
            MetricColumn,
            and_(
                MetricColumn.trial_id == MetricBlock.trial_id,
                MetricColumn.group_name == MetricBlock.group_name,
                MetricColumn.first_step == MetricBlock.first_step,
            ),
        )
        .where(IS_PACKED, *which)
        .order_by(MetricBlock.trial_id, MetricBlock.group_name, MetricBlock.first_step)
    )  # fmt: skip
    for _, rows in groupby(reader.execute(statement), key=lambda row: (row[0], row[1], row[2])):
        some: list[Sequence[Any]] = list(rows)
        columns = {row[7]: (row[8], row[9]) for row in some if row[7] is not None}
        yield Block(*some[0][:7], columns=columns)


def of_trials(session: Session, trial_ids: Sequence[int], group: str | None) -> Iterator[Report]:
    """The current reports of trials by trial, group and step. `group`: of this one only."""
    packed = has_packed(session, trial_ids, None if not group else [group])
    for is_packed, some in groupby(sorted(set(trial_ids)), key=lambda trial_id: trial_id in packed):
        if is_packed:
            for trial_id in some:
                yield from _merged(session, trial_id, group)
            continue
        # not by id: PostgreSQL would look for these few along the index of all ids
        order = (Metric.trial_id, Metric.group_name, Metric.total_batches, Metric.id)
        statement = select(*_ROW).where(Metric.trial_id.in_(list(some)), ~Metric.archived).order_by(*order)
        if group:
            statement = statement.where(Metric.group_name == group)
        yield from map(as_report, session.execute(statement.execution_options(yield_per=500)))


def _merged(session: Session, trial_id: int, group: str | None) -> Iterator[Report]:
    """Those of a trial that has packed blocks."""
    known = [
        select(model.group_name).where(model.trial_id == trial_id, *current)
        for model, current in ((Metric, (~Metric.archived,)), (MetricBlock, (IS_PACKED,)))
    ]
    groups = union(*known).subquery()
    names = [group] if group else list(session.scalars(select(groups.c.group_name).order_by(groups.c.group_name)))
    # where those without a step are among the others
    edge = float("inf") if on_postgresql(session) else -1.0
    for name in names:
        rows = select(*_ROW).where(Metric.trial_id == trial_id, Metric.group_name == name, ~Metric.archived)
        ordered = rows.order_by(Metric.total_batches, Metric.id).execution_options(yield_per=500)
        yield from heapq.merge(
            (report for block in blocks(session, *_of(trial_id, name)) for report in unpack(block)),
            map(as_report, session.execute(ordered)),
            key=lambda report: edge if report.total_batches is None else report.total_batches,
        )


def _of(trial_id: int, group: str) -> tuple[ColumnElement[bool], ...]:
    return MetricBlock.trial_id == trial_id, MetricBlock.group_name == group


def at_steps(reader: _Reader, steps: Mapping[int, Collection[int]], groups: Collection[str]) -> list[Report]:
    """The current reports of groups at steps of trials, in no order.

    Args:
        reader: To read with.
        steps: By trial.
        groups: Whose.
    """
    of_all = {step for some in steps.values() for step in some}
    statement = select(*_ROW).where(
        Metric.trial_id.in_(list(steps)), Metric.total_batches.in_(of_all), Metric.group_name.in_(groups),
        ~Metric.archived,
    )  # fmt: skip
    found = {report.id: report for report in map(as_report, reader.execute(statement))}
    ranges = select(MetricBlock.id, MetricBlock.trial_id, MetricBlock.first_step, MetricBlock.last_step).where(
        MetricBlock.trial_id.in_(list(steps)), MetricBlock.group_name.in_(groups), IS_PACKED
    )
    chosen = [
        block_id
        for block_id, trial_id, first, last in reader.execute(ranges)
        if any(first <= step <= last for step in steps[trial_id])
    ]
    for block in blocks(reader, MetricBlock.id.in_(chosen)) if chosen else ():
        places = np.flatnonzero(np.isin(unpack_integers(block.steps), list(steps[block.trial_id])))
        found |= {report.id: report for report in unpack(block, places)}
    return [report for report in found.values() if report.total_batches in steps[report.trial_id]]


def in_order(
    reader: _Reader, trial_ids: Sequence[int], *, until: datetime | None = None, with_system: bool = False
) -> Iterator[Report]:
    """The current reports of trials in the order in which they came.

    Args:
        reader: To read with.
        trial_ids: Whose.
        until: Those that were made by then; None: all.
        with_system: Those without a step, too.
    """
    statement = select(*_ROW).where(Metric.trial_id.in_(trial_ids), ~Metric.archived)
    if not with_system:
        statement = statement.where(Metric.total_batches.is_not(None))
    if until is not None:
        statement = statement.where(Metric.reported_at <= until)
    ids = select(MetricBlock.first_id, MetricBlock.id).where(MetricBlock.trial_id.in_(trial_ids), IS_PACKED)
    waiting = deque(reader.execute(ids.order_by(MetricBlock.first_id, MetricBlock.id)).tuples())
    rows = reader.execute(statement.order_by(Metric.id).execution_options(yield_per=500))
    heap: list[tuple[int, Report, Iterator[Report]]] = []

    def add(reports: Iterator[Report]) -> None:
        if (first := next(reports, None)) is not None:
            heapq.heappush(heap, (first.id, first, reports))

    add(map(as_report, rows))
    while heap or waiting:
        while waiting and (not heap or (waiting[0][0] or 0) <= heap[0][0]):
            _, block_id = waiting.popleft()
            add(iter(_sorted(blocks(reader, MetricBlock.id == block_id), until)))
        if heap:
            _, report, rest = heapq.heappop(heap)
            yield report
            add(rest)


def _sorted(some: Iterable[Block], until: datetime | None) -> list[Report]:
    reports = [report for block in some for report in unpack(block)]
    return sorted(report for report in reports if until is None or report.reported_at <= until)


def with_archived(reader: _Reader, trial_id: int) -> Iterator[Report]:
    """All reports of a trial, those that are in force and those that are not, in no order."""
    statement = select(*_ROW).where(Metric.trial_id == trial_id).execution_options(yield_per=500)
    yield from map(as_report, reader.execute(statement))
    for block in blocks(reader, MetricBlock.trial_id == trial_id):
        yield from unpack(block)


def packed_of(reader: _Reader, trial_id: int, groups: Collection[str]) -> Iterator[Report]:
    """The reports of a trial's groups that are in packed blocks, by group and step."""
    for block in blocks(reader, MetricBlock.trial_id == trial_id, MetricBlock.group_name.in_(groups)):
        yield from unpack(block)


def packed_steps(reader: _Reader, trial_id: int, groups: Collection[str]) -> Iterator[tuple[str, Integers, Integers]]:
    """Group, ids and steps of the reports in each packed block of a trial's groups, by group and step."""
    statement = (
        select(MetricBlock.group_name, MetricBlock.packed, MetricBlock.steps)
        .where(MetricBlock.trial_id == trial_id, MetricBlock.group_name.in_(groups), IS_PACKED)
        .order_by(MetricBlock.group_name, MetricBlock.first_step)
    )
    for group, packed, steps in reader.execute(statement).tuples():
        assert packed is not None
        yield group, ids_in(packed), unpack_integers(steps)


def by_id(reader: _Reader, trial_id: int, ids: Collection[int]) -> dict[int, Report]:
    """Reports of a trial by their id."""
    rows = reader.execute(select(*_ROW).where(Metric.id.in_(ids), Metric.trial_id == trial_id))
    found = {report.id: report for report in map(as_report, rows)}
    missing = set(ids) - found.keys()
    if not missing:
        return found
    ranges = select(MetricBlock.id, MetricBlock.first_id, MetricBlock.last_id).where(
        MetricBlock.trial_id == trial_id, IS_PACKED
    )
    chosen = [
        block_id
        for block_id, first, last in reader.execute(ranges)
        if any((first or 0) <= report_id <= (last or 0) for report_id in missing)
    ]
    for block in blocks(reader, MetricBlock.id.in_(chosen)) if chosen else ():
        places = np.flatnonzero(np.isin(ids_in(block.packed), list(missing)))
        found |= {report.id: report for report in unpack(block, places)}
    return found


def steps_of(session: Session, trial_ids: Sequence[int], group: str, *, after: int) -> set[int]:
    """The steps of these trials' reports that are in packed blocks. `after`: in those with a greater report id."""
    statement = select(MetricBlock.steps).where(
        MetricBlock.trial_id.in_(trial_ids), MetricBlock.group_name == group, IS_PACKED, MetricBlock.last_id > after
    )
    found: set[int] = set()
    for steps in session.scalars(statement):
        found.update(unpack_integers(steps).tolist())
    return found


def newest_time(session: Session, trial_id: int) -> datetime | None:
    """When the latest report with a step was made that is in force."""
    current = (Metric.trial_id == trial_id, ~Metric.archived, Metric.total_batches.is_not(None))
    of_rows = session.scalar(select(func.max(Metric.reported_at)).where(*current))
    of_blocks = session.scalar(select(func.max(MetricBlock.last_at)).where(MetricBlock.trial_id == trial_id, IS_PACKED))
    return max((time for time in (of_rows, of_blocks) if time is not None), default=None)


def restore(connection: Connection, *which: ColumnElement[bool]) -> int:
    """Make rows of the reports in packed blocks, which stay as what curves are read from; returns how many.

    Args:
        connection: Within a transaction that has locked the trial.
        which: Conditions on blocks.
    """
    count = 0
    for block in list(blocks(connection, *which)):
        reports = unpack(block)
        connection.execute(insert(_METRICS), [report._asdict() for report in reports])
        of_block = (*_of(block.trial_id, block.group_name), MetricBlock.first_step == block.first_step)
        connection.execute(
            update(MetricBlock).where(*of_block).values(packed=None, first_id=None, last_id=None, last_at=None)
        )
        count += len(reports)
    return count
