"""Reports that waited on their host's disk while the API did not answer: curves show when that was.

A report says when it was made. One that a container sends much later has waited (ADR 9).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypedDict

from sqlalchemy import Connection, select, update

from database.models import Trial

#: From then on a report is late. Clocks of hosts differ by less, and reports are sent together for a second.
LATE_S = 15.0
#: Of a trial; the newest are kept.
_MOST = 50


class Delay(TypedDict):
    """Successive reports that waited: when the first was made, when the last one came, and their steps."""

    made: float
    came: float
    first: int
    last: int
    count: int


def note(connection: Connection, trial_id: int, steps: Sequence[int], made: float, now: datetime) -> None:
    """Note reports of a trial that came at last: their steps, and when the first was made, in seconds since 1970."""
    known: list[Any] = connection.execute(select(Trial.delays).where(Trial.id == trial_id)).scalar_one()
    new = Delay(made=made, came=now.timestamp(), first=min(steps), last=max(steps), count=len(steps))
    changed = with_delay(known, new)
    connection.execute(update(Trial).where(Trial.id == trial_id).values(delays=changed))


def with_delay(known: Sequence[Delay], new: Delay) -> list[Delay]:
    """One more. Reports that were made before the last of others came have waited with these."""
    if not known or new["made"] > known[-1]["came"]:
        return [*known, new][-_MOST:]
    last = known[-1]
    joined = Delay(
        made=min(last["made"], new["made"]),
        came=max(last["came"], new["came"]),
        first=min(last["first"], new["first"]),
        last=max(last["last"], new["last"]),
        count=last["count"] + new["count"],
    )
    return [*known[:-1], joined]
