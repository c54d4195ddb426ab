"""Hosts become agents by tokens, and reach through the gateway what is theirs and nothing else."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity
from temporalio.api.workflowservice.v1 import (
    PollActivityTaskQueueRequest,
    RespondActivityTaskCompletedRequest,
    StartWorkflowExecutionRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.enrollment import CantJoin
from tests.kit.platform import Platform
from tests.kit.scripts import TRAIN, config
from workers import agent, enrolled_agent, gateway
from workers.agent_api import Refused
from workers.settings import GatewaySettings
from workflows import names
from workflows.converter import CONVERTER


@contextlib.asynccontextmanager
async def a_gateway(cluster: Platform) -> AsyncIterator[None]:
    """The platform's gateway, for as long as the block."""
    stop = asyncio.Event()
    settings = GatewaySettings(
        database_url=cluster.database.url,
        temporal_address=cluster.temporal.service_client.config.target_host,
        port=cluster.gateway_port,
        **cluster.connection,
    )
    serving = asyncio.create_task(gateway.main(settings, stop))
    try:
        yield
    finally:
        stop.set()
        await serving


async def a_token(cluster: Platform, **wanted: Any) -> str:
    """A join token."""
    return (await cluster.post("/api/v1/undeterred/agent-join-tokens", wanted))["token"]


def options(cluster: Platform, name: str, token: str = "", **given: Any) -> argparse.Namespace:
    """Of `det agent run`."""
    usual: dict[str, Any] = {"slot_type": "cpu", "slots": 2, "label": [], "launcher": "process", "address": None,
                             "folder": str(cluster.folder / name), "memory_mib": None, "trial_python": None, "trust": None}  # fmt: skip
    return argparse.Namespace(master=cluster.url, name=name, join_token=token, **(usual | given))


@contextlib.asynccontextmanager
async def joined(cluster: Platform, name: str, token: str = "", **given: Any) -> AsyncIterator[str]:
    """An agent that joined, running for as long as the block; its credential."""
    settings = await asyncio.to_thread(enrolled_agent.settings_of, options(cluster, name, token, **given))
    stop = asyncio.Event()
    running = asyncio.create_task(agent.main(settings.model_copy(update={"heartbeat_s": 2.0}), stop))

    async def is_there() -> bool:
        if running.done():
            running.result()
        return (await shown(cluster, name))["enabled"]

    try:
        await cluster.until(is_there, what=f"{name} is connected")
        yield settings.agent_token.get_secret_value()
    finally:
        stop.set()
        await running


async def shown(cluster: Platform, name: str) -> dict[str, Any]:
    """An agent as clients see it."""
    return (await cluster.get(f"/api/v1/agents/{name}"))["agent"]


async def only(cluster: Platform, name: str) -> None:
    """Take all other agents out of service."""
    for each in (await cluster.get("/api/v1/agents"))["agents"]:
        if each["id"] != name:
            await cluster.post(f"/api/v1/agents/{each['id']}/disable")


async def through(cluster: Platform, credential: str) -> Client:
    """A client of Temporal that goes through the gateway."""
    return await Client.connect(
        f"127.0.0.1:{cluster.gateway_port}",
        data_converter=CONVERTER,
        rpc_metadata={"authorization": f"Bearer {credential}"},
    )


async def test_host_joins_and_trains_through_the_gateway_also_when_that_is_another_one_meanwhile(
    cluster: Platform,
) -> None:
    token = await a_token(cluster, uses=1)
    async with contextlib.AsyncExitStack() as first:
        await first.enter_async_context(a_gateway(cluster))
        async with joined(cluster, "far", token, label=["rack=7", "zone=b"]):
            found = await shown(cluster, "far")
            assert (found["label"], found["resourcePools"], len(found["slots"])) == (
                "rack=7, zone=b", [cluster.pool], 2)  # fmt: skip
            await only(cluster, "far")
            experiment_id = await cluster.create(
                config({"max_length": 60}, hyperparameters={"sleep": 0.05}), {"train.py": TRAIN}
            )
            trial_id = await cluster.until_reported(experiment_id)
            await first.aclose()
            await asyncio.sleep(1)
            async with a_gateway(cluster):
                assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
            [trial] = await cluster.trials(experiment_id)
            assert trial["restarts"] == 0
            steps = [line for line in await cluster.logs(trial_id) if line.startswith("step ")]
            assert steps == [f"step {number}" for number in range(1, 61)], "the gateway's end cost no step"


