"""Slots that were held, or waited for, in equal parts of a span of time.

The engine of the database sums slots and times of the beginnings and of the ends by the parts that they lie in, in one
pass. The rest follows from these sums, as the slots in use until a moment grow with the time since each beginning and
shrink with the time since each end: a million allocations are as quickly summed as they are read.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Select, and_, case, cast, func, literal, or_, select
from sqlalchemy.orm import Session

from api.queries.spans import elapsed_s
from database.models import Allocation
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

    def lengths(self) -> list[int]:
        """How long each part is, in ms."""
        return [self.end_of(part) - part * self.width_ms for part in range(self.count)]


def interval(session: Session, span: Span, slots: Any, begin: Any, end: Any) -> list[ColumnElement[Any]]:
    """Columns that say how many slots were held from when to when: in ms since the start of the span, cut to it."""
    start = literal(span.start, UtcTime())
    end = literal(utc_now(), UtcTime()) if end is None else end

    def within(time: Any) -> ColumnElement[Any]:
        at = cast(func.round(elapsed_s(session, start, time) * 1000), BigInteger)
        return case((at < 0, 0), (at > span.total_ms, span.total_ms), else_=at)

    return [cast(slots, BigInteger).label("slots"), within(begin).label("begin"), within(end).label("end")]


def lies_in(span: Span) -> ColumnElement[bool]:
    """Whether an allocation lies in the span, with a part of it at least."""
    return and_(Allocation.started_at < span.end, ends_after(span))


def ends_after(span: Span) -> ColumnElement[bool]:
    """Whether an allocation ends after the span's start, for which there is an index."""
    return or_(Allocation.ended_at.is_(None), Allocation.ended_at > span.start)


def slot_ms(session: Session, span: Span, *statements: Select[Any]) -> dict[tuple[Any, ...], list[int]]:
    """Slots times ms of each part of the span, by the names that the statements select before an `interval`."""
    levels: defaultdict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0] * (span.count + 1))
    for statement in statements:
        for name, edges in _sums(session, span, statement).items():
            for sign, sums in edges.items():
                _add(levels[name], span, sums, sign)
    return {name: [level[part + 1] - level[part] for part in range(span.count)] for name, level in levels.items()}


#: Of each part of a span: slots, and slots times the ms at which they begin, or end.
_Sums = defaultdict[int, tuple[int, int]]


def _sums(session: Session, span: Span, statement: Select[Any]) -> dict[tuple[Any, ...], dict[int, _Sums]]:
    """By name: of the beginnings (1), and of the ends (-1)."""
    intervals = statement.subquery()
    *names, slots, begin, end = intervals.c
    parts = (begin // span.width_ms).label("first"), (end // span.width_ms).label("last")
    summed = select(*names, *parts, func.sum(slots), func.sum(slots * begin), func.sum(slots * end))
    found: defaultdict[tuple[Any, ...], dict[int, _Sums]] = defaultdict(
        lambda: {1: defaultdict(lambda: (0, 0)), -1: defaultdict(lambda: (0, 0))}
    )
    for row in session.execute(summed.group_by(*names, *parts)):
        values: tuple[Any, ...] = tuple(row)
        *name, first, last, count, begins, ends = values
        edges = found[tuple(name)]
        for sign, part, moments in ((1, first, begins), (-1, last, ends)):
            known = edges[sign][int(part)]
            edges[sign][int(part)] = known[0] + int(count), known[1] + int(moments)
    return found


def _add(level: list[int], span: Span, sums: _Sums, sign: int) -> None:
    """Add to slot-milliseconds until the end of each part: what began there counts since then."""
    slots = moments = 0
    for part in range(span.count):
        here = sums.get(part, (0, 0))
        slots, moments = slots + here[0], moments + here[1]
        level[part + 1] += sign * (slots * span.end_of(part) - moments)
