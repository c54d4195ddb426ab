"""The history of an experiment, put together from the audit log and from the records of its runs.

Each source is read from the newest event on, behind a cursor: the time of the last event that the reader has, its
source, and its id there. So a page costs the same wherever it is.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, false, literal_column, or_, select, true
from sqlalchemy.orm import Session

from api.errors import BadRequest
from api.schemas.base import as_utc, rfc3339
from api.schemas.history import HistoryEvent, HistoryKind
from database.models import Allocation, AuditEntry, AuditSubject, Budget, Experiment
from database.models.tasks import FAILED

_CURSOR = re.compile(r"([0-9TZ:.+-]{20,40})~([0-2])~(.{1,100})")
_KINDS: tuple[HistoryKind, ...] = ("state", "run", "request")  # of two at the same time the last one is the newer
_EXPERIMENT, _TRIAL = "/api/v1/experiments/{experiment_id}", "/api/v1/trials/{trial_id}"
#: What the actor of a request did. `{tail}`: the last part of its path, `{trial}`: the trial that it names.
_DEEDS = {
    ("POST", "/api/v1/experiments"): "created it",
    ("PUT", "/api/v1/experiments/by-external-id/{external_id:path}"): "reported it as trained elsewhere",
    ("POST", "/api/v1/experiments/continue"): "continued it",
    ("PATCH", _EXPERIMENT): "edited it",
    ("PATCH", "/experiments/{experiment_id}"): "edited it",
    ("DELETE", _EXPERIMENT): "asked for its deletion",
    ("POST", f"{_EXPERIMENT}/fork"): "forked it",
    ("POST", f"{_EXPERIMENT}/move"): "moved it to another project",
    ("POST", f"{_EXPERIMENT}/search/amend"): "changed its search",
    ("POST", f"{_EXPERIMENT}/searcher_operations"): "answered its search",
    ("PATCH", "/api/v1/undeterred/experiments/{experiment_id}/budget"): "changed its budget",
    ("PUT", f"{_EXPERIMENT}/labels/{{label:path}}"): "labelled it {tail}",
    ("DELETE", f"{_EXPERIMENT}/labels/{{label:path}}"): "removed its label {tail}",
    ("PUT", f"{_EXPERIMENT}/retain_logs"): "changed how long its logs are kept",
    ("DELETE", f"{_EXPERIMENT}/tensorboard-files"): "deleted its TensorBoard files",
    ("POST", "/api/v1/undeterred/experiments/{experiment_id}/gc"): "deleted checkpoints that its policy does not keep",
    ("POST", f"{_TRIAL}/kill"): "killed trial {trial}",
    ("PUT", f"{_TRIAL}/retain_logs"): "changed how long the logs of trial {trial} are kept",
    ("POST", "/api/v1/projects/{project_id}/experiments/move"): "moved it to another project",
    ("PUT", "/api/v1/projects/{project_id}/experiments/retain_logs"): "changed how long its logs are kept",
    ("DELETE", "/api/v1/projects/{project_id}/experiments/delete"): "asked for its deletion",
    ("POST", "/api/v1/runs/move"): "moved it to another project",
}
_COMMANDS = {
    "activate": "activated it", "resume": "activated it", "pause": "paused it", "cancel": "canceled it",
    "kill": "killed it", "archive": "archived it", "unarchive": "unarchived it", "delete": "asked for its deletion",
}  # fmt: skip
_KILLED_RUNS = ("POST", "/api/v1/runs/{command}", "kill")


@dataclass(frozen=True)
class Cursor:
    """Behind which event the next ones are."""

    at: datetime
    source: int
    id: str

    @classmethod
    def of(cls, text: str) -> Cursor | None:
        """As a response had it; None if it is empty. Raises: BadRequest."""
        if not text:
            return None
        try:
            time, source, id_ = _CURSOR.fullmatch(text).groups()  # pyright: ignore[reportOptionalMemberAccess]
            return cls(as_utc(datetime.fromisoformat(time)), int(source), id_)
        except (AttributeError, ValueError):  # of another form, or no such day
            raise BadRequest(f"before: {text[:80]!r}: expected `next` of a response") from None


def read(
    session: Session, experiment: Experiment, *, limit: int, before: Cursor | None, kinds: Sequence[HistoryKind]
) -> tuple[list[HistoryEvent], str]:
    """The next events, the newest first, and the cursor of those before them; empty without any.

    Args:
        session: To read with.
        experiment: Whose history.
        limit: Events at most.
        before: The last event that the reader has.
        kinds: Only these; empty: all.
    """
    sources: tuple[Callable[..., Iterator[_Found]], ...] = (_states, _runs, _requests)
    wanted = [
        source(session, experiment, before, limit + 1)
        for kind, source in zip(_KINDS, sources, strict=True)
        if not kinds or kind in kinds
    ]
    merged = heapq.merge(*wanted, key=lambda found: (found[0].at, found[1]), reverse=True)
    found = list(itertools.islice(merged, limit + 1))
    if len(found) <= limit:
        return [event for event, _, _ in found], ""
    last, source, id_ = found[limit - 1]
    return [event for event, _, _ in found[:limit]], f"{rfc3339(last.at)}~{source}~{id_}"


#: An event, the number of its source, and its id there.
_Found = tuple[HistoryEvent, int, str]


def _behind(
    before: Cursor | None, source: int, at: Any, is_older: Callable[[str], ColumnElement[bool]]
) -> ColumnElement[bool]:
    """Of a source: what comes after the cursor in the order of time, source and id, all descending."""
    if before is None:
        return true()
    same = is_older(before.id) if source == before.source else true() if source < before.source else false()
    return or_(at < before.at, and_(at == before.at, same))


# -- requests --------------------------------------------------------------------------------------------------------


def _requests(session: Session, experiment: Experiment, before: Cursor | None, limit: int) -> Iterator[_Found]:
    number = AuditEntry.number
    older = _behind(before, 2, AuditEntry.at, lambda id_: number < _number(id_))
    statement = (
        select(AuditEntry)
        .join(AuditSubject, AuditSubject.number == number)
        .where(AuditSubject.experiment_id == experiment.id, older)
        .order_by(AuditEntry.at.desc(), number.desc())
        .limit(limit)
    )
    for entry in session.scalars(statement):
        yield _request(entry, experiment), 2, str(entry.number)


def _number(id_: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", id_):
        raise BadRequest(f"before: {id_[:80]!r}: expected `next` of a response")
    return int(id_)


def _request(entry: AuditEntry, experiment: Experiment) -> HistoryEvent:
    text, other, trial_id = _deed(entry, experiment)
    return HistoryEvent(
        at=entry.at, kind="request", text=text, actor=entry.actor, fields=_fields(entry), experiment_id=other,
        trial_id=trial_id, address=entry.address, token_id=entry.token_id,
    )  # fmt: skip


def _fields(entry: AuditEntry) -> list[str]:
    """What a list of experiments or their number says is known already."""
    known = {"experiment_id", "experiment_ids", "run_ids", "id", "project_id", "filters"}
    return [name for name in entry.fields if name not in known]


def _deed(entry: AuditEntry, experiment: Experiment) -> tuple[str, int | None, int | None]:
    """What was done, in words; the other experiment and the trial that it is about."""
    tail = entry.target.rstrip("/").rpartition("/")[2]
    made = [int(row.split()[2]) for row in entry.rows if re.fullmatch(r"\+ experiments [0-9]+", row)]
    if experiment.id in made:
        origin = experiment.parent_id
        return ("created it as a fork", origin, None) if origin is not None else ("created it", None, None)
    trial = re.search(r"/(?:trials|runs)/([0-9]{1,9})(?:/|$)", entry.target)
    trial_id = int(trial[1]) if trial else None
    text = _DEEDS.get((entry.method, entry.route))
    if (entry.method, entry.route, tail) == _KILLED_RUNS:
        text = "killed trials of it"
    elif text is None and entry.method == "POST" and entry.route.endswith("/{command}"):
        text = _COMMANDS.get(tail)
    if text is None:
        text = f"sent {entry.method} {entry.route}"
    label = entry.target.partition("/labels/")[2]
    other = made[0] if made and text == "forked it" else None
    return text.replace("{tail}", f"“{label}”").replace("{trial}", str(trial_id)), other, trial_id


# -- states and runs -------------------------------------------------------------------------------------------------


def _states(session: Session, experiment: Experiment, before: Cursor | None, limit: int) -> Iterator[_Found]:
    events: list[_Found] = []
    if experiment.ended_at is not None:
        text = f"ended as {experiment.state.lower()}{f': {experiment.error}' if experiment.error else ''}"
        is_bad = experiment.state == "ERROR"
        events.append((HistoryEvent(at=experiment.ended_at, kind="state", text=text, is_bad=is_bad), 0, "2"))
    began = HistoryEvent(at=experiment.started_at, kind="state", text="was recorded, and its search began")
    events.append((began, 0, "1"))
    budget = session.scalar(select(Budget).where(Budget.experiment_id == experiment.id))
    for number, notice in enumerate(budget.notices if budget is not None else [], start=3):
        event = HistoryEvent(at=datetime.fromisoformat(notice["at"]), kind="state", text=notice["text"])
        events.append((event, 0, f"{number:03}"))
    for event, source, id_ in sorted(events, key=lambda found: (found[0].at, found[2]), reverse=True)[:limit]:
        if before is None or (event.at, source, id_) < (before.at, before.source, before.id):
            yield event, source, id_


def _runs(session: Session, experiment: Experiment, before: Cursor | None, limit: int) -> Iterator[_Found]:
    older = _behind(before, 1, Allocation.ended_at, lambda id_: Allocation.id < id_)
    statement = (
        select(Allocation)
        .where(Allocation.experiment_id == experiment.id, literal_column(FAILED), older)
        .order_by(Allocation.ended_at.desc(), Allocation.id.desc())
        .limit(limit)
    )
    for row in session.scalars(statement):
        if row.ended_at is None:
            continue
        how = "was lost with its host" if row.end_kind == "system" else "failed"
        text = f"run {row.run_id} of trial {row.trial_id} {how}{f': {row.end_message}' if row.end_message else ''}"
        event = HistoryEvent(
            at=row.ended_at, kind="run", text=text, trial_id=row.trial_id, is_bad=row.end_kind != "system"
        )
        yield event, 1, row.id
