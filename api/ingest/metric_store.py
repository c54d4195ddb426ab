"""The three statements that every batch of metric reports runs, on the driver's own cursor.

Through SQLAlchemy they cost several times what the database itself needs for them. They run within the transaction of a
SQLAlchemy connection, so that the rare statements around them can be written as in all other modules.

Most batches read nothing (ADR 75): the store knows trials as it wrote them last, and writes if they are still so. On
PostgreSQL that is one statement.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypedDict

import orjson
import psycopg
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from api.ingest.metric_blocks import Sealed
from api.schemas.base import plain
from database.session import BEGIN, BEGINS_ITSELF

#: Trials that a store knows, and the names of metrics in their summaries: half a KiB each.
_MOST_KNOWN, _MOST_NAMES = 2_000, 50_000


@dataclass(slots=True)
class TrialRow:
    """What a batch reads of a trial, in the order of `_SELECT`, and changes."""

    id: int
    experiment_id: int
    request_id: str
    run_id: int
    metrics_run_id: int
    total_batches: int
    best_validation_id: int | None
    latest_validation_id: int | None
    searcher_metric: float | None
    latest_metric: float | None
    metric_name: str
    smaller_is_better: bool
    wants_validations: bool
    time_metric: str | None
    open_length: int | None  # of the searcher operation that its harness does not ask for, in units of max_length
    allocation_id: str | None  # that is open
    version: str | None  # of the row, on PostgreSQL: each change of it gives it another one
    summary: dict[str, Any]
    sealed: Sealed
    is_changed: bool = False

    def written_back(self) -> dict[str, Any]:
        """Columns and values; `id` says where."""
        return {
            "id": self.id,
            "metrics_run_id": self.metrics_run_id,
            "total_batches": self.total_batches,
            "best_validation_id": self.best_validation_id,
            "latest_validation_id": self.latest_validation_id,
            "searcher_metric": storable(self.searcher_metric),
            "latest_metric": storable(self.latest_metric),
            "summary": self.summary,
        }


class MetricRow(TypedDict):
    """A report as it is stored. The documents are plain."""

    trial_id: int
    run_id: int
    group_name: str
    total_batches: int | None
    metrics: dict[str, Any]
    batch_metrics: list[Any] | None
    searcher_metric: float | None
    reported_at: datetime


def _names(trial: TrialRow) -> int:
    return sum(map(len, trial.summary.values()))


def storable(value: float | None) -> float | None:
    """SQLite has no NaN: it is null on both engines. The metric's own document keeps it."""
    return None if value is None or math.isnan(value) else value


class _Known:
    """Trials as they were when their reports were written last. Those of the latest reports are kept."""

    def __init__(self) -> None:
        self._trials: OrderedDict[int, TrialRow] = OrderedDict()
        self._names = 0  # of metrics, in all of them

    def take(self, trial_ids: Collection[int]) -> dict[int, TrialRow] | None:
        """These trials by id, if all of them are known. They are no longer: what is done with them may fail."""
        if not all(trial_id in self._trials for trial_id in trial_ids):
            return None
        trials = {trial_id: self._trials[trial_id] for trial_id in trial_ids}
        for trial_id in trial_ids:
            self.forget(trial_id)
        return trials

    def keep(self, trials: Iterable[TrialRow]) -> None:
        """Know these from now on."""
        for trial in trials:
            self.forget(trial.id)
            trial.is_changed = False
            self._trials[trial.id] = trial
            self._names += _names(trial)
        while len(self._trials) > _MOST_KNOWN or self._names > _MOST_NAMES:
            self.forget(next(iter(self._trials)))

    def forget(self, trial_id: int) -> None:
        """Read it anew the next time."""
        trial = self._trials.pop(trial_id, None)
        if trial is not None:
            self._names -= _names(trial)

    def clear(self) -> None:
        """Know none."""
        self._trials.clear()
        self._names = 0


