"""GPUs that are close: which slots an agent gives, which agent is taken, and who waits for them."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.scheduling.pools import agent, ask, hold, started, wish
from workflows.config.resources import Closeness
from workflows.lifecycle.explain import why_queued
from workflows.scheduling.explain import standings
from workflows.scheduling.model import Placement, PoolSnapshot
from workflows.scheduling.pool import Pool
from workflows.scheduling.settings import PoolSettings
from workflows.scheduling.topology import Topology

#: Eight GPUs in pairs by NVLink, the halves on a processor each.
PAIRS = Topology(nvlink=((0, 4), (1, 5), (2, 6), (3, 7)), numa=((0, 1, 4, 5), (2, 3, 6, 7)))


@pytest.mark.parametrize(
    ("free", "count", "slots"),
    [
        (range(8), 2, (0, 4)),
        (range(8), 4, (0, 1, 4, 5)),
        ((0, 1, 2, 3, 6), 2, (2, 6)),
        ((1, 2, 3, 6), 1, (1,)),  # what is left of a pair, so that the other one stays whole
        ((0, 1, 2, 3, 6, 7), 4, (2, 3, 6, 7)),
        ((0, 1, 2, 3), 2, (0, 1)),  # of no pair, but of one processor
        (range(8), 6, (0, 1, 2, 3, 4, 5)),
    ],
)
def test_slots_are_of_the_closest_group_with_room_and_of_the_fullest_such(
    free: Collection[int], count: int, slots: tuple[int, ...]
) -> None:
    assert PAIRS.chosen(sorted(free), count) == slots


SLOTS = range(8)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    def groups() -> tuple[tuple[int, ...], ...]:
        owner = [draw(st.integers(0, 4)) for _ in SLOTS]
        found = (tuple(slot for slot in SLOTS if owner[slot] == number) for number in range(4))  # those of 4: in none
        return tuple(group for group in found if len(group) > 1)

    return Topology(nvlink=groups(), pcie=groups(), numa=groups())


@given(topologies(), st.sets(st.sampled_from(SLOTS), min_size=1), st.data())
def test_choice_is_of_free_slots_and_as_close_as_any_other_one(
    topology: Topology, free: set[int], data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(free)))
    chosen = topology.chosen(sorted(free), count)
    assert len(set(chosen)) == len(chosen) == count
    assert set(chosen) <= free
    for _, groups in topology.levels:  # the closest kind that has room for them joins them
        if count > 1 and any(len(free & set(group)) >= count for group in groups):
            assert any(set(chosen) <= set(group) for group in groups)
            break
    assert topology.is_closest(SLOTS, SLOTS, count)


@given(topologies(), st.sets(st.sampled_from(SLOTS)), st.integers(1, 8))
def test_soft_never_waits_and_strong_only_for_what_can_be_closer(
    topology: Topology, held: set[int], count: int
) -> None:
    def placed(closeness: Closeness | None) -> tuple[Placement, ...] | None:
        pool = Pool(PoolSnapshot(agents={"a": agent("a", 8, topology=topology)}), PoolSettings())
        if held:
            hold(pool, "other", "a", *held)
        request = wish(count, closeness=closeness)
        assert pool.fits_ever(request)
        return pool.room.fit(request)

    plain, soft, strong = placed(None), placed("soft"), placed("strong")
    assert soft == plain
    free = set(SLOTS) - held
    is_close = len(free) >= count and topology.is_closest(free, SLOTS, count)
    assert strong == (plain if is_close else None)


def pool_of_two() -> Pool:
    """Of the agents `a` has a pair of GPUs free that nothing joins, `b` has more free, and pairs among it."""
    agents = {name: agent(name, 8, topology=PAIRS) for name in ("a", "b")}
    pool = Pool(PoolSnapshot(agents=agents), PoolSettings())
    hold(pool, "of a", "a", 1, 2, 3, 4, 5, 6)
    return pool


def test_agent_with_close_slots_is_preferred_when_they_are_wanted() -> None:
    pool = pool_of_two()
    plain = pool.room.fit(wish(2))
    soft = pool.room.fit(wish(2, closeness="soft"))
    assert (plain and plain[0].agent_id, soft) == ("a", (Placement(agent_id="b", slot_ids=(0, 4)),))


def test_strong_waits_until_close_slots_are_free_and_why_says_so() -> None:
    pool = pool_of_two()
    hold(pool, "of b", "b", *range(1, 8))
    request = ask(pool, 2, "strong", closeness="strong")
    assert started(pool) == []
    [(_, facts)] = standings("p", pool, [])
    assert facts is not None
    assert facts.is_apart
    assert "as many are free on one host, but apart: by `prefer_gpu_topology: strong` it waits" in why_queued(facts)
    pool.release("of b")
    assert started(pool) == ["strong"]
    [place] = pool.snapshot.grants[request.allocation_id].placements
    assert (place.agent_id, PAIRS.joined_by(place.slot_ids)) == ("b", "NVLink")


def test_close_slots_are_asked_back_of_lower_priorities() -> None:
    pool = pool_of_two()
    pool.configure(PoolSettings(preemption=True))
    hold(pool, "of b", "b", *range(1, 8), priority=90)
    ask(pool, 2, "strong", closeness="strong", priority=10)
    assert started(pool) == []
    assert pool.snapshot.grants["of b"].is_preempting


def test_groups_of_a_slot_are_named() -> None:
    assert [PAIRS.of(slot) for slot in (0, 6)] == ["NVLink 0, NUMA 0", "NVLink 2, NUMA 1"]
    assert Topology().of(0) == ""
    assert PAIRS.joined_by([0, 5]) == "one NUMA node"
    assert PAIRS.joined_by([0, 7]) == PAIRS.joined_by([0]) == ""
