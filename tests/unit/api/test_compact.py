"""Answers that a client has already, or that gzip makes smaller."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from api.middleware.compact import Compact

ROWS = [{"id": number, "name": "an experiment", "state": "STATE_COMPLETED"} for number in range(100)]
shown = {"rows": ROWS}


async def rows(request: object) -> Response:
    return JSONResponse(shown)


async def small(request: object) -> Response:
    return JSONResponse({"id": 1})


async def text(request: object) -> Response:
    return PlainTextResponse("x" * 5000)


async def gone(request: object) -> Response:
    return JSONResponse(shown, 404)


async def stream(request: object) -> Response:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b'{"line": "' + b"x" * 2000 + b'"}\n'

    return StreamingResponse(pieces(), media_type="application/json")


ROUTES = {"/api/rows": rows, "/api/small": small, "/api/text": text, "/api/gone": gone, "/api/stream": stream}
APP = Starlette(
    routes=[Route(path, handler, methods=["GET", "POST"]) for path, handler in ({**ROUTES, "/rows": rows}).items()],
    middleware=[Middleware(Compact)],
)


def client(address: str = "192.0.2.7") -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(APP, client=(address, 1)), base_url="http://api")


async def test_what_is_known_is_not_sent_again() -> None:
    async with client() as http:
        first = await http.get("/api/rows")
        assert first.headers["cache-control"] == "private, no-cache"
        etag = first.headers["etag"]
        for named in (etag, f'"other", {etag}', etag.removeprefix("W/"), "*"):
            again = await http.get("/api/rows", headers={"if-none-match": named})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == etag
            assert "content-length" not in again.headers
        ROWS[3]["name"] = "renamed"
        changed = await http.get("/api/rows", headers={"if-none-match": etag})
        assert (changed.status_code, changed.json()) == (200, shown)
        assert changed.headers["etag"] != etag


@pytest.mark.parametrize(
    ("accepted", "address", "is_packed"),
    [
        ("gzip, deflate", "192.0.2.7", True),
        ("deflate;q=0.5, GZIP; q=0.1", "2001:db8::1", True),
        ("gzip;q=0", "192.0.2.7", False),
        ("identity", "192.0.2.7", False),
        ("gzip", "127.0.0.1", False),
        ("gzip", "::1", False),
    ],
)
async def test_who_is_elsewhere_and_takes_gzip_gets_it(accepted: str, address: str, is_packed: bool) -> None:
    async with client(address) as http, http.stream("GET", "/api/rows", headers={"accept-encoding": accepted}) as found:
        raw = b"".join([piece async for piece in found.aiter_raw()])
    assert (found.headers.get("content-encoding") == "gzip") is is_packed
    assert found.headers["vary"] == "accept-encoding"
    assert int(found.headers["content-length"]) == len(raw)
    assert (gzip.decompress(raw) if is_packed else raw) == JSONResponse(shown).body


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/api/small"), ("GET", "/api/text"), ("GET", "/api/gone"), ("GET", "/api/stream"), ("GET", "/rows"),
     ("POST", "/api/rows")],
)  # fmt: skip
async def test_all_else_is_left_as_it_is(method: str, path: str) -> None:
    async with client() as http:
        found = await http.request(method, path, headers={"if-none-match": "*"})
    assert found.status_code in (200, 404)
    assert found.content
    assert "etag" not in found.headers
    assert "content-encoding" not in found.headers


async def test_a_streams_begin_does_not_wait_for_its_first_piece() -> None:
    sent: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        sent.append("the begin was handed on" if began else "the begin was held")

    began: list[Message] = []

    async def send(message: Message) -> None:
        began.append(message)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    scope: Scope = {"type": "http", "method": "GET", "path": "/api/logs", "headers": []}
    await Compact(app)(scope, receive, send)
    assert sent == ["the begin was handed on"]
