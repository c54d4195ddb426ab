"""Explains why a request waits: how it stands in its pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from workflows.lifecycle.facts import QueueFacts
from workflows.scheduling.model import AgentSlots, Request
from workflows.scheduling.order import order
from workflows.scheduling.pool import Draft, Pool
from workflows.scheduling.rank import Rank
from workflows.scheduling.settings import Policy


def stand(name: str, pool: Pool, lost: Collection[AgentSlots], holder: str) -> QueueFacts:
    """The standing of the request of `holder` (a workflow's id), which has one at a time."""
    snapshot = pool.snapshot
    grant = next((grant for grant in snapshot.grants.values() if grant.request.holder == holder), None)
    if grant is not None:
        return QueueFacts(pool=name, is_queued=False, is_granted=True, slots=grant.request.slots)
    if all(request.holder != holder for request in snapshot.queue.values()):
        return QueueFacts(pool=name, is_queued=False)
    return next(facts for request, facts in standings(name, pool, lost) if request.holder == holder)


def standings(name: str, pool: Pool, lost: Collection[AgentSlots]) -> list[tuple[Request, QueueFacts]]:
    """How each request of the queue stands, the first in rank first."""
    snapshot, settings = pool.snapshot, pool.settings
    queue = list(order(pool).queue)
    draft = Draft(pool)
    usual = QueueFacts(
        pool=name,
        policy=settings.scheduler.value,
        waiting=len(queue),
        total=snapshot.total_slots(),
        agents=len(snapshot.agents),
        most_aux=settings.max_aux_containers_per_agent,
        leaving=sum(grant.request.slots for grant in snapshot.grants.values() if grant.is_preempting),
        holders=_holders(pool),
    )
    first: dict[bool, tuple[Rank, Request]] = {}  # who holds up those with slots, and those without
    found: list[tuple[Request, QueueFacts]] = []
    for place, (rank, request) in enumerate(queue, 1):
        line = request.slots > 0
        is_capped, fits_ever = draft.is_capped(request), pool.fits_ever(request)
        ahead = first.get(line) if settings.scheduler is Policy.PRIORITY else None
        facts = usual.model_copy(
            update={
                "place": place,
                "slots": request.slots,
                "priority": rank.priority,
                "free": _free(pool, request),
                "free_aux": pool.room.free_aux(request),
                "behind": ahead[1].name if ahead else "",
                "behind_slots": ahead[1].slots if ahead else 0,
                "behind_priority": ahead[0].priority if ahead else 0,
                "fits_ever": fits_ever,
                "is_provided": pool.could_provide(request),
                "fits_lost": fits_ever or pool.could_hold(request, lost),
                "is_capped": is_capped,
                "is_apart": _is_apart(pool, request),
                "is_borrowing": rank.is_borrowing,
                "quota": _quota(pool, request) if rank.is_borrowing else "",
                "lends": settings.quotas.borrowing,
                "job_slots": pool.slots_of_job(request.job_id),
            }
        )
        found.append((request, facts))
        if not is_capped and fits_ever:
            first.setdefault(line, (rank, request))
    return found


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
