"""By priority: the first in rank starts first, and nothing passes a request that waits for room, unless it can be made
to leave again. Source: spec scheduling.md §3.

With preemption, a request that does not fit makes those of lower rank leave, the last one first, and no more of them
than it needs; smaller work that can be made to leave may pass it meanwhile ("backfilled"). Without, slots that were
lent beyond a quota are still asked back by those who are within theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Reversible
from itertools import islice

from workflows.scheduling.model import Decision, Grant, Placement, Request, Shape
from workflows.scheduling.order import order
from workflows.scheduling.pool import Draft, Pool
from workflows.scheduling.rank import Alike, Line, Rank
from workflows.scheduling.room import Room

#: Before all that borrow, behind all others.
_FIRST_BORROWING = Rank(True, 0, 0)


def schedule(pool: Pool) -> Decision:
    """Decide who starts and who is asked to leave."""
    ranks = order(pool)
    draft = Draft(pool)
    # those with slots and those without don't compete: they wait in lines of their own
    for has_slots in (False, True):
        if length := pool.waiting.length(has_slots=has_slots):
            queue = (entry for entry in ranks.queue if (entry[1].slots > 0) is has_slots)
            kinds = _Open(pool.waiting, has_slots=has_slots)
            reclaim = _Reclaim(pool, draft, ranks.grants if has_slots else (), kinds)
            _serve(pool, draft, islice(queue, length), reclaim, kinds)
    return draft.done()


class _Open:
    """The kinds of requests for which a decision may still do something: when there are none, it has been made.

    Thousands may wait that are of one kind, as the trials of a search are, or of one shape.

    Args:
        waiting: The queue of the pool.
        has_slots: Whether it is about those with slots, or about those without.
    """

    def __init__(self, waiting: Line[Request], *, has_slots: bool) -> None:
        self._waiting = waiting
        # of each shape: the kinds that are open
        self._kinds = {shape: len(kinds) for shape, kinds in waiting.shapes.items() if (shape.slots > 0) is has_slots}
        self._served = Counter[Alike[Request]]()
        self._closed: set[Alike[Request]] = set()
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
        alike = self._waiting.alike_of(request.allocation_id)
        shape = alike.kind.shape
        if alike not in self._closed and shape in self._kinds:
            self._closed.add(alike)
            self._kinds[shape] -= 1
            if not self._kinds[shape]:
                self.close_shape(shape)

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
        alike = self._waiting.alike_of(request.allocation_id)
        self._served[alike] += 1
        if self._served[alike] == len(alike.entries):
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

    def __init__(self, pool: Pool, draft: Draft, holders: Reversible[tuple[Rank, Grant]], kinds: _Open) -> None:
        self._pool = pool
        self._draft = draft
        self._holders = holders
        self._kinds = kinds
        self._gone = 0  # as many of the last ones are leaving, or hold no slots
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
        stays = self._last_to_stay(rank)
        if stays is None:
            return
        later = self._room()
        placements, victims = later.fit(request), []
        if placements is None:
            placements, victims = self._search(stays, request, later)
        if placements is None:
            return
        later.take(placements)
        self._draft.reserve(placements)
        for victim_rank, victim in victims:
            self._leaving.add(victim.request.allocation_id)
            self._draft.leave(victim, self._reason(rank, request, victim_rank))

    def _last_to_stay(self, rank: Rank) -> Rank | None:
        """Holders behind this rank have to leave for a request; None if none ever has to."""
        settings = self._pool.settings
        if settings.preemption:
            return rank  # in the same priority only those of jobs whose place is behind
        if settings.quotas and not rank.is_borrowing:
            return _FIRST_BORROWING
        return None

    def _search(
        self, stays: Rank, request: Request, later: Room
    ) -> tuple[tuple[Placement, ...] | None, list[tuple[Rank, Grant]]]:
        asked: list[tuple[Rank, Grant]] = []
        placements, are_gone = None, True
        for entry in islice(reversed(self._holders), self._gone, None):
            rank, grant = entry
            is_of_use = grant.request.slots > 0 and not self._is_leaving(grant)
            if are_gone and not is_of_use:
                self._gone += 1
                continue
            are_gone = False
            if rank <= stays:
                break
            if not is_of_use or not grant.request.is_preemptible:
                continue
            later.give(grant.placements)
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
