"""What the asynchronous and the synchronous client do differently: the asynchronous side. By hand on both sides."""

from __future__ import annotations

import asyncio
import os
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Hashable, Iterable
    from typing import Any, Callable, TypeVar

    from determined.common.api._httpx import httpx
    from determined.common.api._transport import Settings

    T = TypeVar("T")

sleep = asyncio.sleep


def owner() -> Hashable:
    """The owner of a connection: after a fork, or in another event loop, it is another one.

    Not by the loop's `id`: when it is gone, another may have the same.
    """
    return os.getpid(), weakref.ref(asyncio.get_running_loop())


def new_transport(settings: Settings) -> httpx.AsyncHTTPTransport:
    """Connections to one server, none yet."""
    from determined.common.api._httpx import httpx

    return httpx.AsyncHTTPTransport(**settings.transport())


def abandon(transport: httpx.AsyncHTTPTransport) -> None:
    """Nothing: without its event loop a connection can't be closed, which asyncio warns of."""


class Connections:
    """The connections of one transport. Here closing it ends what is under way."""

    def begin(self) -> dict[str, Any]:
        """A request begins; returns what it carries to be known here. `end` follows."""
        return {}

    async def end(self) -> None:
        """A request is over."""

    async def close(self, transport: httpx.AsyncHTTPTransport) -> None:
        """Close the transport; requests under way fail."""
        await transport.aclose()


async def run(function: Callable[..., T], *args: Any) -> T:
    """Call what blocks, in a thread. Cancelled, it ends when the thread does: what it works on may be closed then."""
    running = asyncio.get_running_loop().run_in_executor(None, function, *args)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


async def each(function: Callable[[T], Awaitable[None]], items: Iterable[T], at_once: int) -> None:
    """Call `function` with each item, `at_once` at a time. The first error ends it."""
    gate = asyncio.Semaphore(at_once)

    async def call(item: T) -> None:
        async with gate:
            await function(item)

    running = [asyncio.ensure_future(call(item)) for item in items]
    try:
        await asyncio.gather(*running)
    except BaseException:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        raise
