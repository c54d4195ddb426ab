"""Lists that come in pages, with what `--limit`, `--offset` and `--pages` said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cli import render, session
from cli.render import Form

PAGE_SIZE = 200
#: Of a long list each page is twice as large as the one before, up to this: a page costs its start again.
_LARGEST = 1600


def fetch(path: str, key: str, form: Form = render.TABLE, **params: Any) -> list[dict[str, Any]]:
    """The items of a list of the API below `/api/v1`: see `items`."""
    return items(lambda size, start: session.fetch(path, **params, limit=size, offset=start), key, form)


def items(read: Callable[[int, int], dict[str, Any]], key: str, form: Form = render.TABLE) -> list[dict[str, Any]]:
    """The items from `--offset` on: all, at most `--limit` if that is given, or one page with `--pages 1`.

    Args:
        read: The answer for a page, by its size and the number of its first item.
        key: What the items are called in the answer.
        form: What the options said.
    """
    size = form.limit or PAGE_SIZE
    most = size if form.pages == "1" else form.most
    found: list[dict[str, Any]] = []
    while most is None or len(found) < most:
        answer = read(size if most is None else min(size, most - len(found)), form.offset + len(found))
        page: list[dict[str, Any]] = answer.get(key) or []
        found += page
        size = size if form.limit else min(2 * size, _LARGEST)
        if not page or form.offset + len(found) >= int(render.part(answer, "pagination").get("total") or 0):
            break
    return found
