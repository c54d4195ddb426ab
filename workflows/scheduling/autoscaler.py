"""Autoscaling: how many more nodes a pool needs, and which of its nodes it can do without. No clock, no I/O.

Source: spec scheduling.md §11; unlike there, nodes that stand idle count for what waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from workflows.scheduling.model import Request
from workflows.scheduling.order import order
from workflows.scheduling.pool import Pool
from workflows.scheduling.provider import Provider

#: How long a node whose agent was lost gets to come back, in seconds.
LOST_TIMEOUT_S = 600.0


class AgentUse(BaseModel):
    """An agent of a pool, as the Autoscaler workflow sees it, which may have its node terminated."""

    model_config = ConfigDict(frozen=True)

    is_busy: bool  # something runs on it
    is_enabled: bool = True  # else nothing new is placed on it


class Demand(BaseModel):
    """What a pool tells of itself: its agents, and the nodes that would let what waits run."""

    model_config = ConfigDict(frozen=True)

    nodes: int = 0
    agents: dict[str, AgentUse] = Field(default_factory=dict[str, AgentUse])
    usable: tuple[str, ...] = ()  # idle agents that what waits may have


class NodeState(StrEnum):
    """Where a node is in its life."""

    STARTING = "starting"  # launched or to be launched; its agent has not come yet
    UP = "up"
    DRAINING = "draining"  # nothing new is to be placed on it
    LEAVING = "leaving"  # to be terminated
    TERMINATED = "terminated"  # its agent is still being missed


class Node(BaseModel):
    """A node that a provider was asked for. Times are in seconds since 1970."""

    node_id: str  # of its agent too
    state: NodeState = NodeState.STARTING
    since: float  # in this state
    idle_since: float | None = None  # its agent is there, and nothing runs on it
    lost_since: float | None = None  # its agent was there, and is not any more
    is_launched: bool = False  # the command to launch it has succeeded
    tries: int = 0  # of the command to launch or terminate it that failed, in a row
    try_at: float = 0.0  # not before
    problem: str = ""  # how the latest try failed


class DesiredNodes(BaseModel):
    """What is to be done: how many nodes to launch, which idle ones to drain, which to end as their agent is missed."""

    launch: int = 0
    drain: list[str] = Field(default_factory=list[str])
    give_up: list[str] = Field(default_factory=list[str])


def demand_of(pool: Pool, provider: Provider) -> Demand:
    """What a pool needs of a provider."""
    waiting = _waiting(pool, provider)
    by_job = Counter[str]()
    zero = 0
    for request in waiting:
        by_job[request.job_id] += request.slots
        zero += request.slots == 0
    for request in waiting:
        cap = request.claim.max_slots
        if cap is not None:
            left = max(0, cap - pool.slots_of_job(request.job_id))
            by_job[request.job_id] = min(by_job[request.job_id], left)
    most_aux = pool.settings.max_aux_containers_per_agent
    busy = {place.agent_id for grant in pool.snapshot.grants.values() for place in grant.placements}
    agents = {
        agent_id: AgentUse(is_busy=agent_id in busy, is_enabled=agent.is_enabled)
        for agent_id, agent in pool.snapshot.agents.items()
    }
    excluded = {agent_id for request in waiting for agent_id in request.excluded_agents}
    return Demand(
        nodes=max(
            -(-by_job.total() // provider.slots_per_node) if provider.slots_per_node else 0,
            -(-zero // most_aux) if most_aux else 0,
        ),
        agents=agents,
        usable=tuple(
            sorted(
                agent_id
                for agent_id, agent in pool.snapshot.agents.items()
                if agent.is_open
                and len(agent.serving_slots) >= provider.slots_per_node
                and agent_id not in busy
                and agent_id not in excluded
            )
        ),
    )


def _waiting(pool: Pool, provider: Provider) -> list[Request]:
    """The requests that nodes could let run."""
    borrowing = pool.settings.quotas.borrowing
    return [
        request
        for rank, request in order(pool).queue
        if provider.could_hold(request.slots, is_single_node=request.is_single_node)
        and not pool.is_capped(request)
        and (borrowing or not rank.is_borrowing)
    ]


def desired_agents(
    nodes: Collection[Node], demand: Demand, provider: Provider, now: float, *, is_retiring: bool = False
) -> DesiredNodes:
    """What is to be done about the nodes of a pool.

    Args:
        nodes: all of them that were launched and not forgotten since.
        demand: of the pool, the latest that is known.
        provider: the limits.
        now: in seconds since 1970.
        is_retiring: the pool has no provider any more: what is idle goes, and nothing comes.
    """
    given_up = [node for node in nodes if _is_given_up(node, provider, now, is_retiring)]
    gone = {node.node_id for node in given_up}
    alive = [node for node in nodes if node.state in (NodeState.STARTING, NodeState.UP) and node.node_id not in gone]
    desired = DesiredNodes(give_up=sorted(gone))
    least = 0 if is_retiring else provider.min_nodes
    kept = 0  # usable idle agents that what waits will take
    spare = len(alive) - least
    for node in sorted(alive, key=lambda node: (-(node.idle_since or 0.0), node.node_id)):  # the longest idle last
        use = demand.agents.get(node.node_id)
        if node.state is not NodeState.UP or node.idle_since is None or use is None or use.is_busy:
            continue
        if node.node_id in demand.usable and kept < demand.nodes and not is_retiring:
            kept += 1
        elif is_retiring or now - node.idle_since >= provider.idle_timeout:
            desired.drain.append(node.node_id)
    desired.drain = sorted(desired.drain[-max(0, spare) :]) if spare > 0 else []
    if is_retiring:
        return desired
    existing = sum(node.state is not NodeState.TERMINATED for node in nodes)
    starting = sum(node.state is NodeState.STARTING for node in alive)
    wanted = demand.nodes - starting - len(demand.usable)
    desired.launch = max(0, min(max(wanted, least - len(alive)), provider.max_nodes - existing))
    return desired


def next_look(nodes: Collection[Node], provider: Provider, now: float) -> float | None:
    """When time alone changes what is desired, in seconds since 1970; None: never.

    What is overdue and was not done waits for something else, of which there will be news.
    """
    moments: list[float] = []
    for node in nodes:
        if node.state is NodeState.STARTING:
            moments.append(node.since + provider.starting_timeout)
        elif node.state is NodeState.UP and node.idle_since is not None:
            moments.append(node.idle_since + provider.idle_timeout)
        elif node.state is NodeState.UP and node.lost_since is not None:
            moments.append(node.lost_since + LOST_TIMEOUT_S)
    return min((moment for moment in moments if moment > now), default=None)


def _is_given_up(node: Node, provider: Provider, now: float, is_retiring: bool) -> bool:
    if node.state is NodeState.STARTING:
        return is_retiring or now - node.since >= provider.starting_timeout
    is_lost = node.state is NodeState.UP and node.lost_since is not None
    return is_lost and (is_retiring or now - (node.lost_since or 0.0) >= LOST_TIMEOUT_S)


def seen(node: Node, demand: Demand, now: float) -> Node:
    """What the pool's latest word says of a node."""
    use = demand.agents.get(node.node_id)
    if node.state is NodeState.STARTING and use is not None:
        node = node.model_copy(update={"state": NodeState.UP, "since": now, "is_launched": True, "problem": ""})
    if node.state is NodeState.UP:
        is_idle = use is not None and not use.is_busy
        node = node.model_copy(
            update={
                "idle_since": (now if node.idle_since is None else node.idle_since) if is_idle else None,
                "lost_since": (now if node.lost_since is None else node.lost_since) if use is None else None,
            }
        )
    if node.state is NodeState.DRAINING and (use is None or (not use.is_busy and not use.is_enabled)):
        # nothing runs there and nothing can come: only now it may be ended
        node = node.model_copy(update={"state": NodeState.LEAVING, "since": now})
    return node


def is_busy_again(node: Node, demand: Demand) -> bool:
    """Whether work came to a node before the pool heard that nothing new was to be placed there."""
    use = demand.agents.get(node.node_id)
    return node.state is NodeState.DRAINING and use is not None and use.is_busy and not use.is_enabled
