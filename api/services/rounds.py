"""What a process of the API does every so often beside its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import structlog
from sqlalchemy.exc import SQLAlchemyError

from api.temporal.outbox import Dispatcher

log = structlog.get_logger()

#: Between the end of a round and the next; a function is asked each time.
Every = timedelta | Callable[[], timedelta]


async def rounds(every: Every, work: Callable[[], int], *, done: str = "", failed: str) -> None:
    """Do it again and again in a thread, for the first time after `every`, until cancelled.

    A database that is away, or busy, is logged: the next round will do.

    Args:
        every: Between the end of a round and the next.
        work: Returns how many rows it was about.
        done: What to log of a round that was about some; nothing if it is empty.
        failed: What to log of one that the database refused.
    """
    while True:
        await asyncio.sleep((every() if callable(every) else every).total_seconds())
        try:
            rows = await asyncio.to_thread(work)
        except SQLAlchemyError as error:
            log.warning(failed, error=repr(error))
        else:
            if rows and done:
                log.info(done, rows=rows)


async def posting_rounds(every: Every, look: Callable[[], int], dispatcher: Dispatcher, *, failed: str) -> None:
    """The same of work that posts messages to workflows: they are sent at once.

    Args:
        every: Between the end of a round and the next.
        look: Returns how many rows it was about.
        dispatcher: Of the outbox.
        failed: What to log of a round that the database refused.
    """

    def work() -> int:
        rows = look()
        if rows:
            dispatcher.poke()
        return rows

    await rounds(every, work, failed=failed)
