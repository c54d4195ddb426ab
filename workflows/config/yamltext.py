"""YAML (or JSON) text to plain data with the line of every key, safely.

Read from the parser's events instead of through a loader, for three reasons: YAML 1.2's scalars (``no`` is text,
``1e-4`` a number), limits that hold before memory is spent (an alias bomb is refused while it expands), and positions.
"""

import functools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from workflows.config.base import INT64_MAX
from workflows.config.errors import ConfigError, Path, Problem, Stage, render_path

MAX_BYTES = 10_000_000
MAX_DEPTH = 64
MAX_NODES = 200_000
# The YAML parser takes about 0.1 ms a value and 1 s a megabyte, so hostile text must be cut short earlier than JSON.
# Real configs have some hundreds of values in some kilobytes.
MAX_YAML_BYTES = 1_000_000
MAX_YAML_NODES = 20_000

Position = tuple[int, int]


@dataclass(frozen=True)
class Document:
    """Parsed text.

    Attributes:
        value: Maps, lists, text, numbers, booleans, None; fit for JSON.
        positions: Line and column, both from 1, of each map key and list item, by path.
        loose: What was written where a number is that YAML 1.2 calls text (`60_000`, `0b11`), by path.
    """

    value: Any
    positions: dict[Path, Position] = field(default_factory=dict[Path, Position])
    loose: dict[Path, str] = field(default_factory=dict[Path, str])


def parse_text(text: str, *, strict: bool = False) -> Document:
    """Parse YAML 1.2 or JSON.

    Args:
        text: The text.
        strict: Whether numbers with underscores or in binary are text, as YAML 1.2 has it, and not the numbers that
            older readers, and those of Determined's clients, take them for.

    Raises:
        ConfigError: The text is too large or too deep, is not YAML, repeats a key, or holds what JSON cannot carry.
            An alias counts as what it stands for.
    """
    if len(text) > MAX_BYTES or len(text.encode(errors="replace")) > MAX_BYTES:
        raise _refused(f"the text is larger than {MAX_BYTES // 1_000_000} MB")
    text = text.removeprefix("\ufeff")
    if text.lstrip()[:1] == "{":
        value = _fast_json(text)
        if value is not None:
            return Document(value)
    if len(text) > MAX_YAML_BYTES:
        raise _refused(
            f"YAML text can have {MAX_YAML_BYTES // 1_000_000} MB",
            hint=f"write it as JSON, of which {MAX_BYTES // 1_000_000} MB are accepted",
        )
    return _Builder(strict=strict).build(text)


def plain_data(value: Any) -> Any:
    """Copy data that came as a mapping, under the same limits as text: keys become text, tuples become lists.

    Raises:
        ConfigError: It is too deep or too large, or holds what JSON cannot carry.
    """
    budget = [MAX_NODES]
    return _plain(value, (), budget)


def _plain(value: Any, path: Path, budget: list[int]) -> Any:
    budget[0] -= 1
    if budget[0] < 0:
        raise _refused(f"more than {MAX_NODES} values")
    if len(path) > MAX_DEPTH:
        raise _refused(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        items = cast(Mapping[Any, Any], value)
        result: dict[str, Any] = {}
        for key, item in items.items():
            name = _key_text(key)
            _refuse_unfit(name, path)
            result[name] = _plain(item, (*path, name), budget)
        return result
    if isinstance(value, list | tuple):
        return [_plain(item, (*path, index), budget) for index, item in enumerate(cast(list[Any], value))]
    _refuse_unfit(value, path)
    return value


def _refuse_unfit(value: Any, path: Path) -> None:
    problem = _unfit(value)
    if problem is not None:
        raise ConfigError([Problem(render_path(path), problem, value=value)], Stage.PARSE)


def _unfit(value: Any) -> str | None:
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        return _unfit_text(value)
    if isinstance(value, int):
        return None if -INT64_MAX - 1 <= value <= INT64_MAX else "a whole number must fit into 64 bits"
    if isinstance(value, float):
        return None if math.isfinite(value) else "infinity and NaN cannot be written as JSON"
    return f"values of type {type(value).__name__} cannot be written as JSON"


def _unfit_text(text: str) -> str | None:
    if "\0" in text:
        return "text cannot hold the character NUL"  # PostgreSQL cannot store it
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return "text cannot hold one half of a surrogate pair"
    return None


def _key_text(key: Any) -> str:
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, bool):
        return json.dumps(key)
    return str(key)


