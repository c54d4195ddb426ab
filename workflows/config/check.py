"""Checks a config as written against the schema, with the messages that users of Determined know.

All findings at once: a wrong value in one section does not hide those in another. A general JSON-schema library
would find the same places, but not these words, and not what was meant. Source of the words: experiment-config.md §17.
"""

import contextlib
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

from workflows.config.base import JsonMap
from workflows.config.errors import Path, suggest
from workflows.config.schema import write_schema

#: Problems that are reported at once; each costs a search for what was meant.
MAX_FINDINGS = 100
#: Items of one list or map of the schema; what users may fill freely (`data`) is bounded by its text.
MAX_ITEMS = 10_000
#: Of all levels together. Each trial has them, and each is drawn, shown and searched for.
MAX_HYPERPARAMETERS = 5_000


class _Enough(Exception):
    """There are enough problems: more of them would not help the user."""


@dataclass(frozen=True)
class Finding:
    """A problem before its place in the text is looked up.

    Attributes:
        path: Where the message belongs.
        message: What was expected and what was found.
        value: The offending value.
        hint: What to do instead, or None.
        key: The key at fault inside `path`, for unknown and missing keys; it has the better line number.
    """

    path: Path
    message: str
    value: Any = None
    hint: str | None = None
    key: str | None = None


Report = Callable[[Finding], None]


def check_written(config: Any) -> list[Finding]:
    """Types, bounds and unknown keys of a config as written; keys that a template may add can be missing."""
    return _Checker().run(config, complete=False)


def check_merged(config: Any) -> list[Finding]:
    """The same, and that nothing is missing that only merging could have added."""
    return _Checker().run(config, complete=True)


