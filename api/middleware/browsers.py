"""Security headers for browsers, and protection against cross-site request forgery.

A browser adds the session's cookie to every request, also to one that another site makes it send. So a request that may
change something is accepted from our own pages only. If the cookie alone authenticates it, it must also be JSON, which
a form can't send.
"""

from __future__ import annotations

import functools
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Message, Scope

from api.errors import Forbidden, NotServed
from web import files

#: The web UI: programs, styles and data of this origin, and pictures that it draws itself.
UI_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: A worker has the policy of its own program: its modules, and what it asks the API.
WORKER_POLICY = "default-src 'none'; script-src 'self'; connect-src 'self'; frame-ancestors 'none'"
#: Swagger UI sets styles within its elements, and asks the API what is tried out.
SWAGGER_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
#: Which pages this server has: one that is open sees by any answer that it is older.
PAGES = b"x-undeterred-pages"
_POLICY = b"content-security-policy"
_RAW = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
_TOKENS = ("authorization", "grpc-metadata-x-user-token", "grpc-metadata-x-allocation-token")
#: Here a password authenticates the caller, whatever cookie the client still has.
_LOGINS = ("/api/v1/auth/login", "/login")
_OWN = ("same-origin", "none")
#: Without these a request is none that a browser makes for a page.
_OF_PAGES = frozenset({b"origin", b"sec-fetch-site", b"cookie"})


@functools.cache
def headers_of_programs() -> tuple[tuple[bytes, bytes], ...]:
    """What `add_headers` completes the head of an answer with that brings no policy of its own."""
    return (*_RAW, (PAGES, files.load().digest.encode()))


def add_headers(message: Message) -> None:
    """Complete the head of an answer; a page brings its own policy."""
    if message["type"] != "http.response.start":
        return
    raw = message.get("headers", ())
    ours = headers_of_programs()
    has_policy = _POLICY in [name for name, _ in raw]
    message["headers"] = [*raw, *(ours[1:] if has_policy else ours)]


def check_origin(scope: Scope) -> None:
    """To be asked before a request is served that may change something. Raises: Forbidden, NotServed."""
    if _OF_PAGES.isdisjoint([name for name, _ in scope["headers"]]):
        return
    headers = Headers(scope=scope)
    check_site(headers)
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    is_asked_for = "auth=" in headers.get("cookie", "") and scope["path"].rstrip("/") not in _LOGINS
    if not is_asked_for or any(name in headers for name in _TOKENS):
        return
    if origin is None and site is None:
        raise Forbidden(
            "with a cookie alone this request must say where it comes from: send Origin, or a token instead"
        )
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    is_empty = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
    if not is_empty and kind != "application/json":
        raise NotServed(f"with a cookie alone the content type must be application/json, got {kind[:80]!r}")


def check_site(headers: Headers) -> None:
    """Refuse what a page of another origin makes a browser send. Raises: Forbidden."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if site is not None and site not in _OWN:
        raise Forbidden(f"this request comes from another site (Sec-Fetch-Site: {site[:40]!r})")
    if origin is not None and _host_of(origin) != headers.get("host", "").lower():
        raise Forbidden(f"this request comes from another site (Origin: {origin[:100]!r})")


def _host_of(origin: str) -> str:
    """Host and port of an origin, as the header Host has them; empty for one that is opaque."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
