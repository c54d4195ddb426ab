"""A platform whose database is behind PgBouncer in transaction mode: each transaction may have another connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from database.session import Database
from tests.kit.platform import Platform, platform
from tests.kit.scripts import TRAIN, config
from tests.kit.servers import pgbouncer

#: Fewer than clients hold at a time, so that they must take turns.
CONNECTIONS = 4


@pytest.fixture
async def pooled(temporal_address: str, postgres_database: str, tmp_path: Path) -> AsyncGenerator[Platform]:
    """A platform whose processes reach PostgreSQL through PgBouncer alone."""
    with pgbouncer(postgres_database, connections=CONNECTIONS) as url:
        async with platform(
            temporal_address=temporal_address, database_url=url, folder=tmp_path, pool="main"
        ) as running:
            await running.start_agent(slots=3)
            yield running


async def test_main_paths_need_no_connection_of_their_own(pooled: Platform) -> None:
    searcher = {"name": "async_halving", "num_rungs": 2, "max_trials": 4, "max_length": 6, "divisor": 2,
                "max_concurrent_trials": 3}  # fmt: skip
    space = {"quality": {"type": "double", "minval": 0, "maxval": 1}, "sleep": 0.05}
    experiment_id = await pooled.create(config(searcher, hyperparameters=space), {"train.py": TRAIN})
    await pooled.until_reported(experiment_id)
    await pooled.command(experiment_id, "pause")
    await pooled.until_state(experiment_id, "PAUSED")
    await pooled.command(experiment_id, "activate")
    # more reads at a time than there are connections, each often enough to be prepared by a driver that does so
    paths = (
        "/api/v1/experiments",
        "/api/v1/agents",
        "/api/v1/workspaces",
        f"/api/v1/experiments/{experiment_id}/trials",
    )
    for _ in range(8):
        await asyncio.gather(*(pooled.get(path) for path in paths * 3))
    assert (await pooled.finish(experiment_id))["state"] == "STATE_COMPLETED"
    trials = await pooled.trials(experiment_id)
    assert len(trials) == 4
    for trial in trials:
        steps = [report["totalBatches"] for report in await pooled.metrics(trial["id"])]
        assert steps == list(range(1, trial["totalBatchesProcessed"] + 1))
        assert any(line.startswith("step ") for line in await pooled.logs(trial["id"]))
    await asyncio.to_thread(_check_left_nothing, pooled.database.url)


def _check_left_nothing(url: str) -> None:
    """No transaction left a setting or a prepared statement on a connection that others have next."""
    engine = create_engine(url, poolclass=NullPool, connect_args={"prepare_threshold": None})
    held = [engine.connect() for _ in range(CONNECTIONS)]  # all of PgBouncer's, as each is in a transaction
    try:
        assert {connection.scalar(text("SHOW synchronous_commit")) for connection in held} == {"on"}
        assert {connection.scalar(text("SELECT count(*) FROM pg_prepared_statements")) for connection in held} == {0}
        served = {connection.scalar(text("SELECT pg_backend_pid()")) for connection in held}
        assert len(served) == CONNECTIONS
    finally:
        for connection in held:
            connection.close()


def test_lazy_writer_commits_lazily_on_whatever_connection(postgres_database: str) -> None:
    with pgbouncer(postgres_database, connections=1) as url:
        database = Database(url)
        with database.connect_lazy_writer() as lazy:
            for _ in range(2):
                with lazy.begin():
                    assert lazy.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "off"
                with database.read() as session:
                    assert session.scalar(text("SHOW synchronous_commit")) == "on", "others don't notice"
        database.close()


def _prepared(database: Database) -> int:
    """How many statements a connection has prepared after it had one ten times; all by one connection."""
    with database.read() as session:
        for _ in range(10):
            session.scalar(text("SELECT count(*) FROM pg_class"))
        return session.scalar(text("SELECT count(*) FROM pg_prepared_statements")) or 0


def _compiles(database: Database) -> str:
    with database.read() as session:
        return session.scalar(text("SHOW jit")) or ""


def test_statements_are_prepared_and_not_compiled_where_there_is_no_pooler(postgres_database: str) -> None:
    direct = Database(postgres_database)
    assert (_prepared(direct), _compiles(direct)) == (1, "off")
    direct.close()
    with pgbouncer(postgres_database, connections=1) as url:
        pooled = Database(url)
        assert (_prepared(pooled), _compiles(pooled)) == (0, "on"), "no setting of ours for others' transactions"
        pooled.close()


def test_statement_whose_columns_a_migration_changed_fails_no_more_than_once(postgres_database: str) -> None:
    database = Database(postgres_database, pool_size=3)
    with database.write() as session:
        session.execute(text("CREATE TABLE changing (value integer)"))
    with ExitStack() as opened:  # a connection each
        for session in [opened.enter_context(database.read()) for _ in range(3)]:
            for _ in range(10):
                session.execute(text("SELECT * FROM changing"))
    with database.write() as session:
        session.execute(text("ALTER TABLE changing ALTER COLUMN value TYPE text"))
    with pytest.raises(DBAPIError, match="cached plan"), database.read() as session:
        session.execute(text("SELECT * FROM changing"))
    for _ in range(4):
        with database.read() as session:
            session.execute(text("SELECT * FROM changing"))
    database.close()
