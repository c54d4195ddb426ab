"""Writes log lines by the thousand. A line that was delivered before, by (container, offset), is not kept again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from sqlalchemy import bindparam, or_, select, text
from sqlalchemy.orm import Session

from database import log_blocks
from database.engines import on_postgresql
from database.log_blocks import COLUMNS, Line, Lines
from database.models import TaskLog
from database.types import utc_now
from database.upsert import insert

#: Places of the lines about one allocation of a task; that of its end is the first. Those of its workflow come behind.
READY, ASSIGNED, STARTED, HANGS, FURTHER = 1, 2, 3, 4, 10
#: Places of the lines about a task itself; that of its start is the first.
AWAITS, ENDED = 1, 2


_KINDS = {"line_offset": "bigint", "rank_id": "int", "timestamp": "timestamptz"}
#: All lines in one statement and one value: as one statement for each line it takes several times as long.
_AT_ONCE = text(
    f"INSERT INTO task_logs ({', '.join(COLUMNS)}) SELECT {', '.join(COLUMNS)}"
    " FROM json_to_recordset(CAST(:lines AS json)) AS r("
    + ", ".join(f"{column} {_KINDS.get(column, 'text')}" for column in COLUMNS)
    + ") ON CONFLICT DO NOTHING"
)


#: From so many lines of one task on they become a block at once: as rows they would cost some ten times as much.
_BLOCK_FROM = 400


def insert_lines(session: Session, lines: Sequence[Line]) -> None:
    """Keep these lines, in this order."""
    if lines:
        insert_columns(session, Lines.of(lines))


def insert_columns(session: Session, lines: Lines) -> None:
    """Keep these lines, in this order."""
    tasks = sorted(set(lines.columns["task_id"]))
    if len(tasks) == 1 and len(lines) >= _BLOCK_FROM:
        ids = log_blocks.claim(session, tasks[0], len(lines))
        if ids is not None:
            _insert_blocks(session, tasks[0], ids, lines)
            return
    for task_id in tasks:
        log_blocks.lock(session, task_id, alone=False)
    if there := log_blocks.known(session, lines.offsets()):
        lines = lines.picked([place for place, key in enumerate(lines.keys()) if key not in there])
    if lines:
        _insert_rows(session, lines)


#: Of rows of a container, from one offset to another, what tells them apart.
_ROWS = select(TaskLog.container_id, TaskLog.line_offset).where(
    TaskLog.container_id == bindparam("container"),
    TaskLog.line_offset.between(bindparam("first"), bindparam("last")),
)
#: Whether there is such a row, or a block that may have such a line.
_ARE_THERE = select(or_(_ROWS.exists(), log_blocks.HAS_BLOCK))


def _insert_blocks(session: Session, task_id: str, ids: Sequence[int], lines: Lines) -> None:
    """As blocks: of what was not there before, in blocks or rows."""
    own, connection = lines.offsets(), session.connection()
    there: set[Any] = set()
    for container, offsets in own.items():
        span = {"container": container, "first": min(offsets), "last": max(offsets)}
        if connection.execute(_ARE_THERE, span).scalar_one():
            there |= log_blocks.known(session, {container: offsets})
            there.update(connection.execute(_ROWS, span).tuples())
    if there or any(len(offsets) != len(set(offsets)) for offsets in own.values()):
        fresh: list[int] = []
        for place, key in enumerate(lines.keys()):
            if key not in there:
                fresh.append(place)
            if None not in key:
                there.add(key)
        lines = lines.picked(fresh)
    for at in range(0, len(lines), log_blocks.BLOCK):
        piece = lines[at : at + log_blocks.BLOCK]
        log_blocks.write(session, task_id, ids[at : at + len(piece)], piece)


def _insert_rows(session: Session, lines: Lines) -> None:
    rows = lines.rows()
    if on_postgresql(session):
        session.execute(_AT_ONCE, {"lines": orjson.dumps(rows).decode()})
    else:
        session.execute(insert(session, TaskLog).on_conflict_do_nothing(), rows)


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
    written = Line(
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
