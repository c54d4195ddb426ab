"""Budgets: what they are, and how they are changed while what they bound goes on."""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from api.auth.authentication import ACCESS_TOKEN, UserPrincipal
from api.auth.authorization import Role, changeable, require_role
from api.errors import BadRequest, FailedPrecondition, Forbidden, NotFound
from api.schemas import budgets as wire
from api.temporal import outbox
from database import budgets as database_budgets
from database.budgets import clock_of, meter_of, post, settle
from database.models import Allocation, Budget, Experiment, Project, Task, Trial, UserToken
from database.pools import price_an_hour
from database.types import utc_now
from workflows.config.budget import MOST_PRICE, MOST_SLOT_HOURS, MOST_TRIALS, WALL_TIME_MESSAGE, is_wall_time
from workflows.config.budget import Budget as BudgetConfig
from workflows.lifecycle import budget
from workflows.lifecycle.budget import Clock, Limits, What
from workflows.lifecycle.experiment import ExperimentState


def give(session: Session, experiment: Experiment, written: BudgetConfig | None) -> Budget | None:
    """Record the budget of a new experiment, and return it, if its configuration has one."""
    if written is None:
        return None
    clock = Clock()
    clock.run_on(utc_now(), is_active=experiment.state == ExperimentState.ACTIVE.value)
    budget = Budget(
        experiment_id=experiment.id,
        limits=written.limits.model_dump(mode="json"),
        clock=clock.model_dump(mode="json"),
    )
    session.add(budget)
    session.flush()
    return budget


def change(session: Session, experiment_id: int, wanted: wire.PatchBudget, user: UserPrincipal) -> wire.BudgetResponse:
    """Change the limits of an experiment's budget that are named; it gets one if it has none.

    Raises: BadRequest, NotFound, Forbidden, FailedPrecondition.
    """
    row = changeable(session, experiment_id, user)
    if wanted.reset:
        raise BadRequest("reset: what an experiment has used stays: raise its limits")
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
        found = _new(session, experiment_id=row.id)
        _count(session, found, select(Allocation).where(Allocation.experiment_id == row.id))
    _limit(session, found, Limits() if written is None else written.limits)
    return found


def change_of_workspace(
    session: Session, workspace_id: int, wanted: wire.PatchBudget, user: UserPrincipal
) -> wire.BudgetResponse:
    """Change the budget of a workspace. What was used before it had one does not count.

    Raises: BadRequest, NotFound, Forbidden.
    """
    require_role(session, user, workspace_id, Role.VIEWER)
    if not user.is_admin:
        raise Forbidden("only administrators of the cluster may change the budget of a workspace")
    of_trials = select(Allocation).join(Experiment).join(Project)
    of_trials = of_trials.where(Project.workspace_id == workspace_id)
    of_tasks = select(Allocation).join(Task, Task.id == Allocation.task_id).where(Task.workspace_id == workspace_id)
    found = session.scalar(select(Budget).where(Budget.workspace_id == workspace_id).with_for_update())
    return _change(session, found or _new(session, workspace_id=workspace_id), wanted, of_trials, of_tasks)


def change_of_token(
    session: Session, token_id: int, wanted: wire.PatchBudget, user: UserPrincipal
) -> wire.BudgetResponse:
    """Change the budget of an access token: its user does, and not a program with a token, or administrators.

    Raises: BadRequest, NotFound, Forbidden.
    """
    find_token(session, token_id, user)
    if user.allocation_id is not None or token_of(session, user) is not None:
        raise Forbidden("an access token can't change a budget of access tokens: log in with a password")
    of_trials = select(Allocation).join(Experiment).where(Experiment.token_id == token_id)
    of_tasks = select(Allocation).join(Task, Task.id == Allocation.task_id).where(Task.token_id == token_id)
    found = session.scalar(select(Budget).where(Budget.token_id == token_id).with_for_update())
    return _change(session, found or _new(session, token_id=token_id), wanted, of_trials, of_tasks)


def find_token(session: Session, token_id: int, user: UserPrincipal) -> UserToken:
    """An access token that the user may see. Raises: NotFound."""
    row = session.get(UserToken, token_id)
    if row is None or row.kind != ACCESS_TOKEN or not (row.user_id == user.user_id or user.is_admin):
        raise NotFound(f"access token {token_id} not found")
    return row


def token_of(session: Session, user: UserPrincipal) -> int | None:
    """The access token that a caller acts by: the one that a container was started by, if the caller is in one."""
    if user.allocation_id is not None:
        started_by = (
            select(func.coalesce(Task.token_id, Experiment.token_id))
            .join(Allocation, Allocation.task_id == Task.id)
            .outerjoin(Trial, Trial.id == Task.trial_id)
            .outerjoin(Experiment, Experiment.id == Trial.experiment_id)
        )
        return session.scalar(started_by.where(Allocation.id == user.allocation_id))
    if user.token_id is None or user.is_session:
        return None
    return session.scalar(select(UserToken.id).where(UserToken.id == user.token_id, UserToken.kind == ACCESS_TOKEN))


def check_open(session: Session, workspace_id: int | None, token_id: int | None) -> list[str]:
    """What a user who starts something should know of the budgets that will bound it. Raises: FailedPrecondition."""
    said: list[str] = []
    for row in database_budgets.of(session, None, workspace_id, token_id):
        meter, clock, now = meter_of(row), clock_of(row), utc_now()
        (whose, command), limits = database_budgets.named(session, row), meter.limits
        used = budget.used(meter, clock, now)
        full = [what for what, limit in limits.known().items() if used[what] >= limit]
        if full:
            how = budget.how_to_raise(limits, full[0], command)
            raise FailedPrecondition(f"{whose} {budget.is_spent(limits, full[0])}: {how}")
        if limits.known():
            said.append(f"{whose} {budget.outlook(limits, used, None)}")
    return said


