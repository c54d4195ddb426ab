"""Filters and orders of tables, as web pages and clients send them: texts that name columns.

A filter is JSON: groups, which join their children by `and` or `or`, and fields, each a column, an operator, a value:

    {"filterGroup": {"kind": "group", "conjunction": "and", "children": [
        {"kind": "field", "columnName": "hp.lr", "operator": "<", "value": 0.1}]}, "showArchived": false}

An order is `column=asc,column=desc`. Which columns there are says the table (`api.queries.table_columns`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, cast

import orjson
from sqlalchemy import ColumnElement, Float, Text, and_, literal, not_, or_, true
from sqlalchemy import cast as sql_cast

from api.errors import BadRequest
from api.queries.paging import chosen, in_order
from api.schemas.base import as_utc, number
from database.types import UtcTime

_LONGEST, _DEEPEST, _MOST_FIELDS, _MOST_ORDERS = 100_000, 10, 200, 10
_LONGEST_TEXT = 1000
Comparison = Callable[[Any, Any], ColumnElement[bool]]
_ORDERED: Mapping[str, Comparison] = {
    "=": lambda column, value: column == value,
    "!=": lambda column, value: or_(column != value, column.is_(None)),
    "<": lambda column, value: column < value,
    "<=": lambda column, value: column <= value,
    ">": lambda column, value: column > value,
    ">=": lambda column, value: column >= value,
}
_TEXT: Mapping[str, Comparison] = {
    "=": _ORDERED["="],
    "!=": _ORDERED["!="],
    "contains": lambda column, value: column.icontains(value, autoescape=True),
    "notContains": lambda column, value: or_(not_(column.icontains(value, autoescape=True)), column.is_(None)),
}


@dataclass(frozen=True)
class Column:
    """What a table can be filtered and sorted by.

    Attributes:
        kind: What its values are.
        value: By which it is sorted, and by which it is compared unless `as_number` or `is_one` is there.
        as_number: Of a member of a JSON document, which may be one thing here and another there.
        is_one: Whether a row has a value, where that is more than a comparison: states, labels, yes and no.
    """

    kind: Literal["number", "text", "date", "json", "choice"]
    value: Any
    as_number: Any = None
    is_one: Callable[[Any], ColumnElement[bool]] | None = None

    @property
    def order(self) -> list[Any]:
        """The keys that sort by it: of a JSON member its numbers come first."""
        return [self.value] if self.as_number is None else [self.as_number, self.value]


#: A column by its name. Raises: BadRequest, if there is none of that name.
Table = Callable[[str], Column]


@dataclass(frozen=True)
class Filter:
    """A filter, as SQL."""

    condition: ColumnElement[bool]
    shows_archived: bool


def read_filter(text: str, table: Table) -> Filter:
    """The meaning of a filter; none is an empty one, and shows what is archived, too. Raises: BadRequest."""
    if not text.strip():
        return Filter(true(), shows_archived=True)
    if len(text) > _LONGEST:
        raise BadRequest(f"filter: {len(text)} characters: expected at most {_LONGEST}")
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"filter: {text[:80]!r}: expected JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest(f"filter: {text[:80]!r}: expected an object with filterGroup")
    fields = cast("dict[str, Any]", value)
    shows_archived = fields.get("showArchived", True)
    if not isinstance(shows_archived, bool):
        raise BadRequest(f"filter.showArchived: {str(shows_archived)[:40]!r}: expected true or false")
    group = fields.get("filterGroup")
    return Filter(true() if group is None else _Reader(table).read(group, "filter.filterGroup", 1), shows_archived)


class _Reader:
    def __init__(self, table: Table) -> None:
        self._table = table
        self._fields = 0

    def read(self, node: Any, where: str, depth: int) -> ColumnElement[bool]:
        if depth > _DEEPEST:
            raise BadRequest(f"{where}: nested more than {_DEEPEST} levels deep")
        is_object = isinstance(node, dict)
        parts: dict[str, Any] = cast("dict[str, Any]", node) if is_object else {}
        if parts.get("kind") == "group" or "children" in parts:
            return self._group(parts, where, depth)
        if parts.get("kind", "field") != "field" or not isinstance(parts.get("columnName"), str):
            raise BadRequest(f"{where}: {_shown(node)}: expected a group with children, or a field with columnName")
        self._fields += 1
        if self._fields > _MOST_FIELDS:
            raise BadRequest(f"filter: more than {_MOST_FIELDS} fields")
        return compared(self._table(parts["columnName"]), parts.get("operator"), parts.get("value"), where)

    def _group(self, parts: dict[str, Any], where: str, depth: int) -> ColumnElement[bool]:
        children: Any = parts.get("children") or []
        if not isinstance(children, list):
            raise BadRequest(f"{where}.children: {_shown(children)}: expected a list")
        join = chosen(f"{where}.conjunction", str(parts.get("conjunction") or "and"), {"and": and_, "or": or_})
        found = [
            self.read(child, f"{where}.children[{place}]", depth + 1)
            for place, child in enumerate(cast("list[Any]", children))
        ]
        return join(*found) if found else true()


def compared(column: Column, operator: Any, value: Any, where: str) -> ColumnElement[bool]:
    """Whether a row's value is as a field of a filter says. Raises: BadRequest."""
    named = operator if isinstance(operator, str) else str(operator)
    if named in ("isEmpty", "notEmpty"):
        is_empty = _is_empty(column)
        return is_empty if named == "isEmpty" else not_(is_empty)
    where = f"{where}.value"
    if column.is_one is not None:
        known = {"=": True, "contains": True, "!=": False, "notContains": False}
        is_wanted = chosen(where.replace(".value", ".operator"), named, known)
        has = column.is_one(value)
        return has if is_wanted else not_(has)
    numbers = column.kind == "number" or (column.kind == "json" and _is_number(value))
    as_text = column.kind in ("text", "json") and not numbers
    compare = chosen(where.replace(".value", ".operator"), named, _TEXT if as_text else _ORDERED)
    if numbers:
        # as a float: an integer's column would have it rounded
        bound = literal(_number(value, where), Float())
        return compare(column.value if column.as_number is None else column.as_number, bound)
    if column.kind == "date":
        return compare(column.value, literal(_instant(value, where), UtcTime()))
    if isinstance(value, bool):  # as both engines write it within JSON
        held = column.value.in_(("true", "1") if value else ("false", "0"))
        return held if named == "=" else or_(not_(held), column.value.is_(None))
    return compare(column.value, _text(value, where))


