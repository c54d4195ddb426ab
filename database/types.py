"""Column types that behave the same on SQLite and PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, DateTime, Dialect, TypeDecorator
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeEngine


class UtcTime(TypeDecorator[datetime]):
    """An instant. Comes back timezone-aware in UTC from both engines; a naive value is a programming error."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse naive times and store UTC."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"naive datetime {value!r}: expected one with a time zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """SQLite forgets the zone: it is always UTC."""
        if value is None or value.tzinfo is not None:
            return value
        return value.replace(tzinfo=UTC)


def utc_now() -> datetime:
    """The present instant, timezone-aware."""
    return datetime.now(UTC)


#: A JSON document: JSONB on PostgreSQL, text on SQLite.
Document: TypeEngine[Any] = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
#: One that no statement looks into: text on both. JSONB would be taken apart to write it, and put together to read it.
WholeDocument: TypeEngine[Any] = JSON(none_as_null=True)
