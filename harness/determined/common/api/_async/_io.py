"""What the asynchronous and the synchronous client do differently: the asynchronous side. By hand on both sides."""

from __future__ import annotations

import asyncio
import functools
import os
import queue
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Hashable, Iterator
    from typing import Any, Callable, TypeVar

    from determined.common.api._httpx import httpx
    from determined.common.api._transport import Settings

    T = TypeVar("T")

sleep = asyncio.sleep
# So many pieces of at most 64 KiB wait for the disk; who feeds looks again so often.
_PIECES_AHEAD = 32
_FEED_WAIT_S = 0.005


def owner() -> Hashable:
    """Who may use a connection: after a fork, or in another event loop, it is somebody else.

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
    """Call what blocks, in a thread."""
    return await asyncio.get_running_loop().run_in_executor(None, function, *args)


async def consume(pieces: AsyncGenerator[bytes], function: Callable[..., T], *args: Any) -> T:
    """Call what blocks and reads `pieces`, its first argument: in a thread, fed from here. They are closed then."""
    feed: queue.Queue[bytes | BaseException | None] = queue.Queue(_PIECES_AHEAD)

    def fed() -> Iterator[bytes]:
        while (piece := feed.get()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            yield piece

    reader = asyncio.get_running_loop().run_in_executor(None, functools.partial(function, fed(), *args))

    async def put(piece: bytes | BaseException | None) -> None:
        while not reader.done():
            try:
                feed.put_nowait(piece)
                return
            except queue.Full:
                await asyncio.wait([reader], timeout=_FEED_WAIT_S)

    try:
        async for piece in pieces:
            if reader.done():
                break
            await put(piece)
    except BaseException as e:
        await put(e)
        if not isinstance(e, Exception):
            raise
    else:
        await put(None)
    finally:
        await pieces.aclose()
    return await reader
