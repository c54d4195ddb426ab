"""How a request stands in its pool, for whoever asks why it waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from workflows.lifecycle.facts import QueueFacts
from workflows.scheduling.fit import could_ever_fit
from workflows.scheduling.model import AgentSlots, PoolSnapshot, Request


def stand(name: str, pool: PoolSnapshot, lost: Mapping[str, AgentSlots], holder: str) -> QueueFacts:
    """The standing of the request of `holder` (a workflow's id), which has one at a time."""
    grant = next((grant for grant in pool.grants.values() if grant.request.holder == holder), None)
    if grant is not None:
        return QueueFacts(pool=name, is_queued=False, is_granted=True, slots=grant.request.slots)
    place, request = next(
        ((place, request) for place, request in enumerate(pool.queue, 1) if request.holder == holder), (0, None)
    )
    if request is None:
        return QueueFacts(pool=name, is_queued=False)
    cap = request.max_slots
    # those with slots and those without stand in lines of their own
    first = next(other for other in pool.queue if (other.slots == 0) == (request.slots == 0))
    return QueueFacts(
        pool=name,
        place=place,
        waiting=len(pool.queue),
        slots=request.slots,
        free=_free(pool, request),
        total=pool.total_slots(),
        agents=len(pool.agents),
        behind="" if first is request else first.name,
        behind_slots=first.slots,
        holders=_holders(pool),
        fits_ever=could_ever_fit(pool, request),
        fits_lost=could_ever_fit(pool, request, lost.values()),
        is_capped=cap is not None and pool.slots_of_job(request.job_id) + request.slots > cap,
    )


def _holders(pool: PoolSnapshot) -> dict[str, int]:
    held: Counter[str] = Counter()
    for grant in pool.grants.values():
        if grant.request.slots:
            held[grant.request.name] += grant.request.slots
    return dict(held.most_common())


def _free(pool: PoolSnapshot, request: Request) -> int:
    return sum(
        len(pool.free_slots(agent_id))
        for agent_id, agent in pool.agents.items()
        if agent.is_open and agent_id not in request.excluded_agents
    )
