"""Fair share, round robin and the order by quotas, written as the spec has them: each decision looks at each request.

What the policies decide must be the same. Source: spec scheduling.md §3.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from workflows.scheduling.model import Decision, Grant, Request
from workflows.scheduling.order import Order
from workflows.scheduling.pool import Draft, Pool
from workflows.scheduling.rank import Rank, priority_of
from workflows.scheduling.settings import Policy

Queue = list[tuple[Rank, Request]]


def order(pool: Pool) -> Order:
    """Who is within the quotas, in the order of ranks, and behind them who is not."""
    used = defaultdict[tuple[str, str], int](int)
    more = defaultdict[str, int](int)

    def ranked(request: Request, *, may_start: bool = True) -> Rank:
        quotas = pool.settings.quotas.of(request.user, request.workspace)
        bounds = list(zip((("user", request.user), ("workspace", request.workspace)), quotas, strict=True))
        is_borrowing = request.slots > 0 and any(
            bound is not None and used[whose] + request.slots > bound for whose, bound in bounds
        )
        if may_start and not is_borrowing:
            for whose, _ in bounds:
                used[whose] += request.slots
            more[request.job_id] += request.slots
        return Rank(is_borrowing, priority_of(request.claim, pool.settings), request.claim.position)

    def place(request: Request) -> tuple[int, int]:
        return priority_of(request.claim, pool.settings), request.claim.position

    held = sorted(pool.snapshot.grants.values(), key=lambda grant: place(grant.request))
    grants = [(ranked(grant.request), grant) for grant in held]
    more.clear()
    waiting = [
        (
            ranked(
                request, may_start=not pool.is_capped(request, more[request.job_id]) and pool.fits_ever(request)
            ),
            request,
        )
        for request in sorted(pool.snapshot.queue.values(), key=place)
    ]  # fmt: skip
    return Order(
        sorted(grants, key=lambda entry: entry[0].is_borrowing),
        sorted(waiting, key=lambda entry: entry[0].is_borrowing),
    )


def decide(pool: Pool) -> Decision:
    """As the pool's settings say; nothing is noted in the pool."""
    draft, ranks = Draft(pool), order(pool)
    take_part = _fair if pool.settings.scheduler is Policy.FAIR_SHARE else _in_turn
    for has_slots in (False, True):
        for group in _served(pool, draft, ranks, has_slots=has_slots):
            if has_slots or take_part is _in_turn:
                if not take_part(pool, draft, ranks, group):
                    break
            else:
                _in_order(draft, group)
    decision = draft.done()
    for grant in decision.starts:
        pool.room.give(grant.placements)
    return decision


def _served(pool: Pool, draft: Draft, ranks: Order, *, has_slots: bool) -> list[Queue]:
    waiting = [
        entry
        for entry in ranks.queue
        if (entry[1].slots > 0) is has_slots and not draft.is_capped(entry[1]) and pool.fits_ever(entry[1])
    ]
    within, borrowing = ([entry for entry in waiting if entry[0].is_borrowing is each] for each in (False, True))
    return [within, borrowing] if borrowing and pool.settings.quotas.borrowing else [within]


def _in_order(draft: Draft, group: Queue) -> None:
    for _, request in group:
        placements = draft.fit(request)
        if placements is None:
            return
        draft.start(request, placements)


def _in_turn(pool: Pool, draft: Draft, ranks: Order, group: Queue) -> bool:
    jobs = defaultdict[str, Queue](list)
    for entry in group:
        jobs[entry[1].job_id].append(entry)
    turns = sorted(jobs, key=lambda job: (draft.slots_of_job(job), jobs[job][0][0].position, job))
    all_start = True
    while turns:
        job = turns.pop(0)
        _, request = jobs[job].pop(0)
        if draft.is_capped(request):
            continue
        placements = draft.fit(request)
        if placements is None:
            all_start = False
            continue
        draft.start(request, placements)
        turns += [job] * bool(jobs[job])
    return all_start


@dataclass(eq=False)
class _Job:
    requests: list[Request]
    held: list[Grant] = field(default_factory=list[Grant])
    fixed: int = 0
    offer: int = 0
    is_out: bool = False

    @property
    def active(self) -> int:
        return sum(grant.request.slots for grant in self.held)

    @property
    def demand(self) -> int:
        wanted = self.active + sum(request.slots for request in self.requests)
        cap = self.of.claim.max_slots
        return wanted if cap is None else min(wanted, cap)

    @property
    def of(self) -> Request:
        return self.held[0].request if self.held else self.requests[0]


def _fair(pool: Pool, draft: Draft, ranks: Order, group: Queue) -> bool:
    is_lent = any(rank.is_borrowing for rank, _ in group)
    by_id = defaultdict[str, _Job](lambda: _Job([]))
    for rank, grant in ranks.grants:
        if grant.request.slots and not grant.is_preempting:
            job = by_id[grant.request.job_id]
            job.held.append(grant)
            job.fixed += grant.request.slots * (not grant.request.is_preemptible or (is_lent and not rank.is_borrowing))
    for grant in draft.decision.starts:
        if grant.request.slots:
            by_id[grant.request.job_id].held.append(grant)
            by_id[grant.request.job_id].fixed += grant.request.slots
    for _, request in group:
        by_id[request.job_id].requests.append(request)
    jobs = sorted(by_id.values(), key=lambda job: (job.demand, job.of.claim.position, job.of.job_id))
    # what has started in this decision is held, and no longer free
    left = pool.room.free + sum(
        grant.request.slots for grant in (*pool.snapshot.grants.values(), *draft.decision.starts)
    )
    for job in jobs:
        job.offer = min(job.fixed, job.demand)
        left -= job.offer
    left = _fill(jobs, left)
    for job in sorted(jobs, key=lambda job: (job.of.claim.position, job.of.job_id), reverse=True):
        if left > 0:
            break
        if job.requests and min(request.slots for request in job.requests) > job.offer - job.active:
            job.is_out, kept = True, min(job.offer, job.active)
            left += job.offer - kept
            job.offer = kept
            left = _fill(jobs, left)
    all_start = True
    for job in jobs:
        if job.offer < job.active:
            _give_back(draft, job)
        else:
            all_start &= _start(draft, job)
    return all_start and not draft.decision.leaves


def _fill(jobs: list[_Job], left: int) -> int:
    while left > 0:
        wanting = [job for job in jobs if job.offer < job.demand and not job.is_out]
        if not wanting:
            break
        at_start, weights = left, sum(job.of.claim.weight for job in wanting)
        for job in wanting:
            part = max(1, int(at_start * job.of.claim.weight / weights)) if weights else 1
            part = min(part, left, job.demand - job.offer)
            job.offer += part
            left -= part
    return left


def _give_back(draft: Draft, job: _Job) -> None:
    active = job.active
    reason = f"its job holds {active} slots, and its fair share is {job.offer}"
    for grant in job.held:
        if active > job.offer and grant.request.is_preemptible:
            draft.leave(grant, reason)
            active -= grant.request.slots


def _start(draft: Draft, job: _Job) -> bool:
    active = job.active
    left: list[Request] = []
    for request in job.requests:
        may_start = active + request.slots <= job.offer and not draft.is_capped(request)
        placements = draft.fit(request) if may_start else None
        if placements is None:
            left.append(request)
        else:
            draft.start(request, placements)
            active += request.slots
    return all(map(draft.is_capped, left))
