"""Whole curves in one request: columns of numbers, which become the blocks that they would become in the end.

A report is a document first, and some minutes later a part of a block (ADR 70). Thousands of reports that come at once,
from another tracker, from a loop that kept them or after an outage, are packed on their way in: that costs a twentieth.
It is possible where they are what blocks are made of: their steps lie behind those of the group's other reports. Else,
and if there are few of them, they are stored as reports that came one by one, with all that follows from these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
from pydantic import TypeAdapter
from sqlalchemy import Connection, func, insert, select

from api.errors import BadRequest
from api.ingest.metric_blocks import (
    KEPT_GROUPS,
    MOST_COLUMNS,
    MOST_REOPENED,
    SealedGroup,
    long_block,
    report_ids,
    saved,
    seal,
)
from api.ingest.metric_store import TrialRow
from api.ingest.summary import MOST_NAMES, SYSTEM_GROUPS, add_column, without_last
from api.queries.outlines import BLOCK, LONG
from api.schemas.base import Instant, plain
from api.schemas.metrics import MANY_REPORTS, Curves, MetricReport, Metrics
from database.models import Metric, MetricBlock, MetricColumn, Trial
from database.number_columns import Floats, Integers
from database.report_blocks import Said, packed, runs
from database.types import utc_now

#: Steps of one request: where they can't be blocks, all other reports wait for as many rows, some second.
_MOST_STEPS = 25_000
#: Larger integers are not what a float says; and the years that times may be of, in seconds since 1970.
_EXACT, _LATEST = 2**53, 9e9
_TEXTS = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Reports of one group that came as documents: with fewer in a request they stay some. What is packed on its way in
#: never becomes part of a longer block, and many short ones are slow to read.
LEAST_REPORTS = MANY_REPORTS
#: Of a report, as all of ours write them.
_FIELDS = frozenset({"group", "trialRunId", "stepsCompleted", "reportTime", "metrics"})
_INSTANTS = TypeAdapter(list[Instant])
_UNPACKED = SYSTEM_GROUPS.union(KEPT_GROUPS)


class _Column(NamedTuple):
    """Numbers, the places of the reports that have them, and which of these are integers; None: all."""

    numbers: Floats
    places: Integers
    integers: Integers | None


@dataclass(frozen=True)
class _Piece:
    """Reports that will be a block, its row without the ids of these, and the rows of its columns."""

    count: int
    said: Said
    block: dict[str, Any]
    columns: list[dict[str, Any]]


@dataclass(frozen=True)
class Packed:
    """Curves that were checked.

    Attributes:
        sent: The request, or the reports of one that came as documents.
        pieces: Blocks; empty if its reports are stored one by one.
        is_reported: They came as documents, which harnesses send as they train.
    """

    sent: Curves
    steps: Integers
    times: Floats
    columns: Mapping[str, _Column]
    pieces: Sequence[_Piece]
    is_reported: bool = False

    @property
    def first(self) -> MetricReport:
        """A report of the first step with all names: what is refused of it is refused of all."""
        return self._report(0, {name: float(column.numbers[0]) for name, column in self.columns.items()})

    def reports(self) -> Iterator[MetricReport]:
        """The same as single reports."""
        metrics: list[dict[str, Any]] = [{} for _ in self.steps]
        for name, values in self.sent.metrics.items():
            for place, value in enumerate(values):
                if value is not None:
                    metrics[place][name] = value
        return (self._report(place, some) for place, some in enumerate(metrics))

    def _report(self, place: int, metrics: dict[str, Any]) -> MetricReport:
        return MetricReport(
            group=self.sent.group,
            trial_run_id=self.sent.trial_run_id,
            steps_completed=int(self.steps[place]),
            report_time=_moment(self.times[place]),
            metrics=Metrics(avg_metrics=metrics),
        )


def pack(trial_id: int, sent: Curves, shapes: Sequence[tuple[str, ...]] | None = None) -> Packed:
    """Check curves, and make blocks of them. Takes about a second of a processor for a million numbers.

    Args:
        trial_id: Whose.
        sent: The request.
        shapes: The names in each report, in its order; None: in the order of the request.

    Raises: BadRequest.
    """
    steps = _steps(sent.steps_completed)
    if len(sent.metrics) > MOST_NAMES:
        raise BadRequest(f"metrics: {len(sent.metrics)} of them: expected {MOST_NAMES} at most")
    times = np.full(len(steps), utc_now().timestamp()) if sent.report_times is None else _times(sent)
    columns = {name: _column(name, values, len(steps)) for name, values in sent.metrics.items()}
    columns = {name: column for name, column in columns.items() if len(column.numbers)}
    is_packable = sent.group not in _UNPACKED and len(steps) >= BLOCK and 0 < len(columns) <= MOST_COLUMNS
    pieces = _pieces(trial_id, sent, steps, times, columns, shapes) if is_packable else ()
    return Packed(sent, steps, times, columns, list(pieces))


def pack_reports(trial_id: int, reports: Sequence[MetricReport]) -> Packed | None:
    """Make blocks of the reports of the group that has most of a request's, of those that can have blocks.

    None if they are few, or say what columns can't: they are stored, or refused, as documents.
    """
    counts = Counter(report.group for report in reports if report.group not in _UNPACKED)
    [(group, count)] = counts.most_common(1) or [("", 0)]
    if count < LEAST_REPORTS:
        return None
    mine = [report for report in reports if report.group == group]
    runs, steps = {report.trial_run_id for report in mine}, [report.steps_completed for report in mine]
    if len(runs) > 1 or None in steps or any(report.metrics.batch_metrics for report in mine):
        return None
    now = utc_now()
    times = [(report.report_time or now).timestamp() for report in mine]
    documents = [report.metrics.avg_metrics for report in mine]
    return _pack_documents(trial_id, group, mine[0].trial_run_id, steps, times, documents)


def pack_plain(trial_id: int, reports: Sequence[Any]) -> tuple[Packed, Sequence[Any]] | None:
    """The same of plain JSON that was not checked, if the reports of that group are all alike.

    What waited for an outage to end is so, as harnesses and agents write it, and no message is made of each.

    Returns: The blocks, and the reports of other groups. None for anything else: what is wrong with a report shows when
        it is read.
    """
    try:
        counts = Counter([each["group"] for each in reports])
        group, count = counts.most_common(1)[0]
        # a newer run's first report says from where on older ones count no more
        if count < LEAST_REPORTS or group in _UNPACKED or reports[0]["group"] != group:
            return None
        mine = reports if count == len(reports) else [each for each in reports if each["group"] == group]
        alike = _alike(group, mine)
    except (TypeError, KeyError, ValueError):  # it is something else, or lacks what others have
        return None
    packed = None if alike is None else _pack_documents(trial_id, group, *alike)
    if packed is None:
        return None
    return packed, [] if mine is reports else [each for each in reports if each["group"] != group]


def _alike(
    group: Any, reports: Sequence[Any]
) -> tuple[int, list[int], list[float] | None, list[dict[str, Any]]] | None:
    """Run, steps, times and documents of a group's plain reports; None if these are not alike.

    Raises: TypeError, KeyError, ValueError.
    """
    within = [each["metrics"] for each in reports]
    documents: list[dict[str, Any]] = [each["avgMetrics"] for each in within]
    steps, runs = [each["stepsCompleted"] for each in reports], {each["trialRunId"] for each in reports}
    fields, names = set[str]().union(*reports), set(map(tuple, documents))
    kinds = {*map(type, reports), *map(type, within), *map(type, documents)}
    if not fields <= _FIELDS or set[str]().union(*within) != {"avgMetrics"} or len(runs) != 1 or len(names) != 1:
        return None
    if kinds != {dict} or {*map(type, runs), *map(type, steps)} != {int} or type(group) is not str:
        return None
    times = None
    if "reportTime" in fields:
        times = [time.timestamp() for time in _INSTANTS.validate_python([each["reportTime"] for each in reports])]
    return runs.pop(), steps, times, documents


def _pack_documents(
    trial_id: int,
    group: str,
    run_id: int,
    steps: Sequence[int | None],
    times: Sequence[float] | None,
    documents: Sequence[Mapping[str, Any]],
) -> Packed | None:
    """Blocks of reports; None if columns could not say the same."""
    shapes = [tuple(document) for document in documents]
    distinct = dict.fromkeys(shapes)
    names = dict.fromkeys(name for shape in distinct for name in shape)
    if len(names) > MOST_COLUMNS or any(None in document.values() for document in documents):
        return None  # null is a value in a document
    is_alike = len(distinct) == 1  # as most are
    rows = [document.values() for document in documents] if is_alike else ()
    columns = (
        zip(*rows, strict=True) if is_alike else ([document.get(name) for document in documents] for name in names)
    )
    sent = Curves.model_construct(
        group=group,
        trial_run_id=run_id,
        steps_completed=steps,
        report_times=times,
        metrics=dict(zip(names, columns, strict=True)),
    )
    try:
        packed = pack(trial_id, sent, None if is_alike else shapes)
    except BadRequest:  # of columns
        return None
    return replace(packed, is_reported=True) if packed.pieces else None


def _steps(sent: Sequence[int]) -> Integers:
    if not 0 < len(sent) <= _MOST_STEPS:
        raise BadRequest(
            f"stepsCompleted: {len(sent)} steps: expected 1 to {_MOST_STEPS}; send more in further requests"
        )
    if not 0 <= min(sent) <= max(sent) < 2**63:
        raise BadRequest(f"stepsCompleted: {min(sent)} to {max(sent)}: expected 0 or more, and less than 2^63")
    steps = np.array(sent, np.int64)
    at = np.flatnonzero(np.diff(steps) <= 0)
    if len(at):
        raise BadRequest(f"stepsCompleted: {sent[at[0] + 1]} follows {sent[at[0]]}: expected each to be greater")
    return steps


def _times(sent: Curves) -> Floats:
    times = np.array(sent.report_times, np.float64)
    if len(times) != len(sent.steps_completed):
        raise BadRequest(f"reportTimes: {len(times)} of them for {len(sent.steps_completed)} steps: expected one each")
    if not bool(np.all((times >= 0) & (times <= _LATEST))):
        wrong = times[~((times >= 0) & (times <= _LATEST))][0]
        raise BadRequest(f"reportTimes: {wrong}: expected seconds since 1970, before the year 2255")
    return np.rint(times * 1e6) / 1e6


def _column(name: str, values: Sequence[Any], count: int) -> _Column:
    if len(values) != count:
        raise BadRequest(f"metrics: {name!r} has {len(values)} values for {count} steps: expected one each, or null")
    every = np.arange(count)
    kinds = set(map(type, values))
    if kinds == {float}:
        return _Column(np.array(values, np.float64), every, every[:0])
    numbers, places, integers = list[float](), list[int](), list[int]()
    for place, value in enumerate(values):
        if value is None:
            continue
        if type(value) is int and abs(value) < _EXACT:
            integers.append(place)
        elif type(value) is not float and not (isinstance(value, str) and value in _TEXTS):
            raise BadRequest(
                f"metrics: {name!r} at place {place}: {str(value)[:80]!r}: expected a number, an integer below"
                ' 2^53, "NaN", "Infinity", "-Infinity" or null'
            )
        numbers.append(_TEXTS[value] if isinstance(value, str) else float(value))
        places.append(place)
    is_whole = len(integers) == len(places) == count
    return _Column(
        np.array(numbers, np.float64), np.array(places, np.int64), None if is_whole else np.array(integers, np.int64)
    )


def _pieces(
    trial_id: int,
    sent: Curves,
    steps: Integers,
    times: Floats,
    columns: Mapping[str, _Column],
    shapes: Sequence[tuple[str, ...]] | None,
) -> Iterator[_Piece]:
    """As many reports as a long block has, and so on."""
    for begin in range(0, len(steps), BLOCK * LONG):
        end = min(begin + BLOCK * LONG, len(steps))
        count = end - begin
        within: dict[str, tuple[Floats, Integers]] = {}
        integers: dict[str, list[int] | None] = {}
        for name, column in columns.items():
            some = slice(*np.searchsorted(column.places, (begin, end)))
            places = column.places[some] - begin
            if not len(places):
                continue
            within[name] = column.numbers[some], places
            if column.integers is None:
                integers[name] = None
                continue
            whole = column.integers[slice(*np.searchsorted(column.integers, (begin, end)))] - begin
            if len(whole):
                integers[name] = None if len(whole) == count else whole.tolist()
        distinct, of = _shapes(within, count) if shapes is None else _distinct(shapes[begin:end])
        said = Said(runs=[(sent.trial_run_id, count)], shapes=distinct, of=of, integers=integers, values={}, batches={})
        block, rows = long_block(trial_id, sent.group, steps[begin:end], times[begin:end], within)
        yield _Piece(count, said, block | {"last_at": _moment(times[begin:end].max())}, rows)


def _moment(seconds: np.float64) -> datetime:
    return _EPOCH + timedelta(microseconds=round(float(seconds) * 1e6))


def _shapes(
    columns: Mapping[str, tuple[Floats, Integers]], count: int
) -> tuple[list[list[str]], list[tuple[int, int]]]:
    """Which names reports have, and which of these each has."""
    names = list(columns)
    if all(len(places) == count for _, places in columns.values()):
        return [names], [(0, count)]
    has = np.zeros((count, len(names)), bool)
    for at, (_, places) in enumerate(columns.values()):
        has[places, at] = True
    distinct, of = np.unique(has, axis=0, return_inverse=True)
    shapes = [[name for name, is_in in zip(names, row, strict=True) if is_in] for row in distinct.tolist()]
    return shapes, runs(of.reshape(-1).tolist())


def _distinct(shapes: Sequence[tuple[str, ...]]) -> tuple[list[list[str]], list[tuple[int, int]]]:
    """The same of the names in each report."""
    places = {shape: place for place, shape in enumerate(dict.fromkeys(shapes))}
    return [list(shape) for shape in places], runs([places[shape] for shape in shapes])


def put(connection: Connection, trial: TrialRow, curves: Packed) -> bool:
    """Store curves as blocks; False, and their reports are not stored, if they can't be blocks now.

    Args:
        connection: Within a transaction that has locked the trial.
        trial: As it is read within it; what follows from the reports is noted in it.
        curves: Of its run.
    """
    group = curves.sent.group
    if not curves.pieces:
        return False
    mine: SealedGroup = trial.sealed.get(group) or {"to": -1, "reopened": 0}
    first, last = int(curves.steps[0]), int(curves.steps[-1])
    if first <= mine["to"]:
        return _is_there(connection, trial.id, curves)
    if mine["reopened"] > MOST_REOPENED:
        return False
    newest = connection.scalar(
        select(func.max(Metric.total_batches)).where(
            Metric.trial_id == trial.id, Metric.group_name == group, ~Metric.archived,
            Metric.total_batches > mine["to"],
        )
    )  # fmt: skip
    if newest is not None and newest >= first:
        return False
    if newest is not None or mine.get("long", -1) < mine["to"]:
        while seal(connection, trial.id, group, is_over=True, least=1):
            pass
        trial.sealed = connection.execute(select(Trial.sealed).where(Trial.id == trial.id)).scalar_one()
        mine = trial.sealed[group]
    ids = report_ids(connection, len(curves.steps))
    begin = 0
    for piece in curves.pieces:
        own = ids[begin : begin + piece.count]
        begin += piece.count
        row = piece.block | {"packed": packed(own, piece.said), "first_id": int(own[0]), "last_id": int(own[-1])}
        connection.execute(insert(MetricBlock).values(row))
        if piece.columns:
            connection.execute(insert(MetricColumn), piece.columns)
    mine = {"to": last, "reopened": mine["reopened"], "long": last, "packed": last}
    trial.sealed = {**trial.sealed, group: mine}
    saved(connection, trial.id, trial.sealed)
    _fold(trial, curves)
    return True


def _is_there(connection: Connection, trial_id: int, curves: Packed) -> bool:
    """Whether blocks say just this already: its answer was lost, and it came once more."""
    for piece in curves.pieces:
        at = {name: piece.block[name] for name in ("trial_id", "group_name", "first_step")}
        block = connection.execute(
            select(MetricBlock.steps, MetricBlock.times, MetricBlock.packed).filter_by(**at)
        ).first()
        if block is None or block.packed is None or block.steps != piece.block["steps"]:
            return False
        if curves.sent.report_times is not None and block.times != piece.block["times"]:
            return False
        columns = select(MetricColumn.name, MetricColumn.numbers, MetricColumn.places).filter_by(**at)
        has = {name: (numbers, places) for name, numbers, places in connection.execute(columns).tuples()}
        if has != {row["name"]: (row["numbers"], row["places"]) for row in piece.columns}:
            return False
    return True


def _fold(trial: TrialRow, curves: Packed) -> None:
    trial.is_changed = True
    trial.total_batches = max(trial.total_batches, int(curves.steps[-1]))
    entries = trial.summary.setdefault(curves.sent.group, {})
    without_last(entries)
    for name, column in sorted(curves.columns.items(), key=lambda item: int(item[1].places[0])):  # as they appear
        is_last = int(column.places[-1]) == len(curves.steps) - 1
        value = plain(curves.sent.metrics[name][int(column.places[-1])])
        add_column(entries, name, column.numbers, last=value, is_last=is_last)
