"""What a process of the API does every so often beside its requests."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Generator
from datetime import timedelta

import structlog
from sqlalchemy.exc import SQLAlchemyError

from api.temporal.outbox import Dispatcher

log = structlog.get_logger()

#: Between the end of a round and the next; a function is asked each time.
Every = timedelta | Callable[[], timedelta]
#: Set when this process leaves: nobody is waited for any more.
_leaving = threading.Event()
_LONGEST_REST_S = 0.5


@contextlib.contextmanager
def at_leisure() -> Generator[None]:
    """A piece of work in a thread, for which no request should wait: the thread rests twice as long as it took.

    Python runs one thread at a time. Without a rest, requests get a fifth of the time beside a thread that computes.
    """
    began = time.monotonic()
    yield
    _leaving.wait(min(_LONGEST_REST_S, 2 * (time.monotonic() - began)))


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
        except asyncio.CancelledError:
            _leaving.set()
            raise
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
