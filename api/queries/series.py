"""Curves as arrays: from blocks (`api.ingest.metric_blocks`), and from the reports that are in none yet."""

from __future__ import annotations

import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Row, and_, case, false, func, null, or_, select
from sqlalchemy.orm import Session, aliased

from api.queries.ids import among
from api.queries.outlines import BLOCK, LONG, TILE
from api.schemas.base import number
from database.engines import on_postgresql
from database.models import Metric, MetricBlock, MetricColumn
from database.number_columns import Floats, Integers, unpack_floats, unpack_integers

_EPOCH = "epoch"
#: Reports in no block that are worth a notice: some blocks of them.
_MANY = 1000
#: Short blocks of a series that are worth one: a long one is made of them.
_MANY_SHORT = 4 * LONG


@dataclass(frozen=True)
class Series:
    """One metric of one trial, by steps. All arrays have the same length.

    Attributes:
        steps: Batches that were completed, ascending.
        values: NaN and infinities are what was reported.
        times: Of the reports, in seconds since 1970. None if they were not asked for.
        epochs: NaN where a report did not say. None if they were not asked for.
        keys: The steps by which reports go into ranges, where a few reports stand for a tile of them: its first step.
            None: their own.
    """

    steps: Integers
    values: Floats
    times: Floats | None = None
    epochs: Floats | None = None
    keys: Integers | None = None

    def at(self, places: Any) -> Self:
        """Some of it: indexes, a slice or a mask."""
        times, epochs = (None if each is None else each[places] for each in (self.times, self.epochs))
        keys = None if self.keys is None else self.keys[places]
        return type(self)(self.steps[places], self.values[places], times, epochs, keys)


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
        columns: Into how many ranges of steps a plot thins it. Of a series that is much longer, some reports of each
            tile stand for it. None: all reports are wanted.
    """

    trial_ids: Sequence[int]
    group: str
    name: str
    start: int = 0
    end: int | None = None
    with_times: bool = True
    with_epochs: bool = True
    columns: int | None = None


def series(session: Session, wanted: Wanted) -> Found:
    """The metric of these trials. A report without a number there is left out, and a trial without a report."""
    reading = _Reading(session, wanted)
    blocks = reading.blocks()
    pieces: dict[int, list[Series]] = defaultdict(list)
    counts: dict[int, int] = defaultdict(int)
    for trial_id, count, piece in reading.from_blocks(blocks):
        pieces[trial_id].append(piece)
        counts[trial_id] += count
    found = Found()
    for trial_id, count, piece in reading.from_reports({block.trial_id: block.last_step for block in blocks}):
        pieces[trial_id].append(piece)
        counts[trial_id] += _finite(piece)
        if count >= _MANY:
            found.unsealed.append((trial_id, wanted.group))
    short = Counter(block.trial_id for block in blocks if not block.is_long)
    found.unsealed += [(trial_id, wanted.group) for trial_id, count in short.items() if count >= _MANY_SHORT]
    for trial_id in wanted.trial_ids:
        if some := [piece for piece in pieces[trial_id] if len(piece.steps)]:
            found.by_trial[trial_id] = _joined(some)
            found.counts[trial_id] = counts[trial_id]
    return found


def _finite(piece: Series) -> int:
    return int(np.isfinite(piece.values).sum())


@dataclass(frozen=True)
class _Reading:
    """Reads what is wanted from blocks, and from the reports behind them."""

    session: Session
    wanted: Wanted

    def _among(self) -> ColumnElement[bool]:
        whose = among(self.session, MetricBlock.trial_id, self.wanted.trial_ids)
        shown = and_(
            whose, MetricBlock.group_name == self.wanted.group, MetricBlock.last_step >= self.wanted.start
        )  # fmt: skip
        return shown if self.wanted.end is None else and_(shown, MetricBlock.first_step <= self.wanted.end)

    def _outlined(self) -> ColumnElement[bool]:
        """Whether a block is read as its outline: a whole one of a series with very many reports for each column."""
        if self.wanted.columns is None:
            return false()
        long = select(MetricBlock.trial_id).where(self._among(), MetricBlock.is_long).group_by(MetricBlock.trial_id)
        enough = self.wanted.columns * 2 * TILE / (LONG * BLOCK)
        dense = self.session.scalars(long.having(func.count() >= enough)).all()
        if not dense:
            return false()
        is_whole = MetricBlock.first_step >= self.wanted.start
        if self.wanted.end is not None:
            is_whole = and_(is_whole, MetricBlock.last_step <= self.wanted.end)
        return and_(MetricBlock.is_long, is_whole, among(self.session, MetricBlock.trial_id, dense))

    def blocks(self) -> Sequence[Row[*tuple[Any, ...]]]:
        """Those of the trials, in order. They are read first: what is in none of them is read from the reports.

        One statement sees them with their columns as they are at one moment: short ones become long ones.
        """
        wanted, block = self.wanted, MetricBlock
        values, epochs = aliased(MetricColumn), aliased(MetricColumn)
        with_epochs = wanted.with_epochs and wanted.name != _EPOCH
        outlined = self._outlined()

        def unless(column: Any, label: str) -> ColumnElement[Any]:
            return case((outlined, null()), else_=column).label(label)

        def of(column: Any, name: str) -> ColumnElement[bool]:
            return and_(
                column.trial_id == block.trial_id, column.group_name == block.group_name, column.name == name,
                column.first_step == block.first_step,
            )  # fmt: skip

        statement = select(
            block.trial_id, block.first_step, block.last_step, block.is_long, unless(block.steps, "steps"),
            unless(block.times, "times") if wanted.with_times else null().label("times"), values.finite,
            case((outlined, values.outline), else_=null()).label("outline"), unless(values.numbers, "numbers"),
            values.places,
            *((unless(epochs.numbers, "epochs"), epochs.places.label("epoch_places")) if with_epochs else ()),
        ).select_from(block).outerjoin(values, of(values, wanted.name))  # fmt: skip
        if with_epochs:
            statement = statement.outerjoin(epochs, of(epochs, _EPOCH))
        return self.session.execute(
            statement.where(self._among()).order_by(block.trial_id, block.first_step)
        ).all()  # fmt: skip

    def from_blocks(self, blocks: Sequence[Row[*tuple[Any, ...]]]) -> Iterator[tuple[int, int, Series]]:
        """Trials, how many finite numbers a piece of their series has, and the piece; in order."""
        wanted = self.wanted
        for block in blocks:
            if block.outline is not None:
                yield block.trial_id, block.finite, self._of_outline(block.outline)
                continue
            if block.numbers is None:
                continue
            steps = unpack_integers(block.steps)
            values = _spread(block.numbers, block.places, len(steps))
            epochs = None
            if wanted.with_epochs:
                epochs = values if wanted.name == _EPOCH else _spread(block.epochs, block.epoch_places, len(steps))
            piece = Series(steps, values, unpack_floats(block.times) if wanted.with_times else None, epochs)
            if block.places is not None:
                piece = piece.at(unpack_integers(block.places))
            start, end = wanted.start, wanted.end
            is_whole = block.first_step >= start and (end is None or block.last_step <= end)
            piece = piece if is_whole else _between(piece, start, end)
            yield block.trial_id, _finite(piece), piece

    def _of_outline(self, compressed: bytes) -> Series:
        packed = zlib.decompress(compressed)
        count = len(packed) // 40
        keys, steps = np.frombuffer(packed, "<i8", 2 * count).reshape(2, count)
        values, times, epochs = np.frombuffer(packed, "<f8", offset=16 * count).reshape(3, count)
        return Series(
            steps, values, times if self.wanted.with_times else None, epochs if self.wanted.with_epochs else None, keys
        )

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
        # one statement; but SQLite would go through all trials for an OR, and a statement costs little there
        for whose in [or_(*behind)] if on_postgresql(self.session) else behind:
            reports = (
                select(Metric.trial_id, Metric.total_batches, Metric.metrics, time)
                .where(whose, Metric.group_name == self.wanted.group, ~Metric.archived)
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


def _spread(numbers: bytes | None, places: bytes | None, count: int) -> Floats:
    """A number for each report of a block; NaN where it has none."""
    if numbers is not None and places is None:
        return unpack_floats(numbers)
    spread = np.full(count, np.nan)
    if numbers is not None and places is not None:
        spread[unpack_integers(places)] = unpack_floats(numbers)
    return spread


def _between(whole: Series, start: int, end: int | None) -> Series:
    begin = int(np.searchsorted(whole.steps, start))
    stop = len(whole.steps) if end is None else int(np.searchsorted(whole.steps, end, side="right"))
    return whole.at(slice(begin, stop))


def _joined(pieces: Sequence[Series]) -> Series:
    if len(pieces) == 1:
        return pieces[0]

    def joined(parts: Iterable[NDArray[Any] | None]) -> Any:
        some = [part for part in parts if part is not None]
        return np.concatenate(some) if some else None

    keys = None
    if any(piece.keys is not None for piece in pieces):
        keys = joined(piece.steps if piece.keys is None else piece.keys for piece in pieces)
    return Series(
        joined(piece.steps for piece in pieces),
        joined(piece.values for piece in pieces),
        joined(piece.times for piece in pieces),
        joined(piece.epochs for piece in pieces),
        keys,
    )
