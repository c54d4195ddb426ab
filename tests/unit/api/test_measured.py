"""How requests are counted that no test of the API can bring about at will."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry
from starlette.types import Message, Receive, Scope, Send

from api.middleware.measured import Requests, note_route


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


async def _sent(message: Message) -> None:
    pass


async def test_request_counts_without_a_duration_when_the_client_left_before_an_answer() -> None:
    registry = CollectorRegistry()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        note_route(scope, "/a")
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await Requests(registry).serve(app, {"type": "http", "method": "GET"}, _nothing, _sent)
    labels = {"method": "GET", "route": "/a"}
    assert registry.get_sample_value("undeterred_http_requests_total", labels | {"status": "none"}) == 1
    assert registry.get_sample_value("undeterred_http_request_duration_seconds_count", labels) is None


async def test_duration_ends_with_the_beginning_of_the_answer_when_that_is_a_stream() -> None:
    registry = CollectorRegistry()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(0.3)
        await send({"type": "http.response.body", "body": b""})

    await Requests(registry).serve(app, {"type": "http", "method": "GET"}, _nothing, _sent)
    labels = {"method": "GET", "route": "unknown"}
    seconds = registry.get_sample_value("undeterred_http_request_duration_seconds_sum", labels)
    assert seconds is not None
    assert seconds < 0.2
