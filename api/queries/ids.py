"""Conditions on many ids at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ARRAY, BigInteger, ColumnElement, String, bindparam, func
from sqlalchemy.orm import Session

from database.engines import on_postgresql


def among(session: Session, column: Any, ids: Sequence[int] | Sequence[str]) -> ColumnElement[bool]:
    """Whether a column is one of these. On PostgreSQL one parameter, however many: the statement stays the same one."""
    if on_postgresql(session):
        kind = column.type if isinstance(column.type, String) else BigInteger()
        return column == func.any(bindparam(None, list(ids), type_=ARRAY(kind)))
    return column.in_(ids)
