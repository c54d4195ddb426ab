"""Cron expressions: which times they mean, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.campaigns.cron import CronError, parse_cron, times

THURSDAY = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)


def due(text: str, count: int = 3, zone: str = "UTC", after: datetime = THURSDAY) -> list[str]:
    found = islice(times(parse_cron(text), after, ZoneInfo(zone)), count)
    return [f"{moment:%m-%d %H:%M}" for moment in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 2 * * *", ["11-27 02:00", "11-28 02:00", "11-29 02:00"]),
        ("*/20 12 * * *", ["11-26 12:20", "11-26 12:40", "11-27 12:00"]),
        ("30 8 * * 1-5", ["11-27 08:30", "11-30 08:30", "12-01 08:30"]),
        ("30 8 * * mon,FRI", ["11-27 08:30", "11-30 08:30", "12-04 08:30"]),
        ("0 0 1 jan *", ["01-01 00:00"] * 3),
        ("0 0 29 2 *", ["02-29 00:00"] * 3),
        ("0 0 13 * 5", ["11-27 00:00", "12-04 00:00", "12-11 00:00"]),
        ("0 0 * * 7", ["11-29 00:00", "12-06 00:00", "12-13 00:00"]),
        ("@hourly", ["11-26 13:00", "11-26 14:00", "11-26 15:00"]),
        ("5/30 1 * * *", ["11-27 01:05", "11-27 01:35", "11-28 01:05"]),
    ],
)
def test_the_next_times(text: str, expected: list[str]) -> None:
    assert due(text) == expected[: len(due(text))]
    assert due(text)


def test_either_day_suffices_if_both_are_restricted() -> None:
    assert due("0 0 30 * 5", 3) == ["11-27 00:00", "11-30 00:00", "12-04 00:00"]


def test_times_are_those_of_the_zone() -> None:
    assert due("0 2 * * *", 1, "Europe/Berlin") == ["11-27 01:00"]
    assert due("0 2 * * *", 1, "Asia/Kolkata") == ["11-26 20:30"]


def test_a_local_time_that_a_change_of_clocks_skips_does_not_come() -> None:
    before = datetime(2027, 3, 27, 12, 0, tzinfo=UTC)  # on the 28th, 02:30 is skipped in Berlin
    assert due("30 2 * * *", 2, "Europe/Berlin", before) == ["03-29 00:30", "03-30 00:30"]


@pytest.mark.parametrize(
    "text",
    [
        "", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "a * * * *",
        "5-1 * * * *", "*/0 * * * *", "*-5 * * * *", "1,,2 * * * *", "0 0 31 2 *", "@reboot", "1 " * 200, "-1 * * * *",
    ],
)  # fmt: skip
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(CronError):
        parse_cron(text)


@given(st.text(alphabet="0123456789*/,- @adjnofriweklymh", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        cron = parse_cron(text)
    except CronError:
        return
    first = next(times(cron, THURSDAY, UTC))
    assert first > THURSDAY
    assert (first.minute in cron.minutes, first.hour in cron.hours, first.month in cron.months) == (True, True, True)


@given(st.integers(0, 59), st.integers(0, 23), st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1)))
def test_times_go_up_without_a_gap(minute: int, hour: int, after: datetime) -> None:
    found = list(islice(times(parse_cron(f"{minute} {hour} * * *"), after.replace(tzinfo=UTC), UTC), 5))
    assert [(later - earlier).days for earlier, later in pairwise(found)] == [1] * 4
