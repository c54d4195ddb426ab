"""Shares by weight: each job is offered its part of the slots, releases what it holds beyond, and starts what fits.

Source: spec scheduling.md §3, fair_share.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from itertools import chain

from workflows.scheduling.model import Decision, Grant, Kind
from workflows.scheduling.order import Order, order
from workflows.scheduling.pool import Draft, Pool
from workflows.scheduling.shares import Wish, Wishes, in_order, served


@dataclass(eq=False)
class _Job:
    """A job's part in the sharing. All numbers are slots."""

    job_id: str
    weight: float
    cap: int | None
    position: int
    wishes: list[Wish] = field(default_factory=list[Wish])
    active: int = 0  # what it holds, but for what it was asked to give back
    fixed: int = 0  # of that: what it can't be asked to give back
    demand: int = 0
    smallest: int = 0  # of the requests that wait
    offer: int = 0

    @classmethod
    def of(cls, kind: Kind) -> _Job:
        """The job that has requests of a kind."""
        return cls(kind.job_id, kind.weight, kind.max_slots, kind.position)

    @property
    def place(self) -> tuple[int, int, str]:
        """Who comes first when slots are offered: the least demand, then the oldest."""
        return self.demand, self.position, self.job_id

    @property
    def is_offered_too_little(self) -> bool:
        """Whether its offer is of no use to it: not even the smallest request that waits fits into it."""
        return bool(self.wishes) and self.smallest > self.offer - self.active

    def settle(self) -> None:
        """What it holds and wants is known."""
        self.demand = self.active
        for wish in self.wishes:
            slots = wish.alike.kind.slots
            self.demand += slots * len(wish.requests)
            self.smallest = min(self.smallest or slots, slots)
        if self.cap is not None:
            self.demand = min(self.demand, self.cap)


def schedule(pool: Pool) -> Decision:
    """Decide who starts and who is asked to leave. Requests without slots start in their order while they fit."""
    ranks = order(pool)
    draft = Draft(pool)
    [without, *_] = served(pool, draft, ranks, has_slots=False)
    for _, request in in_order(list(chain.from_iterable(without.values()))):
        placements = draft.fit(request)
        if placements is None:
            break
        draft.start(request, placements)
    capacity = pool.room.free + pool.held_slots  # those in service, and those out of reach that are held
    for is_lent, wishes in enumerate(served(pool, draft, ranks, has_slots=True)):
        jobs = _jobs(pool, draft, ranks, wishes, is_lent=bool(is_lent))
        _offer(jobs, capacity)
        held = _held(ranks, {job.job_id for job in jobs if job.offer < job.active})
        all_start = True
        for job in jobs:
            if job.offer < job.active:
                _give_back(job, held[job.job_id], draft)
            elif not _start(job, draft):
                all_start = False
        if draft.decision.leaves or not all_start:
            break
    return draft.done()


def _jobs(pool: Pool, draft: Draft, ranks: Order, wishes: Wishes, *, is_lent: bool) -> list[_Job]:
    """All that hold slots or want some, in the order of their places."""
    jobs: dict[str, _Job] = {}
    for alike in pool.holders.alike.values():
        kind, slots = alike.kind, alike.kind.slots * (len(alike.entries) - len(alike.leaving))
        if slots:
            job = jobs[kind.job_id] = jobs.get(kind.job_id) or _Job.of(kind)
            job.active += slots
            job.fixed += 0 if kind.is_preemptible else slots
    if is_lent:  # a holder within its quota releases nothing for those who borrow
        for rank, grant in ranks.grants:
            request = grant.request
            if request.slots and request.is_preemptible and not (rank.is_borrowing or grant.is_preempting):
                jobs[request.job_id].fixed += request.slots
    for grant in draft.decision.starts:
        request = grant.request
        if request.slots:
            job = jobs[request.job_id] = jobs.get(request.job_id) or _Job.of(Kind.of(request))
            job.active += request.slots
            job.fixed += request.slots
    for job_id, of_job in wishes.items():
        job = jobs[job_id] = jobs.get(job_id) or _Job.of(of_job[0].alike.kind)
        job.wishes = of_job
    for job in jobs.values():
        job.settle()
    return sorted(jobs.values(), key=lambda job: job.place)


