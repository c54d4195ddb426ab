"""The order of holders and requests: those within a quota before those that borrow, and within each group by rank."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Reversible
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from workflows.scheduling.model import Grant, Kind, Request
from workflows.scheduling.pool import Pool
from workflows.scheduling.rank import Alike, Rank
from workflows.scheduling.settings import PoolSettings

_Entry = TypeVar("_Entry", Request, Grant)


@dataclass(frozen=True)
class Order:
    """Holders and those who wait, the first in rank first; until the pool changes."""

    grants: Reversible[tuple[Rank, Grant]]
    queue: Iterable[tuple[Rank, Request]]


def order(pool: Pool) -> Order:
    """Rank all that hold or want slots, of those that want or hold slots; what needs none borrows nothing."""
    if not pool.settings.quotas:
        return Order(pool.holders, pool.waiting)
    quotas = _Quotas(pool.settings)
    grants, queue = _Groups[Grant](), _Groups[Request]()
    for alike, held in pool.holders.runs():
        within = min(len(held), quotas.left_for(alike.kind))
        quotas.take(alike.kind, within)
        grants.add(alike, held, within)
    fitting = set(pool.fitting())
    more = defaultdict[str, int](int)  # slots that those who wait would hold, by job
    for alike, waiting in pool.waiting.runs():
        kind, left = alike.kind, quotas.left_for(alike.kind)
        # what can't start whatever is free uses up nothing of the quota
        may_start = _uncapped(pool, kind, more[kind.job_id]) if alike in fitting else 0
        taken = min(len(waiting), left, may_start)
        quotas.take(kind, taken)
        more[kind.job_id] += taken * kind.slots
        queue.add(alike, waiting, len(waiting) if taken < left else taken)
    return Order(grants.ranked(), queue.ranked())


def _uncapped(pool: Pool, kind: Kind, more: int) -> int:
    """How many of a kind its job's `max_slots` lets start, if it held `more` slots beyond those of now."""
    if kind.max_slots is None or not kind.slots:
        return sys.maxsize
    return max(0, (kind.max_slots - pool.slots_of_job(kind.job_id) - more) // kind.slots)


class _Groups(Generic[_Entry]):
    """Those within their quotas and those beyond, each with its rank."""

    def __init__(self) -> None:
        self._within: list[tuple[Rank, _Entry]] = []
        self._beyond: list[tuple[Rank, _Entry]] = []

    def add(self, alike: Alike[_Entry], entries: Collection[_Entry], within: int) -> None:
        """Add some that come behind those of their group; the first `within` are within their quotas."""
        if within:
            self._within += [(alike.rank, entry) for entry in islice(entries, within)]
        if within < len(entries):
            self._beyond += [(alike.rank_beyond, entry) for entry in islice(entries, within, None)]

    def ranked(self) -> list[tuple[Rank, _Entry]]:
        """All of them."""
        return self._within + self._beyond


class _Quotas:
    """What is left of the quotas: holders use them up in their order first, then those that wait."""

    def __init__(self, settings: PoolSettings) -> None:
        self._quotas = settings.quotas
        self._users = defaultdict[str, int](int)
        self._workspaces = defaultdict[str, int](int)

    def left_for(self, kind: Kind) -> int:
        """How many more of a kind are within its user's and its workspace's own. Once it is 0 it stays so."""
        if not kind.slots:
            return sys.maxsize
        of_user, of_workspace = self._quotas.of(kind.user, kind.workspace)
        left = sys.maxsize
        if of_user is not None:
            left = (of_user - self._users[kind.user]) // kind.slots
        if of_workspace is not None:
            left = min(left, (of_workspace - self._workspaces[kind.workspace]) // kind.slots)
        return max(0, left)

    def take(self, kind: Kind, count: int) -> None:
        """`count` of a kind use up their slots."""
        self._users[kind.user] += count * kind.slots
        self._workspaces[kind.workspace] += count * kind.slots