async def test_agent_goes_on_with_its_trial_without_a_token_when_it_is_started_again(cluster: Platform) -> None:
    token = await a_token(cluster)
    async with a_gateway(cluster):
        async with joined(cluster, "again", token):
            await only(cluster, "again")
            experiment_id = await cluster.create(
                config({"max_length": 60}, hyperparameters={"sleep": 0.05}), {"train.py": TRAIN}
            )
            trial_id = await cluster.until_reported(experiment_id)
        async with joined(cluster, "again"):
            assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
        steps = [line for line in await cluster.logs(trial_id) if line.startswith("step ")]
        assert len(steps) == 60


async def test_agent_reaches_only_what_is_its_own(cluster: Platform) -> None:
    token = await a_token(cluster)
    experiment_id = await cluster.create(
        config({"max_length": 100}, hyperparameters={"sleep": 0.05}), {"train.py": TRAIN}
    )
    trial_id = await cluster.until_reported(experiment_id)  # on the platform's own agent
    [own] = cluster.agents
    async with a_gateway(cluster), joined(cluster, "nosy", token) as credential:
        client = await through(cluster, credential)
        service = client.workflow_service

        async def refused(call: Any, status: RPCStatusCode) -> str:
            with pytest.raises(RPCError) as error:
                await call
            assert error.value.status is status
            return str(error.value)

        poll = PollActivityTaskQueueRequest(namespace="default")
        for queue in (names.agent_queue(own), names.ORCHESTRATOR_QUEUE, names.storage_queue("other")):
            poll.task_queue.name = queue
            text = await refused(service.poll_activity_task_queue(poll), RPCStatusCode.PERMISSION_DENIED)
            assert queue in text
        poll.namespace, poll.task_queue.name = "other", names.agent_queue("nosy")
        await refused(service.poll_activity_task_queue(poll), RPCStatusCode.PERMISSION_DENIED)
        forged = RespondActivityTaskCompletedRequest(namespace="default", task_token=b"x" * 64)
        await refused(service.respond_activity_task_completed(forged), RPCStatusCode.PERMISSION_DENIED)
        start = StartWorkflowExecutionRequest(namespace="default", workflow_id="mine")
        await refused(service.start_workflow_execution(start), RPCStatusCode.UNIMPLEMENTED)
        for strange in ("", "agent-" + "0" * 64, cluster.http.headers["Authorization"].removeprefix("Bearer ")):
            with pytest.raises(RuntimeError, match=r"[Pp]ermission|[Uu]nauthenticated|credential|joined"):
                await through(cluster, strange)

        headers = {"Authorization": f"Bearer {credential}"}
        allocation = f"{(await cluster.trials(experiment_id))[0]['taskId']}.1"
        prefix = "/api/v1/undeterred"
        log = {"logs": [{"taskId": "", "allocationId": allocation, "log": "from elsewhere"}]}
        report = {"devices": [{}], "pool": ""}
        for path, body, code in (
            (f"{prefix}/allocations/{allocation}/containers/0/launch", None, 404),
            (f"{prefix}/allocations/{allocation}/running", None, 404),
            (f"{prefix}/agents/{own}/reconcile", {"allocations": []}, 404),
            (f"{prefix}/agents/{own}/hello", report, 404),
            (f"{prefix}/agents/{own}/present", report, 404),
            (f"{prefix}/agents/nosy/hello", report | {"pool": "other"}, 403),
            ("/api/v1/task/logs", log, 404),
            ("/api/v1/experiments", {}, 403),
        ):
            answer = await cluster.http.post(path, json=body, headers=headers)
            assert answer.status_code == code, (path, answer.text)
    assert "from elsewhere" not in await cluster.logs(trial_id)
    await cluster.command(experiment_id, "kill")


async def test_task_that_was_handed_to_one_agent_is_not_answered_by_another(cluster: Platform) -> None:
    token = await a_token(cluster)

    @activity.defn(name="presence")
    async def presence(order: Any) -> None:
        await asyncio.Event().wait()

    async with a_gateway(cluster), joined(cluster, "other", token) as credential:
        settings = await asyncio.to_thread(enrolled_agent.settings_of, options(cluster, "mine", token))
        mine = await through(cluster, settings.agent_token.get_secret_value())
        poll = PollActivityTaskQueueRequest(namespace="default", identity="test")
        poll.task_queue.name = names.agent_queue("mine")
        task = await mine.workflow_service.poll_activity_task_queue(poll, timeout=timedelta(seconds=20))
        assert task.activity_type.name == "presence"
        told = RespondActivityTaskCompletedRequest(namespace="default", task_token=task.task_token)
        thief = await through(cluster, credential)
        with pytest.raises(RPCError, match="not handed to agent 'other'"):
            await thief.workflow_service.respond_activity_task_completed(told)
        await mine.workflow_service.respond_activity_task_completed(told)


