"""By priority: the first in rank starts first, and nothing passes a request that waits for room, unless it can be made
to leave again. Source: spec scheduling.md §3.

With preemption, a request that does not fit makes those of lower rank leave, the last one first, and no more of them
than it needs; smaller work that can be made to leave may pass it meanwhile ("backfilled"). Without, slots that were
lent beyond a quota are still asked back by those who are within theirs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import islice

from workflows.scheduling.model import Decision, Grant, Kind, Placement, Request, Shape
from workflows.scheduling.order import order
from workflows.scheduling.pool import Draft, Pool
from workflows.scheduling.rank import Rank
from workflows.scheduling.room import Room


def schedule(pool: Pool) -> Decision:
    """Decide who starts and who is asked to leave."""
    ranks = order(pool)
    draft = Draft(pool)
    # those with slots and those without don't compete: they wait in lines of their own
    for has_slots in (False, True):
        counts = {kind: count for kind, count in pool.kinds.items() if (kind.shape.slots > 0) is has_slots}
        if counts:
            queue = (entry for entry in ranks.queue if (entry[1].slots > 0) is has_slots)
            kinds = _Open(counts)
            reclaim = _Reclaim(pool, draft, ranks.grants if has_slots else (), kinds)
            _serve(pool, draft, islice(queue, sum(counts.values())), reclaim, kinds)
    return draft.done()


class _Open:
    """The kinds of requests for which a decision may still do something: when there are none, it has been made.

    Thousands may wait that are of one kind, as the trials of a search are, or of one shape.

    Args:
        counts: How many requests of each kind wait.
    """

    def __init__(self, counts: Mapping[Kind, int]) -> None:
        self._left = dict(counts)
        self._kinds = Counter(kind.shape for kind in counts)  # of each shape: those that are open
        self._closed: set[Kind] = set()
        self._in_vain: set[Shape] = set()

    @property
    def is_empty(self) -> bool:
        """Whether nothing more can be done."""
        return len(self._in_vain) == len(self._kinds)

    def is_in_vain(self, shape: Shape) -> bool:
        """Whether nothing can be done for this shape for now."""
        return shape in self._in_vain

    def close(self, request: Request) -> None:
        """Nothing can be done for its kind in this decision."""
        kind = Kind.of(request)
        if kind not in self._closed:
            self._closed.add(kind)
            self._kinds[kind.shape] -= 1
            if not self._kinds[kind.shape]:
                self.close_shape(kind.shape)

    def close_shape(self, shape: Shape) -> None:
        """Nothing can be done for any of this shape."""
        self._kinds.pop(shape, None)
        self._in_vain.discard(shape)

    def close_for_now(self, shape: Shape) -> None:
        """Nothing can be done for any of this shape, unless others are made to leave."""
        self._in_vain.add(shape)

    def reopen(self) -> None:
        """Others leave, perhaps more of them than was needed: what was in vain may not be any more."""
        self._in_vain.clear()

    def served(self, request: Request) -> None:
        """Its slots are found: it may have been the last one of its kind."""
        kind = Kind.of(request)
        self._left[kind] -= 1
        if not self._left[kind]:
            self.close(request)


def _serve(pool: Pool, draft: Draft, queue: Iterable[tuple[Rank, Request]], reclaim: _Reclaim, kinds: _Open) -> None:
    may_pass = pool.settings.preemption
    waits = False
    for rank, request in queue:
        if kinds.is_empty or (rank.is_borrowing and not pool.settings.quotas.borrowing):
            break
        # what waits for agents to join, or what its own job's cap keeps waiting, holds nobody up
        if not pool.fits_ever(request):
            kinds.close_shape(request.shape)
            continue
        if draft.is_capped(request):
            kinds.close(request)
            continue
        if waits and not may_pass:
            break
        if waits and not request.is_preemptible:
            kinds.close(request)
            continue
        placements = draft.fit(request)
        if placements is None:
            waits = True
            reclaim.make_room(rank, request)
            continue
        if draft.decision.leaves:
            draft.reserve(placements)  # nothing starts while slots are asked back: the next decision sees more
        else:
            draft.start(request, placements, is_backfilled=waits)
        reclaim.given(placements)
        kinds.served(request)


class _Reclaim:
    """Finds holders that can be made to leave for a request of a better rank."""

    def __init__(self, pool: Pool, draft: Draft, holders: Iterable[tuple[Rank, Grant]], kinds: _Open) -> None:
        self._pool = pool
        self._draft = draft
        self._holders = holders
        self._kinds = kinds
        self._gone = 0  # as many of the last ones are leaving
        self._leaving: set[str] = set()
        self._later: Room | None = None

    def given(self, placements: tuple[Placement, ...]) -> None:
        """Slots were given away meanwhile, or will be next time."""
        if self._later is not None:
            self._later.take(placements)

    def make_room(self, rank: Rank, request: Request) -> None:
        """Keep room for the request that will be free soon, and ask for more where that does not do."""
        if self._kinds.is_in_vain(request.shape):
            return
        first = self._first_victim(rank)
        if first is None:
            return
        later = self._room()
        placements, victims = later.fit(request), []
        if placements is None:
            placements, victims = self._search(first, request, later)
        if placements is None:
            return
        later.take(placements)
        self._draft.reserve(placements)
        for victim_rank, victim in victims:
            self._leaving.add(victim.request.allocation_id)
            self._draft.leave(victim, self._reason(rank, request, victim_rank))

    @cached_property
    def _grants(self) -> list[tuple[Rank, Grant]]:
        return [entry for entry in self._holders if entry[1].request.slots > 0]

    @cached_property
    def _ranks(self) -> list[Rank]:
        return [rank for rank, _ in self._grants]

    def _first_victim(self, rank: Rank) -> int | None:
        """Index of the first holder that has to leave for a request of this rank; None if there never is any."""
        settings = self._pool.settings
        if settings.preemption:
            # in the same priority only those of jobs whose place is behind
            return bisect_right(self._ranks, rank)
        if settings.quotas and not rank.is_borrowing:
            return bisect_right(self._ranks, False, key=lambda rank: rank.is_borrowing)
        return None

    def _search(
        self, first: int, request: Request, later: Room
    ) -> tuple[tuple[Placement, ...] | None, list[tuple[Rank, Grant]]]:
        while self._gone < len(self._grants) and self._is_leaving(self._grants[-1 - self._gone][1]):
            self._gone += 1
        asked: list[tuple[Rank, Grant]] = []
        placements = None
        for index in range(len(self._grants) - self._gone - 1, first - 1, -1):
            entry = self._grants[index]
            if not entry[1].request.is_preemptible or self._is_leaving(entry[1]):
                continue
            later.give(entry[1].placements)
            asked.append(entry)
            placements = later.fit(request)
            if placements is not None:
                break
        if placements is None:
            # Who comes later in rank has fewer to choose from, and less room.
            self._kinds.close_for_now(request.shape)
        needed = _slots(placements or ())
        victims: list[tuple[Rank, Grant]] = []
        for entry in asked:
            if needed.isdisjoint(_slots(entry[1].placements)):
                later.take(entry[1].placements)  # it would leave without helping
            else:
                victims.append(entry)
        if victims:
            self._kinds.reopen()
        return placements, victims

    def _room(self) -> Room:
        """What is free when all have left that were asked to."""
        if self._later is None:
            self._later = self._draft.room.copy()  # nothing is reserved yet: that begins here
            for grant in self._pool.snapshot.grants.values():
                if grant.is_preempting:
                    self._later.give(grant.placements)
        return self._later

    def _is_leaving(self, grant: Grant) -> bool:
        return grant.is_preempting or grant.request.allocation_id in self._leaving

    def _reason(self, rank: Rank, request: Request, victim: Rank) -> str:
        if victim.is_borrowing and not rank.is_borrowing:
            return f"its slots were borrowed beyond the quota, and {request.name} is within its own"
        if rank.priority != victim.priority:
            return f"{request.name} comes first: its priority is {rank.priority}, not {victim.priority}"
        return f"{request.name} comes first in the queue of priority {rank.priority}"


def _slots(placements: tuple[Placement, ...]) -> set[tuple[str, int]]:
    return {(place.agent_id, slot) for place in placements for slot in place.slot_ids}
