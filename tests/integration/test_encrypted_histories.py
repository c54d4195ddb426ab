"""A cluster with keys leaves nothing of its users in Temporal's histories, and its agents need no keys behind a gateway."""

from __future__ import annotations

import asyncio
import base64
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType

from api.middleware.temporal_ui import CODEC
from api.temporal.transcoding import messages_in
from tests.integration.test_gateway import a_gateway, a_token, joined, only
from tests.kit.platform import Platform, platform
from tests.kit.scripts import TRAIN, config
from workers.temporal_server import find_or_get

SIGN = "a-sign-that-nobody-else-writes"


@pytest.fixture
async def encrypted(temporal_address: str, tmp_path: Path) -> AsyncIterator[Platform]:
    keys = tmp_path / "keys"
    keys.write_text(f"first {base64.b64encode(os.urandom(32)).decode()}\n")
    async with platform(
        temporal_address=temporal_address, database_url=f"sqlite:///{tmp_path}/db", folder=tmp_path, pool="default",
        connection={"temporal_encryption_keys_file": str(keys)},
    ) as running:  # fmt: skip
        yield running


async def check_histories(cluster: Platform) -> int:
    """Nothing in any history is readable; the number of payloads that were looked at."""
    looked_at = 0
    async for each in cluster.temporal.list_workflows():
        history = await cluster.temporal.get_workflow_handle(each.id, run_id=each.run_id).fetch_history()
        for event in history.events:
            assert SIGN.encode() not in event.SerializeToString(), f"{each.id}: {event}"
            if event.HasField("marker_recorded_event_attributes"):
                # what the SDK's core writes there of its own: which activity or patch it was
                event.marker_recorded_event_attributes.details.pop("data", None)
                event.marker_recorded_event_attributes.details.pop("patch-data", None)
            for attributes in messages_in(event, Payload):
                if "type" in attributes.metadata:  # a search attribute
                    continue
                looked_at += 1
                kind = EventType.Name(event.event_type)
                assert attributes.metadata["encoding"] == b"binary/encrypted", f"{each.id}: {kind}: {attributes}"
    return looked_at


async def test_histories_hold_nothing_that_can_be_read_and_keys_rotate_under_a_running_search(
    encrypted: Platform,
) -> None:
    await encrypted.start_agent()
    wanted = config({"max_length": 40}, name=SIGN, hyperparameters={"sleep": 0.05, "note": SIGN}, max_restarts=0)
    experiment_id = await encrypted.create(wanted, {"train.py": TRAIN})
    await encrypted.until_reported(experiment_id)
    keys = Path(encrypted.connection["temporal_encryption_keys_file"])
    keys.write_text(f"second {base64.b64encode(os.urandom(32)).decode()}\n{keys.read_text()}")
    assert (await encrypted.finish(experiment_id))["state"] == "STATE_COMPLETED"
    failing = await encrypted.create(
        config({"max_length": 1}, name=SIGN, max_restarts=0), {"train.py": f"raise SystemExit('{SIGN}')"}
    )
    assert (await encrypted.finish(failing))["state"] == "STATE_ERROR"
    assert await check_histories(encrypted) > 50
    history = await encrypted.temporal.get_workflow_handle(f"experiment-{failing}").fetch_history()
    assert next(messages_in(history.events[0], Payload)).metadata["undeterred-key"] == b"second"
    shown = await shown_by_temporal(encrypted, f"experiment-{failing}")
    assert SIGN not in shown
    token = encrypted.http.headers["authorization"]
    codec = f"{encrypted.url}{CODEC}"
    shown = await shown_by_temporal(
        encrypted, f"experiment-{failing}", "--codec-endpoint", codec, "--codec-auth", token
    )
    assert SIGN in shown, "Temporal's own program shows it to an administrator"


async def shown_by_temporal(cluster: Platform, workflow_id: str, *options: str) -> str:
    """The data of all payloads of a history, as `temporal workflow show` prints it."""
    address = cluster.temporal.service_client.config.target_host
    line = ["workflow", "show", "--workflow-id", workflow_id, "--output", "json", "--address", address]
    shown = await asyncio.create_subprocess_exec(find_or_get(print), *line, *options, stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(shown.communicate(), 30)
    assert shown.returncode == 0
    return "".join(base64.b64decode(data).decode(errors="replace") for data in re.findall(rb'"data": "([^"]+)"', out))


async def test_agent_behind_a_gateway_works_without_keys(encrypted: Platform) -> None:
    token = await a_token(encrypted)
    async with a_gateway(encrypted), joined(encrypted, "far", token):
        await only(encrypted, "far")
        wanted = config({"max_length": 2}, name=SIGN, hyperparameters={"note": SIGN}, max_restarts=0)
        experiment_id = await encrypted.create(wanted, {"train.py": TRAIN})
        assert (await encrypted.finish(experiment_id))["state"] == "STATE_COMPLETED"
    assert await check_histories(encrypted) > 20