async def test_agent_that_was_removed_ends_and_its_trial_goes_on_elsewhere(cluster: Platform) -> None:
    token = await a_token(cluster)
    async with a_gateway(cluster):
        settings = await asyncio.to_thread(enrolled_agent.settings_of, options(cluster, "gone", token))
        running = asyncio.create_task(agent.main(settings, asyncio.Event()))
        await cluster.until(lambda: is_enabled(cluster, "gone"), what="it is connected")
        await only(cluster, "gone")
        experiment_id = await cluster.create(
            config({"max_length": 100}, hyperparameters={"sleep": 0.05}), {"train.py": TRAIN}
        )
        await cluster.until_reported(experiment_id)
        answer = await cluster.http.delete("/api/v1/undeterred/agents/gone")
        assert (answer.status_code, "--force" in answer.text) == (400, True)
        answer = await cluster.http.delete("/api/v1/undeterred/agents/gone", params={"force": "true"})
        assert answer.status_code == 200, answer.text
        with pytest.raises(Refused, match="was removed"):
            await asyncio.wait_for(running, 60)
        with pytest.raises(CantJoin, match=r"no agent of this cluster has this credential.*agent\.json"):
            await asyncio.to_thread(enrolled_agent.settings_of, options(cluster, "gone"))
    assert "gone" not in [each["id"] for each in (await cluster.get("/api/v1/agents"))["agents"]]
    await cluster.post(f"/api/v1/agents/{next(iter(cluster.agents))}/enable")
    assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
    [trial] = await cluster.trials(experiment_id)
    assert trial["restarts"] == 0


async def is_enabled(cluster: Platform, name: str) -> bool:
    return (await shown(cluster, name))["enabled"]


async def test_join_says_what_is_wrong_with_token_or_name(cluster: Platform, tmp_path: Path) -> None:
    once, rack = await a_token(cluster, uses=1), await a_token(cluster)
    soon = await a_token(cluster, lifespan="1s")

    def attempt(name: str, token: str, folder: str = "") -> str:
        try:
            enrolled_agent.settings_of(
                options(cluster, name, token, folder=str(tmp_path / (folder or secrets.token_hex(4))))
            )
        except CantJoin as error:
            return str(error)
        return ""

    async def tried(*words: str) -> str:
        return await asyncio.to_thread(attempt, *words)

    assert await tried("a", once) == ""
    assert "have joined by this token" in await tried("b", once)
    assert "agent 'a' is there already" in await tried("a", rack)
    assert "not valid" in await tried("b", "made-up")
    assert "has not joined yet" in await tried("b", "")
    assert "agentId" in await tried("spaces are not allowed", rack)
    assert await tried("b", rack, "mine") == ""
    assert "is of agent 'b'" in await tried("c", rack, "mine")
    [spent] = [each for each in (await cluster.get("/api/v1/undeterred/agent-join-tokens"))["tokens"]
               if each["usesLeft"] == 0]  # fmt: skip
    answer = await cluster.http.delete(f"/api/v1/undeterred/agent-join-tokens/{spent['id']}")
    assert answer.status_code == 200
    assert "revoked" in await tried("d", once)
    await asyncio.sleep(1)
    assert "expired at" in await tried("d", soon)
    wrong = await cluster.http.post("/api/v1/undeterred/agent-join-tokens", json={"pool": "nowhere"})
    assert (wrong.status_code, "there is: " in wrong.text) == (404, True)


async def test_join_asked_for_twice_is_one_when_its_answer_was_lost(cluster: Platform) -> None:
    token = await a_token(cluster, uses=1)
    body = {"token": token, "agentId": "twice", "credential": "agent-" + "5" * 64}
    first = await cluster.post("/api/v1/undeterred/agents/join", body)
    assert await cluster.post("/api/v1/undeterred/agents/join", body) == first
    other = await cluster.http.post("/api/v1/undeterred/agents/join", json=body | {"credential": "agent-" + "6" * 64})
    assert other.status_code == 409
