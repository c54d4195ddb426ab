"""Curves as arrays: from blocks (`api.ingest.metric_blocks`), and from the reports that are in none yet."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import groupby
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Row, and_, or_, select
from sqlalchemy.orm import Session

from api.queries.ids import among
from api.schemas.base import number
from database.models import Metric, MetricBlock, MetricColumn

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
_EPOCH = "epoch"
#: Reports in no block that are worth a notice: some blocks of them.
_MANY = 1000


@dataclass(frozen=True)
class Series:
    """One metric of one trial, by steps. All arrays have the same length.

    Attributes:
        steps: Batches that were completed, ascending.
        times: Of the reports, in seconds since 1970.
        epochs: NaN where a report did not say.
        values: NaN and infinities are what was reported.
    """

    steps: Integers
    times: Floats
    epochs: Floats
    values: Floats

    def at(self, places: Any) -> Self:
        """Some of it: indexes, a slice or a mask."""
        return type(self)(self.steps[places], self.times[places], self.epochs[places], self.values[places])


@dataclass
class Found:
    """Series of trials.

    Attributes:
        by_trial: By the id of the trial.
        counts: Numbers that each of them has.
        unsealed: Trials and groups with so many reports in no block that it is time for some.
    """

    by_trial: dict[int, Series] = field(default_factory=dict[int, Series])
    counts: dict[int, int] = field(default_factory=dict[int, int])
    unsealed: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])


def series(
    session: Session, trial_ids: Sequence[int], group: str, name: str, *, start: int = 0, end: int | None = None
) -> Found:
    """The metric of these trials. A report without a number there is left out, and a trial without a report.

    Args:
        session: To read with.
        trial_ids: Whose.
        group: Of the reports.
        name: Of the metric.
        start: First step.
        end: Last step; None: the last one there is.
    """
    shown = _Shown(session, trial_ids, group, name, start, end)
    blocks = shown.blocks()
    pieces: dict[int, list[Series]] = defaultdict(list)
    for trial_id, piece in shown.from_blocks(blocks):
        pieces[trial_id].append(piece)
    found = Found()
    for trial_id, count, piece in shown.from_reports({block.trial_id: block.last_step for block in blocks}):
        pieces[trial_id].append(piece)
        if count >= _MANY:
            found.unsealed.append((trial_id, group))
    for trial_id in trial_ids:
        if some := [piece for piece in pieces[trial_id] if len(piece.steps)]:
            whole = found.by_trial[trial_id] = _joined(some)
            found.counts[trial_id] = int(np.isfinite(whole.values).sum())
    return found


@dataclass(frozen=True)
class _Shown:
    """What is asked for."""

    session: Session
    trial_ids: Sequence[int]
    group: str
    name: str
    start: int
    end: int | None

    def _among(self, model: type[MetricBlock] | type[MetricColumn]) -> ColumnElement[bool]:
        whose = among(self.session, model.trial_id, self.trial_ids)
        shown = and_(whose, model.group_name == self.group, model.last_step >= self.start)
        return shown if self.end is None else and_(shown, model.first_step <= self.end)

    def blocks(self) -> Sequence[Row[*tuple[Any, ...]]]:
        """Those of the trials, in order. They are read first: what is in none of them is read from the reports."""
        columns = MetricBlock.trial_id, MetricBlock.first_step, MetricBlock.last_step, MetricBlock.steps
        blocks = select(*columns, MetricBlock.times).where(self._among(MetricBlock))
        return self.session.execute(blocks.order_by(MetricBlock.trial_id, MetricBlock.first_step)).all()

    def _columns(self, name: str) -> dict[tuple[int, int], Row[*tuple[Any, ...]]]:
        """Of a metric, by trial and first step of the block."""
        columns = select(
            MetricColumn.trial_id, MetricColumn.first_step, MetricColumn.numbers, MetricColumn.places
        ).where(self._among(MetricColumn), MetricColumn.name == name)
        return {(row.trial_id, row.first_step): row for row in self.session.execute(columns)}

    def from_blocks(self, blocks: Sequence[Row[*tuple[Any, ...]]]) -> Iterator[tuple[int, Series]]:
        """Trials and pieces of their series, in order."""
        values = self._columns(self.name) if blocks else {}
        epochs = values if self.name == _EPOCH else self._columns(_EPOCH) if values else {}
        for block in blocks:
            key = block.trial_id, block.first_step
            column = values.get(key)
            if column is None:
                continue
            steps = np.frombuffer(block.steps, "<i8")
            piece = Series(
                steps,
                np.frombuffer(block.times, "<f8"),
                _spread(epochs.get(key), len(steps)),
                _spread(column, len(steps)),
            )
            if column.places is not None:
                piece = piece.at(np.frombuffer(column.places, "<u2"))
            is_whole = block.first_step >= self.start and (self.end is None or block.last_step <= self.end)
            yield block.trial_id, piece if is_whole else _between(piece, self.start, self.end)

    def from_reports(self, sealed: Mapping[int, int]) -> Iterator[tuple[int, int, Series]]:
        """Trials, how many reports they have behind their last block, and the numbers in these.

        Args:
            sealed: The last step in a block, of trials that have one.
        """
        short = [trial_id for trial_id in self.trial_ids if trial_id not in sealed]
        behind = [and_(Metric.trial_id == trial_id, Metric.total_batches > step) for trial_id, step in sealed.items()]
        if short:
            behind.append(among(self.session, Metric.trial_id, short))
        reports = (
            select(Metric.trial_id, Metric.total_batches, Metric.reported_at, Metric.metrics)
            .where(or_(*behind), Metric.group_name == self.group, ~Metric.archived)
            .where(Metric.total_batches >= self.start)
            .order_by(Metric.trial_id, Metric.total_batches)
        )
        if self.end is not None:
            reports = reports.where(Metric.total_batches <= self.end)
        for trial_id, of_trial in groupby(self.session.execute(reports), key=lambda row: row.trial_id):
            yield trial_id, *_numbers(of_trial, self.name)


def _numbers(reports: Iterable[Row[*tuple[Any, ...]]], name: str) -> tuple[int, Series]:
    """How many reports these are, and the numbers in them."""
    steps: list[int] = []
    others: list[tuple[float, float, float]] = []
    count = 0
    for count, report in enumerate(reports, start=1):  # noqa: B007 - the last one is what counts
        value = number(report.metrics.get(name))
        if value is not None:
            epoch = number(report.metrics.get(_EPOCH))
            steps.append(report.total_batches)
            others.append((report.reported_at.timestamp(), math.nan if epoch is None else epoch, value))
    times, epochs, values = np.array(others, np.float64).reshape(-1, 3).T
    return count, Series(np.array(steps, np.int64), times, epochs, values)


def _spread(column: Row[*tuple[Any, ...]] | None, count: int) -> Floats:
    """A number for each report of a block; NaN where it has none."""
    if column is not None and column.places is None:
        return np.frombuffer(column.numbers, "<f8")
    spread = np.full(count, np.nan)
    if column is not None:
        spread[np.frombuffer(column.places, "<u2")] = np.frombuffer(column.numbers, "<f8")
    return spread


def _between(whole: Series, start: int, end: int | None) -> Series:
    begin = int(np.searchsorted(whole.steps, start))
    stop = len(whole.steps) if end is None else int(np.searchsorted(whole.steps, end, side="right"))
    return whole.at(slice(begin, stop))


def _joined(pieces: Sequence[Series]) -> Series:
    return Series(*(np.concatenate([getattr(each, part.name) for each in pieces]) for part in fields(Series)))
