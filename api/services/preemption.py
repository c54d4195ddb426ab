"""Preemption signals by long polling: one connection for notices serves all open polls."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import or_, select
from sqlalchemy.exc import SQLAlchemyError

from api.errors import NotFound
from database.models import Allocation
from database.notices import notices
from database.session import Database


class PreemptionWatch:
    """Notifies harnesses, through long polls, that they are preempted."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._watchers: dict[str, set[asyncio.Event]] = defaultdict(set)
        self._some = asyncio.Event()

    async def wait(self, allocation_id: str, timeout_s: float) -> bool:
        """True as soon as the allocation shall end or has ended; False after `timeout_s`. Raises: NotFound."""
        event = asyncio.Event()
        self._watchers[allocation_id].add(event)
        self._some.set()
        try:
            if await asyncio.to_thread(self._must_leave_one, allocation_id):
                return True
            if timeout_s <= 0:
                return False
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return False
        finally:
            watchers = self._watchers[allocation_id]
            watchers.discard(event)
            if not watchers:
                del self._watchers[allocation_id]
            if not self._watchers:
                self._some.clear()
        return True

    async def run(self) -> None:
        """Answer polls as notices come, until cancelled; while nobody waits, the database is not asked either."""
        async with contextlib.aclosing(notices(self._database, self._some)) as noticed:
            async for notice in noticed:
                if notice is None:
                    await self._look(list(self._watchers))
                else:
                    self._answer([notice])

    async def _look(self, ids: list[str]) -> None:
        if not ids:
            return
        try:
            leaving = await asyncio.to_thread(self._must_leave, ids)
        except SQLAlchemyError:  # the database is away: polls end by their time-out and come again
            await asyncio.sleep(1.0)
            return
        self._answer(leaving)

    def _answer(self, leaving: Sequence[str]) -> None:
        for allocation_id in leaving:
            for event in self._watchers.get(allocation_id, ()):
                event.set()

    def _must_leave(self, ids: list[str]) -> list[str]:
        with self._database.read() as session:
            return list(
                session.scalars(
                    select(Allocation.id).where(
                        Allocation.id.in_(ids),
                        or_(Allocation.preempt_requested_at.is_not(None), Allocation.ended_at.is_not(None)),
                    )
                )
            )

    def _must_leave_one(self, allocation_id: str) -> bool:
        with self._database.read() as session:
            allocation = session.get(Allocation, allocation_id)
            if allocation is None:
                raise NotFound(f"allocation {allocation_id} not found")
            return allocation.preempt_requested_at is not None or allocation.ended_at is not None