def _refused(message: str, mark: Any = None, hint: str | None = None) -> ConfigError:
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (None, None)
    return ConfigError([Problem("<config>", message, line, column, hint=hint)], Stage.PARSE)


def _fast_json(text: str) -> Any:
    """JSON without positions, a hundred times faster than YAML; None where YAML should have a look as well."""

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ValueError("duplicate key")
        return result

    def refuse(name: str) -> Any:
        raise ValueError(name)

    try:
        value = json.loads(text, object_pairs_hook=no_duplicates, parse_constant=refuse)
    except RecursionError:
        raise _refused(f"nested deeper than {MAX_DEPTH} levels") from None
    except ValueError:
        return None
    return plain_data(value)


_NULL = {"", "~", "null", "Null", "NULL"}
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", re.ASCII)
_DIGITS = "[0-9](?:_?[0-9])*"
#: Numbers of YAML 1.1 that are none in 1.2.
_LOOSE_INT = re.compile(rf"[-+]?{_DIGITS}|0b[01](?:_?[01])*|0x[0-9a-fA-F](?:_?[0-9a-fA-F])*", re.ASCII)
_LOOSE_FLOAT = re.compile(rf"[-+]?{_DIGITS}\.(?:{_DIGITS})?(?:[eE][-+]?[0-9]+)?", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_LONGEST_TAG = 100
_TAG = "tag:yaml.org,2002:"


@dataclass
class _Open:
    """A map or list whose end has not been read yet."""

    value: dict[str, Any] | list[Any]
    path: Path
    anchor: str | None
    first_node: int
    key: str | None = None
    merge: bool = False
    inherited: set[str] = field(default_factory=set[str])
    mark: Any = None


class _Builder:
    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._loose: dict[Path, str] = {}
        self._positions: dict[Path, Position] = {}
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._nodes = 0
        self._stack: list[_Open] = []
        self._root: Any = None
        self._documents = 0

    def build(self, text: str) -> Document:
        from ruamel.yaml.error import MarkedYAMLError, YAMLError
        from ruamel.yaml.reader import ReaderError

        try:
            for event in _events(text):
                self._take(event)
        except ConfigError:
            raise
        except MarkedYAMLError as error:
            raise self._syntax_error(error) from None
        except ReaderError as error:
            character = cast(Any, error).character
            shown = repr(chr(character)) if isinstance(character, int) else repr(character)
            raise _refused(f"the character {shown} is not allowed in YAML") from None
        except (YAMLError, ValueError, RecursionError) as error:
            raise _refused(f"not YAML: {error}") from None
        return Document(self._root, self._positions, self._loose)

    def _syntax_error(self, error: Any) -> ConfigError:
        problem = str(error.problem or error.context or "not YAML")
        mark = error.problem_mark or error.context_mark
        if "\\t" in problem:
            return _refused("a tab cannot indent YAML", mark, "use spaces")
        return _refused(problem, mark)

    def _take(self, event: Any) -> None:
        kind = type(event).__name__
        if kind == "DocumentStartEvent":
            self._documents += 1
            if self._documents > 1:
                raise _refused("the text holds more than one document", event.start_mark)
        elif kind == "ScalarEvent":
            self._scalar(event)
        elif kind == "AliasEvent":
            self._alias(event)
        elif kind in ("MappingStartEvent", "SequenceStartEvent"):
            self._open(event, {} if kind == "MappingStartEvent" else [])
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            done = self._stack.pop()
            if done.anchor is not None:
                self._anchors[done.anchor] = (done.value, self._nodes - done.first_node)
            self._add(done.value, done.mark, is_scalar=False, opened=True)

    def _spend(self, count: int, mark: Any) -> None:
        self._nodes += count
        if self._nodes > MAX_YAML_NODES:
            raise _refused(
                f"more than {MAX_YAML_NODES} values, counting each use of an alias",
                mark,
                f"write it as JSON, where {MAX_NODES} are accepted",
            )

    def _open(self, event: Any, value: dict[str, Any] | list[Any]) -> None:
        self._spend(1, event.start_mark)
        if len(self._stack) >= MAX_DEPTH:
            raise _refused(f"nested deeper than {MAX_DEPTH} levels", event.start_mark)
        if _tag(event) not in (None, "map", "seq"):
            raise _refused(f"the tag {_shown_tag(event)} is not supported", event.start_mark)
        top = self._stack[-1] if self._stack else None
        if top is not None and isinstance(top.value, dict) and top.key is None and not top.merge:
            raise _refused("a key must be text, not a map or a list", event.start_mark)
        self._stack.append(
            _Open(value, self._child_path(event.start_mark), event.anchor, self._nodes, mark=event.start_mark)
        )

    def _child_path(self, mark: Any) -> Path:
        if not self._stack:
            return ()
        top = self._stack[-1]
        if isinstance(top.value, list):
            path = (*top.path, len(top.value))
            self._positions.setdefault(path, (mark.line + 1, mark.column + 1))
            return path
        return (*top.path, top.key if top.key is not None else "<<")

    def _scalar(self, event: Any) -> None:
        self._spend(1, event.start_mark)
        value = _resolve(event)
        if isinstance(value, str) and _is_plain(event) and not self._strict and self._is_value():
            number = _loose_number(value)
            if number is not None:
                self._loose[self._child_path(event.start_mark)] = value
                value = number
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, 1)
        self._add(value, event.start_mark, is_scalar=True, text=_joined(event.value), plain=event.style is None)

    def _is_value(self) -> bool:
        """Whether what comes next is no key."""
        return not self._stack or isinstance(self._stack[-1].value, list) or self._stack[-1].key is not None

    def _alias(self, event: Any) -> None:
        if event.anchor not in self._anchors:
            raise _refused(f"the alias *{event.anchor} has no anchor before it", event.start_mark)
        value, count = self._anchors[event.anchor]
        self._spend(count, event.start_mark)
        if len(self._stack) + _depth(value) > MAX_DEPTH:
            raise _refused(f"nested deeper than {MAX_DEPTH} levels", event.start_mark)
        is_scalar = not isinstance(value, dict | list)
        self._add(_copy(value), event.start_mark, is_scalar=is_scalar, text=_key_text(value))

    def _add(
        self, value: Any, mark: Any, *, is_scalar: bool, text: str = "", plain: bool = False, opened: bool = False
    ) -> None:
        if not self._stack:
            self._root = value
            return
        top = self._stack[-1]
        if isinstance(top.value, list):
            if not opened:
                self._child_path(mark)
            top.value.append(value)
        elif top.key is None and not top.merge:
            self._start_entry(top, text, mark, is_scalar=is_scalar, plain=plain)
        elif top.merge:
            _merge_into(top, value, mark)
            top.merge = False
        else:
            top.value[cast(str, top.key)] = value
            top.key = None

    def _start_entry(self, top: _Open, text: str, mark: Any, *, is_scalar: bool, plain: bool) -> None:
        if not is_scalar:
            raise _refused("a key must be text, not a map or a list", mark)
        if plain and text == "<<":
            top.merge = True
            return
        fields = cast(dict[str, Any], top.value)
        path = (*top.path, text)
        if text in fields and text not in top.inherited:
            line, column = mark.line + 1, mark.column + 1
            first = self._positions.get(path)
            hint = f"it is already set in line {first[0]}" if first else None
            raise ConfigError(
                [Problem(render_path(top.path), f'the key "{text}" appears twice', line, column, hint=hint)],
                Stage.PARSE,
            )
        top.inherited.discard(text)
        top.key = text
        self._positions[path] = (mark.line + 1, mark.column + 1)


