"""How httpx is set up, and what its failures mean: the part that knows no difference between sync and async."""

from __future__ import annotations

import os
import socket
from urllib.parse import urlsplit

from determined.errors import InvalidConfigurationException

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from determined.common.api._tls import Cert

CONNECT_TIMEOUT_S = 10.0
_MAX_IDLE_CONNECTIONS = 4
# Servers close idle connections, uvicorn after 5 s. Using one in the moment when it is being closed costs a retry.
_MAX_IDLE_S = 4.0


class TransportError(Exception):
    """No complete answer came. `maybe_sent`: the server may have acted on the request."""

    def __init__(self, message: str, maybe_sent: bool) -> None:
        super().__init__(message)
        self.maybe_sent = maybe_sent


class Settings:
    """What a client needs to know of its server.

    Args:
        base_url: `scheme://host:port[/prefix]`.
        cert: How to check its certificate.

    Attributes:
        proxy: What its requests go through, None if nothing.
    """

    def __init__(self, base_url: str, cert: Cert | None = None) -> None:
        parts = urlsplit(base_url)
        self._is_tls = parts.scheme == "https"
        self._cert = cert
        port = parts.port or (443 if self._is_tls else 80)
        self.proxy = proxy_for(parts.scheme, parts.hostname or "localhost", port)

    def transport(self) -> dict[str, Any]:
        """Arguments of httpx' transports.

        Raises:
            InvalidConfigurationException: The certificate file can't be read, or the proxy is of a kind not known.
        """
        from determined.common.api._httpx import httpx
        from determined.common.api._tls import Cert

        kind = (self.proxy or "http").partition("://")[0]
        if kind not in ("http", "https"):
            raise InvalidConfigurationException(
                f"the environment names a {kind} proxy, but only http:// and https:// ones are known "
                "(http_proxy, https_proxy; no_proxy excepts hosts)"
            )
        return {
            "verify": (self._cert or Cert()).context() if self._is_tls else False,
            "trust_env": False,
            "limits": httpx.Limits(
                max_connections=None, max_keepalive_connections=_MAX_IDLE_CONNECTIONS, keepalive_expiry=_MAX_IDLE_S
            ),
            "proxy": self.proxy,
            "socket_options": _socket_options(),
        }


def timeouts(timeout_s: float) -> dict[str, float | None]:
    """httpx' time-outs for the longest silence to bear."""
    return {"connect": CONNECT_TIMEOUT_S, "read": timeout_s, "write": timeout_s, "pool": None}


def check_head(target: str, headers: Mapping[str, str]) -> None:
    """Refuse what would become another header or another request.

    Raises:
        ValueError: A line break.
    """
    for text in (target, *headers, *headers.values()):
        if "\r" in text or "\n" in text:
            raise ValueError("a header or path contains a line break")


def failure_of(e: Exception, *, in_body: bool = False) -> TransportError:
    """What an error of httpx means: in words, and whether the server may have acted."""
    from determined.common.api._httpx import httpx

    not_sent = (
        httpx.ConnectError,
        httpx.ConnectTimeout,
        httpx.PoolTimeout,
        httpx.ProxyError,
        httpx.UnsupportedProtocol,
    )
    words = _say(e)
    return TransportError(f"the answer broke off: {words}" if in_body else words, not isinstance(e, not_sent))


def proxy_for(scheme: str, host: str, port: int) -> str | None:
    """The proxy that the environment names for a server: `http_proxy`, `https_proxy`, unless `no_proxy` excepts it."""
    url = os.environ.get(f"{scheme}_proxy") or os.environ.get(f"{scheme.upper()}_PROXY")
    if not url:
        return None
    exceptions = [
        e.strip().lower() for e in (os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or "").split(",")
    ]
    for entry in exceptions:
        name = entry.lstrip("*").lstrip(".")
        if entry == "*" or (name and (host == name or host.endswith("." + name) or f"{host}:{port}" == name)):
            return None
    return url if "://" in url else f"http://{url}"


def _socket_options() -> list[tuple[int, int, int]]:
    # A stream of logs may be silent for long; a host that vanished must not be waited for as long.
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


def say(e: BaseException) -> str:
    """An error of a connection in the operating system's words, which those of the libraries hide."""
    cause: BaseException | None = e
    while cause is not None:
        if isinstance(cause, ConnectionRefusedError):
            return "connection refused"
        if isinstance(cause, OSError) and cause.strerror and cause.errno:
            return cause.strerror if type(cause).__module__ != "ssl" else str(cause)
        cause = cause.__cause__ or cause.__context__
    return str(e).rstrip(".") or type(e).__name__


def _say(e: BaseException) -> str:
    from determined.common.api._httpx import httpx

    if isinstance(e, httpx.TimeoutException):
        return "timed out"
    text = say(e)
    if isinstance(e, httpx.RemoteProtocolError) and "illegal" in text:
        return f"this is not HTTP: {text}"
    return text
