"""A pool that is asked for slots before their holder is started: it answers at once, and tells the holder the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from temporalio import workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from workers.versioning import deployment, take_over
from workflows import names
from workflows.converter import CONVERTER
from workflows.messages import AgentSeen, AllocationNotice, Assignment, PoolRun, SlotGrants, SlotRequests
from workflows.resource_pool import ResourcePool
from workflows.scheduling.model import AgentSlots, PoolSnapshot, Request


@workflow.defn(name="Told")
class Told:
    """A holder that notes what its pool says, until it has heard as much as it was to hear."""

    def __init__(self) -> None:
        self._said: list[str] = []

    @workflow.run
    async def run(self, most: int) -> list[str]:
        """What the pool said, in order."""
        await workflow.wait_condition(lambda: len(self._said) >= most)
        return self._said

    @workflow.signal
    def assigned(self, assignment: Assignment) -> None:
        """Slots."""
        self._said.append(f"assigned {assignment.allocation_id} {[place.slot_ids for place in assignment.placements]}")

    @workflow.signal
    def agent_lost(self, notice: AllocationNotice) -> None:
        """They are gone."""
        self._said.append(f"lost {notice.allocation_id}")


@pytest.fixture
async def client(temporal_address: str) -> AsyncIterator[Client]:
    client = await Client.connect(temporal_address, data_converter=CONVERTER)
    with ThreadPoolExecutor(2) as threads:
        async with Worker(
            client, task_queue=names.ORCHESTRATOR_QUEUE, workflows=[ResourcePool, Told], activity_executor=threads,
            workflow_runner=UnsandboxedWorkflowRunner(), deployment_config=deployment("early", takes_over=True),
        ):  # fmt: skip
            await take_over(client, "early", asyncio.Event())
            yield client


async def _pool(client: Client) -> WorkflowHandle[object, object]:
    agents = {name: AgentSlots(agent_id=name, slot_ids=(0,)) for name in ("a", "b")}
    run = PoolRun(name="p", snapshot=PoolSnapshot(agents=agents))
    return await client.start_workflow("ResourcePool", run, id="pool-p", task_queue=names.ORCHESTRATOR_QUEUE)


async def _ask(pool: WorkflowHandle[object, object], *allocations: str, slots: int = 1) -> list[str]:
    requests = [Request(allocation_id=id_, holder=f"holder-{id_}", slots=slots) for id_ in allocations]
    answer = await pool.execute_update(  # pyright: ignore[reportUnknownMemberType]
        "ask", SlotRequests(requests=requests), result_type=SlotGrants
    )
    return sorted(f"{each.allocation_id} on {each.placements[0].agent_id}" for each in answer.granted)


async def _holder(client: Client, allocation_id: str, most: int = 1) -> list[str]:
    return await client.execute_workflow(
        "Told", most, id=f"holder-{allocation_id}", task_queue=names.ORCHESTRATOR_QUEUE, result_type=list[str]
    )


async def test_pool_answers_at_once_and_asking_twice_is_asking_once(client: Client) -> None:
    pool = await _pool(client)
    first = await _ask(pool, "x", "y", "z")
    assert [line.split()[0] for line in first] == ["x", "y"], "z is queued"
    assert await _ask(pool, "x", "y", "z") == first
    snapshot = PoolRun.model_validate(await pool.query("snapshot")).snapshot
    assert sorted(snapshot.grants) == ["x", "y"]
    assert list(snapshot.queue) == ["z"]


async def test_holder_that_is_started_later_gets_what_the_pool_had_to_say(client: Client) -> None:
    pool = await _pool(client)
    granted = await _ask(pool, "x", "y", "z")
    await pool.signal("release", AllocationNotice(allocation_id="x"))
    await asyncio.sleep(1.5)  # the holder of z is not there: the pool says it again each second
    assert await _holder(client, "z") == ["assigned z [(0,)]"]
    agent_of_y = granted[1].split()[-1]
    gone = AgentSeen(agent_id=agent_of_y, pool="p", slots=AgentSlots(agent_id=agent_of_y, slot_ids=(0,)), is_gone=True)
    await pool.signal("agent_lost", gone)
    await asyncio.sleep(1.5)
    assert await _holder(client, "y") == ["lost y"]


async def test_holder_that_asks_by_a_signal_gets_what_was_granted_before(client: Client) -> None:
    """The answer to the first request got lost, so that it asks by itself."""
    pool = await _pool(client)
    await _ask(pool, "x")
    told = asyncio.create_task(_holder(client, "x"))
    await asyncio.sleep(0.5)
    await pool.signal("request", Request(allocation_id="x", holder="holder-x", slots=1))
    [line] = await asyncio.wait_for(told, 20)
    assert line.startswith("assigned x")


@pytest.mark.parametrize("is_first", [True, False], ids=["request comes first", "ask comes first"])
async def test_holder_whose_request_overtakes_a_late_answer_gets_its_slots(client: Client, is_first: bool) -> None:
    """A pool so busy that who asked it by `ask` gave up, and the holder asked by itself: it sees both in one go."""
    told = asyncio.create_task(_holder(client, "x"))
    request = Request(allocation_id="x", holder="holder-x", slots=1)
    pool = await _pool(client)
    parts = [pool.signal("request", request), _ask(pool, "x")]
    await asyncio.gather(*(parts if is_first else reversed(parts)))
    [line] = await asyncio.wait_for(told, 20)
    assert line.startswith("assigned x")
