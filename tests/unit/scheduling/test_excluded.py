"""Agents that a request excludes: it waits for others, goes to others, or is given up when no other can hold it."""

from __future__ import annotations

from workflows.scheduling.explain import stand
from workflows.scheduling.fifo import schedule
from workflows.scheduling.fit import take_hopeless
from workflows.scheduling.model import AgentSlots, PoolSnapshot, Request


def pool_of(**sizes: int) -> PoolSnapshot:
    return PoolSnapshot(agents={name: agent(name, size) for name, size in sizes.items()})


def agent(name: str, size: int) -> AgentSlots:
    return AgentSlots(agent_id=name, slot_ids=tuple(range(size)))


def wish(pool: PoolSnapshot, name: str, slots: int = 1, *excluded: str, **more: object) -> Request:
    request = Request(
        allocation_id=name,
        name=f"request {name}",
        holder=f"trial-{name}",
        slots=slots,
        excluded_agents=excluded,
        **more,  # pyright: ignore
    )
    pool.queue.append(request)
    return request


def granted(pool: PoolSnapshot) -> dict[str, list[str]]:
    return {grant.request.allocation_id: [place.agent_id for place in grant.placements] for grant in schedule(pool)}


def test_request_goes_to_another_agent_when_it_excludes_one() -> None:
    pool = pool_of(a=1, b=4)
    wish(pool, "1", 1, "a")
    assert take_hopeless(pool) == []
    assert granted(pool) == {"1": ["b"]}


def test_request_is_given_up_when_it_excludes_all_that_could_hold_it() -> None:
    pool = pool_of(a=4, b=2)
    hopeless = wish(pool, "1", 4, "a")
    wish(pool, "2", 2, "a")
    assert take_hopeless(pool) == [hopeless]
    assert [request.allocation_id for request in pool.queue] == ["2"]
    assert take_hopeless(pool) == [], "it is given up once"


def test_request_waits_when_it_would_not_fit_without_its_exclusions_either() -> None:
    """Agents of that size may join; in Determined over-asking waits as well."""
    pool = pool_of(a=2)
    wish(pool, "1", 4, "a")
    assert take_hopeless(pool) == []
    assert take_hopeless(PoolSnapshot(queue=pool.queue)) == [], "a pool whose agents are not there yet"


def test_request_waits_when_an_agent_that_was_lost_could_hold_it() -> None:
    """A host that restarts must not end a trial."""
    pool = pool_of(a=4)
    wish(pool, "1", 4, "a")
    assert take_hopeless(pool, [agent("b", 4)]) == []
    assert take_hopeless(pool, [agent("b", 2)]) != []


def test_request_that_waits_for_a_lost_agent_holds_nobody_up() -> None:
    pool = pool_of(a=4)
    wish(pool, "1", 4, "a")
    wish(pool, "2", 1)
    assert granted(pool) == {"2": ["a"]}


def test_request_that_waits_for_a_busy_agent_keeps_its_place() -> None:
    pool = pool_of(a=4, b=4)
    wish(pool, "1", 3)
    [first] = schedule(pool)
    busy = first.placements[0].agent_id
    other = "b" if busy == "a" else "a"
    wish(pool, "2", 4, other)
    wish(pool, "3", 1)
    assert granted(pool) == {}, "first in, first out"


def test_gang_is_placed_beside_what_it_excludes() -> None:
    pool = pool_of(a=4, b=4, c=4)
    wish(pool, "1", 8, "b")
    assert sorted(granted(pool)["1"]) == ["a", "c"]


# -- how a request stands ----------------------------------------------------------------------------------------------


def test_standing_has_place_slots_and_what_is_free() -> None:
    pool = pool_of(a=4, b=2)
    wish(pool, "1", 3)
    schedule(pool)
    wish(pool, "2", 4)
    wish(pool, "3", 2, "a")
    first, second, third = (stand("default", pool, {}, f"trial-{name}") for name in "123")
    assert (first.is_granted, first.is_queued, first.slots) == (True, False, 3)
    assert (second.place, second.waiting, second.slots, second.free, second.total, second.agents) == (1, 2, 4, 3, 6, 2)
    assert (third.place, third.free) == (2, 2), "an excluded agent's slots are not free for it"
    assert (second.behind, third.behind, third.behind_slots) == ("", "request 2", 4)
    assert third.holders == {"request 1": 3}
    assert second.fits_ever
    assert third.fits_ever
    nobody = stand("default", pool, {}, "trial-4")
    assert not nobody.is_queued
    assert not nobody.is_granted


def test_standing_says_what_can_never_fit() -> None:
    pool = pool_of(a=2)
    wish(pool, "1", 3)
    wish(pool, "2", 2, "a")
    first = stand("default", pool, {}, "trial-1")
    assert (first.fits_ever, first.fits_lost) == (False, False)
    second = stand("default", pool, {"b": agent("b", 2)}, "trial-2")
    assert (second.fits_ever, second.fits_lost) == (False, True)


def test_standing_says_when_the_cap_of_its_job_is_reached() -> None:
    pool = pool_of(a=8)
    wish(pool, "1", 2, job_id="j", max_slots=3)
    schedule(pool)
    wish(pool, "2", 2, job_id="j", max_slots=3)
    assert stand("default", pool, {}, "trial-2").is_capped
    wish(pool, "3", 1, job_id="j", max_slots=3)
    assert not stand("default", pool, {}, "trial-3").is_capped


def test_slots_of_an_agent_out_of_reach_are_not_free() -> None:
    pool = pool_of(a=8)
    pool.agents["a"].is_available = False
    wish(pool, "1")
    standing = stand("default", pool, {}, "trial-1")
    assert (standing.free, standing.total, standing.fits_ever) == (0, 8, True)
