"""Connections to one server. Asynchronous ones, and those through a proxy, are httpx', imported at the first request.

Of httpx this uses the transports, not the clients: these log each request into users' logs, keep cookies and add
headers of their own.
"""

from __future__ import annotations

import threading
import weakref

from determined.common.api._async import _io
from determined.common.api._transport import Request, Settings, TransportError, failure_of, failures

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Hashable, Mapping
    from typing import Any

    from determined.common.api._tls import Cert


class AsyncHttpResponse:
    """An answer whose body is read from the connection piece by piece. Read it to its end, or close it."""

    def __init__(self, response: _io.Answer, connections: _io.Connections) -> None:
        self._response = response
        self._connections: _io.Connections | None = connections
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers  # names in any case

    async def read(self) -> bytes:
        """The whole body."""
        return b"".join([piece async for piece in self.chunks()])

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives."""
        try:
            async for piece in self._response.aiter_raw():
                yield piece
        except (TransportError, *failures()) as e:
            raise failure_of(e, in_body=True) from e
        finally:
            await self.close()

    async def close(self) -> None:
        """Give up the rest of the body. A second time is no error."""
        connections, self._connections = self._connections, None
        if connections is not None:
            try:
                await self._response.aclose()
            finally:
                await connections.end()


class AsyncHttpPool:
    """Connections to one server. After a fork they are made anew, and their owner's stay as they are."""

    def __init__(self, base_url: str, cert: Cert | None = None) -> None:
        self._settings = Settings(base_url, cert)
        self._owner: Hashable = None
        self._transport: _io.Transport | None = None
        self._connections = _io.Connections()
        self._lock = threading.Lock()
        self._is_closed = False
        self._finalizer: weakref.finalize[..., Any] | None = None

    async def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float
    ) -> AsyncHttpResponse:
        """Send one request and read the head of its answer. Nothing is retried.

        Args:
            method: The HTTP method.
            target: Path and query below the base URL.
            headers: The headers; Host and Content-Length are added.
            body: The body, or None.
            timeout_s: The longest silence to bear, not the whole duration.

        Raises:
            TransportError: The server can't be reached, or went away.
            ValueError: A header or the path contains a line break.
        """
        request = Request(method, target, headers, body, timeout_s)
        transport, connections = self._begin()
        try:
            return AsyncHttpResponse(await _io.send(transport, connections, request), connections)
        except BaseException as e:
            await connections.end()
            if isinstance(e, failures()):
                raise failure_of(e) from e
            raise

    async def close(self) -> None:
        """Close everything; a request that is under way fails at once."""
        with self._lock:
            self._is_closed = True
            self._owner = self._owner or _io.owner()
            transport, self._transport = self._transport, None
            self._forget()
        if transport is not None:
            await self._connections.close(transport)

    def _begin(self) -> tuple[_io.Transport, _io.Connections]:
        owner = _io.owner()
        if self._owner not in (None, owner):
            # A lock that was held during a fork is never released in the child. Closing our copies of the
            # connections, as the end of the old transport does, does not disturb who still talks on them.
            self._lock = threading.Lock()
            self._transport, self._connections, self._is_closed, self._owner = None, _io.Connections(), False, None
            self._forget()
        with self._lock:
            if self._is_closed:
                raise TransportError("the session is closed", maybe_sent=False)
            if self._transport is None:
                self._transport, self._owner = _io.new_transport(self._settings), owner
                # Not `__del__`: in a cycle of garbage the sockets might go first, and warn that nobody closed them.
                self._finalizer = weakref.finalize(self, _io.abandon, self._transport)
                self._finalizer.atexit = False
            self._connections.begin()
            return self._transport, self._connections

    def _forget(self) -> None:
        if self._finalizer is not None:
            self._finalizer.detach()
            self._finalizer = None
