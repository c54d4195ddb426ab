"""Where one request fits: the table of scheduling.md §2, and the same rules written down a second time, slowly."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.scheduling.pools import agent, ask, hold, pool_of, sizes_of, started, wish
from workflows.scheduling.model import AgentSlots, Grant, Placement, PoolSnapshot, Request
from workflows.scheduling.pool import Pool
from workflows.scheduling.room import Room
from workflows.scheduling.settings import Fitting, PoolSettings

MIXED = {"allow_heterogeneous_fits": True}
WORST = {"fitting_policy": "worst"}


# -- a cluster, which places containers by itself -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slots", "single", "pods"),
    [
        (1, False, [1]),
        (4, True, [4]),
        (8, False, [4, 4]),
        (8, True, None),  # more than a pod holds
        (6, False, None),  # pods of an allocation are equal
        (12, False, [4, 4, 4]),
        (16, False, None),
        (0, False, [0]),
    ],
)
def test_cluster_gives_pods_and_only_counts_their_slots(slots: int, single: bool, pods: list[int] | None) -> None:
    cluster = AgentSlots(agent_id="gpu", slot_ids=tuple(range(14)), slots_per_pod=4, max_zero_slot=1000)
    room = Room([cluster], fitting=Fitting.BEST)
    request = Request(allocation_id="a", holder="h", slots=slots, is_single_node=single)
    found = room.fit(request)
    assert (found and [place.count for place in found]) == pods
    if found:
        assert [place.rank for place in found] == list(range(len(found)))
        room.take(found)
        assert room.free == 14 - slots
        room.give(found)
    assert room.free == 14


def test_cluster_that_shrinks_has_no_more_free_than_it_has_left() -> None:
    """The ids of its slots only count: those that are held stay, whichever they are."""
    grant = Grant(
        request=Request(allocation_id="a", holder="h", slots=4),
        placements=(Placement(agent_id="gpu", slot_ids=(4, 5, 6, 7)),),
    )
    gpu = AgentSlots(agent_id="gpu", slot_ids=tuple(range(8)), slots_per_pod=4)
    pool = Pool(PoolSnapshot(agents={"gpu": gpu}, grants={"a": grant}), PoolSettings())
    for left, ids in ((4, (4, 5, 6, 7)), (2, (4, 5)), (6, (0, 1, 4, 5, 6, 7)), (0, ())):
        pool.put_agent(AgentSlots(agent_id="gpu", slot_ids=tuple(range(left)), slots_per_pod=4))
        assert pool.snapshot.agents["gpu"].slot_ids == ids
        room = Room(pool.snapshot.agents.values(), [grant], fitting=Fitting.BEST)
        assert room.free == max(0, left - 4)


def test_cluster_takes_no_part_in_what_hosts_hold_together() -> None:
    hosts = [AgentSlots(agent_id=f"h{n}", slot_ids=(0, 1)) for n in range(2)]
    cluster = AgentSlots(agent_id="gpu", slot_ids=(0, 1), slots_per_pod=2)
    room = Room([*hosts, cluster], fitting=Fitting.BEST)
    found = room.fit(Request(allocation_id="a", holder="h", slots=4))
    assert found is not None
    assert {place.agent_id for place in found} == {"h0", "h1"}
    assert room.free == 6
    excluded = Request(allocation_id="b", holder="h", slots=2, excluded_agents=("h0", "h1"))
    pods = room.fit(excluded)
    assert pods is not None
    assert [place.agent_id for place in pods] == ["gpu"]
    assert room.fit(excluded.model_copy(update={"excluded_agents": ("h0", "h1", "gpu")})) is None


# -- the table of the spec ---------------------------------------------------------------------------------------------


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
    assert sizes_of(pool_of(*agents).room.fit(wish(slots))) == expected


@pytest.mark.parametrize(
    ("slots", "agents", "expected"),
    [
        (4, [2, 1, 1], [2, 1, 1]),
        (4, [2, 1, 1, 1, 1], [1, 1, 1, 1]),
        (8, [2, 1, 1], None),
        (63, [32, 32, 16, 16, 8, 8, 4, 4, 2, 2, 1, 1], [32, 16, 8, 4, 2, 1]),
        (12, [8, 6, 4], [8, 4]),
        (12, [8, 6, 6], [6, 6]),
        (18, [8, 6, 6, 6, 4], [6, 6, 6]),
        (18, [8, 6, 6, 4], [8, 6, 4]),
    ],
)
def test_request_gets_agents_of_several_sizes_when_that_is_allowed_and_equal_ones_do_not_do(
    slots: int, agents: list[int], expected: list[int] | None
) -> None:
    placements = pool_of(*agents, settings=MIXED).room.fit(wish(slots))
    assert sizes_of(placements) == (expected and sorted(expected))
    by_rank = [len(place.slot_ids) for place in placements or ()]
    assert by_rank == sorted(by_rank, reverse=True), "the chief sits on the largest part"


def test_request_gets_agents_of_one_size_only_when_mixing_is_off() -> None:
    assert pool_of(2, 1, 1).room.fit(wish(4)) is None


def test_request_goes_to_the_agent_that_has_room_when_the_other_is_half_used() -> None:
    pool = pool_of(4, 4)
    hold(pool, "held", "a0", 0, 1)
    assert pool.room.fit(wish(3)) == (Placement(agent_id="a1", slot_ids=(0, 1, 2), rank=0),)


def test_request_takes_the_tightest_hole_when_several_agents_have_room() -> None:
    pool = pool_of(8, 4, 4)
    hold(pool, "held", "a2", 0, 1)
    assert pool.room.fit(wish(2)) == (Placement(agent_id="a2", slot_ids=(2, 3)),)


def test_worst_fitting_takes_the_agent_of_which_the_largest_part_is_free() -> None:
    pool = pool_of(8, 4, 2, settings=WORST)
    hold(pool, "x", "a0", 0, 1, 2)
    hold(pool, "y", "a1", 0)
    hold(pool, "z", "a2", 0)
    assert pool.room.fit(wish(1)) == (Placement(agent_id="a1", slot_ids=(1,)),), "3/4 of it, not 5/8 or 1/2"
    assert pool.room.fit(wish(4)) == (Placement(agent_id="a0", slot_ids=(3, 4, 5, 6)),), "the only one with room"


def test_request_takes_the_slots_that_are_free_when_lower_ones_are_held() -> None:
    pool = pool_of(4)
    hold(pool, "x", "a0", 0, 2)
    assert pool.room.fit(wish(2)) == (Placement(agent_id="a0", slot_ids=(1, 3)),)


def test_gang_is_refused_when_one_of_its_agents_is_not_idle() -> None:
    pool = pool_of(4, 4)
    hold(pool, "x", "a1", 0)
    assert pool.room.fit(wish(8)) is None


def test_gang_leaves_out_the_agent_that_works_when_enough_idle_ones_are_left() -> None:
    pool = pool_of(4, 4, 4)
    hold(pool, "x", "a1", 0)
    placements = pool.room.fit(wish(8))
    assert placements is not None
    assert {place.agent_id for place in placements} == {"a0", "a2"}


def test_gang_takes_an_agent_that_runs_work_without_slots_only() -> None:
    pool = pool_of(4, 4)
    hold(pool, "zero", "a1")
    assert sizes_of(pool.room.fit(wish(8))) == [4, 4]


@pytest.mark.parametrize("settings", [{}, MIXED])
def test_request_stays_on_one_agent_when_it_must(settings: dict[str, Any]) -> None:
    assert pool_of(4, 4, 2, settings=settings).room.fit(wish(8, is_single_node=True)) is None
    assert sizes_of(pool_of(4, 8, settings=settings).room.fit(wish(8, is_single_node=True))) == [8]


def test_agent_gets_nothing_when_it_is_out_of_reach_out_of_service_or_excluded() -> None:
    for more in ({"is_available": False}, {"is_enabled": False}):
        pool = pool_of(4, 4)
        pool.put_agent(agent("a0", 4, **more))
        assert pool.room.fit(wish(8)) is None
        for slots in (0, 1):
            [only] = pool.room.fit(wish(slots)) or ()
            assert only.agent_id == "a1"
            assert pool.room.fit(wish(slots, excluded_agents=("a1",))) is None


def test_slots_out_of_service_are_left_out() -> None:
    pool = pool_of(4, 4)
    pool.put_agent(agent("a0", 4, disabled_slots=(1, 3)))
    assert pool.room.fit(wish(2)) == (Placement(agent_id="a0", slot_ids=(0, 2)),), "the fewest free slots"
    assert pool.room.fit(wish(8)) is None
    assert pool.fits_ever(wish(8)), "an operator may put them back"
    pool.put_agent(agent("a1", 4, is_enabled=False))
    assert pool.room.fit(wish(4)) is None
    assert pool.room.fit(wish(2, excluded_agents=("a0",))) is None


def test_gang_takes_what_is_in_service_when_other_slots_of_its_agents_are_not() -> None:
    pool = pool_of(4, 3)
    pool.put_agent(agent("a0", 4, disabled_slots=(1,)))
    placements = pool.room.fit(wish(6))
    assert {place.agent_id: place.slot_ids for place in placements or ()} == {"a0": (0, 2, 3), "a1": (0, 1, 2)}


# -- without slots -----------------------------------------------------------------------------------------------------


def test_zero_slots_fit_on_a_full_agent_until_its_own_limit_is_reached() -> None:
    pool = pool_of(1, aux=2)
    hold(pool, "full", "a0", 0)
    for number in range(2):
        assert pool.room.fit(wish(0, f"0slot{number}")) == (Placement(agent_id="a0", slot_ids=()),)
        hold(pool, f"0slot{number}", "a0")
    assert pool.room.fit(wish(0, "0slot2")) is None
    assert pool.release("0slot0")
    assert pool.room.fit(wish(0, "0slot2")) is not None


def zero_goes_to(fitting: str, *agents: AgentSlots, held: dict[str, tuple[int, ...]] | None = None) -> str:
    pool = pool_of(settings={"fitting_policy": fitting})
    for each in agents:
        pool.put_agent(each)
    for agent_id, slots in (held or {}).items():
        hold(pool, f"held {agent_id}", agent_id, *slots)
    [place] = pool.room.fit(wish(0)) or ()
    return place.agent_id


def test_zero_slots_go_to_the_agent_with_the_fewest_free_slots_when_both_are_busy() -> None:
    held = {"a": (0,), "b": (0,)}
    assert zero_goes_to("best", agent("a", 2), agent("b", 4), held=held) == "a"
    assert zero_goes_to("best", agent("a", 4), agent("b", 2), held=held) == "b"


def test_zero_slots_go_to_the_agent_with_the_most_free_slots_when_fitting_is_worst() -> None:
    held = {"a": (0,), "b": (0,)}
    assert zero_goes_to("worst", agent("a", 2), agent("b", 4), held=held) == "b"
    assert zero_goes_to("worst", agent("a", 4), agent("b", 2), held=held) == "a"


def test_zero_slots_go_to_the_idle_agent_that_takes_the_fewest_of_them() -> None:
    """An idle agent scores by its places for work without slots, a busy one by its slots."""
    assert zero_goes_to("best", agent("a", 1, max_zero_slot=9), agent("b", 8, max_zero_slot=3)) == "b"
    assert zero_goes_to("best", agent("a", 8, max_zero_slot=2), agent("b", 2), held={"b": (0,)}) == "b", "1/2 and 1/3"
    assert zero_goes_to("best", agent("a", 8, max_zero_slot=1), agent("b", 4), held={"b": (0,)}) == "a", "1/2 and 1/4"
    assert zero_goes_to("worst", agent("a", 8, max_zero_slot=1), agent("b", 4), held={"b": (0,)}) == "a", "1 and 3/4"


def test_agent_that_takes_no_work_without_slots_gets_none() -> None:
    assert zero_goes_to("best", agent("a", 1, max_zero_slot=0), agent("b", 8)) == "b"
    assert pool_of(8, aux=0).room.fit(wish(0)) is None


def test_pool_says_how_much_work_without_slots_an_agent_takes() -> None:
    """It takes no slots, and those who hold all slots leave it its places. Who runs stays when the pool takes less."""
    pool = pool_of(1, 1, settings={"max_aux_containers_per_agent": 2}, aux=None)
    hold(pool, "x", "a0", 0)
    hold(pool, "y", "a1", 0)
    for number in range(6):
        ask(pool, 0, f"zero {number}")
    assert started(pool) == [f"zero {number}" for number in range(4)]
    on = Counter(place.agent_id for grant in pool.snapshot.grants.values() for place in grant.placements)
    assert on == {"a0": 3, "a1": 3}
    pool.configure(PoolSettings(max_aux_containers_per_agent=1))
    assert pool.release("zero 0")
    assert started(pool) == []
    pool.configure(PoolSettings())
    assert started(pool) == ["zero 4", "zero 5"]


def test_work_without_slots_on_an_agent_makes_it_busy_and_takes_no_slots() -> None:
    """That of the spec's two columns of scores in which it counts is told by the free slots."""
    assert zero_goes_to("best", agent("a", 1), agent("b", 2, max_zero_slot=9), held={"a": ()}) == "a"
    pool = pool_of(2)
    hold(pool, "zero", "a0")
    assert pool.room.free_of("a0") == pool.room.free == 2
    assert pool.room.free_of("nobody") == 0


