"""Which checkpoint a trial resumes from."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from database.models import Checkpoint, Experiment, SearchDecision, Trial


def newest_checkpoint(session: Session, trial_id: int, *, until: datetime | None = None) -> Checkpoint | None:
    """The newest complete checkpoint of a trial, by steps completed; with `until`, of those reported by then."""
    statement = select(Checkpoint).where(Checkpoint.trial_id == trial_id, Checkpoint.state == "COMPLETED")
    if until is not None:
        statement = statement.where(Checkpoint.reported_at <= until)
    newest_first = (Checkpoint.steps_completed.desc(), Checkpoint.reported_at.desc())
    return session.scalar(statement.order_by(*newest_first).limit(1))


def resume_point(session: Session, trial_id: int, *, until: datetime | None = None) -> str | None:
    """The checkpoint that holds where a trial is: its newest one, else the one in whose place it went on; its uuid."""
    newest = newest_checkpoint(session, trial_id, until=until)
    if newest is not None:
        return newest.uuid
    trial = session.get(Trial, trial_id)
    return trial.warm_start_checkpoint if trial is not None and trial.is_continuation else None


def fork_time(session: Session, experiment_id: int) -> datetime | None:
    """When the parent of a fork took the decision up to which both share their history; None if there is no parent."""
    return session.scalar(
        select(SearchDecision.decided_at)
        .join(Experiment, Experiment.parent_id == SearchDecision.experiment_id)
        .where(Experiment.id == experiment_id, SearchDecision.number == Experiment.forked_at)
    )
