"""What need not be sent: an answer that the client has already, and what gzip takes out of one.

Only of answers with JSON to GET that are complete in one piece: streams, files and what goes to tasks stay as they are.
Source: RFC 9110, sections 8.8.3, 12.5.3 and 13.1.2.
"""

from __future__ import annotations

import hashlib
import zlib
from ipaddress import ip_address

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Below this many bytes an answer is one packet, whatever is done about it.
_WORTH_IT = 1400
#: A list of 100 alike experiments becomes a nineteenth at this level, in 1 ms.
_LEVEL = 1


class Compact:
    """Gives each such answer a weak ETag, answers 304 to who names it, and compresses for who is elsewhere."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI calls it."""
        if scope["type"] != "http" or scope["method"] != "GET" or not scope["path"].startswith("/api/"):
            await self._app(scope, receive, send)
            return
        start: Message | None = None

        async def answer(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and _is_plain(message):
                start = message
            elif start is not None:
                held, start = start, None
                if not message.get("more_body") and len(message.get("body", b"")) >= _WORTH_IT:
                    message = _compact(Headers(scope=scope), held, message, is_far=_is_far(scope))
                await send(held)
                await send(message)
            else:
                await send(message)

        await self._app(scope, receive, answer)


def _is_plain(start: Message) -> bool:
    headers = Headers(raw=start["headers"])
    if "etag" in headers or "content-encoding" in headers or "content-length" not in headers:
        return False  # without a length it is a stream, whose begin must not wait for its first piece
    return start["status"] == 200 and headers.get("content-type", "").partition(";")[0] == "application/json"


def _compact(asked: Headers, start: Message, message: Message, *, is_far: bool) -> Message:
    """The rest of the answer; `start` is changed in its place."""
    body: bytes = message["body"]
    etag = f'W/"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    raw: list[tuple[bytes, bytes]] = list(start["headers"])
    start["headers"], headers = raw, MutableHeaders(raw=raw)
    headers["etag"] = etag
    # a browser may keep it, but asks each time: by then another user may have logged in
    headers.setdefault("cache-control", "private, no-cache")
    headers.add_vary_header("accept-encoding")
    if _has(asked.get("if-none-match", ""), etag):
        start["status"] = 304
        del headers["content-length"]
        del headers["content-type"]
        return {"type": "http.response.body", "body": b""}
    if is_far and _takes_gzip(asked.get("accept-encoding", "")):
        packer = zlib.compressobj(_LEVEL, wbits=31)
        body = packer.compress(body) + packer.flush()
        headers["content-encoding"] = "gzip"
        headers["content-length"] = str(len(body))
    return {**message, "body": body}


def _has(names: str, etag: str) -> bool:
    """Whether If-None-Match names this ETag; a proxy may have made a strong one of it."""
    opaque = etag.removeprefix("W/")
    return any(name.strip().removeprefix("W/") in (opaque, "*") for name in names[:4000].split(","))


def _takes_gzip(accepted: str) -> bool:
    for each in accepted[:1000].split(","):
        name, _, weight = each.partition(";")
        if name.strip().lower() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _is_far(scope: Scope) -> bool:
    """Whether the client is on another host: on this one, packing takes longer than copying."""
    client = scope.get("client")
    try:
        return client is not None and not ip_address(client[0]).is_loopback
    except ValueError:  # a socket that is a file
        return False
