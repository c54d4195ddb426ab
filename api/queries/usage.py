"""Usage of slots: how many, for how long, and by whom; the runs of tasks, cut to a span of time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.auth.authorization import readable_tasks, with_trials
from database.models import Allocation, Experiment, Task, User
from database.types import utc_now


@dataclass(frozen=True)
class Use:
    """A run, or the part of it that lies within the span. `experiment_id`: 0 for a task that is no trial."""

    allocation_id: str
    kind: str
    experiment_id: int
    user_id: int
    username: str
    labels: list[str]
    pool: str
    slots: int
    start: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        """Slot-seconds: its length times its slots."""
        return (self.end - self.start).total_seconds() * self.slots

    def within(self, start: datetime, end: datetime) -> Use | None:
        """The part that lies within a span; None if none does."""
        start, end = max(self.start, start), min(self.end, end)
        if start >= end:
            return None
        return replace(self, start=start, end=end)


def between(session: Session, start: datetime, end: datetime, user: UserPrincipal) -> Iterator[Use]:
    """The runs that the user may see and that lie in a span, cut to it, by their start."""
    statement = (
        with_trials(select(Allocation, Task, Experiment, User).join(Task, Task.id == Allocation.task_id))
        .join(User, User.id == func.coalesce(Experiment.owner_id, Task.owner_id))
        .where(
            Allocation.started_at < end,
            or_(Allocation.ended_at.is_(None), Allocation.ended_at > start),
            readable_tasks(user),
        )
        .order_by(Allocation.started_at, Allocation.id)
    )
    now = utc_now()
    for allocation, task, experiment, owner in session.execute(statement).tuples():
        is_trial = task.trial_id is not None
        whole = Use(
            allocation_id=allocation.id,
            kind="training" if is_trial else task.kind.lower(),
            experiment_id=experiment.id if is_trial else 0,
            user_id=owner.id,
            username=owner.username,
            labels=list(experiment.labels) if is_trial else [],
            pool=allocation.pool,
            slots=allocation.slots,
            start=allocation.started_at,
            end=allocation.ended_at or now,
        )
        if (part := whole.within(start, end)) is not None:
            yield part


def raw(use: Use) -> dict[str, Any]:
    """v1ResourceAllocationRawEntry."""
    return {
        "kind": use.kind,
        "startTime": use.start,
        "endTime": use.end,
        "experimentId": use.experiment_id,
        "username": use.username,
        "userId": use.user_id,
        "labels": use.labels,
        "seconds": use.seconds,
        "slots": use.slots,
    }


def aggregated(uses: list[Use], start: datetime, end: datetime, *, monthly: bool) -> list[dict[str, Any]]:
    """v1ResourceAllocationAggregatedEntry of each day or month of the span, both ends included."""
    period = f"RESOURCE_ALLOCATION_AGGREGATION_PERIOD_{'MONTHLY' if monthly else 'DAILY'}"
    entries: list[dict[str, Any]] = []
    while start < end:
        following = (start.replace(day=1) + timedelta(days=32)).replace(day=1) if monthly else start + timedelta(days=1)
        by: dict[str, dict[str, float]] = {"byUsername": {}, "byExperimentLabel": {}, "byResourcePool": {}}
        total = 0.0
        for use in uses:
            part = use.within(start, following)
            if part is None:
                continue
            total += part.seconds
            keys = [("byUsername", use.username), ("byResourcePool", use.pool)]
            for name, key in [*keys, *(("byExperimentLabel", label) for label in use.labels)]:
                by[name][key] = by[name].get(key, 0.0) + part.seconds
        entries.append(
            {"periodStart": start.strftime("%Y-%m" if monthly else "%Y-%m-%d"), "period": period, "seconds": total}
            | by
            | {"byAgentLabel": {}}
        )
        start = following
    return entries
