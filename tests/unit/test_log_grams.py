"""The trigrams of a block of log lines: what is in a text is never ruled out, and what is not seldom is not."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from database.log_grams import Wanted, trigrams

LINES = "\0".join(
    f"step {n}: loss {n * 7919 % 10_007 / 10_007:.6f}, {n % 97 / 10} batches a second" for n in range(2000)
)


@given(st.text(), st.text(max_size=40), st.text())
def test_what_is_in_a_text_is_never_ruled_out(before: str, wanted: str, behind: str) -> None:
    text = before + wanted + behind
    if wanted.lower() in text.lower():  # a letter's lower case may depend on its neighbours
        assert Wanted(wanted).may_be_in(trigrams(text))


@given(st.text(alphabet="aZ \0éß日", max_size=600), st.integers(0, 600), st.integers(0, 600))
def test_part_of_a_text_is_never_ruled_out(text: str, one: int, other: int) -> None:
    part = text[min(one, other) : max(one, other)]
    assert Wanted(part.upper()).may_be_in(trigrams(text)) or part.upper().lower() not in text.lower()


@pytest.mark.parametrize("wanted", ["Traceback", "CUDA out of memory", "epoch", "NaN", "日本"])
def test_what_no_line_has_is_ruled_out(wanted: str) -> None:
    assert not Wanted(wanted).may_be_in(trigrams(LINES))


@pytest.mark.parametrize("wanted", ["step 1999:", "BATCHES", "loss 0.", ": loss"])
def test_what_a_line_has_is_not(wanted: str) -> None:
    assert wanted.lower() in LINES
    assert Wanted(wanted).may_be_in(trigrams(LINES))


def test_few_words_that_are_not_there_are_not_ruled_out() -> None:
    draw, found = random.Random(1), trigrams(LINES)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(1000)]
    assert sum(Wanted(word).may_be_in(found) for word in words) < 20


@pytest.mark.parametrize(("text", "size"), [("", 32), ("ab", 32), ("abc", 32), (LINES[:4000], 512), (LINES, 1024)])
def test_set_is_as_large_as_its_text_needs(text: str, size: int) -> None:
    assert len(trigrams(text)) == size


def test_set_of_random_text_is_bounded() -> None:
    assert len(trigrams("".join(map(chr, random.Random(1).choices(range(32, 60_000 // 8), k=100_000))))) == 2048


@pytest.mark.parametrize("short", ["", "a", "ab", "é"])
def test_too_short_to_have_any(short: str) -> None:
    assert not Wanted(short)
    assert Wanted(short).may_be_in(trigrams(""))
