"""Counts what allocations use of budgets, and notes what is said of them.

The meter of a budget moves in the transaction that opens or closes an allocation. So nothing is counted twice or
forgotten, whatever is repeated, and what is used is known without reading allocations.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from database import webhooks
from database.log_lines import FURTHER, note_line
from database.models import Allocation, Budget, Outbox, Trial
from database.types import utc_now
from workflows import names
from workflows.lifecycle.budget import Clock, Limits, Meter

#: Of each budget, and logs that a notice is written to.
_MOST_NOTICES, _MOST_LOGS = 50, 100


def of_trial(session: Session, trial_id: int) -> list[int]:
    """The ids of the budgets that a trial's allocations are counted by."""
    statement = select(Budget.id).join(Trial, Trial.experiment_id == Budget.experiment_id)
    return list(session.scalars(statement.where(Trial.id == trial_id)))


def count(session: Session, budget_ids: Collection[int], slots: int) -> None:
    """An allocation that these budgets count got this many slots; negative: it released them."""
    if not budget_ids:
        return
    statement = select(Budget).where(Budget.id.in_(budget_ids)).order_by(Budget.id)
    for row in session.scalars(statement.with_for_update()):
        settle(row, utc_now())
        row.held_slots = max(0, row.held_slots + slots)
        post(session, row)


def settle(row: Budget, now: datetime) -> None:
    """Count what was held until now. What is held may change then."""
    row.spent_slot_s, row.counted_at = meter_of(row).slot_s(now), now


def post(session: Session, row: Budget) -> None:
    """Notify the workflow that watches a budget of what has changed."""
    row.number += 1
    message = meter_of(row).model_dump(mode="json")
    session.add(Outbox(workflow_id=names.experiment_workflow(row.experiment_id), kind="budget", payload=message))


def meter_of(row: Budget) -> Meter:
    """What a budget's row says."""
    return Meter(
        number=row.number,
        limits=Limits.model_validate(row.limits),
        spent_slot_s=row.spent_slot_s,
        held_slots=row.held_slots,
        counted_at=row.counted_at,
    )


def release_all(session: Session, until: datetime) -> None:
    """Nothing is held any more, since a time: no allocation of before goes on."""
    for row in session.scalars(select(Budget).where(Budget.held_slots > 0)):
        settle(row, max(until, row.counted_at))
        row.held_slots = 0


def note_clock(session: Session, experiment_id: int, clock: Clock, notices: Collection[str]) -> None:
    """Record how an experiment stands to its budget, and post what is to be said of that. A repeat changes nothing."""
    row = session.scalar(select(Budget).where(Budget.experiment_id == experiment_id).with_for_update())
    if row is None or row.clock == (noted := clock.model_dump(mode="json")):
        return
    row.clock = noted
    at = utc_now()
    row.notices = [*row.notices, *({"at": at.isoformat(), "text": text} for text in notices)][-_MOST_NOTICES:]
    subject = webhooks.subject_of(session, experiment_id) if notices else None
    for place, text in enumerate(notices, FURTHER + int(at.timestamp() * 1000)):
        if subject is not None:
            webhooks.note_custom(session, subject, {"title": "Budget", "description": text, "level": "WARNING"})
        _write_to_logs(session, experiment_id, f"Experiment {experiment_id}: {text}.", place)


def _write_to_logs(session: Session, experiment_id: int, line: str, place: int) -> None:
    """Write a line into the logs of trials that run."""
    open_ = (
        select(Allocation.id, Allocation.task_id)
        .join(Trial, Trial.id == Allocation.trial_id)
        .where(Trial.experiment_id == experiment_id, Allocation.ended_at.is_(None))
    )
    for allocation_id, task_id in session.execute(open_.limit(_MOST_LOGS)).tuples():
        note_line(session, task_id, line, allocation_id=allocation_id, place=place, level="WARNING")
