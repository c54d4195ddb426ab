"""Brings the database to this release's schema and ends: for a deployment that does so before its processes start.

The API does the same at its start. A step of its own keeps the old release serving until the new schema is there, and
shows a migration that fails as what it is.
"""

from __future__ import annotations

import asyncio
from typing import NoReturn

import structlog
from sqlalchemy.exc import SQLAlchemyError

from api.settings import ClusterSettings
from database.errors import reason_of
from database.migrate import OtherSchema, migrate, newest_revision
from database.session import Database
from workers.connect import GivenUp
from workers.connect import run as run_process

log = structlog.get_logger()


async def main(settings: ClusterSettings, stop: asyncio.Event) -> None:
    """Migrate, in one transaction. Raises: GivenUp.

    A migration is not interrupted: `stop` only ends a wait, and there is none.
    """
    database = Database(settings.database_url)
    try:
        await asyncio.to_thread(migrate, database)
    except OtherSchema as error:
        raise GivenUp(str(error)) from None
    except SQLAlchemyError as error:
        raise GivenUp(f"the database was not migrated, and is as it was: {reason_of(error)}") from error
    finally:
        database.close()
    log.info("the database has this release's schema", revision=newest_revision())


def run() -> NoReturn:
    """Entry point of `undeterred-migrate`."""
    run_process(ClusterSettings, main)


if __name__ == "__main__":
    run()
