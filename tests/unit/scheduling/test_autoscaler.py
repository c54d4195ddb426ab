"""How many nodes a pool asks its provider for, and which it gives back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pydantic import ValidationError

from tests.unit.scheduling.pools import agent, ask, hold, pool_of, started, wish
from workflows.scheduling.autoscaler import (
    AgentUse,
    Demand,
    DesiredNodes,
    Node,
    NodeState,
    demand_of,
    desired_agents,
    is_busy_again,
    next_look,
    seen,
)
from workflows.scheduling.model import AgentSlots, PoolSnapshot
from workflows.scheduling.pool import Pool
from workflows.scheduling.provider import Provider
from workflows.scheduling.settings import PoolSettings

BUSY, IDLE = AgentUse(is_busy=True), AgentUse(is_busy=False)


def provider(**more: Any) -> Provider:
    """Nodes of eight slots."""
    usual: dict[str, Any] = {"launch": "up", "terminate": "down", "slots_per_node": 8}
    return Provider.model_validate(usual | {"idle_timeout": 100, "starting_timeout": 50} | more)


def up(name: str, idle_since: float | None = None) -> Node:
    return Node(node_id=name, state=NodeState.UP, since=0.0, is_launched=True, idle_since=idle_since)


def desired(*nodes: Node, demand: Demand | None = None, now: float = 0.0, **limits: Any) -> DesiredNodes:
    return desired_agents(nodes, demand or Demand(), provider(**limits), now)


# -- what an operator may set ------------------------------------------------------------------------------------------


def test_periods_are_read_in_seconds_minutes_and_hours() -> None:
    read = provider(idle_timeout="20m", starting_timeout="1.5h")
    assert (read.idle_timeout, read.starting_timeout) == (1200, 5400)
    usual = Provider(launch="up", terminate="down", slots_per_node=8)
    assert (usual.min_nodes, usual.max_nodes, usual.idle_timeout, usual.starting_timeout) == (0, 5, 1200, 1200)


@pytest.mark.parametrize(
    "wrong", [{"max_nodes": 0}, {"min_nodes": 3, "max_nodes": 2}, {"idle_timeout": "soon"}, {"launch": ""}, {"zone": 1}]
)
def test_wrong_limits_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        provider(**wrong)


# -- what waits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wishes", "nodes"),
    [
        ([8], 1),
        ([1, 2, 3], 1),
        ([16], 2),
        ([16, 4], 3),
        ([12], 0),  # no number of whole nodes
        ([48], 0),  # more than there may be
        ([0, 0, 0], 2),
        ([0, 8], 1),
        ([], 0),
    ],
)
def test_nodes_for_what_waits(wishes: list[int], nodes: int) -> None:
    pool = pool_of(settings={"max_aux_containers_per_agent": 2}, aux=None)
    for number, slots in enumerate(wishes):
        ask(pool, slots, f"{number}")
    assert demand_of(pool, provider()).nodes == nodes


def test_no_nodes_for_what_may_not_start_anyhow() -> None:
    pool = pool_of(settings={"quotas": {"users": {"ann": 8}, "borrowing": False}})
    ask(pool, 16, "beyond the quota", user="ann")
    ask(pool, 16, "on one node", is_single_node=True)
    for number in range(4):
        ask(pool, 8, f"capped {number}", job="capped", max_slots=16, user="bob")
    assert demand_of(pool, provider()).nodes == 2


def test_usable_is_what_is_idle_and_large_enough_and_not_excluded() -> None:
    pool = pool_of(8, 8, 8, 4, 8)
    hold(pool, "busy", "a1")
    pool.put_agent(agent("a2", 8, is_enabled=False))
    ask(pool, 16, "1", excluded_agents=("a4",))
    demand = demand_of(pool, provider())
    assert demand.usable == ("a0",)
    assert demand.agents["a1"] == BUSY
    assert not demand.agents["a2"].is_enabled


def test_request_is_not_hopeless_when_another_node_could_hold_it() -> None:
    pool = pool_of(8, settings={"provider": provider().model_dump()})
    ask(pool, 8, "1", excluded_agents=("a0",))
    assert pool.take_hopeless() == []
    assert pool.could_provide(wish(8))
    assert not pool.could_provide(wish(12))


# -- what is to be done ------------------------------------------------------------------------------------------------


def test_nodes_that_start_or_stand_idle_count() -> None:
    demand = Demand(nodes=3, agents={"b": IDLE}, usable=("b",))
    assert desired(Node(node_id="a", since=0.0), up("b", 0.0), demand=demand).launch == 1
    assert desired(demand=Demand(nodes=3)).launch == 3
    assert desired(demand=Demand(nodes=3), max_nodes=2).launch == 2
    assert desired(min_nodes=2).launch == 2


def test_nodes_that_leave_count_up_to_their_end() -> None:
    leaving = Node(node_id="a", state=NodeState.LEAVING, since=0.0)
    assert desired(leaving, demand=Demand(nodes=2), max_nodes=2).launch == 1
    leaving.state = NodeState.TERMINATED
    assert desired(leaving, demand=Demand(nodes=2), max_nodes=2).launch == 2


def test_node_whose_agent_does_not_come_is_given_up_and_another_one_launched() -> None:
    late = Node(node_id="late", since=0.0, is_launched=True)
    told = desired(late, demand=Demand(nodes=1), now=49)
    assert (told.launch, told.give_up) == (0, [])
    told = desired(late, demand=Demand(nodes=1), now=50)
    assert (told.launch, told.give_up) == (1, ["late"])


def test_idle_nodes_go_after_the_timeout_the_longest_idle_first_but_not_the_last_ones() -> None:
    nodes = [up("a", 5.0), up("b", 0.0), up("c")]
    demand = Demand(agents={"a": IDLE, "b": IDLE, "c": BUSY}, usable=("a", "b"))
    assert desired(*nodes, demand=demand, now=99).drain == []
    assert desired(*nodes, demand=demand, now=100).drain == ["b"]
    assert desired(*nodes, demand=demand, now=110).drain == ["a", "b"]
    assert desired(*nodes, demand=demand, now=110, min_nodes=2).drain == ["b"]
    assert desired(*nodes, demand=demand, now=110, min_nodes=3).drain == []
    waiting = demand.model_copy(update={"nodes": 2})
    assert desired(*nodes, demand=waiting, now=110).drain == [], "what waits is about to take them"
    assert next_look(nodes, provider(), 0.0) == 100
    assert next_look(nodes, provider(), 100.0) == 105


def test_node_that_is_lost_is_given_up_after_a_while() -> None:
    node = seen(up("a", 0.0), Demand(), 1000.0)
    assert (node.lost_since, node.idle_since) == (1000.0, None)
    assert desired(node, now=1599).give_up == []
    assert desired(node, now=1600).give_up == ["a"]
    assert seen(node, Demand(agents={"a": BUSY}), 1001.0).lost_since is None


def test_node_leaves_only_when_nothing_runs_there_and_nothing_can_come() -> None:
    node = Node(node_id="a", state=NodeState.DRAINING, since=0.0)
    for use, is_leaving in (
        (IDLE, False),
        (AgentUse(is_busy=True, is_enabled=False), False),
        (AgentUse(is_busy=False, is_enabled=False), True),
    ):
        assert (seen(node, Demand(agents={"a": use}), 1.0).state is NodeState.LEAVING) is is_leaving
    assert is_busy_again(node, Demand(agents={"a": AgentUse(is_busy=True, is_enabled=False)}))


def test_pool_without_provider_gives_up_what_starts_and_what_is_idle() -> None:
    nodes = [Node(node_id="a", since=0.0), up("b", 0.0), up("c")]
    demand = Demand(nodes=2, agents={"b": IDLE, "c": BUSY}, usable=("b",))
    told = desired_agents(nodes, demand, provider(min_nodes=2), 1.0, is_retiring=True)
    assert told == DesiredNodes(give_up=["a"], drain=["b"])


# -- whatever happens --------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.sampled_from(NodeState), st.integers(0, 200), st.booleans(), st.booleans()), max_size=12),
    st.integers(0, 20),
    st.integers(0, 4),
    st.integers(1, 8),
    st.integers(0, 400),
)
def test_limits_are_kept_whatever_there_is(
    drawn: list[tuple[NodeState, int, bool, bool]], wanted: int, least: int, most: int, now: int
) -> None:
    nodes: list[Node] = []
    agents: dict[str, AgentUse] = {}
    for number, (state, since, is_busy, is_there) in enumerate(drawn):
        name = f"n{number}"
        if is_there:
            agents[name] = AgentUse(is_busy=is_busy)
        idle_since = float(since) if state is NodeState.UP and is_there and not is_busy else None
        nodes.append(Node(node_id=name, state=state, since=float(since), idle_since=idle_since))
    usable = tuple(name for name, use in agents.items() if not use.is_busy)
    limits = provider(min_nodes=min(least, most), max_nodes=most)
    told = desired_agents(nodes, Demand(nodes=wanted, agents=agents, usable=usable), limits, float(now))
    existing = sum(node.state is not NodeState.TERMINATED for node in nodes)
    assert told.launch == 0 or existing + told.launch <= most
    by_id = {node.node_id: node for node in nodes}
    for name in told.drain:
        assert not agents[name].is_busy
        assert now - (by_id[name].idle_since or 0.0) >= limits.idle_timeout
    alive = sum(node.state in (NodeState.STARTING, NodeState.UP) for node in nodes) - len(told.give_up)
    assert len(told.drain) <= max(0, alive - limits.min_nodes)


class Life(RuleBasedStateMachine):
    """A pool, its nodes and a provider, step by step, with time that passes."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = provider(slots_per_node=2, max_nodes=3, min_nodes=0)
        self.pool = Pool(PoolSnapshot(), PoolSettings(provider=self.limits))
        self.nodes: dict[str, Node] = {}
        self.now = 0.0
        self.count = 0
        self.launched_at: dict[str, float] = {}
        self.busy_at: dict[str, float] = {}

    @rule(slots=st.sampled_from([0, 1, 2, 4]))
    def asks(self, slots: int) -> None:
        self.count += 1
        self.pool.ask(wish(slots, f"r{self.count}"))

    @precondition(lambda self: self.pool.snapshot.grants)
    @rule(data=st.data())
    def ends(self, data: st.DataObject) -> None:
        self.pool.release(data.draw(st.sampled_from(sorted(self.pool.snapshot.grants))))

    @precondition(lambda self: any(node.state is NodeState.STARTING for node in self.nodes.values()))
    @rule()
    def comes(self) -> None:
        name = next(name for name, node in self.nodes.items() if node.state is NodeState.STARTING)
        self.pool.put_agent(AgentSlots(agent_id=name, slot_ids=(0, 1)))

    @rule(seconds=st.integers(1, 60))
    def waits(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def works(self) -> None:
        """As the two workflows do: decide, tell, look, drain, and end what is drained."""
        started(self.pool)
        demand = demand_of(self.pool, self.limits)
        for name, use in demand.agents.items():
            if use.is_busy:
                self.busy_at[name] = self.now
        for name, node in list(self.nodes.items()):
            self.nodes[name] = seen(node, demand, self.now)
        told = desired_agents(self.nodes.values(), demand, self.limits, self.now)
        for name in told.drain:
            self.nodes[name].state = NodeState.DRAINING
            assert self.now - self.busy_at.get(name, 0.0) >= self.limits.idle_timeout, "it had nothing to do for long"
            assert self.now - self.launched_at[name] >= self.limits.idle_timeout, "it had its time to get something"
            found = self.pool.snapshot.agents[name]
            self.pool.put_agent(found.model_copy(update={"is_enabled": False}))
        for name in told.give_up:
            assert name not in demand.agents
            assert self.now - self.launched_at[name] >= self.limits.starting_timeout
            self.nodes[name].state = NodeState.LEAVING
        for _ in range(told.launch):
            self.count += 1
            self.nodes[f"n{self.count}"] = Node(node_id=f"n{self.count}", since=self.now)
            self.launched_at[f"n{self.count}"] = self.now
        for name, node in list(self.nodes.items()):
            if node.state is NodeState.LEAVING:
                assert self.pool.remove_agent(name) == [], "nothing ran there"
                del self.nodes[name]

    @invariant()
    def limits_are_kept(self) -> None:
        assert len(self.nodes) <= self.limits.max_nodes


TestLife = Life.TestCase
