"""Metrics of imported trials: a trial's reports, its curves' blocks and its totals, in one transaction for some trials.

A trial is the unit: counts say what the source has of it, so that one that is as it was is not read again, and
one that is not is written anew. Most reports come as what they would be in the end, packed blocks; the others are rows,
by COPY, as ten million through the ORM would take an hour.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson
from sqlalchemy import delete, insert, select, update
from sqlalchemy.orm import Session

from api.ingest.metric_blocks import KEPT_GROUPS, LEAST, Sealed, SealedGroup, built, packed_block, report_ids
from api.ingest.metric_store import storable
from api.ingest.summary import add_report, is_better
from api.queries.outlines import BLOCK, LONG
from api.schemas.base import number
from database import report_blocks
from database.engines import on_postgresql
from database.models import Experiment, ImportTable, Metric, MetricBlock, MetricColumn, Trial
from workers.importing.rows import digest
from workers.importing.source import Source
from workers.importing.target import mark
from workflows.lifecycle.imports import Kind

#: Trials that are looked at together, and reports that are written in one transaction (a trial is not divided).
#: System metrics have no index by trial there: each look reads all of them.
_LOOKED_AT = {Kind.METRICS: 100, Kind.SYSTEM_METRICS: 5000}
AT_ONCE = 50_000
#: Reports on their way to the database at a time: what is in memory.
_CHUNK = 4000
_LONGEST_GROUP = 120

_VALUES = "CASE partition_type WHEN 'VALIDATION' THEN metrics->'validation_metrics' ELSE metrics->'avg_metrics' END"
_REPORTS = (
    "SELECT trial_id, coalesce(metric_group, lower(partition_type)), total_batches, trial_run_id, archived,"
    " to_char(coalesce(end_time, 'epoch') AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US'),"
    f" extract(epoch FROM coalesce(end_time, 'epoch'))::float8, ({_VALUES})::text,"
    " nullif(metrics->'batch_metrics', 'null')::text FROM metrics"
    " WHERE trial_id = ANY(%s) AND partition_type = ANY(%s)"
    " ORDER BY trial_id, 2, total_batches, trial_run_id, end_time, id"
)
_COUNTS = (
    "SELECT trial_id, count(*) AS n, max(id) AS newest, count(*) FILTER (WHERE archived) AS archived,"
    " max(end_time) AS latest FROM metrics WHERE trial_id = ANY(%s) AND partition_type = ANY(%s) GROUP BY trial_id"
)
#: What is reported with steps, and what is not.
PARTITIONS = {Kind.METRICS: ["TRAINING", "VALIDATION", "GENERIC"], Kind.SYSTEM_METRICS: ["PROFILING"]}
_COLUMNS = (
    "id, trial_id, run_id, group_name, total_batches, metrics, batch_metrics, searcher_metric, archived, reported_at"
)


@dataclass(slots=True)
class Report:
    """A report on its way: what is a document stays the text that it is."""

    trial_id: int
    group: str
    step: int | None
    run_id: int
    archived: bool
    at: str
    seconds: float
    metrics: str
    batches: str | None
    searcher_metric: float | None = None
    id: int = 0


@dataclass
class Totals:
    """What follows for a trial from its reports, which come by group and step.

    Attributes:
        rows: Reports that stay documents.
        blocks: Rows of blocks.
        columns: Of these blocks.
    """

    session: Session
    trial_id: int
    metric: str
    smaller_is_better: bool
    summary: dict[str, Any] = field(default_factory=dict[str, Any])
    sealed: Sealed = field(default_factory=dict[str, SealedGroup])
    total_batches: int = 0
    run_id: int = 0
    best: Report | None = None
    latest: Report | None = None
    rows: list[Report] = field(default_factory=list[Report])
    blocks: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    columns: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    _group: str = ""
    _open: list[tuple[Report, dict[str, Any]]] = field(default_factory=list[tuple[Report, dict[str, Any]]])

    def take(self, report: Report) -> None:
        """One more report that counts."""
        assert report.step is not None
        metrics: dict[str, Any] = orjson.loads(report.metrics)
        self.total_batches, self.run_id = max(self.total_batches, report.step), max(self.run_id, report.run_id)
        add_report(self.summary, report.group, metrics)
        if report.group == "validation":
            self._judge(report, number(metrics.get(self.metric)))
        if report.group != self._group:
            self.close()
            self._group = report.group
        self._open.append((report, metrics))
        if len(self._open) == (BLOCK if report.group in KEPT_GROUPS else BLOCK * LONG):
            self.close()

    def close(self) -> None:
        """What is open becomes a packed block, or documents with short blocks beside them."""
        some, self._open = self._open, []
        if not some or (self._group not in KEPT_GROUPS and len(some) >= LEAST and self._pack(some)):
            return
        self.rows += [report for report, _ in some]
        for begin in range(0, len(some) - BLOCK + 1, BLOCK):
            points = [(report.step or 0, report.seconds, metrics) for report, metrics in some[begin : begin + BLOCK]]
            self._add(built(self.trial_id, self._group, points))

    def _pack(self, some: Sequence[tuple[Report, dict[str, Any]]]) -> bool:
        ids = report_ids(self.session.connection(), len(some)).tolist()
        made = packed_block([
            report_blocks.Report(
                report_id, self.trial_id, report.run_id, report.group, report.step, metrics,
                None if report.batches is None else orjson.loads(report.batches), None, False,
                datetime.fromisoformat(report.at).replace(tzinfo=UTC),
            )
            for report_id, (report, metrics) in zip(ids, some, strict=True)
        ])  # fmt: skip
        if made is None:
            return False
        self._add(made)
        last = made[0]["last_step"]
        self.sealed[self._group] = {"to": last, "reopened": 0, "long": last, "packed": last}
        return True

    def _add(self, made: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
        block, columns = made
        self.blocks.append(block)
        self.columns += columns
        sealed = self.sealed.setdefault(self._group, {"to": -1, "reopened": 0})
        sealed["to"] = block["last_step"]

    def _judge(self, report: Report, value: float | None) -> None:
        if value is None:
            return
        report.searcher_metric = value
        self.latest = report
        old = None if self.best is None else self.best.searcher_metric
        if self.best is None or is_better(value, old, smaller_is_better=self.smaller_is_better):
            self.best = report

    def columns_of_trial(self) -> dict[str, Any]:
        """What the trial's row gets."""
        return {
            "summary": self.summary,
            "sealed": self.sealed,
            "total_batches": self.total_batches,
            "metrics_run_id": self.run_id,
            "is_settled": True,
            "best_validation_id": self.best and self.best.id,
            "latest_validation_id": self.latest and self.latest.id,
            "latest_metric": storable(self.latest and self.latest.searcher_metric),
            "searcher_metric": storable(self.best and self.best.searcher_metric),
        }


