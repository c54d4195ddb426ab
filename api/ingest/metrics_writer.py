"""Writes metric reports in batches: all reports that arrive during one transaction go into the next.

A report is answered when it is committed. Order within a trial is the order of arrival.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from queue import Empty, SimpleQueue
from typing import Any, cast

import structlog
from sqlalchemy import Connection, select, update
from sqlalchemy.exc import DataError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnection
from sqlalchemy.orm import Session

from api.auth.authentication import allocation_ended
from api.errors import ApiError, BadRequest, NotFound, Unavailable
from api.ingest import delays
from api.ingest.curves import Packed, put
from api.ingest.metric_blocks import Group, Unsealed, reopen, restore_at, seal
from api.ingest.metric_store import MetricRow, MetricStore, PostgresStore, SqliteStore, TrialRow, storable
from api.ingest.metric_webhooks import MetricHooks
from api.ingest.summary import MOST_NAMES, SYSTEM_GROUPS, add_report, is_better
from api.schemas.base import number, plain
from api.schemas.metrics import MetricReport
from api.temporal.outbox import post, release_start
from database.models import Metric
from database.reports import in_order
from database.session import Database
from database.types import utc_now
from workflows import names

log = structlog.get_logger()

#: Of a name of a metric.
_LONGEST_NAME = 500
#: Reports become blocks when none has come for so long, in seconds; while they come, in this part of the thread's time.
#: When none comes, the thread rests twice as long as each piece took: requests run in others.
_PAUSE_S, _SEALS = 0.02, 0.1
#: Requests of one transaction, and reports of these: others wait for as many rows, a fraction of a second.
_MOST_WORKS, _MOST_REPORTS = 200, 4_000


@dataclass(slots=True)
class _Work:
    trial_id: int
    allocation_id: str | None
    reports: Sequence[MetricReport]
    done: asyncio.Future[None]
    curves: Packed | None = None  # all reports of one group: those of `reports`, or beside these

    @property
    def is_apart(self) -> bool:
        """Whether the curves' reports are none of `reports`."""
        return self.curves is not None and len(self.others) == len(self.reports)

    @property
    def others(self) -> Sequence[MetricReport]:
        """The reports beside the curves."""
        if self.curves is None:
            return self.reports
        return [report for report in self.reports if report.group != self.curves.sent.group]


