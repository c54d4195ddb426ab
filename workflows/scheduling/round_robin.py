"""In turn: the jobs that hold the least take one request each, again and again, while they fit. Nobody has to leave.

Source: spec scheduling.md §3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from workflows.scheduling.model import Decision, Request
from workflows.scheduling.order import order
from workflows.scheduling.pool import Draft, Pool
from workflows.scheduling.shares import Wish, Wishes, in_order, served


def schedule(pool: Pool) -> Decision:
    """Decide who starts."""
    draft = Draft(pool)
    ranks = order(pool)
    for has_slots in (False, True):
        for wishes in served(pool, draft, ranks, has_slots=has_slots):
            if not _take_turns(draft, wishes):
                break
    return draft.done()


def _take_turns(draft: Draft, wishes: Wishes) -> bool:
    """Whether all could start."""
    age = {job: min(wish.rank for wish in of_job).position for job, of_job in wishes.items()}
    turns = deque(sorted(wishes, key=lambda job: (draft.slots_of_job(job), age[job], job)))
    requests: dict[str, Iterator[tuple[Wish, Request]]] = {}
    all_start = True
    while turns:
        job = turns.popleft()
        if all(draft.is_in_vain(wish.alike.kind) for wish in wishes[job]):
            all_start = False
            continue
        if job not in requests:
            requests[job] = in_order(wishes[job])
        _, request = next(requests[job], (None, None))
        if request is None or draft.is_capped(request):
            continue
        placements = draft.fit(request)
        if placements is None:
            all_start = False
            continue  # the job's turn is over until the next decision
        draft.start(request, placements)
        turns.append(job)
    return all_start
