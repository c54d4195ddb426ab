"""Writes log lines by the thousand. A line that was delivered before, by (container, offset), is not kept again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TypedDict

import orjson
from sqlalchemy import text
from sqlalchemy.orm import Session

from database.models import TaskLog
from database.upsert import insert


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


def insert_lines(session: Session, lines: Sequence[LogLine]) -> None:
    """Keep these lines, in this order."""
    if not lines:
        return
    if session.get_bind().dialect.name == "postgresql":
        session.execute(_AT_ONCE, {"lines": orjson.dumps(lines).decode()})
    else:
        session.execute(insert(session, TaskLog).on_conflict_do_nothing(), list(lines))
