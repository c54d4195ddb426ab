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
    from determined.common.api._transport import Request, Settings

    Answer = httpx.Response

    T = TypeVar("T")

sleep = asyncio.sleep


def owner() -> Hashable:
    """The owner of a connection: after a fork, or in another event loop, it is another one.

    Not by the loop's `id`: when it is gone, another may have the same.
    """
    return os.getpid(), weakref.ref(asyncio.get_running_loop())


class Transport:
    """Connections to one server, none yet."""

    def __init__(self, settings: Settings) -> None:
        from determined.common.api._httpx import httpx

        self._base_url = settings.base_url
        self._connections = httpx.AsyncHTTPTransport(**settings.transport())

    async def send(self, request: Request) -> Answer:
        """Send one request and read the head of its answer. Raises: httpx.HTTPError."""
        return await self._connections.handle_async_request(request.for_httpx(self._base_url))

    async def aclose(self) -> None:
        """Close them."""
        await self._connections.aclose()


def new_transport(settings: Settings) -> Transport:
    """Connections to one server, none yet."""
    return Transport(settings)


async def send(transport: Transport, connections: Connections, request: Request) -> Answer:
    """Send one request and read the head of its answer. Raises: one of `failures()`."""
    return await transport.send(request)


def abandon(transport: Transport) -> None:
    """Nothing: without its event loop a connection can't be closed, which asyncio warns of."""


class Connections:
    """The connections of one transport. Here closing it ends what is under way."""

    def begin(self) -> None:
        """A request begins. `end` follows."""

    async def end(self) -> None:
        """A request is over."""

    async def close(self, transport: Transport) -> None:
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
