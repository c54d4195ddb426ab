"""The three statements that every batch of metric reports runs, on the driver's own cursor.

Through SQLAlchemy they cost several times what the database itself needs for them. They run within the transaction of a
SQLAlchemy connection, so that the rare statements around them can be written as in all other modules.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypedDict

import orjson
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from api.ingest.metric_blocks import Sealed
from api.schemas.base import plain


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


def storable(value: float | None) -> float | None:
    """SQLite has no NaN: it is null on both engines. The metric's own document keeps it."""
    return None if value is None or math.isnan(value) else value


class MetricStore(ABC):
    """The statements on one connection. The caller begins and ends transactions."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._cursor: Any = connection.connection.cursor()

    def _execute(self, statement: str, values: Any = None) -> None:
        dialect = self.connection.dialect
        try:
            self._cursor.execute(statement, values or ())
        except dialect.loaded_dbapi.Error as error:
            is_lost = dialect.is_disconnect(error, self._cursor.connection, self._cursor)
            raise DBAPIError.instance(
                statement, None, error, dialect.loaded_dbapi.Error, connection_invalidated=is_lost, dialect=dialect
            ) from error

    def load(self, trial_ids: Iterable[int]) -> dict[int, TrialRow]:
        """Trials by id, locked until the transaction ends."""
        self._select(list(trial_ids))
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
    def insert(self, rows: Sequence[MetricRow]) -> list[int | None]:
        """Insert reports; the id of each, None for one whose trial, group and step are there already."""

    @abstractmethod
    def save(self, trials: Sequence[TrialRow]) -> None:
        """Write trials back."""

    @abstractmethod
    def make_durable(self) -> None:
        """Have this transaction's commit wait for the disk as much as any other; see `Database.connect_lazy_writer`."""


_SELECT = (
    "SELECT t.id, t.experiment_id, t.request_id, t.run_id, t.metrics_run_id, t.total_batches, t.best_validation_id,"
    " t.latest_validation_id, t.searcher_metric, t.latest_metric, e.searcher_metric, e.smaller_is_better,"
    " e.wants_validations, e.time_metric,"
    " CASE WHEN e.has_operations AND NOT t.asks_operations THEN t.operation_length END,"
    " (SELECT a.id FROM allocations a WHERE a.trial_id = t.id AND a.ended_at IS NULL"
    " ORDER BY a.run_id DESC LIMIT 1), CAST(t.summary AS TEXT), CAST(t.sealed AS TEXT)"
    " FROM trials t JOIN experiments e ON e.id = t.experiment_id WHERE t.id"
)
_INSERT = (
    "INSERT INTO metrics (trial_id, run_id, group_name, total_batches, metrics, batch_metrics, searcher_metric,"
    " reported_at, archived)"
)


class SqliteStore(MetricStore):
    """A statement a row: each is a call within the process."""

    def _select(self, trial_ids: list[int]) -> None:
        self._execute(_SELECT + " IN (SELECT value FROM json_each(?))", (_text(trial_ids),))

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

    def save(self, trials: Sequence[TrialRow]) -> None:
        """As the base says."""
        for trial in trials:
            self._execute(
                "UPDATE trials SET metrics_run_id = :metrics_run_id, total_batches = :total_batches,"
                " best_validation_id = :best_validation_id, latest_validation_id = :latest_validation_id,"
                " searcher_metric = :searcher_metric, latest_metric = :latest_metric, summary = :summary,"
                " is_settled = 0 WHERE id = :id",
                trial.written_back() | {"summary": _text(trial.summary)},
            )

    def make_durable(self) -> None:
        """Nothing: no commit of SQLite waits."""


class PostgresStore(MetricStore):
    """One statement for all rows, which travel as one JSON document: what costs is the way to the server."""

    def _select(self, trial_ids: list[int]) -> None:
        # several API processes may report for a trial; in the order of ids, so that two never wait for each other
        self._execute(_SELECT + " = ANY(%s) ORDER BY t.id FOR NO KEY UPDATE OF t", (trial_ids,))

    def insert(self, rows: Sequence[MetricRow]) -> list[int | None]:
        """As the base says."""
        self._execute(
            _INSERT + " SELECT r.*, false FROM jsonb_to_recordset(%s::jsonb) AS r(trial_id int, run_id int,"
            " group_name text, total_batches bigint, metrics jsonb, batch_metrics jsonb, searcher_metric float8,"
            " reported_at timestamptz) ON CONFLICT DO NOTHING RETURNING id, trial_id, group_name, total_batches",
            (_text([row | {"searcher_metric": plain(row["searcher_metric"])} for row in rows]),),
        )
        inserted: dict[tuple[Any, ...], list[int]] = {}
        for metric_id, *key in self._cursor.fetchall():
            inserted.setdefault(tuple(key), []).append(metric_id)
        found = (inserted.get((row["trial_id"], row["group_name"], row["total_batches"])) for row in rows)
        return [ids.pop(0) if ids else None for ids in found]

    def save(self, trials: Sequence[TrialRow]) -> None:
        """As the base says."""
        rows = [
            row | {name: plain(row[name]) for name in ("searcher_metric", "latest_metric")}
            for row in (trial.written_back() for trial in trials)
        ]
        self._execute(
            "UPDATE trials t SET metrics_run_id = r.metrics_run_id, total_batches = r.total_batches,"
            " best_validation_id = r.best_validation_id, latest_validation_id = r.latest_validation_id,"
            " searcher_metric = r.searcher_metric, latest_metric = r.latest_metric, summary = r.summary,"
            " is_settled = false"
            " FROM jsonb_to_recordset(%s::jsonb) AS r(id int, metrics_run_id int, total_batches bigint,"
            " best_validation_id bigint, latest_validation_id bigint, searcher_metric float8, latest_metric float8,"
            " summary jsonb) WHERE t.id = r.id",
            (_text(rows),),
        )

    def make_durable(self) -> None:
        """As the base says."""
        self._execute("SET LOCAL synchronous_commit = on")


def _text(value: Any) -> str:
    return orjson.dumps(value).decode()
