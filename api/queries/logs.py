"""Log lines: read in order, formatted as clients print them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.orm import Session

from api.queries.paging import chosen, few
from api.schemas.base import rfc3339
from api.schemas.logs import LEVELS
from database import log_reads
from database.log_blocks import Line
from database.models import TaskLog
from workflows.config.patterns import PatternSet

_NAMED = {f"LOG_LEVEL_{level}": level for level in (*LEVELS, "UNSPECIFIED")} | {level: level for level in LEVELS}


@dataclass
class LogFilter(log_reads.LogFilter):
    """What a read of logs may be narrowed by; `pattern`: what a text matches."""

    pattern: PatternSet | None = None


def stored_levels(named: Sequence[str]) -> list[str]:
    """Levels of a filter as they are stored. Raises: BadRequest."""
    return few("levels", (chosen("levels", level, _NAMED) for level in named))


@dataclass(frozen=True)
class Lines:
    """A piece of a log: the lines that match, the last line that was looked at, and whether there may be more."""

    rows: Sequence[TaskLog | Line]
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
    above, below = (None, from_id) if descending else (from_id, None)
    rows = log_reads.lines(
        session, task_ids, wanted, above=above, below=below, most=piece, descending=descending
    )  # fmt: skip
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
    rows: list[TaskLog | Line] = []
    while len(rows) < most and (at > last if descending else at < last):
        began = time.monotonic()
        if at != begin and began > until:  # each search gets on
            return Lines(rows, at, is_full=False)
        end = max(last, at - size) if descending else min(last, at + size)
        # what lies between two ids: from the one that the last statement ended with
        above, below = (end - 1, at) if descending else (at, end + 1)
        rows += log_reads.lines(
            session, task_ids, wanted, above=above, below=below, most=most - len(rows), descending=descending
        )
        # the lines of a task may lie far apart, or one after the other
        at, size = end, 2 * size if time.monotonic() - began < _QUICK_S else size
    return Lines(rows, None, is_full=len(rows) == most)


def id_before(session: Session, task_ids: Sequence[str], moment: datetime, first: int, last: int) -> int:
    """An id behind which the lines from this moment on are, by bisection: lines arrive about in their order."""
    low, high = first, last + 1  # the first such line is in between
    while low < high:
        middle = (low + high) // 2
        row = log_reads.first_from(session, task_ids, middle)
        if row is None or row[1] >= moment:
            high = middle
        else:
            low = row[0] + 1
    return low - 1


def fields(session: Session, task_ids: Sequence[str]) -> dict[str, list[Any]]:
    """What the lines of tasks can be filtered by."""
    names = {
        "allocation_id": "allocationIds", "agent_id": "agentIds", "container_id": "containerIds", "rank_id": "rankIds",
        "source": "sources", "stdtype": "stdtypes",
    }  # fmt: skip
    return {names[name]: values for name, values in log_reads.fields(session, task_ids).items()}


def wire(row: TaskLog | Line) -> dict[str, Any]:
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
