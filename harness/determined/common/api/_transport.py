"""How a server is connected to, and what failures mean: the part that knows no difference between sync and async."""

from __future__ import annotations

import os
import socket
import sys
from urllib.parse import urlsplit

from determined.errors import InvalidConfigurationException

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping
    from typing import Any

    from determined.common.api._httpx import httpx
    from determined.common.api._tls import Cert

CONNECT_TIMEOUT_S = 10.0
MAX_IDLE_CONNECTIONS = 4
# Servers close idle connections, uvicorn after 5 s. Using one in the moment when it is being closed costs a retry.
MAX_IDLE_S = 4.0


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
        base_url: As it was given.
        is_tls: Whether it speaks TLS.
        host: Its name or address.
        port: Its port.
        authority: Both, as the header Host has them.
        prefix: What its paths begin with; empty, or from the slash on.
        proxy: What its requests go through, None if nothing.
    """

    def __init__(self, base_url: str, cert: Cert | None = None) -> None:
        parts = urlsplit(base_url)
        self.is_tls = parts.scheme == "https"
        self.host = parts.hostname or "localhost"
        usual = 443 if self.is_tls else 80
        self.port = parts.port or usual
        host = f"[{self.host}]" if ":" in self.host else self.host
        self.authority = host if self.port == usual else f"{host}:{self.port}"
        self.prefix = parts.path
        self.base_url = base_url
        self.proxy = proxy_for(parts.scheme, self.host, self.port)
        self._cert = cert
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """What its certificate is checked by. Raises: InvalidConfigurationException, as `Cert.context`."""
        if self._context is None:
            from determined.common.api._tls import Cert

            self._context = (self._cert or Cert()).context()
            self._context.set_alpn_protocols(["http/1.1"])
        return self._context

    def transport(self) -> dict[str, Any]:
        """Arguments of httpx' transports.

        Raises:
            InvalidConfigurationException: The certificate file can't be read, or the proxy is of a kind not known.
        """
        from determined.common.api._httpx import httpx

        kind = (self.proxy or "http").partition("://")[0]
        if kind not in ("http", "https"):
            raise InvalidConfigurationException(
                f"the environment names a {kind} proxy, but only http:// and https:// ones are known "
                "(http_proxy, https_proxy; no_proxy excepts hosts)"
            )
        return {
            "verify": self.context() if self.is_tls else False,
            "trust_env": False,
            "limits": httpx.Limits(
                max_connections=None, max_keepalive_connections=MAX_IDLE_CONNECTIONS, keepalive_expiry=MAX_IDLE_S
            ),
            "proxy": self.proxy,
            "socket_options": self.socket_options(),
        }

    @staticmethod
    def socket_options() -> list[tuple[int, int, int]]:
        """What is set on each of its sockets."""
        # A stream of logs may be silent for long; a host that vanished must not be waited for as long.
        options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
        for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
            if hasattr(socket, name):
                options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
        return options


class Request:
    """What is sent.

    Args:
        method: The HTTP method.
        target: Path and query below the base URL.
        headers: The headers; Host and Content-Length are added.
        body: The body, or None.
        timeout_s: The longest silence to bear, not the whole duration.

    Raises:
        ValueError: A header or the path contains a line break.
    """

    def __init__(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float
    ) -> None:
        for text in (target, *headers, *headers.values()):
            if "\r" in text or "\n" in text:  # it would become another header or another request
                raise ValueError("a header or path contains a line break")
        self.method, self.target, self.headers, self.body, self.timeout_s = method, target, headers, body, timeout_s

    def for_httpx(self, base_url: str, **extensions: Any) -> httpx.Request:
        """The same for httpx' transports."""
        from determined.common.api._httpx import httpx

        silence = self.timeout_s
        timeouts = {"connect": CONNECT_TIMEOUT_S, "read": silence, "write": silence, "pool": None}
        return httpx.Request(
            self.method,
            base_url + self.target,
            headers=self.headers,
            content=self.body,
            extensions={"timeout": timeouts, **extensions},
        )


def failures() -> tuple[type[Exception], ...]:
    """What httpx raises when a connection fails, without loading it: nothing if nobody has."""
    if "httpx" not in sys.modules:
        return ()
    from determined.common.api._httpx import httpx

    return httpx.HTTPError, httpx.StreamError


def failure_of(e: Exception, *, in_body: bool = False) -> TransportError:
    """What a failure means: in words, and whether the server may have acted."""
    if isinstance(e, TransportError):
        words, was_sent = str(e), e.maybe_sent
    else:
        from determined.common.api._httpx import httpx

        kinds = httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError, httpx.UnsupportedProtocol
        words, was_sent = _say(e), not isinstance(e, kinds)
    return TransportError(f"the answer broke off: {words}" if in_body else words, was_sent)


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
