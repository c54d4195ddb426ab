"""The outbox's dispatcher is told of new messages by the threads that commit them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from unittest.mock import AsyncMock

import pytest
import structlog
from google.protobuf.duration_pb2 import Duration
from sqlalchemy import func, select
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest

from api.errors import Unavailable
from api.services.outbox_retention import OutboxRetention
from api.settings import TemporalSettings
from api.temporal import outbox
from api.temporal.commands import Commands
from api.temporal.connection import Connection
from api.temporal.outbox import Dispatcher
from database.models import Experiment, Outbox
from database.session import Database
from database.types import utc_now
from tests.integration.api.served import TemporalAway
from tests.kit.patience import PATIENCE
from tests.kit.records import seeded
from workers.connect import ensure_search_attributes
from workflows.lifecycle.task import TaskKind
from workflows.messages import TaskRun, Timing


class _Heard(TemporalAway):
    """Notes when each signal arrived."""

    def __init__(self) -> None:
        super().__init__(Connection(TemporalSettings()), Timing(), AsyncMock())
        self.at: dict[str, float] = {}
        self.is_away = False
        self.unheard = ""

    async def signal(self, workflow_id: str, name: str, payload: object) -> None:
        if self.is_away or workflow_id == self.unheard:
            raise Unavailable("Temporal does not answer")
        self.at[workflow_id] = time.monotonic()


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with seeded(database_url) as database:
        yield database


@contextlib.asynccontextmanager
async def _running(dispatcher: Dispatcher) -> AsyncIterator[None]:
    task = asyncio.create_task(dispatcher.run())
    await asyncio.sleep(0.1)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_message_from_a_thread_leaves_at_once(database: Database) -> None:
    """Without a poke, or with one that does not wake the loop, the next look comes after a second."""
    heard = _Heard()
    dispatcher = Dispatcher(database, heard)
    posted: list[float] = []

    def post() -> None:
        time.sleep(0.1)  # until nothing else wakes the loop
        with database.write() as session:
            outbox.post(session, "experiment-1", "poked", {})
        posted.append(time.monotonic())
        dispatcher.poke()

    async def main() -> None:
        async with _running(dispatcher):
            thread = threading.Thread(target=post)
            thread.start()
            await asyncio.sleep(0.8)
            thread.join()

    asyncio.run(main())
    assert heard.at["experiment-1"] - posted[0] < 0.4
    with database.read() as session:
        assert session.scalars(select(Outbox.id).where(Outbox.sent_at.is_(None))).all() == []


def test_pokes_of_threads_are_thread_safe(database: Database) -> None:
    """Python tells in debug mode; without, an event set by a thread fails when a waiter leaves at that moment."""
    dispatcher = Dispatcher(database, _Heard())

    async def main() -> None:
        async with _running(dispatcher):
            await asyncio.to_thread(dispatcher.poke)

    asyncio.run(main(), debug=True)


def test_nothing_is_read_again_and_again_while_temporal_is_away(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of a hundred trials reports, and pokes: of 500 messages that wait each round reads all."""
    heard = _Heard()
    heard.is_away = True
    dispatcher = Dispatcher(database, heard)
    rounds: list[float] = []
    load = dispatcher._load
    monkeypatch.setattr(dispatcher, "_load", lambda: (rounds.append(time.monotonic()), load())[1])

    async def main() -> float:
        with database.write() as session:
            outbox.post(session, "experiment-1", "poked", {})
        async with _running(dispatcher):
            for _ in range(100):
                dispatcher.poke()
                await asyncio.sleep(0.01)
            heard.is_away = False
            back = time.monotonic()
            async with asyncio.timeout(10 * PATIENCE):
                while "experiment-1" not in heard.at:  # noqa: ASYNC110 - another task does it
                    await asyncio.sleep(0.01)
            return heard.at["experiment-1"] - back

    assert asyncio.run(main()) < 2 * PATIENCE
    assert len(rounds) < 10


def test_message_that_fails_alone_keeps_no_other_waiting(database: Database) -> None:
    heard = _Heard()
    heard.unheard = "experiment-1"
    dispatcher = Dispatcher(database, heard)

    async def main() -> None:
        async with _running(dispatcher):
            for number in range(1, 9):
                with database.write() as session:
                    outbox.post(session, f"experiment-{number}", "poked", {})
                dispatcher.poke()
                await asyncio.sleep(0.1)
            async with asyncio.timeout(10 * PATIENCE):
                while len(heard.at) < 7:  # noqa: ASYNC110 - another task does it
                    await asyncio.sleep(0.01)

    asyncio.run(main())
    assert "experiment-1" not in heard.at


