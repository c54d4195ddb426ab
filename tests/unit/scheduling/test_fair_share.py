"""Shares by weight: the worked examples of scheduling.md §3, and what we promise beyond them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.scheduling.pools import agent, ask, decided, hold, pool_of, started, waiting
from workflows.scheduling.decide import decide
from workflows.scheduling.fair_share import fair_parts
from workflows.scheduling.pool import Pool


def fair(*sizes: int, aux: int = 100, **more: Any) -> Pool:
    return pool_of(*sizes, aux=aux, settings={"scheduler": "fair_share", **more})


def ask_many(pool: Pool, job: str, count: int, slots: int = 1, **more: Any) -> None:
    for number in range(count):
        ask(pool, slots, f"{job}.{number}", job=job, **more)


def held(pool: Pool) -> dict[str, int]:
    """Slots of each job, without those that are asked back."""
    found = Counter[str]()
    for grant in pool.snapshot.grants.values():
        found[grant.request.job_id] += 0 if grant.is_preempting else grant.request.slots
    return dict(found)


def leave(pool: Pool) -> None:
    """Those asked to leave do so, and ask again."""
    for grant in [each for each in pool.snapshot.grants.values() if each.is_preempting]:
        pool.release(grant.request.allocation_id)
        pool.ask(grant.request)


def settle(pool: Pool, rounds: int = 40) -> None:
    """Decide until nothing changes any more; those asked to leave come back."""
    for _ in range(rounds):
        leave(pool)
        decision = decide(pool)
        if not decision.starts and not decision.leaves:
            return
    raise AssertionError(f"jobs take each other's slots for ever: the last decision was {decision}")


# -- the examples of the spec ------------------------------------------------------------------------------------------


def test_slots_are_shared_by_weight() -> None:
    pool = fair(8)
    ask_many(pool, "a", 3, weight=10, position=1)
    ask_many(pool, "b", 7, weight=30, position=2)
    decide(pool)
    assert held(pool) == {"a": 2, "b": 6}


def test_what_a_capped_job_leaves_goes_to_the_others() -> None:
    pool = fair(4)
    ask_many(pool, "capped", 4, max_slots=1, position=1)
    ask_many(pool, "free", 4, position=2)
    decide(pool)
    assert held(pool) == {"capped": 1, "free": 3}


def test_the_first_of_two_jobs_starts_when_there_is_room_for_one() -> None:
    pool = fair(2)
    ask(pool, 2, "young", position=2)
    ask(pool, 2, "old", position=1)
    assert started(pool) == ["old"]


def test_job_that_is_larger_than_the_pool_takes_no_part() -> None:
    pool = fair(4)
    ask(pool, 5, "huge", position=1)
    ask(pool, 4, "fits", position=2)
    assert started(pool) == ["fits"]
    assert waiting(pool) == ["huge"]


def test_the_first_two_of_four_leave_when_the_cap_of_their_job_is_lowered_to_two() -> None:
    pool = fair(4)
    ask_many(pool, "j", 4)
    assert len(started(pool)) == 4
    pool.claim({"j": pool.snapshot.grants["j.0"].request.claim.model_copy(update={"max_slots": 2})})
    decision = decide(pool)
    assert [each.allocation_id for each in decision.leaves] == ["j.0", "j.1"]
    assert decision.leaves[0].reason == "its job holds 4 slots, and its fair share is 2"
    assert decided(pool) == (set(), set()), "they are asked once"


# -- without slots -----------------------------------------------------------------------------------------------------


def test_requests_without_slots_start_in_their_order_while_they_fit() -> None:
    pool = fair(1, aux=2)
    for number in range(4):
        ask(pool, 0, f"zero {number}", position=9 - number)
    assert started(pool) == ["zero 3", "zero 2"]
    assert started(pool) == []
    assert pool.release("zero 3")
    assert started(pool) == ["zero 1"]


def test_the_first_request_without_slots_is_not_passed_when_it_does_not_fit() -> None:
    pool = fair(1, 1, aux=1)
    hold(pool, "held", "a1")
    ask(pool, 0, "first", position=1, excluded_agents=("a0",))
    ask(pool, 0, "second", position=2)
    assert started(pool) == []
    assert pool.release("held")
    assert started(pool) == ["first", "second"]


# -- giving back -------------------------------------------------------------------------------------------------------


def test_job_gives_back_what_it_holds_beyond_its_share_when_another_one_comes() -> None:
    pool = fair(4)
    ask_many(pool, "a", 4, position=1)
    assert len(started(pool)) == 4
    ask_many(pool, "b", 4, position=2)
    assert decided(pool) == (set(), {"a.0", "a.1"})
    leave(pool)
    assert decided(pool) == ({"b.0", "b.1"}, set())
    assert decided(pool) == (set(), set())


def test_who_can_not_be_made_to_leave_stays_and_counts_as_a_part_of_the_share() -> None:
    pool = fair(4)
    ask_many(pool, "a", 3, position=1, is_preemptible=False)
    assert len(started(pool)) == 3
    ask_many(pool, "b", 4, position=2)
    assert decided(pool) == ({"b.0"}, set())


def test_nobody_leaves_for_one_that_can_not_be_held_by_the_pool() -> None:
    pool = fair(4)
    ask_many(pool, "a", 4)
    assert len(started(pool)) == 4
    ask(pool, 8, "huge", weight=100)
    assert decided(pool) == (set(), set())


def test_slots_on_an_agent_out_of_reach_count_for_those_who_hold_them_only() -> None:
    pool = fair(2, 2)
    ask_many(pool, "a", 2, position=1)
    assert len(started(pool)) == 2
    [of_a] = {place.agent_id for grant in pool.snapshot.grants.values() for place in grant.placements}
    pool.put_agent(agent(of_a, 2, is_available=False))
    ask_many(pool, "b", 4, position=2)
    assert decided(pool) == ({"b.0", "b.1"}, set())


def test_nobody_leaves_when_a_slot_is_drained() -> None:
    """Who runs there finishes; nobody else has to go for it."""
    pool = fair(4)
    ask_many(pool, "a", 4)
    assert len(started(pool)) == 4
    pool.put_agent(agent("a0", 4, disabled_slots=(3,)))
    assert decided(pool) == (set(), set())


def test_cap_counts_those_who_were_asked_to_leave_and_have_not_left() -> None:
    pool = fair(8)
    for name, slot in (("x", 0), ("y", 1)):
        hold(pool, name, "a0", slot, job="j", max_slots=3)
        pool.note_leaving(name)
    ask_many(pool, "j", 3, max_slots=3)
    assert started(pool) == ["j.0"]
    assert pool.release("x")
    assert started(pool) == ["j.1"]


# -- steady state ------------------------------------------------------------------------------------------------------


@given(
    st.integers(40, 80),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 80)), min_size=2, max_size=4),
)
@settings(max_examples=40)
def test_shares_are_within_a_tenth_of_the_weights_when_many_small_requests_compete(
    slots: int, jobs: list[tuple[int, int]]
) -> None:
    """Whatever the jobs held before: some of them start first, and give back."""
    pool = fair(slots)
    for number, (weight, first) in enumerate(jobs):
        ask_many(pool, f"j{number}", first, weight=weight, position=number)
        decide(pool)
    for number, (weight, first) in enumerate(jobs):
        for more in range(first, slots + 1):
            ask(pool, 1, f"j{number}.{more}", job=f"j{number}", weight=weight, position=number)
    settle(pool)
    weights = sum(weight for weight, _ in jobs)
    assert sum(held(pool).values()) == slots
    for number, (weight, _) in enumerate(jobs):
        ideal = slots * weight / weights
        assert abs(held(pool)[f"j{number}"] - ideal) <= max(1, ideal / 10)


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(1, 3), st.lists(st.integers(1, 4), max_size=4)), min_size=1, max_size=4),
)
@settings(max_examples=60)
def test_no_job_starts_and_leaves_in_one_decision(sizes: list[int], jobs: list[tuple[int, list[int]]]) -> None:
    pool = fair(*sizes)
    for number, (weight, wanted) in enumerate(jobs):
        for index, slots in enumerate(wanted):
            ask(pool, slots, f"j{number}.{index}", job=f"j{number}", weight=weight, position=number)
        for _ in range(2):
            decision = decide(pool)
            starts = {grant.request.job_id for grant in decision.starts}
            leaves = {pool.snapshot.grants[each.allocation_id].request.job_id for each in decision.leaves}
            assert not starts & leaves
            leave(pool)


def test_job_keeps_what_runs_when_its_larger_request_has_no_room() -> None:
    """Else it would be asked to leave, start again, and be asked to leave again, without end."""
    pool = fair(4)
    ask_many(pool, "b", 4, position=1)
    ask(pool, 1, "a.0", job="a", position=2)
    ask(pool, 4, "a.1", job="a", position=2)
    settle(pool)
    assert held(pool) == {"a": 1, "b": 3}


# -- quotas ------------------------------------------------------------------------------------------------------------


def test_user_gets_no_more_than_his_quota_when_nothing_is_lent() -> None:
    pool = fair(8, quotas={"users": {"ann": 2}, "borrowing": False})
    ask_many(pool, "a", 4, user="ann", weight=9)
    ask_many(pool, "b", 4, user="ann")
    ask_many(pool, "c", 4, user="bob")
    settle(pool)
    assert sum(held(pool).get(job, 0) for job in "ab") == 2
    assert held(pool)["c"] == 4


def test_workspace_gets_no_more_than_its_quota_while_others_want_the_slots() -> None:
    pool = fair(4, quotas={"workspaces": {"vision": 1}})
    ask_many(pool, "a", 4, workspace="vision", weight=9)
    ask_many(pool, "b", 3, workspace="audio")
    decide(pool)
    assert held(pool) == {"a": 1, "b": 3}


@pytest.mark.parametrize("users", [{"ann": 1}, {"*": 1}])
def test_slots_that_nobody_claims_are_lent_at_once(users: dict[str, int]) -> None:
    """Not at the next decision: that is made when something changes, which may be in days."""
    pool = fair(4, quotas={"users": users})
    ask_many(pool, "a", 3, user="ann")
    assert started(pool) == ["a.0", "a.1", "a.2"]
    assert started(pool) == []


def test_fair_parts_follow_weights_and_nobody_has_more_than_he_can_use() -> None:
    assert fair_parts({"a": (1, 9), "b": (3, 9)}, 8) == {"a": 2, "b": 6}
    assert fair_parts({"a": (1, 9), "b": (3, 2)}, 8) == {"a": 6, "b": 2}
    assert fair_parts({"a": (1, 1), "b": (1, 2), "c": (2, 9)}, 8) == {"a": 1, "b": 2, "c": 5}
    assert fair_parts({"a": (1, 9), "b": (1, 9), "c": (1, 9)}, 8) == pytest.approx(dict.fromkeys("abc", 8 / 3))
    assert fair_parts({"a": (1, 2), "b": (0, 9)}, 8) == {"a": 2, "b": 0}
    assert fair_parts({"a": (1, 2)}, 0) == {"a": 0}
    assert fair_parts({}, 8) == {}
