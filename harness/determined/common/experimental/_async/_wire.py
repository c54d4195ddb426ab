"""Helpers for talking to the master."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from typing import Any

    from determined.common.api._async._session import AsyncSession

PAGE_SIZE = 200


async def pages(
    session: AsyncSession, path: str, params: Mapping[str, Any], key: str, limit: int | None = None
) -> AsyncIterator[dict[str, Any]]:
    """The items of a paginated list, page after page, up to `limit`.

    It ends when a page is empty or `total` is reached: a wrong `endIndex` does not make it an endless loop.
    """
    offset = 0
    while limit is None or offset < limit:
        size = PAGE_SIZE if limit is None else min(PAGE_SIZE, limit - offset)
        answer = (await session.get(path, {**params, "offset": offset, "limit": size})).json()
        items: list[dict[str, Any]] = answer.get(key) or []
        for item in items[:size]:
            yield item
        offset += len(items)
        pagination: dict[str, Any] = answer.get("pagination") or {}
        total = pagination.get("total")
        if not items or total is None or offset >= int(total):
            return


def new_key() -> str:
    """A key under which a request is carried out once, however often it arrives."""
    import uuid

    return uuid.uuid4().hex


_WARNINGS = {
    "LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED": "a trial needs more slots than the agents of its resource pool have now: "
    "it waits until there are enough",
}


def warnings_of(created: Mapping[str, Any]) -> list[str]:
    """What the master has to say about an experiment that it created, in sentences."""
    codes: list[str] = created.get("warnings") or []
    notices: list[str] = created.get("notices") or []
    return [_WARNINGS.get(code, code) for code in codes] + notices
