"""Budgets: what they are, and how they are changed while what they bound goes on."""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.auth.authorization import changeable
from api.errors import BadRequest, FailedPrecondition
from api.schemas import budgets as wire
from api.temporal import outbox
from database.budgets import meter_of, post
from database.models import Allocation, Budget, Experiment, Trial
from database.types import utc_now
from workflows.config.budget import MOST_SLOT_HOURS, MOST_TRIALS, WALL_TIME_MESSAGE, is_wall_time
from workflows.config.budget import Budget as BudgetConfig
from workflows.lifecycle import budget
from workflows.lifecycle.budget import Clock, Limits, What
from workflows.lifecycle.experiment import ExperimentState


def give(session: Session, experiment: Experiment, written: BudgetConfig | None) -> None:
    """Record the budget of a new experiment, if its configuration has one."""
    if written is not None:
        clock = Clock()
        clock.run_on(utc_now(), is_active=experiment.state == ExperimentState.ACTIVE.value)
        session.add(
            Budget(
                experiment_id=experiment.id,
                limits=written.limits.model_dump(mode="json"),
                clock=clock.model_dump(mode="json"),
            )
        )
        session.flush()


def change(session: Session, experiment_id: int, wanted: wire.PatchBudget, user: UserPrincipal) -> wire.BudgetResponse:
    """Change the limits of an experiment's budget that are named; it gets one if it has none.

    Raises: BadRequest, NotFound, Forbidden, FailedPrecondition.
    """
    row = changeable(session, experiment_id, user)
    session.refresh(row, with_for_update=True)
    if row.is_unmanaged or ExperimentState(row.state).is_terminal:
        raise FailedPrecondition(
            f"experiment {experiment_id} has ended, or is trained elsewhere: it uses nothing that a budget limits"
        )
    written = _changed(row.config.get("budget"), wanted)
    row.config = row.config | {"budget": None if written is None else written.model_dump(mode="json")}
    outbox.release_start(session, experiment_id)
    return shown(replace(session, row, written))


def replace(session: Session, row: Experiment, written: BudgetConfig | None) -> Budget | None:
    """Give an experiment other limits, and notify its workflow. What it has used stays."""
    found = of_experiment(session, row.id, is_locked=True)
    if found is None and written is None:
        return None
    if found is None:
        found = Budget(experiment_id=row.id, spent_slot_s=0.0, held_slots=0, number=0, clock={}, counted_at=utc_now())
        session.add(found)
        found.limits = {}
        session.flush()
        _count_what_was(session, found)
    limits = Limits() if written is None else written.limits
    found.limits = limits.model_dump(mode="json")
    post(session, found)
    session.flush()
    return found


def of_experiment(session: Session, experiment_id: int, *, is_locked: bool = False) -> Budget | None:
    """The budget of an experiment, if it has one."""
    statement = select(Budget).where(Budget.experiment_id == experiment_id)
    return session.scalar(statement.with_for_update() if is_locked else statement)


def shown(row: Budget | None) -> wire.BudgetResponse:
    """A budget as clients see it."""
    if row is None:
        return wire.BudgetResponse(limits=wire.BudgetLimits())
    meter, clock, now = meter_of(row), Clock.model_validate(row.clock), utc_now()
    limits, used = meter.limits, budget.used(meter, clock, now)
    spent = budget.spent(meter, clock, now) or clock.paused_by
    return wire.BudgetResponse(
        limits=wire.BudgetLimits(
            slot_hours=limits.slot_hours,
            wall_time=None if limits.wall_time_s is None else budget.duration(limits.wall_time_s),
            trials=limits.trials,
            soft=limits.soft,
        ),
        used=wire.BudgetUsed(
            slot_hours=used[What.SLOT_HOURS], wall_time_seconds=used[What.WALL_TIME], trials=clock.trials
        ),
        spent=spent or "",
        lasts_until=budget.lasts_until(meter, clock),
        notices=[wire.BudgetNotice.model_validate(each) for each in row.notices],
    )


def _count_what_was(session: Session, row: Budget) -> None:
    """Count the allocations of before the budget, and have those that are open counted from now on."""
    now = utc_now()
    statement = select(Allocation).join(Trial, Trial.id == Allocation.trial_id)
    for each in session.scalars(statement.where(Trial.experiment_id == row.experiment_id)):
        row.spent_slot_s += each.slots * ((each.ended_at or now) - each.started_at).total_seconds()
        if each.ended_at is None:
            row.held_slots += each.slots
            each.budgets = [*each.budgets, row.id]  # a new object: the column compares by identity
    row.counted_at = now


def _changed(before: dict[str, Any] | None, wanted: wire.PatchBudget) -> BudgetConfig | None:
    """The section of a configuration after a change; None: no limit is left. Raises: BadRequest."""
    changes = wanted.model_dump(exclude_none=True)
    if not changes:
        raise BadRequest("expected one or more of slotHours, wallTime, trials and soft")
    _check_range("slotHours", wanted.slot_hours, 0, MOST_SLOT_HOURS)
    _check_range("trials", wanted.trials, 0, MOST_TRIALS)
    if wanted.soft is not None and not 0 < wanted.soft <= 1:
        raise BadRequest(f"soft: {wanted.soft}: expected a share above 0 and up to 1, such as 0.8")
    if wanted.wall_time is not None and wanted.wall_time not in ("0s", "0") and not is_wall_time(wanted.wall_time):
        raise BadRequest(f"wallTime: {wanted.wall_time[:40]!r}: {WALL_TIME_MESSAGE}, or 0s for none")
    after = (before or {}) | {name: None if value in (0, "0", "0s") else value for name, value in changes.items()}
    if all(after.get(what.value) is None for what in What):
        return None
    return BudgetConfig.model_validate(after)


def _check_range(field: str, value: float | None, least: float, most: float) -> None:
    if value is not None and not (math.isfinite(value) and least <= value <= most):
        raise BadRequest(f"{field}: {value}: expected a number of {least} to {most:.0f}; 0 is no limit")
