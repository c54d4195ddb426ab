"""Carries requests, WebSockets and plain streams to services. aiohttp speaks HTTP over the streams of the hub."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from starlette.types import Receive, Scope, Send
from yarl import URL

from api.errors import ApiError
from api.proxy import headers
from api.proxy.hub import Hub
from api.proxy.peers import Unreachable
from api.proxy.relay import LARGEST_MESSAGE, both, from_client, to_client
from api.proxy.targets import Target

_KEEP_ALIVE_S = 30.0
#: Of a header line of a service, in bytes.
_LONGEST_LINE = 32 * 1024
_PIECE = 256 * 1024


class _Connector(aiohttp.BaseConnector):
    """Connections of aiohttp over the hub. The host of a request names the allocation and the service, in hex."""

    def __init__(self, hub: Hub) -> None:
        super().__init__(limit=0, keepalive_timeout=_KEEP_ALIVE_S)
        self._hub = hub

    async def _create_connection(
        self, req: aiohttp.ClientRequest, traces: Sequence[object], timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        allocation_id, _, service = bytes.fromhex(req.url.raw_host or "").decode().partition("\0")
        stream = await self._hub.open(allocation_id, service)
        protocol = self._factory()
        stream.set_protocol(protocol)
        return protocol


class Carrier:
    """Carries what comes for a service to its container, and the answer back."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._made: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close what is kept open."""
        if self._made is not None:
            await self._made.close()

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._made is None:  # it belongs to the event loop that runs
            self._made = aiohttp.ClientSession(
                connector=_Connector(self._hub),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None),
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
                max_line_size=_LONGEST_LINE,
                max_field_size=_LONGEST_LINE,
                read_bufsize=2 * _PIECE,
            )
        return self._made

    async def http(
        self,
        target: Target,
        sent: list[tuple[str, str]],
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        sandboxed: bool,
    ) -> None:
        """Carry a request. Raises: Unreachable, TooMany; once the answer has begun, the connection breaks off instead.

        Args:
            target: The service.
            sent: The headers that it gets.
            scope: The request.
            receive: Its body.
            send: The answer.
            sandboxed: See `headers.to_browser`.
        """
        body = _Body(receive)
        has_body = any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"])
        try:
            async with self._session.request(
                scope["method"],
                _url(target, scope),
                headers=sent,
                data=body.pieces() if has_body else None,
                allow_redirects=False,
            ) as response:
                await send(
                    {
                        "type": "http.response.start",
                        "status": response.status,
                        "headers": headers.to_browser(response.raw_headers, is_sandboxed=sandboxed),
                    }
                )
                await _until_gone(_answer(response, send), body, has_body)
        except aiohttp.ClientError as error:
            raise Unreachable(f"{target.service.name} did not answer as HTTP does: {_said(error)}") from None

    async def websocket(
        self,
        target: Target,
        sent: list[tuple[str, str]],
        scope: Scope,
        receive: Receive,
        send: Send,
        used: Callable[[], None],
    ) -> None:
        """Carry a WebSocket. Raises: Unreachable, TooMany, before it is accepted.

        Args:
            target: The service.
            sent: The headers that it gets.
            scope: The request.
            receive: What the client sends.
            send: What it gets.
            used: Called for each message.
        """
        own = [(name, value) for name, value in sent if not name.startswith("sec-websocket-")]
        try:
            inner = await self._session.ws_connect(
                _url(target, scope),
                protocols=scope["subprotocols"],
                headers=own,
                autoclose=False,
                autoping=True,
                max_msg_size=LARGEST_MESSAGE,
            )
        except aiohttp.WSServerHandshakeError as error:
            raise _Refused(error.status, f"{target.service.name} refused the WebSocket: {error.message}") from None
        except aiohttp.ClientError as error:
            raise Unreachable(f"{target.service.name} opened no WebSocket: {_said(error)}") from None
        own.clear()  # an idle session needs no headers
        sent.clear()
        async with inner:
            await receive()  # websocket.connect
            await send({"type": "websocket.accept", "subprotocol": inner.protocol})
            await both(from_client(receive, inner, used), to_client(inner, send, used))

    async def tcp(self, target: Target, receive: Receive, send: Send, used: Callable[[], None]) -> None:
        """Carry the bytes of a WebSocket's binary messages. Raises: Unreachable, TooMany, before it is accepted."""
        stream = await self._hub.open(target.allocation_id, target.service.name)
        reader = asyncio.StreamReader(limit=_PIECE)
        protocol = asyncio.StreamReaderProtocol(reader)
        stream.set_protocol(protocol)
        writer = asyncio.StreamWriter(stream, protocol, reader, asyncio.get_running_loop())
        try:
            await receive()  # websocket.connect
            await send({"type": "websocket.accept"})
            await both(_bytes_in(receive, writer, used), _bytes_out(reader, send, used))
        finally:
            writer.close()


class _Refused(ApiError):
    """A service refused a WebSocket."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.reason = (status if 400 <= status < 600 else 502), 14, "Unavailable"


def _url(target: Target, scope: Scope) -> URL:
    """Where aiohttp sends it: the path and the query are the client's own, byte by byte."""
    host = f"{target.allocation_id}\0{target.service.name}".encode().hex()
    path = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
    query: bytes = scope["query_string"]
    return URL(f"http://{host}{path}{'?' + query.decode('latin-1') if query else ''}", encoded=True)


class _Body:
    """The body of a request, as it comes."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_read = asyncio.Event()

    async def pieces(self) -> AsyncIterator[bytes]:
        """Piece by piece. Raises: ConnectionResetError if the client goes away within."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ConnectionResetError("the client went away")
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body"):
                self.is_read.set()
                return

    async def gone(self, has_body: bool) -> None:
        """Return when the client has gone away."""
        if has_body:
            await self.is_read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def _answer(response: aiohttp.ClientResponse, send: Send) -> None:
    async for piece in response.content.iter_any():
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone(answering: Any, body: _Body, has_body: bool) -> None:
    """Answer for as long as the client is there: an endless stream must not go on for nobody."""
    answer, gone = asyncio.ensure_future(answering), asyncio.ensure_future(body.gone(has_body))
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            answer.result()
    finally:
        for task in (answer, gone):
            task.cancel()
        await asyncio.gather(answer, gone, return_exceptions=True)


async def _bytes_in(receive: Receive, writer: asyncio.StreamWriter, used: Callable[[], None]) -> None:
    with contextlib.suppress(ConnectionError):  # the service has gone: the other way says so
        while (message := await receive())["type"] != "websocket.disconnect":
            if message.get("bytes"):
                used()
                writer.write(message["bytes"])
                await writer.drain()


async def _bytes_out(reader: asyncio.StreamReader, send: Send, used: Callable[[], None]) -> None:
    while piece := await reader.read(_PIECE):
        used()
        await send({"type": "websocket.send", "bytes": piece})
    await send({"type": "websocket.close", "code": 1000})


def _said(error: Exception) -> str:
    return str(error)[:200] or type(error).__name__
