"""The order of holders and requests: those within a quota before those that borrow, and within each group by rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from workflows.scheduling.model import Grant, Request
from workflows.scheduling.pool import Pool
from workflows.scheduling.rank import Rank
from workflows.scheduling.settings import PoolSettings


@dataclass(frozen=True)
class Order:
    """Holders and those who wait, the first in rank first; until the pool changes."""

    grants: Iterable[tuple[Rank, Grant]]
    queue: Iterable[tuple[Rank, Request]]


def order(pool: Pool) -> Order:
    """Rank all that hold or want slots, of those that want or hold slots; what needs none borrows nothing."""
    if not pool.settings.quotas:
        return Order(pool.holders, pool.waiting)
    quotas = _Quotas(pool.settings)
    grants: tuple[list[tuple[Rank, Grant]], list[tuple[Rank, Grant]]] = ([], [])  # within a quota, beyond it
    for rank, grant in pool.holders:
        is_borrowing = quotas.is_beyond(grant.request)
        if not is_borrowing:
            quotas.take(grant.request)
        grants[is_borrowing].append((_ranked(rank, is_borrowing), grant))
    queue: tuple[list[tuple[Rank, Request]], list[tuple[Rank, Request]]] = ([], [])
    held = defaultdict[str, int](int)
    for rank, request in pool.waiting:
        is_borrowing = quotas.is_beyond(request)
        # what can't start whatever is free uses up nothing of the quota
        if not is_borrowing and not pool.is_capped(request, held[request.job_id]) and pool.fits_ever(request):
            quotas.take(request)
            held[request.job_id] += request.slots
        queue[is_borrowing].append((_ranked(rank, is_borrowing), request))
    return Order([*grants[False], *grants[True]], [*queue[False], *queue[True]])


class _Quotas:
    """Which requests are within a quota: holders in their order first, then those that wait, as long as it lasts."""

    def __init__(self, settings: PoolSettings) -> None:
        self._quotas = settings.quotas
        self._users = defaultdict[str, int](int)
        self._workspaces = defaultdict[str, int](int)

    def is_beyond(self, request: Request) -> bool:
        """Whether it would take more than its user's or its workspace's own."""
        of_user, of_workspace = self._quotas.of(request.user, request.workspace)
        slots = request.slots
        return slots > 0 and (
            (of_user is not None and self._users[request.user] + slots > of_user)
            or (of_workspace is not None and self._workspaces[request.workspace] + slots > of_workspace)
        )

    def take(self, request: Request) -> None:
        """Its slots are used up."""
        self._users[request.user] += request.slots
        self._workspaces[request.workspace] += request.slots


def _ranked(rank: Rank, is_borrowing: bool) -> Rank:
    return Rank(True, rank.priority, rank.position) if is_borrowing else rank
