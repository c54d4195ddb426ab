"""Reports without their documents: what a block of columns needs beside its numbers to say all that these said.

A block is *packed* once its reports are no rows of `metrics` any more. Its columns have every number; `packed` has the
rest: ids, runs, which names each report has and in which order, which numbers are integers, and whatever is no number.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, TypedDict

import numpy as np
import orjson

from database.number_columns import (
    Floats,
    Integers,
    pack_integers,
    unpack_floats,
    unpack_integers,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LENGTH = struct.Struct("<I")


class Report(NamedTuple):
    """A report, with what a row of `metrics` has."""

    id: int
    trial_id: int
    run_id: int
    group_name: str
    total_batches: int | None
    metrics: dict[str, Any]
    batch_metrics: list[Any] | None
    searcher_metric: float | None
    archived: bool
    reported_at: datetime


class Column(NamedTuple):
    """The numbers of one metric: of each report, or of the reports at `places`."""

    numbers: Floats
    places: Integers | None


#: What a report has beside its documents.
_BESIDE = itemgetter(*(Report._fields.index(name) for name in Report._fields if not name.endswith("metrics")))


class Block(NamedTuple):
    """What is read of a block to see its reports. `columns`: by name, packed numbers and places."""

    trial_id: int
    group_name: str
    first_step: int
    last_step: int
    steps: bytes
    times: bytes
    packed: bytes
    columns: Mapping[str, tuple[bytes, bytes | None]]


class Said(TypedDict):
    """What reports say beside their numbers. Runs are of successive reports with one value: that and their count.

    `shapes`: the names of a report in their order; `of`: which shape each has. `integers`: by name, places of numbers
    without a fraction; None: all. `values`: by name and place, what is no number. `batches`: by place.
    """

    runs: list[tuple[int, int]]
    shapes: Sequence[Sequence[str]]
    of: list[tuple[int, int]]
    integers: dict[str, list[int] | None]
    values: dict[str, dict[str, Any]]
    batches: dict[str, Any]


def column_of(numbers: bytes, places: bytes | None) -> Column:
    """A column as it is stored."""
    return Column(unpack_floats(numbers), None if places is None else unpack_integers(places))


def pack(reports: Sequence[Any], columns: Mapping[str, Column]) -> bytes:
    """All of these reports that is not in their columns, their steps or their times.

    Args:
        reports: Of one trial and group, by step; with the attributes of `Report`.
        columns: The numbers in them, by name.
    """
    held = {name: _by_place(column, len(reports)) for name, column in columns.items()}
    shapes: dict[tuple[str, ...], int] = {}
    shape_of: list[int] = []
    integers: dict[str, list[int]] = {}
    values: dict[str, dict[str, Any]] = {}
    batches: dict[str, Any] = {}
    for place, report in enumerate(reports):
        names = tuple(report.metrics)
        shape_of.append(shapes.setdefault(names, len(shapes)))
        for name, value in report.metrics.items():
            number = held[name][place] if name in held else None
            if type(value) is float and number == value:
                continue
            if type(value) is int and number == value and abs(value) < 2**53:
                integers.setdefault(name, []).append(place)
            elif number is None or number - number == 0 or value != _text(number):
                values.setdefault(name, {})[str(place)] = value
        if report.batch_metrics is not None:
            batches[str(place)] = report.batch_metrics
    said = Said(
        runs=runs(report.run_id for report in reports),
        shapes=list(shapes),
        of=runs(shape_of),
        integers={name: None if len(at) == len(reports) else at for name, at in integers.items()},
        values=values,
        batches=batches,
    )
    return packed(np.array([report.id for report in reports], np.int64), said)


def packed(ids: Integers, said: Said) -> bytes:
    """What a packed block has beside its columns, steps and times. `ids`: of its reports, by step."""
    column = pack_integers(ids)
    return _LENGTH.pack(len(column)) + column + zlib.compress(orjson.dumps(said), 6)


def is_exact(block: Block, reports: Sequence[Report]) -> bool:
    """Whether a block says of these reports all that they say: an integer is no float, and names are in their order."""
    try:
        unpacked = unpack(block)
    except OverflowError:  # of a time at the end of all years
        return False
    is_same = list(map(_BESIDE, unpacked)) == list(map(_BESIDE, reports))
    return is_same and _documents(unpacked) == _documents(reports)


def _documents(reports: Iterable[Report]) -> bytes:
    """What tells documents apart that are not the same in every number's type, in order and in sign."""
    documents = [(report.metrics, report.batch_metrics) for report in reports]
    try:
        return orjson.dumps(documents)
    except TypeError:  # of an integer beyond 64 bits
        return repr(documents).encode()


