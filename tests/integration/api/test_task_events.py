"""The events of a notebook, shell or TensorBoard, that clients up to 0.21 wait for before they open it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.integration.api.served import Caller, Served
from tests.integration.api.test_interactive import container_of, end, launched, order_of

KINDS = [
    "scheduled_event", "assigned_event", "resources_started_event", "service_ready_event", "terminate_request_event",
    "exited_event", "log_event",
]  # fmt: skip
KEYS = {"id", "parent_id", "seq", "time", "description", "is_ready", "container_id", "level", *KINDS}


def address(api: Served, word: str, task_id: str, query: str = "") -> str:
    return f"{str(api.http.base_url).replace('http', 'ws')}/{word}/{task_id}/events{query}".replace(
        "//" + word, "/" + word
    )


def following(api: Served, user: Caller, word: str, task_id: str, query: str = "", **more: Any) -> connect:
    headers = user.headers | more.pop("headers", {})
    return connect(address(api, word, task_id, query), additional_headers=headers, **more)


def said(event: dict[str, Any]) -> tuple[str, Any]:
    """Which event it is, and what it says."""
    assert set(event) == KEYS
    [found] = [(kind, event[kind]) for kind in KINDS if event[kind] is not None]
    return found


async def until(socket: ClientConnection, kind: str) -> list[tuple[str, Any]]:
    """What comes up to an event."""
    found: list[tuple[str, Any]] = []
    while not found or found[-1][0] != kind:
        found.append(said(json.loads(await asyncio.wait_for(socket.recv(), 10))))
    return found


@pytest.mark.parametrize(
    ("kind", "word"), [("notebook", "notebooks"), ("shell", "shells"), ("tensorboard", "tensorboard")]
)
async def test_a_client_follows_it_from_the_queue_to_its_end(api: Served, kind: str, word: str) -> None:
    user = api.user()
    task_id = (await launched(api, user, kind))[kind]["id"]
    async with following(api, user, word, task_id) as socket:
        assert (await until(socket, "log_event"))[0] == ("scheduled_event", f"{task_id}.1")
        container = container_of(api, await order_of(api, task_id))
        assert (await until(socket, "assigned_event"))[-1] == ("assigned_event", {})
        await container.post(f"/api/v1/allocations/{task_id}.1/ready")
        assert (await until(socket, "service_ready_event"))[-1] == ("service_ready_event", True)
        await user.post(f"/api/v1/{kind}s/{task_id}/kill")
        await until(socket, "terminate_request_event")
        await end(api, task_id)
        assert (await until(socket, "exited_event"))[-1] == ("exited_event", "exited with 0")
        with pytest.raises(ConnectionClosed):
            await socket.recv()
    listed = await user.get(f"/{word}/{task_id}/events")
    assert [event["seq"] for event in listed] == list(range(len(listed)))
    assert said(listed[-1]) == ("exited_event", "exited with 0")
    async with following(api, user, word, task_id, "?tail=1") as socket:
        assert said(json.loads(await socket.recv())) == ("exited_event", "exited with 0")
    async with following(api, user, word, task_id, "?follow=false") as socket:
        assert len([message async for message in socket]) == len(listed)


async def test_who_may_not_see_it_is_refused_before_anything_is_said(api: Served) -> None:
    owner = api.user()
    task_id = (await launched(api, owner, "notebook"))["notebook"]["id"]
    refusals = [
        (api.nobody, "notebooks", task_id, {}, 401),
        (owner, "shells", task_id, {}, 404),
        (owner, "notebooks", "none", {}, 404),
        (api.agent, "notebooks", task_id, {}, 403),
        (owner, "notebooks", task_id, {"origin": "https://elsewhere.example"}, 403),
    ]
    for caller, word, which, more, status in refusals:
        with pytest.raises(InvalidStatus) as refused:
            await following(api, caller, word, which, **more).__aenter__()
        assert refused.value.response.status_code == status, (caller, word)
    await owner.refused(404, "GET", f"/shells/{task_id}/events")