def settled(rows: Iterable[Sequence[Any]], number_of: Callable[[int], int]) -> Iterator[Report]:
    """Reports as they are kept here, of rows by trial, group, step and run.

    Of several that count at one step, the newest run's counts; the others are archived, as each step has one here.
    """
    held_back: Report | None = None
    for trial_id, group, step, run_id, archived, at, seconds, metrics, batches in rows:
        report = Report(
            number_of(trial_id),
            str(group)[:_LONGEST_GROUP],
            step,
            run_id,
            archived,
            at,
            seconds,
            metrics or "{}",
            batches,
        )
        if archived or step is None:
            yield report
            continue
        if held_back is not None:
            same = held_back.trial_id == report.trial_id and held_back.group == report.group
            held_back.archived = same and held_back.step == report.step
            yield held_back
        held_back = report
    if held_back is not None:
        yield held_back


def looked_at(kind: Kind) -> int:
    """How many trials are looked at together."""
    return _LOOKED_AT[kind]


def gone_on(session: Session, trials: Sequence[int]) -> set[int]:
    """Which of these trials, by number here, are of experiments that were continued here."""
    found: set[int] = set()
    for begin in range(0, len(trials), 500):
        statement = (
            select(Trial.id)
            .join(Experiment, Experiment.id == Trial.experiment_id)
            .where(Trial.id.in_(trials[begin : begin + 500]), Experiment.commanded != "")
        )
        found |= set(session.scalars(statement))
    return found


def counts(source: Source, kind: Kind, trials: Sequence[int]) -> dict[int, tuple[int, str]]:
    """By trial there how many reports it has, and a digest of what they are."""
    found = source.all(_COUNTS, [list(trials), PARTITIONS[kind]])
    return {row["trial_id"]: (row["n"], digest(row)) for row in found}


def reports(source: Source, kind: Kind, trial_id: int, here: int) -> Iterator[Report]:
    """All reports of a trial there, as they are kept here."""
    rows = source.stream(_REPORTS, [[trial_id], PARTITIONS[kind]])  # pyright: ignore[reportArgumentType]
    return settled(rows, lambda _: here)


