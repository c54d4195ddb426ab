"""Where a job stands after it was moved before or behind another one. Source: spec scheduling.md §4."""

from __future__ import annotations

from collections.abc import Mapping

from workflows.scheduling.model import Claim
from workflows.scheduling.pool import Pool
from workflows.scheduling.rank import priority_of


def moved(
    pool: Pool,
    job_id: str,
    claim: Claim,
    anchor_id: str,
    anchor: Claim,
    *,
    is_ahead: bool,
    now: int,
    changed: Mapping[str, Claim],
) -> Claim:
    """The claim of a job that is placed just before or behind another one.

    It takes the other one's priority, and a position halfway to that one's neighbour; the end of the queue is `now`.

    Args:
        pool: whose jobs are the neighbours.
        job_id: of the job that moves.
        claim: what it claims at present.
        anchor_id: of the job that it is moved to.
        anchor: what that one claims.
        is_ahead: whether it goes before it.
        now: ns since 1970.
        changed: claims that the pool has yet to take up, by job.
    """
    if job_id == anchor_id:
        return claim
    settings = pool.settings
    priority = priority_of(anchor, settings)
    requests = [*pool.snapshot.queue.values(), *(grant.request for grant in pool.snapshot.grants.values())]
    claims = {request.job_id: changed.get(request.job_id, request.claim) for request in requests}
    positions = sorted(
        {
            other.position
            for name, other in claims.items()
            if name not in (job_id, anchor_id) and priority_of(other, settings) == priority
        }
    )
    own = anchor.position
    if is_ahead:
        neighbour = max((place for place in positions if place < own), default=0)
        position = min((neighbour + own) // 2, own - 1)
    else:
        neighbour = min((place for place in positions if place > own), default=max(now, own))
        position = max((neighbour + own) // 2, own + 1)
    return claim.model_copy(update={"priority": anchor.priority, "position": position})
