"""Thousands wait: a decision looks at each kind of request, not at each request, and decides the same."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.kit.counting import counted
from tests.unit.scheduling.pools import agent, ask, hold, pool_of, wish
from workflows.messages import JobClaim, PoolRun
from workflows.resource_pool import ResourcePool
from workflows.scheduling import priority
from workflows.scheduling.model import Claim, Decision, PoolSnapshot
from workflows.scheduling.order import Order, order
from workflows.scheduling.pool import Pool
from workflows.scheduling.priority import schedule
from workflows.scheduling.rank import Line

SETTINGS: dict[str, dict[str, Any]] = {
    "no preemption": {},
    "preemption": {"preemption": True},
    "preemption, on agents of different sizes": {"preemption": True, "allow_heterogeneous_fits": True},
    "quotas": {"quotas": {"users": {"*": 3}}},
    "quotas that lend nothing": {"quotas": {"users": {"*": 3}, "borrowing": False}},
    "quotas and preemption": {"preemption": True, "quotas": {"users": {"*": 3}}},
}


def drawn(draw: random.Random, settings: dict[str, Any]) -> Pool:
    """Agents of which most slots are held, and a queue of few kinds, each with several requests."""
    sizes = [draw.randrange(5) for _ in range(draw.randrange(1, 4))]
    pool = pool_of(*sizes, settings=settings, aux=draw.randrange(3))
    for agent_id, offered in list(pool.snapshot.agents.items()):
        for slot in offered.slot_ids:
            if draw.random() < 0.8:
                hold(
                    pool, f"held {agent_id}.{slot}", agent_id, slot, job=draw.choice("ABC"), user=draw.choice("xy"),
                    priority=draw.choice((1, 42, 50)), is_preemptible=draw.random() < 0.8,
                )  # fmt: skip
    for allocation_id in pool.snapshot.grants:
        if draw.random() < 0.2:
            pool.note_leaving(allocation_id)
    kinds: list[dict[str, Any]] = [
        {"slots": draw.randrange(8), "job": draw.choice("ABC"), "max_slots": draw.choice((None, None, 2)),
         "is_preemptible": draw.random() < 0.8, "excluded_agents": draw.choice(((), (), ("a0",)))}
        for _ in range(draw.randrange(1, 5))
    ]  # fmt: skip
    for number in range(draw.randrange(25)):
        ask(
            pool, allocation_id=f"{number}", user=draw.choice("xyz"), priority=draw.choice((1, 42, 50)),
            position=draw.randrange(3), **draw.choice(kinds),
        )  # fmt: skip
    return pool


def decided(seed: int, settings: dict[str, Any]) -> Decision:
    return schedule(drawn(random.Random(seed), settings))


@pytest.mark.parametrize("name", SETTINGS)
def test_decision_is_that_of_who_looks_at_every_request(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    found = [decided(seed, SETTINGS[name]) for seed in range(500)]
    monkeypatch.setattr(priority._Open, "is_empty", False)  # pyright: ignore[reportPrivateUsage]
    assert [decided(seed, SETTINGS[name]) for seed in range(500)] == found
    assert any(decision.starts for decision in found)
    assert any(decision.leaves for decision in found) or name == "no preemption"


def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The allocations that decisions look at from now on."""
    looked = list[str]()

    def ordered(pool: Pool) -> Order:
        ranks = order(pool)
        return Order(ranks.grants, (looked.append(entry[1].allocation_id) or entry for entry in ranks.queue))

    monkeypatch.setattr(priority, "order", ordered)
    return looked


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, {"slots": 1}),
        ({"preemption": True}, {"slots": 1}),
        ({"preemption": True}, {"slots": 1, "is_preemptible": False}),
        ({}, {"slots": 1, "max_slots": 1}),
        ({}, {"slots": 9}),
        ({"quotas": {"users": {"*": 1}}}, {"slots": 1, "user": "x"}),
    ],
    ids=["full", "full, of one priority", "who can't be asked to leave", "of a job at its bound", "fits never", "lent"],
)
def test_few_of_thousands_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], wanted: dict[str, Any]
) -> None:
    pool = pool_of(2, settings=settings)
    hold(pool, "held 0", "a0", 0, job="search", user="x")
    if wanted.get("max_slots") is None:
        hold(pool, "held 1", "a0", 1, job="search", user="x")
    for number in range(3000):
        ask(pool, allocation_id=str(number), job="search", **wanted)
    looked = looked_at(monkeypatch)
    assert schedule(pool) == Decision()
    assert 0 < len(looked) <= 3


