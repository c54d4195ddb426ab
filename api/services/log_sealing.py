"""Puts log lines into blocks: the older ones of what runs, and all of what has ended.

Lines that come in small numbers are rows at first. As rows they take some ten times their size, and a search looks at
each of them.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.orm import Session

from api.services.rounds import at_leisure, rounds
from database.log_blocks import BLOCK, seal
from database.models import Task, TaskLog
from database.session import Database
from database.types import utc_now

_EVERY = timedelta(seconds=30)
#: After its end, lines of a task are still on their way for a while.
_AFTER_END = timedelta(minutes=1)
#: Blocks of one round.
_MOST = 500
#: Tasks that one statement names.
_AT_ONCE = 1000


#: How often all rows are looked at: those of which a round could not know, such as what another process had to leave.
_ALL_EVERY = timedelta(hours=1)


class LogSealing:
    """Looks for rows that can go into blocks. Several processes may: the same task is one's at a time.

    A round looks at tasks that got rows since the one before, or that have ended since then.
    """

    def __init__(self, database: Database, *, after_end: timedelta = _AFTER_END) -> None:
        self._database = database
        self._after_end = after_end
        self._all_at: datetime | None = None  # when all rows were looked at
        self._ended_by: datetime | None = None  # tasks that had ended by then were looked at
        self._last_id = 0  # the newest row of the round before
        self._left: set[str] = set()  # tasks of which it left some

    async def run(self) -> None:
        """Look every so often until cancelled."""
        await rounds(_EVERY, self.seal, failed="log lines were not put into blocks")

    def seal(self) -> int:
        """Put lines into blocks now, in small transactions; returns how many lines."""
        sealed = 0
        tasks = self._tasks()
        self._left = {task_id for task_id, _, _ in tasks}
        for task_id, count, is_over in tasks:
            left = count
            while left >= (1 if is_over else BLOCK) and sealed < _MOST * BLOCK:
                with at_leisure(), self._database.write() as session:
                    done = seal(session, task_id)
                if not done:
                    break
                sealed, left = sealed + done, left - done
            if left < (1 if is_over else BLOCK):
                self._left.discard(task_id)
        return sealed

    def _tasks(self) -> list[tuple[str, int, bool]]:
        """Tasks with lines for a block, how many they have, and whether no more of them will come."""
        now = utc_now()
        ended = Task.ended_at < now - self._after_end
        with self._database.read() as session:
            newest = session.scalar(select(func.max(TaskLog.id))) or 0
            if self._all_at is None or self._ended_by is None or now >= self._all_at + _ALL_EVERY:
                found, self._all_at = _counted(session, ended), now
            else:
                has_rows = select(TaskLog.id).where(TaskLog.task_id == Task.id).exists()
                over = select(Task.id).where(ended, Task.ended_at >= self._ended_by, has_rows)
                changed = select(TaskLog.task_id).where(TaskLog.id > self._last_id).distinct()
                some = sorted({*session.scalars(changed), *session.scalars(over), *self._left})
                parts = [some[at : at + _AT_ONCE] for at in range(0, len(some), _AT_ONCE)]
                found = [each for part in parts for each in _counted(session, ended, TaskLog.task_id.in_(part))]
        self._last_id, self._ended_by = newest, now - self._after_end
        return found


def _counted(session: Session, ended: ColumnElement[bool], *of: ColumnElement[bool]) -> list[tuple[str, int, bool]]:
    counts = select(TaskLog.task_id, func.count().label("lines")).where(*of).group_by(TaskLog.task_id).subquery()
    statement = (
        select(counts.c.task_id, counts.c.lines, func.coalesce(ended, False))
        .outerjoin(Task, Task.id == counts.c.task_id)
        .where(or_(counts.c.lines >= BLOCK, ended))
    )
    return [(task_id, lines, bool(is_over)) for task_id, lines, is_over in session.execute(statement).tuples()]
