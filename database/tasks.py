"""Records the tasks of trials: with the trial, ended with it, and a further one when it goes on after its end."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import literal, null, select, update
from sqlalchemy.orm import Session

from database.models import Experiment, Task, Trial
from database.types import UtcTime, utc_now
from database.upsert import insert
from workflows import names
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
            literal(utc_now(), UtcTime()),
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
    """Trials that are trained elsewhere go on after their end, in the task that they have."""
    session.execute(
        update(Task).where(Task.trial_id.in_(trial_ids)).values(state=TaskState.ACTIVE.value, ended_at=None)
    )


def give_further_tasks(session: Session, trial_ids: Collection[int], continuation: int) -> None:
    """Trials go on after their end, each in a task of its own; those that they had stay as they ended.

    Args:
        session: Of a transaction that writes.
        trial_ids: Of one experiment.
        continuation: How often it has continued, this time included.
    """
    for trial in session.scalars(select(Trial).where(Trial.id.in_(trial_ids))):
        trial.task_id = names.trial_task(trial.experiment_id, trial.request_id, continuation)
    session.flush()
    create_trial_tasks(session, trial_ids)


def tasks_of_trials(session: Session, trials: Sequence[Any]) -> dict[int, list[str]]:
    """By trial the ids of its tasks, oldest first. Most have one, and cost no query.

    A trial is a row with its id, experiment, request and task.
    """
    found = {trial.id: [trial.task_id] for trial in trials}
    several = [trial.id for trial in trials if trial.task_id != names.trial_task(trial.experiment_id, trial.request_id)]
    if several:
        rows = session.execute(
            select(Task.trial_id, Task.id).where(Task.trial_id.in_(several)).order_by(Task.started_at, Task.id)
        )
        found |= {trial_id: [] for trial_id in several}
        for trial_id, task_id in rows.tuples():
            found[trial_id or 0].append(task_id)
    return found
