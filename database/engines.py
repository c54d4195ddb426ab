"""The two engines of the records: PostgreSQL and SQLite."""

from __future__ import annotations

from sqlalchemy.orm import Session


def on_postgresql(session: Session) -> bool:
    """Whether the session's engine is PostgreSQL; else it is SQLite."""
    return session.get_bind().dialect.name == "postgresql"
