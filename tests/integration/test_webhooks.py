"""Webhooks on a running platform: an experiment ends, and a receiver that fails at first is told of it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
from collections.abc import AsyncGenerator

import orjson

from tests.kit.platform import Platform
from tests.kit.scripts import TRAIN, config


@contextlib.asynccontextmanager
async def receiver(statuses: list[int]) -> AsyncGenerator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    """A server that answers with these statuses in turn, the last one for ever; what it got."""
    got: list[tuple[dict[str, str], bytes]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        status = statuses[min(len(got), len(statuses) - 1)]
        got.append((headers, await reader.readexactly(int(headers["content-length"]))))
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook", got
    finally:
        server.close()


def wanted(url: str) -> dict[str, object]:
    trigger = {"triggerType": "TRIGGER_TYPE_EXPERIMENT_STATE_CHANGE", "condition": {"state": "COMPLETED"}}
    return {"url": url, "triggers": [trigger]}


async def test_receiver_is_told_of_the_end_when_it_failed_at_first(cluster: Platform) -> None:
    async with receiver([500, 503, 200]) as (url, got):
        hook = (await cluster.post("/api/v1/webhooks", wanted(url)))["webhook"]
        experiment_id = await cluster.create(config({"max_length": 1}), {"train.py": TRAIN})
        assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
        path = f"/api/v1/undeterred/webhooks/{hook['id']}/deliveries"

        async def is_delivered() -> bool:
            return [d["state"] for d in (await cluster.get(path))["deliveries"]] == ["DELIVERED"]

        await cluster.until(is_delivered, what="the webhook was told")
    [delivery] = (await cluster.get(path))["deliveries"]
    assert (delivery["attempts"], delivery["status"], delivery["error"]) == (3, 200, "")
    assert len(got) == 3
    assert len({body for _, body in got}) == 1, "each try bears the same id"
    headers, body = got[-1]
    signed = f"{headers['x-determined-ai-signature-timestamp']},".encode() + body
    assert headers["x-determined-ai-signature"] == hmac.new(hook["secret"].encode(), signed, hashlib.sha256).hexdigest()
    event = orjson.loads(body)
    assert (event["event_type"], event["event_id"]) == ("EXPERIMENT_STATE_CHANGE", delivery["id"])
    assert event["event_data"]["experiment"]["id"] == experiment_id


async def test_delivery_is_given_up_with_its_reason_when_every_try_fails(cluster: Platform) -> None:
    async with receiver([500]) as (url, got):
        hook = (await cluster.post("/api/v1/webhooks", wanted(url)))["webhook"]
        answer = await cluster.post(f"/api/v1/webhooks/{hook['id']}/test")
        assert answer == {"completed": False, "error": "it answered with status 500"}
        path = f"/api/v1/undeterred/webhooks/{hook['id']}/deliveries"

        async def is_over() -> bool:
            return [d["state"] for d in (await cluster.get(path))["deliveries"]] == ["FAILED"]

        await cluster.until(is_over, what="the delivery was given up")
    assert len(got) == 3, "one try, and one after each pause"


async def test_test_is_completed_when_the_receiver_answers(cluster: Platform) -> None:
    async with receiver([200]) as (url, got):
        hook = (await cluster.post("/api/v1/webhooks", wanted(url)))["webhook"]
        assert await cluster.post(f"/api/v1/webhooks/{hook['id']}/test") == {"completed": True, "error": ""}
    assert orjson.loads(got[0][1])["event_type"] == "TEST"
