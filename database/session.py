"""Engines and sessions. There is one `Database` a process; it separates reads from writes because SQLite needs that."""

from __future__ import annotations

import os
import select
import sqlite3
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import URL, Connection, Engine, Executable, create_engine, event, make_url
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.orm import ORMExecuteState, Session
from sqlalchemy.pool import ConnectionPoolEntry

from database.audit import AuditedSession, asking, record
from database.replica import Replica

#: After how many seconds a server that fell silent counts as gone: TCP alone would wait for a quarter of an hour while
#: another server has taken over. What the URL says comes first.
_PATIENCE: dict[str, int] = {
    "connect_timeout": 5, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}  # fmt: skip


_JUST_NOW_S = 1.0
#: Of the `info` of a lazy writer's connection to PostgreSQL: how its transactions begin, and whether the one that
#: begins now is begun by its first statement, in one message with it.
BEGIN, BEGINS_ITSELF = "begin", "begins_itself"
#: SQLSTATEs by which connections are of no more use: of a write where only reads are allowed, since the server was
#: demoted; of a prepared statement whose columns a migration changed; and of one that the server forgot.
_USELESS = {"25006", "0A000", "26000"}
#: As often has a connection to have a statement before it is prepared; it keeps the last hundred of them.
_OFTEN = 5


class Reading(Session):
    """A session that writes nothing: what was changed in it is forgotten."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, expire_on_commit=False, autoflush=False)

    def flush(self, objects: Sequence[Any] | None = None) -> None:
        """Refuse to write. Raises: RuntimeError, if there is something to write."""
        if self.new or self.dirty or self.deleted:
            raise RuntimeError("a session for reading writes nothing")


@event.listens_for(Reading, "do_orm_execute")
def _refuse_to_write(state: ORMExecuteState) -> None:
    if state.is_insert or state.is_update or state.is_delete:
        raise RuntimeError(f"a session for reading writes nothing: {state.statement}")


class Database:
    """Access to the records.

    Args:
        url: `sqlite:///path/to/file` or `postgresql+psycopg://user@host/name`; of several servers that replicate,
            `postgresql+psycopg://user@/name?host=a:5432&host=b:5432&target_session_attrs=read-write`.
        pool_size: connections kept open; each concurrent session holds one.
        replica_url: of a standby that lists may be read from.

    Beyond the pool there may be ten more connections; who waits for one longer than 10 s gets a TimeoutError.

    On PostgreSQL no setting outlives its transaction on a connection: behind a pooler such as PgBouncer the next
    transaction is on another one. Statements are prepared only where there is no pooler (ADR 79).
    """

    def __init__(self, url: str, *, pool_size: int = 10, replica_url: str | None = None) -> None:
        self.url = url
        self._replica = None if replica_url is None else Replica(_glancing(_postgres_engine(replica_url, pool_size)))
        self.is_sqlite = make_url(url).get_backend_name() == "sqlite"
        if self.is_sqlite:
            self._reader = _sqlite_engine(url, "BEGIN", pool_size)
            # a transaction that reads first and writes later would fail as "locked": take the write lock at once
            self._writer = _sqlite_engine(url, "BEGIN IMMEDIATE", 2)
            self._glancer = self._reader.execution_options(**{_GLANCES: True})
        else:
            self._reader = self._writer = _postgres_engine(url, pool_size)
            self._glancer = _glancing(self._reader)

    @property
    def engine(self) -> Engine:
        """The engine that writes, for migrations."""
        return self._writer

    @contextmanager
    def read(self) -> Generator[Session]:
        """A session for reading, perhaps with locks: it refuses to write. Objects stay readable after it."""
        with Reading(self._reader) as session:
            yield session
            if not self.is_sqlite:  # after a rollback psycopg would prepare all statements anew
                session.expunge_all()
                session.commit()

    def glance(self) -> Reading:
        """As `read`, for a few short statements without `yield_per`, each of which may see another moment.

        They are no transaction: to begin one and to end it would be two messages more to PostgreSQL.
        """
        return Reading(self._glancer)

    def ask(self, statement: Executable, parameters: Mapping[str, Any]) -> Any:
        """The first row of a short statement of columns; None: there is none.

        For what is asked hundreds of times a second: half of what a session takes.
        """
        with self._glancer.connect() as connection:
            return connection.execute(statement, parameters).first()

    def read_list(self) -> Reading:
        """As `glance`, perhaps on the replica: never from before what was committed when this is called."""
        return Reading(self._glancer if self._replica is None else self._replica.engine_for(self._glancer))

    @contextmanager
    def write(self) -> Generator[Session]:
        """A session in a transaction: committed at the end, rolled back when an exception passes.

        What it writes for a user's request is recorded in the audit log, within the same transaction.
        """
        request = asking.get()
        if request is None or not request.actor or request.is_recorded:
            with Session(self._writer, expire_on_commit=False) as session, session.begin():
                yield session
            return
        with AuditedSession(self._writer, expire_on_commit=False) as session:
            with session.begin():
                yield session
                is_recorded = record(session, request)
            request.is_recorded = request.is_recorded or is_recorded

    def connect_lazy_writer(self) -> Connection:
        """A connection of its own for a thread that writes all the time; the caller closes it.

        Its commits don't wait for the disk. That is what they are on SQLite anyway (see `set_pragmas`); on PostgreSQL a
        crash of the server itself may lose the last 0.6 s of them, where `SET LOCAL synchronous_commit = on` does not
        say otherwise. A crash of this process loses nothing. A server that has each commit wait for a standby is to
        lose nothing when that takes over: there they wait like all others.
        """
        connection = self._writer.connect()
        connection.detach()  # it is kept for long, and is none of the pool's size
        if not self.is_sqlite:
            with connection.begin():
                waits_for_standbys = connection.exec_driver_sql("SHOW synchronous_standby_names").scalar_one()
            driver: Any = connection.connection.dbapi_connection
            driver.autocommit = True  # psycopg would say BEGIN in a message of its own, before another one
            connection.info[BEGIN] = "BEGIN" if waits_for_standbys else "BEGIN; SET LOCAL synchronous_commit = off"
            event.listen(connection, "begin", _begin)
        return connection

    def connect_arguments(self) -> dict[str, Any]:
        """What psycopg is given to connect as the engine does. For PostgreSQL only."""
        _, arguments = self._writer.dialect.create_connect_args(make_url(self.url))
        return {**arguments, **_postgres_options(make_url(self.url))}

    def close(self) -> None:
        """Close all connections, those in use when they are given back."""
        self._reader.dispose()
        self._writer.dispose()
        if self._replica is not None:
            self._replica.engine.dispose()


def _postgres_engine(url: str, pool_size: int) -> Engine:
    # Times come in a connection's zone. In another than UTC the first and the last hours of what UTC has are of no year
    # that Python knows: a row with one could not be read. The library has no other setting that poolers pass on.
    os.environ["PGTZ"] = "UTC"
    engine = create_engine(
        url, pool_size=pool_size, max_overflow=10, pool_timeout=10,
        json_deserializer=orjson.loads, connect_args=_postgres_options(make_url(url)),
    )  # fmt: skip
    event.listen(engine, "handle_error", _leave_if_useless)
    event.listen(engine, "connect", _prepare_if_direct)
    _check_idle_connections(engine)
    _close_what_comes_back(engine)
    return engine


#: An option of SQLite's engines: statements are no transaction together.
_GLANCES = "glances"


def _glancing(engine: Engine) -> Engine:
    """The same engine for statements that are no transaction together."""
    return engine.execution_options(isolation_level="AUTOCOMMIT")


def _check_idle_connections(engine: Engine) -> None:
    """Have a connection that was idle asked whether the server is still there, before it is used.

    Asking takes two messages more. So one that was used just now is looked at only: a server that has ended, or said
    why it ends, has left something to be read.
    """

    def note(connection: Any, record: ConnectionPoolEntry) -> None:
        record.info["idle_since"] = time.monotonic()

    def check(connection: Any, record: ConnectionPoolEntry, proxy: Any) -> None:
        since: float | None = record.info.get("idle_since")
        if since is None:
            return  # it is new
        try:
            poll = select.poll()
            poll.register(connection, select.POLLIN)
            if time.monotonic() - since >= _JUST_NOW_S or poll.poll(0):
                engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise InvalidatePoolError from error

    event.listen(engine, "checkin", note)
    event.listen(engine, "checkout", check)


def _close_what_comes_back(engine: Engine) -> None:
    """Have a connection closed that is given back after the engine's end: a thread may still be at a statement then."""
    ended = threading.Event()

    def close(connection: Any, record: ConnectionPoolEntry) -> None:
        if ended.is_set() and connection is not None:  # None: it was found useless
            connection.close()

    def end(_: Engine) -> None:
        ended.set()

    event.listen(engine, "checkin", close)
    event.listen(engine, "engine_disposed", end)


