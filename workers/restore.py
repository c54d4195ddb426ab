"""Restores a backup into an empty database, and has all that ran go on: on a Temporal that knows nothing of it."""

from __future__ import annotations

import argparse
import asyncio
import functools
import time
from pathlib import Path
from typing import NoReturn

import structlog
from pydantic import Field
from sqlalchemy import update
from sqlalchemy.exc import SQLAlchemyError

from api.services.revival import Revived, revive
from database.backup import BackupError, check_revision, checkpoints, restore
from database.checkpoint_files import checked
from database.errors import reason_of
from database.migrate import migrate
from database.models import Checkpoint
from database.session import Database
from determined.common.outgoing import Outgoing, configure
from workers.backup import BackupSettings, read, say
from workers.connect import GivenUp, connect, connection_of, parsed
from workers.connect import run as run_process
from workflows.messages import Timing

log = structlog.get_logger()

_TEMPORAL_S = 30.0


class RestoreSettings(BackupSettings):
    """What a restore needs to know."""

    timing: Timing = Field(default_factory=Timing, description="durations that decide, as JSON")


async def main(arguments: argparse.Namespace, settings: RestoreSettings, stop: asyncio.Event) -> None:
    """Restore. Raises: GivenUp."""
    if not arguments.no_temporal_check:
        await _check_temporal(settings, stop)
    await asyncio.to_thread(bring_back, settings, Path(arguments.folder), looks=not arguments.no_file_check)


async def _check_temporal(settings: RestoreSettings, stop: asyncio.Event) -> None:
    """Workflows of before would be taken for those that are to be started. Raises: GivenUp."""
    where = f"temporal_namespace: {settings.temporal_namespace!r}"
    try:
        async with asyncio.timeout(_TEMPORAL_S):
            client = await connect(connection_of(settings), stop)
    except TimeoutError:
        raise GivenUp(
            f"temporal_address: {settings.temporal_address}: no Temporal answers there: start it, or restore with"
            " --no-temporal-check if it will be empty"
        ) from None
    if client is None:
        return
    found = (await client.count_workflows()).count
    if found:
        raise GivenUp(
            f"{where}: expected a namespace without workflows, and it has {found}: make a new one"
            " (`temporal operator namespace create`), and have all processes use it"
        )


def bring_back(settings: RestoreSettings, folder: Path, *, looks: bool = True) -> Revived:
    """Restore a backup. Raises: GivenUp; says whether the database must be emptied before another try.

    Args:
        settings: Of the cluster to be.
        folder: Of the backup.
        looks: Whether checkpoints whose files are gone are marked, so that nothing starts from them.
    """
    began = time.monotonic()
    configure(Outgoing.of(settings.allowed_networks, settings.own_buckets))
    note = read(folder)
    database = Database(settings.database_url)
    try:
        check_revision(note.schema_revision)
        restore(database, folder, note.engine)
        migrate(database)
        gone = _gone(database, settings.roots) if looks else []
        with database.write() as session:
            for start in range(0, len(gone), 500):
                some = Checkpoint.uuid.in_(gone[start : start + 500])
                session.execute(update(Checkpoint).where(some).values(state="DELETED"))
            revived = revive(session, settings.timing, note.made_at)
    except BackupError as error:
        raise GivenUp(str(error)) from None
    except SQLAlchemyError as error:
        raise GivenUp(f"the restore broke off: empty the database before another try: {reason_of(error)}") from None
    finally:
        database.close()
    log.info(
        "the cluster is restored: start its processes",
        backup_of=note.made_at.isoformat(timespec="seconds"),
        experiments=len(revived.experiments),
        experiments_broken=revived.broken,
        trials=revived.trials,
        tasks=len(revived.tasks),
        tasks_lost=len(revived.lost_tasks),
        checkpoints_lost=len(gone),
        seconds=round(time.monotonic() - began, 1),
    )
    return revived


def _gone(database: Database, roots: list[str]) -> list[str]:
    gone: list[str] = []
    with database.read() as session:
        for found in checked(checkpoints(session.connection()), roots):
            if say(found, len(gone)):
                gone.append(found.kept.uuid)
    return gone


def run() -> NoReturn:
    """Entry point of `undeterred-restore`."""
    parser = argparse.ArgumentParser(
        "undeterred-restore", description="bring a backup into the empty database of UNDETERRED_DATABASE_URL"
    )
    parser.add_argument("folder", help="folder of the backup")
    parser.add_argument("--no-file-check", action="store_true", help="don't look for the files of checkpoints")
    parser.add_argument("--no-temporal-check", action="store_true", help="don't ask whether Temporal is empty")
    options = parsed(parser)
    run_process(RestoreSettings, functools.partial(main, options), options=options)


if __name__ == "__main__":
    run()