def _offer(jobs: list[_Job], capacity: int) -> None:
    """Progressive filling: slots go to all that want more, by weight, until there are none or nobody wants any.

    An offer that is of no use to its job goes to the others, that of the youngest first.
    """
    left = capacity
    for job in jobs:
        job.offer = min(job.fixed, job.demand)
        left -= job.offer
    wanting = _Wanting(jobs)
    left = wanting.fill(left)
    for job in sorted(jobs, key=lambda job: (job.position, job.job_id), reverse=True):
        if left > 0:
            return
        if job.is_offered_too_little:
            wanting.drop(job)
            kept = min(job.offer, job.active)  # what runs goes on
            left += job.offer - kept
            job.offer = kept
            left = wanting.fill(left)


class _Wanting:
    """The jobs that want more slots than they are offered, in their order.

    What one gives back goes to the first ones, again and again: that must not look at all of them.
    """

    def __init__(self, jobs: Iterable[_Job]) -> None:
        self._jobs = [job for job in jobs if job.offer < job.demand]
        self._weights = [job.weight for job in self._jobs]

    def drop(self, job: _Job) -> None:
        """Offer it nothing more."""
        index = bisect_left(self._jobs, job.place, key=lambda each: each.place)
        if index < len(self._jobs) and self._jobs[index] is job:
            del self._jobs[index], self._weights[index]

    def fill(self, left: int) -> int:
        """Offer them the slots. Returns how many nobody wants."""
        while left > 0 and self._jobs:
            at_start, weights, seen = left, sum(self._weights), 0
            for job in self._jobs:
                part = max(1, int(at_start * job.weight / weights)) if weights else 1
                part = min(part, left, job.demand - job.offer)
                job.offer += part
                left -= part
                seen += 1
                if not left:
                    break
            still = [job for job in self._jobs[:seen] if job.offer < job.demand]
            self._jobs[:seen], self._weights[:seen] = still, [job.weight for job in still]
        return left


def fair_parts(jobs: Mapping[str, tuple[float, int]], capacity: int) -> dict[str, float]:
    """What each job would have if slots could be split: by weight, and none more than it can use.

    Args:
        jobs: Weight and demand in slots of each, by its id.
        capacity: Slots to share.
    """
    parts = dict.fromkeys(jobs, 0.0)
    left, wanting = float(capacity), {job: entry for job, entry in jobs.items() if entry[1] > 0 and entry[0] > 0}
    while wanting and left > 0:
        each = left / sum(weight for weight, _ in wanting.values())
        content = [job for job, (weight, demand) in wanting.items() if demand <= each * weight]
        if not content:
            return parts | {job: each * weight for job, (weight, _) in wanting.items()}
        for job in content:
            parts[job] = float(wanting.pop(job)[1])
            left -= parts[job]
    return parts


def _held(ranks: Order, job_ids: Set[str]) -> Mapping[str, list[Grant]]:
    """What these jobs hold and were not asked to give back, in the order of ranks."""
    held = defaultdict[str, list[Grant]](list)
    if job_ids:
        for _, grant in ranks.grants:
            if grant.request.job_id in job_ids and grant.request.slots and not grant.is_preempting:
                held[grant.request.job_id].append(grant)
    return held


def _give_back(job: _Job, held: Iterable[Grant], draft: Draft) -> None:
    active = job.active
    reason = f"its job holds {active} slots, and its fair share is {job.offer}"
    for grant in held:
        if active <= job.offer:
            break
        if grant.request.is_preemptible:
            draft.leave(grant, reason)
            active -= grant.request.slots


def _start(job: _Job, draft: Draft) -> bool:
    """Whether all that waits could start, but for what the job's cap keeps waiting."""
    active, left = job.active, set[Wish]()
    if job.is_offered_too_little:
        left.update(job.wishes)
    for wish, request in in_order(job.wishes, left):
        may_start = active + request.slots <= job.offer and not draft.is_capped(request)
        placements = draft.fit(request) if may_start else None
        if placements is None:
            left.add(wish)  # in this decision there is ever less for it
        else:
            draft.start(request, placements)
            active += request.slots
    return all(draft.is_capped(wish.alike.sample) for wish in left)
