"""Pools come and go, and experiments move between them, on a running platform."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from unittest.mock import AsyncMock

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHandle
from temporalio.common import RawValue
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker

from api.errors import Unavailable
from api.settings import TemporalSettings
from api.temporal.commands import Commands
from api.temporal.connection import Connection
from tests.integration.test_scheduling import job_of, one_slot, steps_of, until_waits
from tests.kit.counting import counted
from tests.kit.platform import Platform
from tests.kit.scripts import HOLDS, TRAIN, config, holding
from workflows import names
from workflows.messages import AgentSeen, AllocationNotice, AllocationNotices, SlotGrants, SlotRequests, Timing
from workflows.resource_pool import ResourcePool
from workflows.scheduling.model import AgentSlots, Request
from workflows.updates import Updates

OURS = "/api/v1/undeterred/resource-pools"


async def new_pool(cluster: Platform, name: str, **settings: Any) -> str:
    """Make a pool; returns its name."""
    await cluster.post(OURS, {"name": name, "settings": settings})
    return name


async def workflow_of(cluster: Platform, pool: str) -> WorkflowHandle[Any, Any]:
    """The workflow of a pool that was just made, once it is there."""
    handle = cluster.temporal.get_workflow_handle(names.pool_workflow(pool))

    async def is_there() -> bool:
        try:
            await handle.describe()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return False
        return True

    await cluster.until(is_there, what="the pool's workflow has begun")
    return handle


async def start_without_slots(cluster: Platform, length: int, sleep: float = 0.0) -> int:
    """An experiment without slots that names no pool."""
    wanted = config({"max_length": length}, hyperparameters={"sleep": sleep},
                    resources={"slots_per_trial": 0, "resource_pool": ""})  # fmt: skip
    return await cluster.create(wanted, {"train.py": TRAIN})


async def test_pool_takes_what_needs_no_slots_and_goes_when_it_is_empty_and_comes_back(cluster: Platform) -> None:
    name = await new_pool(cluster, f"{cluster.pool}-aux", max_aux_containers_per_agent=1)
    agent_id = await cluster.start_agent("aux", slots=1, pool=name)
    assert (await cluster.http.patch(f"{OURS}/{name}", json={"defaultAuxPool": True})).status_code == 200
    first = await start_without_slots(cluster, 200, 0.05)
    await cluster.until_reported(first)
    second = await start_without_slots(cluster, 2)
    await until_waits(cluster, second, "has as many as it takes: `max_aux_containers_per_agent` is 1")
    slotted = await cluster.create(config(resources={"resource_pool": name}), {"train.py": TRAIN})
    assert (await cluster.finish(slotted))["resourcePool"] == name, "its slot was free all the time"
    assert (await cluster.experiment(first))["state"] == "STATE_RUNNING"
    refused = await cluster.http.delete(f"{OURS}/{name}")
    assert f"by agent {agent_id}; by experiments {first}, {second}" in refused.json()["message"]
    for experiment_id in (first, second):
        ended = await cluster.finish(experiment_id)
        assert (ended["state"], ended["resourcePool"]) == ("STATE_COMPLETED", name)
    assert (await cluster.http.patch(f"{OURS}/{cluster.pool}", json={"defaultAuxPool": True})).status_code == 200
    await cluster.stop_agent(agent_id)

    async def is_removed() -> bool:
        return (await cluster.http.delete(f"{OURS}/{name}")).status_code == 200

    await cluster.until(is_removed, what="the pool is removed")
    await new_pool(cluster, name)
    await cluster.start_agent("aux", slots=1, pool=name)
    again = await cluster.create(config(resources={"resource_pool": name}), {"train.py": TRAIN})
    assert (await cluster.finish(again))["state"] == "STATE_COMPLETED"


async def move(cluster: Platform, experiment_id: int, pool: str) -> None:
    """Have an experiment go on in another pool."""
    update = {"jobId": await job_of(cluster, experiment_id), "resourcePool": pool}
    await cluster.post("/api/v1/job-queues", {"updates": [update]})


async def start_two(cluster: Platform, length: int = 60) -> int:
    """An experiment of two trials on one slot each."""
    searcher = {"name": "random", "max_trials": 2, "max_length": length}
    space = {"sleep": 0.05, "quality": {"type": "double", "minval": 0, "maxval": 1}}
    return await cluster.create(config(searcher, hyperparameters=space), {"train.py": TRAIN})


async def first_and_other(cluster: Platform, experiment_id: int) -> tuple[int, int]:
    """The trial that got the only slot, once it trains, and the one that waits: either may have asked first."""
    trains: list[int] = []

    async def one_trains() -> bool:
        trains[:] = [each["id"] for each in await cluster.trials(experiment_id) if await cluster.metrics(each["id"])]
        return bool(trains)

    await cluster.until(one_trains, what="one of the trials has reported")
    [waits] = [each["id"] for each in await cluster.trials(experiment_id) if each["id"] not in trains]
    return trains[0], waits


async def test_moved_experiment_leaves_at_a_checkpoint_and_goes_on_in_the_other_pool(cluster: Platform) -> None:
    """One of its trials runs, the other one waits; both end in the new pool, and nothing is trained twice."""
    await one_slot(cluster)
    experiment_id = await start_two(cluster)
    runs, waits = await first_and_other(cluster, experiment_id)
    target = await new_pool(cluster, f"{cluster.pool}-b")
    agent_id = await cluster.start_agent("b", pool=target)
    await move(cluster, experiment_id, target)
    ended = await cluster.finish(experiment_id)
    assert (ended["state"], ended["resourcePool"]) == ("STATE_COMPLETED", target)
    for trial in await cluster.trials(experiment_id):
        assert trial["restarts"] == 0
        assert steps_of(await cluster.logs(trial["id"])) == list(range(1, 61)), "nothing is trained twice"
    told = (await cluster.get(f"/api/v1/undeterred/trials/{runs}/why"))["facts"]["runs"]
    assert told[0]["askedToLeaveBecause"] == f"admin moved its experiment to pool {target}"
    assert [run["agents"] == [agent_id] for run in told] == [False, True]
    told = (await cluster.get(f"/api/v1/undeterred/trials/{waits}/why"))["facts"]["runs"]
    assert [run["agents"] for run in told] == [[agent_id]], "it waited in the old pool, and ran in the new one only"
    jobs = (await cluster.get("/api/v1/job-queues", resourcePool=cluster.pool))["jobs"]
    assert jobs == []


async def test_paused_experiment_moves_and_goes_on_there(cluster: Platform) -> None:
    experiment_id = await start_two(cluster, 20)
    await cluster.until_reported(experiment_id)
    await cluster.command(experiment_id, "pause")
    target = await new_pool(cluster, f"{cluster.pool}-b")
    await cluster.start_agent("b", pool=target)
    await move(cluster, experiment_id, target)
    await move(cluster, experiment_id, cluster.pool)
    await move(cluster, experiment_id, target)
    await cluster.command(experiment_id, "activate")
    assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
    for trial in await cluster.trials(experiment_id):
        runs = (await cluster.get(f"/api/v1/undeterred/trials/{trial['id']}/why"))["facts"]["runs"]
        assert runs[-1]["agents"] == [f"{cluster.pool}-b"]


async def test_move_is_carried_out_when_all_orchestrators_were_away(unattended: Platform) -> None:
    """The move is recorded with its message; the orchestrator that comes next knows nothing but the histories."""
    cluster = unattended
    async with cluster.orchestrator():
        await new_pool(cluster, "b")
        for name in "ab":
            await cluster.start_agent(name, slots=1, pool=name)
        experiment_id = await start_two(cluster, 100)
        runs = await cluster.until_reported(experiment_id)
    await move(cluster, experiment_id, "b")
    async with cluster.orchestrator():
        ended = await cluster.finish(experiment_id)
        assert (ended["state"], ended["resourcePool"]) == ("STATE_COMPLETED", "b")
        told = (await cluster.get(f"/api/v1/undeterred/trials/{runs}/why"))["facts"]["runs"]
        assert [run["agents"] for run in told] == [["a-a"], ["a-b"]]
        assert steps_of(await cluster.logs(runs)) == list(range(1, 101))


async def test_agent_that_changes_its_pool_ends_what_it_ran_before_others_run_there(cluster: Platform) -> None:
    """Its slot is the new pool's, and what held it goes on on another agent of the old one; no restart is spent."""
    old, new = [await new_pool(cluster, f"{cluster.pool}-{which}") for which in ("old", "new")]
    files = {"train.py": HOLDS + TRAIN}
    agent_id = await cluster.start_agent("moves", slots=1, pool=old)
    first = await cluster.create(holding(cluster.folder, stays=True, resource_pool=old), files)

    async def holds() -> bool:
        trials = await cluster.trials(first)
        return bool(trials) and "holds" in await cluster.logs(trials[0]["id"])

    await cluster.until(holds, what="it runs")
    await cluster.stop_agent(agent_id)
    second = await cluster.create(holding(cluster.folder, stays=False, resource_pool=new), files)
    await cluster.start_agent("moves", slots=1, pool=new)
    assert (await cluster.finish(second))["state"] == "STATE_COMPLETED", "the slot was free when it got it"
    await cluster.start_agent("stays", slots=1, pool=old)
    assert (await cluster.finish(first))["state"] == "STATE_COMPLETED"
    assert [trial["restarts"] for trial in await cluster.trials(first)] == [0]


