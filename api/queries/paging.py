"""Lists as clients page through them: offset and limit, sorted by a named attribute, cut in SQL."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Query
from sqlalchemy import Column, ColumnElement, Select, func, select
from sqlalchemy.orm import Session

from api.errors import BadRequest
from api.schemas.base import Pagination
from api.schemas.parameters import LIMIT, OFFSET, ORDER_BY

Choice = TypeVar("Choice")

#: What offsets and limits fit into on the wire.
_INT32 = 2**31
_MOST_CONDITIONS = 200
Offset = Annotated[int, Query(ge=-_INT32, lt=_INT32, description=OFFSET)]
Limit = Annotated[int, Query(ge=-_INT32, lt=_INT32, description=LIMIT)]


_ORDERS: Mapping[str, bool | None] = {
    "": None,
    "ORDER_BY_UNSPECIFIED": None,
    "ORDER_BY_ASC": False,
    "ORDER_BY_DESC": True,
}


def chosen(field: str, value: str, known: Mapping[str, Choice]) -> Choice:
    """The meaning of an enum's name. Raises: BadRequest, which lists the names that are known."""
    try:
        return known[value]
    except KeyError:
        raise BadRequest(f"{field}: {value[:80]!r}: expected one of {', '.join(filter(None, known))}") from None


def few(field: str, values: Iterable[Choice]) -> list[Choice]:
    """Each value once, where each is a condition of its own. Raises: BadRequest, if there are too many of them."""
    found = list(dict.fromkeys(values))
    if len(found) > _MOST_CONDITIONS:
        raise BadRequest(f"{field}: {len(found)} of them: expected at most {_MOST_CONDITIONS}")
    return found


@dataclass
class Window:
    """Which part of a list, and in which direction. A negative offset counts from the end; limit 0 means all."""

    offset: Offset = 0
    limit: Limit = 0
    order_by: Annotated[str, Query(alias="orderBy", description=ORDER_BY)] = ""

    def __post_init__(self) -> None:
        """Raises: BadRequest, also from lists that have one order only."""
        chosen("orderBy", self.order_by, _ORDERS)

    @property
    def is_descending(self) -> bool | None:
        """None if the caller does not say. Raises: BadRequest."""
        return chosen("orderBy", self.order_by, _ORDERS)

    def bounds(self, total: int) -> tuple[int, int]:
        """First index and one past the last. Raises: BadRequest if the offset is beyond the end."""
        if self.offset > total:
            raise BadRequest(f"offset {self.offset} is beyond the {total} items")
        start = max(0, total + self.offset) if self.offset < 0 else self.offset
        return start, total if self.limit <= 0 else min(total, start + self.limit)

    def pagination(self, total: int) -> Pagination:
        """What the answer says of the page. Clients go on asking until `endIndex` is `total`."""
        start, end = self.bounds(total)
        return Pagination(offset=self.offset, limit=self.limit, start_index=start, end_index=end, total=total)


_Made = TypeVar("_Made")


def in_loop(made: Callable[..., _Made]) -> Callable[..., Awaitable[_Made]]:
    """A dependency that makes something of a request's parameters within the event loop: FastAPI would take a thread.

    Args:
        made: a class whose fields are the parameters; making one must not block.
    """

    async def make(**parameters: Any) -> _Made:
        return made(**parameters)

    make.__signature__ = inspect.signature(made, eval_str=True)  # pyright: ignore[reportFunctionMemberAccess]
    return make


WindowDep = Annotated[Window, Depends(in_loop(Window))]


def in_order(value: Any, *, descending: bool) -> list[ColumnElement[Any]]:
    """The keys that sort by a value; rows without one come last in either direction."""
    column = getattr(value, "expression", None)
    ordered = value.desc() if descending else value.asc()
    # A column that no row lacks is read from its index, a page at a time; by two keys all rows would be sorted.
    return [ordered] if isinstance(column, Column) and not column.nullable else [value.is_(None), ordered]


def rows_of(
    session: Session,
    statement: Select[*tuple[Any, ...]],
    window: Window,
    *,
    counted: int | None = None,
    total: int | None = None,
) -> tuple[Sequence[Any], Pagination]:
    """The rows of a page of a sorted statement, and where it lies. Raises: BadRequest.

    Args:
        session: To read with.
        statement: Of all rows.
        window: The page.
        counted: At most this many rows are counted behind the page, and `total` is no more: of very many, a page says
            that there are more. One statement does both, which counts where a filter has to read all rows.
        total: How many rows there are, where that is known; None: they are counted.
    """
    if counted is not None and 0 <= window.offset <= 10 * counted:  # a negative one counts from the end
        found = session.execute(statement.limit(window.offset + window.limit + counted)).all()
        start, end = window.bounds(len(found))
        return found[start:end], window.pagination(len(found))
    total = _count(session, statement) if total is None else total
    start, end = window.bounds(total)
    rows = session.execute(statement.offset(start).limit(end - start)).all()
    return rows, window.pagination(total)


def known_first(
    session: Session,
    statement: Select[*tuple[Any, ...]],
    column: Any,
    last: Any,
    window: Window,
    *,
    total: int | None = None,
) -> tuple[Sequence[Any], Pagination]:
    """A page of a statement sorted by a column, those without a value last, as an index has them.

    Neither engine reads one order that has these last from an index: they are a statement of their own, which a page
    needs that reaches them.

    Args:
        session: To read with.
        statement: Of all rows, in no order.
        column: That an index has, before `last`.
        last: By which equals are sorted.
        window: The page.
        total: How many rows there are, where that is known; None: they are counted.

    Raises: BadRequest.
    """
    total = _count(session, statement) if total is None else total
    start, end = window.bounds(total)
    known = statement.where(column.is_not(None))
    ordered = known.order_by(column.desc() if window.is_descending else column.asc(), last)
    rows = list(session.execute(ordered.offset(start).limit(end - start)).all()) if end > start else []
    if len(rows) < end - start:
        before = start + len(rows) if rows else min(start, _count(session, known))
        rest = statement.where(column.is_(None)).order_by(last).offset(start + len(rows) - before)
        rows += session.execute(rest.limit(end - start - len(rows))).all()
    return rows, window.pagination(total)


def _count(session: Session, statement: Select[*tuple[Any, ...]]) -> int:
    return session.scalar(select(func.count()).select_from(statement.order_by(None).subquery())) or 0
