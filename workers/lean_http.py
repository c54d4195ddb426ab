"""A transport of `httpx` to one server: HTTP/1.1, connections that stay open, whole answers.

An agent sends many small requests to one API. httpx's own transport, which serves any number of servers and streams,
takes most of the processor time of such a request. Errors are httpx's.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import cast
from urllib.request import getproxies, proxy_bypass

import httptools
import httpx

#: The most that the body of an answer may have: the largest, an order for a container, has some hundred KiB.
_MOST_BYTES = 64 << 20
_CHANGED = (b"\r", b"\n", b"\0")


def transport_to(url: str, verify: ssl.SSLContext | bool) -> httpx.AsyncBaseTransport | None:
    """The transport to a server; None: it is reached through a proxy, which httpx's own knows.

    Args:
        url: With scheme and host, as clients are given it.
        verify: The authorities that may have signed its certificate; True: those that all programs trust.
    """
    parts = httpx.URL(url)
    proxies = getproxies()
    if (parts.scheme in proxies or "all" in proxies) and not proxy_bypass(parts.host):
        return None
    return LeanTransport(httpx.create_ssl_context(verify=verify) if parts.scheme == "https" else None)


class LeanTransport(httpx.AsyncBaseTransport):
    """See the module.

    Args:
        tls: For a server that speaks TLS.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._idle: list[_Connection] = []  # the one used last is the last

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request, and receive its whole answer. Raises: httpx.TransportError."""
        limits = cast("dict[str, float | None]", request.extensions.get("timeout") or {})
        data = _encoded(request, await request.aread())
        connection = self._open_one() or await self._connect(request.url, limits.get("connect"))
        try:
            async with asyncio.timeout(limits.get("read")):
                answer = await connection.ask(data)
        except TimeoutError:
            raise httpx.ReadTimeout("no answer in time") from None
        finally:
            if connection.may_stay:
                self._idle.append(connection)
            else:
                connection.close()
        return answer

    async def aclose(self) -> None:
        """Close the connections that no request uses."""
        while self._idle:
            self._idle.pop().close()

    def _open_one(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.may_stay:
                return connection
            connection.close()
        return None

    async def _connect(self, url: httpx.URL, limit_s: float | None) -> _Connection:
        port = url.port or (443 if self._tls else 80)
        try:
            async with asyncio.timeout(limit_s):
                loop = asyncio.get_running_loop()
                _, connection = await loop.create_connection(_Connection, url.host, port, ssl=self._tls)
        except TimeoutError:
            raise httpx.ConnectTimeout(f"no connection to {url.host}:{port} in time") from None
        except OSError as error:
            raise httpx.ConnectError(str(error) or type(error).__name__) from error
        return connection


def _encoded(request: httpx.Request, body: bytes) -> bytes:
    head = [b"%s %s HTTP/1.1" % (request.method.encode(), request.url.raw_path)]
    head += [b"%s: %s" % pair for pair in request.headers.raw]
    for line in head:
        if any(each in line for each in _CHANGED):
            raise httpx.LocalProtocolError(f"a header or the path has a line break: {line[:100]!r}")
    return b"\r\n".join([*head, b"", body])


class _Connection(asyncio.Protocol):
    """One connection, for one request at a time.

    Attributes:
        may_stay: Whether it can be used for another request.
    """

    def __init__(self) -> None:
        self.may_stay = True
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[httpx.Response] | None = None
        self._begin()

    async def ask(self, data: bytes) -> httpx.Response:
        """Send an encoded request. Raises: httpx.TransportError."""
        assert self._transport is not None
        self.may_stay = False  # until the answer is complete
        self._begin()
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        return await self._answer

    def close(self) -> None:
        """Close it at once."""
        self.may_stay = False
        if self._transport is not None:
            self._transport.abort()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._size = 0
        self._has_head = False

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """A part of an answer."""
        if self._answer is None:  # nothing was asked for
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(httpx.RemoteProtocolError(f"the answer is no HTTP/1.1: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed; an answer whose length was not announced ends so."""
        self.may_stay = False
        names = {name.lower() for name, _ in self._headers}
        if self._has_head and exc is None and not names & {b"content-length", b"transfer-encoding"}:
            self._complete()
        self._fail(httpx.ReadError(str(exc)) if exc else httpx.RemoteProtocolError("closed without a whole answer"))

    # -- called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        """A line of the head."""
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The body begins."""
        self._has_head = True

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._size += len(body)
        if self._size > _MOST_BYTES:
            self._fail(httpx.RemoteProtocolError(f"the answer has more than {_MOST_BYTES} bytes"))
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """The answer is there, or says that there is another one to come."""
        if 100 <= self._parser.get_status_code() < 200:
            self._headers, self._has_head = [], False
            return
        self.may_stay = self._parser.should_keep_alive()
        self._complete()

    def _complete(self) -> None:
        answer, self._answer = self._answer, None
        if answer is None or answer.done():
            return
        try:
            response = httpx.Response(
                self._parser.get_status_code(), headers=self._headers, content=b"".join(self._body)
            )
        except httpx.DecodingError as error:
            answer.set_exception(error)
        else:
            answer.set_result(response)

    def _fail(self, error: httpx.TransportError) -> None:
        answer, self._answer = self._answer, None
        self.close()
        if answer is not None and not answer.done():
            answer.set_exception(error)
