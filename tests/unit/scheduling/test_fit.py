"""Where one request fits: the table of scheduling.md §2, as far as this release implements it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.scheduling.fit import could_ever_fit, fit
from workflows.scheduling.model import AgentSlots, Grant, Placement, PoolSnapshot, Request


def pool_of(*sizes: int, used: dict[int, int] | None = None, **settings: object) -> PoolSnapshot:
    """Agents a0, a1, … of these sizes; `used`: index of an agent to the number of its slots that are held."""
    agents = {
        f"a{index}": AgentSlots(agent_id=f"a{index}", slot_ids=tuple(range(size)), **settings)  # pyright: ignore
        for index, size in enumerate(sizes)
    }
    pool = PoolSnapshot(agents=agents)
    for index, count in (used or {}).items():
        hold(pool, f"held{index}", f"a{index}", *range(count))
    return pool


def hold(pool: PoolSnapshot, allocation_id: str, agent_id: str, *slots: int) -> None:
    request = Request(allocation_id=allocation_id, holder="w", slots=len(slots))
    pool.grants[allocation_id] = Grant(request=request, placements=(Placement(agent_id=agent_id, slot_ids=slots),))


def wish(slots: int, allocation_id: str = "1.a.1", **more: object) -> Request:
    return Request(allocation_id=allocation_id, holder="trial-1", slots=slots, **more)  # pyright: ignore


def sizes_of(placements: tuple[Placement, ...] | None) -> list[int] | None:
    return None if placements is None else sorted(len(place.slot_ids) for place in placements)


@pytest.mark.parametrize(
    ("slots", "agents", "expected"),
    [
        (10, [1, 5, 10], [10]),
        (16, [8, 7, 7, 4, 4, 4, 4], [4, 4, 4, 4]),
        (16, [5, 5, 5], None),
        (16, [3, 3, 3, 3, 3], None),
        (12, [8, 8, 3, 3, 3], None),
        (8, [4, 4, 4, 4, 4], [4, 4]),
        (6, [4, 4], None),
        (8, [4, 4], [4, 4]),
        (1, [], None),
        (1, [0], None),
        (2, [1, 1], [1, 1]),
        (1, [4, 2, 8], [1]),
    ],
)
def test_request_gets_whole_equal_agents_or_one_when_the_pool_is_idle(
    slots: int, agents: list[int], expected: list[int] | None
) -> None:
    assert sizes_of(fit(pool_of(*agents), wish(slots))) == expected


def test_request_goes_to_the_agent_that_has_room_when_the_other_is_half_used() -> None:
    placements = fit(pool_of(4, 4, used={0: 2}), wish(3))
    assert placements == (Placement(agent_id="a1", slot_ids=(0, 1, 2), rank=0),)


def test_request_takes_the_tightest_hole_when_several_agents_have_room() -> None:
    placements = fit(pool_of(8, 4, 4, used={2: 2}), wish(2))
    assert placements == (Placement(agent_id="a2", slot_ids=(2, 3)),)


def test_request_takes_the_slots_that_are_free_when_lower_ones_are_held() -> None:
    pool = pool_of(4)
    hold(pool, "x", "a0", 0, 2)
    assert fit(pool, wish(2)) == (Placement(agent_id="a0", slot_ids=(1, 3)),)


def test_gang_is_refused_when_one_of_its_agents_is_not_idle() -> None:
    assert fit(pool_of(4, 4, used={1: 1}), wish(8)) is None


def test_gang_leaves_out_the_agent_that_works_when_enough_idle_ones_are_left() -> None:
    placements = fit(pool_of(4, 4, 4, used={1: 1}), wish(8))
    assert placements is not None
    assert {place.agent_id for place in placements} == {"a0", "a2"}


def test_gang_is_refused_when_it_must_stay_on_one_node() -> None:
    assert fit(pool_of(4, 4), wish(8, is_single_node=True)) is None
    assert sizes_of(fit(pool_of(4, 8), wish(8, is_single_node=True))) == [8]


def test_agent_gets_nothing_when_it_is_out_of_reach_or_excluded() -> None:
    pool = pool_of(4, 4)
    pool.agents["a0"].is_available = False
    assert fit(pool, wish(8)) is None
    only = fit(pool, wish(1))
    assert only is not None
    assert only[0].agent_id == "a1"
    assert fit(pool, wish(1, excluded_agents=("a1",))) is None
    assert fit(pool, wish(0, excluded_agents=("a1",))) is None


def test_agents_that_are_gone_still_count_when_asked_whether_it_could_ever_fit() -> None:
    pool = pool_of(4, 4, used={0: 4})
    pool.agents["a1"].is_available = False
    assert fit(pool, wish(8)) is None
    assert could_ever_fit(pool, wish(8))
    assert not could_ever_fit(pool, wish(9))
    assert not could_ever_fit(pool, wish(8, is_single_node=True))
    assert not pool.agents["a1"].is_available, "asking changes nothing"


def test_zero_slots_fit_on_a_full_agent_until_its_own_limit_is_reached() -> None:
    pool = pool_of(1, used={0: 1}, max_zero_slot=2)
    for number in range(2):
        placements = fit(pool, wish(0, f"0slot{number}"))
        assert placements == (Placement(agent_id="a0", slot_ids=()),)
        hold(pool, f"0slot{number}", "a0")
    assert fit(pool, wish(0, "0slot2")) is None


def test_placement_depends_on_ids_only_when_agents_are_alike() -> None:
    """Hash distance breaks ties: the same for the same ids, spread over agents for different allocations."""
    forward, backward = pool_of(4, 4, 4, 4), pool_of(4, 4, 4, 4)
    backward.agents = dict(reversed(backward.agents.items()))
    chosen = set()
    for number in range(50):
        first, second = (fit(pool, wish(1, f"1.t.{number}")) for pool in (forward, backward))
        assert first == second
        assert first is not None
        chosen.add(first[0].agent_id)
    assert len(chosen) == 4


SIZES = st.lists(st.integers(0, 9), max_size=7)


@given(SIZES, st.integers(0, 40), st.dictionaries(st.integers(0, 6), st.integers(0, 9)), st.booleans())
def test_placements_add_up_on_free_slots_when_anything_fits(
    sizes: list[int], slots: int, used: dict[int, int], single: bool
) -> None:
    held = {index: min(count, sizes[index]) for index, count in used.items() if index < len(sizes)}
    pool = pool_of(*sizes, used={index: count for index, count in held.items() if count})
    request = wish(slots, is_single_node=single)
    placements = fit(pool, request)
    if placements is None:
        assert slots == 0 or max((size - held.get(i, 0) for i, size in enumerate(sizes)), default=0) < slots
        return
    assert sum(len(place.slot_ids) for place in placements) == slots
    assert len({place.agent_id for place in placements}) == len(placements)
    assert [place.rank for place in placements] == list(range(len(placements)))
    lengths = [len(place.slot_ids) for place in placements]
    assert lengths[0] == max(lengths), "the chief sits on the largest part"
    for place in placements:
        assert set(place.slot_ids) <= set(pool.free_slots(place.agent_id))
        if len(placements) > 1:
            assert not single
            assert place.slot_ids == pool.agents[place.agent_id].slot_ids, "an agent of a gang is used whole"
    assert could_ever_fit(pool, request)


def test_slots_out_of_service_are_left_out() -> None:
    pool = pool_of(4, 4)
    pool.agents["a0"].disabled_slots = (1, 3)
    taken = fit(pool, wish(2))
    assert taken is not None
    assert (taken[0].agent_id, taken[0].slot_ids) == ("a0", (0, 2)), "the fewest free slots"
    assert fit(pool, wish(8)) is None
    assert could_ever_fit(pool, wish(8)), "an operator may put them back"
    pool.agents["a1"].is_enabled = False
    assert fit(pool, wish(4)) is None
    assert fit(pool, wish(2, excluded_agents=("a0",))) is None
