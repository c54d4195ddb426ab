"""YAML as users write it, and as attackers do."""

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflows.config import ConfigError, Stage
from workflows.config.yamltext import parse_text, plain_data


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        ("1.", 1.0),
        (".5", 0.5),
        ("-7", -7),
        ("0x1F", 31),
        ("0o17", 15),
        ("010", 10),
        ("true", True),
        ("False", False),
        ("no", "no"),
        ("on", "on"),
        ("yes", "yes"),
        ("~", None),
        ("", None),
        ("null", None),
        ("2001-01-01", "2001-01-01"),
        ("12:30:45", "12:30:45"),
        ("1_000", 1000),
        ("-60_000", -60000),
        ("1_000.5", 1000.5),
        ("1_0.", 10.0),
        ("0b11", 3),
        ("0xff_ff", 65535),
        ("'1_000'", "1_000"),
        ("1__0", "1__0"),
        ("_1", "_1"),
        ("1_", "1_"),
        ("1_000_000_000_000_000_000_000", "1_000_000_000_000_000_000_000"),
        ("'5'", "5"),
        ('"a\\u00e9"', "aé"),
        ("!!str 5", "5"),
        ("!!float 1", 1.0),
        ("!!int '7'", 7),
        ("'<<'", "<<"),
    ],
)
def test_scalar(text: str, value: Any) -> None:
    parsed = parse_text(f"a: {text}\n").value["a"]
    assert parsed == value
    assert type(parsed) is type(value)


def test_positions_are_those_of_keys_and_items() -> None:
    document = parse_text("a:\n  b: 1\n  c:\n  - x\n  - {d: 2}\n")
    assert document.positions == {
        ("a",): (1, 1),
        ("a", "b"): (2, 3),
        ("a", "c"): (3, 3),
        ("a", "c", 0): (4, 5),
        ("a", "c", 1): (5, 5),
        ("a", "c", 1, "d"): (5, 6),
    }


def test_anchors_are_copies() -> None:
    value = parse_text("a: &x {b: [1]}\nc: *x\nd: [*x, *x]\n").value
    assert value["c"] == value["d"][1] == {"b": [1]}
    value["c"]["b"].append(2)
    assert value["a"] == {"b": [1]}


def test_merge_keys_yield_to_own_keys() -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc:\n  <<: [*a, *b]\n  x: 3\nd:\n  x: 4\n  <<: *a\n"
    value = parse_text(text).value
    assert value["c"] == {"x": 3, "y": 1, "z": 2}
    assert value["d"] == {"x": 4, "y": 1}


def test_keys_become_text() -> None:
    assert parse_text("1: a\ntrue: b\nnull: c\n").value == {"1": "a", "true": "b", "null": "c"}
    assert plain_data({7: "a", True: 2, None: (1, 2)}) == {"7": "a", "true": 2, "null": [1, 2]}


def test_byte_order_mark_is_ignored() -> None:
    assert parse_text("\ufeffa: 1").value == {"a": 1}
    assert parse_text('\ufeff{"a": 1}').value == {"a": 1}


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("a: 1\nb: 2\na: 3\n", 'the key "a" appears twice (it is already set in line 1)', 3),
        ('{"a": 1,\n "a": 2}', 'the key "a" appears twice (it is already set in line 1)', 2),
        ("a:\n\tb: 1\n", "a tab cannot indent YAML (use spaces)", 2),
        ("a: [1, 2\n", "expected ',' or ']'", 2),
        ("a: b: c\n", "mapping values are not allowed here", 1),
        ("a: 1\n---\nb: 2\n", "the text holds more than one document", 2),
        ("a: *nobody\n", "the alias *nobody has no anchor before it", 1),
        ("a: &a [*a]\n", "the alias *a has no anchor before it", 1),
        ("? [1, 2]\n: 3\n", "a key must be text, not a map or a list", 1),
        ("a: !include x\n", "the tag !include is not supported", 1),
        ("a: !!python/object:x {}\n", "is not supported", 1),
        ("a: !!int x\n", "'x' is not of the type that its tag names (int)", 1),
        ("a: .nan\n", "infinity and NaN cannot be written as JSON", 1),
        ("a: -.inf\n", "infinity and NaN cannot be written as JSON", 1),
        ("a: 1e999\n", "infinity and NaN cannot be written as JSON", 1),
        ("a: 9223372036854775808\n", "a whole number must fit into 64 bits", 1),
        ("a: " + "9" * 10_000, "a whole number must fit into 64 bits", 1),
        ("a: {<<: 5}\n", "the value of << must be a map or a list of maps", 1),
        ("a: \x01\n", "the character '\\x01' is not allowed in YAML", None),
        ('a: "\\0"\n', "text cannot hold the character NUL", 1),
        ("a: '\n", "unexpected end of stream", 2),
    ],
)
def test_refused_text(text: str, message: str, line: int | None) -> None:
    with pytest.raises(ConfigError) as error:
        parse_text(text)
    assert error.value.stage is Stage.PARSE
    assert str(error.value).startswith("invalid experiment configuration: unable to convert yaml to json: ")
    assert message in str(error.value)
    assert error.value.problems[0].line == line


