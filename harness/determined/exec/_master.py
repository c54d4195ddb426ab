"""Requests of a container that is only being prepared: two of them, by the standard library.

httpx, which everything else uses, takes 60 ms of processor time to import; the user's program, which takes this
process' place, would have nothing of that. Through a proxy it is httpx all the same, which knows them.
"""

from __future__ import annotations

from determined import __version__, errors
from determined.common.api._response import Response, error_of
from determined.common.api._session import Session
from determined.common.api._transport import CONNECT_TIMEOUT_S, proxy_for
from determined.common.api._url import canonicalize_master_url

TYPE_CHECKING = False
if TYPE_CHECKING:
    import http.client
    from typing import Protocol

    from determined.common.api._tls import Cert

    class Master(Protocol):
        """Where a container gets what it needs."""

        def get(self, path: str, *, timeout_s: float) -> Response:
            """One GET, tried once. Raises: APIException, as `Session.get` does."""
            ...

        def close(self) -> None:
            """Close the connection."""
            ...


def connect(master: str, allocation_token: str, cert: Cert) -> Master:
    """The master of a container, in the name of its allocation."""
    from urllib.parse import urlsplit

    parts = urlsplit(canonicalize_master_url(master))
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if proxy_for(parts.scheme, parts.hostname or "localhost", port):
        return Session(master, allocation_token=allocation_token, cert=cert, max_tries=1)
    return _Direct(canonicalize_master_url(master), allocation_token, cert)


class _Direct:
    """One connection to the master, made anew whenever a request has failed."""

    def __init__(self, master: str, allocation_token: str, cert: Cert) -> None:
        self._master = master
        self._cert = cert
        self._headers = {
            "User-Agent": f"undeterred-harness/{__version__}",
            "Accept": "application/json",
            "Grpc-Metadata-x-allocation-token": f"Bearer {allocation_token}",
        }
        self._connection: http.client.HTTPConnection | None = None

    def get(self, path: str, *, timeout_s: float) -> Response:
        """One GET, tried once: who prepares the container knows for how long to go on."""
        from http.client import HTTPException
        from urllib.parse import urlsplit

        where = f"GET {path}"
        try:
            connection = self._connection = self._connection or self._connected()
            assert connection.sock is not None
            connection.sock.settimeout(timeout_s)
            connection.request("GET", urlsplit(self._master).path + path, headers=self._headers)
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, HTTPException) as e:
            self.close()
            raise errors.MasterNotFoundException(
                f"can't reach the master at {self._master}: {_say(e)}; check that it runs, and the address (DET_MASTER)"
            ) from e
        headers = {name.lower(): value for name, value in answer.getheaders()}
        if answer.status >= 300:
            raise error_of(answer.status, headers, body, where)
        return Response(answer.status, headers, body, where)

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self) -> http.client.HTTPConnection:
        import http.client
        from urllib.parse import urlsplit

        parts = urlsplit(self._master)
        host = parts.hostname or "localhost"
        if parts.scheme == "https":
            made: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, parts.port, timeout=CONNECT_TIMEOUT_S, context=self._cert.context()
            )
        else:
            made = http.client.HTTPConnection(host, parts.port, timeout=CONNECT_TIMEOUT_S)
        made.connect()
        return made


def _say(e: Exception) -> str:
    if isinstance(e, TimeoutError):
        return "timed out"
    if isinstance(e, ConnectionRefusedError):
        return "connection refused"
    return str(getattr(e, "strerror", None) or e).rstrip(".") or type(e).__name__
