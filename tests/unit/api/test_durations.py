"""Durations as clients write them."""

from __future__ import annotations

import contextlib
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.errors import BadRequest
from api.schemas.durations import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("720h", 2_592_000),
        ("1h30m", 5400),
        ("1.5s", 1.5),
        ("-24h", -86400),
        ("+1d", 86400),
        (" 5m ", 300),
        ("1h0m0s", 3600),
    ],
)
def test_duration_is_read_when_it_is_one(text: str, seconds: float) -> None:
    assert parse_duration("x", text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "h", "1", "1 h", "1h 2m", "--1h", "1hh", "1e3s", "NaNs", "\uff19h", "1h\n2", "9999999h"]
)
def test_duration_is_refused_with_its_field_when_it_is_none(text: str) -> None:
    with pytest.raises(BadRequest, match=r"^field: "):
        parse_duration("field", text)


@given(st.text(max_size=50))
def test_nothing_but_a_refusal_comes_of_any_text(text: str) -> None:
    with contextlib.suppress(BadRequest):
        assert isinstance(parse_duration("field", text), timedelta)