class MetricStore(ABC):
    """The statements on one connection, in a transaction by `reading`; others within it go by `connection`."""

    def __init__(self, connection: Connection, cursor: Any) -> None:
        self.connection = connection
        self._cursor = cursor
        self._known = _Known()

    def known(self, trial_ids: Collection[int]) -> dict[int, TrialRow] | None:
        """These trials as this store wrote them last, to be changed and given to `add`; None if it is to read one."""
        return self._known.take(trial_ids)

    def forget(self, trial_id: int) -> None:
        """This connection has changed a trial otherwise than by `add` and `save`."""
        self._known.forget(trial_id)

    def add(self, trials: Mapping[int, TrialRow], rows: Sequence[MetricRow]) -> bool:
        """Insert reports and write `known` trials back that have changed, in a transaction of their own.

        False, and nothing is written, if a trial is not as it was known, or has a report of a row's group and step.
        """
        if not self._add(trials.values(), rows):
            return False
        self._known.keep(trials.values())
        return True

    def _execute(self, statement: str, values: Any = None) -> None:
        dialect = self.connection.dialect
        try:
            self._cursor.execute(statement, values or ())
        except dialect.loaded_dbapi.Error as error:
            is_lost = dialect.is_disconnect(error, self._cursor.connection, self._cursor)
            raise DBAPIError.instance(
                statement, None, error, dialect.loaded_dbapi.Error, connection_invalidated=is_lost, dialect=dialect
            ) from error

    @contextmanager
    def reading(self, trial_ids: Iterable[int]) -> Generator[dict[int, TrialRow]]:
        """A transaction that begins with these trials by id, and locks them. `save` is its last statement."""
        with self._begin():
            self._select(list(trial_ids))
            trials = self._trials()
            yield trials
        self._known.keep(trials.values())

    def _begin(self) -> AbstractContextManager[Any]:
        return self.connection.begin()

    def _trials(self) -> dict[int, TrialRow]:
        trials: dict[int, TrialRow] = {}
        for *values, summary, sealed in self._cursor.fetchall():
            trial = TrialRow(*values, summary=orjson.loads(summary), sealed=orjson.loads(sealed))
            if trial.best_validation_id is not None and trial.searcher_metric is None:
                trial.searcher_metric = math.nan  # see `storable`
            trials[trial.id] = trial
        return trials

    @abstractmethod
    def _select(self, trial_ids: list[int]) -> None: ...

    @abstractmethod
    def _add(self, trials: Collection[TrialRow], rows: Sequence[MetricRow]) -> bool: ...

    @abstractmethod
    def insert(self, rows: Sequence[MetricRow]) -> list[int | None]:
        """Insert reports; the id of each, None for one whose trial, group and step are there already."""

    @abstractmethod
    def save(self, trials: Sequence[TrialRow], *, is_durable: bool) -> None:
        """Write trials back, if any.

        Args:
            trials: That have changed.
            is_durable: The commit waits for the disk as much as any other; see `Database.connect_lazy_writer`.
        """


_SELECT = (
    "SELECT t.id, t.experiment_id, t.request_id, t.run_id, t.metrics_run_id, t.total_batches, t.best_validation_id,"
    " t.latest_validation_id, t.searcher_metric, t.latest_metric, e.searcher_metric, e.smaller_is_better,"
    " e.wants_validations, e.time_metric,"
    " CASE WHEN e.has_operations AND NOT t.asks_operations THEN t.operation_length END,"
    " (SELECT a.id FROM allocations a WHERE a.trial_id = t.id AND a.ended_at IS NULL"
    " ORDER BY a.run_id DESC LIMIT 1), {version}, CAST(t.summary AS TEXT), CAST(t.sealed AS TEXT)"
    " FROM trials t JOIN experiments e ON e.id = t.experiment_id WHERE t.id"
)
_INSERT = (
    "INSERT INTO metrics (trial_id, run_id, group_name, total_batches, metrics, batch_metrics, searcher_metric,"
    " reported_at, archived)"
)


