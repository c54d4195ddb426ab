"""Lengths of time, as SQL."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, func, literal
from sqlalchemy.orm import Session

from database.engines import on_postgresql
from database.types import UtcTime, utc_now


def elapsed_s(session: Session, start: Any, end: Any) -> ColumnElement[Any]:
    """Seconds from `start` to `end`; to this moment where there is no end yet."""
    end = func.coalesce(end, literal(utc_now(), UtcTime()))
    if on_postgresql(session):
        return func.extract("epoch", end) - func.extract("epoch", start)
    return (func.julianday(end) - func.julianday(start)) * 86400.0
