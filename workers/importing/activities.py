"""What the Import workflow calls: each goes on where an earlier attempt stopped, and stops if another one took over."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import psycopg
import structlog
from sqlalchemy import select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from temporalio.exceptions import ApplicationError

from database.errors import reason_of
from database.models import Import, ImportMark, ImportTable, ResourcePool, TokenKey, Trial
from database.session import Database
from database.types import utc_now
from database.upsert import insert
from workers.importing import logs, metrics, past, verification
from workers.importing.kinds import BY_KIND
from workers.importing.rows import Skipped
from workers.importing.source import Source, SourceRefused, opened
from workers.importing.target import (
    GOES_ON,
    Came,
    Replaced,
    claim,
    collisions,
    context_of,
    held,
    mark,
    marks,
    note_skipped,
    reserve_numbers,
    shifts_of,
    write_page,
)
from workflows.lifecycle.imports import ENDED, ImportMode, ImportState, Kind
from workflows.messages import ErrorType, ImportOrder, ImportOutcome, ImportPlan, ImportStep

log = structlog.get_logger()

#: Kinds that a plan only counts, as they follow from others.
_COUNTED = (Kind.METRICS, Kind.SYSTEM_METRICS, Kind.SEARCHES, Kind.LOGS)
_LONGEST_ERROR = 1000


class Importing:
    """Activities of the orchestrator (`entry`); all of them may be done again."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin_import(self, order: ImportOrder) -> ImportPlan:
        """Look at the other database, refuse what can't be imported, and say what there is to do."""
        with self._told(order.import_id), self._source(order.import_id) as source:
            totals = {kind: _count(source, kind) for kind in Kind}  # seconds, in which nobody waits for a lock
            self._begin(order, source, totals)
        return ImportPlan(kinds=list(Kind))

    def _begin(self, order: ImportOrder, source: Source, totals: dict[Kind, int]) -> None:
        with self._database.write() as session:
            row = self._row(session, order.import_id)
            row.error = ""
            row.state, row.cluster_id, row.schema_version = ImportState.RUNNING.value, source.cluster_id, source.version
            row.shifts = shifts_of(session, source.cluster_id) if row.is_shifted else {}
            taken = {} if row.is_shifted else collisions(session, source, source.cluster_id)
            row.warnings = [*source.warnings, *_warnings(session, source, row, taken)]
            if taken and order.mode is ImportMode.RUN:
                raise SourceRefused(f"{_told_of(taken)} `--shift` moves all numbers of what comes")
            if order.mode is ImportMode.RUN:
                reserve_numbers(session, source, row.shifts)
                self._take_key(session, source)
            for place, kind in enumerate(Kind):
                if session.get(ImportTable, (row.id, kind.value)) is None:
                    session.add(ImportTable(import_id=row.id, kind=kind.value, place=place, total=totals[kind]))

    def import_records(self, step: ImportStep) -> None:
        """Bring the records of one kind over, or hold them against their source. Done again, it goes on."""
        holder = claim(self._database, step.import_id, step.kind)
        with self._told(step.import_id), self._source(step.import_id) as source:
            try:
                self._work(step, holder, source)
            except Replaced:
                log.info("another attempt goes on with this import", import_id=step.import_id, kind=step.kind)

    def end_import(self, outcome: ImportOutcome) -> None:
        """Record how an import ended, and forget the address of its source."""
        with self._database.write() as session:
            row = session.get(Import, outcome.import_id)
            if row is None or row.state in ENDED:
                return
            was = ImportState(row.state)
            row.state = (ImportState.ERROR if outcome.error else ImportState.COMPLETED).value
            if was is ImportState.CANCELING:
                row.state = ImportState.CANCELED.value
            row.source, row.ended_at = "", utc_now()
            row.error = "" if was is ImportState.CANCELING else outcome.error[:_LONGEST_ERROR]

    # -- one kind ----------------------------------------------------------------------------------------------------

    def _work(self, step: ImportStep, holder: str, source: Source) -> None:
        kind = step.kind
        if step.mode is ImportMode.PLAN:
            work = _counted if kind in _COUNTED else _planned
        elif step.mode is ImportMode.VERIFY:
            work = verification.page
        elif kind is Kind.LOGS:
            work = _log_page
        elif kind is Kind.SEARCHES:
            work = past.page
        else:
            work = _metrics_page if kind in metrics.PARTITIONS else _page
        came: Came | None = None
        while True:
            with self._database.write() as session:
                row = self._row(session, step.import_id)
                progress = held(session, step.import_id, kind, holder)
                if progress.is_done:
                    return
                progress.started_at, row.error = progress.started_at or utc_now(), ""
                if came is None:
                    came = Came(session, row.cluster_id, is_plan=step.mode is ImportMode.PLAN)
                work(session, source, row, progress, came)
                if progress.is_done:
                    progress.ended_at = utc_now()

    def _row(self, session: Session, import_id: int) -> Import:
        """The import, as long as it is to go on."""
        row = session.get(Import, import_id)
        if row is None or row.state in (*ENDED, ImportState.CANCELING):
            raise ApplicationError("it was canceled", type=ErrorType.IMPORT_ENDED, non_retryable=True)
        return row

    @contextmanager
    def _source(self, import_id: int) -> Generator[Source]:
        with self._database.read() as session:
            url = self._row(session, import_id).source
        with opened(url) as source:
            yield source

    @contextmanager
    def _told(self, import_id: int) -> Generator[None]:
        """Errors in words for users: final ones end the import, others are tried again. No address is among them."""
        try:
            yield
        except SourceRefused as error:
            raise ApplicationError(str(error), type=ErrorType.IMPORT_ENDED, non_retryable=True) from None
        except psycopg.Error as error:
            is_away = isinstance(error, psycopg.OperationalError) and not _is_refusal(error)
            reason = f"the other database: {(str(error).splitlines() or ['it does not answer'])[0]}"[:_LONGEST_ERROR]
            if not is_away:
                raise ApplicationError(reason, type=ErrorType.IMPORT_ENDED, non_retryable=True) from None
            self._note_wait(import_id, reason)
            raise ApplicationError(reason, type="SourceAway") from None
        except SQLAlchemyError as error:
            raise ApplicationError(f"the records: {reason_of(error)}"[:_LONGEST_ERROR], type="RecordsAway") from None

    def _note_wait(self, import_id: int, reason: str) -> None:
        """Show why it does not go on at the moment."""
        with self._database.write() as session:
            mine = Import.id == import_id, Import.state.not_in(ENDED)
            session.execute(update(Import).where(*mine).values(error=f"tried again: {reason}"[:_LONGEST_ERROR]))

    @staticmethod
    def _take_key(session: Session, source: Source) -> None:
        """The public half of the key that the other master signs tokens with: the tokens go on opening the API."""
        for row in source.all("SELECT public_key FROM auth_token_keypair"):
            values = {"public_key": bytes(row["public_key"]).hex(), "source": source.cluster_id}
            session.execute(insert(session, TokenKey).values(values).on_conflict_do_nothing())


