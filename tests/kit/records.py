"""Databases of a test's own, and looks into those of others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sqlalchemy import create_engine, text

from database.migrate import migrate, seed
from database.session import Database


@contextlib.contextmanager
def seeded(url: str) -> Iterator[Database]:
    """A new database with this release's schema, and what every cluster begins with."""
    database = Database(url)
    migrate(database)
    with database.write() as session:
        seed(session, cluster_name="test", admin_password_hash=None, pools=["default"])
    yield database
    database.close()


def rows(url: str, query: str) -> list[tuple[object, ...]]:
    """What a database has, by a connection of its own."""
    engine = create_engine(url)
    with engine.connect() as connection:
        found = [tuple(row) for row in connection.execute(text(query))]
    engine.dispose()
    return found