# -- ties --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [0, 1, 8])
@pytest.mark.parametrize("settings", [{}, WORST])
def test_placement_depends_on_ids_only_when_agents_are_alike(slots: int, settings: dict[str, Any]) -> None:
    """Hash distance breaks ties: the same for the same ids, spread over agents for different allocations."""
    forward = pool_of(4, 4, 4, 4, settings=settings)
    backward = pool_of(settings=settings)
    for each in reversed(forward.snapshot.agents.values()):
        backward.put_agent(each)
    chosen = set[str]()
    for number in range(50):
        first, second = (pool.room.fit(wish(slots, f"1.t.{number}")) for pool in (forward, backward))
        assert first == second
        assert first is not None
        chosen.add(first[0].agent_id)
    assert len(chosen) == 4


# -- agents that are not there, or not now -----------------------------------------------------------------------------


def test_agents_that_are_away_or_busy_count_when_asked_whether_it_ever_fits() -> None:
    pool = pool_of(4, 4)
    hold(pool, "held", "a0", 0, 1, 2, 3)
    pool.put_agent(agent("a1", 4, is_available=False))
    assert pool.room.fit(wish(8)) is None
    assert pool.fits_ever(wish(8))
    assert not pool.fits_ever(wish(9))
    assert not pool.fits_ever(wish(8, is_single_node=True))
    assert not pool.fits_ever(wish(8, excluded_agents=("a1",)))
    assert not pool.snapshot.agents["a1"].is_available, "asking changes nothing"


