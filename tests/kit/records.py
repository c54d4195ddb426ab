"""Databases of a test's own, and looks into those of others."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

from sqlalchemy import Connection, create_engine, insert, select, text

from database.log_blocks import READ, Block
from database.migrate import migrate, seed
from database.models import Experiment, TaskLog
from database.session import Database


@contextlib.contextmanager
def seeded(url: str) -> Generator[Database]:
    """A new database with this release's schema, and what every cluster begins with."""
    database = Database(url)
    migrate(database)
    with database.write() as session:
        seed(session, cluster_name="test", admin_password_hash=None, pools=["default"])
    yield database
    database.close()


def experiment_of(owner_id: int, **values: Any) -> Experiment:
    """A row of an experiment; `values` are what matters of it."""
    usual = {"job_id": "j", "name": "e", "state": "COMPLETED", "config": {}, "original_config": "", "project_id": 1,
             "searcher_name": "random", "searcher_metric": "loss", "resource_pool": "default"}  # fmt: skip
    return Experiment(**usual | values, owner_id=owner_id)


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    """What a database has, by a connection of its own."""
    engine = create_engine(url)
    with engine.connect() as connection:
        if "task_logs" in query:
            _show_all_lines(connection)
        found = [tuple(row) for row in connection.execute(text(query))]
    engine.dispose()
    return found


def _show_all_lines(connection: Connection) -> None:
    """For this connection `task_logs` has the lines in blocks as well: a temporary table hides the other one."""
    schema = "main" if connection.dialect.name == "sqlite" else "public"
    connection.execute(text(f"CREATE TEMP TABLE task_logs AS SELECT * FROM {schema}.task_logs"))
    for row in connection.execute(select(*READ)).all():
        connection.execute(insert(TaskLog), [line._asdict() for line in Block(row).lines(range(row.line_count))])
