"""The record of an experiment's search: written by its workflow's activity, or by who got it as an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from sqlalchemy import CursorResult, Exists, Result, bindparam, func, select, update
from sqlalchemy.orm import Session

from database import budgets, campaigns, gates, webhooks
from database.models import Allocation, Checkpoint, Experiment, Trial
from database.notices import notify
from database.session import Database
from database.tasks import end_trial_task
from database.trials import create_trials, record_decisions, reserve_numbers
from database.types import utc_now
from workflows.lifecycle.experiment import ExperimentState
from workflows.messages import CreatedTrials, RecordExperiment, TrialStanding

#: States in which the containers of an experiment's trials are to save what they have, and to leave.
_LEAVING = (ExperimentState.PAUSED, ExperimentState.STOPPING_CANCELED)
#: Where a trial stands: its parameters are the fields of `TrialStanding`.
_STANDING = (
    update(Trial)
    .where(Trial.id == bindparam("trial_id"))
    .values(
        operation_length=bindparam("length"),
        is_closed=bindparam("is_closed"),
        rung=bindparam("rung"),
        bracket=bindparam("bracket"),
    )
)


def record_experiment(database: Database, record: RecordExperiment) -> CreatedTrials:
    """Write an experiment's state, decisions, new trials and standings, unless a later record is written already."""
    with database.write() as session:
        return _record(session, record)


def _record(session: Session, record: RecordExperiment) -> CreatedTrials:
    ids = create_trials(session, record.experiment_id, record.trials)
    ids.numbers = reserve_numbers(session, record.reserves)
    statement = select(Experiment.state).where(Experiment.id == record.experiment_id).with_for_update()
    before = session.scalar(statement)
    if not _update_experiment(session, record):
        return ids
    if before != record.state.value:  # a retry finds it unchanged: events are posted once
        webhooks.note_state(session, record.experiment_id, record.state.value)
        if record.state in _LEAVING:
            _ask_to_leave(session, record.experiment_id)
    clock = record.clock
    if clock is not None and budgets.note_clock(session, record.experiment_id, clock, record.notices):
        gates.open_overrun(session, record.experiment_id)
    for rung in record.asked:
        gates.open_promotion(session, record.experiment_id, rung)
    record_decisions(session, {record.experiment_id: record.decisions})
    _update_standings(session, record.standings)
    if record.is_terminal:
        campaigns.note_end(session, experiment_id=record.experiment_id)
        ids.has_checkpoints = bool(session.scalar(select(_has_checkpoints(record.experiment_id))))
    return ids


def _ask_to_leave(session: Session, experiment_id: int) -> None:
    """Notify the harnesses of an experiment at once, while its trials' workflows still wait for their orders.

    Of a container whose harness is not there yet these know what to do: it has nothing to save.
    """
    asked = (
        update(Allocation)
        .where(
            Allocation.experiment_id == experiment_id,
            Allocation.ready_at.is_not(None),
            Allocation.ended_at.is_(None),
            Allocation.preempt_requested_at.is_(None),
        )
        .values(preempt_requested_at=utc_now())
        .returning(Allocation.id)
    )
    for allocation_id in session.scalars(asked):
        notify(session, allocation_id)


def _update_experiment(session: Session, record: RecordExperiment) -> bool:
    values: dict[str, Any] = {
        "state": record.state.value,
        "progress": record.progress,
        "error": record.error,
        "revision": record.revision,
    }
    if record.queued is not None:
        values["searcher_queue"] = [event.model_dump(mode="json") for event in record.queued]
    if record.is_terminal:
        values["ended_at"] = func.coalesce(Experiment.ended_at, utc_now())
    is_ours = (Experiment.id == record.experiment_id, Experiment.revision <= record.revision)
    return _hit(session.execute(update(Experiment).where(*is_ours).values(values)))


def _has_checkpoints(experiment_id: int) -> Exists:
    return (
        select(Checkpoint.uuid)
        .where(Checkpoint.experiment_id == experiment_id, Checkpoint.state.in_(("COMPLETED", "PARTIALLY_DELETED")))
        .exists()
    )


def _update_standings(session: Session, standings: Sequence[TrialStanding]) -> None:
    """As one statement: of many trials that report at once it would be most of what their record takes."""
    if standings:
        session.connection().execute(_STANDING, [each.model_dump(exclude={"ended_as"}) for each in standings])
    for standing in standings:
        if standing.ended_as is not None:
            ended = {"state": standing.ended_as.value, "ended_at": func.coalesce(Trial.ended_at, utc_now())}
            session.execute(update(Trial).where(Trial.id == standing.trial_id).values(ended))
            end_trial_task(session, standing.trial_id, standing.ended_as.value, utc_now())


def _hit(result: Result[Any]) -> bool:
    return cast("CursorResult[Any]", result).rowcount > 0