def test_what_ever_fits_is_told_anew_when_agents_or_settings_change() -> None:
    pool = pool_of(2, 1)
    request = wish(3)
    assert not pool.fits_ever(request)
    pool.configure(pool.settings.model_copy(update=MIXED))
    assert pool.fits_ever(request)
    pool.remove_agent("a1")
    assert not pool.fits_ever(request)
    pool.put_agent(agent("a1", 3))
    assert pool.fits_ever(request)


def test_work_without_slots_never_fits_where_no_agent_takes_any() -> None:
    assert not pool_of(4, aux=0).fits_ever(wish(0))
    assert not pool_of().fits_ever(wish(0))
    assert pool_of(4, aux=1).fits_ever(wish(0))


def test_lost_agents_could_hold_a_request_together_with_those_that_are_there() -> None:
    pool = pool_of(4)
    request = wish(8)
    assert not pool.could_hold(request)
    assert not pool.could_hold(request, [agent("b", 3)])
    assert pool.could_hold(request, [agent("b", 4, is_available=False, is_enabled=False, disabled_slots=(0,))])
    assert not pool.could_hold(request, [agent("a0", 8)]), "the agent is back, with the size that it has now"
    assert list(pool.snapshot.agents) == ["a0"]


# -- the rules, a second time ------------------------------------------------------------------------------------------


