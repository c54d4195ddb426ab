"""Carries the messages of a WebSocket that a client opened here over one that this process opened, both ways."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from starlette.types import Receive, Send

if TYPE_CHECKING:
    import aiohttp

#: Of one message, in bytes.
LARGEST_MESSAGE = 64 * 2**20
#: What may be said when a WebSocket closes; others are not for the wire: RFC 6455, 7.4.
_CODES = frozenset({1000, 1001, 1002, 1003, *range(1007, 1015), *range(3000, 5000)})


async def both(inwards: Any, outwards: Any) -> None:
    """Carry both ways until the client has gone: when the other end has, the client is sent the end."""
    out = asyncio.ensure_future(outwards)
    try:
        await inwards
    finally:
        out.cancel()
        await asyncio.gather(out, return_exceptions=True)


async def from_client(receive: Receive, inner: aiohttp.ClientWebSocketResponse, used: Callable[[], None]) -> None:
    """What the client sends, to the other end; returns once the client has gone. `used` is called for each message."""
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            code = message.get("code", 1000)
            await inner.close(code=code if code in _CODES else 1001)
            return
        used()
        with contextlib.suppress(ConnectionError):  # the other end has gone: the other way says so
            if message.get("text") is not None:
                await inner.send_str(message["text"])
            else:
                await inner.send_bytes(message.get("bytes") or b"")


async def to_client(inner: aiohttp.ClientWebSocketResponse, send: Send, used: Callable[[], None]) -> None:
    """What the other end sends, to the client, and at last how it closed."""
    from aiohttp import WSMsgType

    code = 1011
    async for message in inner:
        used()
        if message.type is WSMsgType.TEXT:
            await send({"type": "websocket.send", "text": message.data})
        elif message.type is WSMsgType.BINARY:
            await send({"type": "websocket.send", "bytes": message.data})
    if inner.close_code is not None:
        code = inner.close_code
    await send({"type": "websocket.close", "code": code if code in _CODES else 1011})
