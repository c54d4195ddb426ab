"""What bounds a large cluster: how a pool's decision grows with its agents, and how many allocations its workflow hands out."""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path

from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from bench.measure import Figure
from bench.scheduling import agent, requests
from tests.kit.servers import temporal_server
from workers.versioning import deployment, take_over
from workflows import names
from workflows.converter import CONVERTER
from workflows.messages import AgentSeen, AllocationNotice, Assignment, JobClaim, PoolRun
from workflows.resource_pool import ResourcePool
from workflows.scheduling.decide import decide
from workflows.scheduling.model import Claim, PoolSnapshot, Request
from workflows.scheduling.pool import Pool
from workflows.scheduling.settings import PoolSettings

_SIZES = (1_250, 5_000, 10_000)  # agents of eight slots
_WAITING = 5_000
_RUNS, _AT_ONCE = 5, 100
_HOLDERS, _CYCLES = 40, 10


def figures() -> Iterator[Figure]:
    """A decision in a full pool by the number of agents; then a real pool workflow on Temporal's dev server."""
    for agents in _SIZES:
        yield Figure(
            f"a decision of a full pool of {agents:,} agents with 8 slots, {_WAITING:,} requests wait",
            _decisions_ms(agents), "ms", note="by priority; processor time",
        )  # fmt: skip
        yield Figure(
            f"{_AT_ONCE} of {agents:,} agents of this pool fall silent at once, each", [_silent_ms(agents)], "ms",
            note="processor time",
        )  # fmt: skip
        yield Figure(
            f"the priority of {_AT_ONCE} jobs changes at once in a pool of {agents:,} agents, each", [_claims_ms(agents)],
            "ms", note="processor time",
        )  # fmt: skip
        yield Figure(
            f"state of this pool's workflow as it continues as new, compressed, {agents:,} agents",
            [len(zlib.compress(_full(agents).snapshot.model_dump_json().encode(), 1)) / 2**20], "MiB", 2,
            note="Temporal takes 2 MB",
        )  # fmt: skip
    for agents in (100, _SIZES[-1]):
        yield Figure(
            f"allocations that a pool's workflow of {agents:,} agents hands out and takes back",
            [asyncio.run(_allocations_a_second(agents))], "/s",
            note="dev server on SQLite, and the holders' workflows, on the same cores",
        )  # fmt: skip


def _full(agents: int) -> Pool:
    snapshot = PoolSnapshot(agents={name: agent(name) for name in (f"a{number}" for number in range(agents))})
    pool = Pool(snapshot, PoolSettings())
    for request in requests("first", agents * 3):
        pool.ask(request)
    decide(pool)
    waiting = len(snapshot.queue)
    for request in requests("next", max(0, _WAITING - waiting)):
        pool.ask(request)
    return pool


def _decisions_ms(agents: int) -> list[float]:
    pool = _full(agents)
    found: list[float] = []
    for holder in list(pool.snapshot.grants)[: _RUNS + 1]:
        pool.release(holder)
        gc.collect()
        start = time.process_time()
        decide(pool)
        found.append((time.process_time() - start) * 1000)
    return found[1:]


def _silent_ms(agents: int) -> float:
    """What was held there is found, and that it can go on elsewhere; as when a switch fails."""
    pool = ResourcePool(PoolRun(name="bench", snapshot=_full(agents).snapshot))
    start = time.process_time()
    for number in range(_AT_ONCE):
        name = f"a{number}"
        pool.agent_lost(AgentSeen(agent_id=name, pool="bench", slots=agent(name)))
    return (time.process_time() - start) * 1000 / _AT_ONCE


def _claims_ms(agents: int) -> float:
    """With the next decision, which ranks all anew."""
    scheduler = _full(agents)
    jobs = list(dict.fromkeys(request.job_id for request in scheduler.snapshot.queue.values()))
    pool = ResourcePool(PoolRun(name="bench", snapshot=scheduler.snapshot))
    start = time.process_time()
    for job in jobs[:_AT_ONCE]:
        pool.job_claim(JobClaim(job_id=job, claim=Claim(priority=50)))
    pool.take_up_claims()
    return (time.process_time() - start) * 1000 / _AT_ONCE


async def _allocations_a_second(agents: int) -> float:
    with tempfile.TemporaryDirectory() as folder, temporal_server(Path(folder)) as address:
        client = await Client.connect(address, data_converter=CONVERTER)
        pool = f"bench-{uuid.uuid4().hex[:8]}"
        snapshot = PoolSnapshot(agents={f"a{number}": agent(f"a{number}") for number in range(agents)})
        async with Worker(
            client, task_queue=names.ORCHESTRATOR_QUEUE, workflows=[ResourcePool, Holder],
            workflow_runner=UnsandboxedWorkflowRunner(), deployment_config=deployment("bench", takes_over=True),
        ):  # fmt: skip
            await take_over(client, "bench", asyncio.Event())
            run = PoolRun(name=pool, snapshot=snapshot)
            await client.start_workflow(
                "ResourcePool", run, id=names.pool_workflow(pool), task_queue=names.ORCHESTRATOR_QUEUE
            )
            await _cycles(client, pool, 5, 2)
            start = time.perf_counter()
            await _cycles(client, pool, _HOLDERS, _CYCLES)
            return _HOLDERS * _CYCLES / (time.perf_counter() - start)


async def _cycles(client: Client, pool: str, holders: int, cycles: int) -> None:
    started = [
        await client.start_workflow(
            "Holder", args=[pool, cycles], id=f"holder-{uuid.uuid4()}", task_queue=names.ORCHESTRATOR_QUEUE
        )
        for _ in range(holders)
    ]
    await asyncio.gather(*[each.result() for each in started])


@workflow.defn(name="Holder")
class Holder:
    """Asks for a slot, and gives it back as soon as it has it."""

    def __init__(self) -> None:
        self._assigned: set[str] = set()

    @workflow.run
    async def run(self, pool: str, cycles: int) -> None:
        """So often, one after the other."""
        mine, target = workflow.info().workflow_id, workflow.get_external_workflow_handle(names.pool_workflow(pool))
        for number in range(cycles):
            allocation_id = f"{mine}.{number}"
            await target.signal("request", Request(allocation_id=allocation_id, holder=mine, slots=1, name=mine))
            await workflow.wait_condition(lambda allocation_id=allocation_id: allocation_id in self._assigned)
            await target.signal("release", AllocationNotice(allocation_id=allocation_id))

    @workflow.signal
    def assigned(self, assignment: Assignment) -> None:
        """The pool gave it a slot."""
        self._assigned.add(assignment.allocation_id)
