"""How a request stands in its pool, for whoever asks why it waits."""

from __future__ import annotations

import pytest

from tests.kit.counting import counted
from tests.unit.scheduling.pools import agent, ask, hold, pool_of, started
from workflows.lifecycle.facts import QueueFacts
from workflows.scheduling.decide import decide
from workflows.scheduling.explain import stand, standings
from workflows.scheduling.model import AgentSlots
from workflows.scheduling.pool import Pool
from workflows.scheduling.room import Room


def facts(pool: Pool, allocation_id: str, *lost: AgentSlots) -> QueueFacts:
    [told] = stand("default", pool, lost, [f"trial-{allocation_id}"]).values()
    return told


def test_standing_has_place_slots_and_what_is_free() -> None:
    pool = pool_of(4, 2)
    hold(pool, "1", "a0", 0, 1, 2)
    ask(pool, 4, "2")
    ask(pool, 2, "3", excluded_agents=("a0",))
    first, second, third = (facts(pool, name) for name in "123")
    assert (first.is_granted, first.is_queued, first.slots) == (True, False, 3)
    assert (second.place, second.waiting, second.slots, second.free, second.total, second.agents) == (1, 2, 4, 3, 6, 2)
    assert (third.place, third.free) == (2, 2), "an excluded agent's slots are not free for it"
    assert (second.behind, third.behind, third.behind_slots, third.behind_priority) == ("", "request 2", 4, 42)
    assert third.holders == {"request 1": 3}
    assert second.fits_ever
    assert third.fits_ever
    assert (third.pool, third.policy, third.priority) == ("default", "priority", 42)
    nobody = facts(pool, "4")
    assert not nobody.is_queued
    assert not nobody.is_granted


def test_standings_come_in_rank() -> None:
    pool = pool_of(1)
    hold(pool, "held", "a0", 0)
    ask(pool, 1, "low", priority=90)
    ask(pool, 1, "high", priority=10)
    told = [(request.allocation_id, each and (each.place, each.priority)) for request, each in standings("p", pool, ())]
    assert told == [("high", (1, 10)), ("low", (2, 90))]
    assert facts(pool, "low").behind_priority == 10


def test_standing_says_what_can_never_fit() -> None:
    pool = pool_of(2)
    ask(pool, 3, "1")
    ask(pool, 2, "2", excluded_agents=("a0",))
    first = facts(pool, "1")
    assert (first.fits_ever, first.fits_lost) == (False, False)
    second = facts(pool, "2", agent("b", 2))
    assert (second.fits_ever, second.fits_lost) == (False, True)
    assert second.behind == "", "what never fits holds nobody up"


def test_standing_says_when_the_cap_of_its_job_is_reached() -> None:
    pool = pool_of(8)
    ask(pool, 2, "1", job="j", max_slots=3)
    assert started(pool) == ["1"]
    ask(pool, 2, "2", job="j", max_slots=3)
    capped = facts(pool, "2")
    assert (capped.is_capped, capped.job_slots) == (True, 2)
    ask(pool, 1, "3", job="j", max_slots=3)
    third = facts(pool, "3")
    assert not third.is_capped
    assert third.behind == "", "what is capped holds nobody up"


def test_standing_says_how_many_slots_will_be_free() -> None:
    pool = pool_of(4, settings={"preemption": True})
    hold(pool, "low", "a0", 0, 1, priority=90)
    hold(pool, "high", "a0", 2, 3, priority=1)
    ask(pool, 2, "1", priority=50)
    assert facts(pool, "1").leaving == 0
    assert started(pool) == []
    assert facts(pool, "1").leaving == 2


def test_requests_without_slots_stand_in_a_line_of_their_own() -> None:
    pool = pool_of(1, aux=1)
    hold(pool, "x", "a0", 0)
    hold(pool, "y", "a0")
    ask(pool, 1, "slotted")
    ask(pool, 0, "zero")
    ask(pool, 0, "zero too")
    assert [facts(pool, name).behind for name in ("slotted", "zero", "zero too")] == ["", "", "request zero"]
    assert facts(pool, "zero").holders == {"request x": 1}


def test_standing_of_work_without_slots_says_for_how_much_there_is_room() -> None:
    pool = pool_of(1, 1, settings={"max_aux_containers_per_agent": 3}, aux=None)
    hold(pool, "y", "a0")
    ask(pool, 0, "zero", excluded_agents=("a1",))
    standing = facts(pool, "zero")
    assert (standing.free_aux, standing.most_aux) == (2, 3)


def test_standing_tells_of_the_quota_that_is_used_up() -> None:
    pool = pool_of(4, settings={"quotas": {"users": {"ann": 1}, "workspaces": {"vision": 2}, "borrowing": False}})
    hold(pool, "1", "a0", 0, user="ann", workspace="vision")
    ask(pool, 1, "2", user="ann", workspace="vision")
    ask(pool, 1, "3", user="bob", workspace="vision")
    ann, bob = facts(pool, "2"), facts(pool, "3")
    assert (ann.is_borrowing, ann.lends, ann.quota) == (
        True,
        False,
        "user ann has 1 slot and workspace vision has 2 slots",
    )
    assert (bob.is_borrowing, bob.quota) == (False, "")


@pytest.mark.parametrize("policy", ["fair_share", "round_robin"])
def test_nobody_is_behind_another_one_where_there_is_no_line(policy: str) -> None:
    pool = pool_of(1, settings={"scheduler": policy})
    hold(pool, "held", "a0", 0)
    ask(pool, 1, "1")
    ask(pool, 1, "2")
    second = facts(pool, "2")
    assert (second.behind, second.policy) == ("", policy)


def test_slots_of_an_agent_out_of_reach_are_not_free() -> None:
    pool = pool_of(8)
    pool.put_agent(agent("a0", 8, is_available=False))
    ask(pool, 1, "1")
    standing = facts(pool, "1")
    assert (standing.free, standing.total, standing.fits_ever) == (0, 8, True)


def test_asking_changes_nothing() -> None:
    pool = pool_of(4, 4)
    ask(pool, 8, "1")
    before = pool.snapshot.model_copy(deep=True)
    assert facts(pool, "1").free == facts(pool, "1").free == 8
    assert pool.snapshot == before
    assert started(pool) == ["1"]


def test_all_who_are_asked_about_are_told_of_in_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of(*[4] * 50)
    for number in range(300):
        ask(pool, 1 + number % 2, str(number))
    decide(pool)
    apart = {holder: stand("p", pool, (), [holder])[holder] for holder in (f"trial-{n}" for n in range(301))}
    passed, looked = counted(monkeypatch, Pool, "fits_ever"), counted(monkeypatch, Room, "free_aux")
    assert stand("p", pool, (), list(apart)) == apart
    assert sum(facts.is_granted for facts in apart.values()) < 250
    assert sum(facts.is_queued for facts in apart.values()) > 50
    assert len(looked) == 2, "once for each shape"
    assert len(passed) == len(pool.snapshot.queue) + 2
    [(_, told), *others] = standings("p", pool, (), lambda request: request.holder == "trial-299")
    assert told is None
    assert [facts for _, facts in others if facts is not None] == [apart["trial-299"]]
