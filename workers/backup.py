"""Writes a backup of a cluster into a folder: its database, and the list of its checkpoints, whose files it looks for.

The cluster runs on meanwhile. Temporal is not part of it: `undeterred-restore` starts the workflows from the records.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import hashlib
import os
import shutil
from collections.abc import Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Literal, NoReturn

import orjson
import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from api.settings import ClusterSettings, OutgoingSettings
from database.backup import FILES, BackupError, checkpoints, copied
from database.checkpoint_files import Checked, Kept, checked
from database.errors import reason_of
from database.migrate import revision_of
from database.models import Cluster
from database.session import Database
from database.types import utc_now
from determined.common.outgoing import Outgoing, configure
from workers.connect import GivenUp, parsed
from workers.connect import run as run_process

log = structlog.get_logger()

NOTE = "backup.json"
LIST = "checkpoints.jsonl"
#: What of a storage's section is no secret.
_SHOWN = ("type", "host_path", "storage_path", "container_path", "bucket", "prefix", "container")
_MOST_LOGGED = 20


class BackupSettings(ClusterSettings, OutgoingSettings):
    """What a backup needs to know: where the records are, and the storages of checkpoints."""


class Note(BaseModel):
    """What a backup's folder says of itself, in `backup.json`."""

    model_config = ConfigDict(extra="forbid")

    format: Literal["undeterred-backup"] = "undeterred-backup"
    version: Literal[1] = 1
    release: str = Field(max_length=80)
    made_at: datetime
    cluster_id: str
    engine: Literal["sqlite", "postgresql"]
    schema_revision: str
    checkpoints: int
    sha256: dict[str, str]  # by file


def read(folder: Path) -> Note:
    """What a folder holds, after its files were held against their hashes. Raises: GivenUp."""
    try:
        note = Note.model_validate_json((folder / NOTE).read_bytes())
    except (OSError, ValidationError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "it is not one of ours"
        raise GivenUp(f"{folder / NOTE}: {reason}: expected the folder of a backup") from None
    for name in (FILES[note.engine], LIST):
        path = folder / name
        if not path.is_file() or _hash(path) != note.sha256.get(name):
            raise GivenUp(f"{path}: it is missing or damaged: expected the file that `undeterred-backup` wrote")
    return note


def say(found: Checked, problems: int) -> bool:
    """Log what is wrong with a checkpoint, the first times; whether its files are missing."""
    if found.missing and problems < _MOST_LOGGED:
        log.warning(
            "files of a checkpoint are missing",
            checkpoint=found.kept.uuid,
            experiment=found.kept.experiment_id,
            files=found.missing[:3],
        )
    return bool(found.missing)


async def main(arguments: argparse.Namespace, settings: BackupSettings, stop: asyncio.Event) -> None:
    """Write a backup. Raises: GivenUp; there is no folder then. `stop` only ends a wait, and there is none."""
    await asyncio.to_thread(write, settings, Path(arguments.folder), looks=not arguments.no_file_check)


def write(settings: BackupSettings, folder: Path, *, looks: bool = True) -> Note:
    """Write a backup into a new folder. Raises: GivenUp; there is no folder then.

    Args:
        settings: Of the cluster.
        folder: Which does not exist.
        looks: Whether the files of checkpoints are looked for.
    """
    if folder.exists():
        raise GivenUp(f"{folder}: it exists: expected the name of a new folder")
    configure(Outgoing.of(settings.allowed_networks, settings.own_buckets))
    partial = folder.with_name(f".{folder.name}.{os.getpid()}")
    database = Database(settings.database_url)
    try:
        partial.mkdir(parents=True, mode=0o700)
        note = _write(database, partial, settings.roots if looks else None)
        _flush(partial)
        partial.rename(folder)
        _flush(folder.parent)
    except OSError as error:
        raise GivenUp(f"{error.filename or folder}: {error.strerror}") from None
    except BackupError as error:
        raise GivenUp(str(error)) from None
    except SQLAlchemyError as error:
        raise GivenUp(f"the database does not answer: {reason_of(error)}") from None
    finally:
        database.close()
        shutil.rmtree(partial, ignore_errors=True)
    log.info("the backup is complete", folder=str(folder), checkpoints=note.checkpoints, engine=note.engine)
    return note


def _write(database: Database, folder: Path, roots: Sequence[str] | None) -> Note:
    engine: Literal["sqlite", "postgresql"] = "sqlite" if database.is_sqlite else "postgresql"
    made_at = utc_now()
    with copied(database, folder) as connection:
        revision = revision_of(connection)
        if not revision:
            raise BackupError("database_url names a database without our tables: expected that of a cluster")
        cluster_id = connection.scalar(select(Cluster.cluster_id)) or ""
        count, missing, unknown = 0, 0, 0
        kept = checkpoints(connection)
        with (folder / LIST).open("wb") as out:
            for found in checked(kept, roots) if roots is not None else (Checked(each, []) for each in kept):
                out.write(orjson.dumps(_shown(found.kept) | {"missing": found.missing}) + b"\n")
                count += 1
                missing += say(found, missing)
                unknown += bool(found.unknown)
    if missing:
        log.warning("checkpoints have lost files", count=missing, of=count)
    if unknown:
        log.warning("this host does not see the files of some checkpoints", count=unknown, of=count)
    for name in (FILES[engine], LIST):
        (folder / name).chmod(0o600)  # keys and hashes of passwords are in it
    note = Note(
        release=version("undeterred"),
        made_at=made_at,
        cluster_id=cluster_id,
        engine=engine,
        schema_revision=revision,
        checkpoints=count,
        sha256={name: _hash(folder / name) for name in (FILES[engine], LIST)},
    )
    (folder / NOTE).write_text(note.model_dump_json(indent=2) + "\n")
    return note


def _shown(kept: Kept) -> dict[str, object]:
    storage = {name: kept.storage[name] for name in _SHOWN if name in kept.storage}
    return {**kept._asdict(), "storage": storage}


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(folder: Path) -> None:
    """Have what is in a folder on the disk."""
    for path in (*(path for path in folder.iterdir() if path.is_file()), folder):
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def run() -> NoReturn:
    """Entry point of `undeterred-backup`."""
    parser = argparse.ArgumentParser(
        "undeterred-backup", description="write the database of UNDETERRED_DATABASE_URL into a new folder"
    )
    parser.add_argument("folder", help="folder to make")
    parser.add_argument("--no-file-check", action="store_true", help="don't look for the files of checkpoints")
    options = parsed(parser)
    run_process(BackupSettings, functools.partial(main, options), options=options)


if __name__ == "__main__":
    run()
