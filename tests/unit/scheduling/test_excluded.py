"""Agents that a request excludes: it waits for others, goes to others, or is given up when no other can hold it."""

from __future__ import annotations

from tests.unit.scheduling.pools import agent, ask, hold, pool_of, started, waiting
from workflows.scheduling.decide import decide
from workflows.scheduling.pool import Pool


def granted(pool: Pool) -> dict[str, list[str]]:
    return {
        grant.request.allocation_id: sorted(place.agent_id for place in grant.placements)
        for grant in decide(pool).starts
    }


def test_request_goes_to_another_agent_when_it_excludes_one() -> None:
    pool = pool_of(1, 4)
    ask(pool, 1, "1", excluded_agents=("a0",))
    assert pool.take_hopeless() == []
    assert granted(pool) == {"1": ["a1"]}


def test_request_is_given_up_when_it_excludes_all_that_could_hold_it() -> None:
    pool = pool_of(4, 2)
    hopeless = ask(pool, 4, "1", excluded_agents=("a0",))
    ask(pool, 2, "2", excluded_agents=("a0",))
    assert pool.take_hopeless() == [hopeless]
    assert waiting(pool) == ["2"]
    assert pool.take_hopeless() == [], "it is given up once"


def test_request_without_slots_is_given_up_when_it_excludes_all_agents() -> None:
    pool = pool_of(4)
    hopeless = ask(pool, 0, "1", excluded_agents=("a0",))
    assert pool.take_hopeless() == [hopeless]


def test_request_is_not_given_up_when_the_others_are_away_busy_or_out_of_service() -> None:
    pool = pool_of(4, 4, 4, 4)
    hold(pool, "held", "a1", 0, 1, 2, 3)
    pool.put_agent(agent("a2", 4, is_available=False))
    pool.put_agent(agent("a3", 4, is_enabled=False))
    for free in ("a1", "a2", "a3"):
        ask(pool, 4, free, excluded_agents=tuple({"a0", "a1", "a2", "a3"} - {free}))
    assert pool.take_hopeless() == []


def test_request_waits_when_it_would_not_fit_without_its_exclusions_either() -> None:
    """Agents of that size may join; in Determined over-asking waits as well."""
    pool = pool_of(2)
    ask(pool, 4, "1", excluded_agents=("a0",))
    assert pool.take_hopeless() == []
    pool.remove_agent("a0")
    assert pool.take_hopeless() == [], "a pool whose agents are not there yet"


def test_request_waits_when_an_agent_that_was_lost_could_hold_it() -> None:
    """A host that restarts must not end a trial."""
    pool = pool_of(4)
    ask(pool, 4, "1", excluded_agents=("a0",))
    assert pool.take_hopeless([agent("b", 4)]) == []
    assert pool.take_hopeless([agent("b", 2)]) != []


def test_request_that_waits_for_a_lost_agent_holds_nobody_up() -> None:
    pool = pool_of(4)
    ask(pool, 4, "1", excluded_agents=("a0",))
    ask(pool, 1, "2")
    assert granted(pool) == {"2": ["a0"]}


def test_request_that_waits_for_a_busy_agent_keeps_its_place() -> None:
    pool = pool_of(4, 4)
    hold(pool, "held", "a1", 0, 1, 2)
    ask(pool, 4, "first", excluded_agents=("a0",))
    ask(pool, 1, "second")
    assert granted(pool) == {}
    assert pool.release("held")
    assert granted(pool) == {"first": ["a1"], "second": ["a0"]}


def test_request_that_waits_for_an_agent_out_of_reach_keeps_its_place() -> None:
    """It will be back: then nobody may have passed."""
    pool = pool_of(4, 4)
    pool.put_agent(agent("a1", 4, is_available=False))
    ask(pool, 4, "first", excluded_agents=("a0",))
    ask(pool, 1, "second")
    assert granted(pool) == {}
    pool.put_agent(agent("a1", 4))
    assert granted(pool) == {"first": ["a1"], "second": ["a0"]}


def test_gang_is_placed_beside_what_it_excludes() -> None:
    pool = pool_of(4, 4, 4)
    ask(pool, 8, "1", excluded_agents=("a1",))
    assert granted(pool) == {"1": ["a0", "a2"]}


def test_nobody_has_to_leave_an_agent_that_is_excluded() -> None:
    pool = pool_of(1, 1, settings={"preemption": True})
    hold(pool, "useless", "a0", 0, priority=90)
    hold(pool, "useful", "a1", 0, priority=80)
    ask(pool, 1, "wants", priority=1, excluded_agents=("a0",))
    assert [leave.allocation_id for leave in decide(pool).leaves] == ["useful"]
    assert pool.release("useful")
    assert started(pool) == ["wants"]
