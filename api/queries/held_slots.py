"""Slots that were held, or waited for, in equal parts of a span of time.

The engine of the database sums slots and times of the beginnings and of the ends by the parts that they lie in, in one
pass. The rest follows from these sums, as the slots in use until a moment grow with the time since each beginning and
shrink with the time since each end: a million allocations are as quickly summed as they are read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Select, case, cast, func, literal, or_, select
from sqlalchemy.orm import Session

from api.auth.authorization import with_experiments
from api.queries.spans import elapsed_s
from database.models import Allocation, Experiment, Task, User
from database.types import UtcTime, utc_now


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

    def end_of(self, part: int) -> int:
        """Where a part ends, in ms since the start."""
        return min(self.total_ms, (part + 1) * self.width_ms)

    def length_of(self, part: int) -> int:
        """How long a part is, in ms."""
        return self.end_of(part) - part * self.width_ms


def interval(session: Session, span: Span, slots: Any, begin: Any, end: Any) -> list[ColumnElement[Any]]:
    """Columns that say how many slots were held from when to when: in ms since the start of the span, cut to it."""
    start = literal(span.start, UtcTime())
    end = literal(utc_now(), UtcTime()) if end is None else end

    def within(time: Any) -> ColumnElement[Any]:
        at = cast(func.round(elapsed_s(session, start, time) * 1000), BigInteger)
        return case((at < 0, 0), (at > span.total_ms, span.total_ms), else_=at)

    return [cast(slots, BigInteger).label("slots"), within(begin).label("begin"), within(end).label("end")]


def held(span: Span, *columns: Any) -> Select[*tuple[Any, ...]]:
    """Columns of the allocations that lie in the span, with a part of it at least, and of their users.

    It is `with_experiments`: whether the caller may see one is left to the statement.
    """
    statement = with_experiments(select(*columns).select_from(Allocation))
    statement = statement.join(User, User.id == func.coalesce(Experiment.owner_id, Task.owner_id))
    return statement.where(Allocation.started_at < span.end, ends_after(span))


def ends_after(span: Span) -> ColumnElement[bool]:
    """Whether an allocation ends after the span's start, for which there is an index."""
    return or_(Allocation.ended_at.is_(None), Allocation.ended_at > span.start)


def slot_ms(session: Session, span: Span, *statements: Select[Any]) -> dict[tuple[Any, ...], dict[int, int]]:
    """Slots times ms, by the names that the statements select before an `interval`, and by part, of those with some."""
    found: dict[tuple[Any, ...], _Edges] = {}
    for statement in statements:
        _add_edges(found, session, span, statement)
    return {name: _held(span, edges) for name, edges in found.items()}


#: By part: slots that begin or end in it (negative), and these times the ms at which they do.
_Edges = dict[int, tuple[int, int]]


def _add_edges(found: dict[tuple[Any, ...], _Edges], session: Session, span: Span, statement: Select[Any]) -> None:
    *names, slots, begin, end = statement.subquery().c
    parts = (begin // span.width_ms).label("first"), (end // span.width_ms).label("last")
    summed = select(*names, *parts, func.sum(slots), func.sum(slots * begin), func.sum(slots * end))
    for row in session.execute(summed.group_by(*names, *parts)):
        values: tuple[Any, ...] = tuple(row)
        *name, first, last, count, begins, ends = values
        edges = found.setdefault(tuple(name), {})
        for sign, part, moments in ((1, int(first), begins), (-1, int(last), ends)):
            known = edges.get(part, (0, 0))
            edges[part] = known[0] + sign * int(count), known[1] + sign * int(moments)


def _held(span: Span, edges: _Edges) -> dict[int, int]:
    """What began in a part counts from then on until the part's end, and as a whole in each later one until it ends."""
    held: dict[int, int] = {}
    slots = 0
    parts = sorted(edges)
    for part, following in zip(parts, [*parts[1:], span.count], strict=True):
        change, moments = edges[part]
        here = slots * span.length_of(part) + change * span.end_of(part) - moments
        if here and part < span.count:  # what ends with the span ends behind its last part
            held[part] = here
        slots += change
        if slots:
            held |= {later: slots * span.length_of(later) for later in range(part + 1, following)}
    return held
