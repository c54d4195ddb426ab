"""Explains why a request waits: how it stands in its pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any

from workflows.lifecycle.facts import QueueFacts
from workflows.scheduling.model import AgentSlots, Request, Shape
from workflows.scheduling.order import order
from workflows.scheduling.pool import Draft, Pool
from workflows.scheduling.rank import Rank
from workflows.scheduling.settings import Policy


def stand(name: str, pool: Pool, lost: Collection[AgentSlots], holders: Collection[str]) -> dict[str, QueueFacts]:
    """The standing of the request of each holder (a workflow's id), which has one at a time."""
    found = {holder: QueueFacts(pool=name, is_queued=False) for holder in holders}
    for grant in pool.snapshot.grants.values():
        if grant.request.holder in found:
            slots = grant.request.slots
            found[grant.request.holder] = QueueFacts(pool=name, is_queued=False, is_granted=True, slots=slots)
    wanted = {holder for holder, facts in found.items() if not facts.is_granted}
    if any(request.holder in wanted for request in pool.snapshot.queue.values()):
        for request, facts in standings(name, pool, lost, lambda request: request.holder in wanted):
            if facts is not None:
                found[request.holder] = facts
    return found


def standings(
    name: str, pool: Pool, lost: Collection[AgentSlots], is_wanted: Callable[[Request], bool] = lambda _: True
) -> Iterator[tuple[Request, QueueFacts | None]]:
    """How each request of the queue stands, the first in rank first.

    Args:
        name: Of the pool.
        pool: It must not change meanwhile.
        lost: Agents that may come back.
        is_wanted: Of which requests more is wanted than their place. Thousands may wait.
    """
    snapshot, settings = pool.snapshot, pool.settings
    draft = Draft(pool)
    usual = QueueFacts(
        pool=name,
        policy=settings.scheduler.value,
        waiting=len(snapshot.queue),
        total=snapshot.total_slots(),
        agents=len(snapshot.agents),
        most_aux=settings.max_aux_containers_per_agent,
        leaving=sum(grant.request.slots for grant in snapshot.grants.values() if grant.is_preempting),
        holders=_holders(pool),
        lends=settings.quotas.borrowing,
    )
    of_shape: dict[Shape, dict[str, Any]] = {}  # what looks at all agents
    first: dict[bool, tuple[Rank, Request]] = {}  # who holds up those with slots, and those without
    for place, (rank, request) in enumerate(order(pool).queue, 1):
        line = request.slots > 0
        is_capped, fits_ever = draft.is_capped(request), pool.fits_ever(request)
        ahead = first.get(line) if settings.scheduler is Policy.PRIORITY else None
        facts = None
        if is_wanted(request):
            if request.shape not in of_shape:
                of_shape[request.shape] = _of_shape(pool, request, lost)
            facts = usual.model_copy(
                update={
                    "place": place,
                    "slots": request.slots,
                    "priority": rank.priority,
                    "behind": ahead[1].name if ahead else "",
                    "behind_slots": ahead[1].slots if ahead else 0,
                    "behind_priority": ahead[0].priority if ahead else 0,
                    "is_capped": is_capped,
                    "is_borrowing": rank.is_borrowing,
                    "quota": _quota(pool, request) if rank.is_borrowing else "",
                    "job_slots": pool.slots_of_job(request.job_id),
                }
                | of_shape[request.shape]
            )
        yield request, facts
        if not is_capped and fits_ever:
            first.setdefault(line, (rank, request))


def _of_shape(pool: Pool, request: Request, lost: Collection[AgentSlots]) -> dict[str, Any]:
    fits_ever = pool.fits_ever(request)
    return {
        "free": _free(pool, request),
        "free_aux": pool.room.free_aux(request),
        "fits_ever": fits_ever,
        "is_provided": pool.could_provide(request),
        "fits_lost": fits_ever or pool.could_hold(request, lost),
        "is_apart": _is_apart(pool, request),
    }


def _is_apart(pool: Pool, request: Request) -> bool:
    """Whether only the closeness that it wants keeps the request from what is free."""
    if request.closeness != "strong" or pool.room.fit(request) is not None:
        return False
    return pool.room.fit(request.model_copy(update={"closeness": None})) is not None


def _holders(pool: Pool) -> dict[str, int]:
    held: Counter[str] = Counter()
    for grant in pool.snapshot.grants.values():
        if grant.request.slots:
            held[grant.request.name] += grant.request.slots
    return dict(held.most_common())


def _free(pool: Pool, request: Request) -> int:
    return pool.room.free - sum(pool.room.free_of(agent_id) for agent_id in set(request.excluded_agents))


def _quota(pool: Pool, request: Request) -> str:
    of_user, of_workspace = pool.settings.quotas.of(request.user, request.workspace)
    quotas = [
        f"{kind} {who} has {slots} slot{'s' * (slots != 1)}"
        for kind, who, slots in (("user", request.user, of_user), ("workspace", request.workspace, of_workspace))
        if slots is not None
    ]
    return " and ".join(quotas)
