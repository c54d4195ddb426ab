"""What becomes of a row of the other database: records of ours, or a reason why it can't come."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson

from database.models import Base
from workers.importing.source import Row
from workflows.lifecycle.imports import Kind

#: Counts how often the rules changed by which rows are made of rows: what came by other rules is written again.
_RULES = 1
_SHORT = 16  # bytes of a digest


@dataclass(frozen=True)
class Record:
    """Rows of ours that one row of the source becomes.

    Attributes:
        model: Of the record itself.
        values: Of its row; its primary key is among them.
        also: Further rows that go with it: written anew whenever the record is.
        replaces: Of which models rows go before `also` is written, by a column and its value.
    """

    model: type[Base]
    values: dict[str, Any]
    also: list[tuple[type[Base], dict[str, Any]]] = field(default_factory=list[tuple[type[Base], dict[str, Any]]])
    replaces: list[tuple[type[Base], str, Any]] = field(default_factory=list[tuple[type[Base], str, Any]])


@dataclass(frozen=True)
class Skipped:
    """A row that can't come, and why: a reason that others share."""

    reason: str


@dataclass(frozen=True)
class Context:
    """What rows are made with besides themselves.

    Attributes:
        source: Id of the other cluster.
        owner_id: Who imports: owner of what has none.
        pool: Default resource pool here.
        shifts: By kind what is added to its numbers.
        came: The key here of a record that came from there, by its kind and key there; None if it did not come.
        free_name: A name that nobody has here, of a kind, the name there and the key there.
    """

    source: str
    owner_id: int
    pool: str
    shifts: Mapping[str, int]
    came: Callable[[Kind, Any], str | None]
    free_name: Callable[[Kind, str, str], str]

    def number(self, kind: Kind, there: int) -> int:
        """The number here of a record that is coming."""
        return there + self.shifts.get(kind, 0)

    def user(self, there: int | None) -> int:
        """The number here of a user; who is not here is stood in for by who imports."""
        found = None if there is None else self.came(Kind.USERS, there)
        return self.owner_id if found is None else int(found)

    def id_of(self, kind: Kind, there: int | None) -> int | None:
        """The number here of a record that came; None if it did not."""
        found = None if there is None else self.came(kind, there)
        return None if found is None else int(found)


def utc(value: datetime | str | None) -> datetime | None:
    """A time of the source, which leaves zones out in some tables; they are UTC."""
    if value is None:
        return None
    when = datetime.fromisoformat(value) if isinstance(value, str) else value
    return when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)


def moment(value: datetime | str | None, *otherwise: datetime | str | None) -> datetime:
    """The first of these times that there is."""
    found = next((utc(each) for each in (value, *otherwise) if each is not None), None)
    return found if found is not None else datetime(1970, 1, 1, tzinfo=UTC)


def clean(text: str | None) -> str:
    """A text as every database takes it; none is empty."""
    return (text or "").replace("\0", "�")


def digest(row: Row | object) -> str:
    """What tells a row from one that it was before."""
    raw = orjson.dumps([_RULES, row], default=_plain, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    return hashlib.blake2b(raw, digest_size=_SHORT).hexdigest()


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)
