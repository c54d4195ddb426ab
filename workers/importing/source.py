"""Reads another cluster's database: only reads, each time from one snapshot, and never what a user's SQL would be."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString

import psycopg
from psycopg.rows import dict_row, tuple_row
from sqlalchemy import make_url

from api.services.imports import SSL_MODES

#: The newest migration of 0.38.1, and the first of the releases whose tables are the same.
NEWEST, OLDEST = 20241024164947, 20241016000000
Row = dict[str, Any]


class SourceRefused(Exception):
    """The database is none that can be imported; the sentence says why, and what to do."""


class Source:
    """A connection to the other database.

    Attributes:
        cluster_id: Of the cluster that it is of.
        version: Of its schema.
        warnings: What is to be known of it.
    """

    def __init__(self, connection: psycopg.Connection[dict[str, Any]]) -> None:
        self._connection = connection
        self._number = 0
        self.warnings: list[str] = []
        self.version = self._checked_version()
        self.cluster_id = str(self.one("SELECT cluster_id FROM cluster_id LIMIT 1")["cluster_id"])

    def one(self, query: LiteralString, parameters: Sequence[Any] = ()) -> Row:
        """The first row of a query that has one."""
        found = self._connection.execute(query, parameters).fetchone()
        assert found is not None
        return found

    def all(self, query: LiteralString, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> list[dict[str, Any]]:
        """The rows of a query whose answer is of bounded size."""
        return self._connection.execute(query, parameters).fetchall()

    def stream(self, query: LiteralString, parameters: Sequence[Any] = (), *, at_once: int = 2000) -> Generator[Any]:
        """The rows of a query as tuples, of which few are in memory. Read it to its end, or close it."""
        self._number += 1
        with self._connection.cursor(f"import_{self._number}", row_factory=tuple_row) as cursor:
            cursor.itersize = at_once
            yield from cursor.execute(query, parameters)

    def _checked_version(self) -> str:
        tables = self.one("SELECT to_regclass('public.gopg_migrations') AS ours, to_regclass('public.runs') AS runs,"
                          " to_regclass('public.schema_migrations') AS older")  # fmt: skip
        if tables["ours"] is None:
            what = "it is of a release of 2021 or before" if tables["older"] else "it has no table gopg_migrations"
            raise SourceRefused(f"this is no database of Determined 0.38: {what}. {_MIGRATE}")
        version = int(self.one("SELECT version FROM gopg_migrations ORDER BY id DESC LIMIT 1")["version"])
        if version < OLDEST or tables["runs"] is None:
            raise SourceRefused(f"its schema is of {version}, before 0.38: expected {NEWEST}. {_MIGRATE}")
        if version > NEWEST:
            self.warnings.append(f"its schema is of {version}, after 0.38.1: what only later releases have stays there")
        return str(version)


_MIGRATE = "Start the master of 0.38.1 once on a copy of the database: it brings the copy up to date. Import the copy"


@contextmanager
def opened(url: str) -> Generator[Source]:
    """Connect, and see one snapshot until the end.

    Args:
        url: As `api.services.imports.checked_source` gave it.

    Raises: SourceRefused, psycopg.Error.
    """
    parts = make_url(url)
    connection = psycopg.Connection[dict[str, Any]].connect(
        host=parts.host,
        port=parts.port or 5432,
        user=parts.username,
        password=parts.password,
        dbname=parts.database,
        sslmode=str(parts.query.get("sslmode", SSL_MODES[0])),
        passfile=os.devnull,
        application_name="undeterred-import",
        options="-c default_transaction_read_only=on -c statement_timeout=0 -c work_mem=64MB -c search_path=public",
        row_factory=dict_row,
        prepare_threshold=None,
        connect_timeout=10,
        keepalives_idle=10,
        keepalives_interval=5,
        keepalives_count=3,
    )
    try:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        yield Source(connection)
    finally:
        connection.close()
