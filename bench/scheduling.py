"""What a decision of a pool costs: pure, without a cluster. 10,000 slots on 1,250 agents, 5,000 requests of 500 jobs."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator
from typing import Any

from bench.measure import Figure, repeat
from workflows.scheduling.decide import decide
from workflows.scheduling.model import AgentSlots, Claim, PoolSnapshot, Request
from workflows.scheduling.pool import Pool
from workflows.scheduling.settings import PoolSettings

_AGENTS, _SLOTS_EACH, _JOBS, _WAITING = 1250, 8, 500, 5000
_GOAL_MS = 100.0
_RUNS = 10
_POLICIES: dict[str, dict[str, Any]] = {
    "by priority": {},
    "by priority with preemption": {"preemption": True},
    "by priority with quotas": {"quotas": {"users": {"*": 1000}}},
    "fair share": {"scheduler": "fair_share"},
    "round robin": {"scheduler": "round_robin"},
}


def figures() -> Iterator[Figure]:
    """For each policy a decision about an empty pool, and one about a full pool where one holder has left."""
    for name, settings in _POLICIES.items():
        for state, build in (("empty", _empty), ("full", _full)):
            yield Figure(
                f"a decision about {_AGENTS * _SLOTS_EACH:,} slots and {_WAITING:,} requests, {name}, {state} pool",
                repeat(lambda build=build, settings=settings: _decision_ms(build(settings)), _RUNS),
                "ms",
                _GOAL_MS,
                note="processor time",
            )


def _decision_ms(pool: Pool) -> float:
    gc.collect()  # the garbage of building the pool is not the decision's
    start = time.process_time()
    decide(pool)
    return (time.process_time() - start) * 1000


def _empty(settings: dict[str, Any]) -> Pool:
    agents = {f"a{number}": agent(f"a{number}") for number in range(_AGENTS)}
    return _with_requests(PoolSnapshot(agents=agents), settings, "first")


def _full(settings: dict[str, Any]) -> Pool:
    before = _empty({})
    decide(before)
    snapshot = PoolSnapshot(agents=before.snapshot.agents, grants=before.snapshot.grants)
    pool = _with_requests(snapshot, settings, "next")
    pool.release(next(iter(snapshot.grants)))
    return pool


def _with_requests(snapshot: PoolSnapshot, settings: dict[str, Any], seed: str) -> Pool:
    pool = Pool(snapshot, PoolSettings.model_validate(settings))
    for request in requests(seed, _WAITING):
        pool.ask(request)
    _ = pool.room.free, pool.fits_ever(next(iter(snapshot.queue.values())))  # kept from decision to decision
    return pool


def requests(seed: str, count: int) -> Iterator[Request]:
    """What users of a large cluster ask for: mostly little, and of some jobs much."""
    rng = random.Random(seed)
    claims = [
        Claim(priority=rng.choice((None, None, 10, 42, 60)), weight=rng.choice((1, 2)), position=job)
        for job in range(_JOBS)
    ]
    for number in range(count):
        job, slots = rng.randrange(_JOBS), rng.choices((1, 2, 4, 8, 16, 64), (50, 15, 10, 15, 7, 3))[0]
        yield _request(job, claims[job], f"{seed}-{number}", slots)


def _request(job: int, claim: Claim, name: str, slots: int) -> Request:
    return Request(
        allocation_id=name, holder=name, name=name, slots=slots, job_id=f"job-{job}", user=f"user-{job % 20}",
        workspace=f"team-{job % 5}", claim=claim,
    )  # fmt: skip


def agent(name: str) -> AgentSlots:
    """One with eight slots."""
    return AgentSlots(agent_id=name, slot_ids=tuple(range(_SLOTS_EACH)))
