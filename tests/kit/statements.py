"""The statements that code sends, and how the database goes about them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.orm import Session

from database.session import Database


@contextlib.contextmanager
def asked_of(whom: Session | type[Engine]) -> Generator[list[tuple[str, Any]]]:
    """The statements that a session, or any of this process, sends in the block, each with its parameters."""
    asked: list[tuple[str, Any]] = []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *more: Any) -> None:
        asked.append((statement, parameters))

    engine = whom.get_bind() if isinstance(whom, Session) else whom
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        event.remove(engine, "before_cursor_execute", note)


def counted(
    database: Database, statement: Any, parameters: Any = None, *, as_if_large: bool = False
) -> tuple[int, str]:
    """Rows that scans looked at (0 on SQLite, which does not say), and the plan.

    `as_if_large`: PostgreSQL goes through a small table rather than by its index, through a large one it would not.
    """
    with database.engine.connect() as connection:
        if as_if_large and not database.is_sqlite:
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        if database.is_sqlite:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
            return 0, " / ".join(str(row[3]) for row in plan)
        [(plan,)] = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters).all()
        return _rows(plan[0]["Plan"]), json.dumps(plan)


def _rows(node: dict[str, Any]) -> int:
    below = node.get("Plans", [])
    mine = 0 if below and node["Node Type"] != "Bitmap Heap Scan" else node["Actual Rows"] * node["Actual Loops"]
    return int(mine) + int(node.get("Rows Removed by Filter", 0)) + sum(map(_rows, below))
