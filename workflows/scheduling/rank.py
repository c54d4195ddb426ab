"""The place of a request among others: priority, then position in the queue. Source: spec scheduling.md §3."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

from workflows.scheduling.model import Claim, Grant, Request
from workflows.scheduling.settings import PoolSettings

_Entry = TypeVar("_Entry", Request, Grant)


class Rank(NamedTuple):
    """The place of a request; the smallest goes first, and of equal ones the one that came first."""

    is_borrowing: bool  # beyond the quota of its user or workspace
    priority: int
    position: int


class Line(Generic[_Entry]):
    """Those who wait, or those who hold, each with its rank; iteration begins with the first in rank.

    The requests of a job have one rank. So there are few ranks, and who comes or leaves costs the same however long the
    line is.

    Args:
        settings: of the pool.
        entries: who is in it, with what it asked for, in the order in which they came.
    """

    def __init__(self, settings: PoolSettings, entries: Iterable[tuple[Request, _Entry]]) -> None:
        self._settings = settings
        self._rank_of: dict[str, Rank] = {}
        self._of_rank: dict[Rank, dict[str, _Entry]] = {}
        self._ranks: list[Rank] = []  # ascending
        for request, entry in entries:
            self.add(request, entry)

    def __contains__(self, allocation_id: str) -> bool:
        return allocation_id in self._rank_of

    def __iter__(self) -> Iterator[tuple[Rank, _Entry]]:
        for rank in self._ranks:
            for entry in self._of_rank[rank].values():
                yield rank, entry

    def add(self, request: Request, entry: _Entry) -> None:
        """Add one more, which comes after those of its rank."""
        rank = Rank(False, priority_of(request.claim, self._settings), request.claim.position)
        self._rank_of[request.allocation_id] = rank
        if rank not in self._of_rank:
            self._of_rank[rank] = {}
            insort(self._ranks, rank)
        self._of_rank[rank][request.allocation_id] = entry

    def remove(self, allocation_id: str) -> None:
        """One fewer. KeyError if it is not there."""
        rank = self._rank_of.pop(allocation_id)
        del self._of_rank[rank][allocation_id]
        if not self._of_rank[rank]:
            del self._of_rank[rank], self._ranks[bisect_left(self._ranks, rank)]


def priority_of(claim: Claim, settings: PoolSettings) -> int:
    """The priority that counts for a claim."""
    return claim.priority or settings.default_priority
