"""The decision of a pool, by the policy that its settings name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from workflows.scheduling import fair_share, priority, round_robin
from workflows.scheduling.model import Decision
from workflows.scheduling.pool import Pool
from workflows.scheduling.settings import Policy

_POLICIES: Mapping[Policy, Callable[[Pool], Decision]] = {
    Policy.PRIORITY: priority.schedule,
    Policy.FAIR_SHARE: fair_share.schedule,
    Policy.ROUND_ROBIN: round_robin.schedule,
}


def decide(pool: Pool) -> Decision:
    """Decide who starts and who is asked to leave, and note it in the pool."""
    decision = _POLICIES[pool.settings.scheduler](pool)
    pool.apply(decision)
    return decision
