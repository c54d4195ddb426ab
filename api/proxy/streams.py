"""A stream of bytes between the API and a service in a container, over a WebSocket that the container opened.

To whom it connects (`aiohttp`'s protocols, or a reader of TCP) it is a transport as asyncio's are. Back-pressure goes
through: what the container sends is read only when there is room for it, and who writes too fast is paused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from starlette.types import Message, Receive, Send

#: Bytes that wait for the container before the writer is paused, and before it goes on.
_HIGH, _LOW = 512 * 1024, 128 * 1024
#: Of one WebSocket message.
_LARGEST = 256 * 1024


class Stream(asyncio.Transport):
    """One stream. Attach a protocol at once: what comes before that waits in the WebSocket."""

    def __init__(self, receive: Receive, send: Send) -> None:
        super().__init__({})
        self._receive, self._send = receive, send
        self._protocol: asyncio.BaseProtocol | None = None
        self._may_read = False  # until there is a protocol
        self._wake: asyncio.Future[None] | None = None
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._writing: asyncio.Task[None] | None = None
        self._is_closing = self._is_paused = self._is_lost = False

    async def serve(self) -> None:
        """Carry bytes until one of the ends closes: the body of the WebSocket's own request."""
        try:
            while True:
                await self._until_it_may_read()
                message: Message = await self._receive()
                if message["type"] == "websocket.disconnect":
                    break
                data: bytes | None = message.get("bytes")
                if data and not self._is_closing and isinstance(self._protocol, asyncio.Protocol):
                    self._protocol.data_received(data)
            if isinstance(self._protocol, asyncio.Protocol) and not self._is_closing:
                self._protocol.eof_received()
        finally:
            if self._writing is not None:
                self._writing.cancel()
            self._lose()

    async def _until_it_may_read(self) -> None:
        while not self._may_read:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake

    def _read_on(self) -> None:
        self._may_read = True
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _write_soon(self) -> None:
        """Thousands of streams are idle: one has a task only while something waits."""
        if self._writing is None and not self._is_lost:
            self._writing = asyncio.create_task(self._write_all())

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                await self._send({"type": "websocket.send", "bytes": self._next()})
                if self._is_paused and self._waiting_bytes <= _LOW:
                    self._is_paused = False
                    if self._protocol is not None:
                        self._protocol.resume_writing()
            if self._is_closing:
                self._read_on()  # the end is read, whatever the protocol wants
                await self._send({"type": "websocket.close", "code": 1000})
        except OSError:  # the container has gone: who reads is about to find out
            self._is_closing = True
            self._read_on()
        finally:
            self._writing = None

    def _next(self) -> bytes:
        """What goes into one message: as much of what waits as fits."""
        first = self._waiting.popleft()
        if len(first) > _LARGEST:
            self._waiting.appendleft(first[_LARGEST:])
            first = first[:_LARGEST]
        elif self._waiting:
            parts, size = [first], len(first)
            while self._waiting and size + len(self._waiting[0]) <= _LARGEST:
                parts.append(self._waiting.popleft())
                size += len(parts[-1])
            first = b"".join(parts)
        self._waiting_bytes -= len(first)
        return first

    def _lose(self) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._waiting.clear()
        if self._protocol is not None:
            self._protocol.connection_lost(None)

    # -- asyncio.Transport -----------------------------------------------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Whom to give what comes. The first one begins the reading."""
        is_first, self._protocol = self._protocol is None, protocol
        if is_first:
            self._read_on()
            protocol.connection_made(self)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Whom it gives what comes. Raises: RuntimeError, before there is one."""
        if self._protocol is None:
            raise RuntimeError("this stream has no protocol yet")
        return self._protocol

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Send bytes, soon; nothing is sent once it closes."""
        if self._is_closing or not data:
            return
        self._waiting.append(bytes(data))
        self._waiting_bytes += len(data)
        self._write_soon()
        if not self._is_paused and self._waiting_bytes > _HIGH and self._protocol is not None:
            self._is_paused = True
            self._protocol.pause_writing()

    def pause_reading(self) -> None:
        """Leave what comes in the WebSocket."""
        self._may_read = False

    def resume_reading(self) -> None:
        """Go on reading."""
        self._read_on()

    def is_reading(self) -> bool:
        """Whether what comes is handed over."""
        return self._may_read

    def is_closing(self) -> bool:
        """Whether it closes, or is closed."""
        return self._is_closing

    def close(self) -> None:
        """Send what waits, then close."""
        self._is_closing = True
        self._write_soon()

    def abort(self) -> None:
        """Close at once."""
        self._waiting.clear()
        self._waiting_bytes = 0
        self.close()

    def can_write_eof(self) -> bool:
        """Either end closes both."""
        return False

    def get_write_buffer_size(self) -> int:
        """Bytes that wait."""
        return self._waiting_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Fixed."""
