"""What goes wrong at a database, in words."""

from __future__ import annotations

from sqlalchemy.exc import SQLAlchemyError


def reason_of(error: SQLAlchemyError) -> str:
    """Why a database did not do what it was asked to, in its own words: one line, without the statement."""
    return str(getattr(error, "orig", None) or error).splitlines()[0]
