"""Removes messages that Temporal has and nobody needs any more."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import delete, select

from api.services.rounds import rounds
from database.models import Experiment, Outbox
from database.session import Database
from database.types import utc_now
from workflows import names
from workflows.lifecycle.experiment import TERMINAL

#: Long enough to look into what was sent, after a weekend.
KEPT = timedelta(days=7)
_AT_ONCE = 5000
_EVERY = timedelta(hours=1)
_OVER = [state.value for state in TERMINAL]


class OutboxRetention:
    """Without it a table grows by a row for each validation that a search was sent, for good."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def run(self) -> None:
        """Look every hour until cancelled."""
        await rounds(
            _EVERY, self.remove_sent, done="sent messages removed", failed="sent messages were not looked through"
        )

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
