"""First in, first out: requests are placed in the order they came.

A request that does not fit blocks those behind it, so that a large one is not starved by small ones. Requests without
slots do not compete with the others: each kind has its own line. A job at its cap of slots (`max_slots`) blocks nobody.
"""

from __future__ import annotations

from workflows.scheduling.fit import could_ever_fit, fit
from workflows.scheduling.model import Grant, PoolSnapshot


def schedule(pool: PoolSnapshot) -> list[Grant]:
    """Take from the queue what can start now, and return the grants; `pool` is updated accordingly."""
    granted: list[Grant] = []
    blocked: set[bool] = set()
    for request in list(pool.queue):
        line = request.slots == 0
        if line in blocked:
            continue
        if request.max_slots is not None and pool.slots_of_job(request.job_id) + request.slots > request.max_slots:
            continue  # its own job's cap, which is no reason for others to wait
        placements = fit(pool, request)
        if placements is None:
            # what waits for an agent to come back, since those here are not for it, holds nobody up
            if not request.excluded_agents or could_ever_fit(pool, request):
                blocked.add(line)
            continue
        grant = Grant(request=request, placements=placements)
        pool.queue.remove(request)
        pool.grants[request.allocation_id] = grant
        granted.append(grant)
    return granted
