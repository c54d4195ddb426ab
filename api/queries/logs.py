"""Log lines: read in order, formatted as clients print them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.orm import Session

from api.queries.paging import chosen, few
from api.schemas.base import rfc3339
from api.schemas.logs import LEVELS
from database.models import TaskLog
from workflows.config.patterns import PatternSet

_NAMED = {f"LOG_LEVEL_{level}": level for level in (*LEVELS, "UNSPECIFIED")} | {level: level for level in LEVELS}


@dataclass
class LogFilter:
    """What a read of logs may be narrowed by."""

    allocation_ids: Sequence[str] = ()
    agent_ids: Sequence[str] = ()
    container_ids: Sequence[str] = ()
    rank_ids: Sequence[int] = ()
    levels: Sequence[str] = ()
    sources: Sequence[str] = ()
    stdtypes: Sequence[str] = ()
    search_text: str = ""
    pattern: PatternSet | None = None
    before: datetime | None = None
    after: datetime | None = None
    after_id: int | None = None  # behind this line, in the order of arrival: where a reader was cut off


def stored_levels(named: Sequence[str]) -> list[str]:
    """Levels of a filter as they are stored. Raises: BadRequest."""
    return few("levels", (chosen("levels", level, _NAMED) for level in named))


@dataclass(frozen=True)
class Lines:
    """A piece of a log: the lines that match, the last line that was looked at, and whether there may be more."""

    rows: Sequence[TaskLog]
    last_id: int | None
    is_full: bool


#: Lines that are looked at in one statement.
_PIECE = 1000


def read(
    session: Session,
    task_ids: Sequence[str],
    wanted: LogFilter,
    *,
    from_id: int | None = None,
    most: int = 0,
    descending: bool = False,
) -> Lines:
    """The next lines of tasks after `from_id`, in the order of their arrival, or before it, the latest first.

    `most`: the limit on the number of lines; 0: as many as one piece has.
    """
    piece = min(_PIECE, most) if most > 0 and wanted.pattern is None else _PIECE
    statement = select(TaskLog).where(of_tasks(task_ids), *conditions(wanted))
    if from_id is not None:
        statement = statement.where(TaskLog.id < from_id if descending else TaskLog.id > from_id)
    statement = statement.order_by(TaskLog.id.desc() if descending else TaskLog.id.asc()).limit(piece)
    rows = session.scalars(statement).all()
    last_id, is_full = rows[-1].id if rows else None, len(rows) == piece
    if wanted.pattern is not None:
        rows = [row for row in rows if wanted.pattern.matches(row.log)]
    return Lines(rows, last_id, is_full)


#: Ids that a search looks at in its first statement, seconds after which it begins no further one, and seconds of a
#: statement that might have looked at more.
_RANGE, _SEARCH_S, _QUICK_S = 20_000, 0.1, 0.03


def search(
    session: Session,
    task_ids: Sequence[str],
    wanted: LogFilter,
    *,
    begin: int,
    last: int,
    most: int,
    descending: bool,
) -> Lines:
    """The same as `read` where few lines may match: for a part of a second, whatever the length of the log.

    Args:
        session: To read with.
        task_ids: Whose lines.
        wanted: What to look for.
        begin: Lines before this id are looked at, or behind it.
        last: The last id in that direction.
        most: Lines.
        descending: Whether it goes back.

    Returns:
        The lines. `last_id` is where to go on if time was up before they were enough, and None if the log was.
    """
    until, size, at = time.monotonic() + _SEARCH_S, _RANGE, begin
    statement = select(TaskLog).where(of_tasks(task_ids), *conditions(wanted))
    rows: list[TaskLog] = []
    while len(rows) < most and (at > last if descending else at < last):
        began = time.monotonic()
        if at != begin and began > until:  # each search gets on
            return Lines(rows, at, is_full=False)
        end = max(last, at - size) if descending else min(last, at + size)
        # what lies between two ids: from the one that the last statement ended with
        part = [TaskLog.id >= end, TaskLog.id < at] if descending else [TaskLog.id > at, TaskLog.id <= end]
        order = TaskLog.id.desc() if descending else TaskLog.id.asc()
        rows += session.scalars(statement.where(*part).order_by(order).limit(most - len(rows))).all()
        # the lines of a task may lie far apart, or one after the other
        at, size = end, 2 * size if time.monotonic() - began < _QUICK_S else size
    return Lines(rows, None, is_full=len(rows) == most)


def bounds(session: Session, task_ids: Sequence[str]) -> tuple[int | None, int | None]:
    """Ids of the first and the last line of tasks; None without any."""
    # two looks into the index: asked for both at once, SQLite reads all of it
    lowest, highest = (select(edge(TaskLog.id)).where(of_tasks(task_ids)) for edge in (func.min, func.max))
    return session.scalar(lowest), session.scalar(highest)


def id_before(session: Session, task_ids: Sequence[str], moment: datetime, first: int, last: int) -> int:
    """An id behind which the lines from this moment on are, by bisection: lines arrive about in their order."""
    low, high = first, last + 1  # the first such line is in between
    while low < high:
        middle = (low + high) // 2
        found = select(TaskLog.id, TaskLog.timestamp).where(of_tasks(task_ids), TaskLog.id >= middle)
        row = session.execute(found.order_by(TaskLog.id).limit(1)).one_or_none()
        if row is None or row[1] >= moment:
            high = middle
        else:
            low = row[0] + 1
    return low - 1


def of_tasks(task_ids: Sequence[str]) -> ColumnElement[bool]:
    """Lines of these tasks. Of one alone the index has the lines in their order already."""
    return TaskLog.task_id == task_ids[0] if len(task_ids) == 1 else TaskLog.task_id.in_(task_ids)


def fields(session: Session, task_ids: Sequence[str]) -> dict[str, list[Any]]:
    """What the lines of tasks can be filtered by."""
    columns = {
        "allocationIds": TaskLog.allocation_id,
        "agentIds": TaskLog.agent_id,
        "containerIds": TaskLog.container_id,
        "rankIds": TaskLog.rank_id,
        "sources": TaskLog.source,
        "stdtypes": TaskLog.stdtype,
    }
    found: dict[str, list[Any]] = {}
    for name, column in columns.items():
        values = session.scalars(select(column).where(of_tasks(task_ids), column.is_not(None)).distinct())
        found[name] = sorted(values)
    return found


def conditions(wanted: LogFilter) -> list[ColumnElement[bool]]:
    """What a filter says of a line, but for its pattern."""
    found: list[ColumnElement[bool]] = []
    for column, values in (
        (TaskLog.allocation_id, wanted.allocation_ids),
        (TaskLog.agent_id, wanted.agent_ids),
        (TaskLog.container_id, wanted.container_ids),
        (TaskLog.rank_id, wanted.rank_ids),
        (TaskLog.source, wanted.sources),
        (TaskLog.stdtype, wanted.stdtypes),
    ):
        if values:
            found.append(column.in_(values))
    if names := set(wanted.levels):
        listed = TaskLog.level.in_(names)
        found.append(or_(listed, TaskLog.level.is_(None)) if "UNSPECIFIED" in names else listed)
    if wanted.search_text:
        found.append(TaskLog.log.icontains(wanted.search_text, autoescape=True))
    if wanted.before is not None:
        found.append(TaskLog.timestamp < wanted.before)
    if wanted.after is not None:
        found.append(TaskLog.timestamp > wanted.after)
    if wanted.after_id is not None:
        found.append(TaskLog.id > wanted.after_id)
    return found


def wire(row: TaskLog) -> dict[str, Any]:
    """A line as clients read it. `message` is complete and ends in a newline: they print it as it is."""
    container = (row.container_id or "")[:8].ljust(8)
    rank = f" [rank={row.rank_id}]" if row.rank_id is not None else ""
    level = f" {row.level}:" if row.level else ""
    return {
        "id": str(row.id),
        "taskId": row.task_id,
        "timestamp": rfc3339(row.timestamp),
        "level": f"LOG_LEVEL_{row.level or 'UNSPECIFIED'}",
        "log": row.log,
        "message": f"[{_printed(row.timestamp)}] {container}{rank} ||{level} {row.log}\n",
        "allocationId": row.allocation_id,
        "agentId": row.agent_id,
        "containerId": row.container_id,
        "rankId": row.rank_id,
        "source": row.source,
        "stdtype": row.stdtype,
    }


def _printed(at: datetime) -> str:
    """An instant as lines of a log begin: always with six digits of a fraction, so that they stay in line."""
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
