"""Blocks of reports: the numbers of successive reports of a group as columns, from which curves are read.

A report is a JSON document in `metrics` at first. A block is a copy of 240 of them, made some time after they came, and
sixteen of those become a long one. `trials.sealed` says of each group up to which step its reports are in blocks; later
ones are read from the documents. Whatever changes a report up to that step first drops the blocks from there on
(`reopen`), so that a block never contradicts the record.

When reports are old their documents go (`pack`): the block is the record then. A report that comes for such a step has
the documents of its block made anew (`restore_at`), and all else is as if they had never gone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NotRequired, TypedDict

import numpy as np
from sqlalchemy import Connection, Row, delete, func, insert, select, text, update

from api.queries.outlines import BLOCK, LONG, outline
from api.schemas.base import number
from database import report_blocks
from database.models import Metric, MetricBlock, MetricColumn, Trial
from database.number_columns import (
    Floats,
    Integers,
    pack_floats,
    pack_integers,
    unpack_floats,
    unpack_integers,
)
from database.numbers import take_on_sqlite
from database.report_blocks import Report, column_of
from database.reports import restore, rows_between

#: The latest reports stay open: further metrics of the same step are united with them.
_OPEN = 16
#: Blocks of one transaction, which others wait for.
_AT_ONCE = 4
#: Columns of long blocks that are written at once, at most; a group with more names has short blocks only.
MOST_COLUMNS = 500
#: How often a group may have reports for steps that are in blocks already. Beyond that it gets no more blocks.
MOST_REOPENED = 100
#: As many documents that had to be made anew count as one more time.
_RESTORED = 10_000
#: Fewer reports at the end of a trial stay documents.
LEAST = 8
#: Groups whose reports stay documents: validations, which searches, checkpoints and webhooks look for one by one.
KEPT_GROUPS = ("validation",)
#: Groups of trials whose new reports are counted.
_COUNTED = 20_000

Sealed = dict[str, "SealedGroup"]
Group = tuple[int, str]


class SealedGroup(TypedDict):
    """How far the reports of a group are in blocks. `to`: the last step in one, -1 for none; `long`: in a long one.

    `packed`: no later step is in a packed block.
    """

    to: int
    reopened: int
    long: NotRequired[int]
    packed: NotRequired[int]


@dataclass
class Unsealed:
    """Groups of trials with enough new reports for a block, in the order in which they had them."""

    _counts: OrderedDict[Group, int] = field(default_factory=OrderedDict[Group, int])
    _ready: dict[Group, None] = field(default_factory=dict[Group, None])

    def __bool__(self) -> bool:
        """Whether one is ready."""
        return bool(self._ready)

    def count(self, trial_id: int, group: str) -> None:
        """One more report. Counts are lost at a restart, and of those that are rare: readers call `add` then."""
        count = self._counts.pop((trial_id, group), 0) + 1
        if count >= BLOCK:
            self._ready[trial_id, group] = None
            count = 0
        self._counts[trial_id, group] = count
        if len(self._counts) > _COUNTED:
            self._counts.popitem(last=False)

    def add(self, trial_id: int, group: str) -> None:
        """A reader saw that it has many reports that are in no block."""
        self._ready[trial_id, group] = None

    def take(self) -> Group:
        """The next one."""
        group = next(iter(self._ready))
        del self._ready[group]
        return group


def _locked(connection: Connection, trial_id: int) -> Sealed | None:
    """The `sealed` of a trial, whose row is locked by what writes its reports as well; None if it is gone."""
    row = connection.execute(select(Trial.sealed).where(Trial.id == trial_id).with_for_update(key_share=True)).first()
    return None if row is None else row.sealed


def seal(connection: Connection, trial_id: int, group: str, *, is_over: bool = False, least: int | None = None) -> bool:
    """Copy reports of a group into blocks, some thousand at once; True if there are enough for more of them.

    Args:
        connection: Within a transaction.
        trial_id: Whose.
        group: Of the reports.
        is_over: No more are expected: the last ones become blocks as well.
        least: How many of these are enough for one; None: as many as pay.
    """
    sealed = _locked(connection, trial_id)
    if sealed is None:
        return False
    mine: SealedGroup = sealed.get(group) or {"to": -1, "reopened": 0}
    if mine["reopened"] > MOST_REOPENED:
        return False
    reports = connection.execute(
        select(Metric.total_batches, Metric.reported_at, Metric.metrics)
        .where(Metric.trial_id == trial_id, Metric.group_name == group, ~Metric.archived)
        .where(Metric.total_batches > mine["to"])
        .order_by(Metric.total_batches)
        .limit(_AT_ONCE * BLOCK + _OPEN)
    ).all()
    count = max(0, (len(reports) - (0 if is_over else _OPEN)) // BLOCK)
    is_last = is_over and count < _AT_ONCE
    pieces = [reports[begin : begin + BLOCK] for begin in range(0, count * BLOCK, BLOCK)]
    if is_last and len(reports) - count * BLOCK >= (least or LEAST):
        pieces.append(reports[count * BLOCK :])
    for piece in pieces:
        _write(connection, trial_id, group, piece)
        mine["to"] = piece[-1].total_batches
    is_joined = _join(connection, trial_id, group, mine, 2 if is_last else LONG)
    if is_last:
        of_group = MetricBlock.trial_id == trial_id, MetricBlock.group_name == group
        connection.execute(update(MetricBlock).where(*of_group, ~MetricBlock.is_settled).values(is_settled=True))
        mine["long"] = mine["to"]  # none of them will be part of a longer one
    if pieces or is_joined or is_last:
        saved(connection, trial_id, sealed | {group: mine})
    return count == _AT_ONCE or (is_joined and not is_last)


def _write(connection: Connection, trial_id: int, group: str, reports: Sequence[Row[*tuple[Any, ...]]]) -> None:
    block, columns = built(
        trial_id, group, [(row.total_batches, row.reported_at.timestamp(), row.metrics) for row in reports]
    )
    connection.execute(insert(MetricBlock).values(block))
    if columns:
        connection.execute(insert(MetricColumn), columns)


def _join(connection: Connection, trial_id: int, group: str, mine: SealedGroup, least: int) -> bool:
    """Make a long block of the oldest short ones if they are at least as many; whether they were."""
    after = mine.get("long", -1)
    of_group = MetricBlock.trial_id == trial_id, MetricBlock.group_name == group
    open_ = select(MetricBlock).where(*of_group, MetricBlock.first_step > after, ~MetricBlock.is_settled)
    short = open_.order_by(MetricBlock.first_step)
    blocks = connection.execute(short.with_only_columns(*MetricBlock.__table__.columns).limit(LONG)).all()
    if len(blocks) < least:
        return False
    mine["long"] = last = blocks[-1].last_step
    within = (
        MetricColumn.trial_id == trial_id,
        MetricColumn.group_name == group,
        MetricColumn.first_step.between(blocks[0].first_step, last),
    )
    of_blocks = *of_group, MetricBlock.first_step > after, MetricBlock.last_step <= last
    if (connection.scalar(select(func.count()).where(*within)) or 0) > LONG * MOST_COLUMNS:
        connection.execute(update(MetricBlock).where(*of_blocks).values(is_settled=True))
        return True
    of_each = [unpack_integers(block.steps) for block in blocks]
    steps = np.concatenate(of_each)
    times = np.concatenate([unpack_floats(block.times) for block in blocks])
    lengths = map(len, of_each)
    begins = dict(zip((block.first_step for block in blocks), accumulate([0, *lengths]), strict=False))
    parts: dict[str, list[tuple[Floats, Integers]]] = {}
    columns = select(MetricColumn.name, MetricColumn.first_step, MetricColumn.numbers, MetricColumn.places)
    for name, first, numbers, places in connection.execute(columns.where(*within).order_by(MetricColumn.first_step)):
        values, at = column_of(numbers, places)
        parts.setdefault(name, []).append((values, (np.arange(len(values)) if at is None else at) + begins[first]))
    joined = {
        name: (np.concatenate([values for values, _ in some]), np.concatenate([at for _, at in some]))
        for name, some in parts.items()
    }
    block, rows = long_block(trial_id, group, steps, times, joined)
    for model, whose in ((MetricColumn, within), (MetricBlock, of_blocks)):
        connection.execute(delete(model).where(*whose))
    connection.execute(insert(MetricBlock).values(block))
    if rows:
        connection.execute(insert(MetricColumn), rows)
    return True


def long_block(
    trial_id: int, group: str, steps: Integers, times: Floats, columns: Mapping[str, tuple[Floats, Integers]]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The row of a long block, and those of its columns.

    Args:
        trial_id: Whose.
        group: Of the reports.
        steps: Of each report; they ascend.
        times: Of each, in seconds since 1970.
        columns: By name, numbers and the places of the reports that have them.
    """
    epochs = np.full(len(steps), np.nan)
    if "epoch" in columns:
        epochs[columns["epoch"][1]] = columns["epoch"][0]
    first, last = int(steps[0]), int(steps[-1])
    of_block = {"trial_id": trial_id, "group_name": group, "first_step": first, "last_step": last}
    rows = [
        of_block
        | {
            "name": name,
            "finite": int(np.isfinite(values).sum()),
            "outline": outline(values, steps[at], times[at], epochs[at]),
            "numbers": pack_floats(values),
            "places": None if len(at) == len(steps) else pack_integers(at),
        }
        for name, (values, at) in columns.items()
    ]
    block = {"is_long": True, "is_settled": True, "steps": pack_integers(steps), "times": pack_floats(times)}
    return of_block | block, rows


