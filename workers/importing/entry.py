"""The activities of imports as an orchestrator registers them.

What does the work is loaded with the first import: the API's rules, and a web framework with them, which an
orchestrator needs for nothing else.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from temporalio import activity

from database.session import Database
from workflows.messages import ImportOrder, ImportOutcome, ImportPlan, ImportStep

if TYPE_CHECKING:
    from workers.importing.activities import Importing


class ImportActivities:
    """All of them may be done again."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @activity.defn
    def begin_import(self, order: ImportOrder) -> ImportPlan:
        """See `Importing`."""
        return self._importing.begin_import(order)

    @activity.defn
    def import_records(self, step: ImportStep) -> None:
        """See `Importing`."""
        self._importing.import_records(step)

    @activity.defn
    def end_import(self, outcome: ImportOutcome) -> None:
        """See `Importing`."""
        self._importing.end_import(outcome)

    @cached_property
    def _importing(self) -> Importing:
        from workers.importing.activities import Importing

        return Importing(self._database)
