"""Unmanaged experiments, trained elsewhere: no searcher, no scheduling, no workflow; a client reports their state.

Source: spec experiment-lifecycle.md §8.
"""

from __future__ import annotations

import asyncio
import uuid
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import func, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.auth.authorization import changeable, readable_trial
from api.errors import BadRequest, FailedPrecondition
from api.queries.paging import chosen
from api.schemas.base import plain
from api.schemas.validation import checked_external_id
from database.checkpoints import resume_point
from database.models import Checkpoint, Experiment, Task, Trial
from database.session import Database
from database.tasks import create_trial_tasks, end_trial_task, reopen_trial_tasks
from database.trials import count_trials
from database.types import utc_now
from workflows import names

log = structlog.get_logger()

#: A trial that reports nothing for this long ends with an error.
_SILENCE = timedelta(minutes=5)
_EVERY_S = 30.0
_TERMINAL = ("COMPLETED", "CANCELED", "ERROR")
#: What clients may say of a trial, and what is stored.
_STATES = {
    "STATE_ACTIVE": "ACTIVE",
    "STATE_RUNNING": "ACTIVE",
    "STATE_PAUSED": "PAUSED",
    "STATE_COMPLETED": "COMPLETED",
    "STATE_CANCELED": "CANCELED",
    "STATE_ERROR": "ERROR",
}
#: The experiment is in the last of these that one of its trials is in.
_FURTHEST = ("PAUSED", "CANCELED", "ERROR", "COMPLETED", "ACTIVE")


def create_trial(
    session: Session,
    experiment_id: int,
    hparams: dict[str, Any],
    user: UserPrincipal,
    *,
    external_id: str | None = None,
) -> Trial:
    """A new trial; with an `external_id` that is known, that one. Raises: BadRequest, NotFound, Forbidden."""
    experiment = _unmanaged(session, experiment_id, user)
    session.refresh(experiment, with_for_update=True)  # the same external id may come twice at once
    if external_id is not None:
        checked_external_id("externalTrialId", external_id)
        known = select(Trial).where(Trial.experiment_id == experiment_id, Trial.external_id == external_id)
        if (trial := session.scalar(known)) is not None:
            return trial
    request_id = str(uuid.uuid4())
    trial = Trial(
        experiment_id=experiment_id,
        request_id=request_id,
        task_id=names.trial_task(experiment_id, request_id),
        seed=0,
        hparams=plain(hparams),
        state="PAUSED",
        external_id=external_id,
    )
    session.add(trial)
    session.flush()
    count_trials(session, experiment_id, 1)
    create_trial_tasks(session, [trial.id])
    return trial


def start_trial(session: Session, trial_id: int, user: UserPrincipal, *, resume: bool) -> tuple[int, str | None, int]:
    """Begin a run: its id, the checkpoint to go on from if there is one, and the steps that it covers.

    Raises: FailedPrecondition, if the trial has run and is not to be resumed; NotFound, Forbidden, BadRequest.
    """
    trial = _trial(session, trial_id, user)
    if trial.run_id and not resume:
        raise FailedPrecondition(f"trial {trial_id} has run before: expected resume: true, or a new trial")
    trial.run_id += 1
    trial.state, trial.ended_at, trial.heard_at = "ACTIVE", None, utc_now()
    session.flush()
    reopen_trial_tasks(session, [trial_id])
    _follow(session, trial.experiment_id)
    checkpoint = resume_point(session, trial_id)
    steps = 0 if checkpoint is None else session.get_one(Checkpoint, checkpoint).steps_completed
    return trial.run_id, checkpoint, steps


