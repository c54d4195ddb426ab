"""The hub: which containers are connected, and new streams to their services.

A container keeps one WebSocket open for orders. An order names a service; the container connects to it and opens a
WebSocket for the stream, or says why it could not. Nothing ever connects to a container, so its ports are open to
nobody but what shares its network. A process of the API that ends takes streams with it, and the containers connect
again within two seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import orjson
from starlette.types import Receive, Send

from api.errors import ApiError, TooMany
from api.proxy.streams import Stream

#: How long a container has to connect to its service.
OPEN_WITHIN_S = 10.0
#: How long a request waits for a container that is just connecting again.
RECONNECT_WITHIN_S = 5.0
#: Streams of one task at a time.
MOST_STREAMS = 1000
_AGAIN_S = 1


class Unreachable(ApiError):
    """The service does not answer, and why."""

    status, code, reason = 502, 14, "Unavailable"


@dataclass
class Tunnel:
    """A connected container: where its orders go, and the streams that it was asked for."""

    allocation_id: str
    send: Send
    asked: dict[str, asyncio.Future[Stream]] = field(default_factory=dict[str, "asyncio.Future[Stream]"])
    streams: int = 0
    is_gone: asyncio.Event = field(default_factory=asyncio.Event)

    def fail(self, stream_id: str, why: str) -> None:
        """What the container says of an order that it could not carry out."""
        waiting = self.asked.get(stream_id)
        if waiting is not None and not waiting.done():
            waiting.set_exception(Unreachable(why))


class Hub:
    """All connected containers of this process, by allocation."""

    def __init__(self) -> None:
        self._tunnels: dict[str, Tunnel] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._tunnels)

    async def open(self, allocation_id: str, service: str) -> Stream:
        """A new stream to a service. Raises: Unreachable, TooMany."""
        tunnel = await self._connected(allocation_id)
        if tunnel.streams + len(tunnel.asked) >= MOST_STREAMS:
            raise TooMany(f"{service} has {MOST_STREAMS} connections already: close one of them first", _AGAIN_S)
        stream_id = secrets.token_hex(16)
        waiting: asyncio.Future[Stream] = asyncio.get_running_loop().create_future()
        tunnel.asked[stream_id] = waiting
        gone = asyncio.create_task(tunnel.is_gone.wait())
        try:
            order = orjson.dumps({"open": stream_id, "service": service}).decode()
            with contextlib.suppress(OSError):  # it is gone: the next line finds out
                await tunnel.send({"type": "websocket.send", "text": order})
            await asyncio.wait({waiting, gone}, timeout=OPEN_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
            how = "was lost" if tunnel.is_gone.is_set() else f"did not answer for {OPEN_WITHIN_S:.0f} s"
            raise Unreachable(f"{service} can't be reached: the connection to its container {how}")
        finally:
            gone.cancel()
            waiting.cancel()
            tunnel.asked.pop(stream_id, None)

    async def _connected(self, allocation_id: str) -> Tunnel:
        deadline = asyncio.get_running_loop().time() + RECONNECT_WITHIN_S
        while (tunnel := self._tunnels.get(allocation_id)) is None:
            left = deadline - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                raise Unreachable(
                    "the container is not connected: it starts, or it has no `undeterred-harness`"
                ) from None
        return tunnel

    async def take_orders(self, allocation_id: str, receive: Receive, send: Send) -> None:
        """Serve the WebSocket for orders of a container until it closes. A newer one takes an older one's place."""
        before = self._tunnels.get(allocation_id)
        if before is not None:
            before.is_gone.set()
        tunnel = self._tunnels[allocation_id] = Tunnel(allocation_id, send)
        self._changed.set()
        self._changed = asyncio.Event()
        replaced = asyncio.create_task(tunnel.is_gone.wait())
        try:
            while not tunnel.is_gone.is_set():
                next_one = asyncio.create_task(_receive(receive))
                await asyncio.wait({next_one, replaced}, return_when=asyncio.FIRST_COMPLETED)
                if not next_one.done():
                    next_one.cancel()
                    break
                message = next_one.result()
                if message["type"] == "websocket.disconnect":
                    break
                _note(tunnel, message.get("text") or "")
        finally:
            replaced.cancel()
            tunnel.is_gone.set()
            if self._tunnels.get(allocation_id) is tunnel:
                del self._tunnels[allocation_id]

    @contextlib.asynccontextmanager
    async def take_stream(self, allocation_id: str, stream_id: str, stream: Stream) -> AsyncGenerator[bool]:
        """Hand a stream to who asked for it; False if nobody does, who gave up or never did."""
        tunnel = self._tunnels.get(allocation_id)
        waiting = tunnel.asked.get(stream_id) if tunnel is not None else None
        if tunnel is None or waiting is None or waiting.done():
            yield False
            return
        waiting.set_result(stream)
        tunnel.streams += 1
        try:
            yield True
        finally:
            tunnel.streams -= 1


async def _receive(receive: Receive) -> dict[str, object]:
    return dict(await receive())


#: Of a sentence that a container sends.
_LONGEST = 300


def _note(tunnel: Tunnel, text: object) -> None:
    """A container says that it could not open a stream. What is no such message is dropped: it is a user's program."""
    if not isinstance(text, str) or len(text) > 10 * _LONGEST:
        return
    try:
        told = orjson.loads(text)
    except orjson.JSONDecodeError:
        return
    if isinstance(told, dict) and isinstance(told.get("failed"), str):  # pyright: ignore[reportUnknownMemberType]
        tunnel.fail(told["failed"], str(told.get("why") or "the service can't be reached")[:_LONGEST])  # pyright: ignore
