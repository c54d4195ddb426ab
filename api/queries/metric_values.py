"""Values within reports, as SQL."""

from __future__ import annotations

import re
import sys
from typing import Any

from sqlalchemy import ColumnElement, Float, String, case, cast, literal, null

from database.models import Metric

_NUMBER = r"^-?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?$"


def number_of(name: str) -> ColumnElement[Any]:
    """The metric of this name of a report, to sort by; NULL if it has none, or none that can be compared.

    An infinity is the largest number, since SQLite knows none.
    """
    return number_in(Metric.metrics[name])


def number_in(member: Any) -> ColumnElement[Any]:
    """A member of a JSON document as a number; NULL if it is none."""
    text = cast(member.as_string(), String)
    is_number = text.regexp_match(_NUMBER)
    largest = literal(sys.float_info.max)
    return case(
        (is_number, cast(text, Float)), (text == "Infinity", largest), (text == "-Infinity", -largest), else_=null()
    )


def sortable(value: Any, *, is_sqlite: bool) -> float | None:
    """What `number_of` says of a metric with this value. For SQLite a boolean is 0 or 1."""
    if isinstance(value, bool) and not is_sqlite:
        return None
    if isinstance(value, int | float):
        return float(value)
    if value in ("Infinity", "-Infinity"):
        return sys.float_info.max if value == "Infinity" else -sys.float_info.max
    return float(value) if isinstance(value, str) and re.search(_NUMBER, value) else None
