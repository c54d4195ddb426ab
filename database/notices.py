"""Notices from one process to another that an allocation changed, so that nobody asks for it again and again. ADR 60.

A notice only says where to look: what it is about stands in the records, and one that is lost costs time, nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
import uuid
from collections.abc import AsyncGenerator

import psycopg
import structlog
from sqlalchemy import func, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from database.session import Database

log = structlog.get_logger()

#: An allocation's id, or None: any may have changed.
Notice = str | None

_CHANNEL = "undeterred_allocations"
#: Everything is looked at so often, whatever notices say.
_QUIET_S = 30.0
#: Between two looks where notices don't arrive: behind a pooler that gives each transaction another connection.
_UNHEARD_S = 0.2
_HEARD_WITHIN_S = 2.0
_SQLITE_TICK_S = 0.01
#: The longest that looking after a commit is put off: by then many polls want to know.
_SQLITE_REST_S = 0.5


def notify(session: Session, allocation_id: str) -> None:
    """Send a notice once this transaction is committed. SQLite needs none: a change of the file is one."""
    if session.get_bind().dialect.name == "postgresql":
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
    """Any commit of another connection is a notice: the file counts them.

    Looking after each may take a tenth of the time at most, however many commits there are, as long as it takes less
    than a twentieth of a second.
    """
    with contextlib.closing(sqlite3.connect(str(make_url(database.url).database), isolation_level=None)) as connection:
        seen, again_at = None, 0.0
        while True:
            await wanted.wait()
            version = connection.execute("PRAGMA data_version").fetchone()
            began = time.monotonic()
            if version != seen and began >= again_at:
                seen = version
                yield None
                took = time.monotonic() - began
                again_at = began + took + min(_SQLITE_REST_S, 10 * took)
            await asyncio.sleep(_SQLITE_TICK_S)