def _merge_into(top: _Open, value: Any, mark: Any) -> None:
    """The merge key: keys of the named maps, where the map has none of its own; earlier maps win."""
    fields = cast(dict[str, Any], top.value)
    for source in cast(list[Any], value if isinstance(value, list) else [value]):
        if not isinstance(source, dict):
            raise _refused("the value of << must be a map or a list of maps", mark)
        for key, item in cast(dict[str, Any], source).items():
            if key not in fields:
                fields[key] = item
                top.inherited.add(key)


def _events(text: str) -> Iterator[Any]:
    # Imported here: a process that never parses text should not pay for the parser.
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.Scanner = _bounded_scanner()
    return cast(Iterator[Any], yaml.parse(text))  # pyright: ignore[reportUnknownMemberType]


@functools.cache
def _bounded_scanner() -> Any:
    from ruamel.yaml.scanner import Scanner, ScannerError

    class BoundedScanner(Scanner):
        """The parser decodes tags in a time that grows with the square of their length, before we see them."""

        def scan_tag_uri(self, name: Any, start_mark: Any) -> Any:
            uri = cast(str, super().scan_tag_uri(name, start_mark))  # pyright: ignore[reportUnknownMemberType]
            if len(uri) > _LONGEST_TAG:
                raise ScannerError(None, None, f"a tag has more than {_LONGEST_TAG} characters", start_mark)
            return uri

    return BoundedScanner


