"""Lists of lines are what a model of each line would be, however they are read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from api.schemas.logs import MOST_LINES, LogEntry, SentLines, _plain_columns

_LINES, _MODELS = TypeAdapter(SentLines), TypeAdapter(list[LogEntry])
_NAMES = list(LogEntry.model_fields)
_SPELLINGS = [*_NAMES, *(field.alias or "" for field in LogEntry.model_fields.values()), "unknown"]
_TIMES = [
    "2026-01-31T12:00:00Z",
    "2026-01-31T12:00:00.5+01:00",
    "2026-02-31T12:00:00Z",
    "2026-W01-1T10:00:00Z",
    "2026-01-31",
    "x",
]
_VALUES = st.none() | st.text(max_size=4) | st.integers(0, 9) | st.sampled_from([*_TIMES, True, 1.0, "7", 1.5, [], {}])
_ENTRY = st.dictionaries(st.sampled_from(_SPELLINGS), _VALUES, max_size=5)


@given(st.lists(_ENTRY | st.sampled_from([{"log": "a", "timestamp": each} for each in _TIMES]), max_size=4))
def test_lines_by_columns_are_what_models_of_them_say(sent: list[dict[str, Any]]) -> None:
    expected, error = _tried(_MODELS, sent)
    found, refusal = _tried(_LINES, sent)
    assert refusal == error
    if found is None or expected is None:
        return
    assert len(found) == len(expected)
    for name in _NAMES:
        # no text and no task are empty ones: what stores lines knows both
        values = [getattr(entry, name) for entry in expected]
        assert [each or None for each in found.columns[name]] == [each or None for each in values], name
        assert [type(each) for each in found.columns[name] if each] == [type(each) for each in values if each]


def _tried(of: TypeAdapter[Any], sent: Any) -> tuple[Any, list[Any]]:
    try:
        return of.validate_python(sent), []
    except ValidationError as error:
        return None, [(each["loc"], each["msg"]) for each in error.errors()]


def test_what_shippers_send_needs_no_model() -> None:
    line = {
        "allocationId": "1.a.0", "agentId": "a", "containerId": "1.a.0-0", "lineOffset": 7, "rankId": None, "level": None,
        "timestamp": "2026-01-31T12:00:00.123456+00:00", "source": "task", "stdtype": "stdout", "log": "epoch 1",
    }  # fmt: skip
    assert _plain_columns([line] * 3) is not None
    assert _plain_columns([line] * (MOST_LINES + 1)) is None
    with pytest.raises(ValidationError, match="at most 10000 items"):
        _LINES.validate_python([line] * (MOST_LINES + 1))
    assert len(_LINES.validate_python([])) == 0
