"""INSERT … ON CONFLICT, which SQLAlchemy spells once per engine."""

from __future__ import annotations

from typing import Any

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import DeclarativeBase, Session

from database.engines import on_postgresql


def insert(session: Session, table: type[DeclarativeBase]) -> Any:
    """An insert statement with `on_conflict_do_nothing` and `on_conflict_do_update` for the session's engine."""
    return postgresql.insert(table) if on_postgresql(session) else sqlite.insert(table)
