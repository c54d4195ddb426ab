"""Shares by weight: each job is offered its part of the slots, releases what it holds beyond, and starts what fits.

Source: spec scheduling.md §3, fair_share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from workflows.scheduling.model import Decision, Grant, Request
from workflows.scheduling.order import Order, order
from workflows.scheduling.pool import Draft, Pool
from workflows.scheduling.rank import Rank
from workflows.scheduling.shares import served


@dataclass
class _Job:
    """A job's part in the sharing. All numbers are slots."""

    job_id: str
    weight: float = 1.0
    cap: int | None = None
    position: int = 0
    held: list[Grant] = field(default_factory=list[Grant])
    waiting: list[Request] = field(default_factory=list[Request])
    fixed: int = 0  # what it holds and can't be asked to give back
    offer: int = 0
    is_disabled: bool = False

    @cached_property
    def active(self) -> int:
        return sum(grant.request.slots for grant in self.held)

    @cached_property
    def demand(self) -> int:
        wanted = self.active + sum(request.slots for request in self.waiting)
        return wanted if self.cap is None else min(wanted, self.cap)

    @cached_property
    def smallest(self) -> int:
        """Of the requests that wait; 0 if none does."""
        return min((request.slots for request in self.waiting), default=0)

    @property
    def is_offered_too_little(self) -> bool:
        """Whether its offer is of no use to it: not even the smallest request that waits fits into it."""
        return bool(self.waiting) and self.smallest > self.offer - self.active


def schedule(pool: Pool) -> Decision:
    """Decide who starts and who is asked to leave. Requests without slots start in their order while they fit."""
    ranks = order(pool)
    draft = Draft(pool)
    for _, request in served(pool, draft, ranks, has_slots=False)[0]:
        if draft.is_capped(request):
            continue
        placements = draft.fit(request)
        if placements is None:
            break
        draft.start(request, placements)
    capacity = _capacity(pool)
    for waiting in served(pool, draft, ranks, has_slots=True):
        is_lent = any(rank.is_borrowing for rank, _ in waiting)
        jobs = _jobs(draft, ranks, waiting, is_lent=is_lent)
        _offer(jobs, capacity)
        all_start = True
        for job in jobs:
            if job.offer < job.active:
                _give_back(job, draft)
            elif not _start(job, draft):
                all_start = False
        if draft.decision.leaves or not all_start:
            break
    return draft.done()


def _jobs(draft: Draft, ranks: Order, waiting: list[tuple[Rank, Request]], *, is_lent: bool) -> list[_Job]:
    jobs: dict[str, _Job] = {}
    for rank, grant in ranks.grants:
        job = _job_of(jobs, grant.request)
        if grant.request.slots and not grant.is_preempting:
            job.held.append(grant)
            # a holder within its quota releases nothing for those who borrow
            if not grant.request.is_preemptible or (is_lent and not rank.is_borrowing):
                job.fixed += grant.request.slots
    for grant in draft.decision.starts:
        if grant.request.slots:
            job = _job_of(jobs, grant.request)
            job.held.append(grant)
            job.fixed += grant.request.slots
    for _, request in waiting:
        _job_of(jobs, request).waiting.append(request)
    return sorted(jobs.values(), key=lambda job: (job.demand, job.position, job.job_id))


def _job_of(jobs: dict[str, _Job], request: Request) -> _Job:
    job = jobs.get(request.job_id)
    if job is None:
        claim = request.claim
        job = jobs[request.job_id] = _Job(request.job_id, claim.weight, claim.max_slots, claim.position)
    return job


def _capacity(pool: Pool) -> int:
    """Slots to share: those in service, and those out of reach that are held."""
    return pool.room.free + sum(grant.request.slots for grant in pool.snapshot.grants.values())


def _offer(jobs: list[_Job], capacity: int) -> None:
    """Progressive filling: slots go to all that want more, by weight, until there are none or nobody wants any.

    An offer that is of no use to its job goes to the others, that of the youngest first.
    """
    left = capacity
    for job in jobs:
        job.offer = min(job.fixed, job.demand)
        left -= job.offer
    left = _fill(jobs, left)
    for job in sorted(jobs, key=lambda job: (job.position, job.job_id), reverse=True):
        if left > 0:
            return
        if job.is_offered_too_little:
            job.is_disabled = True
            kept = min(job.offer, job.active)  # what runs goes on
            left += job.offer - kept
            job.offer = kept
            left = _fill(jobs, left)


def _fill(jobs: list[_Job], left: int) -> int:
    """Offer the slots to those that want more. Returns how many nobody wants."""
    while left > 0:
        wanting = [job for job in jobs if job.offer < job.demand and not job.is_disabled]
        if not wanting:
            break
        at_start, weights = left, sum(job.weight for job in wanting)
        for job in wanting:
            part = max(1, int(at_start * job.weight / weights)) if weights else 1
            part = min(part, left, job.demand - job.offer)
            job.offer += part
            left -= part
            if not left:
                break
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


def _give_back(job: _Job, draft: Draft) -> None:
    active = job.active
    reason = f"its job holds {active} slots, and its fair share is {job.offer}"
    for grant in job.held:
        if active <= job.offer:
            break
        if grant.request.is_preemptible:
            draft.leave(grant, reason)
            active -= grant.request.slots


def _start(job: _Job, draft: Draft) -> bool:
    """Whether all that waits could start, but for what the job's cap keeps waiting."""
    active = job.active
    left: list[Request] = []
    for request in job.waiting:
        may_start = active + request.slots <= job.offer and not draft.is_capped(request)
        placements = draft.fit(request) if may_start else None
        if placements is None:
            left.append(request)
        else:
            draft.start(request, placements)
            active += request.slots
    return all(draft.is_capped(request) for request in left)
