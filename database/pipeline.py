"""Statements that go to PostgreSQL together, where each alone would be a way there and back."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session


@contextmanager
def pipelined(session: Session) -> Generator[None]:
    """Send the block's statements together, and wait for all of them at its end.

    For statements that return no rows. If one fails, so does the block, with the error that the statement would raise
    alone, and none is done. On SQLite, which is in the process, they run as always.
    """
    dialect = session.get_bind().dialect
    if dialect.name == "sqlite":
        yield
        return
    import psycopg

    driver: Any = session.connection().connection.driver_connection
    try:
        with driver.pipeline():
            yield
    except psycopg.Error as error:
        raise DBAPIError.instance(None, None, error, psycopg.Error, dialect=dialect) from error