def _bomb() -> str:
    rows = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 40)]
    return "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "\n".join(rows)


def _merge_bomb() -> str:
    rows = [f"a{i}: &a{i} {{x: *a{i - 1}, y: *a{i - 1}}}" for i in range(1, 40)]
    return "a0: &a0 {x: 1}\n" + "\n".join(rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_bomb(), "values, counting each use of an alias"),
        (_merge_bomb(), "values, counting each use of an alias"),
        ("a: " + "x" * 10_000_000, "larger than 10 MB"),
        ("# x\n" * 700_000, "YAML text can have 1 MB"),
        ("a: !" + "a" * 900_000, "a tag has more than 100 characters"),
        ("a: !<" + "a" * 900_000 + "> 1", "a tag has more than 100 characters"),
        ("a: [" + "1, " * 30_000 + "1]", "more than 20000 values"),
        ("a: " + "é" * 5_000_001, "larger than 10 MB"),
        ("[" * 100_000, "nested deeper than 64 levels"),
        ('{"a":' * 100_000, "nested deeper than 64 levels"),
        ('{"a":' * 70 + "1" + "}" * 70, "nested deeper than 64 levels"),
        ("\n".join(" " * i + "a:" for i in range(80)), "nested deeper than 64 levels"),
        ("a: &a " + "[" * 40 + "]" * 40 + "\nb: " + "[" * 40 + "*a" + "]" * 40, "nested deeper than 64 levels"),
    ],
    ids=[
        "aliases",
        "maps",
        "size",
        "comments",
        "a tag",
        "a URI",
        "values",
        "bytes",
        "lists",
        "json",
        "json depth",
        "block",
        "alias depth",
    ],
)
def test_hostile_text_is_refused_fast(text: str, message: str) -> None:
    start = time.process_time()
    with pytest.raises(ConfigError, match=message):
        parse_text(text)
    assert time.process_time() - start < 10


def test_large_json_is_read() -> None:
    value = {"data": {str(i): "x" * 40 for i in range(100_000)}}
    assert parse_text(json.dumps(value)).value == value


def test_hostile_data_is_refused() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    for value, message in (
        (deep, "nested deeper"),
        ({"a": float("nan")}, "infinity and NaN"),
        ({"a": 2**70}, "64 bits"),
        ({"a": {1, 2}}, "type set"),
        ({"a": "\ud800"}, "surrogate"),
        ({"a\0": 1}, "NUL"),
    ):
        with pytest.raises(ConfigError, match=message):
            plain_data(value)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs", "Cc"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc<", max_size=3), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=40)
@given(value=st.dictionaries(st.text("ab", min_size=1), JSON))
def test_json_is_yaml(value: dict[str, Any]) -> None:
    text = json.dumps(value)
    assert parse_text(text).value == value
    # The same text by way of the YAML parser; a comment keeps it from the fast path.
    assert parse_text("# yaml\n" + text).value == value


@settings(deadline=None)
@given(text=st.text(st.sampled_from("a1:-[]{},&*!|>'\"#%@`\n\t ?<~.\\"), max_size=30))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        json.dumps(parse_text(text).value, allow_nan=False)
    except ConfigError as error:
        message = str(error)
    else:
        message = ""
    assert "\n" not in message
