"""Puts log lines into blocks: the older ones of what runs, and all of what has ended.

Lines that come in small numbers are rows at first. As rows they take some ten times their size, and a search looks at
each of them.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import func, or_, select

from api.services.rounds import rounds
from database.log_blocks import BLOCK, seal
from database.models import Task, TaskLog
from database.session import Database
from database.types import utc_now

_EVERY = timedelta(seconds=30)
#: After its end, lines of a task are still on their way for a while.
_AFTER_END = timedelta(minutes=1)
#: Blocks of one round.
_MOST = 500


class LogSealing:
    """Looks for rows that can go into blocks. Several processes may: the same task is one's at a time."""

    def __init__(self, database: Database, *, after_end: timedelta = _AFTER_END) -> None:
        self._database = database
        self._after_end = after_end

    async def run(self) -> None:
        """Look every so often until cancelled."""
        await rounds(_EVERY, self.seal, failed="log lines were not put into blocks")

    def seal(self) -> int:
        """Put lines into blocks now, in small transactions; returns how many lines."""
        sealed = left = 0
        for task_id, count, is_over in self._tasks():
            left = count
            while left >= (1 if is_over else BLOCK) and sealed < _MOST * BLOCK:
                with self._database.write() as session:
                    done = seal(session, task_id)
                if not done:
                    break
                sealed, left = sealed + done, left - done
        return sealed

    def _tasks(self) -> list[tuple[str, int, bool]]:
        """Tasks with lines for a block, how many they have, and whether no more of them will come."""
        ended = Task.ended_at < utc_now() - self._after_end
        counts = select(TaskLog.task_id, func.count().label("lines")).group_by(TaskLog.task_id).subquery()
        statement = (
            select(counts.c.task_id, counts.c.lines, func.coalesce(ended, False))
            .outerjoin(Task, Task.id == counts.c.task_id)
            .where(or_(counts.c.lines >= BLOCK, ended))
        )
        with self._database.read() as session:
            return [(task_id, lines, bool(is_over)) for task_id, lines, is_over in session.execute(statement).tuples()]