def test_pokes_count_again_when_temporal_is_back_though_a_message_still_fails(database: Database) -> None:
    heard = _Heard()
    heard.is_away, heard.unheard = True, "experiment-1"
    dispatcher = Dispatcher(database, heard)

    def post(number: int) -> None:
        with database.write() as session:
            outbox.post(session, f"experiment-{number}", "poked", {})
        dispatcher.poke()

    async def main() -> None:
        async with _running(dispatcher):
            post(1)
            await asyncio.sleep(0.5)
            heard.is_away = False
            for number in range(2, 12):
                post(number)
                while f"experiment-{number}" not in heard.at:  # noqa: ASYNC110 - another task does it
                    await asyncio.sleep(0.01)

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < 4 * PATIENCE
    assert "experiment-1" not in heard.at


def test_what_an_earlier_process_left_is_sent_at_once(database: Database) -> None:
    with database.write() as session:
        outbox.post(session, "experiment-1", "poked", {})
    heard = _Heard()
    dispatcher = Dispatcher(database, heard)
    dispatcher.poke()  # before it runs: no loop to tell

    async def main() -> float:
        began = time.monotonic()
        async with _running(dispatcher):
            await asyncio.sleep(0.4)
        return began

    began = asyncio.run(main())
    assert heard.at["experiment-1"] - began < 0.5
    dispatcher.poke()  # nor after


async def test_search_attributes_that_temporal_lacks_are_said_with_the_command(
    temporal_address: str, database: Database
) -> None:
    """A new namespace has none of them. Once they are registered, what waits is sent."""
    first = await Connection(TemporalSettings(temporal_address=temporal_address)).client()
    keep = Duration(seconds=86400)
    await first.workflow_service.register_namespace(
        RegisterNamespaceRequest(namespace="new", workflow_execution_retention_period=keep)
    )
    connection = Connection(TemporalSettings(temporal_address=temporal_address, temporal_namespace="new"))
    run = TaskRun(task_id="t", kind=TaskKind.COMMAND, name="n", owner="o", workspace="w", job_id="j", pool="p", slots=0)
    with database.write() as session:
        entry = outbox.post(session, "task-t", outbox.START_TASK, run.model_dump(mode="json"))

    def is_sent() -> bool:
        with database.read() as session:
            return session.get_one(Outbox, entry.id).sent_at is not None

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30 * PATIENCE):
            while not condition():  # noqa: ASYNC110 - another loop does it
                await asyncio.sleep(0.1)

    with structlog.testing.capture_logs() as told:
        async with _running(Dispatcher(database, Commands(connection, Timing(), AsyncMock()))):
            errors: list[str] = []

            def is_told() -> bool:
                errors[:] = [each["error"] for each in told if each["event"] == "messages to workflows wait"]
                return any("search attribute" in error for error in errors)

            await until(is_told)
            assert "`python -m workers.search_attributes` registers what is missing" in errors[-1]
            await ensure_search_attributes(await connection.client())
            await until(is_sent)


def test_messages_go_a_week_after_they_were_sent_unless_a_restore_would_need_them(database: Database) -> None:
    with database.write() as session:
        for number, state in ((1, "ACTIVE"), (2, "COMPLETED")):
            session.add(
                Experiment(
                    id=number, job_id=str(number), name="", state=state, config={}, original_config="",
                    searcher_name="single", searcher_metric="", resource_pool="default", owner_id=1, project_id=1,
                )
            )  # fmt: skip
        for days in (6, 8, None):
            for workflow_id in ("experiment-1", "experiment-2", "experiment-3", "pool-default"):
                message = outbox.post(session, workflow_id, f"sent {days} days ago", {})
                message.sent_at = None if days is None else utc_now() - timedelta(days=days)
    assert OutboxRetention(database).remove_sent() == 3, "of one that is over, of one that was deleted, and of a pool"
    with database.read() as session:
        old = session.scalars(select(Outbox.workflow_id).where(Outbox.kind == "sent 8 days ago")).all()
        assert old == ["experiment-1"]
        assert session.scalar(select(func.count(Outbox.id))) == 9