@workflow.defn(name="Listener", sandboxed=False)
class Listener:
    """A holder of slots that ends when it has heard so many messages, and returns their names."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    @workflow.run
    async def run(self, count: int) -> list[str]:
        await workflow.wait_condition(lambda: len(self.heard) >= count)
        return self.heard

    @workflow.signal(dynamic=True)
    def hear(self, name: str, _: Sequence[RawValue]) -> None:
        self.heard.append(name)


async def test_holders_are_told_all_at_once_and_each_in_turn(cluster: Platform) -> None:
    name = await new_pool(cluster, f"{cluster.pool}-told")
    client, pool = cluster.temporal, await workflow_of(cluster, name)
    seen = AgentSeen(agent_id="host", pool=name, slots=AgentSlots(agent_id="host", slot_ids=tuple(range(12))))
    ids = [f"{name}-{number}" for number in range(12)]

    async def are_granted() -> bool:
        return len((await pool.query(ResourcePool.snapshot)).snapshot.grants) == len(ids)

    async with Worker(client, task_queue=name, workflows=[Listener]):
        holders = [await client.start_workflow(Listener.run, 3, id=id_, task_queue=name) for id_ in ids]
        for id_ in ids:
            await pool.signal("request", Request(allocation_id=id_, holder=id_, slots=1))
        await pool.signal("agent_joined", seen)
        await cluster.until(are_granted, what="all are granted")
        await pool.signal("agent_lost", seen.model_copy(update={"is_gone": True}))
        heard = await asyncio.gather(*[holder.result() for holder in holders])
    assert heard == [["assigned", "agent_silent", "agent_lost"]] * 12
    tasks: dict[str, set[int]] = {}
    async for event in pool.fetch_history_events():
        sent = event.signal_external_workflow_execution_initiated_event_attributes
        if event.HasField("signal_external_workflow_execution_initiated_event_attributes"):
            tasks.setdefault(sent.signal_name, set()).add(sent.workflow_task_completed_event_id)
    assert (len(tasks["assigned"]), len(tasks["agent_silent"])) == (1, 1), "told in one workflow task"


@pytest.mark.parametrize("lives", [True, False], ids=["holder lives", "holder is gone"])
async def test_gang_that_lost_an_agent_holds_the_others_until_it_gives_them_back(
    cluster: Platform, lives: bool
) -> None:
    """As long as its containers there have not ended. Of a holder that is gone nobody would give them back."""
    name = await new_pool(cluster, f"{cluster.pool}-gang-{lives}")
    client, pool = cluster.temporal, await workflow_of(cluster, name)
    a, b = (AgentSeen(agent_id=id_, pool=name, slots=AgentSlots(agent_id=id_, slot_ids=(0,))) for id_ in "ab")
    gang, following = f"{name}-first", f"{name}-next"

    async def grants() -> dict[str, set[str]]:
        held = (await pool.query(ResourcePool.snapshot)).snapshot.grants
        return {id_: {place.agent_id for place in grant.placements} for id_, grant in held.items()}

    async def has_both() -> bool:
        return await grants() == {gang: {"a", "b"}}

    async def is_next() -> bool:
        return await grants() == {following: {"a"}}

    async with Worker(client, task_queue=name, workflows=[Listener]):
        first = await client.start_workflow(Listener.run, 3 if lives else 1, id=gang, task_queue=name)
        await client.start_workflow(Listener.run, 1, id=following, task_queue=name)
        await pool.signal("agent_joined", a)
        await pool.signal("agent_joined", b)
        await pool.signal("request", Request(allocation_id=gang, holder=gang, slots=2))
        if not lives:
            await first.result()
        await cluster.until(has_both, what="the gang has its slots")
        await pool.signal("request", Request(allocation_id=following, holder=following, slots=1))
        await pool.signal("agent_lost", b.model_copy(update={"is_gone": True}))
        if lives:
            assert await first.result() == ["assigned", "agent_silent", "agent_lost"]
            assert await has_both()
            await pool.signal("release", AllocationNotice(allocation_id=gang))
        await cluster.until(is_next, what="the next has the slot of the agent that is left")
    assert list((await pool.query(ResourcePool.snapshot)).snapshot.agents) == ["a"]


async def test_pool_that_is_never_quiet_continues_as_new_and_forgets_nobody(cluster: Platform) -> None:
    name = await new_pool(cluster, f"{cluster.pool}-busy")
    client, updates, pool = cluster.temporal, Updates(cluster.temporal), await workflow_of(cluster, name)
    slots = AgentSlots(agent_id="host", slot_ids=tuple(range(4)))
    await pool.signal("agent_joined", AgentSeen(agent_id="host", pool=name, slots=slots))
    first, asked, is_next = (await pool.describe()).run_id, list[str](), asyncio.Event()

    async def ask_and_give_back(holder: int) -> None:
        while not is_next.is_set():
            request = Request(allocation_id=f"{name}-{holder}-{len(asked)}", holder="nobody", slots=1)
            asked.append(request.allocation_id)
            answer: SlotGrants = await updates.send(
                pool.id, "ask", SlotRequests(requests=[request]), within=timedelta(seconds=30), result_type=SlotGrants
            )
            assert [grant.allocation_id for grant in answer.granted] == [request.allocation_id], "a slot was free"
            notices = AllocationNotices(notices=[AllocationNotice(allocation_id=request.allocation_id)])
            await updates.send(pool.id, "take_back", notices, within=timedelta(seconds=30))

    async def disturb() -> None:
        while not is_next.is_set():
            await pool.signal("release", AllocationNotice(allocation_id="unknown"))
            await asyncio.sleep(0.2)

    async def is_another_run() -> bool:
        return (await pool.describe()).run_id != first

    async with asyncio.TaskGroup() as group:
        for holder in range(4):
            group.create_task(ask_and_give_back(holder))
        group.create_task(disturb())
        await cluster.until(is_another_run, 60, what="it has continued as new")
        is_next.set()
    assert (await client.get_workflow_handle(pool.id, run_id=first).describe()).history_length < 2000
    left = (await pool.query(ResourcePool.snapshot)).snapshot
    assert (left.grants, left.queue, list(left.agents)) == ({}, {}, ["host"])


async def test_many_who_look_at_a_pool_share_a_look(cluster: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    name = await new_pool(cluster, f"{cluster.pool}-looked-at")
    pool = await workflow_of(cluster, name)
    address = cluster.temporal.service_client.config.target_host
    commands = Commands(Connection(TemporalSettings(temporal_address=address)), Timing(), AsyncMock())
    looks = counted(monkeypatch, WorkflowHandle, "query")
    found = await asyncio.gather(*(commands.pool(name) for _ in range(50)))
    assert all(each == found[0] for each in found)
    assert len(looks) <= 2, "the first one, and all who came meanwhile"
    request = Request(allocation_id=f"{name}-asks", holder="nobody", slots=1)
    await pool.signal("request", request)
    assert list((await commands.pool(name)).snapshot.queue) == [request.allocation_id]
    with pytest.raises(Unavailable):
        await commands.pool("nowhere")