def checksum(report: Report) -> int:
    """A number that equal reports share. The sum over reports does not depend on their order."""
    content = orjson.dumps(
        [report.trial_id, report.group, report.step, report.run_id, bool(report.archived), report.at,
         orjson.loads(report.metrics), orjson.loads(report.batches) if report.batches else None],
        option=orjson.OPT_SORT_KEYS,
    )  # fmt: skip
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def import_trials(
    session: Session,
    source: Source,
    kind: Kind,
    cluster_id: str,
    trials: Sequence[tuple[int, int, str]],
    progress: ImportTable,
) -> None:
    """Write all reports of some trials, in place of what had come of them before.

    Args:
        session: Of a transaction.
        source: To read from.
        kind: With steps, or without.
        cluster_id: Of the source.
        trials: Number there, number here, digest.
        progress: Counts.
    """
    ours = {there: here for there, here, _ in trials}
    is_stepped = kind is Kind.METRICS
    known = _judged_by(session, list(ours.values()))
    _clear(session, list(ours.values()), is_stepped=is_stepped)
    totals: dict[int, Totals] = {}
    chunk: list[Report] = []

    def write() -> None:
        some = [*chunk, *(report for each in totals.values() for report in each.rows)]
        _insert(session, some)
        _insert_blocks(session, totals.values())
        chunk.clear()

    rows = source.stream(_REPORTS, [list(ours), PARTITIONS[kind]])  # pyright: ignore[reportArgumentType]
    count = 0
    for count, report in enumerate(settled(rows, ours.__getitem__), 1):
        if report.step is not None and not report.archived and is_stepped:
            if report.trial_id not in totals:
                for before in totals.values():
                    before.close()
                totals[report.trial_id] = Totals(session, report.trial_id, *known[report.trial_id])
            totals[report.trial_id].take(report)
        else:
            chunk.append(report)
        if count % _CHUNK == 0:
            write()
    for each in totals.values():
        each.close()
    write()
    progress.written += count
    for here in ours.values() if is_stepped else ():
        values = (totals.get(here) or Totals(session, here, *known[here])).columns_of_trial()
        values["metrics_run_id"] = max(values["metrics_run_id"], known_run(session, here))
        session.execute(update(Trial).where(Trial.id == here).values(values))
    mark(session, cluster_id, kind, [(str(there), str(here), was) for there, here, was in trials])


def known_run(session: Session, trial_id: int) -> int:
    """The newest run of a trial: reports of older ones are no roll-back."""
    return session.scalar(select(Trial.run_id).where(Trial.id == trial_id)) or 0


def _judged_by(session: Session, trials: Sequence[int]) -> dict[int, tuple[str, bool]]:
    rows = session.execute(
        select(Trial.id, Experiment.searcher_metric, Experiment.smaller_is_better)
        .join(Experiment, Experiment.id == Trial.experiment_id)
        .where(Trial.id.in_(trials))
        .with_for_update(of=Trial)
    )
    return {trial_id: (metric, smaller) for trial_id, metric, smaller in rows.tuples()}


def _clear(session: Session, trials: Sequence[int], *, is_stepped: bool) -> None:
    has_step = Metric.total_batches.is_not(None) if is_stepped else Metric.total_batches.is_(None)
    session.execute(delete(Metric).where(Metric.trial_id.in_(trials), has_step))
    for model in (MetricBlock, MetricColumn) if is_stepped else ():
        session.execute(delete(model).where(model.trial_id.in_(trials)))


def _insert_blocks(session: Session, totals: Iterable[Totals]) -> None:
    for model, name in ((MetricBlock, "blocks"), (MetricColumn, "columns")):
        rows = [row for each in totals for row in getattr(each, name)]
        for is_packed in (False, True):  # statements of many rows have the same columns in each
            alike = [row for row in rows if ("packed" in row) is is_packed]
            if alike:
                session.execute(insert(model.__table__), alike)  # pyright: ignore[reportArgumentType]
    for each in totals:
        each.rows, each.blocks, each.columns = [], [], []


def _insert(session: Session, reports: Sequence[Report]) -> None:
    if not reports:
        return
    for report, own in zip(reports, report_ids(session.connection(), len(reports)).tolist(), strict=True):
        report.id = own
    if on_postgresql(session):
        _copy(session, reports)
        return
    cursor: Any = session.connection().connection.cursor()
    cursor.executemany(
        f"INSERT INTO metrics ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            (each.id, each.trial_id, each.run_id, each.group, each.step, each.metrics, each.batches,
             storable(each.searcher_metric), each.archived, each.at)
            for each in reports
        ),
    )  # fmt: skip


def _copy(session: Session, reports: Sequence[Report]) -> None:
    cursor: Any = session.connection().connection.cursor()
    lines = [
        f"{each.id}\t{each.trial_id}\t{each.run_id}\t{_escaped(each.group)}\t{_cell(each.step)}\t"
        f"{_escaped(each.metrics)}\t{_escaped(each.batches)}\t{_cell(storable(each.searcher_metric))}\t"
        f"{'t' if each.archived else 'f'}\t{each.at}+00\n"
        for each in reports
    ]
    with cursor.copy(f"COPY metrics ({_COLUMNS}) FROM STDIN") as copy:
        copy.write("".join(lines))


def _cell(value: float | None) -> str:
    return "\\N" if value is None else repr(value)


def _escaped(value: str | None) -> str:
    if value is None:
        return "\\N"
    if "\\" in value:
        value = value.replace("\\", "\\\\")
    if "\n" in value or "\t" in value or "\r" in value:
        value = value.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
    return value