def _leave_if_useless(context: ExceptionContext) -> None:
    """All connections are given up: the next statement has a new one."""
    if getattr(context.original_exception, "sqlstate", None) in _USELESS:
        context.is_disconnect = True


def _prepare_if_direct(connection: Any, record: ConnectionPoolEntry) -> None:
    """Have statements prepared on a connection that is the server's own: to plan one again may take as long as it does.

    And none is compiled: PostgreSQL does so where it expects many rows, a second for what then takes milliseconds.
    Nor is one shared out among processes that takes less than a tenth of a second: they are started for each anew.

    A pooler answers for the server, and gives the process that it names as the connection's a number of its own.
    """
    connection.autocommit = True  # or the question would be a transaction of three messages
    [[process]] = connection.execute("SELECT pg_backend_pid()").fetchall()
    if process == connection.info.backend_pid:
        connection.execute("SET jit = off; SET parallel_setup_cost = 20000")
        connection.prepare_threshold = _OFTEN
    connection.autocommit = False


def _postgres_options(url: URL) -> dict[str, Any]:
    patience = {name: seconds for name, seconds in _PATIENCE.items() if name not in url.query}
    return {"prepare_threshold": None, **patience}


def _begin(connection: Connection) -> None:
    if not connection.info.get(BEGINS_ITSELF):
        connection.exec_driver_sql(connection.info[BEGIN])


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Two that switch a new file at once: SQLite tells one of them that it is locked, without the usual patience."""
    deadline = time.monotonic() + 30
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _sqlite_engine(url: str, begin: str, pool_size: int) -> Engine:
    path = make_url(url).database
    if path:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(
        url,
        pool_size=pool_size,
        max_overflow=10,
        connect_args={"timeout": 30, "check_same_thread": False},
        json_deserializer=orjson.loads,
    )

    def set_pragmas(connection: sqlite3.Connection, _: Any) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves, below
        # NORMAL: no crash of a process loses a commit; a power cut may lose the last ones. Decisions are not here but
        # in Temporal, whose file is written with FULL.
        for pragma in ("busy_timeout=30000", "synchronous=NORMAL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")
        _switch_to_wal(connection)

    def begin_transaction(connection: Connection) -> None:
        if _GLANCES not in connection.get_execution_options():
            connection.exec_driver_sql(begin)

    event.listen(engine, "connect", set_pragmas)
    event.listen(engine, "begin", begin_transaction)
    return engine
