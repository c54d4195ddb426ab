"""Holds what came against its source: each record is made once more, and compared with the one that is here."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import and_, func, select
from sqlalchemy.orm import Session

from database.log_reads import LogFilter
from database.log_reads import lines as lines_of
from database.models import Import, ImportMark, ImportTable, SearchDecision, Trial
from database.reports import snapshot, with_archived
from database.types import UtcTime
from workers.importing import logs, metrics
from workers.importing.kinds import BY_KIND, Table
from workers.importing.rows import Record, Skipped
from workers.importing.source import Source
from workers.importing.target import Came, context_of, marks, note_skipped, stands_for
from workflows.lifecycle.imports import Kind

_DIFFERS = "they differ from what they are there: changed here, or there since"
_MISSING = "they are not here: not imported yet, or deleted here"
_MASK = 2**64 - 1


def page(session: Session, source: Source, row: Import, progress: ImportTable, came: Came) -> None:
    """Compare the next page of a kind."""
    kind = Kind(progress.kind)
    if kind in metrics.PARTITIONS:
        _metrics(session, source, row, progress, kind)
    elif kind is Kind.LOGS:
        _logs(session, source, row, progress)
    elif kind is Kind.SEARCHES:
        _searches(session, row, progress)
    else:
        _records(session, source, row, progress, came, BY_KIND[kind])


def _records(session: Session, source: Source, row: Import, progress: ImportTable, came: Came, table: Table) -> None:
    rows = source.all(table.query, {"after": progress.cursor or table.first, "limit": table.page})
    came.look_up(session, rows, table.refs)
    known = marks(session, row.cluster_id, table.kind, [str(each["key"]) for each in rows])
    context = context_of(session, row, came)
    for each in rows:
        progress.read += 1
        key = str(each["key"])
        made = table.made(each, context)
        if isinstance(made, Skipped):
            note_skipped(progress, key, made.reason)
            continue
        if row.is_shifted and key in known and stands_for(table, made, known[key][0]):
            progress.unchanged += 1
            continue
        wanted = _compared(table, made)
        found = _ours(session, made, wanted, table) if key in known else None
        _add(progress, "checksum", _sum(wanted))
        if found is None:
            progress.differing += 1
            note_skipped(progress, key, _MISSING)
            continue
        _add(progress, "our_checksum", _sum(found))
        if found == wanted:
            progress.unchanged += 1
        else:
            progress.differing += 1
            names = ", ".join(sorted(name for name in wanted if wanted[name] != found.get(name)))
            note_skipped(progress, f"{key} ({names})", _DIFFERS)
    progress.cursor = str(rows[-1]["key"]) if rows else progress.cursor
    progress.is_done = len(rows) < table.page


#: What changes here of itself: by logins, by who imports, by names that others had here before.
_LEFT_OUT = {
    Kind.USERS: ("password_hash", "last_auth_at", "modified_at", "is_admin", "is_active"),
    Kind.TRIALS: ("metrics_run_id",),
    Kind.EXPERIMENTS: ("error",),
}


def _compared(table: Table, made: Record) -> dict[str, Any]:
    left_out = _LEFT_OUT.get(table.kind, ())
    return {name: _plain(value) for name, value in made.values.items() if name not in left_out}


def _ours(session: Session, made: Record, wanted: dict[str, Any], table: Table) -> dict[str, Any] | None:
    columns = made.model.__table__.c
    by = table.by or tuple(made.values)
    statement = select(*(columns[name] for name in wanted)).where(
        and_(*(columns[name].is_not_distinct_from(made.values[name]) for name in by))
    )
    found = session.execute(statement.limit(1)).mappings().first()
    return None if found is None else {name: _plain(found[name]) for name in wanted}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return UtcTime().process_bind_param(value, None).isoformat()  # pyright: ignore
    if isinstance(value, dict | list):
        return orjson.loads(orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS))
    return value


def _sum(values: dict[str, Any]) -> int:
    content = orjson.dumps(values, default=str, option=orjson.OPT_SORT_KEYS)
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def _add(progress: ImportTable, column: str, value: int) -> None:
    """Sums of 64 bits, which do not depend on the order of what they are over."""
    total = int(getattr(progress, column) or "0", 16) + value
    setattr(progress, column, f"{total & _MASK:016x}")


def _metrics(session: Session, source: Source, row: Import, progress: ImportTable, kind: Kind) -> None:
    """Trial by trial, all reports of both sides."""
    there = source.all(
        "SELECT r.id AS trial_id FROM runs r JOIN trials_v2 v ON v.run_id = r.id WHERE r.id > %s ORDER BY 1 LIMIT 50",
        [int(progress.cursor or 0)],
    )
    keys = [each["trial_id"] for each in there]
    known = marks(session, row.cluster_id, Kind.TRIALS, map(str, keys))
    for key in keys:
        ours = int(known[str(key)][0]) if str(key) in known else None
        theirs = list(metrics.reports(source, kind, key, ours or 0))
        mine = list(_our_reports(session, kind, ours)) if ours is not None else []
        sums = sum(map(metrics.checksum, theirs)), sum(map(metrics.checksum, mine))
        progress.read += len(theirs)
        progress.cursor = str(key)
        if ours is None:
            if theirs:
                note_skipped(progress, str(key), "their trials did not come")
            continue
        _add(progress, "checksum", sums[0])
        _add(progress, "our_checksum", sums[1])
        if sums[0] == sums[1] and len(theirs) == len(mine):
            progress.unchanged += len(theirs)
        else:
            progress.differing += max(len(theirs), len(mine))
            note_skipped(progress, f"trial {key}", _DIFFERS)
    progress.is_done = len(keys) < 50


def _our_reports(session: Session, kind: Kind, trial_id: int) -> Iterable[metrics.Report]:
    with snapshot(session) as own:
        for each in with_archived(own, trial_id):
            if (each.total_batches is not None) is not (kind is Kind.METRICS):
                continue
            batches = each.batch_metrics
            yield metrics.Report(
                trial_id, each.group_name, each.total_batches, each.run_id, each.archived,
                each.reported_at.strftime("%Y-%m-%d %H:%M:%S.%f"), 0.0,
                orjson.dumps(each.metrics).decode(), None if batches is None else orjson.dumps(batches).decode(),
            )  # fmt: skip


def _logs(session: Session, source: Source, row: Import, progress: ImportTable) -> None:
    tasks = source.all(logs.TASKS, {"after": progress.cursor, "limit": 50})
    known = marks(session, row.cluster_id, Kind.TRIALS, [str(each["trial_id"]) for each in tasks])
    for task in tasks:
        progress.cursor = task["key"]
        if str(task["trial_id"]) not in known:
            continue
        theirs = [str(line.log) for _, line in logs.lines(source, task, 0)]
        mine = [str(line.log) for line in lines_of(session, [task["key"]], LogFilter(), most=len(theirs))]
        progress.read += len(theirs)
        for column, lines in (("checksum", theirs), ("our_checksum", mine)):
            _add(progress, column, sum(_sum({"line": line}) for line in lines))
        if mine == theirs:
            progress.unchanged += len(theirs)
        else:
            progress.differing += len(theirs)
            note_skipped(progress, task["key"], _DIFFERS)
    progress.is_done = len(tasks) < 50


def _searches(session: Session, row: Import, progress: ImportTable) -> None:
    """Each rebuilt search has decisions: they follow from what was compared before."""
    mine = select(ImportMark.ours).where(ImportMark.source == row.cluster_id, ImportMark.kind == Kind.SEARCHES)
    for ours in session.scalars(mine):
        progress.read += 1
        statement = select(func.count()).select_from(SearchDecision).where(SearchDecision.experiment_id == int(ours))
        if session.scalar(statement):
            progress.unchanged += 1
        elif session.scalar(select(Trial.id).where(Trial.experiment_id == int(ours)).limit(1)) is not None:
            progress.differing += 1
            note_skipped(progress, ours, _MISSING)
    progress.is_done = True
