"""First in, first out, over pools and queues of every shape."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from workflows.scheduling.fifo import schedule
from workflows.scheduling.fit import fit
from workflows.scheduling.model import AgentSlots, PoolSnapshot, Request


def pool_of(sizes: list[int], *, aux: int = 3) -> PoolSnapshot:
    return PoolSnapshot(
        agents={
            f"a{index}": AgentSlots(agent_id=f"a{index}", slot_ids=tuple(range(size)), max_zero_slot=aux)
            for index, size in enumerate(sizes)
        }
    )


def ask(pool: PoolSnapshot, *slots: int) -> list[str]:
    ids = [f"r{len(pool.queue) + len(pool.grants) + number}" for number in range(len(slots))]
    pool.queue += [Request(allocation_id=id_, holder="w", slots=count) for id_, count in zip(ids, slots, strict=True)]
    return ids


def started(pool: PoolSnapshot) -> list[str]:
    return [grant.request.allocation_id for grant in schedule(pool)]


def test_requests_start_in_the_order_they_came_when_all_fit() -> None:
    pool = pool_of([4])
    assert started(pool) == [] == pool.queue
    ids = ask(pool, 1, 2, 1)
    assert started(pool) == ids
    assert list(pool.grants) == ids
    assert pool.queue == []


def test_small_requests_wait_when_a_large_one_before_them_does_not_fit() -> None:
    pool = pool_of([4])
    first, large, small = ask(pool, 2, 3, 1)
    assert started(pool) == [first]
    assert [request.allocation_id for request in pool.queue] == [large, small]
    assert started(pool) == [], "asking again changes nothing"
    del pool.grants[first]
    assert started(pool) == [large, small]


def test_requests_without_slots_pass_when_a_large_one_blocks_the_others() -> None:
    pool = pool_of([1], aux=1)
    large, zero, small, zero_too = ask(pool, 2, 0, 1, 0)
    assert started(pool) == [zero]
    assert [request.allocation_id for request in pool.queue] == [large, small, zero_too]
    del pool.grants[zero]
    assert started(pool) == [zero_too]


def test_a_request_that_never_fits_blocks_those_behind_it_until_it_is_taken_back() -> None:
    pool = pool_of([2, 2])
    huge, small = ask(pool, 64, 1)
    assert started(pool) == []
    pool.queue = [request for request in pool.queue if request.allocation_id != huge]
    assert started(pool) == [small]


QUEUES = st.lists(st.integers(0, 9), max_size=12)
SIZES = st.lists(st.integers(0, 5), max_size=6)


@given(SIZES, QUEUES)
def test_start_is_a_prefix_of_each_line_when_queues_and_pools_are_of_any_shape(
    sizes: list[int], wanted: list[int]
) -> None:
    pool = pool_of(sizes)
    ids = ask(pool, *wanted)
    by_id = dict(zip(ids, wanted, strict=True))
    chosen = started(pool)
    for is_zero in (True, False):
        line = [id_ for id_ in ids if (by_id[id_] == 0) is is_zero]
        mine = [id_ for id_ in chosen if (by_id[id_] == 0) is is_zero]
        assert mine == line[: len(mine)], "order is kept within a line"
        if len(mine) < len(line):
            stuck = next(request for request in pool.queue if request.allocation_id == line[len(mine)])
            assert fit(pool, stuck) is None, "what fits is not held back"
    assert [request.allocation_id for request in pool.queue] == [id_ for id_ in ids if id_ not in chosen]


class Pool(RuleBasedStateMachine):
    """Requests come, agents come and go, holders release: what a pool's workflow does with the policy."""

    allocations = Bundle("allocations")

    @initialize(sizes=SIZES)
    def start(self, sizes: list[int]) -> None:
        self.pool = pool_of(sizes)
        self.asked: dict[str, int] = {}

    @rule(target=allocations, slots=st.integers(0, 9))
    def request(self, slots: int) -> str:
        allocation_id = f"r{len(self.asked)}"
        self.asked[allocation_id] = slots
        self.pool.queue.append(Request(allocation_id=allocation_id, holder="w", slots=slots))
        return allocation_id

    @rule(allocation_id=consumes(allocations))
    def release(self, allocation_id: str) -> None:
        before = self.pool.model_copy(deep=True)
        self.pool.grants.pop(allocation_id, None)
        self.pool.queue = [request for request in self.pool.queue if request.allocation_id != allocation_id]
        held = before.grants.get(allocation_id)
        for place in held.placements if held else ():
            assert set(place.slot_ids) <= set(self.pool.free_slots(place.agent_id)), "slots come back"

    @rule(number=st.integers(0, 5), is_available=st.booleans())
    def agent_changes(self, number: int, is_available: bool) -> None:
        agent = self.pool.agents.get(f"a{number}")
        if agent is not None:
            agent.is_available = is_available

    @rule()
    def tick(self) -> None:
        unreachable = {a.agent_id for a in self.pool.agents.values() if not a.is_available}
        for grant in schedule(self.pool):
            assert not unreachable & {place.agent_id for place in grant.placements}

    @invariant()
    def no_slot_is_given_twice_and_gangs_are_whole(self) -> None:
        given = Counter(
            (place.agent_id, slot)
            for grant in self.pool.grants.values()
            for place in grant.placements
            for slot in place.slot_ids
        )
        assert all(count == 1 for count in given.values())
        for agent_id, slot in given:
            assert slot in self.pool.agents[agent_id].slot_ids
        for allocation_id, grant in self.pool.grants.items():
            assert sum(len(place.slot_ids) for place in grant.placements) == self.asked[allocation_id]
        waiting = {request.allocation_id for request in self.pool.queue}
        assert not waiting & set(self.pool.grants)
        for agent in self.pool.agents.values():
            assert self.pool.zero_slot_count(agent.agent_id) <= agent.max_zero_slot


TestPoolKeepsItsPromisesWhenAnythingHappens = Pool.TestCase
TestPoolKeepsItsPromisesWhenAnythingHappens.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
