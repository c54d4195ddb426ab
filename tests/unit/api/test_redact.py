"""Secrets and control characters in what people read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.auth.redaction import MASK, Redactor, one_line


@pytest.mark.parametrize(
    ("text", "gone", "stays"),
    [
        ("postgresql+psycopg://ada:pw1234@db:5432/x", "pw1234", "@db:5432/x"),
        ("https://token@host/path", "//token", "host/path"),
        ("Authorization: Bearer abc.DEF-1", "abc.DEF-1", "Authorization"),
        ("called with password=hunter2, user=ada", "hunter2", "user=ada"),
        ("the agent said known-secret!", "known-secret", "the agent said"),
        ("api_key: 12345 and more", "12345", "and more"),
    ],
)
def test_secret_is_masked_and_the_rest_stays_when_a_text_holds_one(text: str, gone: str, stays: str) -> None:
    shown = Redactor(["known-secret", ""]).text(text)
    assert gone not in shown
    assert MASK in shown
    assert stays in shown


@pytest.mark.parametrize("name", ["password", "admin_password", "agent_token", "API_KEY", "client_secret", "Cookie"])
def test_value_is_masked_whatever_it_is_when_its_name_says_so(name: str) -> None:
    assert Redactor([]).named("", {"outer": [{name: {"deep": 1}, "kept": 2}]}) == {"outer": [{name: MASK, "kept": 2}]}


@pytest.mark.parametrize("name", ["passes", "session_days", "tokens_left", "path"])
def test_value_stays_when_its_name_only_looks_alike(name: str) -> None:
    assert Redactor([]).named(name, 5) == 5


@given(st.text(st.characters(), max_size=200))
def test_line_is_printable_whatever_the_text_is(text: str) -> None:
    assert one_line(text).isprintable()
