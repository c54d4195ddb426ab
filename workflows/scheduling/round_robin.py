"""In turn: the jobs that hold the least take one request each, again and again, while they fit. Nobody has to leave.

Source: spec scheduling.md §3.
"""

from __future__ import annotations

from collections import defaultdict, deque

from workflows.scheduling.model import Decision, Request
from workflows.scheduling.order import order
from workflows.scheduling.pool import Draft, Pool
from workflows.scheduling.rank import Rank
from workflows.scheduling.shares import served


def schedule(pool: Pool) -> Decision:
    """Decide who starts."""
    draft = Draft(pool)
    ranks = order(pool)
    for has_slots in (False, True):
        for waiting in served(pool, draft, ranks, has_slots=has_slots):
            if not _take_turns(draft, waiting):
                break
    return draft.done()


def _take_turns(draft: Draft, waiting: list[tuple[Rank, Request]]) -> bool:
    """Whether all could start."""
    jobs: dict[str, deque[Request]] = defaultdict(deque)
    age: dict[str, int] = {}
    for rank, request in waiting:
        jobs[request.job_id].append(request)
        age.setdefault(request.job_id, rank.position)
    turns = deque(sorted(jobs, key=lambda job: (draft.slots_of_job(job), age[job], job)))
    all_start = True
    while turns:
        job = turns.popleft()
        request = jobs[job].popleft()
        if draft.is_capped(request):
            continue
        placements = draft.fit(request)
        if placements is None:
            all_start = False
            continue  # the job's turn is over until the next decision
        draft.start(request, placements)
        if jobs[job]:
            turns.append(job)
    return all_start