@dataclass
class Naive:
    """Agents, what is held, and the spec's rules word by word: nothing is kept sorted, nothing is remembered."""

    agents: list[AgentSlots]
    fitting: Fitting
    mixed: bool
    held: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    zeros: Counter[str] = field(default_factory=Counter[str])

    def free(self, agent: AgentSlots) -> list[int]:
        """Slots in service that nobody holds; those out of service count for nothing."""
        if not (agent.is_available and agent.is_enabled):
            return []
        return [
            s for s in sorted(agent.slot_ids) if s not in agent.disabled_slots and (agent.agent_id, s) not in self.held
        ]

    def in_service(self, agent: AgentSlots) -> int:
        return len(set(agent.slot_ids) - set(agent.disabled_slots))

    def score(self, agent: AgentSlots, slots: int) -> float:
        empty, total = len(self.free(agent)), self.in_service(agent)
        most = agent.max_zero_slot or 0
        free_aux = most - self.zeros[agent.agent_id]
        is_busy = empty < total or free_aux < most
        if is_busy or slots > 0:
            if self.fitting is Fitting.BEST:
                return 1 / (1 + empty)
            return empty / total if total else 0.0
        if most == 0:
            return 0.0
        return 1 / (1 + free_aux) if self.fitting is Fitting.BEST else free_aux / most

    def sorted(self, agents: list[AgentSlots], request: Request) -> list[AgentSlots]:
        return sorted(
            agents,
            key=lambda a: (-self.score(a, request.slots), distance(request.allocation_id, a.agent_id), a.agent_id),
        )

    def fit(self, request: Request) -> tuple[Placement, ...] | None:
        slots = request.slots
        usable = [a for a in self.agents if a.is_available and a.is_enabled]
        usable = [a for a in usable if a.agent_id not in request.excluded_agents]
        if slots == 0:
            shared = [a for a in usable if self.zeros[a.agent_id] < (a.max_zero_slot or 0)]
        else:
            shared = [a for a in usable if len(self.free(a)) >= slots]
        if shared:
            first = self.sorted(shared, request)[0]
            return (Placement(agent_id=first.agent_id, slot_ids=tuple(self.free(first)[:slots])),)
        if slots < 2 or request.is_single_node:
            return None
        groups = defaultdict[int, list[AgentSlots]](list)
        for each in usable:
            if self.free(each) and len(self.free(each)) == self.in_service(each):
                groups[len(self.free(each))].append(each)
        for size in sorted(groups, reverse=True):
            if len(groups[size]) * size >= slots and slots % size == 0:
                return self.whole(self.sorted(groups[size], request)[: slots // size])
        if not self.mixed:
            return None
        chosen: list[AgentSlots] = []
        left = slots
        for size in sorted(groups, reverse=True):
            count = min(left // size, len(groups[size]))
            chosen += self.sorted(groups[size], request)[:count]
            left -= count * size
        return None if left else self.whole(chosen)

    def whole(self, agents: list[AgentSlots]) -> tuple[Placement, ...]:
        return tuple(
            Placement(agent_id=a.agent_id, slot_ids=tuple(self.free(a)), rank=rank) for rank, a in enumerate(agents)
        )

    def fresh(self) -> Room:
        """A room of the same state."""
        places = [Placement(agent_id=agent_id, slot_ids=(slot,)) for agent_id, slot in sorted(self.held)]
        places += [Placement(agent_id=agent_id, slot_ids=()) for agent_id in self.zeros.elements()]
        grants = [Grant(request=wish(len(p.slot_ids), f"g{n}"), placements=(p,)) for n, p in enumerate(places)]
        return Room(self.agents, grants, fitting=self.fitting, mixed=self.mixed)

    def take(self, placements: tuple[Placement, ...]) -> None:
        for place in placements:
            self.held |= {(place.agent_id, slot) for slot in place.slot_ids}
            self.zeros[place.agent_id] += not place.slot_ids

    def give(self, placements: tuple[Placement, ...]) -> None:
        for place in placements:
            self.held -= {(place.agent_id, slot) for slot in place.slot_ids}
            self.zeros[place.agent_id] -= not place.slot_ids


def distance(allocation_id: str, agent_id: str) -> int:
    def number(text: str) -> int:
        return int.from_bytes(hashlib.md5(text.encode()).digest()[:8], "little")

    return (number(allocation_id) - number(agent_id)) & 0xFFFF_FFFF_FFFF_FFFF


MOSTLY = st.sampled_from([True, True, True, False])


@st.composite
def naive_pools(draw: st.DrawFn) -> Naive:
    agents: list[AgentSlots] = []
    for number in range(draw(st.integers(0, 6))):
        size = draw(st.integers(0, 5))
        agents.append(
            agent(
                f"a{number}",
                size,
                max_zero_slot=draw(st.integers(0, 3)),
                is_available=draw(MOSTLY),
                is_enabled=draw(MOSTLY),
                disabled_slots=tuple(slot for slot in range(size) if not draw(MOSTLY)) if draw(st.booleans()) else (),
            )
        )
    return Naive(agents, draw(st.sampled_from(Fitting)), draw(st.booleans()))


REQUESTS = st.builds(
    wish,
    st.integers(0, 14),
    st.integers(0, 30).map("1.t.{}".format),
    is_single_node=st.sampled_from([False, False, True]),
    excluded_agents=st.lists(st.integers(0, 6).map("a{}".format), max_size=2, unique=True).map(tuple),
)


@given(naive_pools(), REQUESTS)
def test_placements_add_up_on_free_slots_when_anything_fits(pool: Naive, request: Request) -> None:
    placements = pool.fresh().fit(request)
    assert placements == pool.fit(request)
    if placements is None:
        return
    lengths = [len(place.slot_ids) for place in placements]
    assert sum(lengths) == request.slots
    assert len({place.agent_id for place in placements}) == len(placements)
    assert [place.rank for place in placements] == list(range(len(placements)))
    assert lengths[0] == max(lengths), "the chief sits on the largest part"
    assert not (request.is_single_node and len(placements) > 1)


@given(naive_pools(), st.data())
def test_room_that_is_kept_up_to_date_answers_as_a_new_one_and_as_the_rules(pool: Naive, data: st.DataObject) -> None:
    """Slots are taken and given in any order, as a decision does it: what fits, parts of it, and what is free of it."""
    room = pool.fresh()
    taken: list[tuple[Placement, ...]] = []
    for step in range(data.draw(st.integers(1, 12), "steps")):
        action = data.draw(st.sampled_from(["start", "start", "start", "give", "reserve", "take again"]), "action")
        if action == "start":
            request = data.draw(REQUESTS, "request").model_copy(update={"allocation_id": f"s{step}"})
            placements = room.fit(request)
            assert placements == pool.fit(request) == pool.fresh().fit(request)
            if placements is not None:
                room.take(placements)
                pool.take(placements)
                taken.append(placements)
        elif action == "give" and taken:
            placements = taken.pop(data.draw(st.integers(0, len(taken) - 1), "which"))
            room.give(placements)
            pool.give(placements)
        elif action == "take again" and taken:
            held = tuple(place for place in data.draw(st.sampled_from(taken), "held") if place.slot_ids)
            room.take(held)  # those are held already: nothing changes
        elif action == "reserve" and pool.agents:
            each = data.draw(st.sampled_from(pool.agents), "agent")
            slots = data.draw(st.sets(st.integers(0, 5), min_size=1), "slots")
            reserved = room.take_free([Placement(agent_id=each.agent_id, slot_ids=tuple(slots))])
            got = {(place.agent_id, slot) for place in reserved for slot in place.slot_ids}
            assert got == {(each.agent_id, slot) for slot in slots & set(pool.free(each))}
            pool.take(tuple(reserved))
            taken.append(tuple(reserved))
        assert room.free == sum(len(pool.free(each)) for each in pool.agents)
        for each in pool.agents:
            assert room.free_of(each.agent_id) == len(pool.free(each))
    for number in range(8):
        request = data.draw(REQUESTS, "at last").model_copy(update={"allocation_id": f"last{number}"})
        assert room.fit(request) == pool.fit(request) == pool.fresh().fit(request)


@given(st.lists(st.integers(0, 6), max_size=5), REQUESTS, st.integers(0, 4))
def test_what_fits_now_fits_ever(sizes: list[int], request: Request, held: int) -> None:
    pool = pool_of(*sizes)
    for number in range(held):
        ask(pool, number, f"held {number}")
        placements = pool.room.fit(list(pool.snapshot.queue.values())[-1])
        if placements is not None:
            pool.room.take(placements)
    if pool.room.fit(request) is not None:
        assert pool.fits_ever(request)
        assert pool.could_hold(request)