def unpriced(session: Session, written: BudgetConfig | None, pool: str) -> list[str]:
    """What the user of a budget with a price should know of a pool that has none."""
    if written is None or written.price is None or price_an_hour(session, pool, 1):
        return []
    return [f"its budget's price is never reached: pool {pool!r} has no slot_hour_price"]


def check_activation(session: Session, row: Experiment) -> None:
    """Refuse what would go on while its workspace or token has no budget left. Raises: FailedPrecondition."""
    check_open(session, session.get_one(Project, row.project_id).workspace_id, row.token_id)


def _change(
    session: Session, row: Budget, wanted: wire.PatchBudget, *allocations: Select[Allocation]
) -> wire.BudgetResponse:
    known = Limits.model_validate(row.limits)
    before = known.model_dump(exclude={"wall_time_s"}) | {
        "wall_time": None if known.wall_time_s is None else budget.duration(known.wall_time_s)
    }
    written = _changed(before, wanted)
    if row.number == 0:
        for statement in allocations:
            _count(session, row, statement.where(Allocation.ended_at.is_(None)))
        row.spent_slot_s = row.spent_price = 0.0
    if wanted.reset:
        settle(row, utc_now())
        row.spent_slot_s, row.spent_price, row.clock = 0.0, 0.0, {}
    _limit(session, row, Limits() if written is None else written.limits)
    return shown(row)


def _new(session: Session, **whose: int) -> Budget:
    row = Budget(
        **whose,
        limits={},
        spent_slot_s=0.0,
        held_slots=0,
        spent_price=0.0,
        price_an_hour=0.0,
        number=0,
        clock={},
        notices=[],
    )
    row.counted_at = utc_now()
    session.add(row)
    session.flush()
    return row


def _limit(session: Session, row: Budget, limits: Limits) -> None:
    row.limits = limits.model_dump(mode="json")
    if row.experiment_id is None:
        now, clock = utc_now(), clock_of(row)
        clock.warned = budget.still_warned_of(meter_of(row), clock, now)
        clock.paused_by = clock.paused_by and database_budgets.is_over(row, now)
        database_budgets.tick(row, clock, now)
    post(session, row)
    session.flush()


def double(session: Session, row: Experiment) -> None:
    """Double the limit of an experiment's budget that is reached. Nothing happens if none is."""
    found = of_experiment(session, row.id, is_locked=True)
    if found is None or not row.config.get("budget"):
        return
    before = BudgetConfig.model_validate(row.config["budget"])
    meter, clock = meter_of(found), clock_of(found)
    what = budget.spent(meter, clock, utc_now()) or clock.paused_by
    if what is None:
        return
    doubled: Any = min(2 * meter.limits.known()[what], MOST_SLOT_HOURS)
    if what is What.WALL_TIME:
        doubled = budget.duration(doubled)
    after = before.model_copy(update={what.value: int(doubled) if what is What.TRIALS else doubled})
    row.config = row.config | {"budget": after.model_dump(mode="json")}
    replace(session, row, after)


def of_experiment(session: Session, experiment_id: int, *, is_locked: bool = False) -> Budget | None:
    """The budget of an experiment, if it has one."""
    statement = select(Budget).where(Budget.experiment_id == experiment_id)
    return session.scalar(statement.with_for_update() if is_locked else statement)


def shown(row: Budget | None) -> wire.BudgetResponse:
    """A budget as clients see it."""
    if row is None:
        return wire.BudgetResponse(limits=wire.BudgetLimits())
    meter, clock, now = meter_of(row), clock_of(row), utc_now()
    limits, used = meter.limits, budget.used(meter, clock, now)
    spent = database_budgets.is_over(row, now) or clock.paused_by
    return wire.BudgetResponse(
        limits=wire.BudgetLimits(
            slot_hours=limits.slot_hours,
            price=limits.price,
            wall_time=None if limits.wall_time_s is None else budget.duration(limits.wall_time_s),
            trials=limits.trials,
            soft=limits.soft,
        ),
        used=wire.BudgetUsed(
            slot_hours=used[What.SLOT_HOURS],
            price=used[What.PRICE],
            wall_time_seconds=used[What.WALL_TIME],
            trials=clock.trials,
        ),
        spent=spent or "",
        lasts_until=budget.lasts_until(meter, clock),
        notices=[wire.BudgetNotice.model_validate(each) for each in row.notices],
    )


def _count(session: Session, row: Budget, allocations: Select[Allocation]) -> None:
    """Count allocations of before a budget, and have those that are open counted from now on."""
    now = utc_now()
    for each in session.scalars(allocations):
        seconds = ((each.ended_at or now) - each.started_at).total_seconds()
        row.spent_slot_s += each.slots * seconds
        row.spent_price += each.price_an_hour * seconds / 3600
        if each.ended_at is None:
            row.held_slots += each.slots
            row.price_an_hour += each.price_an_hour
            each.budgets = [*each.budgets, row.id]  # a new object: the column compares by identity
    row.counted_at = now


def _changed(before: dict[str, Any] | None, wanted: wire.PatchBudget) -> BudgetConfig | None:
    """The section of a configuration after a change; None: no limit is left. Raises: BadRequest."""
    changes = wanted.model_dump(exclude_none=True, exclude={"reset"})
    if not changes and not wanted.reset:
        raise BadRequest("expected one or more of slotHours, price, wallTime, trials and soft")
    _check_range("slotHours", wanted.slot_hours, 0, MOST_SLOT_HOURS)
    _check_range("price", wanted.price, 0, MOST_PRICE)
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