def _is_refusal(error: psycopg.Error) -> bool:
    """Whether a connection was refused for a reason that time does not change: a password, a database, TLS."""
    words = str(error)
    return any(
        said in words for said in ("authentication failed", "does not exist", "no pg_hba.conf", "SSL", "resolve")
    )


def _count(source: Source, kind: Kind) -> int:
    if kind in metrics.PARTITIONS:
        query = "SELECT count(*) AS n FROM metrics WHERE partition_type = ANY(%s)"
        return int(source.one(query, [metrics.PARTITIONS[kind]])["n"])
    if kind is Kind.LOGS:
        return int(source.one(logs.COUNT)["n"])
    if kind is Kind.SEARCHES:
        return int(source.one(past.COUNT)["n"])
    return int(source.one(BY_KIND[kind].count)["n"])


def _told_of(taken: dict[Kind, list[int]]) -> str:
    told = [
        f"{len(numbers)} of its {kind} have numbers or names that others have here ({', '.join(map(str, numbers[:5]))}"
        f"{', …' if len(numbers) > 5 else ''})"
        for kind, numbers in taken.items()
    ]
    return f"{'; '.join(told)}." if told else ""


def _warnings(session: Session, source: Source, row: Import, taken: dict[Kind, list[int]]) -> list[str]:
    """What is to be known before a run, in sentences."""
    told = [f"COLLIDES: {_told_of(taken)} A run is refused; `--shift` moves all numbers of what comes"] if taken else []
    unfinished = source.all(
        "SELECT state::text AS state, count(*) AS n FROM experiments WHERE NOT unmanaged"
        " AND state::text NOT IN ('COMPLETED', 'CANCELED', 'ERROR', 'DELETING', 'DELETED', 'DELETE_FAILED')"
        " GROUP BY 1 ORDER BY 1"
    )
    for found in unfinished:
        told.append(
            f"{found['n']} experiments are {found['state']} there: they come as CANCELED, and `det experiment continue`"
            " goes on with them"
        )
    pools = source.all(
        "SELECT coalesce(nullif(config->'resources'->>'resource_pool', ''), '') AS pool, count(*) AS n FROM experiments"
        " GROUP BY 1 ORDER BY 2 DESC LIMIT 20"
    )
    known = {*session.scalars(select(ResourcePool.name)), ""}
    for found in pools:
        if found["pool"] not in known:
            told.append(
                f"{found['n']} experiments name the resource pool {found['pool']!r}, which is not here: to continue"
                f" them, make it (`det resource-pool create {found['pool']}`)"
            )
    others = int(source.one("SELECT count(*) AS n FROM tasks WHERE task_type NOT IN ('TRIAL', 'CHECKPOINT_GC')")["n"])
    if others:
        told.append(f"{others} notebooks, shells, commands and TensorBoards, and their logs, stay there")
    if int(source.one("SELECT count(*) AS n FROM users WHERE password_hash IS NULL AND NOT remote")["n"]):
        told.append("users without a password can't log in here until an administrator sets one")
    if not row.is_shifted:
        told.append("users of both clusters, such as admin, get the password that they have there")
    return told


