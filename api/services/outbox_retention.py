"""Removes messages that Temporal has and nobody needs any more."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import structlog
from sqlalchemy import delete, select
from sqlalchemy.exc import SQLAlchemyError

from database.models import Experiment, Outbox
from database.session import Database
from database.types import utc_now
from workflows import names
from workflows.lifecycle.experiment import TERMINAL

log = structlog.get_logger()

#: Long enough to look into what was sent, after a weekend.
KEPT = timedelta(days=7)
_AT_ONCE = 5000
_EVERY_S = 3600.0
_OVER = [state.value for state in TERMINAL]


class OutboxRetention:
    """Without it a table grows by a row for each validation that a search was sent, for good."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def run(self) -> None:
        """Look every hour until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                removed = await asyncio.to_thread(self.remove_sent)
            except SQLAlchemyError as error:  # it is away, or busy: the next hour will do
                log.warning("sent messages were not looked through", error=repr(error))
            else:
                if removed:
                    log.info("sent messages removed", messages=removed)

    def remove_sent(self) -> int:
        """Remove what was sent a week ago, in pieces; returns how many messages.

        Those to an experiment stay until it is over: a restore starts it with what its search had not decided on.
        """
        with self._database.read() as session:
            live = select(Experiment.id).where(Experiment.state.not_in(_OVER))
            needed = {names.experiment_workflow(experiment_id) for experiment_id in session.scalars(live)}
        sent = select(Outbox.id, Outbox.workflow_id).where(Outbox.sent_at < utc_now() - KEPT)
        removed = looked_at = 0
        while True:
            with self._database.write() as session:
                some = sent.where(Outbox.id > looked_at).order_by(Outbox.id).limit(_AT_ONCE)
                found = session.execute(some).tuples().all()
                ids = [message_id for message_id, workflow_id in found if workflow_id not in needed]
                session.execute(delete(Outbox).where(Outbox.id.in_(ids)))
            removed += len(ids)
            if len(found) < _AT_ONCE:
                return removed
            looked_at = found[-1][0]
