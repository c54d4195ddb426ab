"""References in a campaign's definition, `${steps.search.metric}`, and conditions on them. Pure, and without `eval`.

A reference names a value by a path; nothing is called or computed. Conditions compare references and literals:
`${steps.evaluate.metric} > 0.9 and not ${params.dry_run}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

#: What a reference begins with.
ROOTS = ("steps", "params", "run")
LONGEST_CONDITION = 1000
_DEEPEST = 32
_MOST_SEGMENTS = 16
#: `$${` stands for `${`. What has no dot is a variable of the shell, and none of ours.
_TOKEN = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_-]*)\.([^{}]*)(\}?)")
_SEGMENT = re.compile(r"[A-Za-z0-9_/@:+-]{1,200}")


class ExpressionError(ValueError):
    """A reference or condition that can't be read, or does not fit what it is used for."""


class MissingValue(LookupError):
    """A reference to a value that is not there, as its step did not bring one."""

    def __init__(self, reference: Reference) -> None:
        super().__init__(f"{reference} has no value")
        self.reference = reference


@dataclass(frozen=True)
class Reference:
    """A path to a value: `steps.search.hparams.lr` is ("steps", "search", "hparams", "lr")."""

    path: tuple[str, ...]

    def __str__(self) -> str:
        return "${" + ".".join(self.path) + "}"

    @property
    def step(self) -> str | None:
        """The step whose output it is; None of `params` and `run`."""
        return self.path[1] if self.path[0] == "steps" else None


#: The value of a reference. Raises: MissingValue.
Lookup = Callable[[Reference], Any]


def lookup_in(scope: Mapping[str, Any]) -> Lookup:
    """Look values up in nested maps: `{"steps": {"search": {"metric": 0.9}}, "params": {}, "run": {}}`."""

    def look(reference: Reference) -> Any:
        value: Any = scope
        for segment in reference.path:
            if not isinstance(value, Mapping) or segment not in value:
                raise MissingValue(reference)
            value = cast("Mapping[str, Any]", value)[segment]
        if value is None:
            raise MissingValue(reference)
        return value

    return look


def _reference(match: re.Match[str]) -> Reference:
    root, rest, end = match.groups()
    text = match.group()[:100]
    if not end:
        raise ExpressionError(f"{text!r}: expected a closing brace")
    if root not in ROOTS:
        raise ExpressionError(f"{text!r}: expected ${{steps.…}}, ${{params.…}} or ${{run.…}}; $${{ stands for ${{")
    segments = rest.split(".")
    if len(segments) > _MOST_SEGMENTS or not all(_SEGMENT.fullmatch(segment) for segment in segments):
        raise ExpressionError(f"{text!r}: expected names with dots between them, as ${{steps.search.metric}}")
    if root == "steps" and len(segments) < 2:
        raise ExpressionError(f"{text!r}: expected an output of the step, as ${{steps.{segments[0]}.metric}}")
    return Reference((root, *segments))


def _in_text(text: str) -> Iterator[Reference]:
    for match in _TOKEN.finditer(text):
        if match.group() != "$${":
            yield _reference(match)


