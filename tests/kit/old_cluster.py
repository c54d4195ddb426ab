"""The database of another cluster, and an import of it without Temporal: its activities, as its workflow calls them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from sqlalchemy import select
from temporalio.testing import ActivityEnvironment

from database.models import Import, ImportTable, User
from database.session import Database
from workers.importing.activities import Importing
from workflows.lifecycle.imports import ImportMode, Kind
from workflows.messages import ImportOrder, ImportOutcome, ImportStep


@dataclass(frozen=True)
class Old:
    """A database of the other cluster. Its cluster may go on."""

    url: str

    def run(self, *statements: str) -> None:
        """Change it, as its master would."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)  # pyright: ignore[reportCallIssue, reportArgumentType]

    def value(self, query: str) -> Any:
        """The only value of a query."""
        with psycopg.connect(self.url) as connection:
            row = connection.execute(query).fetchone()  # pyright: ignore[reportCallIssue, reportArgumentType]
        assert row is not None
        return row[0]


def begun(database: Database, url: str, mode: ImportMode, *, shift: bool = False) -> int:
    """The record of an import that was asked for by the first administrator."""
    with database.write() as session:
        owner = session.scalars(select(User.id).where(User.is_admin).order_by(User.id)).first()
        row = Import(mode=mode.value, source=url, shown_source="old", is_shifted=shift, owner_id=owner)
        session.add(row)
        session.flush()
        return row.id


def imported(
    database: Database, url: str, mode: ImportMode = ImportMode.RUN, *, shift: bool = False
) -> dict[str, ImportTable]:
    """Import all of it: by kind how far that came."""
    number = begun(database, url, mode, shift=shift)
    importing, environment = Importing(database), ActivityEnvironment()
    plan = environment.run(importing.begin_import, ImportOrder(import_id=number, mode=mode))
    for kind in plan.kinds:
        environment.run(importing.import_records, ImportStep(import_id=number, mode=mode, kind=kind))
    environment.run(importing.end_import, ImportOutcome(import_id=number))
    return progress_of(database, number)


def progress_of(database: Database, number: int) -> dict[str, ImportTable]:
    """By kind how far an import came."""
    with database.read() as session:
        rows = session.scalars(select(ImportTable).where(ImportTable.import_id == number).order_by(ImportTable.place))
        return {row.kind: row for row in rows}


__all__ = ["Kind", "Old", "begun", "imported", "progress_of"]
