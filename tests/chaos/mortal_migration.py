"""A migration that is killed before its n-th statement, in a process of its own."""

from __future__ import annotations

import os
import signal
from typing import Any

from sqlalchemy import event

from database.migrate import migrate
from database.session import Database


def run(url: str, statement: int) -> None:
    """Migrate; SIGKILL to itself before this statement, counted from 1."""
    database = Database(url)
    count = 0

    def die_when_due(*_: Any) -> None:
        nonlocal count
        count += 1
        if count == statement:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(database.engine, "before_cursor_execute", die_when_due)
    migrate(database)
