"""Numbers, pages and keys as clients of both generations expect them (spec rest-api.md §1)."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from api.errors import BadRequest
from api.queries.paging import Window
from api.schemas.base import I64, Instant, Map, Timestamp, Wire, answer, encode, number, plain, rfc3339, sender_of
from api.schemas.experiments import CreateExperimentRequest, Experiment, ExperimentsResponse
from api.schemas.metrics import TrialMetrics


class Sample(Wire):
    """A message with every kind of field."""

    the_id: int
    big_size: I64 = 0
    made_at: Timestamp | None = None
    free_form: Map = Field(default_factory=dict)
    is_on: bool = False
    all_names: list[str] = Field(default_factory=list[str])


def test_keys_are_taken_in_both_spellings_when_a_request_comes() -> None:
    assert Sample.model_validate_json('{"the_id": 1, "isOn": true}') == Sample.model_validate_json(
        '{"theId": 1, "is_on": true}'
    )


def test_unknown_keys_are_ignored_when_a_request_comes() -> None:
    assert Sample.model_validate_json('{"theId": 1, "whatIsThat": [1]}') == Sample(the_id=1)


def test_null_means_not_given_when_a_field_has_a_default() -> None:
    sent = '{"theId": 1, "bigSize": null, "madeAt": null, "freeForm": null, "isOn": null, "allNames": null}'
    assert Sample.model_validate_json(sent) == Sample(the_id=1)


def test_null_is_refused_when_the_field_is_required() -> None:
    with pytest.raises(ValueError, match="Field required"):
        Sample.model_validate_json('{"theId": null}')


def test_null_is_kept_when_it_lies_within_free_form_values() -> None:
    assert Sample.model_validate_json('{"theId": 1, "freeForm": {"a": null}}').free_form == {"a": None}


def test_int64_is_a_string_and_every_key_is_there_when_sent() -> None:
    sent = orjson.loads(encode(Sample(the_id=2**31 - 1, big_size=2**62)))
    assert sent == {
        "theId": 2**31 - 1, "bigSize": str(2**62), "madeAt": None, "freeForm": {}, "isOn": False, "allNames": []
    }  # fmt: skip


def test_int64_is_taken_as_string_or_number_when_received() -> None:
    for text in ('"123"', "123"):
        assert Sample.model_validate_json(f'{{"theId": 1, "bigSize": {text}}}').big_size == 123


_AT = datetime(2026, 1, 2, 3, 4, 5, 600_000, timezone(timedelta(hours=2)))
_LEAST = {
    "id": 1,
    "name": "a",
    "state": "STATE_ACTIVE",
    "config": {"x": 1},
    "original_config": "x: 1",
    "start_time": _AT,
}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"end_time": _AT, "checkpoint_size": 2**60, "labels": ["b"], "trial_ids": [1, 2], "progress": math.nan},
        {"end_time": None, "best_trial_searcher_metric": -math.inf, "forked_from": 3, "unmanaged": True},
    ],
)
def test_fields_are_sent_as_their_message_is_when_there_are_hundreds(more: dict[str, Any]) -> None:
    fields = _LEAST | more
    sent = sender_of(Experiment)(fields)
    assert json.loads(encode(sent)) == json.loads(encode(Experiment.model_validate(fields)))


def test_messages_within_messages_are_no_fields_to_be_sent_unchecked() -> None:
    with pytest.raises(TypeError, match="Experiment"):
        sender_of(ExperimentsResponse)


def test_times_are_utc_without_a_needless_fraction_when_sent() -> None:
    time = datetime(2024, 5, 1, 12, 0, tzinfo=timezone(timedelta(hours=2)))
    assert rfc3339(time) == "2024-05-01T10:00:00Z"
    assert orjson.loads(encode(Sample(the_id=1, made_at=time)))["madeAt"] == "2024-05-01T10:00:00Z"
    assert rfc3339(time.replace(microsecond=1)).endswith("10:00:00.000001Z")


def test_time_is_utc_when_received_without_a_zone() -> None:
    class Timed(Wire):
        at: Instant | None = None

    assert Timed.model_validate_json('{"at": "2024-05-01T10:00:00"}').at == datetime(2024, 5, 1, 10, tzinfo=UTC)
    assert Timed.model_validate_json('{"at": "2024-05-01T10:00:00+02:00"}').at == datetime(2024, 5, 1, 8, tzinfo=UTC)


def test_answer_is_a_200_with_an_object_when_there_is_nothing_to_say() -> None:
    response = answer()
    assert (response.status_code, response.body) == (200, b"{}")
    assert response.headers["content-type"] == "application/json"


def test_bug_is_loud_when_a_value_can_not_be_sent() -> None:
    with pytest.raises(TypeError):
        encode({"x": object()})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity"), (1.5, 1.5), (0, 0), (True, True),
        (None, None), ("NaN", "NaN"), ({"a": [math.nan, {"b": math.inf}]}, {"a": ["NaN", {"b": "Infinity"}]}),
        ((1, math.nan), [1, "NaN"]), (2**63, 2**63), (-(2**63), -(2**63)), (2**64, 2.0**64), (-(10**30), -1e30),
        (10**400, "Infinity"), (-(10**400), "-Infinity"),
    ],
)  # fmt: skip
def test_value_is_plain_json_when_it_holds_odd_numbers(value: Any, expected: Any) -> None:
    assert plain(value) == expected
    assert type(plain(value)) is type(expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1.0), (1.5, 1.5), ("Infinity", math.inf), ("-Infinity", -math.inf), ("-infinity", -math.inf),
        (True, None), (False, None), (None, None), ("1", None), ("", None), ("inf", None), ([1], None), ({}, None),
        (10**400, math.inf), (-(10**400), -math.inf), (5e-324, 5e-324),
    ],
)  # fmt: skip
def test_number_is_read_when_the_value_is_one(value: Any, expected: float | None) -> None:
    assert number(value) == expected


@pytest.mark.parametrize("text", ["NaN", "nan", "Nan"])
def test_nan_is_read_when_spelled_as_clients_do(text: str) -> None:
    read = number(text)
    assert read is not None
    assert math.isnan(read)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_every_json_value_can_be_sent_when_it_came_from_a_client(value: Any) -> None:
    sent = encode(value)
    assert orjson.loads(sent) == plain(value)
    json.loads(sent, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


# -- pages -------------------------------------------------------------------------------------------------------------

ITEMS = list(range(10))


@pytest.mark.parametrize(
    ("offset", "limit", "expected", "start", "end"),
    [
        (0, 0, ITEMS, 0, 10), (0, 3, [0, 1, 2], 0, 3), (8, 3, [8, 9], 8, 10), (10, 3, [], 10, 10), (3, 0, ITEMS[3:], 3, 10),
        (-3, 0, [7, 8, 9], 7, 10), (-3, 2, [7, 8], 7, 9), (-10, 1, [0], 0, 1), (-99, 2, [0, 1], 0, 2), (0, -1, ITEMS, 0, 10),
        (4, -2, ITEMS[4:], 4, 10),
    ],
)  # fmt: skip
def test_page_is_cut_when_asked(offset: int, limit: int, expected: list[int], start: int, end: int) -> None:
    window = Window(offset, limit)
    first, last = window.bounds(len(ITEMS))
    assert ITEMS[first:last] == expected
    pagination = window.pagination(len(ITEMS))
    assert (pagination.start_index, pagination.end_index, pagination.total) == (start, end, 10)


def test_page_is_refused_when_it_begins_beyond_the_end() -> None:
    with pytest.raises(BadRequest, match="offset 11 is beyond the 10 items"):
        Window(11, 1).bounds(len(ITEMS))


@given(st.integers(0, 60), st.integers(1, 70))
def test_every_item_is_seen_once_when_a_client_pages_until_the_end(total: int, limit: int) -> None:
    seen: list[int] = []
    for _ in range(total + 2):
        window = Window(len(seen), limit)
        first, last = window.bounds(total)
        seen += range(first, last)
        pagination = window.pagination(total)
        if pagination.end_index >= pagination.total:
            break
    assert seen == list(range(total))


# -- messages ----------------------------------------------------------------------------------------------------------


def test_newer_and_older_reports_are_one_message_when_spelled_each_in_its_way() -> None:
    new = TrialMetrics.model_validate_json(
        '{"trialId": 1, "trialRunId": 2, "stepsCompleted": 3, "metrics": {"avgMetrics": {"a": "NaN"}, "batchMetrics": []}}'
    )
    old = TrialMetrics.model_validate_json(
        '{"trial_run_id": 2, "steps_completed": 3, "metrics": {"avg_metrics": {"a": "NaN"}, "batch_metrics": []}}'
    )
    assert new == old


def test_create_request_is_taken_when_optional_fields_are_null() -> None:
    sent = dict.fromkeys(
        ["modelDefinition", "activate", "validateOnly", "parentId", "projectId", "template", "unmanaged"]
    )
    request = CreateExperimentRequest.model_validate_json(json.dumps({"config": "a: 1", **sent}))
    assert (request.activate, request.model_definition, request.parent_id) == (False, None, None)