def test_few_are_looked_at_behind_some_that_start(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of(4)
    hold(pool, "held", "a0", 0, job="search")
    for name in "ab":
        ask(pool, 1, name, job="small", priority=1)
    for number in range(3000):
        ask(pool, 1, str(number), job="search", max_slots=1)
    looked = looked_at(monkeypatch)
    assert [grant.request.allocation_id for grant in schedule(pool).starts] == ["a", "b"]
    assert looked == ["a", "b", "0", "1"]


def test_what_was_in_vain_and_is_at_its_bound_ends_no_decision() -> None:
    pool = pool_of(2, settings=SETTINGS["preemption, on agents of different sizes"])
    pool.put_agent(agent("a1", 1))
    hold(pool, "held", "a1", 0)
    for slots, name in ((3, "large"), (1, "small"), (3, "large again")):
        ask(pool, slots, name, job="A", max_slots=3)
    ask(pool, 1, "other", job="B")
    assert [grant.request.allocation_id for grant in schedule(pool).starts] == ["small", "other"]


def test_queue_is_a_list_on_the_wire_and_keeps_its_order() -> None:
    pool = pool_of(1)
    for name in ("c", "a", "b"):
        ask(pool, 1, name)
    assert pool.release("a")
    ask(pool, 1, "a")
    dumped = pool.snapshot.model_dump(mode="json")
    assert [each["allocation_id"] for each in dumped["queue"]] == ["c", "b", "a"]
    read = PoolSnapshot.model_validate_json(pool.snapshot.model_dump_json())
    assert list(read.queue) == ["c", "b", "a"]
    assert read == pool.snapshot
    assert PoolSnapshot(queue=[wish(1, "x")]).queue == {"x": wish(1, "x")}  # pyright: ignore[reportArgumentType]


def kinds(line: Line[Any]) -> Any:
    """What a line knows of its kinds."""
    shapes = {shape: {alike.kind for alike in found} for shape, found in line.shapes.items()}
    lengths = [line.length(has_slots=has_slots) for has_slots in (False, True)]
    return shapes, lengths, {kind: (set(alike.entries), alike.leaving) for kind, alike in line.alike.items()}


def test_kinds_are_kept_as_the_queue_changes() -> None:
    draw = random.Random(3)
    pool = drawn(draw, SETTINGS["preemption"])
    for _ in range(300):
        what = draw.randrange(4)
        if what == 0:
            ask(
                pool, draw.randrange(3), f"new {draw.random()}", job=draw.choice("AB"), max_slots=draw.choice((None, 1))
            )
        elif what == 1 and pool.snapshot.queue:
            pool.release(draw.choice(list(pool.snapshot.queue)))
        elif what == 2 and pool.snapshot.grants:
            pool.release(draw.choice(list(pool.snapshot.grants)))
        else:
            pool.apply(schedule(pool))
        anew = Pool(pool.snapshot, pool.settings)
        assert kinds(pool.waiting) == kinds(anew.waiting)
        assert kinds(pool.holders) == kinds(anew.holders)
        assert list(pool.waiting) == list(anew.waiting)
        assert sorted(pool.holders, key=str) == sorted(anew.holders, key=str)
        assert pool.held_slots == sum(grant.request.slots for grant in pool.snapshot.grants.values())


def test_claims_of_hundreds_of_jobs_are_taken_up_together(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of(1)
    for number in range(300):
        ask(pool, 1, f"{number}", job=f"job {number}", position=number)
    workflow = ResourcePool(PoolRun(name="p", snapshot=pool.snapshot))
    ranked = counted(monkeypatch, Pool, "_line_up")
    for number in range(300):
        workflow.job_claim(JobClaim(job_id=f"job {number}", claim=Claim(position=1000 - number)))
    for _ in range(2):
        workflow.take_up_claims()
    assert len(ranked) == 1
    assert [request.claim.position for request in pool.snapshot.queue.values()] == list(range(1000, 700, -1))
