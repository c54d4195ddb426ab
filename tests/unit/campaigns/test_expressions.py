"""References and conditions: what they mean, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.campaigns.expressions import (
    LONGEST_CONDITION,
    ExpressionError,
    MissingValue,
    Reference,
    condition_references,
    holds,
    lookup_in,
    parse_condition,
    references,
    substitute,
)

SCOPE = {
    "steps": {
        "search": {"metric": 0.93, "id": 7, "hparams": {"lr": 0.01, "layers": [1, 2]}, "state": "COMPLETED"},
        "odd": {"metrics": {"val/loss": 0.5}, "nothing": None},
    },
    "params": {"dry": False, "name": "mnist"},
    "run": {"number": 3, "date": "2026-11-26"},
}
LOOK = lookup_in(SCOPE)


def test_a_whole_reference_keeps_its_type() -> None:
    wanted = {
        "lr": "${steps.search.hparams.lr}",
        "layers": ["${steps.search.hparams.layers}", 1],
        "dry": " ${params.dry} ",
    }
    assert substitute(wanted, LOOK) == {"lr": 0.01, "layers": [[1, 2], 1], "dry": False}


def test_within_a_text_values_are_written_out() -> None:
    text = "${params.name}-${run.date}-${run.number}-${steps.search.metric}-${params.dry}"
    assert substitute(text, LOOK) == "mnist-2026-11-26-3-0.93-false"


@pytest.mark.parametrize("text", ["$HOME", "${DATA_DIR}", "${var%.txt}", "$(date)", "${}", "a $ b", "${x:-y.z}"])
def test_what_the_shell_means_stays(text: str) -> None:
    assert substitute(text, LOOK) == text
    assert list(references(text)) == []


def test_two_dollars_stand_for_one() -> None:
    assert substitute("echo $${steps.search.metric} ${run.number}", LOOK) == "echo ${steps.search.metric} 3"


def test_names_of_metrics_with_slashes() -> None:
    assert substitute("${steps.odd.metrics.val/loss}", LOOK) == 0.5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${step.search.metric}", "expected ${steps.…}"),
        ("${steps.search}", "expected an output of the step"),
        ("${steps.search.metric", "expected a closing brace"),
        ("${steps.search..metric}", "expected names with dots"),
        ("${steps.search.metric + 1}", "expected names with dots"),
        ("${steps.search.__class__()}", "expected names with dots"),
        ("${steps." + "a." * 20 + "b}", "expected names with dots"),
    ],
)
def test_what_is_no_reference_is_refused(text: str, said: str) -> None:
    with pytest.raises(ExpressionError) as refused:
        list(references({"a": [text]}))
    assert said in str(refused.value)


def test_a_map_is_no_part_of_a_text() -> None:
    with pytest.raises(ExpressionError, match="a map"):
        substitute("x ${steps.search.hparams}", LOOK)


@pytest.mark.parametrize(
    "path", ["steps.search.hparams.momentum", "steps.gone.metric", "steps.odd.nothing", "params.x.y"]
)
def test_what_is_not_there_is_said(path: str) -> None:
    with pytest.raises(MissingValue) as missing:
        substitute(f"${{{path}}}", LOOK)
    assert missing.value.reference.path == tuple(path.split("."))


def test_references_say_where_they_are() -> None:
    value = {"a": [{"b": "x ${run.number}"}], "c": "${steps.search.metric}"}
    assert [(path, str(ref), whole) for path, ref, whole in references(value)] == [
        (("a", 0, "b"), "${run.number}", False),
        (("c",), "${steps.search.metric}", True),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${steps.search.metric} > 0.9", True),
        ("${steps.search.metric} >= 0.93 and ${steps.search.metric} <= 0.93", True),
        ("${steps.search.metric} < 0.9 or ${run.number} == 3", True),
        ("not ${params.dry}", True),
        ("not not ${params.dry}", False),
        ("${params.dry}", False),
        ("${steps.search.state} == 'COMPLETED'", True),
        ('${steps.search.state} != "COMPLETED"', False),
        ("${steps.odd.nothing} == null", True),
        ("${steps.odd.nothing} > 1", False),
        ("${steps.odd.nothing}", False),
        ("(${run.number} > 1 or false) and (true)", True),
        ("false and false or true", True),
        ("true or false and false", True),
        ("-1e-3 < 0", True),
        ("true == 1", False),
        ("(${run.number} > 1) == true", True),
    ],
)
def test_conditions(text: str, expected: bool) -> None:
    assert holds(parse_condition(text), LOOK) is expected


@pytest.mark.parametrize(
    "text",
    [
        "", "   ", "${run.number} >", "> 1", "1 < 2 < 3", "(true", "true)", "${run.number} = 3", "import os",
        "__import__('os')", "a.b", "1 + 1 == 2", "'open", "${steps}", "${HOME} == 1", "true true",
        "(" * 40 + "true" + ")" * 40, "not " * 40 + "true", "1 == 1 " + "or 1 == 1 " * 200,
    ],
)  # fmt: skip
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse_condition(text)


@pytest.mark.parametrize("text", ["${params.name} > 1", "${steps.search.hparams} < 1", "${run.number}", "'yes'"])
def test_what_does_not_compare_is_said(text: str) -> None:
    with pytest.raises(ExpressionError):
        holds(parse_condition(text), LOOK)


def test_the_references_of_a_condition() -> None:
    condition = parse_condition("not (${steps.search.metric} > 1 or ${params.dry}) and ${run.number} == 3")
    assert [str(ref) for ref in condition_references(condition)] == [
        "${steps.search.metric}",
        "${params.dry}",
        "${run.number}",
    ]


@given(st.text(max_size=LONGEST_CONDITION + 10))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        condition = parse_condition(text)
    except ExpressionError:
        return
    assert isinstance(condition, tuple)


@given(st.text())
def test_any_text_is_substituted_or_refused(text: str) -> None:
    try:
        result = substitute(text, LOOK)
    except (ExpressionError, MissingValue):
        return
    assert isinstance(result, str) or _TOKENS(text)


def _TOKENS(text: str) -> bool:
    return any(whole for _, _, whole in references(text))


_PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet="abc {}", max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)


@given(_PLAIN)
def test_what_has_no_reference_stays_as_it_is(value: Any) -> None:
    assert substitute(value, LOOK) == value


def test_a_reference_is_shown_as_it_is_written() -> None:
    assert str(Reference(("steps", "a", "metric"))) == "${steps.a.metric}"
