"""What Prometheus reads of the records: few rows and aggregates, from indexes of what is open or new.

What has ended long ago is not counted again each time: `ends`, `starts` and `task_ends` read what is new since a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, or_, select, text
from sqlalchemy.orm import Session

from api.queries.waiting import POOL, SINCE, SLOTS, waiting
from database.engines import on_postgresql
from database.models import Agent, Allocation, Experiment, Outbox, ResourcePool, Task, Trial
from database.types import utc_now
from workflows.lifecycle.trial import TrialState

#: Most rows of one look at what is new, and most messages that are counted.
MOST = 50_000
_ENDED = [state.value for state in TrialState if state.is_terminal]


@dataclass(frozen=True)
class Queue:
    """What waits for slots in a pool: requests, the slots that they want, and seconds that the oldest has waited."""

    waiting: int = 0
    slots: int = 0
    oldest_s: float = 0.0


@dataclass(frozen=True)
class Hosts:
    """The agents of a pool, and the slots of those that take trials now."""

    connected: int = 0
    disconnected: int = 0
    slots: int = 0


@dataclass(frozen=True)
class New:
    """Something that happened once.

    Attributes:
        id: Of what it happened to.
        at: When.
        kind: Of the task.
        what: What happened; None if that is not recorded yet.
        seconds: How long it took, of what has a length.
    """

    id: str
    at: datetime
    kind: str
    what: str | None = None
    seconds: float = 0.0


def limit_time(session: Session, seconds: int) -> None:
    """Have the engine give up statements of this transaction that take longer; SQLite has no such limit."""
    if on_postgresql(session):
        session.execute(text(f"SET LOCAL statement_timeout = {seconds * 1000}"))


def queues(session: Session) -> dict[str, Queue]:
    """What waits, by pool: for its first slots, or for new ones after its pool took some away."""
    statement = waiting(POOL, func.count(), func.sum(SLOTS), func.min(SINCE)).group_by(POOL)
    now = utc_now()
    return {
        name: Queue(count, int(wanted), max(0.0, (now - oldest).total_seconds()))
        for name, count, wanted, oldest in session.execute(statement).tuples()
    }


def pools(session: Session) -> list[str]:
    """The names of all pools."""
    return list(session.scalars(select(ResourcePool.name)))


def hosts(session: Session) -> dict[str, Hosts]:
    """The agents, by pool."""
    found: dict[str, Hosts] = {}
    rows = select(
        Agent.pool, Agent.is_connected, Agent.is_enabled, Agent.slot_ids, Agent.disabled_slots, Agent.broken_slots
    )
    for pool, is_connected, is_enabled, slots, disabled, broken in session.execute(rows).tuples():
        before = found.get(pool, Hosts())
        usable = len(set(slots) - set(disabled) - set(map(int, broken))) if is_connected and is_enabled else 0
        found[pool] = Hosts(
            before.connected + is_connected, before.disconnected + (not is_connected), before.slots + usable
        )
    return found


def open_allocations(session: Session) -> list[tuple[str, str, str, int, int]]:
    """Those that have not ended: pool, kind of the task, state, how many, and their slots."""
    statement = (
        select(Allocation.pool, Task.kind, Allocation.state, func.count(), func.sum(Allocation.slots))
        .join(Task, Task.id == Allocation.task_id)
        .where(Allocation.ended_at.is_(None))
        .group_by(Allocation.pool, Task.kind, Allocation.state)
    )
    return [(pool, kind, state, count, int(slots)) for pool, kind, state, count, slots in session.execute(statement)]


def experiments(session: Session) -> dict[str, int]:
    """How many there are, by state."""
    statement = select(Experiment.state, func.count()).group_by(Experiment.state)
    return dict(session.execute(statement).tuples().all())


def trials(session: Session) -> dict[str, int]:
    """How many have not ended, by state."""
    statement = (
        select(Trial.state, func.count())
        .join(Task, Task.id == Trial.task_id)
        .where(Task.ended_at.is_(None), Trial.state.not_in(_ENDED))
        .group_by(Trial.state)
    )
    return dict(session.execute(statement).tuples().all())


def outbox(session: Session) -> tuple[int, float]:
    """How many messages wait for Temporal, `MOST` at most, and seconds since the oldest of them was written."""
    waiting = select(Outbox.created_at).where(Outbox.sent_at.is_(None)).order_by(Outbox.id).limit(MOST).subquery()
    count, oldest = session.execute(select(func.count(), func.min(waiting.c.created_at))).one()
    return count, 0.0 if oldest is None else max(0.0, (utc_now() - oldest).total_seconds())


def ends(session: Session, since: datetime) -> Sequence[New]:
    """The allocations that ended since then, the first `MOST`; `what`: the cause."""
    statement = (
        select(Allocation.id, Allocation.ended_at, Task.kind, Allocation.end_cause)
        .join(Task, Task.id == Allocation.task_id)
        .where(Allocation.ended_at > since)
        .order_by(Allocation.ended_at)
        .limit(MOST)
    )
    return [New(id_, at, kind, what) for id_, at, kind, what in session.execute(statement).tuples() if at is not None]


def starts(session: Session, since: datetime) -> Sequence[New]:
    """The allocations whose harness first asked for something since then, the first `MOST`.

    `seconds`: since the allocation has its slots.
    """
    statement = (
        select(Allocation.id, Allocation.ready_at, Task.kind, Allocation.started_at)
        .join(Task, Task.id == Allocation.task_id)
        .where(or_(Allocation.ended_at.is_(None), Allocation.ended_at > since), Allocation.ready_at > since)
        .order_by(Allocation.ready_at)
        .limit(MOST)
    )
    return [
        New(id_, at, kind, "", max(0.0, (at - started).total_seconds()))
        for id_, at, kind, started in session.execute(statement).tuples()
        if at is not None
    ]


def task_ends(session: Session, since: datetime) -> Sequence[New]:
    """The tasks that ended since then, trials among them, the first `MOST`; `what`: the state."""
    statement = (
        select(Task.id, Task.ended_at, Task.kind, Task.state)
        .where(Task.ended_at > since)
        .order_by(Task.ended_at)
        .limit(MOST)
    )
    return [New(id_, at, kind, what) for id_, at, kind, what in session.execute(statement).tuples() if at is not None]
