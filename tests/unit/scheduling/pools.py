"""Pools, requests and decisions for the tests of scheduling."""

from __future__ import annotations

from typing import Any

from workflows.scheduling.decide import decide
from workflows.scheduling.model import AgentSlots, Claim, Grant, Placement, PoolSnapshot, Request
from workflows.scheduling.pool import Pool
from workflows.scheduling.settings import PoolSettings


def agent(name: str, size: int, **more: Any) -> AgentSlots:
    """An agent with slots 0, 1, …"""
    return AgentSlots(agent_id=name, slot_ids=tuple(range(size)), **more)


def pool_of(*sizes: int, settings: dict[str, Any] | None = None, aux: int | None = 100) -> Pool:
    """Agents a0, a1, … of these sizes."""
    agents = {f"a{number}": agent(f"a{number}", size, max_zero_slot=aux) for number, size in enumerate(sizes)}
    return Pool(PoolSnapshot(agents=agents), PoolSettings.model_validate(settings or {}))


def wish(slots: int, allocation_id: str = "1.a.1", *, job: str = "", **more: Any) -> Request:
    """A request; what a claim has (priority, weight, max_slots, position) goes into its claim."""
    claim = {key: more.pop(key) for key in ("priority", "weight", "max_slots", "position") if key in more}
    return Request(
        allocation_id=allocation_id,
        name=f"request {allocation_id}",
        holder=f"trial-{allocation_id}",
        slots=slots,
        job_id=job or allocation_id,
        claim=Claim(**claim),
        **more,
    )


def ask(pool: Pool, slots: int, allocation_id: str, **more: Any) -> Request:
    """Queue a request."""
    request = wish(slots, allocation_id, **more)
    assert pool.ask(request)
    return request


def hold(pool: Pool, allocation_id: str, agent_id: str, *slots: int, **more: Any) -> None:
    """A request holds these slots of an agent."""
    request = wish(len(slots), allocation_id, **more)
    grant = Grant(request=request, placements=(Placement(agent_id=agent_id, slot_ids=slots),))
    pool.snapshot.grants[allocation_id] = grant
    pool.__init__(pool.snapshot, pool.settings)


def started(pool: Pool) -> list[str]:
    """Ids of those whom the next decision starts."""
    return [grant.request.allocation_id for grant in decide(pool).starts]


def decided(pool: Pool) -> tuple[set[str], set[str]]:
    """Ids of those whom the next decision starts, and of those whom it asks to leave."""
    decision = decide(pool)
    return {g.request.allocation_id for g in decision.starts}, {leave.allocation_id for leave in decision.leaves}


def waiting(pool: Pool) -> list[str]:
    """Ids of those who wait."""
    return list(pool.snapshot.queue)


def sizes_of(placements: tuple[Placement, ...] | None) -> list[int] | None:
    """The sizes of the parts of a placement, ascending."""
    return None if placements is None else sorted(len(place.slot_ids) for place in placements)
