"""The audit log: one entry a request, committed together with the change, each bound to the one before by a hash.

The API names the caller (`asking`); `Database.write` adds the entry to the first transaction of that request that wrote
something. Writes without a caller - activities, reports of containers - leave no entry, and cost nothing more.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any

import orjson
from sqlalchemy import event, inspect, select
from sqlalchemy.orm import ORMExecuteState, Session, UOWTransaction

from database.models.audit import AuditEntry, AuditSubject
from database.models.experiments import Experiment
from database.models.trials import Trial
from database.pipeline import pipelined
from database.types import utc_now

#: What the first entry comes after.
ORIGIN = "0" * 64
_LOCK = 7263042
_MOST_ROWS = 20
#: Where a request names what it changes.
_NAMED = re.compile(r"\{(experiment_id|trial_id|run_id)\}")
_NUMBER = re.compile(r"/(?:experiments|trials|runs)/([0-9]{1,9})(?:/|$)")
_WRITTEN = re.compile(r"([+~]) experiments ([0-9]+)")
#: What is written on the way of a change and tells nobody anything.
_SILENT = frozenset({"outbox", "audit_entries", "audit_subjects", "login_failures", "answered_requests"})


@dataclass
class Asking:
    """A request that may change something, and who sent it. Without an actor there is no entry."""

    method: str
    target: str
    address: str = ""
    route: str = ""
    actor: str = ""
    actor_id: int | None = None
    token_id: int | None = None
    fields: tuple[str, ...] = ()
    is_recorded: bool = False
    experiments: list[int] = field(default_factory=list[int])  # changed by a request for many of them
    number: int | None = None  # of its entry


#: The request that the present code works for.
asking: ContextVar[Asking | None] = ContextVar("asking", default=None)


@dataclass
class _Written:
    """What a transaction has written so far."""

    anything: bool = False
    rows: list[str] = field(default_factory=list[str])


class AuditedSession(Session):
    """A session that knows what it wrote."""


@event.listens_for(AuditedSession, "before_flush")
def _gone(session: AuditedSession, context: UOWTransaction, instances: Any) -> None:
    _note(session, "-", session.deleted)


@event.listens_for(AuditedSession, "after_flush")
def _kept(session: AuditedSession, context: UOWTransaction) -> None:
    _note(session, "+", session.new)
    _note(session, "~", (row for row in session.dirty if session.is_modified(row)))


@event.listens_for(AuditedSession, "do_orm_execute")
def _executed(state: ORMExecuteState) -> None:
    if state.is_insert or state.is_update or state.is_delete:
        table = state.bind_mapper.local_table.name if state.bind_mapper is not None else ""  # pyright: ignore
        if table not in _SILENT:
            _of(state.session).anything = True


def _of(session: Session) -> _Written:
    return session.info.setdefault("written", _Written())


def _note(session: Session, sign: str, rows: Any) -> None:
    written = _of(session)
    for row in rows:
        state: Any = inspect(row)
        table = state.mapper.local_table.name
        if table in _SILENT:
            continue
        written.anything = True
        identity = " ".join(str(part) for part in state.mapper.primary_key_from_instance(row))
        told = f"{sign} {table} {identity}"
        if len(written.rows) < _MOST_ROWS and told not in written.rows:
            written.rows.append(told)


def record(session: AuditedSession, request: Asking) -> bool:
    """Add the entry of a request to a transaction that is about to commit, if it wrote anything; whether it did."""
    session.flush()
    written = _of(session)
    if not written.anything:
        return False
    append(session, request, written.rows)
    return True


def append(session: Session, request: Asking, rows: list[str]) -> None:
    """Add an entry. To be the last thing that a transaction does: until it ends, nobody else can add one."""
    subjects = _subjects(session, request, rows)
    last = _last(session)
    number, previous = (last[0] + 1, last[1]) if last else (1, ORIGIN)
    entry = AuditEntry(
        number=number,
        at=utc_now(),
        actor_id=request.actor_id,
        actor=request.actor[:160],
        token_id=request.token_id,
        address=request.address[:80],
        method=request.method[:12],
        route=request.route[:250],
        target=_storable(request.target)[:1000],
        fields=list(request.fields),
        rows=rows,
        previous=previous,
    )
    entry.hash = entry_hash(entry)
    with pipelined(session):
        session.add(entry)
        session.flush()
        session.add_all(AuditSubject(experiment_id=each, number=number) for each in sorted(subjects))
        session.flush()
    request.number = number


def _last(session: Session) -> tuple[int, str] | None:
    """Number and hash of the last entry, after which nobody else can add one."""
    last = select(AuditEntry.number, AuditEntry.hash).order_by(AuditEntry.number.desc()).limit(1)
    connection = session.connection()
    if connection.dialect.name == "sqlite":  # it has one writer at a time anyway
        row = session.execute(last).one_or_none()
        return None if row is None else row.tuple()
    # in one message, yet two statements: the second one sees what was committed while the first one waited
    asked = last.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True})
    with contextlib.closing(connection.connection.cursor()) as cursor:
        cursor.execute(f"SELECT pg_advisory_xact_lock({_LOCK}); {asked}")
        cursor.nextset()
        return cursor.fetchone()


def note_experiment(experiment_id: int) -> None:
    """Say of a request for many experiments that it changed this one."""
    if (current := asking.get()) is not None:
        current.experiments.append(experiment_id)


def link(session: Session, request: Asking) -> None:
    """Connect the entry of a request with the experiments that it changed after the entry was written."""
    known = set(session.scalars(select(AuditSubject.experiment_id).where(AuditSubject.number == request.number)))
    for each in sorted(_existing(session, request.experiments) - known):
        session.add(AuditSubject(experiment_id=each, number=request.number))


def _subjects(session: Session, request: Asking, rows: list[str]) -> set[int]:
    """Numbers of the experiments that a request changed."""
    written = [match for row in rows if (match := _WRITTEN.fullmatch(row))]
    made = {int(match[2]) for match in written if match[1] == "+"}  # by this transaction: nobody can have deleted them
    found = {*request.experiments, *(int(match[2]) for match in written)}
    named, number = _NAMED.search(request.route), _NUMBER.search(request.target)
    if named and number and named[1] == "experiment_id":
        found.add(int(number[1]))
    elif named and number:
        found |= set(session.scalars(select(Trial.experiment_id).where(Trial.id == int(number[1]))))
    return made | _existing(session, found - made)


def _existing(session: Session, numbers: Iterable[int]) -> set[int]:
    wanted = set(numbers)
    return set(session.scalars(select(Experiment.id).where(Experiment.id.in_(wanted)))) if wanted else set()


def _storable(value: str) -> str:
    """PostgreSQL stores no NUL, and neither engine half a character."""
    return value.replace("\x00", "").encode("utf-8", "replace").decode()


def entry_hash(entry: AuditEntry) -> str:
    """What binds an entry to the one before it."""
    content = [
        entry.number, entry.at.astimezone(UTC).isoformat(timespec="microseconds"), entry.actor_id, entry.actor,
        entry.token_id, entry.address, entry.method, entry.route, entry.target, entry.fields, entry.rows,
    ]  # fmt: skip
    return hashlib.sha256(entry.previous.encode() + orjson.dumps(content)).hexdigest()


@dataclass
class Verdict:
    """Whether the entries are those that were written: all of them, and none changed.

    That the last ones are missing shows only if `head` was noted elsewhere before.
    """

    is_intact: bool
    checked: int
    head: str
    problem: str = ""


def verify(session: Session) -> Verdict:
    """Compute every hash anew, in order."""
    previous, number = ORIGIN, 0
    for entry in _all(session):
        number += 1
        if entry.number != number:
            return Verdict(False, number - 1, previous, f"entry {number} is missing")
        if entry.previous != previous:
            return Verdict(False, number - 1, previous, f"entry {number} does not follow the one before it")
        if entry.hash != entry_hash(entry):
            return Verdict(False, number - 1, previous, f"entry {number} was changed")
        previous = entry.hash
    return Verdict(True, number, previous)


def _all(session: Session) -> Iterator[AuditEntry]:
    """In pieces, so that memory does not grow with the log."""
    last = 0
    while True:
        statement = select(AuditEntry).where(AuditEntry.number > last).order_by(AuditEntry.number).limit(1000)
        piece = session.scalars(statement).all()
        if not piece:
            return
        yield from piece
        last = piece[-1].number
        session.expunge_all()
