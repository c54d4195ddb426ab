"""Copies a whole database into a folder, as it was at one moment, and back. Processes that use it are not held up."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from psycopg.conninfo import make_conninfo
from sqlalchemy import Connection, create_engine, inspect, make_url, select, text

from database.checkpoint_files import Kept
from database.migrate import newest_revision
from database.models import Checkpoint, Experiment
from database.session import Database

#: The copy's file in a backup's folder, by engine.
FILES = {"sqlite": "database.sqlite", "postgresql": "database.dump"}


class BackupError(Exception):
    """A database could not be copied. The message says why, for an operator."""


@contextlib.contextmanager
def copied(database: Database, folder: Path) -> Generator[Connection]:
    """Copy the database into `folder`. The connection that is yielded sees it as it was copied. Raises: BackupError."""
    if database.is_sqlite:
        path = folder / FILES["sqlite"]
        _copy_sqlite(_path(database.url), path)
        engine = create_engine(f"sqlite:///{path}")
        with contextlib.closing(engine.connect()) as connection:
            yield connection
        engine.dispose()
        return
    with database.engine.connect() as connection:
        connection = connection.execution_options(isolation_level="REPEATABLE READ")
        with connection.begin():
            snapshot = connection.scalar(text("SELECT pg_export_snapshot()"))
            options = ["--format=custom", f"--snapshot={snapshot}", f"--file={folder / FILES['postgresql']}"]
            _run("pg_dump", database.url, *options, "--no-owner", "--no-privileges")
            yield connection


def checkpoints(connection: Connection) -> Iterator[Kept]:
    """The checkpoints that have files, by experiment."""
    storages: dict[int, Mapping[str, Any]] = {}
    columns = (
        Checkpoint.uuid, Checkpoint.experiment_id, Checkpoint.trial_id, Checkpoint.task_id, Checkpoint.allocation_id,
        Checkpoint.state, Checkpoint.resources,
    )  # fmt: skip
    kept = select(*columns).where(Checkpoint.state.in_(("COMPLETED", "PARTIALLY_DELETED")))
    for row in connection.execute(kept.order_by(Checkpoint.experiment_id, Checkpoint.uuid)):
        if row.experiment_id not in storages:
            config = connection.scalar(select(Experiment.config).where(Experiment.id == row.experiment_id))
            storages = {row.experiment_id: (config or {}).get("checkpoint_storage", {})}
        yield Kept(
            row.uuid, row.experiment_id, row.trial_id, row.task_id, bool(row.allocation_id), row.state,
            storages[row.experiment_id], row.resources,
        )  # fmt: skip


def restore(database: Database, folder: Path, engine: str) -> None:
    """Bring the copy in `folder` into an empty database. Raises: BackupError; nothing was changed then."""
    mine = "sqlite" if database.is_sqlite else "postgresql"
    if engine != mine:
        raise BackupError(f"the backup is of {engine}, and database_url names {mine}: expected the same engine")
    if tables := _tables(database):
        raise BackupError(f"the database has {len(tables)} tables, {tables[0]} among them: expected an empty one")
    if database.is_sqlite:
        database.close()
        target = Path(_path(database.url))
        partial = target.with_name(f"{target.name}.restoring")
        partial.unlink(missing_ok=True)
        partial.touch(mode=0o600)
        _copy_sqlite(str(folder / FILES["sqlite"]), partial)
        for suffix in ("-wal", "-shm"):
            target.with_name(target.name + suffix).unlink(missing_ok=True)
        os.replace(partial, target)
        return
    options = ["--single-transaction", "--exit-on-error", "--no-owner", "--no-privileges"]
    _run("pg_restore", database.url, *options, str(folder / FILES["postgresql"]))
    with database.engine.connect() as connection, connection.begin():
        connection.execute(text("ANALYZE"))  # the planner knows nothing of what was copied in


def check_revision(revision: str) -> None:
    """Refuse a schema of a later release. Raises: BackupError."""
    if not revision or revision > newest_revision():
        raise BackupError(
            f"the backup has schema {revision or 'none'}, and this release knows those up to {newest_revision()}: "
            "restore it with the release that made it, or a later one"
        )


def _tables(database: Database) -> list[str]:
    with database.engine.connect() as connection:
        return sorted(inspect(connection).get_table_names())


def _path(url: str) -> str:
    path = make_url(url).database
    if not path:
        raise BackupError("database_url names a database in memory: expected one in a file")
    return path


def _copy_sqlite(source: str, target: Path) -> None:
    """By SQLite's own online backup: as of one moment, while others write."""
    try:
        reading = sqlite3.connect(f"file:{source}?mode=ro", uri=True, timeout=30)
        with contextlib.closing(reading), contextlib.closing(sqlite3.connect(target)) as writing:
            reading.backup(writing)
    except sqlite3.Error as error:
        raise BackupError(f"{source}: {error}: expected a database of this cluster") from None


def _run(program: str, url: str, *options: str) -> None:
    """PostgreSQL's own program. The password goes by the environment, which other users of this host can't read."""
    parts = make_url(url)
    _, options_of_url = parts.get_dialect()().create_connect_args(parts)
    password = options_of_url.pop("password", None)
    environment = dict(os.environ) | ({"PGPASSWORD": str(password)} if password else {})
    line = [_program(program), "--no-password", f"--dbname={make_conninfo(**options_of_url)}", *options]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BackupError(f"{program} failed: {done.stderr.strip()[-600:] or f'exit code {done.returncode}'}")


def _program(name: str) -> str:
    """The newest that is installed: an older one refuses a newer server. Raises: BackupError."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -float(path.parent.name))
    found = next((str(folder / name) for folder in folders if (folder / name).exists()), shutil.which(name))
    if found is None:
        raise BackupError(f"{name} is not installed: expected PostgreSQL's client programs on this host")
    return found
