"""Patterns of log policies: one pass, in linear time, and a reason where RE2 refuses one."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflows.config.patterns import PatternRefused, PatternSet
from workflows.config.policies import BUILTIN_LOG_POLICIES


def test_all_patterns_that_occur_are_found_in_one_pass() -> None:
    patterns = PatternSet(["out of memory", "^CUDA", "error$", "(?i)ecc", r"code \d+", "a.c"])
    assert patterns.matches("CUDA out of memory, ECC error") == [0, 1, 2, 3]
    assert patterns.matches("code 17") == [4]
    assert patterns.matches("äöü 長 abc") == [5]
    assert patterns.matches("nothing") == []
    assert patterns.matches("") == []


def test_nothing_is_found_when_there_are_no_patterns() -> None:
    assert PatternSet([]).matches("a") == []


@pytest.mark.parametrize("line", ["a\0b", "\0", "half a pair: \ud800", "\x1b[31mred\x1b[0m", "a\nb\r"])
def test_any_line_can_be_searched_whatever_is_in_it(line: str) -> None:
    assert PatternSet([".*", "no"]).matches(line) == [0]


def test_built_in_patterns_are_taken_and_match_what_they_are_for() -> None:
    """The check of a configuration leaves them out: it relies on this."""
    patterns = PatternSet([policy.pattern or "" for policy in BUILTIN_LOG_POLICIES])
    assert patterns.matches("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB") == [0]
    assert patterns.matches("RuntimeError: uncorrectable ECC error encountered") == [1]


@pytest.mark.parametrize(
    ("patterns", "index", "said"),
    [
        (["a", "("], 1, "missing )"),
        (["a(?=b)"], 0, "invalid perl operator: (?="),
        ([r"(a)\1"], 0, r"invalid escape sequence: \1"),
        (["a{1001}"], 0, "invalid repetition size: {1001}"),
        (["a**"], 0, "bad repetition operator: **"),
        (["ok", "\ud800"], 1, "half of a surrogate pair"),
        ([r"(\pL{30}){30}"], 0, "pattern too large"),
        ([r"\pL{300}"], None, "needs more than 8 MiB of memory"),
        (["x" * 100_000], None, "needs more than 8 MiB of memory"),
    ],
    ids=lambda value: None if isinstance(value, list) else str(value),
)
def test_pattern_is_refused_with_its_place_and_a_reason(patterns: list[str], index: int | None, said: str) -> None:
    with pytest.raises(PatternRefused) as refusal:
        PatternSet(patterns)
    assert refusal.value.index == index
    assert said in str(refusal.value)


def test_line_takes_linear_time_when_made_for_a_backtracking_engine() -> None:
    """Python's `re` needs time that doubles with each further x: with 40 of them, a day."""
    patterns = PatternSet(["(x+x+)+y", "(x|x)*z", "^(.*?,){11}P"])
    started = time.thread_time()
    assert patterns.matches("x" * 60_000 + ",") == []
    assert time.thread_time() - started < 2


#: What a pattern begins and ends with: much of it says something else of a text than of a line.
_BEGINS = ["", "^", r"\A", r"\b", r"\B", "(?i)", "(?i)^", "(?-m)^", "(?s)^", "x|^", "(?i:^", "(?P<n>^"]
_ENDS = ["", "$", r"\z", r"\b", r"\B", ".", "[^b]", r"\W", "|x"]
_CORES = st.text("ab", min_size=1, max_size=2)


@st.composite
def _patterns(draw: st.DrawFn) -> str:
    begin, core, end = draw(st.sampled_from(_BEGINS)), draw(_CORES), draw(st.sampled_from(_ENDS))
    closed = ")" * (begin.startswith(("(?i:", "(?P<")))
    return f"{begin}{core}{end}{closed}"


@settings(max_examples=500)
@given(st.lists(_patterns(), min_size=1, max_size=2), st.lists(st.text("abB\n", max_size=3), min_size=1, max_size=4))
def test_no_line_is_missed_when_many_are_looked_at_together(patterns: list[str], lines: list[str]) -> None:
    known = PatternSet(patterns)
    if any(known.matches(line) for line in lines):
        assert known.may_match(lines)


def test_lines_in_which_nothing_is_are_told_together() -> None:
    patterns = PatternSet(
        [*(policy.pattern or "" for policy in BUILTIN_LOG_POLICIES), "^epoch$", "(?i)nan", r"(?P<n>x)y"]
    )
    lines = ["step 1: loss 0.5", "an epoch", ""] * 100
    assert not patterns.may_match(lines)
    assert patterns.may_match([*lines, "epoch"])
    assert patterns.may_match([*lines, "loss NaN", *lines])
    assert not patterns.may_match([])
