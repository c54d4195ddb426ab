"""The two engines of the records: PostgreSQL and SQLite."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from typing import TypeVar

from sqlalchemy.orm import Session

Value = TypeVar("Value")

#: An engine takes only so many parameters in a statement, SQLite's usual build 32,766.
_AT_ONCE = 500


def on_postgresql(session: Session) -> bool:
    """Whether the session's engine is PostgreSQL; else it is SQLite."""
    return session.get_bind().dialect.name == "postgresql"


def in_parts(values: Collection[Value]) -> Iterator[list[Value]]:
    """Values that statements compare with, as many at once as one statement may: none, if there are none."""
    rest = iter(values)
    while part := list(islice(rest, _AT_ONCE)):
        yield part
