"""Messages that go together: those that come while one is on its way share the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")
Answer = TypeVar("Answer")

#: Most that go together.
_BATCH = 100


class Together(Generic[Key, Item, Answer]):
    """One message at a time for each receiver, in one event loop.

    Args:
        send: Sends a receiver these items, in this order; returns the answer to each, or what its sender gets raised.
            What it raises all of them get.
    """

    def __init__(self, send: Callable[[Key, list[Item]], Awaitable[Sequence[Answer | Exception]]]) -> None:
        self._send = send
        self._waiting: dict[Key, list[tuple[Item, asyncio.Future[Answer]]]] = {}
        self._senders: dict[Key, asyncio.Task[None]] = {}

    async def send(self, key: Key, item: Item) -> Answer:
        """Returns the answer to an item."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append((item, answer))
        if key not in self._senders:
            self._senders[key] = asyncio.create_task(self._send_all(key))
        return await answer

    async def _send_all(self, key: Key) -> None:
        waiting = self._waiting[key]
        while waiting:
            batch = waiting[:_BATCH]
            del waiting[:_BATCH]
            try:
                given = await self._send(key, [item for item, _ in batch])
            except Exception as error:  # noqa: BLE001 - each caller gets it
                given = [error] * len(batch)
            for (_, answer), outcome in zip(batch, given, strict=True):
                if answer.done():
                    continue
                if isinstance(outcome, Exception):
                    answer.set_exception(outcome)
                else:
                    answer.set_result(outcome)
        del self._waiting[key], self._senders[key]