def _page(session: Session, source: Source, row: Import, progress: ImportTable, came: Came) -> None:
    table = BY_KIND[Kind(progress.kind)]
    rows = source.all(table.query, {"after": progress.cursor or table.first, "limit": table.page})
    write_page(session, table, rows, context_of(session, row, came), came, progress, source)
    progress.cursor = str(rows[-1]["key"]) if rows else progress.cursor
    progress.is_done = len(rows) < table.page


def _planned(session: Session, source: Source, row: Import, progress: ImportTable, came: Came) -> None:
    """What a run would do with a page, as far as that follows from each row."""
    table = BY_KIND[Kind(progress.kind)]
    rows = source.all(table.query, {"after": progress.cursor or table.first, "limit": table.page})
    context = context_of(session, row, came)
    for found in rows:
        progress.read += 1
        made = table.made(found, context)
        if isinstance(made, Skipped):
            note_skipped(progress, str(found["key"]), made.reason)
        else:
            progress.written += 1
    progress.cursor = str(rows[-1]["key"]) if rows else progress.cursor
    progress.is_done = len(rows) < table.page


def _counted(session: Session, source: Source, row: Import, progress: ImportTable, came: Came) -> None:
    progress.read = progress.written = progress.total
    progress.is_done = True


def _trials_after(session: Session, row: Import, cursor: str, limit: int) -> tuple[list[tuple[int, int]], int | None]:
    """The imported ones among the next trials: number there and here; and where to go on, None after the last.

    Trials that this cluster made itself may lie between them, any number of them.
    """
    shift = int(row.shifts.get(Kind.TRIALS, 0))
    after = int(cursor or 0) + shift
    ids = session.scalars(select(Trial.id).where(Trial.id > after).order_by(Trial.id).limit(limit)).all()
    came: set[int] = set()
    for begin in range(0, len(ids), 500):
        mine = ImportMark.ours.in_([str(number) for number in ids[begin : begin + 500]])
        statement = select(ImportMark.ours).where(
            ImportMark.source == row.cluster_id, ImportMark.kind == Kind.TRIALS, mine
        )
        came |= set(map(int, session.scalars(statement)))
    return [(here - shift, here) for here in ids if here in came], None if len(ids) < limit else ids[-1] - shift


def _metrics_page(session: Session, source: Source, row: Import, progress: ImportTable, came: Came) -> None:
    kind = Kind(progress.kind)
    limit = metrics.looked_at(kind)
    trials, further = _trials_after(session, row, progress.cursor, limit)
    found = metrics.counts(source, kind, [there for there, _ in trials])
    known = marks(session, row.cluster_id, kind, [str(there) for there, _ in trials])
    gone_on = metrics.gone_on(session, [here for _, here in trials])
    chosen: list[tuple[int, int, str]] = []
    size = 0
    for there, here in trials:
        count, was = found.get(there, (0, ""))
        before = known.get(str(there))
        if before is not None and before[1] == was:
            progress.unchanged += count
        elif here in gone_on:
            note_skipped(progress, str(there), GOES_ON)
        elif count or before is not None:
            if chosen and kind is Kind.METRICS and size + count > metrics.AT_ONCE:
                further = int(progress.cursor)
                break
            chosen.append((there, here, was))
            size += count
        progress.read += count
        progress.cursor = str(there)
    if chosen:
        metrics.import_trials(session, source, kind, row.cluster_id, chosen, progress)
    progress.is_done = further is None
    progress.cursor = progress.cursor if further is None else str(further)


def _log_page(session: Session, source: Source, row: Import, progress: ImportTable, came: Came) -> None:
    tasks = source.all(logs.TASKS, {"after": progress.cursor, "limit": logs.LOOKED_AT})
    came.look_up(session, tasks, {"trial_id": Kind.TRIALS})
    found = logs.newest(source, tasks)
    known = marks(session, row.cluster_id, Kind.LOGS, [task["key"] for task in tasks])
    room, is_full = logs.AT_ONCE, False
    together: dict[str, tuple[dict[str, Any], int]] = {}
    for task in tasks:
        key = task["key"]
        count, newest = found.get(key, (0, 0))
        done = int(known[key][0]) if key in known else 0
        if newest <= done:
            progress.read += count
            progress.unchanged += count
        elif task["trial_id"] is None or came(Kind.TRIALS, task["trial_id"]) is None:
            note_skipped(progress, key, "they are of tasks that are no trials, or whose trials did not come")
            progress.read += count
        elif room <= 0:
            is_full = True
        elif count <= room and task["log_version"] != 0:
            together[key] = task, done
            room -= count
        else:
            written, upto = logs.copy(session, source, task, done, room)
            room -= written
            progress.written += written
            progress.read += written
            mark(session, row.cluster_id, Kind.LOGS, [(key, str(upto), "")])
            is_full = upto < newest
        if is_full:
            break
        progress.cursor = key
    if together:
        written = logs.copy_all(session, source, together)
        progress.written += written
        progress.read += written
        mark(session, row.cluster_id, Kind.LOGS, [(key, str(found[key][1]), "") for key in together])
    progress.is_done = not is_full and len(tasks) < logs.LOOKED_AT
