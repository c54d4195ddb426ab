"""Records the tasks of trials: with the trial, ended with it, and begun anew when it goes on after its end."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import literal, null, select, update
from sqlalchemy.orm import Session

from database.models import Experiment, Task, Trial
from database.upsert import insert
from workflows.lifecycle.task import TaskKind, TaskState


def create_trial_tasks(session: Session, trial_ids: Collection[int]) -> None:
    """Record the tasks that trials name, in the name of their experiment's owner and job; those that exist stay."""
    columns = ("id", "kind", "owner_id", "workspace_id", "trial_id", "job_id", "config", "state", "started_at")
    of_trials = (
        select(
            Trial.task_id,
            literal(TaskKind.TRIAL.value),
            Experiment.owner_id,
            null(),
            Trial.id,
            Experiment.job_id,
            null(),
            literal(TaskState.ACTIVE.value),
            Trial.started_at,
        )
        .join(Experiment, Experiment.id == Trial.experiment_id)
        .where(Trial.id.in_(trial_ids))
    )
    session.execute(insert(session, Task).from_select(columns, of_trials).on_conflict_do_nothing())


def end_trial_task(session: Session, trial_id: int, state: str, at: datetime) -> None:
    """A trial has ended, and so has its task. Told again, the first end counts."""
    open_ = Task.trial_id == trial_id, Task.ended_at.is_(None)
    session.execute(update(Task).where(*open_).values(state=TaskState(state).value, ended_at=at))


def reopen_trial_tasks(session: Session, trial_ids: Collection[int]) -> None:
    """Trials go on after their end, in the task that they have."""
    session.execute(
        update(Task).where(Task.trial_id.in_(trial_ids)).values(state=TaskState.ACTIVE.value, ended_at=None)
    )
