"""Requests of a container that is only being prepared: two or three of them, by the standard library.

httpx, which everything else uses, takes 60 ms of processor time to import; the user's program, which takes this
process' place, would have nothing of that. Through a proxy it is httpx all the same, which knows them.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from determined import __version__
from determined.common.api._response import Response, error_of, unreachable
from determined.common.api._transport import CONNECT_TIMEOUT_S, Settings, TransportError, say
from determined.common.api._url import canonicalize_master_url

TYPE_CHECKING = False
if TYPE_CHECKING:
    import http.client
    from collections.abc import Iterator
    from typing import Protocol

    from determined.common.api._tls import Cert

    class Master(Protocol):
        """Where a container gets what it needs."""

        def get(self, path: str, *, timeout_s: float) -> Response:
            """One GET, tried once. Raises: APIException, as `Session.get` does."""
            ...

        def open(self, path: str, *, timeout_s: float) -> Stream:
            """The same, with the body still to be read. Close it. Raises: APIException."""
            ...

        def close(self) -> None:
            """Close the connection."""
            ...

    class Stream(Protocol):
        """A body that is read piece by piece."""

        def chunks(self) -> Iterator[bytes]:
            """The pieces. Raises: TransportError."""
            ...

        def close(self) -> None:
            """Give up the rest of it."""
            ...


_PIECE_BYTES = 1 << 20


def connect(master: str, allocation_token: str, cert: Cert) -> Master:
    """The master of a container, in the name of its allocation."""
    url = canonicalize_master_url(master)
    if Settings(url, cert).proxy:
        from determined.common.api._session import Session

        return Session(url, allocation_token=allocation_token, cert=cert, max_tries=1)
    return _Direct(url, allocation_token, cert)


class _Direct:
    """One connection to the master, made anew whenever a request has failed."""

    def __init__(self, master: str, allocation_token: str, cert: Cert) -> None:
        self._master = master
        self._parts = urlsplit(master)
        self._cert = cert
        self._headers = {
            "User-Agent": f"undeterred-harness/{__version__}",
            "Accept": "application/json",
            "Grpc-Metadata-x-allocation-token": f"Bearer {allocation_token}",
        }
        self._connection: http.client.HTTPConnection | None = None

    def get(self, path: str, *, timeout_s: float) -> Response:
        """One GET, tried once: who prepares the container knows for how long to go on."""
        answer = self.open(path, timeout_s=timeout_s)
        try:
            body = b"".join(answer.chunks())
        except TransportError as e:
            raise unreachable(self._master, e) from e
        return Response(200, answer.headers, body, f"GET {path}")

    def open(self, path: str, *, timeout_s: float) -> _Body:
        """The same, with the body still to be read."""
        from http.client import HTTPException

        try:
            connection = self._connection = self._connection or self._connected()
            assert connection.sock is not None
            connection.sock.settimeout(timeout_s)
            connection.request("GET", self._parts.path + path, headers=self._headers)
            answer = connection.getresponse()
            headers = {name.lower(): value for name, value in answer.getheaders()}
            if answer.status >= 300:
                raise error_of(answer.status, headers, answer.read(), f"GET {path}")
        except (OSError, HTTPException) as e:
            self.close()
            raise unreachable(self._master, "timed out" if isinstance(e, TimeoutError) else say(e)) from e
        return _Body(self, answer, headers)

    def close(self) -> None:
        """Close the connection, also in the middle of an answer."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self) -> http.client.HTTPConnection:
        import http.client

        host, port = self._parts.hostname or "localhost", self._parts.port
        if self._parts.scheme == "https":
            context = self._cert.context()
            made = http.client.HTTPSConnection(host, port, timeout=CONNECT_TIMEOUT_S, context=context)
        else:
            made = http.client.HTTPConnection(host, port, timeout=CONNECT_TIMEOUT_S)
        made.connect()
        return made


class _Body:
    """A body as it arrives. The connection serves nothing else until all of it was read."""

    def __init__(self, master: _Direct, answer: http.client.HTTPResponse, headers: dict[str, str]) -> None:
        self._master = master
        self._answer = answer
        self.headers = headers

    def chunks(self) -> Iterator[bytes]:
        """The pieces. Raises: TransportError."""
        from http.client import HTTPException

        left = self._answer.length
        try:
            while piece := self._answer.read(_PIECE_BYTES):
                left = None if left is None else left - len(piece)
                yield piece
        except (OSError, HTTPException) as e:
            self._master.close()
            words = "timed out" if isinstance(e, TimeoutError) else say(e)
            raise TransportError(f"the answer broke off: {words}", maybe_sent=True) from e
        if left:
            self._master.close()
            raise TransportError(f"the answer broke off: {left} bytes are missing", maybe_sent=True)

    def close(self) -> None:
        """Give up the rest of it, and the connection with that."""
        if not self._answer.isclosed():
            self._master.close()