class SqliteStore(MetricStore):
    """A statement a row: each is a call within the process. What it knows holds until another connection commits."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, connection.connection.cursor())
        self._seen = -1  # the database's version when trials were read

    def _select(self, trial_ids: list[int]) -> None:
        if not self._is_unchanged():
            self._known.clear()
        statement = _SELECT.format(version="NULL")
        self._execute(statement + " IN (SELECT value FROM json_each(?))", (_text(trial_ids),))

    def _is_unchanged(self) -> bool:
        """Whether no other connection has committed since this was asked last. Within a transaction."""
        self._execute("PRAGMA data_version")
        before, (self._seen,) = self._seen, self._cursor.fetchone()
        return before == self._seen

    def _add(self, trials: Collection[TrialRow], rows: Sequence[MetricRow]) -> bool:
        self._execute("BEGIN IMMEDIATE")
        is_done = False
        try:
            if not self._is_unchanged():
                self._known.clear()
                return False
            if None in self.insert(rows):
                return False
            self.save([trial for trial in trials if trial.is_changed], is_durable=False)
            self._execute("COMMIT")
            is_done = True
        finally:
            if not is_done and self._cursor.connection.in_transaction:
                self._cursor.execute("ROLLBACK")
        return True

    def insert(self, rows: Sequence[MetricRow]) -> list[int | None]:
        """As the base says."""
        ids: list[int | None] = []
        for row in rows:
            batches, at = row["batch_metrics"], row["reported_at"].astimezone(UTC).replace(tzinfo=None)
            values = {
                **row,
                "metrics": _text(row["metrics"]),
                "batch_metrics": None if batches is None else _text(batches),
                "reported_at": at.isoformat(" ", "microseconds"),
            }
            self._execute(
                _INSERT + " VALUES (:trial_id, :run_id, :group_name, :total_batches, :metrics, :batch_metrics,"
                " :searcher_metric, :reported_at, 0) ON CONFLICT DO NOTHING",
                values,
            )
            ids.append(self._cursor.lastrowid if self._cursor.rowcount else None)
        return ids

    def save(self, trials: Sequence[TrialRow], *, is_durable: bool) -> None:
        """As the base says; no commit of SQLite waits."""
        for trial in trials:
            self._execute(
                "UPDATE trials SET metrics_run_id = :metrics_run_id, total_batches = :total_batches,"
                " best_validation_id = :best_validation_id, latest_validation_id = :latest_validation_id,"
                " searcher_metric = :searcher_metric, latest_metric = :latest_metric, summary = :summary,"
                " is_settled = 0 WHERE id = :id",
                trial.written_back() | {"summary": _text(trial.summary)},
            )


class PostgresStore(MetricStore):
    """One statement for all rows, which travel as one JSON document: what costs is the way to the server.

    So a batch is one message if `add` does it, else three: it begins with the trials, and is committed with them. The
    driver's client-side cursor can send such several statements with values.
    """

    def __init__(self, connection: Connection) -> None:
        driver: Any = connection.connection.dbapi_connection
        super().__init__(connection, psycopg.ClientCursor(driver))
        self._beginning: str = connection.info[BEGIN]
        self._is_lazy = self._beginning != "BEGIN"

    def _begin(self) -> AbstractContextManager[Any]:
        self.connection.info[BEGINS_ITSELF] = True
        try:
            return self.connection.begin()
        finally:
            self.connection.info[BEGINS_ITSELF] = False

    def _select(self, trial_ids: list[int]) -> None:
        # several API processes may report for a trial; in the order of ids, so that two never wait for each other
        statement = _SELECT.format(version="t.xmin::text")
        self._execute(f"{self._beginning}; {statement} = ANY(%s) ORDER BY t.id FOR NO KEY UPDATE OF t", (trial_ids,))
        while self._cursor.nextset():  # what the statements before it answered
            pass

    def _add(self, trials: Collection[TrialRow], rows: Sequence[MetricRow]) -> bool:
        known = [
            {"id": trial.id, "version": trial.version, "allocation": trial.allocation_id}
            | ({"total_batches": trial.total_batches, "summary": trial.summary} if trial.is_changed else {})
            for trial in trials
        ]
        self._execute("SELECT add_reports(%s, %s, %s)", (_text(known), _json_rows(rows), self._is_lazy))
        (version,) = self._cursor.fetchone()
        for trial in trials:
            if trial.is_changed:
                trial.version = version
        return version is not None

    def insert(self, rows: Sequence[MetricRow]) -> list[int | None]:
        """As the base says."""
        self._execute(
            _INSERT + " SELECT r.*, false FROM jsonb_to_recordset(%s::jsonb) AS r(trial_id int, run_id int,"
            " group_name text, total_batches bigint, metrics jsonb, batch_metrics jsonb, searcher_metric float8,"
            " reported_at timestamptz) ON CONFLICT DO NOTHING RETURNING id, trial_id, group_name, total_batches",
            (_json_rows(rows),),
        )
        inserted: dict[tuple[Any, ...], list[int]] = {}
        for metric_id, *key in self._cursor.fetchall():
            inserted.setdefault(tuple(key), []).append(metric_id)
        found = (inserted.get((row["trial_id"], row["group_name"], row["total_batches"])) for row in rows)
        return [ids.pop(0) if ids else None for ids in found]

    def save(self, trials: Sequence[TrialRow], *, is_durable: bool) -> None:
        """As the base says; it commits, too, as the statement that ends the transaction would find out."""
        durable = "SET LOCAL synchronous_commit = on; " if is_durable else ""
        rows = [
            row | {name: plain(row[name]) for name in ("searcher_metric", "latest_metric")}
            for row in (trial.written_back() for trial in trials)
        ]
        if not rows:
            self._execute(f"{durable}COMMIT")
            return
        self._execute(
            f"{durable}UPDATE trials t SET metrics_run_id = r.metrics_run_id, total_batches = r.total_batches,"
            " best_validation_id = r.best_validation_id, latest_validation_id = r.latest_validation_id,"
            " searcher_metric = r.searcher_metric, latest_metric = r.latest_metric, summary = r.summary,"
            " is_settled = false"
            " FROM jsonb_to_recordset(%s::jsonb) AS r(id int, metrics_run_id int, total_batches bigint,"
            " best_validation_id bigint, latest_validation_id bigint, searcher_metric float8, latest_metric float8,"
            " summary jsonb) WHERE t.id = r.id; SELECT pg_current_xact_id()::xid::text; COMMIT",
            (_text(rows),),
        )
        while self._cursor.description is None:  # what the statements before it answered
            self._cursor.nextset()
        (version,) = self._cursor.fetchone()
        for trial in trials:
            trial.version = version


def _json_rows(rows: Sequence[MetricRow]) -> str:
    return _text([row | {"searcher_metric": plain(row["searcher_metric"])} for row in rows])


def _text(value: Any) -> str:
    return orjson.dumps(value).decode()
