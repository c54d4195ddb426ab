"""Slots in use and slots that are waited for, over a span of time: means of equal parts of it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Select, and_, case, cast, func, literal, null, or_, select
from sqlalchemy.orm import Session, aliased

from api.auth.authentication import UserPrincipal
from api.auth.authorization import readable_tasks, readable_workspaces
from api.queries.held_slots import Span, ends_after, held, interval, slot_ms
from api.queries.spans import elapsed_s
from api.queries.waiting import POOL, SINCE, SLOTS, waiting
from database.models import Allocation, PoolSample, Task, User
from database.types import UtcTime

#: Users with a line of their own; a name that no pool has.
MOST_USERS, NOWHERE = 10, "/"
_WAITS = literal("waits").label("name")


@dataclass(frozen=True)
class SlotsOverTime:
    """Means of each part of the span.

    Attributes:
        users: Slots in use by user, the most of them first; at most `MOST_USERS`.
        others: Of all other users.
        hidden: Of what the caller may not see, of all users.
        waiting: Slots that were waited for.
        capacity: Slots in service at the end of each part; None where that is not known.
        fair: Fair parts of them by user, likewise.
    """

    users: dict[str, list[float]]
    others: list[float]
    hidden: list[float]
    waiting: list[float]
    capacity: list[int | None]
    fair: dict[str, list[float | None]]


def over_time(session: Session, span: Span, pool: str, user: UserPrincipal) -> SlotsOverTime:
    """Slots in use and waited for in a pool, or in all pools if it is empty."""
    used = _means(session, span, _used(session, span, pool, user))
    waits = _means(session, span, _waits_that_ended(session, span, pool), _waits_of_now(session, span, pool))
    hidden = used.pop(None, [0.0] * span.count)
    names = sorted((name for name in used if name is not None), key=lambda name: (-sum(used[name]), name))
    others = _sum(span, {name: used[name] for name in names[MOST_USERS:]})
    shown = {name: used[name] for name in names[:MOST_USERS]}
    return SlotsOverTime(shown, others, hidden, _sum(span, waits), *_shares(session, span, pool, user))


def _sum(span: Span, series: Mapping[Any, list[float]]) -> list[float]:
    return [math.fsum(values) for values in zip(*series.values(), strict=True)] if series else [0.0] * span.count


# -- when slots were held or waited for --------------------------------------------------------------------------


def _used(session: Session, span: Span, pool: str, user: UserPrincipal) -> Select[Any]:
    """Who held how many slots, from when to when. Who: NULL for what the caller may not see."""
    name = case((readable_tasks(user), User.username), else_=null()).label("name")
    columns = interval(session, span, Allocation.slots, Allocation.started_at, Allocation.ended_at)
    return held(span, name, *columns).where(_in_pool(Allocation.pool, pool))


def _waits_that_ended(session: Session, span: Span, pool: str) -> Select[Any]:
    """Waits that ended with slots: for the first ones of a task, and for new ones after its pool took some away."""
    before = aliased(Allocation)
    since = case((Allocation.run_id == 1, Task.started_at), else_=before.ended_at)
    columns = interval(session, span, Allocation.slots, since, Allocation.started_at)
    is_before = and_(before.task_id == Allocation.task_id, before.run_id == Allocation.run_id - 1)
    statement = select(_WAITS, *columns).select_from(Allocation).join(Task, Task.id == Allocation.task_id)
    return statement.outerjoin(before, is_before).where(
        or_(Allocation.run_id == 1, before.preempt_reason != ""),
        Allocation.started_at > span.start,
        since < span.end,
        ends_after(span),  # it follows, and there is an index for it
        _in_pool(Allocation.pool, pool),
    )


def _waits_of_now(session: Session, span: Span, pool: str) -> Select[Any]:
    """Trials and tasks that wait now, likewise."""
    return waiting(_WAITS, *interval(session, span, SLOTS, SINCE, None)).where(span.end > SINCE, _in_pool(POOL, pool))


def _in_pool(column: Any, pool: str) -> ColumnElement[bool]:
    return literal(True) if not pool else column == pool


def _means(session: Session, span: Span, *statements: Select[Any]) -> dict[str | None, list[float]]:
    """The mean number of slots in each part of the span, by name."""
    return {
        name: [round(slots.get(part, 0) / span.length_of(part), 4) for part in range(span.count)]
        for (name,), slots in slot_ms(session, span, *statements).items()
    }


# -- what there was to share ---------------------------------------------------------------------------------------


def _shares(
    session: Session, span: Span, pool: str, user: UserPrincipal
) -> tuple[list[int | None], dict[str, list[float | None]]]:
    """Slots in service, and fair parts of the users with the most, at the end of each part of the span."""
    capacity: list[int | None] = [None] * span.count
    fair: defaultdict[int, list[float | None]] = defaultdict(lambda: [None] * span.count)
    places = set(session.scalars(readable_workspaces(user)))
    for samples in _samples(session, span, pool).values():
        now: PoolSample | None = None
        for part in range(span.count):
            now = samples.get(part, now if part else samples.get(-1))
            if now is None:
                continue
            capacity[part] = (capacity[part] or 0) + now.slots
            for user_id, workspace_id, slots in now.parts:
                if workspace_id in places:
                    fair[user_id][part] = (fair[user_id][part] or 0) + slots
    # where it is known what there was, who had no part of it had none
    for values in fair.values():
        values[:] = [
            0.0 if value is None and slots is not None else value for value, slots in zip(values, capacity, strict=True)
        ]
    most = sorted(fair, key=lambda id_: (-sum(value or 0 for value in fair[id_]), id_))[:MOST_USERS]
    names = dict(session.execute(select(User.id, User.username).where(User.id.in_(most))).tuples().all())
    return capacity, {names[id_]: fair[id_] for id_ in most if id_ in names}


def _samples(session: Session, span: Span, pool: str) -> dict[str, dict[int, PoolSample]]:
    """By pool and part the last sample; as part -1 the last one before the span."""
    start = literal(span.start, UtcTime())
    part = (cast(elapsed_s(session, start, PoolSample.at) * 1000 + 0.5, BigInteger) // span.width_ms).label("part")
    within = select(PoolSample.pool, part, func.max(PoolSample.at).label("at"))
    within = within.where(PoolSample.at >= span.start, PoolSample.at < span.end).group_by(PoolSample.pool, part)
    before = select(PoolSample.pool, literal(-1), func.max(PoolSample.at))
    before = before.where(PoolSample.at < span.start).group_by(PoolSample.pool)
    found: defaultdict[str, dict[int, PoolSample]] = defaultdict(dict)
    for each in (within, before):
        last = each.where(_in_pool(PoolSample.pool, pool)).subquery()
        rows = select(PoolSample, list(last.c)[1]).join(
            last, and_(last.c[0] == PoolSample.pool, last.c[2] == PoolSample.at)
        )
        for sample, number in session.execute(rows).tuples():
            found[sample.pool][int(number)] = sample
    return found
