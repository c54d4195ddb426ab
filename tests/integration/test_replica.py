"""Lists read from a standby: what was written is there at once, and a standby that lags or is gone is not used."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError
from sqlalchemy import create_engine, make_url, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from api.settings import ApiSettings, from_environment
from database.migrate import migrate, seed
from database.models import Project
from database.session import Database
from tests.kit.platform import platform
from tests.kit.scripts import TRAIN, config
from tests.kit.servers import Replicated, replicated_postgres


@pytest.fixture(scope="module")
def servers() -> Iterator[Replicated]:
    with replicated_postgres() as found:
        yield found


@pytest.fixture
def database(servers: Replicated) -> Iterator[Database]:
    found = Database(servers.primary.url, replica_url=servers.standby.url)
    migrate(found)
    with found.write() as session:
        seed(session, cluster_name="test", admin_password_hash=None, pools=["default"])
    wait_for_standby(servers)
    yield found
    found.close()


def wait_for_standby(servers: Replicated) -> None:
    """Until it has replayed all that is committed: a new schema takes it longer than a list waits."""
    lsn = ask(servers.primary.url, "SELECT CAST(pg_current_wal_flush_lsn() AS text)")
    deadline = time.monotonic() + 30
    while not ask(servers.standby.url, f"SELECT pg_last_wal_replay_lsn() >= CAST('{lsn}' AS pg_lsn)"):
        assert time.monotonic() < deadline, "the standby does not follow"
        time.sleep(0.02)


def is_standby(session: Session) -> bool:
    return bool(session.scalar(text("SELECT pg_is_in_recovery()")))


def ask(url: str, question: str) -> object:
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        result = connection.execute(text(question))
        answer = result.scalar() if result.returns_rows else None
    engine.dispose()
    return answer


def write_and_list(database: Database, name: str) -> tuple[bool, bool]:
    """Whether the list has what was just written, and whether it is the standby's."""
    with database.write() as session:
        session.add(Project(workspace_id=1, name=name, owner_id=1))
    with database.read_list() as session:
        return session.scalar(select(Project.id).where(Project.name == name)) is not None, is_standby(session)


def test_own_writes_are_in_each_list_and_the_standby_answers(database: Database) -> None:
    from_standby = 0
    deadline = time.monotonic() + 60
    while from_standby < 90:  # a standby that was late once, on a busy machine, is left alone for 5 s
        assert time.monotonic() < deadline, "the standby is not used"
        has, is_replica = write_and_list(database, f"project {uuid.uuid4()}")
        assert has
        from_standby += is_replica


def test_primary_answers_while_the_standby_lags(database: Database, servers: Replicated) -> None:
    assert write_and_list(database, "before") == (True, True)
    ask(servers.standby.url, "SELECT pg_wal_replay_pause()")
    try:
        began = time.monotonic()
        assert write_and_list(database, "meanwhile") == (True, False)
        assert time.monotonic() - began < 2
        began = time.monotonic()
        assert write_and_list(database, "and again") == (True, False)
        assert time.monotonic() - began < 0.1, "it is left alone for a while"
    finally:
        ask(servers.standby.url, "SELECT pg_wal_replay_resume()")
    wait_for_standby(servers)
    other = Database(servers.primary.url, replica_url=servers.standby.url)
    assert write_and_list(other, "after") == (True, True)
    other.close()


def test_primary_answers_without_a_standby_or_with_one_that_is_none(servers: Replicated, database: Database) -> None:
    nobody = Database(servers.primary.url, replica_url="postgresql+psycopg://postgres@127.0.0.1:9/postgres")
    assert write_and_list(nobody, "nobody there") == (True, False)
    nobody.close()
    itself = Database(servers.primary.url, replica_url=servers.primary.url)
    assert write_and_list(itself, "no standby") == (True, False)
    itself.close()


def test_a_replica_needs_a_primary() -> None:
    environment = {"UNDETERRED_DATABASE_URL": "sqlite:///x", "UNDETERRED_AGENT_TOKEN": "x",
                   "UNDETERRED_DATABASE_READ_URL": "postgresql+psycopg://u@h/x"}  # fmt: skip
    with pytest.raises(ValidationError, match="database_read_url: expected none"):
        from_environment(ApiSettings, environment)


async def test_pages_of_lists_come_from_the_standby(servers: Replicated, temporal_address: str, tmp_path: Path) -> None:
    ask(servers.primary.url, "CREATE DATABASE pages")
    primary, standby = (
        make_url(server.url).set(database="pages").render_as_string(hide_password=False)
        for server in (servers.primary, servers.standby)
    )
    connection = {"database_read_url": standby}
    async with platform(
        temporal_address=temporal_address,
        database_url=primary,
        folder=tmp_path,
        pool="main",
        connection=connection,
    ) as running:
        reads = "SELECT seq_scan + idx_scan FROM pg_stat_user_tables WHERE relname = 'experiments'"
        before = ask(standby, reads)
        for _ in range(5):
            experiment_id = await running.create(config(), {"train.py": TRAIN}, activate=False)
            listed = (await running.get("/api/v1/experiments"))["experiments"]
            assert experiment_id in [experiment["id"] for experiment in listed]
        deadline = time.monotonic() + 15
        while ask(standby, reads) == before:  # the server writes its statistics down now and then
            assert time.monotonic() < deadline, "the standby was not asked"
            await asyncio.sleep(0.2)


def test_server_that_is_demoted_while_it_lives_is_left(servers: Replicated) -> None:
    """Its connections work, and their writes do not: they would stay in the pool. The last test: it uses the servers up."""
    database = Database(servers.url)
    migrate(database)
    lazy = database.connect_lazy_writer()
    held = lazy.connection.dbapi_connection
    with database.write() as session:
        seed(session, cluster_name="test", admin_password_hash=None, pools=["default"])
    ask(servers.standby.url, "SELECT pg_promote()")
    ask(servers.primary.url, "ALTER SYSTEM SET default_transaction_read_only = on")
    ask(servers.primary.url, "SELECT pg_reload_conf()")
    deadline = time.monotonic() + 10
    while ask(servers.primary.url, "SHOW default_transaction_read_only") != "on":
        assert time.monotonic() < deadline

    def write() -> None:
        with database.write() as session:
            session.add(Project(workspace_id=1, name="after it", owner_id=1))

    with pytest.raises(DBAPIError, match="read-only"):
        write()
    write()
    with pytest.raises(DBAPIError, match="read-only"), lazy.begin():
        lazy.exec_driver_sql("UPDATE projects SET name = 'by the lazy one'")
    assert lazy.invalidated, "its owner connects anew"
    assert ask(servers.standby.url, "SELECT count(*) FROM projects WHERE name = 'after it'") == 1
    lazy.close()
    assert held is not None
    held.close()
    database.close()
