"""Durations as people write them, and as answers have them."""

from __future__ import annotations

import pytest

from workflows.config.durations import seconds_of, shown


@pytest.mark.parametrize("text", ["", "5", "m", "5 m", "--5m", "5m!", "1e3s", "9999999999999s"])
def test_what_is_no_duration(text: str) -> None:
    assert seconds_of(text) is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(300, "5m0s"), (3600, "1h0m0s"), (1.5, "1.5s"), (5400, "1h30m0s"), (90061, "25h1m1s")]
)
def test_a_duration_is_shown_and_read_again(seconds: float, text: str) -> None:
    assert shown(seconds) == text
    assert seconds_of(text) == seconds