def _is_empty(column: Column) -> ColumnElement[bool]:
    if column.kind in ("text", "json"):
        return or_(column.value.is_(None), column.value == "")
    if column.kind == "choice":  # of labels an empty list
        return or_(column.value.is_(None), sql_cast(column.value, Text).in_(("", "[]")))
    return column.value.is_(None)


def _shown(value: object) -> str:
    return repr(str(value)[:80])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: Any, where: str) -> float:
    try:
        found = float(value) if isinstance(value, str) else number(value)
    except ValueError:
        found = None
    if found is None or not math.isfinite(found):
        raise BadRequest(f"{where}: {str(value)[:40]!r}: expected a number")
    return found


def _instant(value: Any, where: str) -> datetime:
    try:
        return as_utc(datetime.fromisoformat(str(value)))
    except ValueError:
        raise BadRequest(f"{where}: {str(value)[:40]!r}: expected a time such as 2026-01-31T12:00:00Z") from None


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        raise BadRequest(f"{where}: {str(value)[:40]!r}: expected a text of at most {_LONGEST_TEXT} characters")
    return value


def read_order(text: str, table: Table, last: Any) -> list[ColumnElement[Any]]:
    """The keys of an order; rows without a value come last in either direction. Raises: BadRequest.

    Args:
        text: `column=asc,column=desc`, or nothing.
        table: What it names columns of.
        last: By which equals are sorted, and all if `text` says nothing.
    """
    keys: list[ColumnElement[Any]] = []
    wanted = [part for part in text.split(",") if part.strip()]
    if len(wanted) > _MOST_ORDERS:
        raise BadRequest(f"sort: {len(wanted)} columns: expected at most {_MOST_ORDERS}")
    for part in wanted:
        name, _, direction = part.strip().rpartition("=")
        if not name or direction not in ("asc", "desc"):
            raise BadRequest(f"sort: {part[:80]!r}: expected column=asc or column=desc")
        for value in table(name).order:
            keys += in_order(value, descending=direction == "desc")
            if value is last:
                return keys
    return [*keys, last.asc()]