def built(
    trial_id: int, group: str, reports: Sequence[tuple[int, float, dict[str, Any]]]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The row of a block, and those of its columns.

    Args:
        trial_id: Whose.
        group: Of the reports.
        reports: Step, seconds since 1970 and metrics of each, by step.
    """
    of_block = {"trial_id": trial_id, "group_name": group, "first_step": reports[0][0], "last_step": reports[-1][0]}
    steps = np.array([step for step, _, _ in reports], "<i8")
    times = np.array([seconds for _, seconds, _ in reports], "<f8")
    rows = [
        of_block
        | {
            "name": name,
            "numbers": pack_floats(numbers),
            "places": None if len(places) == len(reports) else pack_integers(places),
        }
        for name, (numbers, places) in _numbers(metrics for _, _, metrics in reports).items()
    ]
    block = {"is_long": False, "is_settled": False, "steps": pack_integers(steps), "times": pack_floats(times)}
    return of_block | block, rows


def _numbers(documents: Iterable[Mapping[str, Any]]) -> dict[str, tuple[Floats, Integers]]:
    """The numbers in reports by name, and the places of the reports that have them."""
    columns: dict[str, tuple[list[float], list[int]]] = {}
    for place, metrics in enumerate(documents):
        for name, value in metrics.items():
            if (as_number := number(value)) is not None:
                numbers, places = columns.setdefault(name, ([], []))
                numbers.append(as_number)
                places.append(place)
    return {name: (np.array(numbers, "<f8"), np.array(places, "<i8")) for name, (numbers, places) in columns.items()}


def packed_block(reports: Sequence[Report]) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """The row of a packed block, and those of its columns; None if it could not say all that the reports say.

    Args:
        reports: Of one trial and group, by step, with ids that ascend.
    """
    head = reports[0]
    columns = _numbers(report.metrics for report in reports)
    if len(columns) > MOST_COLUMNS:
        return None
    steps = np.array([report.total_batches for report in reports], "<i8")
    times = np.array([report.reported_at.timestamp() for report in reports], "<f8")
    block, rows = long_block(head.trial_id, head.group_name, steps, times, columns)
    held = {row["name"]: (row["numbers"], row["places"]) for row in rows}
    record = _record(reports, block["first_step"], block["last_step"], block["steps"], block["times"], held)
    return None if record is None else (block | record, rows)


def _record(
    reports: Sequence[Report],
    first: int,
    last: int,
    steps: bytes,
    times: bytes,
    columns: Mapping[str, tuple[bytes, bytes | None]],
) -> dict[str, Any] | None:
    """What the row of a block gets as the record of its reports; None if it could not say all that they say."""
    packed = report_blocks.pack(reports, {name: column_of(*column) for name, column in columns.items()})
    head = reports[0]
    says = report_blocks.Block(head.trial_id, head.group_name, first, last, steps, times, packed, columns)
    if not report_blocks.is_exact(says, reports):
        return None
    ids = [report.id for report in reports]
    last_at = max(report.reported_at for report in reports)
    return {"packed": packed, "first_id": min(ids), "last_id": max(ids), "last_at": last_at}


def report_ids(connection: Connection, count: int) -> Integers:
    """Numbers for as many reports, which ascend and are given to no other."""
    if connection.dialect.name == "sqlite":
        return np.array(take_on_sqlite(connection, "metrics", count), np.int64)
    numbers = "SELECT nextval(pg_get_serial_sequence('metrics', 'id')) FROM generate_series(1, :count)"
    return np.array(connection.execute(text(numbers), {"count": count}).scalars().all(), np.int64)


def finish(connection: Connection, trial_id: int) -> None:
    """Put into blocks what a trial that has ended reported last.

    Its validations stay documents, and so do the reports of groups that came without any order.
    """
    groups = select(Metric.group_name).where(
        Metric.trial_id == trial_id, ~Metric.archived, Metric.total_batches.is_not(None),
        Metric.group_name.not_in(KEPT_GROUPS),
    )  # fmt: skip
    for group in connection.scalars(groups.distinct()).all():
        while seal(connection, trial_id, group, is_over=True):
            pass
    connection.execute(update(Trial).where(Trial.id == trial_id).values(is_settled=True))


def pack(connection: Connection, trial_id: int, group: str, newest: int) -> int:
    """Make the oldest settled block of a group the record of its reports, whose documents go; returns how many.

    Args:
        connection: Within a transaction.
        trial_id: Whose.
        group: Of the reports.
        newest: The id of the last report that is old enough.
    """
    sealed = _locked(connection, trial_id)
    of_group = MetricBlock.trial_id == trial_id, MetricBlock.group_name == group
    waiting = select(MetricBlock).where(*of_group, MetricBlock.is_settled, MetricBlock.packed.is_(None))
    found = waiting.with_only_columns(*MetricBlock.__table__.columns).order_by(MetricBlock.first_step).limit(1)
    block = connection.execute(found).first()
    if sealed is None or block is None:
        return 0
    reports = rows_between(connection, trial_id, group, block.first_step, block.last_step)
    if any(report.id > newest for report in reports):
        return 0
    this = update(MetricBlock).where(MetricBlock.id == block.id)
    columns = {
        name: (numbers, places)
        for name, numbers, places in connection.execute(
            select(MetricColumn.name, MetricColumn.numbers, MetricColumn.places).where(
                MetricColumn.trial_id == trial_id, MetricColumn.group_name == group,
                MetricColumn.first_step == block.first_step,
            )
        ).tuples()
    }  # fmt: skip
    record = _record(reports, block.first_step, block.last_step, block.steps, block.times, columns)
    if record is None:  # a time beyond the year 2255, say: such documents stay
        connection.execute(this.values(is_settled=False))
        return len(reports)
    connection.execute(
        delete(Metric).where(
            Metric.trial_id == trial_id, Metric.group_name == group, ~Metric.archived,
            Metric.total_batches.between(block.first_step, block.last_step),
        )
    )  # fmt: skip
    connection.execute(this.values(record))
    mine: SealedGroup = sealed[group]
    mine["packed"] = max(mine.get("packed", -1), block.last_step)
    saved(connection, trial_id, sealed)
    return len(reports)


def restore_at(connection: Connection, trial_id: int, sealed: Sealed, step: int, group: str) -> None:
    """Make documents of the packed block that a step is in, if it is in one: a report for it is on its way."""
    mine = sealed.get(group)
    if mine is not None and step <= mine.get("packed", -1):
        restore(
            connection, MetricBlock.trial_id == trial_id, MetricBlock.group_name == group,
            MetricBlock.first_step <= step, MetricBlock.last_step >= step,
        )  # fmt: skip


def reopen(connection: Connection, trial_id: int, sealed: Sealed, step: int, group: str | None = None) -> None:
    """Drop the blocks that a report at `step` is or would be in, and those behind; `sealed` and the row follow.

    Args:
        connection: Within the transaction that changes the report, which holds the trial's row.
        trial_id: The trial.
        sealed: Of its row; changed in place.
        step: Of the first report that changes.
        group: Whose; None: of all groups, as a newer run began before `step`.
    """
    names = [name for name in ([group] if group is not None else list(sealed)) if step <= sealed[name]["to"]]
    for name in names:
        restored = restore(
            connection, MetricBlock.trial_id == trial_id, MetricBlock.group_name == name, MetricBlock.last_step >= step
        )
        for model in (MetricColumn, MetricBlock):
            connection.execute(
                delete(model).where(model.trial_id == trial_id, model.group_name == name, model.last_step >= step)
            )
        kept = select(func.max(MetricBlock.last_step)).where(
            MetricBlock.trial_id == trial_id, MetricBlock.group_name == name
        )
        last = connection.scalar(kept)
        reopened = sealed[name]["reopened"] + (0 if group is None else 1 + restored // _RESTORED)
        to = -1 if last is None else last
        long, packed = min(to, sealed[name].get("long", -1)), min(to, sealed[name].get("packed", -1))
        sealed[name] = {"to": to, "reopened": reopened, "long": long, "packed": packed}
    if names:
        saved(connection, trial_id, sealed)


def saved(connection: Connection, trial_id: int, sealed: Sealed) -> None:
    """Write down how far the groups of a trial are in blocks."""
    connection.execute(update(Trial).where(Trial.id == trial_id).values(sealed=sealed))