def json_type(value: Any) -> str:
    """JSON's name of a value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list | tuple) else "object"


def is_integer(value: Any) -> bool:
    """Whether JSON Schema calls the value an integer: 5 and 5.0, but not true."""
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


class _Checker:
    def __init__(self) -> None:
        self._schema = write_schema()
        self._defs = cast(dict[str, JsonMap], self._schema["$defs"])
        self._findings: list[Finding] = []
        self._complete = False
        self._hyperparameters = 0

    def run(self, config: Any, *, complete: bool) -> list[Finding]:
        self._complete = complete
        with contextlib.suppress(_Enough):
            self._check(config, self._schema, ())
        return self._findings

    def _report(self, path: Path, message: str, value: Any, hint: str | None = None, key: str | None = None) -> None:
        self._findings.append(Finding(path, message, value, hint, key))
        if len(self._findings) >= MAX_FINDINGS:
            raise _Enough

    def _check(self, value: Any, schema: JsonMap, path: Path) -> None:
        if "$ref" in schema:
            schema = self._defs[cast(str, schema["$ref"]).rsplit("/", 1)[1]]
        if "x-hyperparameter" in schema:
            self._check_hyperparameter(value, schema, path)
        elif "x-union" in schema:
            self._check_union(value, schema, path)
        elif "anyOf" in schema:
            self._check_any_of(value, schema, path)
        elif "enum" in schema or "const" in schema:
            self._check_enum(value, schema.get("enum", [schema.get("const")]), path)
        elif self._check_type(value, schema, path):
            self._check_content(value, schema, path)

    def _check_type(self, value: Any, schema: JsonMap, path: Path) -> bool:
        wanted = schema.get("type")
        if wanted is None:
            return True
        kinds = cast(list[str], [wanted] if isinstance(wanted, str) else wanted)
        if _has_type(value, kinds):
            return True
        if "x-shape-message" in schema and "null" not in kinds:
            self._report(path, schema["x-shape-message"], value)
        else:
            self._report(path, _expected(kinds, value), value, _type_hint(kinds, value))
        return False

    def _check_content(self, value: Any, schema: JsonMap, path: Path) -> None:
        if isinstance(value, str):
            pattern = schema.get("pattern")
            if pattern is not None and not re.search(cast(str, pattern), value):
                self._report(path, schema.get("x-pattern-message", f"must match {pattern}"), value)
            elif len(value) < cast(int, schema.get("minLength", 0)):
                self._report(path, "must not be empty", value)
        elif isinstance(value, bool) or value is None:
            return
        elif isinstance(value, int | float):
            self._check_bounds(value, schema, path)
        elif isinstance(value, list):
            items = cast(list[Any], value)
            if len(items) < cast(int, schema.get("minItems", 0)):
                self._report(path, "must not be empty", items)
            if "items" in schema and self._is_countable(items, path):
                for index, item in enumerate(items):
                    self._check(item, schema["items"], (*path, index))
        elif isinstance(value, dict):
            self._check_map(cast(JsonMap, value), schema, path)

    def _is_countable(self, value: JsonMap | list[Any], path: Path) -> bool:
        """Whether there are few enough items to look at each: those of one section, hyperparameters all together."""
        most = MAX_ITEMS
        if path[:1] == ("hyperparameters",):
            most = MAX_HYPERPARAMETERS
            self._hyperparameters += len(value)
        if max(len(value), self._hyperparameters) <= most:
            return True
        self._report(path, f"has {max(len(value), self._hyperparameters)} items, the limit is {most}", None)
        return False

    def _check_bounds(self, value: int | float, schema: JsonMap, path: Path) -> None:
        bounds: list[tuple[str, str, Callable[[Any, Any], bool]]] = [
            ("minimum", ">=", lambda v, b: v >= b),
            ("exclusiveMinimum", ">", lambda v, b: v > b),
            ("maximum", "<=", lambda v, b: v <= b),
            ("exclusiveMaximum", "<", lambda v, b: v < b),
        ]
        for key, sign, holds in bounds:
            if key in schema and not holds(value, schema[key]):
                self._report(path, f"must be {sign} {schema[key]} but found {_number(value)}", value)

    def _check_map(self, value: JsonMap, schema: JsonMap, path: Path) -> None:
        properties = cast(dict[str, JsonMap], schema.get("properties", {}))
        others = schema.get("additionalProperties", True)
        unknown = [key for key in value if key not in properties]
        if isinstance(others, dict) and not self._is_countable(value, path):
            return
        if "x-shape-message" in schema:
            # A length: one known key, or the whole shape is wrong.
            if unknown or len(value) != 1:
                hint = _did_you_mean(suggest(unknown[0], properties)) if unknown else None
                self._report(path, schema["x-shape-message"], value, hint)
                return
        elif others is False:
            for key in unknown:
                hint = self._key_hint(key, properties, path)
                self._report(path, f'additionalProperties "{key}" not allowed', value[key], hint, key)
        for key, item in value.items():
            if key in properties:
                self._check(item, properties[key], (*path, key))
            elif isinstance(others, dict):
                self._check(item, cast(JsonMap, others), (*path, key))
        self._check_required(value, schema, path)

    def _check_required(self, value: JsonMap, schema: JsonMap, path: Path) -> None:
        missing = [key for key in schema.get("required", []) if value.get(key) is None]
        if missing:
            names = ", ".join(f'"{key}"' for key in missing)
            self._report(path, f"missing properties: {names}", None)
        if self._complete:
            for key in schema.get("x-complete", []):
                if value.get(key) is None:
                    self._report(path, f"{key} is a required property", None)

    def _check_any_of(self, value: Any, schema: JsonMap, path: Path) -> None:
        branches = [
            self._defs[cast(str, b["$ref"]).rsplit("/", 1)[1]] if "$ref" in b else b
            for b in cast(list[JsonMap], schema["anyOf"])
        ]
        before = len(self._findings)
        chosen = [b for b in branches if _branch_fits(value, b)]
        if chosen:
            self._check(value, chosen[0], path)
        else:
            kinds = list(dict.fromkeys(kind for b in branches for kind in _kinds(b)))
            shape = next((b["x-shape-message"] for b in branches if "x-shape-message" in b), None)
            # A length that is text or a list has the wrong shape; 5 where only objects go has the wrong type.
            if shape is not None and not isinstance(value, int | float | bool):
                self._report(path, shape, value)
            else:
                self._report(path, _expected(kinds, value), value, _type_hint(kinds, value))
        if "x-message" in schema and len(self._findings) > before:
            del self._findings[before:]
            self._report(path, schema["x-message"], value)

    def _check_enum(self, value: Any, allowed: list[Any], path: Path) -> None:
        if any(value is item if item is None else type(value) is type(item) and value == item for item in allowed):
            return
        shown = ", ".join("<nil>" if item is None else f'"{item}"' for item in allowed)
        known = [item for item in allowed if isinstance(item, str)]
        hint = _did_you_mean(suggest(value, known)) if isinstance(value, str) else None
        self._report(path, f"value must be one of {shown}", value, hint)

    def _check_union(self, value: Any, schema: JsonMap, path: Path) -> None:
        union = cast(JsonMap, schema["x-union"])
        mapping = cast(dict[str, str], union["mapping"])
        key = cast(str, union["key"])
        if value is None:
            return
        if not isinstance(value, dict):
            self._report(path, union["message"], value)
            return
        fields = cast(JsonMap, value)
        tag = fields.get(key)
        if tag is None:
            self._check_untagged(fields, union, path)
        elif isinstance(tag, str) and tag in union["removed"]:
            message = f"the '{tag}' searcher has been removed and is not valid for new experiments"
            self._report(path, message, tag, "use adaptive_asha", key)
        elif isinstance(tag, str) and tag in mapping:
            self._check(value, {"$ref": mapping[tag]}, path)
        else:
            hint = _did_you_mean(suggest(tag, mapping)) if isinstance(tag, str) else None
            self._report(path, union["message"], tag, hint or _unnamed(union["message"], mapping), key)

    def _check_untagged(self, value: JsonMap, union: JsonMap, path: Path) -> None:
        """Without its tag a section may hold keys of any alternative: a template may still bring the tag."""
        key = cast(str, union["key"])
        members = [self._defs[ref.rsplit("/", 1)[1]] for ref in cast(dict[str, str], union["mapping"]).values()]
        known: dict[str, JsonMap] = {}
        for member in members:
            for name, prop in cast(dict[str, JsonMap], member["properties"]).items():
                known.setdefault(name, prop)
        for name, item in value.items():
            if name not in known:
                hint = self._key_hint(name, known, path)
                self._report(path, f'additionalProperties "{name}" not allowed', item, hint, name)
            elif name != key:
                self._check(item, known[name], (*path, name))
        if self._complete:
            self._report(path, union["message"], value, _unnamed(union["message"], union["mapping"]))

    def _check_hyperparameter(self, value: Any, schema: JsonMap, path: Path) -> None:
        if not isinstance(value, dict):
            return  # an implicit constant
        fields = cast(JsonMap, value)
        special = cast(JsonMap, schema["x-hyperparameter"])
        mapping = cast(dict[str, str], special["mapping"])
        if "type" not in fields:
            if not self._is_countable(fields, path):
                return
            for name, item in fields.items():
                self._check(item, {"$ref": "#/$defs/Hyperparameter"}, (*path, name))
            return
        tag = fields["type"]
        if isinstance(tag, str) and tag in mapping:
            model = self._defs[mapping[tag].rsplit("/", 1)[1]]
            if tag == "const" and "val" in fields:
                # null is a value here, not an absence.
                fields = {**fields, "val": 0}
            self._check(fields, model, path)
        else:
            hint = _did_you_mean(suggest(tag, mapping)) if isinstance(tag, str) else None
            self._report(path, special["message"], tag, hint, "type")

    def _key_hint(self, key: str, properties: dict[str, JsonMap], path: Path) -> str | None:
        users = self._other_members(key, path)
        if users:
            return f"only for {', '.join(users)}"
        close = suggest(key, properties)
        if close is not None:
            return _did_you_mean(close)
        # A key that is right elsewhere was put at the wrong depth.
        homes = self._homes().get(key, [])
        here = ".".join(str(part) for part in path)
        homes = [home for home in homes if home.rpartition(".")[0] != here]
        return _did_you_mean(homes[0]) if homes else None

    def _other_members(self, key: str, path: Path) -> list[str]:
        """Other alternatives of the union at `path` that have the key: it may be left over from one of them."""
        sections = cast(dict[str, JsonMap], self._schema["properties"])
        section = sections.get(str(path[0]), {}) if len(path) == 1 else {}
        mapping = cast(dict[str, str], section.get("x-union", {}).get("mapping", {}))
        return [tag for tag, ref in mapping.items() if key in self._defs[ref.rsplit("/", 1)[1]]["properties"]]

    def _homes(self) -> dict[str, list[str]]:
        homes: dict[str, list[str]] = {}
        for section, prop in cast(dict[str, JsonMap], self._schema["properties"]).items():
            homes.setdefault(section, []).append(section)
            refs = [b["$ref"] for b in prop.get("anyOf", []) if "$ref" in b]
            refs += list(prop.get("x-union", {}).get("mapping", {}).values())
            for ref in cast(list[str], refs):
                for name in self._defs[ref.rsplit("/", 1)[1]].get("properties", {}):
                    homes.setdefault(name, []).append(f"{section}.{name}")
        return homes


def _kinds(schema: JsonMap) -> list[str]:
    if "enum" in schema:
        return list(dict.fromkeys(json_type(item) for item in schema["enum"]))
    kind = schema.get("type", [])
    return [kind] if isinstance(kind, str) else cast(list[str], kind)


def _has_type(value: Any, kinds: list[str]) -> bool:
    return json_type(value) in kinds or ("integer" in kinds and is_integer(value))


def _branch_fits(value: Any, branch: JsonMap) -> bool:
    return _has_type(value, _kinds(branch))


def _expected(kinds: list[str], value: Any) -> str:
    ordered = [kind for kind in kinds if kind != "null"] + [kind for kind in kinds if kind == "null"]
    return f"expected {' or '.join(ordered)}, but got {json_type(value)}"


def _type_hint(kinds: list[str], value: Any) -> str | None:
    """Help with what YAML 1.1 habits produce."""
    if not isinstance(value, str):
        return None
    if "boolean" in kinds and value.lower() in ("yes", "no", "on", "off", "y", "n"):
        return f"{value!r} is text here, write {'true' if value.lower() in ('yes', 'on', 'y') else 'false'}"
    if "number" in kinds or "integer" in kinds:
        try:
            number = float(value)
        except ValueError:
            return None
        if math.isfinite(number):
            return f"{value!r} is text here, write {value.replace('_', '').strip()} without quotes"
    return None


def _number(value: int | float) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def _unnamed(message: str, known: Iterable[str]) -> str | None:
    """The alternatives that a message leaves out: its words are the peer's, which has fewer."""
    names = [name for name in known if f"'{name}'" not in message]
    return f"also known: {', '.join(names)}" if names else None


def _did_you_mean(word: str | None) -> str | None:
    return f'did you mean "{word}"?' if word is not None else None
