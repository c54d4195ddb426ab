"""What a plot needs of very many reports: a few of each tile of them, which blocks keep beside their numbers."""

from __future__ import annotations

import zlib

import numpy as np

from database.number_columns import Floats, Integers

#: Reports in a block: so that two columns fill a page of SQLite's, and PostgreSQL keeps one in the row.
BLOCK = 240
#: Blocks that become a long one: a curve is read by rows, and each of them costs.
LONG = 16
#: Reports of a long block whose extremes stand for them in a plot of very many.
TILE = 96


def outline(values: Floats, steps: Integers, times: Floats, epochs: Floats) -> bytes:
    """What a plot needs of these reports: of each tile what `shaping` says.

    Five columns, 64 bits each, compressed: the tile's first step, and step, value, time and epoch of each such report.
    """
    tiles = np.arange(len(values)) // TILE
    kept = shaping(values, tiles)
    keys = steps[tiles[kept] * TILE]
    columns = (keys.astype("<i8"), steps[kept].astype("<i8"), values[kept], times[kept], epochs[kept])
    return zlib.compress(b"".join(column.tobytes() for column in columns))


def shaping(values: Floats, column: Integers) -> Integers:
    """Of each column: where its first and last value are, the smallest and the largest, and the first not finite.

    Args:
        values: At least one.
        column: Of each value; they ascend.
    """
    begins = np.flatnonzero(np.diff(column, prepend=column[0] - 1))
    ends = np.append(begins[1:], len(column)) - 1
    is_number = np.isfinite(values)
    places = np.repeat(np.arange(len(begins)), ends - begins + 1)
    least = _equal(values, np.minimum.reduceat(np.where(is_number, values, np.inf), begins), places)
    most = _equal(values, np.maximum.reduceat(np.where(is_number, values, -np.inf), begins), places)
    is_kept = np.zeros(len(values), bool)
    for some in (begins, ends, least, most, _firsts(np.flatnonzero(~is_number), places)):
        is_kept[some] = True
    return np.flatnonzero(is_kept)


def _equal(values: Floats, extremes: Floats, places: Integers) -> Integers:
    """Where the first number of each column is that equals the extreme of the column."""
    return _firsts(np.flatnonzero((values == extremes[places]) & np.isfinite(values)), places)


def _firsts(indexes: Integers, places: Integers) -> Integers:
    """The first of these indexes, which ascend, in each column that has one."""
    return indexes[np.diff(places[indexes], prepend=-1) != 0]
