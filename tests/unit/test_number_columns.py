"""Columns of numbers come back to the bit, and in few bytes where they have few."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from database.number_columns import pack_floats, pack_integers, unpack_floats, unpack_integers

FLOATS = st.one_of(
    st.floats(width=64), st.floats(width=32), st.integers(-(10**6), 10**6).map(float),
    st.integers(-(10**9), 10**9).map(lambda n: n / 10**4), st.just(-0.0),
)  # fmt: skip


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=80))
def test_integers_come_back(values: list[int]) -> None:
    assert unpack_integers(pack_integers(np.array(values, np.int64))).tolist() == values


@given(st.lists(FLOATS, max_size=80))
def test_floats_come_back_to_the_bit(values: list[float]) -> None:
    found = unpack_floats(pack_floats(np.array(values, np.float64))).tolist()
    assert [struct.pack("<d", value) for value in found] == [struct.pack("<d", value) for value in values]


@pytest.mark.parametrize(
    ("values", "most"),
    [
        ([0.5] * 3840, 0.1),
        (list(range(0, 38400, 10)), 0.1),
        ([0.0 + round(math.sin(n), 4) for n in range(3840)], 2.2),
        (np.random.default_rng(1).normal(size=3840).astype(np.float32).tolist(), 4.6),
        (np.random.default_rng(1).normal(size=3840).tolist(), 7.8),
        ([1.7e9 + n + round(math.sin(n * n) / 100, 6) for n in range(3840)], 2.6),  # times
    ],
)
def test_bytes_of_a_number(values: list[float], most: float) -> None:
    assert len(pack_floats(np.array(values, np.float64))) / len(values) < most
