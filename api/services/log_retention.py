"""Retention of logs, in days from the end: set by a trial, else its experiment, else the cluster; of others by that."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import ColumnElement, delete, func, literal, or_, select, update
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.auth.authorization import changeable
from api.errors import BadRequest
from api.services.rounds import rounds
from database.models import Experiment, LogBlock, Task, TaskLog, Trial
from database.session import Database
from database.types import utc_now

FOREVER = -1
_MAX_DAYS = 32767
#: Lines in one transaction.
_AT_ONCE = 5000
_BLOCKS_AT_ONCE = 100
_EVERY = timedelta(hours=1)


class LogRetention:
    """Removes expired lines. `cluster_days` None: logs without a setting of their own are kept indefinitely."""

    def __init__(self, database: Database, cluster_days: int | None) -> None:
        self._database = database
        self._cluster_days = FOREVER if cluster_days is None else cluster_days

    async def run(self) -> None:
        """Look every hour until cancelled."""
        await rounds(_EVERY, self.remove_expired, done="logs removed", failed="logs were not looked through")

    def remove_expired(self) -> int:
        """Remove them now, in pieces, so that no other writer waits for long; returns the number of lines."""
        with self._database.read() as session:
            tasks = self._expired_tasks(session)
        removed = 0
        for task_id in tasks:
            count = 1
            while count:
                with self._database.write() as session:
                    count = _remove_some(session, task_id)
                removed += count
        return removed

    def remaining_days(self, session: Session, trial: Trial) -> int:
        """Full days until the lines of a trial go; -1: never."""
        days = session.scalars(
            select(self._days()).join(Experiment, Experiment.id == Trial.experiment_id).where(Trial.id == trial.id)
        ).one()
        if days == FOREVER or trial.ended_at is None:
            return days
        return max(0, (trial.ended_at + timedelta(days=days) - utc_now()).days)

    def _days(self) -> ColumnElement[int]:
        return func.coalesce(Trial.log_retention_days, Experiment.log_retention_days, literal(self._cluster_days))

    def _expired_tasks(self, session: Session) -> list[str]:
        with_lines = or_(*(select(each.id).where(each.task_id == Task.id).exists() for each in (TaskLog, LogBlock)))
        rows = session.execute(
            select(Task.id, Trial.ended_at, self._days())
            .join(Trial, Trial.id == Task.trial_id)
            .join(Experiment, Experiment.id == Trial.experiment_id)
            .where(Trial.ended_at.is_not(None), self._days() != FOREVER, with_lines)
        ).all()
        now = utc_now()
        found = [task_id for task_id, ended, days in rows if ended is not None and ended + timedelta(days=days) <= now]
        if self._cluster_days == FOREVER:
            return found
        ended_by = now - timedelta(days=self._cluster_days)
        others = select(Task.id).where(Task.trial_id.is_(None), Task.ended_at <= ended_by, with_lines)
        return [*found, *session.scalars(others)]


def _remove_some(session: Session, task_id: str) -> int:
    """Remove some lines of a task; how many."""
    removed = 0
    for model, lines, most in ((TaskLog, literal(1), _AT_ONCE), (LogBlock, LogBlock.line_count, _BLOCKS_AT_ONCE)):
        some = session.execute(select(model.id, lines).where(model.task_id == task_id).limit(most)).tuples().all()
        session.execute(delete(model).where(model.id.in_([id_ for id_, _ in some])))
        removed += sum(count for _, count in some)
    return removed


def valid_days(days: int) -> int:
    """What `numDays` may be. Raises: BadRequest."""
    if not FOREVER <= days <= _MAX_DAYS:
        raise BadRequest(f"numDays: {days}: expected {FOREVER} (without end) to {_MAX_DAYS}")
    return days


def retain_of_experiment(session: Session, experiment_id: int, days: int, user: UserPrincipal) -> None:
    """Keep the logs of all trials of an experiment for this long; this overrides earlier settings of its trials."""
    changeable(session, experiment_id, user).log_retention_days = days
    session.execute(update(Trial).where(Trial.experiment_id == experiment_id).values(log_retention_days=None))
