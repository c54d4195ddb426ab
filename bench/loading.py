"""Rows in the format of PostgreSQL's COPY, written into either engine as fast as it takes them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any, Protocol, Self

import psycopg
from sqlalchemy import Boolean, LargeBinary, make_url

from database.models import Base
from database.types import UtcTime


class Target(Protocol):
    """An empty database that rows are written into; to be used as a context."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None:
        """Close it."""

    def load(self, table: str, columns: str, chunks: Iterator[str]) -> None:
        """Write rows. Their foreign keys are not checked."""

    def run(self, statement: str) -> None:
        """Run what both engines understand."""

    def finish(self) -> None:
        """Commit, and have the engine look at what it has."""


def target_of(url: str) -> Target:
    """The database of an address."""
    return _Sqlite(url) if url.startswith("sqlite") else _Postgres(url)


class _Postgres:
    def __init__(self, url: str) -> None:
        address = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        self._connection = psycopg.connect(address)
        self.run("SET session_replication_role = replica")  # foreign keys hold by construction
        self.run("SET maintenance_work_mem = '1GB'")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def load(self, table: str, columns: str, chunks: Iterator[str]) -> None:
        with self._connection.cursor().copy(f"COPY {table} ({columns}) FROM STDIN") as copy:  # pyright: ignore[reportArgumentType, reportCallIssue]
            for chunk in chunks:
                copy.write(chunk)

    def run(self, statement: str) -> None:
        self._connection.execute(statement)  # pyright: ignore[reportArgumentType, reportCallIssue]

    def finish(self) -> None:
        for table in ("experiments", "trials", "metrics", "task_logs", "users", "projects", "workspaces"):
            self.run(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), (SELECT max(id) FROM {table}))")
        self._connection.commit()
        self._connection.autocommit = True
        self.run("VACUUM (ANALYZE)")


class _Sqlite:
    def __init__(self, url: str) -> None:
        self._connection = sqlite3.connect(make_url(url).database or "", isolation_level=None)
        for setting in ("synchronous = OFF", "journal_mode = WAL", "foreign_keys = OFF", "cache_size = -500000"):
            self.run(f"PRAGMA {setting}")
        self.run("BEGIN")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def load(self, table: str, columns: str, chunks: Iterator[str]) -> None:
        names = [name.strip() for name in columns.split(",")]
        readers = [_reader(table, name) for name in names]
        marks = ", ".join("?" * len(names))
        self._connection.executemany(
            f"INSERT INTO {table} ({columns}) VALUES ({marks})",
            (
                [None if cell == "\\N" else read(cell) for read, cell in zip(readers, line.split("\t"), strict=True)]
                for chunk in chunks
                for line in chunk.splitlines()
            ),
        )

    def run(self, statement: str) -> None:
        self._connection.execute(statement)

    def finish(self) -> None:
        self.run("COMMIT")  # and no ANALYZE: nothing in a cluster runs it on SQLite, which plans by rules then
        self.run("PRAGMA wal_checkpoint(TRUNCATE)")


def _reader(table: str, name: str) -> Callable[[str], Any]:
    """How a cell becomes what SQLite keeps; numbers it makes of texts by itself."""
    kind = Base.metadata.tables[table].columns[name].type
    if isinstance(kind, Boolean):
        return lambda cell: cell == "t"
    if isinstance(kind, UtcTime):
        return lambda cell: cell.removesuffix("+00") + ("" if "." in cell else ".000000")
    if isinstance(kind, LargeBinary):
        return lambda cell: bytes.fromhex(cell.removeprefix("\\\\x"))
    return lambda cell: cell.replace("\\n", "\n").replace("\\t", "\t").replace("\\\\", "\\") if "\\" in cell else cell
