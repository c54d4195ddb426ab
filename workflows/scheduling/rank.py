"""The place of a request among others: priority, then position in the queue. Source: spec scheduling.md §3."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import count, groupby
from typing import Generic, NamedTuple, TypeVar

from workflows.scheduling.model import Claim, Grant, Kind, Request, Shape
from workflows.scheduling.settings import PoolSettings

_Entry = TypeVar("_Entry", Request, Grant)


class Rank(NamedTuple):
    """The place of a request; the smallest goes first, and of equal ones the one that came first."""

    is_borrowing: bool  # beyond the quota of its user or workspace
    priority: int
    position: int


class Alike(Generic[_Entry]):
    """Those in a line that are of one kind; there is always one at least. Sets tell them apart by identity.

    Attributes:
        kind: of each of them.
        rank: of each of them that is within its quota.
        rank_beyond: of each of them that is beyond.
        sample: what one of them asked for, which may not be there any more.
        entries: by allocation, with a number that grows in the order in which they came.
        leaving: allocations of those that were asked to leave.
    """

    __slots__ = ("entries", "kind", "leaving", "rank", "rank_beyond", "sample")

    def __init__(self, kind: Kind, rank: Rank, sample: Request) -> None:
        self.kind = kind
        self.rank = rank
        self.rank_beyond = rank._replace(is_borrowing=True)
        self.sample = sample
        self.entries: dict[str, tuple[int, _Entry]] = {}
        self.leaving: set[str] = set()


class Line(Generic[_Entry]):
    """Those who wait, or those who hold, each with its rank; iteration begins with the first in rank.

    The requests of a job have one rank, and are of few kinds. So there are few of both, and who comes or leaves costs
    the same however long the line is.

    Args:
        settings: of the pool.
        entries: who is in it, with what it asked for, in the order in which they came.

    Attributes:
        alike: Those that are of one kind, by kind.
        shapes: The same by shape, of which there are still fewer.
    """

    def __init__(self, settings: PoolSettings, entries: Iterable[tuple[Request, _Entry]]) -> None:
        self.alike: dict[Kind, Alike[_Entry]] = {}
        self.shapes: dict[Shape, dict[Alike[_Entry], None]] = {}
        self._lengths = Counter[bool]()  # with slots, and without
        self._settings = settings
        self._numbers = count()
        self._alike_of: dict[str, Alike[_Entry]] = {}
        self._of_rank: dict[Rank, dict[str, _Entry]] = {}
        self._ranks: list[Rank] = []  # ascending
        for request, entry in entries:
            self.add(request, entry)

    def __contains__(self, allocation_id: str) -> bool:
        return allocation_id in self._alike_of

    def __iter__(self) -> Iterator[tuple[Rank, _Entry]]:
        for rank in self._ranks:
            for entry in self._of_rank[rank].values():
                yield rank, entry

    def __reversed__(self) -> Iterator[tuple[Rank, _Entry]]:
        for rank in reversed(self._ranks):
            for entry in reversed(self._of_rank[rank].values()):
                yield rank, entry

    def runs(self) -> Iterator[tuple[Alike[_Entry], Collection[_Entry]]]:
        """All entries, the first in rank first, those together that are alike and follow on each other."""
        for rank in self._ranks:
            of_rank = self._of_rank[rank]
            alike = self._alike_of[next(iter(of_rank))]
            if len(alike.entries) == len(of_rank):
                yield alike, of_rank.values()
                continue
            for alike, run in groupby(of_rank.items(), lambda item: self._alike_of[item[0]]):
                yield alike, [entry for _, entry in run]

    def alike_of(self, allocation_id: str) -> Alike[_Entry]:
        """Those of the same kind, and itself. KeyError if it is not there."""
        return self._alike_of[allocation_id]

    def length(self, *, has_slots: bool) -> int:
        """How many have slots, or how many have none."""
        return self._lengths[has_slots]

    def add(self, request: Request, entry: _Entry) -> None:
        """Add one more, which comes after those of its rank."""
        kind = Kind.of(request)
        alike = self.alike.get(kind)
        if alike is None:
            rank = Rank(False, priority_of(request.claim, self._settings), request.claim.position)
            alike = self.alike[kind] = Alike(kind, rank, request)
            self.shapes.setdefault(kind.shape, {})[alike] = None
            if rank not in self._of_rank:
                self._of_rank[rank] = {}
                insort(self._ranks, rank)
        alike.entries[request.allocation_id] = next(self._numbers), entry
        self._alike_of[request.allocation_id] = alike
        self._of_rank[alike.rank][request.allocation_id] = entry
        self._lengths[kind.slots > 0] += 1

    def remove(self, allocation_id: str) -> None:
        """One fewer. KeyError if it is not there."""
        alike = self._alike_of.pop(allocation_id)
        del alike.entries[allocation_id], self._of_rank[alike.rank][allocation_id]
        alike.leaving.discard(allocation_id)
        self._lengths[alike.kind.slots > 0] -= 1
        if not alike.entries:
            del self.alike[alike.kind]
            del self.shapes[alike.kind.shape][alike]
            if not self.shapes[alike.kind.shape]:
                del self.shapes[alike.kind.shape]
        if not self._of_rank[alike.rank]:
            del self._of_rank[alike.rank], self._ranks[bisect_left(self._ranks, alike.rank)]


def priority_of(claim: Claim, settings: PoolSettings) -> int:
    """The priority that counts for a claim."""
    return claim.priority or settings.default_priority
