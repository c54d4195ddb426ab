"""Who comes before whom: quota, priority, position in the queue, time of the request. Source: spec scheduling.md §3."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from workflows.scheduling.model import Grant, Request
from workflows.scheduling.pool import Pool
from workflows.scheduling.settings import PoolSettings


class Rank(NamedTuple):
    """The place of a request; the smallest goes first."""

    is_borrowing: bool  # beyond the quota of its user or workspace
    priority: int
    position: int
    arrival: int  # among the requests of its kind


@dataclass(frozen=True)
class Order:
    """Holders and those who wait, the first in rank first."""

    grants: list[tuple[Rank, Grant]]
    queue: list[tuple[Rank, Request]]


def order(pool: Pool) -> Order:
    """Rank all that hold or want slots, of those that want or hold slots; what needs none borrows nothing."""
    snapshot, settings = pool.snapshot, pool.settings
    grants = [(_rank(grant.request, number, settings), grant) for number, grant in enumerate(snapshot.grants.values())]
    queue = [(_rank(request, number, settings), request) for number, request in enumerate(snapshot.queue)]
    grants.sort(key=_first)
    queue.sort(key=_first)
    if settings.quotas:
        own = _Quotas(settings)
        grants = sorted(((own.ranked(rank, grant.request), grant) for rank, grant in grants), key=_first)
        held = Counter[str]()
        ranked: list[tuple[Rank, Request]] = []
        for rank, request in queue:
            # what can't start whatever is free uses up nothing of the quota
            job = request.job_id
            waits = not pool.is_capped(request, held[job]) and pool.fits_ever(request)
            rank = own.ranked(rank, request, counts=waits)
            if waits and not rank.is_borrowing:
                held[job] += request.slots
            ranked.append((rank, request))
        queue = sorted(ranked, key=_first)
    return Order(grants, queue)


def priority_of(request: Request, settings: PoolSettings) -> int:
    """The priority that counts for a request."""
    return request.claim.priority or settings.default_priority


class _Quotas:
    """Who is within his quota: holders in their order first, then those who wait, as long as it lasts."""

    def __init__(self, settings: PoolSettings) -> None:
        self._quotas = settings.quotas
        self._users = Counter[str]()
        self._workspaces = Counter[str]()

    def ranked(self, rank: Rank, request: Request, *, counts: bool = True) -> Rank:
        of_user, of_workspace = self._quotas.of(request.user, request.workspace)
        slots = request.slots
        is_over = slots > 0 and (
            (of_user is not None and self._users[request.user] + slots > of_user)
            or (of_workspace is not None and self._workspaces[request.workspace] + slots > of_workspace)
        )
        if is_over:
            return rank._replace(is_borrowing=True)
        if counts:
            self._users[request.user] += slots
            self._workspaces[request.workspace] += slots
        return rank


def _rank(request: Request, arrival: int, settings: PoolSettings) -> Rank:
    return Rank(False, priority_of(request, settings), request.claim.position, arrival)


def _first(pair: tuple[Rank, object]) -> Rank:
    return pair[0]
