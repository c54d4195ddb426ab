"""What is created once although its request arrives twice, by the header Idempotency-Key."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import Any

import httpx
import pytest
import yaml
from sqlalchemy import func, select, update

from database.models import AnsweredRequest
from database.types import utc_now
from tests.integration.api.served import Caller, Served
from tests.integration.api.test_webhooks import state_change


async def creations(api: Served, user: Caller) -> dict[str, tuple[str, dict[str, Any]]]:
    """Name -> path and body of each creation that clients repeat."""
    run = await api.trial(user)
    checkpoint = str(uuid.uuid4())
    await run.container.post("/api/v1/checkpoints", {"uuid": checkpoint, "metadata": {"steps_completed": 1}})
    name = uuid.uuid4().hex
    workspace = (await user.post("/api/v1/workspaces", {"name": f"of {name}"}))["workspace"]["id"]
    model = (await user.post("/api/v1/models", {"name": f"of {name}", "workspaceId": workspace}))["model"]["id"]
    project = await user.post(f"/api/v1/workspaces/{workspace}/projects", {"name": name})
    return {
        "workspace": ("/api/v1/workspaces", {"name": name}),
        "project": (f"/api/v1/workspaces/{workspace}/projects", {"name": f"p {name}"}),
        "note": (f"/api/v1/projects/{project['project']['id']}/notes", {"name": "n", "contents": "c"}),
        "model": ("/api/v1/models", {"name": name, "workspaceId": workspace}),
        "version": (f"/api/v1/models/{model}/versions", {"checkpointUuid": checkpoint}),
        "user": ("/api/v1/users", {"user": {"username": name[:20]}, "password": "a password", "isHashed": False}),
        "group": ("/api/v1/groups", {"name": name}),
        "template": (f"/api/v1/templates/{name}", {"config": {"description": "d"}}),
        "webhook": (
            "/api/v1/webhooks",
            {
                "url": "http://127.0.0.1:1/",
                "webhookType": "WEBHOOK_TYPE_DEFAULT",
                "triggers": [state_change()],
                "workspaceId": workspace,
            },
        ),
        "pool": ("/api/v1/undeterred/resource-pools", {"name": f"p{name[:20]}"}),
        "command": ("/api/v1/commands", {"config": {"entrypoint": ["true"], "resources": {"slots": 0}}}),
        "notebook": ("/api/v1/notebooks", {"config": {"resources": {"slots": 0}}}),
        "tensorboard": ("/api/v1/tensorboards", {"experimentIds": [run.experiment_id]}),
        "experiment": ("/api/v1/experiments", {"config": yaml.safe_dump(api.config())}),
        "experiments": (
            "/api/v1/undeterred/experiments",
            {"experiments": [{"config": yaml.safe_dump(api.config())}] * 3},
        ),
        "fork": (f"/api/v1/experiments/{await api.created(user)}/fork", {"config": yaml.safe_dump(api.config())}),
        "trial": ("/api/v1/trials", {"experimentId": await unmanaged(api, user), "hparams": {}, "unmanaged": True}),
    }


async def unmanaged(api: Served, user: Caller) -> int:
    """A new unmanaged experiment."""
    made = await user.post("/api/v1/experiments", {"config": yaml.safe_dump(api.config()), "unmanaged": True})
    return made["experiment"]["id"]


def told(answer: httpx.Response) -> str:
    """What an answer says of what was created, without what moves meanwhile, such as the time that it has run."""
    body = answer.json()
    return next((str(body[kind]["id"]) for kind in ("experiment", "command", "notebook", "tensorboard", "trial")
                 if kind in body), answer.text)  # fmt: skip


def keyed(key: str) -> dict[str, str]:
    return {"Idempotency-Key": key}


KINDS = (
    "workspace", "project", "note", "model", "version", "user", "group", "template", "webhook", "pool", "command", "notebook",
    "tensorboard", "experiment", "experiments", "fork", "trial",
)  # fmt: skip
#: Of these there may be more than one that says the same.
MANY = (
    "note",
    "version",
    "webhook",
    "command",
    "notebook",
    "tensorboard",
    "experiment",
    "experiments",
    "fork",
    "trial",
)


@pytest.mark.parametrize("kind", KINDS)
async def test_request_that_comes_twice_creates_once_and_is_answered_alike(api: Served, kind: str) -> None:
    user = api.user(is_admin=True)
    path, body = (await creations(api, user))[kind]
    key = uuid.uuid4().hex
    # at once, as when a proxy sends it again; and later, as when its answer was lost
    answers = await asyncio.gather(*(user.ask("POST", path, body, headers=keyed(key)) for _ in range(3)))
    answers.append(await user.ask("POST", path, body, headers=keyed(key)))
    assert [answer.status_code for answer in answers] == [200] * 4, [answer.text for answer in answers]
    assert len({told(answer) for answer in answers}) == 1
    other = await user.ask("POST", path, body | {"more": 1}, headers=keyed(key))
    assert other.status_code == 409, "another request came with the key"
    again = await user.ask("POST", path, body, headers=keyed(uuid.uuid4().hex))
    if kind in MANY:
        assert again.status_code == 200
        if kind in ("note", "version"):
            count = len(again.json()["notes"]) if kind == "note" else again.json()["modelVersion"]["version"]
            assert count == 2, "it was created more often than asked for"
        else:
            assert told(again) != told(answers[0])
    else:
        assert again.status_code == 409, "under another key it is another request"


async def test_key_is_free_again_when_its_request_was_refused(api: Served) -> None:
    user = api.user(is_admin=True)
    key = uuid.uuid4().hex
    taken = {"name": f"taken {key}"}
    await user.post("/api/v1/workspaces", taken)
    assert (await user.ask("POST", "/api/v1/workspaces", taken, headers=keyed(key))).status_code == 409
    free = {"name": f"free {key}"}
    made = await user.ask("POST", "/api/v1/workspaces", free, headers=keyed(key))
    assert made.json()["workspace"]["name"] == f"free {key}"


async def test_key_opens_nothing_of_another_request_or_user(api: Served) -> None:
    user, other = api.user(is_admin=True), api.user(is_admin=True)
    key = uuid.uuid4().hex
    path, body = "/api/v1/workspaces", {"name": f"first {key}"}
    first = (await user.ask("POST", path, body, headers=keyed(key))).json()["workspace"]
    refused = await user.ask("POST", "/api/v1/models", {"name": f"m {key}"}, headers=keyed(key))
    assert refused.status_code == 409
    assert "Idempotency-Key: another request came with it before" in refused.json()["message"]
    changed = await user.ask("POST", path, {"name": f"second {key}"}, headers=keyed(key))
    assert changed.status_code == 409
    theirs = (await other.ask("POST", path, {"name": f"theirs {key}"}, headers=keyed(key))).json()["workspace"]
    assert theirs["id"] != first["id"]
    for length in (0, 101):
        long = await user.ask("POST", path, {"name": "x"}, headers=keyed("k" * length))
        assert long.status_code == 400
        assert long.json()["message"] == f"Idempotency-Key: {length} characters: expected 1 to 100"


async def test_answers_are_kept_for_a_day(api: Served) -> None:
    user = api.user(is_admin=True)
    old, young = uuid.uuid4().hex, uuid.uuid4().hex
    for key in (old, young):
        await user.ask("POST", "/api/v1/workspaces", {"name": key}, headers=keyed(key))
    with api.database.write() as session:
        row = AnsweredRequest.key == f"{user.user_id}:{old}"
        session.execute(update(AnsweredRequest).where(row).values(at=utc_now() - timedelta(days=1, seconds=1)))
    await user.ask("POST", "/api/v1/workspaces", {"name": f"third {old}"}, headers=keyed(uuid.uuid4().hex))
    with api.database.read() as session:
        kept = session.scalar(
            select(func.count()).where(AnsweredRequest.key.in_([f"{user.user_id}:{key}" for key in (old, young)]))
        )
    assert kept == 1
