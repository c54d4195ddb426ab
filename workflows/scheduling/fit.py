"""Where a request fits. Source: spec scheduling.md §2 (shared fit, then dedicated fit; "best" scoring)."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable

from workflows.scheduling.model import AgentSlots, Placement, PoolSnapshot, Request


def fit(pool: PoolSnapshot, request: Request) -> tuple[Placement, ...] | None:
    """The placements for `request` on what is free now, or None. Chief (rank 0) on the largest part."""
    usable = [
        agent for agent in pool.agents.values() if agent.is_open and agent.agent_id not in request.excluded_agents
    ]
    if request.slots == 0:
        open_agents = [a for a in usable if pool.zero_slot_count(a.agent_id) < a.max_zero_slot]
        if not open_agents:
            return None
        best = min(open_agents, key=lambda a: (_distance(request.allocation_id, a.agent_id), a.agent_id))
        return (Placement(agent_id=best.agent_id, slot_ids=()),)

    free = {agent.agent_id: pool.free_slots(agent.agent_id) for agent in usable}
    shared = [agent_id for agent_id, slots in free.items() if len(slots) >= request.slots]
    if shared:
        # "best" fit: the agent with the fewest free slots, so that large holes stay whole
        best_id = min(shared, key=lambda a: (len(free[a]), _distance(request.allocation_id, a), a))
        return (Placement(agent_id=best_id, slot_ids=tuple(free[best_id][: request.slots])),)
    if request.slots < 2 or request.is_single_node:
        return None

    groups: dict[int, list[str]] = defaultdict(list)
    for agent in usable:
        serving = len(agent.serving_slots)
        if serving and len(free[agent.agent_id]) == serving:
            groups[serving].append(agent.agent_id)
    for size in sorted(groups, reverse=True):
        if len(groups[size]) * size >= request.slots and request.slots % size == 0:
            chosen = sorted(groups[size], key=lambda a: (_distance(request.allocation_id, a), a))
            return tuple(
                Placement(agent_id=agent_id, slot_ids=tuple(free[agent_id]), rank=rank)
                for rank, agent_id in enumerate(chosen[: request.slots // size])
            )
    return None


def could_ever_fit(pool: PoolSnapshot, request: Request, lost: Iterable[AgentSlots] = ()) -> bool:
    """Whether the pool's agents and the `lost` ones could hold the request, all idle, in reach and in service."""
    agents = {agent.agent_id: agent for agent in (*lost, *pool.agents.values())}
    at_best = {"is_available": True, "is_enabled": True, "disabled_slots": ()}
    idle = PoolSnapshot(agents={k: a.model_copy(update=at_best) for k, a in agents.items()})
    return fit(idle, request) is not None


def take_hopeless(pool: PoolSnapshot, lost: Collection[AgentSlots] = ()) -> list[Request]:
    """Take from the queue what could be held only by agents that it excludes, whoever comes back.

    A request that would not fit without its exclusions either stays: agents of that size may still join.
    """
    hopeless = [
        request
        for request in pool.queue
        if request.excluded_agents
        and not could_ever_fit(pool, request, lost)
        and could_ever_fit(pool, request.model_copy(update={"excluded_agents": ()}), lost)
    ]
    for request in hopeless:
        pool.queue.remove(request)
    return hopeless


def _distance(allocation_id: str, agent_id: str) -> int:
    return (_hash(allocation_id) - _hash(agent_id)) % 2**64


def _hash(text: str) -> int:
    digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], "little")
