"""Writes log lines by the thousand. A line that was delivered before, by (container, offset), is not kept again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypedDict

import orjson
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from database import log_blocks
from database.models import TaskLog
from database.types import utc_now
from database.upsert import insert

#: Places of the lines about one allocation of a task; that of its end is the first. Those of its workflow come behind.
READY, ASSIGNED, STARTED, HANGS, FURTHER = 1, 2, 3, 4, 10
#: Places of the lines about a task itself; that of its start is the first.
AWAITS, ENDED = 1, 2


class LogLine(TypedDict):
    """A row of `task_logs`, without its id."""

    task_id: str
    allocation_id: str | None
    agent_id: str | None
    container_id: str | None
    line_offset: int | None
    rank_id: int | None
    timestamp: datetime
    level: str | None
    source: str | None
    stdtype: str | None
    log: str


_KINDS = {"line_offset": "bigint", "rank_id": "int", "timestamp": "timestamptz"}
_COLUMNS = tuple(LogLine.__annotations__)
#: All lines in one statement and one value: as one statement for each line it takes several times as long.
_AT_ONCE = text(
    f"INSERT INTO task_logs ({', '.join(_COLUMNS)}) SELECT {', '.join(_COLUMNS)}"
    " FROM json_to_recordset(CAST(:lines AS json)) AS r("
    + ", ".join(f"{column} {_KINDS.get(column, 'text')}" for column in _COLUMNS)
    + ") ON CONFLICT DO NOTHING"
)


#: From so many lines of one task on they become a block at once: as rows they would cost some ten times as much.
_BLOCK_FROM = 400


def insert_lines(session: Session, lines: Sequence[LogLine]) -> None:
    """Keep these lines, in this order."""
    tasks = sorted({line["task_id"] for line in lines})
    if len(tasks) == 1 and len(lines) >= _BLOCK_FROM and log_blocks.lock(session, tasks[0], alone=True):
        _insert_block(session, tasks[0], lines)
        return
    for task_id in tasks:
        log_blocks.lock(session, task_id, alone=False)
    if there := log_blocks.known(session, log_blocks.offsets_of(lines)):
        lines = [line for line in lines if _key(line) not in there]
    if lines:
        _insert_rows(session, lines)


def _key(line: LogLine) -> tuple[str | None, int | None]:
    return line["container_id"], line["line_offset"]


def _insert_block(session: Session, task_id: str, lines: Sequence[LogLine]) -> None:
    """As a block: of what was not there before, in blocks or rows."""
    own = log_blocks.offsets_of(lines)
    there: set[Any] = log_blocks.known(session, own)
    for container, offsets in own.items():
        rows = select(TaskLog.container_id, TaskLog.line_offset).where(
            TaskLog.container_id == container, TaskLog.line_offset.between(min(offsets), max(offsets))
        )
        there.update(session.execute(rows).tuples())
    fresh: list[LogLine] = list(lines)
    if there or any(len(offsets) != len(set(offsets)) for offsets in own.values()):
        fresh = []
        for line in lines:
            key = _key(line)
            if key not in there:
                fresh.append(line)
            if None not in key:
                there.add(key)
    for at in range(0, len(fresh), log_blocks.BLOCK):
        piece = fresh[at : at + log_blocks.BLOCK]
        log_blocks.write(session, task_id, log_blocks.next_ids(session, len(piece)), piece)


def _insert_rows(session: Session, lines: Sequence[LogLine]) -> None:
    if session.get_bind().dialect.name == "postgresql":
        session.execute(_AT_ONCE, {"lines": orjson.dumps(lines).decode()})
    else:
        session.execute(insert(session, TaskLog).on_conflict_do_nothing(), list(lines))


def note_line(
    session: Session, task_id: str, line: str, *, allocation_id: str | None = None, place: int = 0, level: str = "INFO"
) -> None:
    """Write a line; one that is written already stays as it is.

    Args:
        session: Of a transaction that writes.
        task_id: Whose log.
        line: Without a newline.
        allocation_id: Which it is about; None: the task itself.
        place: Tells the lines about one allocation apart.
        level: How bad it is.
    """
    written = LogLine(
        task_id=task_id,
        allocation_id=allocation_id,
        agent_id=None,
        container_id=_ours(allocation_id or task_id),
        line_offset=place,
        rank_id=None,
        timestamp=utc_now(),
        level=level,
        source="master",
        stdtype="stdout",
        log=line,
    )
    insert_lines(session, [written])


def is_noted(session: Session, allocation_id: str, place: int) -> bool:
    """Whether `note_line` has written the line of this place about an allocation."""
    name = _ours(allocation_id)
    line = select(TaskLog.id).where(TaskLog.container_id == name, TaskLog.line_offset == place)
    if session.scalar(line) is not None:
        return True
    return (name, place) in log_blocks.known(session, {name: [place]})


def _ours(about: str) -> str:
    return f"master {about}"
