"""What waits for slots now: for its first ones, or for new ones after its pool took some away."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, and_, func, or_, select
from sqlalchemy.orm import aliased

from database.models import Allocation, Experiment, Task, Trial

_LAST = aliased(Allocation)
#: Of `waiting`: the pool, the slots that are wanted, and since when.
POOL = func.coalesce(Experiment.resource_pool, Task.pool, "")
SLOTS = func.coalesce(Experiment.slots_per_trial, Task.slots, 0)
SINCE = func.coalesce(_LAST.ended_at, Task.started_at)


def waiting(*columns: Any) -> Select[*tuple[Any, ...]]:
    """Columns of the tasks that wait, which are trials (then of `Trial` and `Experiment`, too) or others."""
    newest = select(func.max(Allocation.run_id)).where(Allocation.task_id == Task.id).scalar_subquery()
    statement = select(*columns).select_from(Task).outerjoin(Trial, Trial.task_id == Task.id)
    statement = statement.outerjoin(Experiment, Experiment.id == Trial.experiment_id)
    statement = statement.outerjoin(_LAST, and_(_LAST.task_id == Task.id, _LAST.run_id == newest))
    trial = and_(Trial.state == "ACTIVE", Experiment.state == "ACTIVE", ~Experiment.is_unmanaged)
    other = and_(Task.trial_id.is_(None), Task.state == "ACTIVE")
    waits = or_(_LAST.id.is_(None), and_(_LAST.ended_at.is_not(None), _LAST.preempt_reason != ""))
    return statement.where(Task.ended_at.is_(None), or_(trial, other), waits)
