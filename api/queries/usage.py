"""Usage of slots: how many, for how long, and by whom; the runs of tasks, cut to a span of time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Text, cast
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.auth.authorization import readable_tasks
from api.queries.held_slots import Span, held, interval, slot_ms
from database.models import Allocation, Experiment, Task, User
from database.types import utc_now

_DAY = timedelta(days=1)
#: Rows that are read at a time.
_AT_ONCE = 1000


class Use(NamedTuple):
    """A run, or the part of it that lies within the span. `experiment_id`: 0 for a task that is no trial."""

    allocation_id: str
    kind: str
    experiment_id: int
    user_id: int
    username: str
    labels: list[str]
    pool: str
    slots: int
    start: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        """Slot-seconds: its length times its slots."""
        return (self.end - self.start).total_seconds() * self.slots


def between(session: Session, start: datetime, end: datetime, user: UserPrincipal) -> Iterator[list[Use]]:
    """The runs that the user may see and that lie in a span, cut to it, by their start: some at a time."""
    columns = (
        Allocation.id, Task.kind, Allocation.experiment_id, User.id, User.username, Experiment.labels, Allocation.pool,
        Allocation.slots, Allocation.started_at, Allocation.ended_at,
    )  # fmt: skip
    statement = (
        held(Span.of(start, end, 1), *columns)
        .where(readable_tasks(user))
        .order_by(Allocation.started_at, Allocation.id)
        .execution_options(yield_per=_AT_ONCE)
    )
    now = utc_now()
    for rows in session.execute(statement).partitions():
        uses = [_use(row, start, end, now) for row in rows]
        if lasting := [use for use in uses if use.start < use.end]:
            yield lasting


def _use(row: Any, start: datetime, end: datetime, now: datetime) -> Use:
    id_, kind, experiment_id, user_id, username, labels, pool, slots, began, ended = row
    return Use(
        id_, "training" if experiment_id else kind.lower(), experiment_id or 0, user_id, username, list(labels or ()),
        pool, slots, max(began, start), min(ended or now, end),
    )  # fmt: skip


def raw(use: Use) -> dict[str, Any]:
    """v1ResourceAllocationRawEntry."""
    return {
        "kind": use.kind,
        "startTime": use.start,
        "endTime": use.end,
        "experimentId": use.experiment_id,
        "username": use.username,
        "userId": use.user_id,
        "labels": use.labels,
        "seconds": use.seconds,
        "slots": use.slots,
    }


def aggregated(
    session: Session, start: datetime, end: datetime, user: UserPrincipal, *, monthly: bool
) -> list[dict[str, Any]]:
    """v1ResourceAllocationAggregatedEntry of each day or month of the span, which is of whole days or months."""
    days = Span.of(start, end, (end - start) // _DAY)
    columns = interval(session, days, Allocation.slots, Allocation.started_at, Allocation.ended_at)
    names = User.username, Allocation.pool, cast(Experiment.labels, Text).label("labels")
    statement = held(days, *names, *columns).where(readable_tasks(user))
    form = "%Y-%m" if monthly else "%Y-%m-%d"
    entries = {(start + day * _DAY).strftime(form): _Entry() for day in range(days.count)}
    of_days = [entries[(start + day * _DAY).strftime(form)] for day in range(days.count)]
    for (username, pool, labels), parts in slot_ms(session, days, statement).items():
        keys = [("byUsername", username), ("byResourcePool", pool)]
        keys += (("byExperimentLabel", label) for label in orjson.loads(labels or "[]"))
        for day, slots in parts.items():
            of_days[day].add(keys, slots)
    period = f"RESOURCE_ALLOCATION_AGGREGATION_PERIOD_{'MONTHLY' if monthly else 'DAILY'}"
    return [{"periodStart": began, "period": period, **entry.as_json()} for began, entry in entries.items()]


class _Entry:
    """Slots times ms of a day or month, by user, pool and label."""

    def __init__(self) -> None:
        self._total = 0
        self._by: dict[str, defaultdict[str, int]] = {
            name: defaultdict(int) for name in ("byUsername", "byExperimentLabel", "byResourcePool", "byAgentLabel")
        }

    def add(self, keys: list[tuple[str, str]], held: int) -> None:
        self._total += held
        for name, key in keys:
            self._by[name][key] += held

    def as_json(self) -> dict[str, Any]:
        """In slot-seconds."""
        by = {name: {key: held / 1000 for key, held in found.items()} for name, found in self._by.items()}
        return {"seconds": self._total / 1000, **by}
