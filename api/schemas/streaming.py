"""Answers that take their time: streams, one JSON object a line, and long polls.

An error in the middle of a stream is a last line that clients understand.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

import orjson
import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

log = structlog.get_logger()
Result = TypeVar("Result")

#: What routes declare that answer with lines.
LINES: dict[int | str, dict[str, Any]] = {
    200: {"description": "A stream: one object a line", "content": {"application/json": {}}}
}
NDJSON: dict[int | str, dict[str, Any]] = {
    200: {"description": "A stream: one object a line", "content": {"application/x-ndjson": {}}}
}


def files(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """What a route declares that answers with a file of one of these content types."""
    return {200: {"description": "The file", "content": {kind: {} for kind in kinds}}}


async def while_there(request: Request, poll: Coroutine[Any, Any, Result]) -> Result:
    """The result of a long poll. It is cancelled when the client goes away. Raises: ClientDisconnect."""
    polling, gone = asyncio.ensure_future(poll), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({polling, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not polling.done():
            raise ClientDisconnect
        return polling.result()
    finally:
        gone.cancel()
        polling.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def stream(lines: AsyncIterator[bytes]) -> Response:
    """A 200 that goes on for as long as there are lines. Source: spec rest-api.md §1.3 (mid-stream), §1.4."""
    return StreamingResponse(_guarded(lines), media_type="application/json")


async def _guarded(lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        async for line in lines:
            yield line
    except Exception as error:  # noqa: BLE001 - the status is sent already: this is the only way left to tell
        log.error("a stream broke off", error=repr(error))
        message = "the stream broke off: try again"
        told: dict[str, object] = {
            "grpcCode": 14,
            "httpCode": 503,
            "httpStatus": "Service Unavailable",
            "message": message,
            "details": [],
        }
        yield orjson.dumps({"error": told}) + b"\n"
