"""An agent that joined answers what it likes: its activity fails, and everything else goes on, also on replay."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from typing import Any

import pytest
from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.converter import PayloadCodec
from temporalio.exceptions import ApplicationError
from temporalio.worker import Replayer, Worker

from tests.integration.test_gateway import a_gateway, a_token, options
from tests.kit.platform import Platform
from tests.kit.scripts import TRAIN, config
from workers import enrolled_agent
from workers.orchestrator import WORKFLOWS
from workflows import names
from workflows.codec import CompressLarge
from workflows.converter import CONVERTER, RUNNER


def a_bomb(size: int) -> bytes:
    """Compressed bytes that stand for a payload of this size."""
    deflater = zlib.compressobj(9)
    head = Payload(metadata={"encoding": b"json/plain"}, data=b"x").SerializeToString()[:-3]
    piece = bytes(2**20)
    return deflater.compress(head) + b"".join(deflater.compress(piece) for _ in range(size >> 20)) + deflater.flush()


BOMB = Payload(metadata={"encoding": b"binary/zlib"}, data=a_bomb(256 * 2**20))
ANSWERS = {
    "bomb": BOMB,
    "no json": Payload(metadata={"encoding": b"json/plain"}, data=b'{"result":'),
}


class Sends(PayloadCodec):
    """Sends one payload in place of all others."""

    def __init__(self, payload: Payload) -> None:
        self._payload = payload

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._payload for _ in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return await CompressLarge().decode(payloads)


@activity.defn(name="presence")
async def present(order: Any) -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(0.2)


@activity.defn(name="run_container")
async def answered(order: Any) -> str:
    return "anything"


@activity.defn(name="run_container")
async def failed(order: Any) -> str:
    raise ApplicationError("no", "details", type="Made up", non_retryable=True)


@pytest.mark.parametrize(("kind", "fails"), [*((kind, False) for kind in ANSWERS), ("bomb", True)])
async def test_trial_ends_with_the_reason_when_its_agent_answers_nonsense(
    cluster: Platform, kind: str, fails: bool
) -> None:
    token = await a_token(cluster)
    async with a_gateway(cluster):
        settings = await asyncio.to_thread(enrolled_agent.settings_of, options(cluster, "hostile", token))
        credential = settings.agent_token.get_secret_value()
        client = await Client.connect(
            f"127.0.0.1:{cluster.gateway_port}",
            data_converter=CONVERTER.__class__(
                payload_converter_class=CONVERTER.payload_converter_class, payload_codec=Sends(ANSWERS[kind])
            ),
            rpc_metadata={"authorization": f"Bearer {credential}"},
        )
        queue = names.agent_queue("hostile")
        async with Worker(client, task_queue=queue, activities=[present, failed if fails else answered]):

            async def is_there() -> bool:
                return (await cluster.get("/api/v1/agents/hostile"))["agent"]["enabled"]

            headers = {"Authorization": f"Bearer {credential}"}
            report: dict[str, object] = {"devices": [{}, {}], "pool": cluster.pool}
            for path in ("hello", "present"):
                url = f"/api/v1/undeterred/agents/hostile/{path}"
                assert (await cluster.http.post(url, json=report, headers=headers)).status_code == 200
            await cluster.until(is_there, what="the hostile agent is connected")
            for each in list(cluster.agents):
                await cluster.post(f"/api/v1/agents/{each}/disable")
            experiment_id = await cluster.create(config({"max_length": 1}, max_restarts=0), {"train.py": TRAIN})
            ended = await cluster.finish(experiment_id)
            assert ended["state"] == "STATE_ERROR"
    [trial] = await cluster.trials(experiment_id)
    history = await cluster.temporal.get_workflow_handle(f"trial-{trial['id']}").fetch_history()
    assert not [event for event in history.events if event.HasField("workflow_task_failed_event_attributes")]
    why = await cluster.get(f"/api/v1/undeterred/trials/{trial['id']}/why")
    if not fails:
        assert "the answer of run_container from agent-hostile" in str(why), why
    replayer = Replayer(workflows=WORKFLOWS, workflow_runner=RUNNER, data_converter=CONVERTER)
    await replayer.replay_workflow(history)
    for each in list(cluster.agents):
        await cluster.post(f"/api/v1/agents/{each}/enable")
    well = await cluster.create(config({"max_length": 1}), {"train.py": TRAIN})
    assert (await cluster.finish(well))["state"] == "STATE_COMPLETED"
