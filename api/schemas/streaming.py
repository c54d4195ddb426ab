"""Long-lived responses: streams, one JSON object a line, and long polls.

An error in the middle of a stream is a last line that clients understand.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import orjson
import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from api.errors import ApiError, TooMany, Unavailable
from api.health import Health

log = structlog.get_logger()
Result = TypeVar("Result")

#: Things that one user follows at a time.
MOST_FOLLOWED = 100
_AGAIN_S = 5
#: How often a follower's authorization is checked again.
RIGHTS_EVERY_S = 5.0


def _success(description: str, *kinds: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"description": description, "content": {kind: {} for kind in kinds}}}


#: What routes declare that answer with lines.
LINES = _success("A stream: one object a line", "application/json")
NDJSON = _success("A stream: one object a line", "application/x-ndjson")
EVENTS = _success("A stream of server-sent events", "text/event-stream")


def files(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """What a route declares that answers with a file of one of these content types."""
    return _success("The file", *kinds)


class Ends(Unavailable):
    """This process of the API ends, and what it would wait for goes on elsewhere."""

    def __init__(self) -> None:
        super().__init__("this process of the API ends: ask again")


async def while_there(request: Request, poll: Coroutine[Any, Any, Result]) -> Result:
    """The result of a long poll. It is cancelled when the client goes away. Raises: ClientDisconnect; Ends."""
    health: Health = request.app.state.health
    polling, gone = asyncio.ensure_future(poll), asyncio.ensure_future(_gone(request))
    ends = asyncio.ensure_future(health.ends.wait())
    try:
        await asyncio.wait({polling, gone, ends}, return_when=asyncio.FIRST_COMPLETED)
        if not polling.done():
            raise ClientDisconnect if gone.done() else Ends
        return polling.result()
    finally:
        for task in (gone, ends, polling):
            task.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Followers:
    """Who follows something that goes on. Each looks into the database again and again, which all others wait for."""

    def __init__(self, most: int = MOST_FOLLOWED) -> None:
        self._most = most
        self._open: Counter[int] = Counter()

    @contextmanager
    def one_more(self, user_id: int) -> Generator[None]:
        """While a user follows one thing more. Raises: TooMany."""
        if self._open[user_id] >= self._most:
            raise TooMany(f"you follow {self._most} things already: leave one of them first", _AGAIN_S)
        self._open[user_id] += 1
        try:
            yield
        finally:
            self._open[user_id] -= 1
            if not self._open[user_id]:
                del self._open[user_id]


def stream(lines: AsyncIterator[bytes], during: AbstractContextManager[None] | None = None) -> Response:
    """A 200 that goes on for as long as there are lines. Source: spec rest-api.md §1.3 (mid-stream), §1.4.

    Args:
        lines: one JSON object each.
        during: of one that follows something: entered before the answer begins, and so it may refuse it.
    """
    return _Stream(lines, during)


def event_stream(events: AsyncIterator[bytes], during: AbstractContextManager[None]) -> Response:
    """The same of server-sent events, which browsers read; an error ends it, and the browser asks again."""
    return _Stream(events, during, "text/event-stream")


class _Stream(StreamingResponse):
    def __init__(
        self,
        lines: AsyncIterator[bytes],
        during: AbstractContextManager[None] | None,
        media_type: str = "application/json",
    ) -> None:
        self._ends = asyncio.Event()
        if during is not None:
            lines = _until(lines, lambda: self._ends)
        super().__init__(
            _events(lines) if media_type == "text/event-stream" else _guarded(lines),
            media_type=media_type,
            headers={"cache-control": "no-store"},
        )
        self._during = during

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it. What `during` holds is given back also if the client left before the first line."""
        health: Health = scope["app"].state.health
        self._ends = health.ends
        with self._during or nullcontext():
            await super().__call__(scope, receive, send)


async def _until(lines: AsyncIterator[bytes], ends_of: Callable[[], asyncio.Event]) -> AsyncIterator[bytes]:
    """What is followed, until this process ends. Raises: Ends, and then the client asks another process."""
    ends = asyncio.ensure_future(ends_of().wait())
    try:
        while True:
            next_one = asyncio.ensure_future(anext(lines))
            try:
                await asyncio.wait({next_one, ends}, return_when=asyncio.FIRST_COMPLETED)
                if not next_one.done():
                    raise Ends
                yield next_one.result()
            except StopAsyncIteration:
                return
            finally:
                next_one.cancel()
    finally:
        ends.cancel()


async def _guarded(lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The status is sent already: an error can only be the last line."""
    try:
        async for line in lines:
            yield line
    except ApiError as error:  # such as a right that was taken away meanwhile
        yield _last_line(error.code, error.status, error.reason, error.message)
    except Exception as error:  # noqa: BLE001
        log.error("a stream broke off", error=repr(error))
        yield _last_line(14, 503, "Service Unavailable", "the stream broke off: try again")


async def _events(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        async for event in events:
            yield event
    except ApiError as error:
        yield b"event: ended\ndata: " + orjson.dumps({"status": error.status, "message": error.message}) + b"\n\n"


def _last_line(code: int, status: int, reason: str, message: str) -> bytes:
    told: dict[str, object] = {
        "grpcCode": code,
        "httpCode": status,
        "httpStatus": reason,
        "message": message,
        "details": [],
    }
    return orjson.dumps({"error": told}) + b"\n"
