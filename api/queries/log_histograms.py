"""Counts of a log's lines by level and time, with a bound on work however long the log is.

A log of at most `COUNTED` lines is counted. Of a longer one the severe lines are, by an index of their own, as people
look for them and they are few; the others are estimated: from parts at equal distances by id, each of which stands for
the lines until the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, func, select, text
from sqlalchemy.orm import Session

from api.queries.logs import LogFilter
from database.log_blocks import SEVERE_LEVELS
from database.log_reads import Matching, blocks, bounds, conditions, first_from, of_tasks
from database.models import LogBlock, TaskLog
from database.models.trials import SEVERE

#: Lines that are counted one by one, parts of a longer log, and lines of a part.
COUNTED, PARTS, PART_LINES = 100_000, 200, 60
#: Blocks that are looked through for a text, of a long log: it has those at equal distances.
_LOOKED_THROUGH = 300


@dataclass
class Histogram:
    """Lines by level; an empty level is that of lines without one."""

    start: datetime
    width: timedelta
    buckets: int
    is_approximate: bool = False
    by_level: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    def add(self, level: str | None, at: datetime, count: float = 1.0) -> None:
        """Count lines of one moment. One outside of the range is at its edge: lines arrive about in their order."""
        place = int((at - self.start) / self.width)
        self._counts(level)[min(self.buckets - 1, max(0, place))] += count

    def spread(self, level: str | None, begin: datetime, end: datetime, count: float) -> None:
        """Count lines that are spread evenly over a span of time."""
        first = min(self.buckets - 1.0, max(0.0, (begin - self.start) / self.width))
        last = min(float(self.buckets), max(first, (end - self.start) / self.width))
        counts = self._counts(level)
        if last - first < 1e-6:
            counts[int(first)] += count
            return
        for place in range(int(first), min(self.buckets, int(last) + 1)):
            share = min(last, place + 1) - max(first, place)
            counts[place] += count * max(0.0, share) / (last - first)

    def _counts(self, level: str | None) -> list[float]:
        return self.by_level.setdefault(level or "", [0.0] * self.buckets)


def read(session: Session, task_ids: Sequence[str], wanted: LogFilter, buckets: int) -> Histogram | None:
    """Lines of tasks that match, over the time of all their lines; None: there is no line at all."""
    first, last = bounds(session, task_ids)
    if first is None or last is None:
        return None
    span = [first_from(session, task_ids, id_) for id_ in (first, last)]
    times = [line[1] for line in span if line is not None]
    if not times:  # removed meanwhile
        return None
    start, end = times[0], times[-1]
    width = max((end - start) / buckets, timedelta(milliseconds=1))
    found = Histogram(start, width, buckets)
    rows = select(TaskLog.id).where(of_tasks(task_ids)).order_by(TaskLog.id)
    behind = session.scalar(rows.offset(COUNTED).limit(1))
    in_blocks = session.scalar(select(func.sum(LogBlock.line_count)).where(of_tasks(task_ids, LogBlock.task_id))) or 0
    is_long = behind is not None
    found.is_approximate = is_long or in_blocks > COUNTED
    _add_blocks(session, found, task_ids, wanted, is_long=in_blocks > COUNTED)
    if not is_long:
        _count(session, found, [of_tasks(task_ids), *conditions(wanted)])
        return found
    _count(session, found, [of_tasks(task_ids), text(SEVERE), *conditions(wanted)])
    if not wanted.levels or not SEVERE_LEVELS.issuperset(wanted.levels):
        edges = (select(edge(TaskLog.id)).where(of_tasks(task_ids)) for edge in (func.min, func.max))
        lowest, highest = (session.scalar(each) for each in edges)
        if lowest is not None and highest is not None:  # not all in blocks meanwhile
            _estimate(session, found, task_ids, wanted, lowest, highest)
    return found


def _add_blocks(
    session: Session, found: Histogram, task_ids: Sequence[str], wanted: LogFilter, *, is_long: bool
) -> None:
    """Lines in blocks. Of a long log those of a block are spread over its time, or some blocks stand for the others."""
    levels = {"" if level == "UNSPECIFIED" else level for level in wanted.levels}
    if is_long and not wanted.search_text:
        known = select(LogBlock.levels, LogBlock.first_at, LogBlock.last_at)
        whose = known.where(of_tasks(task_ids, LogBlock.task_id)).execution_options(yield_per=1000)
        for counts, first_at, last_at in session.execute(whose).tuples():
            for level, count in counts.items():
                if not levels or level in levels:
                    found.spread(level, first_at, last_at, count)
        return
    matching = Matching(wanted)
    for task_id in task_ids:
        count = session.scalar(select(func.count()).where(LogBlock.task_id == task_id)) or 0
        step = max(1, count // _LOOKED_THROUGH) if is_long else 1
        more: list[ColumnElement[bool]] = []
        if step > 1:
            ids = session.scalars(select(LogBlock.id).where(LogBlock.task_id == task_id).order_by(LogBlock.last_id))
            more.append(LogBlock.id.in_(ids.all()[::step]))
        for block in blocks(session, task_id, more, having=wanted.search_text):
            places = matching.places(block)
            if places:
                names = block.column("level")
                for place in places:
                    found.add(names[place], block.time(place), step)


def _count(session: Session, found: Histogram, lines: Sequence[Any]) -> None:
    """The newest `COUNTED` of these lines."""
    statement = select(TaskLog.level, TaskLog.timestamp).where(*lines).order_by(TaskLog.id.desc()).limit(COUNTED)
    for level, at in session.execute(statement).tuples():
        found.add(level, at)


def _estimate(
    session: Session, found: Histogram, task_ids: Sequence[str], wanted: LogFilter, first: int, last: int
) -> None:
    """Lines that are not severe. A part is read whole: how densely its ids lie says how many lines there are around."""
    matches: list[ColumnElement[bool]] = conditions(wanted)
    matching = select(TaskLog.id).where(*matches) if matches else None
    step = max(1, (last - first + 1) // PARTS)
    begins = [first + place * step for place in range(PARTS)]
    parts = [_part(session, task_ids, begin, matching) for begin in begins]
    for place, part in enumerate(parts):
        stop = begins[place + 1] if place + 1 < PARTS else last + 1
        lines = [line for line in part if line[0] < stop]  # a part without its own lines shows those of a later one
        if not lines:
            continue
        span = lines[-1][0] - begins[place] + 1 if len(lines) == PART_LINES else stop - begins[place]
        weight = (stop - begins[place]) / span
        until = next((each[0][2] for each in parts[place + 1 :] if each), lines[-1][2])
        counts: dict[str | None, int] = {}
        for _, level, _, is_match in lines:
            if is_match and level not in SEVERE_LEVELS:
                counts[level] = counts.get(level, 0) + 1
        for level, count in counts.items():
            found.spread(level, lines[0][2], max(lines[0][2], until), count * weight)


def _part(
    session: Session, task_ids: Sequence[str], begin: int, matching: Any
) -> list[tuple[int, str | None, datetime, bool]]:
    """The next lines from an id on: id, level, time, and whether it matches the filter."""
    columns = select(TaskLog.id, TaskLog.level, TaskLog.timestamp).where(of_tasks(task_ids), TaskLog.id >= begin)
    rows = session.execute(columns.order_by(TaskLog.id).limit(PART_LINES)).tuples().all()
    if matching is None or not rows:
        return [(*row, True) for row in rows]
    matched = set(session.scalars(matching.where(of_tasks(task_ids), TaskLog.id.between(rows[0][0], rows[-1][0]))))
    return [(*row, row[0] in matched) for row in rows]