def ids_in(packed: bytes) -> Integers:
    """The ids of a packed block's reports, by step."""
    return unpack_integers(packed[_LENGTH.size :])


def unpack(block: Block, wanted: Integers | None = None) -> list[Report]:
    """The reports of a packed block, by step. `wanted`: the places of some of them, ascending; None: all."""
    ids, begin = ids_in(block.packed), _LENGTH.size + _LENGTH.unpack_from(block.packed)[0]
    rest = orjson.loads(zlib.decompress(block.packed[begin:]))
    steps, micros = unpack_integers(block.steps), np.rint(unpack_floats(block.times) * 1e6).astype(np.int64)
    runs, shapes = _each(rest["runs"]), _each(rest["of"])
    at = None
    if wanted is not None:
        at = {place: new for new, place in enumerate(wanted.tolist())}
        ids, steps, micros, runs, shapes = (each[wanted] for each in (ids, steps, micros, runs, shapes))
    columns: dict[str, list[Any]] = {}
    for name, (numbers, places) in block.columns.items():
        column, integers = column_of(numbers, places), rest["integers"].get(name, ())
        if wanted is not None and at is not None:
            column = _chosen(column, wanted)
            integers = None if integers is None else [at[place] for place in integers if place in at]
        columns[name] = _values(column, len(ids), integers)
    for name, some in rest["values"].items():
        values = columns.setdefault(name, [None] * len(ids))
        for text, value in some.items():
            place = int(text) if at is None else at.get(int(text))
            if place is not None:
                values[place] = value
    documents: list[dict[str, Any]] = []
    for shape, some in groupby(shapes.tolist()):
        names = rest["shapes"][shape]
        first = len(documents)
        last = first + sum(1 for _ in some)
        if names:
            documents += [dict(zip(names, row, strict=True))
                          for row in zip(*(columns[name][first:last] for name in names), strict=True)]  # fmt: skip
        else:
            documents += [{} for _ in range(first, last)]
    batches: list[Any] = [rest["batches"].get(str(place)) for place in (range(len(ids)) if at is None else at)]
    return [
        Report(report_id, block.trial_id, run, block.group_name, step, metrics, of_batches, None, False,
               _EPOCH + timedelta(microseconds=micro))
        for report_id, run, step, metrics, of_batches, micro in zip(
            ids.tolist(), runs.tolist(), steps.tolist(), documents, batches, micros.tolist(), strict=True
        )
    ]  # fmt: skip


def _chosen(column: Column, wanted: Integers) -> Column:
    """What a column has at these places, which become 0 and so on."""
    numbers, places = column
    if places is None:
        return Column(numbers[wanted], None)
    at = np.searchsorted(places, wanted)
    is_there = np.append(places, -1)[at] == wanted
    return Column(numbers[at[is_there]], np.flatnonzero(is_there))


def _by_place(column: Column, count: int) -> Sequence[float | None]:
    if column.places is None:
        return column.numbers.tolist()
    found: list[float | None] = [None] * count
    for place, number in zip(column.places.tolist(), column.numbers.tolist(), strict=True):
        found[place] = number
    return found


def _values(column: Column, count: int, integers: Sequence[int] | None) -> list[Any]:
    """What documents have of a column, by report. `integers`: which are; None: each."""
    numbers = column.numbers
    if integers is None:
        return numbers.astype(np.int64).tolist()
    found: list[Any] = list(_by_place(column, count))
    at = np.arange(count) if column.places is None else column.places
    for place in at[~np.isfinite(numbers)].tolist():
        found[place] = _text(found[place])
    for place in integers:
        found[place] = int(found[place])
    return found


def _text(number: float) -> str:
    """How documents write a number that JSON has not."""
    return "NaN" if number != number else "Infinity" if number > 0 else "-Infinity"


def runs(values: Iterable[int]) -> list[tuple[int, int]]:
    """Successive equal ones as one: value and count."""
    return [(value, sum(1 for _ in some)) for value, some in groupby(values)]


def _each(runs: Sequence[tuple[int, int]]) -> Integers:
    return np.repeat(np.array([value for value, _ in runs], np.int64), [count for _, count in runs])
