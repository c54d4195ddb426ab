"""Curves as arrays: from blocks (`api.ingest.metric_blocks`), and from the reports that are in none yet."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Row, and_, null, or_, select
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
        values: NaN and infinities are what was reported.
        times: Of the reports, in seconds since 1970. None if they were not asked for.
        epochs: NaN where a report did not say. None if they were not asked for.
    """

    steps: Integers
    values: Floats
    times: Floats | None = None
    epochs: Floats | None = None

    def at(self, places: Any) -> Self:
        """Some of it: indexes, a slice or a mask."""
        some = (None if each is None else each[places] for each in (self.times, self.epochs))
        return type(self)(self.steps[places], self.values[places], *some)


@dataclass
class Found:
    """Series of trials.

    Attributes:
        by_trial: By the id of the trial.
        counts: Numbers that each of them has.
        unsealed: Trials and groups with many reports in no block: it is time for some.
    """

    by_trial: dict[int, Series] = field(default_factory=dict[int, Series])
    counts: dict[int, int] = field(default_factory=dict[int, int])
    unsealed: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])


@dataclass(frozen=True)
class Wanted:
    """One metric of some trials.

    Attributes:
        trial_ids: Whose.
        group: Of the reports.
        name: Of the metric.
        start: First step.
        end: Last step; None: the last one there is.
        with_times: Read the times, too.
        with_epochs: Read the epochs, too.
    """

    trial_ids: Sequence[int]
    group: str
    name: str
    start: int = 0
    end: int | None = None
    with_times: bool = True
    with_epochs: bool = True


def series(session: Session, wanted: Wanted) -> Found:
    """The metric of these trials. A report without a number there is left out, and a trial without a report."""
    reading = _Reading(session, wanted)
    blocks = reading.blocks()
    pieces: dict[int, list[Series]] = defaultdict(list)
    for trial_id, piece in reading.from_blocks(blocks):
        pieces[trial_id].append(piece)
    found = Found()
    for trial_id, count, piece in reading.from_reports({block.trial_id: block.last_step for block in blocks}):
        pieces[trial_id].append(piece)
        if count >= _MANY:
            found.unsealed.append((trial_id, wanted.group))
    for trial_id in wanted.trial_ids:
        if some := [piece for piece in pieces[trial_id] if len(piece.steps)]:
            whole = found.by_trial[trial_id] = _joined(some)
            found.counts[trial_id] = int(np.isfinite(whole.values).sum())
    return found


@dataclass(frozen=True)
class _Reading:
    """Reads what is wanted from blocks, and from the reports behind them."""

    session: Session
    wanted: Wanted

    def _among(self, model: type[MetricBlock] | type[MetricColumn]) -> ColumnElement[bool]:
        whose = among(self.session, model.trial_id, self.wanted.trial_ids)
        shown = and_(whose, model.group_name == self.wanted.group, model.last_step >= self.wanted.start)
        return shown if self.wanted.end is None else and_(shown, model.first_step <= self.wanted.end)

    def blocks(self) -> Sequence[Row[*tuple[Any, ...]]]:
        """Those of the trials, in order. They are read first: what is in none of them is read from the reports."""
        times = MetricBlock.times if self.wanted.with_times else null().label("times")
        columns = MetricBlock.trial_id, MetricBlock.first_step, MetricBlock.last_step, MetricBlock.steps, times
        blocks = select(*columns).where(self._among(MetricBlock))
        return self.session.execute(blocks.order_by(MetricBlock.trial_id, MetricBlock.first_step)).all()

    def _columns(self, name: str) -> dict[tuple[int, int], Row[*tuple[Any, ...]]]:
        """Of a metric, by trial and first step of the block."""
        columns = select(
            MetricColumn.trial_id, MetricColumn.first_step, MetricColumn.numbers, MetricColumn.places
        ).where(self._among(MetricColumn), MetricColumn.name == name)
        return {(row.trial_id, row.first_step): row for row in self.session.execute(columns)}

    def from_blocks(self, blocks: Sequence[Row[*tuple[Any, ...]]]) -> Iterator[tuple[int, Series]]:
        """Trials and pieces of their series, in order."""
        if not blocks:
            return
        values = self._columns(self.wanted.name)
        epochs = values if self.wanted.name == _EPOCH else self._columns(_EPOCH) if self.wanted.with_epochs else {}
        for block in blocks:
            key = block.trial_id, block.first_step
            column = values.get(key)
            if column is None:
                continue
            steps = np.frombuffer(block.steps, "<i8")
            piece = Series(
                steps,
                _spread(column, len(steps)),
                np.frombuffer(block.times, "<f8") if self.wanted.with_times else None,
                _spread(epochs.get(key), len(steps)) if self.wanted.with_epochs else None,
            )
            if column.places is not None:
                piece = piece.at(np.frombuffer(column.places, "<u2"))
            start, end = self.wanted.start, self.wanted.end
            is_whole = block.first_step >= start and (end is None or block.last_step <= end)
            yield block.trial_id, piece if is_whole else _between(piece, start, end)

    def from_reports(self, sealed: Mapping[int, int]) -> Iterator[tuple[int, int, Series]]:
        """Trials, how many reports they have behind their last block, and the numbers in these.

        Args:
            sealed: The last step in a block, of trials that have one.
        """
        short = [trial_id for trial_id in self.wanted.trial_ids if trial_id not in sealed]
        behind = [and_(Metric.trial_id == trial_id, Metric.total_batches > step) for trial_id, step in sealed.items()]
        if short:
            behind.append(among(self.session, Metric.trial_id, short))
        time = Metric.reported_at if self.wanted.with_times else null().label("reported_at")
        reports = (
            select(Metric.trial_id, Metric.total_batches, Metric.metrics, time)
            .where(or_(*behind), Metric.group_name == self.wanted.group, ~Metric.archived)
            .where(Metric.total_batches >= self.wanted.start)
            .order_by(Metric.trial_id, Metric.total_batches)
        )
        if self.wanted.end is not None:
            reports = reports.where(Metric.total_batches <= self.wanted.end)
        for trial_id, of_trial in groupby(self.session.execute(reports).tuples(), key=itemgetter(0)):
            yield trial_id, *self._numbers(of_trial)

    def _numbers(self, reports: Iterable[tuple[Any, ...]]) -> tuple[int, Series]:
        """How many reports these are, and the numbers in them."""
        rows: list[tuple[int, float, datetime | None, float]] = []
        count = 0
        for _, step, metrics, time in reports:
            count += 1
            value = number(metrics.get(self.wanted.name))
            if value is not None:
                epoch = number(metrics.get(_EPOCH)) if self.wanted.with_epochs else None
                rows.append((step, value, time, math.nan if epoch is None else epoch))
        times, epochs = [time.timestamp() for *_, time, _ in rows if time], [epoch for *_, epoch in rows]
        return count, Series(
            np.array([step for step, *_ in rows], np.int64),
            np.array([value for _, value, *_ in rows], np.float64),
            np.array(times, np.float64) if self.wanted.with_times else None,
            np.array(epochs, np.float64) if self.wanted.with_epochs else None,
        )


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
    def joined(parts: list[Floats | None]) -> Floats | None:
        some = [part for part in parts if part is not None]
        return np.concatenate(some) if some else None

    return Series(
        np.concatenate([piece.steps for piece in pieces]),
        np.concatenate([piece.values for piece in pieces]),
        joined([piece.times for piece in pieces]),
        joined([piece.epochs for piece in pieces]),
    )
