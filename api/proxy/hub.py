"""The hub: which containers are connected, and new streams to their services.

A container keeps one WebSocket open for orders. An order names a service; the container connects to it and opens a
WebSocket for the stream, or says why it could not. Nothing ever connects to a container, so its ports are open to
nobody but what shares its network.

Behind a load balancer the request of a user, the WebSocket for orders and that of the stream may be at three processes
of the API. The one with the request asks its peers to send the order; the stream's id begins with that process' own, so
that the one that the stream comes to hands it on. A process that ends takes its streams with it, and the containers
connect again within two seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import Counter
from dataclasses import dataclass, field

import orjson
from starlette.types import Receive, Send

from api.errors import NotFound, TooMany
from api.proxy.peers import OPEN_WITHIN_S, Lost, Message, NotHere, Peers, Unreachable
from api.proxy.relay import both, from_client, to_client
from api.proxy.streams import Stream

#: How long a request waits for a container that is just connecting again.
RECONNECT_WITHIN_S = 5.0
#: Streams of one task at a time, at one process of the API.
MOST_STREAMS = 1000
_AGAIN_S = 1
#: How often a request that waits looks whether a peer has the container by now.
_LOOK_S = 0.25


@dataclass
class Tunnel:
    """A connected container: where its orders go, and those that it has not carried out."""

    allocation_id: str
    send: Send
    ordered: dict[str, asyncio.Future[str]] = field(default_factory=dict[str, "asyncio.Future[str]"])
    is_gone: asyncio.Event = field(default_factory=asyncio.Event)

    def fail(self, stream_id: str, why: str) -> None:
        """What the container says of an order that it could not carry out."""
        waiting = self.ordered.get(stream_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(why)

    async def order(self, stream_id: str, service: str) -> None:
        """Send an order. It goes on while the stream is on its way: cancel it when the stream is here.

        Raises: Unreachable, with what the container says; Lost, if its connection broke.
        """
        waiting: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.ordered[stream_id] = waiting
        gone = asyncio.create_task(self.is_gone.wait())
        try:
            order = orjson.dumps({"open": stream_id, "service": service}).decode()
            with contextlib.suppress(OSError):  # it is gone: the next line finds out
                await self.send({"type": "websocket.send", "text": order})
            await asyncio.wait({waiting, gone}, timeout=OPEN_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                raise Unreachable(waiting.result())
            if self.is_gone.is_set():
                raise Lost(f"{service} can't be reached: the connection to its container was lost")
            raise Unreachable(
                f"{service} can't be reached: the connection to its container did not answer for {OPEN_WITHIN_S:.0f} s"
            )
        finally:
            gone.cancel()
            waiting.cancel()
            self.ordered.pop(stream_id, None)


@dataclass(frozen=True)
class _Asked:
    """A stream that this process waits for."""

    allocation_id: str
    stream: asyncio.Future[Stream]


class Hub:
    """All connected containers of this process, by allocation, and how to reach those of its peers."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._tunnels: dict[str, Tunnel] = {}
        self._asked: dict[str, _Asked] = {}
        self._streams: Counter[str] = Counter()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._tunnels)

    async def open(self, allocation_id: str, service: str) -> Stream:
        """A new stream to a service. Raises: Unreachable, TooMany."""
        if self._streams[allocation_id] >= MOST_STREAMS:
            raise TooMany(f"{service} has {MOST_STREAMS} connections already: close one of them first", _AGAIN_S)
        stream_id = f"{self._peers.process_id}.{secrets.token_hex(16)}"
        stream: asyncio.Future[Stream] = asyncio.get_running_loop().create_future()
        self._asked[stream_id] = _Asked(allocation_id, stream)
        self._streams[allocation_id] += 1
        ordering = asyncio.create_task(self._order(Message("order", allocation_id, stream_id, service)))
        try:
            await asyncio.wait({stream, ordering}, return_when=asyncio.FIRST_COMPLETED)
            if not stream.done():
                ordering.result()
            return stream.result()
        finally:
            ordering.cancel()
            await asyncio.gather(ordering, return_exceptions=True)
            stream.cancel()
            del self._asked[stream_id]
            self._leave(allocation_id)

    def _leave(self, allocation_id: str) -> None:
        self._streams[allocation_id] -= 1
        if not self._streams[allocation_id]:
            del self._streams[allocation_id]

    async def _order(self, order: Message) -> None:
        """Have the container told to open a stream, at whichever process it is. Always raises: Unreachable."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RECONNECT_WITHIN_S
        why = "the container is not connected: it starts, or it has no `undeterred-harness`"
        while True:
            try:
                if (tunnel := self._tunnels.get(order.allocation_id)) is not None:
                    await tunnel.order(order.stream_id, order.service)
                await self._peers.order(order)
            except Lost as error:  # it connects again, here or at a peer
                why = error.message
            left = deadline - loop.time()
            if left <= 0:
                raise Unreachable(why)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, _LOOK_S)):
                    await self._changed.wait()
            await self._peers.look()

    async def serve_peer(self, message: Message, receive: Receive) -> None:
        """Do what another process asks by a request, until it hangs up. Raises: NotHere, Unreachable, Lost."""
        tunnel = self._tunnels.get(message.allocation_id)
        if tunnel is None:
            raise NotHere("the container is not connected here")
        if message.kind == "taken":
            tunnel.is_gone.set()
            return
        ordering = asyncio.ensure_future(tunnel.order(message.stream_id, message.service))
        hung_up = asyncio.ensure_future(_end(receive))
        try:
            await asyncio.wait({ordering, hung_up}, return_when=asyncio.FIRST_COMPLETED)
            if ordering.done():
                ordering.result()
        finally:
            for task in (ordering, hung_up):
                task.cancel()
            await asyncio.gather(ordering, hung_up, return_exceptions=True)

    async def take_orders(self, allocation_id: str, receive: Receive, send: Send) -> None:
        """Serve the WebSocket for orders of a container until it closes. A newer one takes an older one's place."""
        before = self._tunnels.get(allocation_id)
        if before is not None:
            before.is_gone.set()
        tunnel = self._tunnels[allocation_id] = Tunnel(allocation_id, send)
        self._changed.set()
        self._changed = asyncio.Event()
        self._peers.tell_taken(allocation_id)
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

    async def take_stream(self, allocation_id: str, stream_id: str, receive: Receive, send: Send) -> None:
        """Serve a stream that a container opened, for who asked for it: here or at a peer.

        Raises: NotFound, if it is not asked for, or not of this container; Unreachable.
        """
        if stream_id.partition(".")[0] == self._peers.process_id:
            await self.serve_stream(allocation_id, stream_id, receive, send)
            return
        message = Message("stream", allocation_id, stream_id)
        async with self._peers.handed_on(await self._peers.who(stream_id), message) as inner:
            await send({"type": "websocket.accept"})
            await both(from_client(receive, inner, _nothing), to_client(inner, send, _nothing))

    async def serve_stream(self, allocation_id: str, stream_id: str, receive: Receive, send: Send) -> None:
        """Serve a stream that this process asked for, wherever the container opened it. Raises: NotFound."""
        asked = self._asked.get(stream_id)
        if asked is None or asked.allocation_id != allocation_id or asked.stream.done():
            raise NotFound("this stream is not asked for, or not any more")
        stream = Stream(receive, send)
        asked.stream.set_result(stream)
        self._streams[allocation_id] += 1
        try:
            await send({"type": "websocket.accept"})
            await stream.serve()
        finally:
            self._leave(allocation_id)


def _nothing() -> None:
    pass


async def _receive(receive: Receive) -> dict[str, object]:
    return dict(await receive())


async def _end(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


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
