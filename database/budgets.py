"""Counts what allocations use of budgets, and notes what is said of them.

The meter of a budget moves in the transaction that opens or closes an allocation. So nothing is counted twice or
forgotten, whatever is repeated, and what is used is known without reading allocations.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import null, or_, select
from sqlalchemy.orm import Session

from database.announcements import tell
from database.models import Budget, Experiment, Outbox, Project, Task, Trial, Workspace
from database.types import utc_now
from workflows import names
from workflows.lifecycle.budget import Clock, Limits, Meter, What, next_look, spent, to_warn_of

#: Of each budget.
_MOST_NOTICES = 50


def counting(session: Session, task_id: str, trial_id: int | None) -> list[int]:
    """The ids of the budgets that count the allocations of a task: its workspace's, its token's, its experiment's."""
    if trial_id is None:
        subject = select(null(), Task.workspace_id, Task.token_id).where(Task.id == task_id)
    else:
        subject = (
            select(Experiment.id, Project.workspace_id, Experiment.token_id)
            .join(Project, Project.id == Experiment.project_id)
            .join(Trial, Trial.experiment_id == Experiment.id)
            .where(Trial.id == trial_id)
        )
    experiment_id, workspace_id, token_id = session.execute(subject).one().tuple()
    return [row.id for row in of(session, experiment_id, workspace_id, token_id)]


def of(
    session: Session, experiment_id: int | None, workspace_id: int | None = None, token_id: int | None = None
) -> Sequence[Budget]:
    """The budgets of an experiment, a workspace and an access token, in the order of their ids; None has none."""
    given = ((Budget.experiment_id, experiment_id), (Budget.workspace_id, workspace_id), (Budget.token_id, token_id))
    wanted = [column == id_ for column, id_ in given if id_ is not None]
    return session.scalars(select(Budget).where(or_(*wanted)).order_by(Budget.id)).all() if wanted else []


def count(
    session: Session, budget_ids: Collection[int], slots: int, price_an_hour: float, *, is_new_trial: bool = False
) -> None:
    """An allocation that these budgets count got slots, which cost this for an hour; negative: it released them."""
    if not budget_ids:
        return
    statement = select(Budget).where(Budget.id.in_(budget_ids)).order_by(Budget.id)
    for row in session.scalars(statement.with_for_update()):
        now = utc_now()
        settle(row, now)
        row.held_slots = max(0, row.held_slots + slots)
        row.price_an_hour = max(0.0, row.price_an_hour + price_an_hour) if row.held_slots else 0.0
        if row.experiment_id is None:  # an experiment's trials and time are counted by its workflow
            clock = clock_of(row)
            clock.trials += is_new_trial
            tick(row, clock, now)
        if row.experiment_id is None and slots < 0 and clock_of(row).paused_by is not None:
            continue  # what is left of it is looked at when that is due
        post(session, row)


def named(session: Session, row: Budget) -> tuple[str, str]:
    """Whose budget it is, for a reader who looks at what it bounds, and the command of `det` that changes it."""
    if row.workspace_id is not None:
        name = session.get_one(Workspace, row.workspace_id).name
        return "its workspace's", f"workspace budget set {shlex.quote(name)}"
    if row.token_id is not None:
        return "its access token's", f"token budget set {row.token_id}"
    return "its", f"experiment budget set {row.experiment_id}"


def clock_of(row: Budget) -> Clock:
    """What was said of a budget, and what its slots do not tell."""
    return Clock.model_validate(row.clock)


def tick(row: Budget, clock: Clock, now: datetime) -> None:
    """Keep the clock of a workspace or an access token, whose time counts from now on while something holds slots."""
    clock.tick(now, is_active=row.held_slots > 0)
    row.clock = clock.model_dump(mode="json")


def settle(row: Budget, now: datetime) -> None:
    """Count what was held until now. What is held may change then."""
    meter = meter_of(row)
    row.spent_slot_s, row.spent_price, row.counted_at = meter.slot_s(now), meter.price(now), now


def post(session: Session, row: Budget) -> None:
    """Notify the workflow that watches a budget of what has changed; of one without a workflow, note when to look."""
    row.number += 1
    if row.experiment_id is None:
        row.due_at = next_look(meter_of(row), clock_of(row))
        if has_news(row, utc_now()):
            row.due_at = utc_now()
        return
    message = meter_of(row).model_dump(mode="json")
    session.add(Outbox(workflow_id=names.experiment_workflow(row.experiment_id), kind="budget", payload=message))


def has_news(row: Budget, now: datetime) -> bool:
    """Whether there is something to do about a budget without a workflow."""
    meter, clock = meter_of(row), clock_of(row)
    return is_over(row, now) is not None or bool(to_warn_of(meter, clock, now))


def is_over(row: Budget, now: datetime) -> What | None:
    """The limit of a workspace's or a token's budget that is passed. That of trials is, once one more has started."""
    meter, clock = meter_of(row), clock_of(row)
    most = meter.limits.trials
    return spent(meter, clock, now) or (What.TRIALS if most is not None and clock.trials > most else None)


def meter_of(row: Budget) -> Meter:
    """What a budget's row says."""
    return Meter(
        number=row.number,
        limits=Limits.model_validate(row.limits),
        spent_slot_s=row.spent_slot_s,
        held_slots=row.held_slots,
        spent_price=row.spent_price,
        price_an_hour=row.price_an_hour,
        counted_at=row.counted_at,
    )


def release_all(session: Session, until: datetime) -> None:
    """Nothing is held any more, since a time: no allocation of before goes on."""
    for row in session.scalars(select(Budget).where(Budget.held_slots > 0)):
        then = max(until, row.counted_at)
        settle(row, then)
        row.held_slots, row.price_an_hour = 0, 0.0
        if row.experiment_id is None:
            tick(row, clock_of(row), then)


def note_clock(session: Session, experiment_id: int, clock: Clock, notices: Collection[str]) -> bool:
    """Record how an experiment stands to its budget, and post what is to be said of that. A repeat changes nothing.

    Returns whether it has just been paused by its budget.
    """
    row = session.scalar(select(Budget).where(Budget.experiment_id == experiment_id).with_for_update())
    if row is None or row.clock == (noted := clock.model_dump(mode="json")):
        return False
    is_new = clock.paused_by is not None and clock_of(row).paused_by is None
    row.clock = noted
    at = utc_now()
    note(row, notices, at)
    tell(session, experiment_id, "Budget", notices, at)
    return is_new


def note(row: Budget, notices: Collection[str], at: datetime) -> None:
    """Keep what is said of a budget with it."""
    row.notices = [*row.notices, *({"at": at.isoformat(), "text": text} for text in notices)][-_MOST_NOTICES:]
