"""What all tables share."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Index, Integer, MetaData, text
from sqlalchemy.orm import DeclarativeBase

#: SQLite only gives rising keys to a column of type INTEGER.
BigId = BigInteger().with_variant(Integer, "sqlite")


class Base(DeclarativeBase):
    """Names of constraints are spelled out, so that migrations can name them on both engines."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


def partial_index(name: str, *columns: Any, where: str, unique: bool = False) -> Index:
    """An index of the rows of which a condition holds, on both engines."""
    condition = text(where)
    return Index(name, *columns, unique=unique, sqlite_where=condition, postgresql_where=condition)


def sqlite_index(name: str, *columns: Any) -> Index:
    """An index that SQLite alone has. `info` says so to comparisons (`database.migrate.schema_differences`)."""
    return Index(name, *columns, info={"only_on": "sqlite"}).ddl_if(dialect="sqlite")
