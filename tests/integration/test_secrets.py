"""No secret that a cluster was given stands in Temporal's histories, where whoever may look at them would find it."""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf.message import Message
from sqlalchemy import select
from temporalio.api.common.v1 import Payload

from api.auth.authentication import client_hash
from database.models import AllocationContainer, StorageRemoval, TaskSecret
from tests.integration.test_cleanup import SAVES, gone, until_kept
from tests.kit.platform import ADMIN_PASSWORD, AGENT_TOKEN, Platform
from tests.kit.scripts import config
from tests.kit.storages import s3_section
from workflows.codec import CompressLarge

KEYS = {"access_key": "AKIA7SECRETOFTHESTORE", "secret_key": "wJalr7SecretOfTheStore"}
PULL_PASSWORD, OF_ENVIRONMENT = "pull7secret", "token7OfTheUsersEnvironment"


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, Any]]:
    """A bucket that takes any keys."""
    with s3_section() as section:
        yield section | KEYS


def payloads_in(message: Message) -> Iterator[Payload]:
    """All payloads of a message, however deep."""
    if isinstance(message, Payload):
        yield message
        return
    for _, value in message.ListFields():
        inner: list[Any] = [value]
        if hasattr(value, "values"):  # a map
            inner = list(value.values())
        elif not isinstance(value, (Message, str, bytes)) and hasattr(value, "__iter__"):
            inner = list(value)
        for each in inner:
            if isinstance(each, Message):
                yield from payloads_in(each)


async def histories(cluster: Platform, since: datetime) -> AsyncIterator[tuple[str, bytes]]:
    """Each workflow that began since then, with all that its history says, decoded."""
    codec = CompressLarge()
    query = f'StartTime >= "{since.isoformat()}"'
    async for execution in cluster.temporal.list_workflows(query):
        handle = cluster.temporal.get_workflow_handle(execution.id, run_id=execution.run_id)
        said = b""
        async for event in handle.fetch_history_events():
            decoded = await codec.decode([*payloads_in(event)])
            said += event.SerializeToString() + b"".join(payload.data for payload in decoded)
        yield execution.id, said


async def test_no_secret_is_in_any_payload_of_a_whole_life(cluster: Platform, bucket: dict[str, Any]) -> None:
    since = datetime.now(UTC)
    experiment_id = await cluster.create(
        config(
            {"max_length": 6},
            checkpoint_storage={**bucket, "save_trial_best": 1, "save_trial_latest": 1},
            environment={
                "registry_auth": {"username": "u", "password": PULL_PASSWORD},
                "environment_variables": [f"SERVICE_TOKEN={OF_ENVIRONMENT}"],
            },
        ),
        {"train.py": SAVES},
    )
    assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
    await until_kept(cluster, experiment_id, 3, 6)
    kept = (await cluster.get(f"/api/v1/experiments/{experiment_id}/checkpoints"))["checkpoints"]
    uuids = [c["uuid"] for c in kept if c["state"] == "STATE_COMPLETED"]
    await cluster.post("/api/v1/checkpoints/rm", {"checkpointUuids": uuids[:1], "checkpointGlobs": ["state.json"]})
    await cluster.http.request("DELETE", "/api/v1/checkpoints", json={"checkpointUuids": uuids[1:]})

    def all_done() -> bool:
        with cluster.database.read() as session:
            return session.scalar(select(StorageRemoval.id).where(StorageRemoval.finished_at.is_(None))) is None

    await cluster.until(all_done, what="all files are removed")
    launched: list[str] = []
    with cluster.database.read() as session:
        hashes = list(session.scalars(select(AllocationContainer.token_hash)))
    assert hashes
    await cluster.http.delete(f"/api/v1/experiments/{experiment_id}")
    await cluster.until(lambda: gone(cluster, experiment_id), what="the experiment is gone")
    for kind in ("notebook", "shell"):
        made = await cluster.post(f"/api/v1/{kind}s", {"config": {"resources": {"slots": 10**6}}})
        launched.append(made[kind]["id"])
    with cluster.database.read() as session:
        values = session.scalars(select(TaskSecret.value).where(TaskSecret.task_id.in_(launched)))
        of_tasks = [line for value in values for line in value.splitlines() if not line.startswith("-----")]
    for kind, task_id in zip(("notebook", "shell"), launched, strict=True):
        await cluster.post(f"/api/v1/{kind}s/{task_id}/kill")
        await cluster.temporal.get_workflow_handle(f"task-{task_id}").result()
    with cluster.database.read() as session:
        assert session.scalar(select(TaskSecret.name).where(TaskSecret.task_id.in_(launched))) is None
    session_token = cluster.http.headers["Authorization"].removeprefix("Bearer ")
    secrets = [*KEYS.values(), *of_tasks, PULL_PASSWORD, OF_ENVIRONMENT, AGENT_TOKEN, ADMIN_PASSWORD, session_token, *hashes,
               client_hash(ADMIN_PASSWORD)]  # fmt: skip
    spelled = [form for secret in secrets for form in (secret.encode(), base64.b64encode(secret.encode()))]
    kinds: set[str] = set()
    async for workflow_id, said in histories(cluster, since):
        kinds.add(re.sub(r"-\d.*|-[0-9a-f]{8}-.*", "", workflow_id))
        found = [form.decode() for form in spelled if form in said]
        assert not found, f"{workflow_id} holds {found}"
    assert {"experiment", "trial", "checkpoint-gc", "remove-files", "delete-experiment", "task"} <= kinds
