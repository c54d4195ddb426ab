"""Notices that an allocation changed: heard at once, nothing asked meanwhile, and none needed where they don't arrive."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import event, text

from api.services.preemption import PreemptionWatch
from database.models import Allocation, Task
from database.notices import Notice, notices, notify
from database.session import Database
from database.types import utc_now
from tests.kit.records import seeded
from tests.kit.servers import pgbouncer

LISTENERS = """SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE query LIKE 'LISTEN %' AND datname = current_database()"""


#: As many live trials as a cluster has that is idle all the same.
POLLS = 1000


@contextlib.contextmanager
def with_allocations(url: str, count: int) -> Iterator[Database]:
    """A database with a task whose allocations `t.1`, `t.2` … all run."""
    with seeded(url) as database:
        with database.write() as session:
            session.add(Task(id="t", kind="COMMAND", name="t", state="ACTIVE", owner_id=1, workspace_id=1, job_id="j"))
            session.flush()
            session.add_all(
                Allocation(id=f"t.{n}", task_id="t", run_id=n, pool="default", slots=0, state="RUNNING", placements=[])
                for n in range(1, count + 1)
            )
        yield database


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with with_allocations(database_url, POLLS) as database:
        yield database


@contextlib.asynccontextmanager
async def heard(database: Database) -> AsyncGenerator[asyncio.Queue[Notice]]:
    """What is noticed, from the first word on."""
    wanted = asyncio.Event()
    wanted.set()
    queue: asyncio.Queue[Notice] = asyncio.Queue()

    async def listen() -> None:
        async with contextlib.aclosing(notices(database, wanted)) as noticed:
            async for notice in noticed:
                queue.put_nowait(notice)

    listening = asyncio.create_task(listen())
    try:
        assert await asyncio.wait_for(queue.get(), 20) is None
        yield queue
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


def change(database: Database) -> None:
    with database.write() as session:
        session.get_one(Allocation, "t.1").preempt_requested_at = utc_now()
        notify(session, "t.1")


async def test_open_polls_ask_the_database_nothing_until_they_are_answered(database: Database) -> None:
    watch = PreemptionWatch(database)
    running = asyncio.create_task(watch.run())
    others = [asyncio.create_task(watch.wait(f"t.{n}", 120)) for n in range(2, POLLS + 1)]
    poll = asyncio.create_task(watch.wait("t.1", 120))
    asked: list[str] = []
    looks: list[str] = []
    event.listen(database._reader, "before_cursor_execute", lambda *call: looks.append(call[2]))
    try:
        seen = -1
        while len(looks) != seen:  # the first looks, and what finds out whether notices arrive
            seen = len(looks)
            await asyncio.sleep(2.5)
        assert seen >= POLLS
        event.listen(database._reader, "before_cursor_execute", lambda *call: asked.append(call[2]))
        await asyncio.sleep(1)
        assert asked == []
        assert not poll.done()
        began = time.monotonic()
        await asyncio.to_thread(change, database)
        assert await poll
        assert time.monotonic() - began < 5
        assert len(asked) < 10, "what a notice says is not asked for by each poll"
        assert not any(other.done() for other in others)
    finally:
        for task in (running, *others):
            task.cancel()
        await asyncio.gather(running, *others, return_exceptions=True)


async def test_sqlite_notices_who_is_to_leave_and_who_has_ended_and_nothing_else(tmp_path: Path) -> None:
    def end(allocation_id: str) -> None:
        with database.write() as session:
            session.get_one(Allocation, allocation_id).ended_at = utc_now()

    def write_something_else(number: int) -> None:
        with database.write() as session:
            session.get_one(Task, "t").message = f"note {number}"

    with with_allocations(f"sqlite:///{tmp_path}/records.db", 4) as database:
        end("t.4")
        async with heard(database) as queue:
            for number in range(50):
                await asyncio.to_thread(write_something_else, number)
            await asyncio.to_thread(change, database)
            assert await asyncio.wait_for(queue.get(), 20) == "t.1"
            await asyncio.to_thread(end, "t.2")
            assert await asyncio.wait_for(queue.get(), 20) == "t.2"
            await asyncio.to_thread(write_something_else, 51)
            await asyncio.to_thread(end, "t.1")  # it was a notice already, as one that is to leave
            await asyncio.to_thread(end, "t.3")
            assert await asyncio.wait_for(queue.get(), 20) == "t.3"
            assert queue.empty()


async def test_notice_of_a_transaction_that_failed_is_not_sent(postgres_database: str) -> None:
    with seeded(postgres_database) as database:
        async with heard(database) as queue:
            with database.write() as session:
                notify(session, "never")
                session.rollback()
            with database.write() as session:
                notify(session, "once")
            assert await asyncio.wait_for(queue.get(), 20) == "once"


async def test_lost_connection_is_made_again_and_everything_is_looked_at(postgres_database: str) -> None:
    with seeded(postgres_database) as database:
        async with heard(database) as queue:
            with database.write() as session:
                assert session.scalar(text(LISTENERS)) == 1
            assert await asyncio.wait_for(queue.get(), 20) is None
            with database.write() as session:
                notify(session, "again")
            assert await asyncio.wait_for(queue.get(), 20) == "again"


async def test_database_is_asked_where_notices_do_not_arrive(postgres_database: str) -> None:
    with seeded(postgres_database), pgbouncer(postgres_database, connections=3) as url:
        database = Database(url)
        async with heard(database) as queue:
            for _ in range(3):
                assert await asyncio.wait_for(queue.get(), 20) is None
        database.close()
