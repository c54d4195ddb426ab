"""Notices from one process to another that an allocation is to leave or has ended: nobody asks for that. ADR 60.

They come from what was committed. What they are about stands in the records: one that is lost costs time, nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
import uuid
from collections.abc import AsyncGenerator
from datetime import timedelta

import psycopg
import structlog
from sqlalchemy import func, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from database.engines import on_postgresql
from database.session import Database
from database.types import utc_now

log = structlog.get_logger()

#: The id of an allocation that is to leave, or has ended; None: any may.
Notice = str | None

_CHANNEL = "undeterred_allocations"
#: Everything is looked at so often, whatever notices say.
_QUIET_S = 30.0
#: Between two looks where notices don't arrive: behind a pooler that gives each transaction another connection.
_UNHEARD_S = 0.2
_HEARD_WITHIN_S = 2.0
_SQLITE_TICK_S = 0.01
#: An end is a notice in the first commit after it that is looked after: within so long.
_LATELY_S = 10.0


def notify(session: Session, allocation_id: str) -> None:
    """Notice once this transaction is committed that an allocation is to leave, or has ended.

    SQLite needs none sent: who listens looks after each change of the file.
    """
    if on_postgresql(session):
        session.execute(select(func.pg_notify(_CHANNEL, allocation_id)))


async def notices(database: Database, wanted: asyncio.Event) -> AsyncGenerator[Notice]:
    """Notices while they are wanted, without end. The first of each connection to the database is None.

    Args:
        database: Where the records are.
        wanted: Set while a notice would be of use; nothing is done otherwise.
    """
    listen = _of_sqlite if database.is_sqlite else _of_postgres
    while True:
        await wanted.wait()
        try:
            async for notice in listen(database, wanted):
                yield notice
        except (psycopg.Error, sqlite3.Error, SQLAlchemyError) as error:
            log.warning("no notices from the database", error=str(error).strip()[:200])
            await asyncio.sleep(1.0)


async def _of_postgres(database: Database, wanted: asyncio.Event) -> AsyncGenerator[Notice]:
    async with await psycopg.AsyncConnection.connect(**database.connect_arguments(), autocommit=True) as connection:
        await connection.execute(f"LISTEN {_CHANNEL}")
        is_heard = await _is_heard(database, connection)
        yield None
        while is_heard:
            async for notice in connection.notifies(timeout=_QUIET_S):
                yield notice.payload
            yield None
    log.info("notices of the database don't arrive here: it is asked instead", every_s=_UNHEARD_S)
    while True:
        await asyncio.sleep(_UNHEARD_S)
        await wanted.wait()
        yield None


async def _is_heard(database: Database, connection: psycopg.AsyncConnection) -> bool:
    """Whether what another connection sends arrives. Notices of others are lost meanwhile: None follows."""
    token = f"heard {uuid.uuid4()}"
    await asyncio.to_thread(_send, database, token)
    deadline = time.monotonic() + _HEARD_WITHIN_S
    while (left := deadline - time.monotonic()) > 0:
        async for notice in connection.notifies(timeout=left, stop_after=1):
            if notice.payload == token:
                return True
    return False


def _send(database: Database, payload: str) -> None:
    with database.write() as session:
        notify(session, payload)


async def _of_sqlite(database: Database, wanted: asyncio.Event) -> AsyncGenerator[Notice]:
    """Any commit of another connection is a reason to look: the file counts them.

    Looking takes a tenth of this thread's time at most, however many commits there are. What it takes is measured in
    processor time: on a busy machine one look that stood still would put the next one off for long.
    """
    with contextlib.closing(sqlite3.connect(str(make_url(database.url).database), isolation_level=None)) as connection:
        while True:
            await wanted.wait()
            seen, known = _version(connection), _changed(connection)  # what changes after this is a notice
            all_again_at, look_again_at = time.monotonic() + _QUIET_S, 0.0
            yield None
            while wanted.is_set() and (now := time.monotonic()) < all_again_at:
                if now >= look_again_at and (version := _version(connection)) != seen:
                    began, seen, before = time.thread_time(), version, known
                    known = _changed(connection)
                    look_again_at = time.monotonic() + 10 * (time.thread_time() - began)
                    for allocation_id in known - before:
                        yield allocation_id
                await asyncio.sleep(_SQLITE_TICK_S)


def _version(connection: sqlite3.Connection) -> int:
    return connection.execute("PRAGMA data_version").fetchone()[0]


def _changed(connection: sqlite3.Connection) -> set[str]:
    """Allocations that are to leave, and those that ended just now."""
    lately = (utc_now() - timedelta(seconds=_LATELY_S)).replace(tzinfo=None).isoformat(" ", "microseconds")
    leaving = connection.execute(
        "SELECT id FROM allocations WHERE ended_at IS NULL AND preempt_requested_at IS NOT NULL"
        " UNION ALL SELECT id FROM allocations WHERE ended_at >= ?",
        (lately,),
    )
    return {row[0] for row in leaving}
