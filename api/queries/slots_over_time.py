"""Slots in use and slots that are waited for, over a span of time: means of equal parts of it.

The engine of the database sums slots and times of the beginnings and of the ends by the part that they lie in. The rest
follows from these sums, as the slots in use until a moment grow with the time since each beginning and shrink with the
time since each end: a million allocations are as quickly drawn as they are read.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Select, Subquery, and_, case, cast, func, literal, null, or_, select
from sqlalchemy.orm import Session, aliased

from api.auth.authentication import UserPrincipal
from api.auth.authorization import readable_tasks, with_trials
from api.queries.spans import elapsed_s
from database.models import Allocation, Experiment, Task, Trial, User
from database.types import UtcTime, utc_now

#: Users with a line of their own.
MOST_USERS = 10


@dataclass(frozen=True)
class Span:
    """A span of time in `count` parts of `width_ms`; the last one may be shorter."""

    start: datetime
    end: datetime
    width_ms: int
    count: int

    @staticmethod
    def of(start: datetime, end: datetime, most: int) -> Span:
        """With at most `most` parts."""
        total = max(1, int((end - start) / timedelta(milliseconds=1)))
        width = math.ceil(total / most)
        return Span(start, end, width, math.ceil(total / width))

    @property
    def total_ms(self) -> int:
        """Its length."""
        return max(1, int((self.end - self.start) / timedelta(milliseconds=1)))


@dataclass(frozen=True)
class SlotsOverTime:
    """Means of each part of the span.

    Attributes:
        users: Slots in use by user, the most of them first; at most `MOST_USERS`.
        others: Of all other users.
        hidden: Of what the caller may not see, of all users.
        waiting: Slots that were waited for.
    """

    users: dict[str, list[float]]
    others: list[float]
    hidden: list[float]
    waiting: list[float]


def over_time(session: Session, span: Span, pool: str, user: UserPrincipal) -> SlotsOverTime:
    """Slots in use and waited for in a pool, or in all pools if it is empty."""
    used = _means(session, span, _used(session, span, pool, user))
    waits = _means(session, span, _waits_that_ended(session, span, pool), _waits_of_now(session, span, pool))
    hidden = used.pop(None, [0.0] * span.count)
    names = sorted((name for name in used if name is not None), key=lambda name: (-sum(used[name]), name))
    others = _sum(span, {name: used[name] for name in names[MOST_USERS:]})
    return SlotsOverTime({name: used[name] for name in names[:MOST_USERS]}, others, hidden, _sum(span, waits))


def _sum(span: Span, series: Mapping[Any, list[float]]) -> list[float]:
    return [math.fsum(values) for values in zip(*series.values(), strict=True)] if series else [0.0] * span.count


# -- when slots were held or waited for --------------------------------------------------------------------------


def _used(session: Session, span: Span, pool: str, user: UserPrincipal) -> Select[Any]:
    """Who held how many slots, from when to when. Who: NULL for what the caller may not see."""
    name = case((readable_tasks(user), User.username), else_=null())
    columns = _interval(session, span, name, Allocation.slots, Allocation.started_at, Allocation.ended_at)
    statement = with_trials(select(*columns).select_from(Allocation).join(Task, Task.id == Allocation.task_id))
    statement = statement.join(User, User.id == func.coalesce(Experiment.owner_id, Task.owner_id))
    return statement.where(Allocation.started_at < span.end, _ends_after(span), _in_pool(Allocation.pool, pool))


def _waits_that_ended(session: Session, span: Span, pool: str) -> Select[Any]:
    """Waits that ended with slots: for the first ones of a task, and for new ones after its pool took some away."""
    before = aliased(Allocation)
    since = case((Allocation.run_id == 1, Task.started_at), else_=before.ended_at)
    columns = _interval(session, span, literal("waits"), Allocation.slots, since, Allocation.started_at)
    is_before = and_(before.task_id == Allocation.task_id, before.run_id == Allocation.run_id - 1)
    statement = select(*columns).select_from(Allocation).join(Task, Task.id == Allocation.task_id)
    return statement.outerjoin(before, is_before).where(
        or_(Allocation.run_id == 1, before.preempt_reason != ""),
        Allocation.started_at > span.start,
        since < span.end,
        _ends_after(span),  # it follows, and there is an index for it
        _in_pool(Allocation.pool, pool),
    )


def _waits_of_now(session: Session, span: Span, pool: str) -> Select[Any]:
    """Trials and tasks that wait now, likewise."""
    last = aliased(Allocation)
    since = func.coalesce(last.ended_at, Task.started_at)
    slots = func.coalesce(Experiment.slots_per_trial, Task.slots, 0)
    columns = _interval(session, span, literal("waits"), slots, since, None)
    newest = select(func.max(Allocation.run_id)).where(Allocation.task_id == Task.id).scalar_subquery()
    statement = select(*columns).select_from(Task).outerjoin(Trial, Trial.task_id == Task.id)
    statement = statement.outerjoin(Experiment, Experiment.id == Trial.experiment_id)
    statement = statement.outerjoin(last, and_(last.task_id == Task.id, last.run_id == newest))
    trial = and_(Trial.state == "ACTIVE", Experiment.state == "ACTIVE", ~Experiment.is_unmanaged)
    other = and_(Task.trial_id.is_(None), Task.state == "ACTIVE", Task.ended_at.is_(None))
    waits = or_(last.id.is_(None), and_(last.ended_at.is_not(None), last.preempt_reason != ""))
    own_pool = func.coalesce(Experiment.resource_pool, Task.pool, "")
    return statement.where(or_(trial, other), waits, since < span.end, _in_pool(own_pool, pool))


def _ends_after(span: Span) -> ColumnElement[bool]:
    return or_(Allocation.ended_at.is_(None), Allocation.ended_at > span.start)


def _in_pool(column: Any, pool: str) -> ColumnElement[bool]:
    return literal(True) if not pool else column == pool


def _interval(session: Session, span: Span, name: Any, slots: Any, begin: Any, end: Any) -> list[ColumnElement[Any]]:
    """The columns of the statements above: milliseconds since the start of the span, cut to it."""
    start = literal(span.start, UtcTime())
    end = literal(utc_now(), UtcTime()) if end is None else end

    def within(time: Any) -> ColumnElement[Any]:
        at = cast(elapsed_s(session, start, time) * 1000, BigInteger)
        return case((at < 0, 0), (at > span.total_ms, span.total_ms), else_=at)

    return [name.label("name"), cast(slots, BigInteger).label("slots"), within(begin).label("begin"),
            within(end).label("end")]  # fmt: skip


# -- means ---------------------------------------------------------------------------------------------------------


def _means(session: Session, span: Span, *statements: Select[Any]) -> dict[str | None, list[float]]:
    """The mean number of slots in each part of the span, by name."""
    levels: defaultdict[str | None, list[float]] = defaultdict(lambda: [0.0] * (span.count + 1))
    for statement in statements:
        intervals = statement.subquery()
        for edge, sign in (("begin", 1), ("end", -1)):
            for name, sums in _sums(session, span, intervals, edge).items():
                _add(levels[name], span, sums, sign)
    return {name: _differences(span, level) for name, level in levels.items()}


def _sums(session: Session, span: Span, intervals: Subquery, edge: str) -> dict[str | None, dict[int, tuple[int, int]]]:
    """By name and part of the span: slots, and slots times the moment of the edge."""
    columns = intervals.c
    part = (columns[edge] // span.width_ms).label("part")
    statement = select(
        columns.name, part, func.sum(columns.slots), func.sum(columns.slots * columns[edge])
    ).group_by(columns.name, part)  # fmt: skip
    found: defaultdict[str | None, dict[int, tuple[int, int]]] = defaultdict(dict)
    for name, at, slots, moments in session.execute(statement).tuples():
        found[name][int(at)] = int(slots), int(moments)
    return found


def _add(level: list[float], span: Span, sums: Mapping[int, tuple[int, int]], sign: int) -> None:
    """Add to slot-milliseconds until the end of each part: what began there counts since then."""
    slots = moments = 0
    for part in range(span.count):
        here = sums.get(part, (0, 0))
        slots, moments = slots + here[0], moments + here[1]
        level[part + 1] += sign * (slots * _end_of(span, part) - moments)


def _differences(span: Span, level: list[float]) -> list[float]:
    return [
        round((level[part + 1] - level[part]) / (_end_of(span, part) - part * span.width_ms), 4)
        for part in range(span.count)
    ]


def _end_of(span: Span, part: int) -> int:
    return min(span.total_ms, (part + 1) * span.width_ms)