def references(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Reference, bool]]:
    """All references in plain data, as (where, reference, whether it is the whole value). Raises: ExpressionError."""
    if isinstance(value, str):
        for reference in _in_text(value):
            yield path, reference, value.strip() == str(reference)
    elif isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            yield from references(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from references(item, (*path, index))


def substitute(value: Any, look: Lookup) -> Any:
    """Plain data with every reference replaced. A text that is one reference becomes the value, with its type.

    Raises: MissingValue; ExpressionError, where a list or a map would stand in the middle of a text.
    """
    if isinstance(value, str):
        return _substituted(value, look)
    if isinstance(value, dict):
        return {key: substitute(item, look) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [substitute(item, look) for item in cast("list[Any]", value)]
    return value


def _substituted(text: str, look: Lookup) -> Any:
    whole = _TOKEN.fullmatch(text.strip())
    if whole is not None and whole.group() != "$${":
        return look(_reference(whole))

    def replace(match: re.Match[str]) -> str:
        if match.group() == "$${":
            return "${"
        reference = _reference(match)
        found = look(reference)
        if isinstance(found, str):
            return found
        if isinstance(found, (dict, list)):
            raise ExpressionError(f"{reference} is {_kind(found)}: it can be a whole value, and no part of a text")
        return json.dumps(found)

    return _TOKEN.sub(replace, text)


# -- conditions --------------------------------------------------------------------------------------------------------

_CONDITION_TOKEN = re.compile(
    r"""\s*(?:
        (?P<reference>\$\{[^{}]*\}?)
      | (?P<number>-?[0-9]{1,30}(?:\.[0-9]{1,30})?(?:[eE][+-]?[0-9]{1,3})?)
      | (?P<text>'[^']*'|"[^"]*")
      | (?P<operator>==|!=|<=|>=|<|>|\(|\))
      | (?P<word>[A-Za-z]+)
    )""",
    re.VERBOSE,
)
_LITERALS = {"true": True, "false": False, "null": None}
_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
_EXPECTED = "expected a condition such as ${steps.evaluate.metric} > 0.9"

#: ("or"|"and", left, right), ("not", inner), (comparison, left, right), ("value", literal), ("reference", Reference)
Condition = tuple[Any, ...]


def parse_condition(text: str) -> Condition:
    """Read a condition. Raises: ExpressionError."""
    if len(text) > LONGEST_CONDITION:
        raise ExpressionError(f"{len(text)} characters, the limit is {LONGEST_CONDITION}")
    reader = _Reader(list(_tokens(text)))
    condition = reader.either(0)
    if reader.peek() is not None:
        raise ExpressionError(f"{reader.peek()[1]!r}: {_EXPECTED}")  # pyright: ignore[reportOptionalSubscript]
    return condition


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _CONDITION_TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            raise ExpressionError(f"{text[position:].strip()[:40]!r}: {_EXPECTED}")
        yield match.lastgroup, match.group(match.lastgroup)
        position = match.end()


class _Reader:
    """Recursive descent: or, and, not, comparison, operand. Each level knows how deep it is."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._place = 0

    def peek(self) -> tuple[str, str] | None:
        """The next token."""
        return self._tokens[self._place] if self._place < len(self._tokens) else None

    def _take(self, *wanted: str) -> str | None:
        token = self.peek()
        if token is None or token[0] == "text" or token[1] not in wanted:
            return None
        self._place += 1
        return token[1]

    def either(self, depth: int) -> Condition:
        """Terms with `or` between them."""
        if depth > _DEEPEST:
            raise ExpressionError(f"more than {_DEEPEST} levels of parentheses")
        left = self._both(depth)
        while self._take("or"):
            left = ("or", left, self._both(depth))
        return left

    def _both(self, depth: int) -> Condition:
        left = self._negated(depth)
        while self._take("and"):
            left = ("and", left, self._negated(depth))
        return left

    def _negated(self, depth: int) -> Condition:
        if depth > _DEEPEST:
            raise ExpressionError(f"more than {_DEEPEST} levels")
        return ("not", self._negated(depth + 1)) if self._take("not") else self._comparison(depth)

    def _comparison(self, depth: int) -> Condition:
        left = self._operand(depth)
        operator = self._take(*_COMPARISONS)
        return left if operator is None else (operator, left, self._operand(depth))

    def _operand(self, depth: int) -> Condition:
        if self._take("("):
            inner = self.either(depth + 1)
            if not self._take(")"):
                raise ExpressionError("expected a closing parenthesis")
            return inner
        token = self.peek()
        if token is None:
            raise ExpressionError(f"it ends early: {_EXPECTED}")
        self._place += 1
        kind, text = token
        if kind == "reference":
            match = _TOKEN.fullmatch(text)
            if match is None:
                raise ExpressionError(f"{text[:60]!r}: expected ${{steps.…}}, ${{params.…}} or ${{run.…}}")
            return ("reference", _reference(match))
        if kind == "number":
            return ("value", float(text) if any(mark in text for mark in ".eE") else int(text))
        if kind == "text":
            return ("value", text[1:-1])
        if kind == "word" and text in _LITERALS:
            return ("value", _LITERALS[text])
        raise ExpressionError(f"{text!r}: {_EXPECTED}")


def condition_references(condition: Condition) -> Iterator[Reference]:
    """All references of a condition."""
    if condition[0] == "reference":
        yield condition[1]
    elif condition[0] != "value":
        for inner in condition[1:]:
            yield from condition_references(inner)


def holds(condition: Condition, look: Lookup) -> bool:
    """Whether a condition is true. A value that is not there is `null`, and no comparison by size holds for it.

    Raises: ExpressionError, if what is compared does not compare, or is no condition.
    """
    kind = condition[0]
    if kind == "or":
        return holds(condition[1], look) or holds(condition[2], look)
    if kind == "and":
        return holds(condition[1], look) and holds(condition[2], look)
    if kind == "not":
        return not holds(condition[1], look)
    if kind in _COMPARISONS:
        return _compare(kind, _value(condition[1], look), _value(condition[2], look))
    value = _value(condition, look)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise ExpressionError(f"{_kind(value)} is no condition: {_EXPECTED}")


def _value(operand: Condition, look: Lookup) -> Any:
    if operand[0] == "value":
        return operand[1]
    if operand[0] == "reference":
        try:
            return look(operand[1])
        except MissingValue:
            return None
    return holds(operand, look)


def _compare(operator: str, left: Any, right: Any) -> bool:
    if operator == "==":
        return _is_same(left, right)
    if operator == "!=":
        return not _is_same(left, right)
    if left is None or right is None:
        return False
    numbers = all(isinstance(side, (int, float)) and not isinstance(side, bool) for side in (left, right))
    if not numbers and not (isinstance(left, str) and isinstance(right, str)):
        raise ExpressionError(f"{_kind(left)} {operator} {_kind(right)}: expected two numbers, or two texts")
    if operator == "<":
        return left < right
    if operator == "<=":
        return left <= right
    return left > right if operator == ">" else left >= right


def _is_same(left: Any, right: Any) -> bool:
    if isinstance(left, bool) != isinstance(right, bool):
        return False
    return left == right


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a text"
    return "a map" if isinstance(value, dict) else "a list"