def note_trial(
    session: Session,
    trial_id: int,
    user: UserPrincipal,
    state: str | None,
    began: datetime | None = None,
    ended: datetime | None = None,
) -> None:
    """A sign of life, and what became of the trial, if the client says. Raises: BadRequest, NotFound, Forbidden.

    `began` and `ended` are of one that was trained before; now, if it ends without them.
    """
    trial = _trial(session, trial_id, user)
    trial.heard_at = utc_now()
    if began is not None:
        _backdate(session, trial, began)
    if ended is not None and (state is None or chosen("state", state, _STATES) not in _TERMINAL):
        raise BadRequest("endTime: expected with it the state that the trial ended in")
    if state is not None:
        trial.state, now = chosen("state", state, _STATES), ended or utc_now()
        if not trial.started_at <= now <= utc_now() + _SILENCE:
            raise BadRequest(f"endTime: {now.isoformat()}: expected a time after the start, and not ahead of now")
        trial.ended_at = now if trial.state in _TERMINAL else None
        session.flush()
        if trial.state in _TERMINAL:
            end_trial_task(session, trial_id, trial.state, now)
        else:
            reopen_trial_tasks(session, [trial_id])
        _follow(session, trial.experiment_id)


def _backdate(session: Session, trial: Trial, began: datetime) -> None:
    """A trial, its task and its experiment began then, not when they were reported."""
    if began > utc_now() + _SILENCE:
        raise BadRequest(f"startTime: {began.isoformat()}: expected a time that is not ahead of now")
    trial.started_at = began
    session.execute(update(Task).where(Task.id == trial.task_id).values(started_at=began))
    experiment = session.get_one(Experiment, trial.experiment_id)
    experiment.started_at = min(experiment.started_at, began)


def _trial(session: Session, trial_id: int, user: UserPrincipal) -> Trial:
    trial = readable_trial(session, trial_id, user)
    _unmanaged(session, trial.experiment_id, user)
    session.refresh(trial, with_for_update=True)
    return trial


def _unmanaged(session: Session, experiment_id: int, user: UserPrincipal) -> Experiment:
    experiment = changeable(session, experiment_id, user)
    if not experiment.is_unmanaged:
        raise BadRequest(f"only unmanaged trials are supported: experiment {experiment_id} is managed by the cluster")
    return experiment


def _follow(session: Session, experiment_id: int) -> None:
    """The experiment stands where the furthest of its trials stands."""
    experiment = session.get_one(Experiment, experiment_id)
    states = session.scalars(select(Trial.state).where(Trial.experiment_id == experiment_id).distinct())
    experiment.state = max(states, key=_FURTHEST.index, default="PAUSED")
    experiment.progress = 1.0 if experiment.state == "COMPLETED" else experiment.progress
    last = session.scalar(select(func.max(Trial.ended_at)).where(Trial.experiment_id == experiment_id))
    experiment.ended_at = (last or utc_now()) if experiment.state in _TERMINAL else None


async def watch(database: Database) -> None:
    """Give trials up that have been silent for too long, until cancelled."""
    while True:
        await asyncio.sleep(_EVERY_S)
        try:
            given_up = await asyncio.to_thread(give_up_silent, database)
        except SQLAlchemyError as error:  # it is away, or busy: they are looked at again soon
            log.warning("unmanaged trials were not looked at", error=repr(error))
        else:
            if given_up:
                log.info("unmanaged trials given up", trial_ids=given_up)


def give_up_silent(database: Database) -> list[int]:
    """End unmanaged trials that have been silent for too long; returns their ids."""
    too_long_ago = utc_now() - _SILENCE
    silent = select(Trial.id, Trial.experiment_id).where(Trial.state == "ACTIVE", Trial.heard_at < too_long_ago)
    with database.read() as session:
        found = session.execute(silent).tuples().all()
    given_up: list[int] = []
    for trial_id, experiment_id in found:
        with database.write() as session:
            told = f"nothing was heard of it for {_SILENCE.total_seconds() / 60:.0f} minutes"
            ended = session.scalars(
                update(Trial)
                .where(Trial.id == trial_id, Trial.state == "ACTIVE", Trial.heard_at < too_long_ago)
                .values(state="ERROR", ended_at=utc_now(), message=told)
                .returning(Trial.id)
            ).all()
            if ended:
                end_trial_task(session, trial_id, "ERROR", utc_now())
            _follow(session, experiment_id)
        given_up.extend(ended)
    return given_up
