"""Which headers and cookies pass the proxy: credentials of ours never reach a task, nor do its cookies become ours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from starlette.datastructures import Headers
from starlette.types import Scope

from api.errors import ApiError
from api.middleware.browsers import check_site

#: The cookie that opens one service, at that service's path only.
COOKIE = "undeterred-service"
#: Of a request, together.
MOST_BYTES = 64 * 1024
_OWN_COOKIES = frozenset({COOKIE, "auth", "det_jwt"})
#: Of one connection: RFC 9110, 7.6.1.
_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"}
    | {"transfer-encoding", "upgrade", "expect", "http2-settings"}
)
_OWN = frozenset({"grpc-metadata-x-user-token", "grpc-metadata-x-allocation-token", "cookie", "host"})
_FORWARDED = frozenset({"forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"})
#: A task may not say these for a whole origin, which others may share.
_NOT_FROM_TASKS = frozenset(
    {"service-worker-allowed", "clear-site-data", "strict-transport-security", "alt-svc", "nel", "report-to", "server"}
)
_POLICIES = frozenset({"content-security-policy", "content-security-policy-report-only"})
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class HeadersTooLarge(ApiError):
    """The headers of a request are over their limit."""

    status, code, reason = 431, 8, "ResourceExhausted"


def check_size(scope: Scope) -> None:
    """Raises: HeadersTooLarge."""
    size = sum(len(name) + len(value) for name, value in scope["headers"]) + len(scope["query_string"])
    if size > MOST_BYTES:
        raise HeadersTooLarge(f"the headers of this request have {size} bytes, the limit is {MOST_BYTES}")


def check_origin(scope: Scope) -> None:
    """Only a service's own pages may have it change something, or open its WebSockets. Raises: Forbidden."""
    if scope["type"] == "websocket" or scope["method"] not in _SAFE:
        check_site(Headers(scope=scope))


def cookie(headers: Headers, name: str) -> str:
    """The value of a cookie; empty without it."""
    for pair in _pairs(headers):
        if pair.partition("=")[0].strip() == name:
            return pair.partition("=")[2].strip()
    return ""


def _pairs(headers: Headers) -> Iterator[str]:
    for value in headers.getlist("cookie"):
        yield from (pair.strip() for pair in value.split(";"))


def to_task(scope: Scope, *, keeps_authorization: bool) -> list[tuple[str, str]]:
    """The headers of a request, as the service gets them."""
    headers = Headers(scope=scope)
    dropped = _HOP | _OWN | _FORWARDED | _named(headers.getlist("connection"))
    if not keeps_authorization:
        dropped |= {"authorization"}
    kept = [(name, value) for name, value in headers.items() if name not in dropped]
    cookies = [pair for pair in _pairs(headers) if pair and pair.partition("=")[0].strip() not in _OWN_COOKIES]
    if cookies:
        kept.append(("cookie", "; ".join(cookies)))
    host = headers.get("host", "")
    client = scope["client"][0] if scope.get("client") else ""
    scheme = {"ws": "http", "wss": "https"}.get(scope["scheme"], scope["scheme"])
    forwarded = [("x-real-ip", client), ("x-forwarded-for", client), ("x-forwarded-host", host)]
    return [("host", host), *kept, *forwarded, ("x-forwarded-proto", headers.get("x-forwarded-proto") or scheme)]


def to_browser(raw: Iterable[tuple[bytes, bytes]], *, is_sandboxed: bool) -> list[tuple[bytes, bytes]]:
    """The headers of a service's response, as the client gets them.

    Args:
        raw: As the service sent them.
        is_sandboxed: It is served at the API's own origin: no page may become one of it.
    """
    listed = [(name.decode("latin-1").lower(), value) for name, value in raw]
    named = _named(value.decode("latin-1") for name, value in listed if name == "connection")
    dropped = _HOP | _NOT_FROM_TASKS | named
    if is_sandboxed:
        dropped |= _POLICIES
    found = [
        (name.encode("latin-1"), _own_host(value) if name == "set-cookie" else value)
        for name, value in listed
        if name not in dropped and not (name == "set-cookie" and (is_sandboxed or _is_ours(value)))
    ]
    if is_sandboxed:
        found.append((b"content-security-policy", b"default-src 'none'; sandbox"))
        found.append((b"x-content-type-options", b"nosniff"))
    else:
        found.append((b"referrer-policy", b"same-origin"))
        found.append((b"cross-origin-resource-policy", b"same-origin"))
    return found


def _named(connection: Iterable[str]) -> frozenset[str]:
    """The headers that `Connection` declares as its own."""
    return frozenset(name.strip().lower() for value in connection for name in value.split(","))


def _is_ours(value: bytes) -> bool:
    return value.decode("latin-1").partition("=")[0].strip() in _OWN_COOKIES


def _own_host(value: bytes) -> bytes:
    """A cookie of a task is for its own host: never for those beside it."""
    parts = value.split(b";")
    return b";".join(part for part in parts if not part.strip().lower().startswith(b"domain"))