class MetricsWriter:
    """One writer thread a process, with a connection of its own."""

    def __init__(self, database: Database, on_post: Callable[[], None]) -> None:
        self._database = database
        self._on_post = on_post
        self._hooks = MetricHooks(database)
        self._waiting: SimpleQueue[_Work | Group | None] = SimpleQueue()
        self._store: MetricStore | None = None  # of the thread, from here on
        self._unsealed = Unsealed()

    async def write(
        self,
        trial_id: int,
        reports: Sequence[MetricReport],
        allocation_id: str | None,
        curves: Packed | None = None,
    ) -> None:
        """Store reports of a trial, in order; returns when they are committed.

        Args:
            trial_id: The trial.
            reports: What to store.
            allocation_id: Whose container reports: refused when it has ended. None: a user reports.
            curves: All reports of one group as columns: those in `reports`, or what is to be stored before these.

        Raises: ApiError.
        """
        if self._waiting.qsize() > 5000:
            raise Unavailable("too many metric reports are waiting: try again")
        work = _Work(trial_id, allocation_id, reports, asyncio.get_running_loop().create_future(), curves)
        self._waiting.put(work)
        await work.done

    def add_unsealed(self, groups: Iterable[Group]) -> None:
        """Groups of trials that have many reports in no block, as a reader saw: they get blocks when there is time."""
        for group in groups:
            self._waiting.put(group)

    async def run(self) -> None:
        """Write until cancelled, and then what waits already."""
        loop = asyncio.get_running_loop()
        thread = threading.Thread(target=self._run, args=(loop,), name="metrics", daemon=True)
        thread.start()
        try:
            await loop.create_future()
        finally:
            self._waiting.put(None)
            await asyncio.to_thread(thread.join)

    def _deliver(self, batch: Sequence[_Work], outcomes: Sequence[Exception | None], is_posted: bool) -> None:
        if is_posted:
            self._on_post()
        for work, outcome in zip(batch, outcomes, strict=True):
            if work.done.cancelled():
                continue
            if outcome is None:
                work.done.set_result(None)
            else:
                work.done.set_exception(outcome)

    # -- the thread

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        pause = seal_again_at = 0.0
        while (batch := self._next_batch(pause)) is not None:
            for _, some in groupby(batch, key=lambda work: id(work) if work.curves else None):
                works = list(some)
                outcomes, is_posted = self._write_works(works)
                loop.call_soon_threadsafe(self._deliver, works, outcomes, is_posted)
            pause = _PAUSE_S
            if not batch or time.monotonic() >= seal_again_at:
                began = time.monotonic()
                self._seal_some()
                took = (now := time.monotonic()) - began
                seal_again_at = now + took * (1 / _SEALS - 1)
                if not batch:
                    pause = 2 * took
        self._disconnect()

    def _next_batch(self, pause: float) -> list[_Work] | None:
        """What waits, as much as a transaction takes; None at the end.

        Waits for the first: `pause` seconds if there is work meanwhile.
        """
        batch: list[_Work] = []
        count = 0
        with contextlib.suppress(Empty):
            while len(batch) < _MOST_WORKS and count < _MOST_REPORTS:
                work = self._waiting.get(block=not batch, timeout=pause if self._unsealed else None)
                if work is None:
                    if not batch:
                        return None
                    self._waiting.put(None)
                    break
                if isinstance(work, _Work):
                    batch.append(work)
                    count += len(work.reports)
                else:
                    self._unsealed.add(*work)
        return batch

    def _seal_some(self) -> None:
        """Blocks of one group that has enough reports. What fails waits for the next reports, or for a reader."""
        if not self._unsealed:
            return
        trial_id, group = self._unsealed.take()
        try:
            store = self._connect()
            store.forget(trial_id)
            with store.connection.begin():
                if seal(store.connection, trial_id, group):
                    self._unsealed.add(trial_id, group)
        except Exception:
            log.exception("reports could not be put into blocks", trial=trial_id, group=group)
            self._disconnect()

    def _write_works(self, batch: Sequence[_Work]) -> tuple[Sequence[Exception | None], bool]:
        is_old_connection = self._store is not None
        try:
            return self._write_batch(batch)
        except (OperationalError, NoConnection) as error:  # the database is away: for all of them
            self._disconnect()
            if isinstance(error, OperationalError) and error.connection_invalidated and is_old_connection:
                return self._write_works(batch)  # it was away in the meantime, and may be back
            return [error] * len(batch), False
        except Exception as error:  # noqa: BLE001 - its caller gets it
            if not isinstance(error, ApiError | DataError):
                self._disconnect()  # whatever state it is in
            if len(batch) == 1:
                return [error], False
            # one is at fault, not all: nothing of them is written yet
            half = len(batch) // 2
            first, second = self._write_works(batch[:half]), self._write_works(batch[half:])
            return [*first[0], *second[0]], first[1] or second[1]

    def _write_batch(self, batch: Sequence[_Work]) -> tuple[Sequence[Exception | None], bool]:
        store = self._connect()
        if self._add_to_known(store, batch):
            return [None] * len(batch), False
        self._hooks.refresh()
        with store.reading({work.trial_id for work in batch}) as trials:
            outcomes = [_refusal(trials.get(work.trial_id), work) for work in batch]
            reports = [
                (trials[work.trial_id], report)
                for work, refusal in zip(batch, outcomes, strict=True)
                if refusal is None
                for report in _rows_of(store.connection, trials[work.trial_id], work)
            ]
            for trial, report in reports:
                if report.steps_completed is None:
                    continue
                if trial.run_id > trial.metrics_run_id:
                    _roll_back(store.connection, trial, report.group, report.steps_completed)
                restore_at(store.connection, trial.id, trial.sealed, report.steps_completed, report.group)
            rows = [_row(trial, report) for trial, report in reports]
            is_posted = False
            now, late = utc_now(), dict[int, list[tuple[int, datetime]]]()
            for (trial, _), row, metric_id in zip(reports, rows, store.insert(rows), strict=True):
                is_posted |= _note(store.connection, trial, row, metric_id, self._hooks)
                if metric_id is not None and row["total_batches"] is not None:
                    self._unsealed.count(trial.id, row["group_name"])
                    if _is_late(trial, row, now):
                        late.setdefault(trial.id, []).append((row["total_batches"], row["reported_at"]))
            for trial_id, reported in late.items():
                made = min(at for _, at in reported).timestamp()
                delays.note(store.connection, trial_id, [step for step, _ in reported], made, now)
            # what people and searches decide by is on disk when it is answered; a curve may lose its last half second
            is_durable = is_posted or any(row["group_name"] == "validation" for row in rows) or bool(batch[0].curves)
            store.save([trial for trial in trials.values() if trial.is_changed], is_durable=is_durable)
        return outcomes, is_posted

    def _add_to_known(self, store: MetricStore, batch: Sequence[_Work]) -> bool:
        """Write reports from which only totals follow, of trials that the store knows. False: nothing is written."""
        trials = None if batch[0].curves else store.known({work.trial_id for work in batch})
        if trials is None or any(_refusal(trials[work.trial_id], work) is not None for work in batch):
            return False  # a refusal is for what is there, not for what is known
        now = utc_now()
        whose = ((trials[work.trial_id], report) for work in batch for report in work.reports)
        reports = [(trial, _row(trial, report)) for trial, report in whose]
        if not all(_only_counts(trial, row, now) for trial, row in reports):
            return False
        for trial, row in reports:
            if row["total_batches"] is not None and row["group_name"] not in SYSTEM_GROUPS:
                _fold(trial, row["group_name"], row["total_batches"], row["metrics"], is_new=True)
        if not store.add(trials, [row for _, row in reports]):
            return False
        for trial, row in reports:
            if row["total_batches"] is not None:
                self._unsealed.count(trial.id, row["group_name"])
        return True

    def _connect(self) -> MetricStore:
        if self._store is None:
            connection = self._database.connect_lazy_writer()
            self._store = SqliteStore(connection) if self._database.is_sqlite else PostgresStore(connection)
        return self._store

    def _disconnect(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with contextlib.suppress(Exception):  # it may be broken, and the thread must live on
                store.connection.close()


def _refusal(trial: TrialRow | None, work: _Work) -> ApiError | None:
    """Why nothing of a request is stored, as far as that is known before anything is written."""
    if trial is None:
        return NotFound(f"trial {work.trial_id} not found")
    if work.allocation_id not in (None, trial.allocation_id):
        return allocation_ended()
    try:
        for report in (*work.others, work.curves.first) if work.curves else work.reports:
            _check(trial, report)
    except ApiError as error:
        return error
    return None


def _rows_of(connection: Connection, trial: TrialRow, work: _Work) -> Iterable[MetricReport]:
    """The reports of a request that are to be rows: all, or all but its curves if these became blocks."""
    curves = work.curves
    if curves is None:
        return work.reports
    if trial.run_id > trial.metrics_run_id:
        steps = () if work.is_apart else (report for report in work.reports if report.steps_completed is not None)
        first = next(iter(steps), curves.first)
        _roll_back(connection, trial, first.group, first.steps_completed or 0)
    known = trial.sealed.get(curves.sent.group)
    is_new = known is None or known["to"] < curves.steps[0]
    if not put(connection, trial, curves):
        return [*curves.reports(), *work.reports] if work.is_apart else work.reports
    now = utc_now()
    late = now.timestamp() - curves.times > delays.LATE_S
    if curves.is_reported and is_new and trial.allocation_id is not None and late.any():
        delays.note(connection, trial.id, curves.steps[late].tolist(), float(curves.times.min()), now)
    return work.others


def _check(trial: TrialRow, report: MetricReport) -> None:
    group = report.group
    if not group or "." in group or len(group) > 120:
        raise BadRequest(f"metric group {group[:130]!r}: expected a name of 1 to 120 characters without a dot")
    if report.trial_run_id != trial.run_id:
        raise BadRequest(f"invalid run id, {report.trial_run_id} (reported) != {trial.run_id} (expected)")
    if report.steps_completed is None and group not in SYSTEM_GROUPS:
        raise BadRequest(f"steps_completed is missing in a report of group {group!r}: expected an integer")
    if report.steps_completed is not None and not 0 <= report.steps_completed < 2**63:
        raise BadRequest(f"steps_completed: {report.steps_completed}: expected 0 or more, and less than 2^63")
    if report.metrics.batch_metrics and group != "training":
        raise BadRequest(f"batch_metrics are for group 'training' only, not for {group!r}")
    told = report.metrics.avg_metrics
    if told and (len(told) > MOST_NAMES or len(max(told, key=len)) > _LONGEST_NAME):
        raise BadRequest(
            f"metrics: {len(told)} of them, the longest name of {len(max(told, key=len))} characters: the limits are"
            f" {MOST_NAMES} names and {_LONGEST_NAME} characters"
        )
    known = trial.summary.get(group)
    if known and len(known) + len(told) > 2 * MOST_NAMES < len(known.keys() | told.keys()):
        raise BadRequest(f"metrics: group {group!r} of this trial would have more than {2 * MOST_NAMES} names")
    for name in ("epoch", "epochs"):
        value = report.metrics.avg_metrics.get(name)
        if value is not None and number(value) is None:
            raise BadRequest(f"metric {name!r}: expected a number, got {value!r}")


def _row(trial: TrialRow, report: MetricReport) -> MetricRow:
    metrics = plain(report.metrics.avg_metrics)
    return {
        "trial_id": trial.id,
        "run_id": report.trial_run_id,
        "group_name": report.group,
        "total_batches": report.steps_completed,
        "metrics": metrics,
        "batch_metrics": plain(report.metrics.batch_metrics) or None,
        "searcher_metric": storable(_searched(trial, report.group, metrics)),
        "reported_at": report.report_time or utc_now(),
    }


def _is_late(trial: TrialRow, row: MetricRow, now: datetime) -> bool:
    """Whether a report waited on its host's disk. A user who reports without a container may say any time."""
    if trial.allocation_id is None or row["group_name"] in SYSTEM_GROUPS:
        return False
    return (now - row["reported_at"]).total_seconds() > delays.LATE_S


def _searched(trial: TrialRow, group: str, metrics: dict[str, Any]) -> float | None:
    return number(metrics.get(trial.metric_name)) if group == "validation" else None


def _note(connection: Connection, trial: TrialRow, row: MetricRow, metric_id: int | None, hooks: MetricHooks) -> bool:
    """Note what follows from a report; True if a message for the search or a webhook was posted.

    Raises: BadRequest if it contradicts the one that was there (`metric_id` is None).
    """
    group, step, metrics, fresh = row["group_name"], row["total_batches"], row["metrics"], row["metrics"]
    if step is None:
        return False
    is_new = metric_id is not None
    if metric_id is None:
        metric_id, metrics, fresh = _merge(connection, row)
    is_posted = False
    if (is_new or fresh) and group in trial.sealed:
        reopen(connection, trial.id, trial.sealed, step, group)
    if group not in SYSTEM_GROUPS and (is_new or fresh):
        if group == "validation" and (crossings := hooks.crossed(connection, trial, step, fresh)):
            is_posted = hooks.post(connection, trial, step, crossings)
        _fold(trial, group, step, fresh, is_new=is_new)
        _note_validation(trial, metric_id, _searched(trial, group, fresh))
    return (group == "validation" and _post_validation(connection, trial, step, metrics)) or is_posted


def _only_counts(trial: TrialRow, row: MetricRow, now: datetime) -> bool:
    """Whether nothing but the trial's totals follows from a report of a new step."""
    group, step = row["group_name"], row["total_batches"]
    if step is None:
        return True
    sealed = trial.sealed.get(group)
    return (
        group != "validation"
        and trial.run_id <= trial.metrics_run_id
        and (sealed is None or step > sealed["to"])
        and not _is_late(trial, row, now)
    )


def _fold(trial: TrialRow, group: str, step: int, metrics: dict[str, Any], *, is_new: bool) -> None:
    trial.is_changed = True
    trial.total_batches = max(trial.total_batches, step)
    add_report(trial.summary, group, metrics, is_more=not is_new)


def _note_validation(trial: TrialRow, metric_id: int, searched: float | None) -> None:
    if searched is None:
        return
    trial.latest_validation_id, trial.latest_metric = metric_id, searched
    if trial.best_validation_id is None or is_better(
        searched, trial.searcher_metric, smaller_is_better=trial.smaller_is_better
    ):
        trial.best_validation_id = metric_id
        trial.searcher_metric = searched


def _post_validation(connection: Connection, trial: TrialRow, step: int, metrics: dict[str, Any]) -> bool:
    reached = _reached(trial, step, metrics)
    if not trial.wants_validations and reached is None:
        return False
    # histories keep what the search decides by, not all that code reports
    decisive = {name: metrics[name] for name in (trial.metric_name, trial.time_metric) if name in metrics}
    payload: dict[str, Any] = {"request_id": trial.request_id, "steps_completed": step, "metrics": decisive}
    if reached is not None:
        payload["reached"] = reached
    with Session(connection) as session:
        if not trial.run_id:  # a user reports for a trial that never ran: the search may not have been started
            release_start(session, trial.experiment_id)
        post(session, names.experiment_workflow(trial.experiment_id), "validation_reported", payload)
        session.flush()
    return True


def _reached(trial: TrialRow, step: int, metrics: dict[str, Any]) -> float | None:
    """How far a trial came that asks for no operations, if that is the end of the open one.

    In units of max_length: what the code reports under the unit's name, else steps, of which Core API scripts say
    themselves what they are.
    """
    if trial.open_length is None or metrics.get(trial.metric_name) is None:
        return None
    said = metrics.get(trial.time_metric) if trial.time_metric else None
    reached = float(said) if isinstance(said, int | float) and math.isfinite(said) else float(step)
    return reached if reached >= trial.open_length else None


def _merge(connection: Connection, new: MetricRow) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """Unite with the report of the same group and step: its id, all metrics, the new ones. Equal is a repeat."""
    old = connection.execute(
        select(Metric.id, Metric.metrics, Metric.batch_metrics, Metric.searcher_metric).where(
            Metric.trial_id == new["trial_id"],
            Metric.group_name == new["group_name"],
            Metric.total_batches == new["total_batches"],
            ~Metric.archived,
        )
    ).one()
    for name, value in new["metrics"].items():
        if name in old.metrics and _alike(old.metrics[name]) != _alike(value):
            raise BadRequest(f"overwriting existing metric keys is not supported, conflicting key: {name}")
    batches = new["batch_metrics"]
    if batches and old.batch_metrics and _alike(old.batch_metrics) != _alike(batches):
        raise BadRequest("overwriting existing batch metrics is not supported")
    fresh = {name: value for name, value in new["metrics"].items() if name not in old.metrics}
    metrics = {**old.metrics, **fresh}
    if fresh or (batches and not old.batch_metrics):
        connection.execute(
            update(Metric)
            .where(Metric.id == old.id)
            .values(
                metrics=metrics,
                batch_metrics=old.batch_metrics or batches,
                searcher_metric=new["searcher_metric"] if old.searcher_metric is None else old.searcher_metric,
            )
        )
    return old.id, metrics, fresh


def _alike(value: Any) -> Any:
    """For comparing: PostgreSQL gives a float such as 1.2e20 back as the integer with its decimal digits."""
    if isinstance(value, int | float) and abs(value) > 2**53:
        return number(value)
    if isinstance(value, dict):
        return {key: _alike(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_alike(item) for item in cast("list[Any]", value)]
    return value


def _roll_back(connection: Connection, trial: TrialRow, group: str, step: int) -> None:
    """A newer run reports at `step`: what older runs said from there on is archived, and the totals follow."""
    reopen(connection, trial.id, trial.sealed, step)
    old = (Metric.trial_id == trial.id, Metric.run_id < trial.run_id, ~Metric.archived)
    same = Metric.group_name == group
    connection.execute(update(Metric).where(*old, same, Metric.total_batches >= step).values(archived=True))
    connection.execute(update(Metric).where(*old, ~same, Metric.total_batches > step).values(archived=True))
    trial.metrics_run_id = trial.run_id
    trial.total_batches, trial.summary = 0, {}
    trial.best_validation_id = trial.latest_validation_id = trial.searcher_metric = trial.latest_metric = None
    trial.is_changed = True
    for kept in in_order(connection, [trial.id]):
        trial.total_batches = max(trial.total_batches, kept.total_batches or 0)
        add_report(trial.summary, kept.group_name, kept.metrics)
        if kept.group_name == "validation":
            _note_validation(trial, kept.id, number(kept.metrics.get(trial.metric_name)))
