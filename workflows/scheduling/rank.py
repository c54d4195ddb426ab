"""The place of a request among others: priority, then position in the queue. Source: spec scheduling.md §3."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

from workflows.scheduling.model import Grant, Request
from workflows.scheduling.settings import PoolSettings

_Entry = TypeVar("_Entry", Request, Grant)


class Rank(NamedTuple):
    """The place of a request; the smallest goes first, and of equal ones the one that came first."""

    is_borrowing: bool  # beyond the quota of its user or workspace
    priority: int
    position: int


class Line(Generic[_Entry]):
    """Those who wait, or those who hold, each with its rank, which is found once and not at every decision.

    Args:
        settings: of the pool.
        entries: who is in it, with what it asked for, in the order in which they came.
    """

    def __init__(self, settings: PoolSettings, entries: Iterable[tuple[Request, _Entry]]) -> None:
        self._settings = settings
        self._ranked: dict[str, tuple[Rank, _Entry]] = {}
        self._sorted: list[tuple[Rank, _Entry]] | None = None
        for request, entry in entries:
            self.add(request, entry)

    def __contains__(self, allocation_id: str) -> bool:
        return allocation_id in self._ranked

    def add(self, request: Request, entry: _Entry) -> None:
        """Add one more, which comes after those of its rank."""
        rank = Rank(False, priority_of(request, self._settings), request.claim.position)
        self._ranked[request.allocation_id] = (rank, entry)
        self._sorted = None

    def remove(self, allocation_id: str) -> None:
        """One fewer. KeyError if it is not there."""
        del self._ranked[allocation_id]
        self._sorted = None

    def in_order(self) -> list[tuple[Rank, _Entry]]:
        """All of them, the first in rank first. Not to be changed."""
        if self._sorted is None:
            self._sorted = sorted(self._ranked.values(), key=itemgetter(0))
        return self._sorted


def priority_of(request: Request, settings: PoolSettings) -> int:
    """The priority that counts for a request."""
    return request.claim.priority or settings.default_priority
