"""Makes blocks the record of reports that are old, whose documents go.

A document takes some ten times the bytes. Reports that are young stay documents: who follows a trial sees them as they
come, and harnesses deliver the latest ones once more after a lost answer.
"""

from __future__ import annotations

from datetime import timedelta

import structlog
from sqlalchemy import func, select

from api.ingest.metric_blocks import KEPT_GROUPS, finish, pack
from api.services.rounds import at_leisure, rounds
from database.models import Metric, MetricBlock, Trial
from database.session import Database
from database.types import utc_now

log = structlog.get_logger()

#: How often it looks; a report is old that was there the last time.
_EVERY = timedelta(seconds=60)
#: After its end, reports of a trial are still on their way for a while.
_AFTER_END = timedelta(minutes=1)
#: Trials that have ended, groups, and reports of one round.
_MOST_ENDED, _MOST_GROUPS, _MOST_REPORTS = 200, 500, 500_000


class MetricSealing:
    """Looks for blocks whose reports are old. Several processes may: a trial's row is locked by one at a time."""

    def __init__(self, database: Database, *, after_end: timedelta = _AFTER_END) -> None:
        self._database = database
        self._after_end = after_end
        self._newest = 0  # the id of the newest report, when it looked last

    async def run(self) -> None:
        """Look every so often until cancelled."""
        await rounds(_EVERY, self.seal, failed="reports were not packed")

    def seal(self) -> int:
        """Pack what is old now, in small transactions; returns how many reports."""
        old, self._newest = self._newest, self._count()
        for trial_id in self._ended():
            with at_leisure(), self._database.write() as session:
                finish(session.connection(), trial_id)
        packed = 0
        for trial_id, group in self._waiting():
            try:
                packed += self._pack(trial_id, group, old, _MOST_REPORTS - packed)
            except Exception:
                log.exception("reports were not packed", trial=trial_id, group=group)
        return packed

    def _pack(self, trial_id: int, group: str, old: int, most: int) -> int:
        packed = 0
        while packed < most:
            with at_leisure(), self._database.write() as session:
                done = pack(session.connection(), trial_id, group, old)
            if not done:
                break
            packed += done
        return packed

    def _count(self) -> int:
        with self._database.read() as session:
            return session.scalar(select(func.max(Metric.id))) or 0

    def _ended(self) -> list[int]:
        """Trials that have ended and have reports in no block."""
        over = ~Trial.is_settled, Trial.ended_at < utc_now() - self._after_end
        with self._database.read() as session:
            return list(session.scalars(select(Trial.id).where(*over).order_by(Trial.ended_at).limit(_MOST_ENDED)))

    def _waiting(self) -> list[tuple[int, str]]:
        """Groups of trials with blocks that may be packed."""
        groups = select(MetricBlock.trial_id, MetricBlock.group_name).where(
            MetricBlock.is_settled, MetricBlock.packed.is_(None), MetricBlock.group_name.not_in(KEPT_GROUPS)
        )
        with self._database.read() as session:
            return list(session.execute(groups.distinct().limit(_MOST_GROUPS)).tuples())
