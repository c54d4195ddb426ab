"""Summary metrics (spec experiment-lifecycle.md §6)."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.ingest.summary import add_report, is_better
from api.schemas.base import number, plain

FINITE = st.floats(-1e6, 1e6)
ANY_NUMBER = st.one_of(FINITE, st.just(math.nan), st.just(math.inf), st.just(-math.inf))


def summary_of(*values: Any) -> dict[str, Any]:
    """The entry of metric `m` after these values of it, one a report."""
    summary: dict[str, Any] = {}
    for value in values:
        add_report(summary, "training", {"m": plain(value)})
    return summary["training"]["m"]


def test_numbers_are_counted_when_reported() -> None:
    assert summary_of(2, 0.5, 3.5) == {
        "type": "number", "count": 3, "sum": 6.0, "mean": 2.0, "min": 0.5, "max": 3.5, "last": 3.5
    }  # fmt: skip


@pytest.mark.parametrize("values", [(math.nan,), (1.0, math.nan), (math.nan, 1.0), (1.0, math.nan, 2.0)])
def test_statistics_are_nan_when_one_value_is(values: tuple[float, ...]) -> None:
    entry = summary_of(*values)
    assert {key: entry[key] for key in ("min", "max", "sum", "mean")} == dict.fromkeys(
        ("min", "max", "sum", "mean"), "NaN"
    )
    assert (entry["type"], entry["count"], entry["last"]) == ("number", len(values), plain(values[-1]))


def test_infinities_are_numbers_when_reported_as_strings() -> None:
    entry = summary_of("Infinity", 1.0, "-Infinity")
    assert (entry["type"], entry["min"], entry["max"], entry["sum"]) == ("number", "-Infinity", "Infinity", "NaN")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1, "number"), (1.5, "number"), ("NaN", "number"), ("nan", "number"), ("-Infinity", "number"),
        (True, "boolean"), (None, "null"), ("text", "string"), ("", "string"), ("1", "string"), ("inf", "string"),
        ("2024-05-01", "date"), ("2024-05-01T10:00:00Z", "date"), ("2024-05-01 10:00:00+02:00", "date"),
        ("2024-13-01", "string"), ("20240501", "string"), ("2024-05-01 and more", "string"), ("1234567890", "string"),
        ({}, "object"), ({"a": 1}, "object"), ([], "array"), ([1], "array"),
    ],
)  # fmt: skip
def test_type_is_that_of_the_value_when_reported_once(value: Any, kind: str) -> None:
    entry = summary_of(value)
    assert entry["type"] == kind
    assert entry["last"] == value
    assert ("count" in entry) == (kind == "number")


@pytest.mark.parametrize(
    "values", [(1, "a"), ("a", 1), (1, True), (True, 1), (None, 1), (1, None), (1, "2024-05-01"), ([], {}), ("a", "2024-05-01")]
)  # fmt: skip
def test_type_is_string_without_statistics_for_good_when_types_differ(values: tuple[Any, ...]) -> None:
    assert summary_of(*values) == {"type": "string", "last": values[-1]}
    assert summary_of(*values, 5, 6) == {"type": "string", "last": 6}, "it stays so"


def test_last_is_null_when_the_newest_report_lacks_the_metric() -> None:
    summary: dict[str, Any] = {}
    add_report(summary, "validation", {"loss": 1.0, "accuracy": 0.5})
    add_report(summary, "validation", {"loss": 2.0})
    assert summary["validation"]["accuracy"]["last"] is None
    assert summary["validation"]["accuracy"]["count"] == 1
    assert summary["validation"]["loss"]["last"] == 2.0


def test_groups_are_kept_apart_when_they_share_names() -> None:
    summary: dict[str, Any] = {}
    add_report(summary, "training", {"loss": 1.0})
    add_report(summary, "validation", {"loss": "text"})
    assert summary["training"]["loss"]["type"] == "number"
    assert summary["validation"]["loss"]["type"] == "string"
    assert summary["training"]["loss"]["last"] == 1.0


def test_statistics_stay_as_they_are_when_a_later_part_of_the_same_report_comes() -> None:
    """The same group and step again: only the keys that are new count."""
    summary: dict[str, Any] = {}
    add_report(summary, "training", {"a": 1.0})
    add_report(summary, "training", {"b": 2.0}, is_more=True)
    assert summary["training"]["a"] == {"type": "number", "count": 1, "sum": 1.0, "mean": 1.0, "min": 1.0, "max": 1.0, "last": 1.0}  # fmt: skip
    assert summary["training"]["b"]["count"] == 1


@given(st.lists(FINITE, min_size=1, max_size=30))
def test_statistics_are_those_of_all_values_when_numbers_come_one_by_one(values: list[float]) -> None:
    entry = summary_of(*values)
    assert (entry["count"], entry["last"], entry["min"], entry["max"]) == (
        len(values),
        values[-1],
        min(values),
        max(values),
    )
    assert entry["sum"] == pytest.approx(math.fsum(values), abs=1e-6)
    assert entry["mean"] == pytest.approx(math.fsum(values) / len(values), abs=1e-6)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.dictionaries(st.sampled_from("abc"), JSON, max_size=3), max_size=8))
def test_summary_can_be_sent_when_reports_hold_anything(reports: list[dict[str, Any]]) -> None:
    from api.schemas.base import encode

    summary: dict[str, Any] = {}
    for report in reports:
        add_report(summary, "training", plain(report))
    encode(summary)
    for name, entry in summary.get("training", {}).items():
        assert entry["last"] == plain(reports[-1].get(name))


# -- the best ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("new", "old", "smaller", "expected"),
    [
        (1.0, None, True, True), (math.nan, None, True, True), (1.0, 2.0, True, True), (2.0, 1.0, True, False),
        (1.0, 2.0, False, False), (2.0, 1.0, False, True), (1.0, 1.0, True, False), (1.0, 1.0, False, False),
        (math.nan, 1.0, True, False), (math.nan, 1.0, False, False), (1.0, math.nan, True, True),
        (1.0, math.nan, False, True), (math.nan, math.nan, True, False), (math.inf, math.nan, True, True),
        (-math.inf, math.nan, False, True), (math.nan, math.inf, True, False), (math.nan, -math.inf, False, False),
    ],
)  # fmt: skip
def test_new_value_beats_the_old_as_the_table_says_when_compared(
    new: float, old: float | None, smaller: bool, expected: bool
) -> None:
    assert is_better(new, old, smaller_is_better=smaller) is expected


@given(st.lists(ANY_NUMBER, min_size=1, max_size=20), st.booleans())
def test_best_is_the_earliest_extreme_when_values_come_in_any_order(values: list[float], smaller: bool) -> None:
    best, best_index = None, -1
    for index, value in enumerate(values):
        if is_better(value, best, smaller_is_better=smaller):
            best, best_index = value, index
    numbers = [value for value in values if not math.isnan(value)]
    if not numbers:
        assert best_index == 0
        return
    extreme = min(numbers) if smaller else max(numbers)
    assert best_index == values.index(extreme)


@given(st.one_of(st.floats(), st.integers(), st.text(), st.none(), st.booleans(), st.lists(st.integers())))
def test_number_reads_back_what_plain_writes_when_it_is_a_number(value: Any) -> None:
    read = number(plain(value))
    if isinstance(value, float):
        assert read == value or (math.isnan(value) and read is not None and math.isnan(read))
    elif value is None or isinstance(value, bool | list):
        assert read is None
