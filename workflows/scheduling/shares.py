"""What fair share and round robin have in common: who may ask for slots at all, by quota and size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from workflows.scheduling.model import Request
from workflows.scheduling.order import Order
from workflows.scheduling.pool import Draft, Pool
from workflows.scheduling.rank import Alike, Rank


@dataclass(eq=False, slots=True)
class Wish:
    """Requests of one kind that take part in the sharing, one at least.

    Attributes:
        alike: What they are of.
        rank: of each of them.
        requests: with a number that grows in the order of the queue.
    """

    alike: Alike[Request]
    rank: Rank
    requests: Collection[tuple[int, Request]]


#: The wishes of each job.
Wishes = dict[str, list[Wish]]


def served(pool: Pool, draft: Draft, ranks: Order, *, has_slots: bool) -> list[Wishes]:
    """Those who wait within their quotas, and then those who would borrow, where that is allowed.

    Requests that the pool's agents can't hold wait for others to join, and take part in nothing.
    """
    part = {
        alike: (alike.rank, alike.entries.values())
        for alike in pool.fitting(has_slots=has_slots)
        if not draft.is_capped(alike.sample)
    }
    if not part or not pool.settings.quotas:
        return [_by_job(part)]
    within: dict[Alike[Request], tuple[Rank, list[tuple[int, Request]]]] = {}
    borrowing: dict[Alike[Request], tuple[Rank, list[tuple[int, Request]]]] = {}
    for number, (rank, request) in enumerate(ranks.queue):
        alike = pool.waiting.alike_of(request.allocation_id)
        if alike in part:
            group = borrowing if rank.is_borrowing else within
            if alike not in group:
                group[alike] = rank, []
            group[alike][1].append((number, request))
    groups = [within, borrowing] if borrowing and pool.settings.quotas.borrowing else [within]
    return list(map(_by_job, groups))


def _by_job(found: Mapping[Alike[Request], tuple[Rank, Collection[tuple[int, Request]]]]) -> Wishes:
    wishes = defaultdict[str, list[Wish]](list)
    for alike, (rank, requests) in found.items():
        wishes[alike.kind.job_id].append(Wish(alike, rank, requests))
    return wishes


def in_order(wishes: Sequence[Wish], closed: Set[Wish] = frozenset()) -> Iterator[tuple[Wish, Request]]:
    """The requests in the order of the queue, each with its wish; none of a wish that is closed by then."""
    if len(wishes) == 1:  # most jobs ask for one kind
        for _, request in wishes[0].requests:
            if wishes[0] in closed:
                return
            yield wishes[0], request
        return
    heap: list[tuple[Rank, int, Request, Wish, Iterator[tuple[int, Request]]]] = []
    for wish in wishes:
        requests = iter(wish.requests)
        heap.append((wish.rank, *next(requests), wish, requests))
    heapify(heap)  # no two have the same number: nothing behind it is compared
    while heap:
        rank, _, request, wish, requests = heap[0]
        if wish in closed:
            heappop(heap)
            continue
        yield wish, request
        following = next(requests, None)
        if following is None:
            heappop(heap)
        else:
            heapreplace(heap, (rank, *following, wish, requests))