def _tag(event: Any) -> str | None:
    tag = event.ctag if hasattr(event, "ctag") else event.tag
    text = None if tag is None else str(tag)
    if text is None or text == "None":
        return None
    return text.removeprefix(_TAG) if text.startswith(_TAG) else (text.removeprefix("!!") if text else None)


def _shown_tag(event: Any) -> str:
    return str(event.ctag) if hasattr(event, "ctag") else str(event.tag)


def _resolve(event: Any) -> Any:
    """A scalar's value by YAML 1.2's core schema."""
    text = _joined(cast(str, event.value))
    problem = _unfit_text(text)
    if problem is not None:
        raise _refused(problem, event.start_mark)
    tag = _tag(event)
    if tag == "str" or (tag is None and event.style is not None) or tag == "!":
        return text
    if tag not in (None, "int", "float", "bool", "null"):
        raise _refused(f"the tag {_shown_tag(event)} is not supported", event.start_mark)
    value = _plain_scalar(text, event)
    fits = {"int": int, "float": float, "bool": bool, "null": type(None)}
    if tag == "float" and isinstance(value, int):
        return float(value)
    if tag is not None and type(value) is not fits[tag]:
        raise _refused(f"{text!r} is not of the type that its tag names ({tag})", event.start_mark)
    return value


def _joined(text: str) -> str:
    """JSON may write a character as two escapes, which YAML's parser leaves as two halves."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _plain_scalar(text: str, event: Any) -> Any:
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    value: int | float
    if _INT.fullmatch(text):
        if len(text) > 30:
            raise _refused("a whole number must fit into 64 bits", event.start_mark)
        value = int(text, 8 if text.startswith("0o") else 16) if text[:2] in ("0o", "0x") else int(text)
    elif _FLOAT.fullmatch(text):
        value = float(text)
    elif _NOT_FINITE.fullmatch(text):
        value = math.inf
    else:
        return text
    problem = _unfit(value)
    if problem is not None:
        raise _refused(problem, event.start_mark)
    return value


def _is_plain(event: Any) -> bool:
    """Whether a scalar has neither quotes nor a tag."""
    return event.style is None and _tag(event) is None


def _loose_number(text: str) -> int | float | None:
    """The number that older readers take a text for; None if it is none, or does not fit."""
    if len(text) > 30:
        return None
    digits = text.replace("_", "")
    if _LOOSE_INT.fullmatch(text):
        base = {"0b": 2, "0x": 16}.get(text[:2], 10)
        number: int | float = int(digits, base)
    elif _LOOSE_FLOAT.fullmatch(text):
        number = float(digits)
    else:
        return None
    return number if _unfit(number) is None else None


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in cast(dict[str, Any], value).items()}
    if isinstance(value, list):
        return [_copy(item) for item in cast(list[Any], value)]
    return value


def _depth(value: Any) -> int:
    children: list[Any] = []
    if isinstance(value, dict):
        children = list(cast(dict[str, Any], value).values())
    elif isinstance(value, list):
        children = cast(list[Any], value)
    else:
        return 0
    return 1 + max((_depth(child) for child in children), default=0)
