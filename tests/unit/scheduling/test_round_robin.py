"""In turn: who holds the least goes first, one request each. Source: scheduling.md §3."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.scheduling.pools import ask, decided, hold, pool_of, started, waiting
from workflows.scheduling.decide import decide
from workflows.scheduling.pool import Pool


def turns(*sizes: int, aux: int = 100, **more: Any) -> Pool:
    return pool_of(*sizes, aux=aux, settings={"scheduler": "round_robin", **more})


def ask_many(pool: Pool, job: str, count: int, slots: int = 1, **more: Any) -> None:
    for number in range(count):
        ask(pool, slots, f"{job}.{number}", job=job, **more)


def test_jobs_start_one_request_each_in_turn() -> None:
    pool = turns(5)
    ask_many(pool, "a", 4, position=1)
    ask_many(pool, "b", 4, position=2)
    assert started(pool) == ["a.0", "b.0", "a.1", "b.1", "a.2"]
    assert waiting(pool) == ["a.3", "b.2", "b.3"]


def test_the_job_that_holds_least_goes_first() -> None:
    pool = turns(4)
    hold(pool, "old.x", "a0", 0, 1, job="old", position=1)
    hold(pool, "young.x", "a0", 2, job="young", position=2)
    ask(pool, 1, "old.y", job="old", position=1)
    ask(pool, 1, "young.y", job="young", position=2)
    assert started(pool) == ["young.y"]


def test_the_older_job_goes_first_when_both_hold_the_same() -> None:
    pool = turns(1)
    ask(pool, 1, "young", position=2)
    ask(pool, 1, "old", position=1)
    assert started(pool) == ["old"]


def test_others_go_on_when_the_request_of_one_job_does_not_fit() -> None:
    pool = turns(4)
    hold(pool, "held", "a0", 0)
    ask(pool, 4, "large.0", job="large", position=1)
    ask_many(pool, "small", 2, position=2)
    assert started(pool) == ["small.0", "small.1"]


def test_job_gets_no_more_than_its_cap() -> None:
    pool = turns(8)
    ask_many(pool, "capped", 4, max_slots=2, position=1)
    ask_many(pool, "free", 4, position=2)
    assert started(pool) == ["capped.0", "free.0", "capped.1", "free.1", "free.2", "free.3"]
    assert pool.release("capped.0")
    assert started(pool) == ["capped.2"]


def test_request_that_the_pool_can_not_hold_keeps_its_job_from_nothing() -> None:
    pool = turns(2)
    ask(pool, 8, "j.huge", job="j")
    ask(pool, 1, "j.small", job="j")
    assert started(pool) == ["j.small"]


def test_requests_without_slots_take_turns_of_their_own() -> None:
    pool = turns(1, aux=3)
    hold(pool, "held", "a0", 0)
    ask_many(pool, "a", 3, slots=0, position=1)
    ask_many(pool, "b", 3, slots=0, position=2)
    ask(pool, 1, "slotted")
    assert started(pool) == ["a.0", "b.0", "a.1"]


def test_nobody_has_to_leave_whoever_comes() -> None:
    pool = turns(2, preemption=True)
    ask_many(pool, "a", 2, priority=99)
    decide(pool)
    ask(pool, 1, "b", priority=1)
    assert decided(pool) == (set(), set())


def test_user_gets_no_more_than_his_quota_when_nothing_is_lent() -> None:
    pool = turns(8, quotas={"users": {"ann": 2}, "borrowing": False})
    ask_many(pool, "a", 3, user="ann", position=1)
    ask_many(pool, "b", 3, user="bob", position=2)
    assert started(pool) == ["a.0", "b.0", "a.1", "b.1", "b.2"]
    assert pool.release("a.0")
    assert started(pool) == ["a.2"]


def test_who_is_within_his_quota_goes_before_those_who_borrow() -> None:
    pool = turns(3, quotas={"users": {"ann": 1}})
    ask_many(pool, "a", 3, user="ann", position=1)
    ask_many(pool, "b", 2, user="bob", position=2)
    assert started(pool) == ["a.0", "b.0", "b.1"]


def test_slots_that_nobody_claims_are_lent_at_once() -> None:
    """Not at the next decision: that is made when something changes, which may be in days."""
    pool = turns(4, quotas={"users": {"ann": 1}})
    ask_many(pool, "a", 3, user="ann")
    assert started(pool) == ["a.0", "a.1", "a.2"]
    assert started(pool) == []


@given(st.integers(1, 30), st.lists(st.integers(0, 12), min_size=1, max_size=5))
@settings(max_examples=60)
def test_jobs_that_want_more_hold_the_same_but_for_one_slot(slots: int, jobs: list[int]) -> None:
    pool = turns(slots)
    for number, count in enumerate(jobs):
        ask_many(pool, f"j{number}", count, position=number)
    decide(pool)
    held = [pool.slots_of_job(f"j{number}") for number in range(len(jobs))]
    assert sum(held) == min(slots, sum(jobs))
    for number, count in enumerate(jobs):
        if held[number] < count:
            assert held[number] >= max(held) - 1
