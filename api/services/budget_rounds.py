"""Acts on budgets of workspaces and access tokens: warns of them, and pauses what they bound once they are spent.

An experiment's own budget is watched by its workflow. These bound many, and none of those knows of the others: a row
says when it has to be looked at, and the first process of the API that comes does so.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from api.services import tasks
from api.services.rounds import posting_rounds
from api.temporal import outbox
from api.temporal.outbox import Dispatcher
from database import budgets
from database.announcements import tell
from database.log_lines import FURTHER, note_line
from database.models import Budget, Experiment, Project, Task
from database.session import Database
from database.types import utc_now
from workflows import names
from workflows.lifecycle import budget
from workflows.lifecycle.experiment import ExperimentState
from workflows.lifecycle.task import TaskState
from workflows.messages import Hold

_EVERY = timedelta(seconds=2)
#: A budget that is spent while something still holds slots is looked at again after this: what was started at the
#: very moment is held then.
_AGAIN = timedelta(seconds=30)


async def watch(database: Database, dispatcher: Dispatcher) -> None:
    """Look at budgets when they are due, until cancelled."""
    await posting_rounds(_EVERY, lambda: look(database), dispatcher, failed="budgets wait to be looked at")


def look(database: Database) -> int:
    """Act on the budgets that are due; returns how many those were."""
    due = select(Budget.id).where(Budget.due_at <= utc_now()).order_by(Budget.id)
    with database.read() as session:
        ids = session.scalars(due).all()
    for budget_id in ids:
        with database.write() as session:
            statement = select(Budget).where(Budget.id == budget_id, Budget.due_at <= utc_now())
            row = session.scalar(statement.with_for_update(skip_locked=True))
            if row is not None:
                _act(session, row, utc_now())
    return len(ids)


def _act(session: Session, row: Budget, now: datetime) -> None:
    meter, clock, over = budgets.meter_of(row), budgets.clock_of(row), budgets.is_over(row, now)
    whose, _ = budgets.named(session, row)
    notices: list[str] = []
    for what in budget.to_warn_of(meter, clock, now):
        clock.warned.append(what)
        if what is not over:
            so_far = budget.used(meter, clock, now)[what]
            notices.append(budget.warning(meter.limits, what, so_far, whose))
    if over is not None and clock.paused_by is None:
        notices.append(f"{whose} {budget.is_spent(meter.limits, over)}: what it bounds is paused, or ends")
    clock.paused_by = over
    row.clock = clock.model_dump(mode="json")
    budgets.note(row, notices, now)
    for each in session.scalars(_experiments(row)).all():
        tell(session, each.id, "Budget", notices, now)
        if over is not None:
            each.commanded, each.commanded_by, each.commanded_at = "pause", f"{whose} budget", now
            hold = Hold(at=now).model_dump(mode="json")
            outbox.post(session, names.experiment_workflow(each.id), "hold", hold)
    for task in session.scalars(_tasks(row)).all():
        for place, notice in enumerate(notices, FURTHER + int(now.timestamp() * 1000)):
            note_line(session, task.id, f"{task.name}: {notice}.", place=place, level="WARNING")
        if over is not None:
            _end(session, task)
    if over is None:
        row.due_at = budget.next_look(meter, clock)
    else:
        row.due_at = now + _AGAIN if row.held_slots else None


def _end(session: Session, task: Task) -> None:
    """Pause a task; one that can't be paused would use more, and ends."""
    if task.is_pausable:
        tasks.pause(session, task)
    else:
        tasks.kill(session, task, with_children=False)


def _experiments(row: Budget) -> Select[Experiment]:
    """Those that a budget bounds and that are active."""
    live = select(Experiment).where(Experiment.state == ExperimentState.ACTIVE.value, ~Experiment.is_unmanaged)
    if row.token_id is not None:
        live = live.where(Experiment.token_id == row.token_id)
    else:
        live = live.join(Project, Project.id == Experiment.project_id).where(Project.workspace_id == row.workspace_id)
    return live.order_by(Experiment.id)


def _tasks(row: Budget) -> Select[Task]:
    """The same of tasks that are no trials, and hold slots or ask for some."""
    live = select(Task).where(Task.trial_id.is_(None), Task.state == TaskState.ACTIVE.value, Task.slots > 0)
    is_theirs = Task.token_id == row.token_id if row.token_id is not None else Task.workspace_id == row.workspace_id
    return live.where(is_theirs).order_by(Task.started_at)
