"""Blocks of reports: the numbers of successive reports of a group as columns, from which curves are read.

A report is a JSON document in `metrics`, and stays there: that is the record. A block is a copy of 240 of them, made
some time after they came. `trials.sealed` says of each group up to which step its reports are in blocks; later ones are
read from the documents. Whatever changes a report up to that step first drops the blocks from there on (`reopen`), so
that a block never contradicts the record.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NotRequired, TypedDict

import numpy as np
from sqlalchemy import Connection, Row, delete, func, insert, select, update

from api.queries.outlines import BLOCK, LONG, Floats, Integers, outline
from api.schemas.base import number
from database.models import Metric, MetricBlock, MetricColumn, Trial

#: The latest reports stay open: further metrics of the same step are united with them.
_OPEN = 16
#: Blocks of one transaction, which others wait for.
_AT_ONCE = 4
#: Columns of long blocks that are written at once, at most; a group with more names has short blocks only.
_MOST_COLUMNS = 500
#: How often a group may have reports for steps that are in blocks already. Beyond that it gets no more blocks.
_MOST_REOPENED = 100
#: Groups of trials whose new reports are counted.
_COUNTED = 20_000

Sealed = dict[str, "SealedGroup"]
Group = tuple[int, str]


class SealedGroup(TypedDict):
    """How far the reports of a group are in blocks. `to`: the last step in one, -1 for none; `long`: in a long one."""

    to: int
    reopened: int
    long: NotRequired[int]


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


def seal(connection: Connection, trial_id: int, group: str) -> bool:
    """Copy reports of a group into blocks, some thousand at once; True if there are enough for more of them."""
    # the trial's row is locked by whoever writes its reports, and by this
    row = connection.execute(select(Trial.sealed).where(Trial.id == trial_id).with_for_update(key_share=True)).first()
    if row is None:
        return False
    mine: SealedGroup = row.sealed.get(group) or {"to": -1, "reopened": 0}
    if mine["reopened"] > _MOST_REOPENED:
        return False
    reports = connection.execute(
        select(Metric.total_batches, Metric.reported_at, Metric.metrics)
        .where(Metric.trial_id == trial_id, Metric.group_name == group, ~Metric.archived)
        .where(Metric.total_batches > mine["to"])
        .order_by(Metric.total_batches)
        .limit(_AT_ONCE * BLOCK + _OPEN)
    ).all()
    count = (len(reports) - _OPEN) // BLOCK
    for begin in range(0, count * BLOCK, BLOCK):
        _write(connection, trial_id, group, reports[begin : begin + BLOCK])
        mine["to"] = reports[begin + BLOCK - 1].total_batches
    is_joined = _join(connection, trial_id, group, mine)
    if count > 0 or is_joined:
        _save(connection, trial_id, row.sealed | {group: mine})
    return count == _AT_ONCE or is_joined


def _write(connection: Connection, trial_id: int, group: str, reports: Sequence[Row[*tuple[Any, ...]]]) -> None:
    block, columns = built(
        trial_id, group, [(row.total_batches, row.reported_at.timestamp(), row.metrics) for row in reports]
    )
    connection.execute(insert(MetricBlock).values(block))
    if columns:
        connection.execute(insert(MetricColumn), columns)


def _join(connection: Connection, trial_id: int, group: str, mine: SealedGroup) -> bool:
    """Make a long block of the oldest short ones if they are enough; whether they were."""
    after = mine.get("long", -1)
    of_group = MetricBlock.trial_id == trial_id, MetricBlock.group_name == group
    short = select(MetricBlock).where(*of_group, MetricBlock.first_step > after).order_by(MetricBlock.first_step)
    blocks = connection.execute(short.with_only_columns(*MetricBlock.__table__.columns).limit(LONG)).all()
    if len(blocks) < LONG:
        return False
    mine["long"] = last = blocks[-1].last_step
    within = (
        MetricColumn.trial_id == trial_id,
        MetricColumn.group_name == group,
        MetricColumn.first_step.between(blocks[0].first_step, last),
    )
    if (connection.scalar(select(func.count()).where(*within)) or 0) > LONG * _MOST_COLUMNS:
        return True
    steps = np.concatenate([np.frombuffer(block.steps, "<i8") for block in blocks])
    times = np.concatenate([np.frombuffer(block.times, "<f8") for block in blocks])
    lengths = [len(block.steps) // 8 for block in blocks]
    begins = dict(zip((block.first_step for block in blocks), accumulate([0, *lengths]), strict=False))
    parts: dict[str, list[tuple[Floats, Integers]]] = {}
    columns = select(MetricColumn.name, MetricColumn.first_step, MetricColumn.numbers, MetricColumn.places)
    for name, first, numbers, places in connection.execute(columns.where(*within).order_by(MetricColumn.first_step)):
        values = np.frombuffer(numbers, "<f8")
        at = np.arange(len(values)) if places is None else np.frombuffer(places, "<u2").astype(np.int64)
        parts.setdefault(name, []).append((values, at + begins[first]))
    joined = {
        name: (np.concatenate([values for values, _ in some]), np.concatenate([at for _, at in some]))
        for name, some in parts.items()
    }
    epochs = np.full(len(steps), np.nan)
    if "epoch" in joined:
        epochs[joined["epoch"][1]] = joined["epoch"][0]
    of_block = {"trial_id": trial_id, "group_name": group, "first_step": blocks[0].first_step, "last_step": last}
    rows = [
        of_block
        | {
            "name": name,
            "finite": int(np.isfinite(values).sum()),
            "outline": outline(values, steps[at], times[at], epochs[at]),
            "numbers": values.astype("<f8").tobytes(),
            "places": None if len(at) == len(steps) else at.astype("<u2").tobytes(),
        }
        for name, (values, at) in joined.items()
    ]
    for model, whose in ((MetricColumn, within), (MetricBlock, (*of_group, MetricBlock.first_step > after))):
        connection.execute(delete(model).where(*whose, model.last_step <= last))
    block = of_block | {"is_long": True, "steps": steps.tobytes(), "times": times.tobytes()}
    connection.execute(insert(MetricBlock).values(block))
    if rows:
        connection.execute(insert(MetricColumn), rows)
    return True


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
    columns: dict[str, tuple[list[int], list[float]]] = {}
    for place, (_, _, metrics) in enumerate(reports):
        for name, value in metrics.items():
            if (as_number := number(value)) is not None:
                places, numbers = columns.setdefault(name, ([], []))
                places.append(place)
                numbers.append(as_number)
    rows = [
        of_block
        | {
            "name": name,
            "numbers": np.array(numbers, "<f8").tobytes(),
            "places": None if len(places) == len(reports) else np.array(places, "<u2").tobytes(),
        }
        for name, (places, numbers) in columns.items()
    ]
    return of_block | {"is_long": False, "steps": steps.tobytes(), "times": times.tobytes()}, rows


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
        for model in (MetricColumn, MetricBlock):
            connection.execute(
                delete(model).where(model.trial_id == trial_id, model.group_name == name, model.last_step >= step)
            )
        kept = select(func.max(MetricBlock.last_step)).where(
            MetricBlock.trial_id == trial_id, MetricBlock.group_name == name
        )
        last = connection.scalar(kept)
        reopened = sealed[name]["reopened"] + (group is not None)
        to = -1 if last is None else last
        sealed[name] = {"to": to, "reopened": reopened, "long": min(to, sealed[name].get("long", -1))}
    if names:
        _save(connection, trial_id, sealed)


def _save(connection: Connection, trial_id: int, sealed: Sealed) -> None:
    connection.execute(update(Trial).where(Trial.id == trial_id).values(sealed=sealed))
