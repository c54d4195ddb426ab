"""Validation of names and texts that users choose: one rule for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from api.errors import BadRequest
from api.schemas.base import plain
from workflows.config import ConfigError
from workflows.config.yamltext import plain_data

#: Longest name of a workspace, project or template, and of a model, in characters.
LONGEST_NAME = 80
LONGEST_MODEL_NAME = 255
_LONGEST_TEXT = 1_000_000
_LONGEST_EXTERNAL_ID = 255
_LONGEST_LABEL, _MOST_LABELS = 120, 200


def checked_name(field: str, value: str, longest: int = LONGEST_NAME) -> str:
    """A name without blanks around it. Raises: BadRequest."""
    name = value.strip()
    if not 1 <= len(name) <= longest or not name.isprintable():
        raise BadRequest(f"{field}: {value[: longest + 10]!r}: expected 1 to {longest} printable characters")
    return name


def checked_path_name(field: str, value: str, longest: int = LONGEST_NAME) -> str:
    """A name that stands in addresses, where a number would be an id. Raises: BadRequest."""
    name = checked_name(field, value, longest)
    if "/" in name or name.isdigit():
        raise BadRequest(f"{field}: {value[:90]!r}: expected a name without '/' that is not a number")
    return name


def checked_external_id(field: str, value: str) -> str:
    """What a client outside knows something by. Raises: BadRequest."""
    if not 1 <= len(value) <= _LONGEST_EXTERNAL_ID or not value.isprintable():
        raise BadRequest(f"{field}: {value[:80]!r}: expected 1 to {_LONGEST_EXTERNAL_ID} printable characters")
    return value


def checked_text(field: str, value: str) -> str:
    """A description or notes. Raises: BadRequest."""
    if len(value) > _LONGEST_TEXT:
        raise BadRequest(f"{field}: {len(value)} characters: expected at most {_LONGEST_TEXT}")
    if "\x00" in value:
        raise BadRequest(f"{field}: {value[:40]!r}: expected a text without NUL")
    return value


def checked_labels(values: Iterable[str]) -> list[str]:
    """Labels, each once. Raises: BadRequest."""
    labels = list(dict.fromkeys(value.strip() for value in values))
    if len(labels) > _MOST_LABELS:
        raise BadRequest(f"labels: {len(labels)} of them: expected at most {_MOST_LABELS}")
    for label in labels:
        if not 1 <= len(label) <= _LONGEST_LABEL or not label.isprintable():
            raise BadRequest(f"labels: {label[:130]!r}: expected 1 to {_LONGEST_LABEL} printable characters")
    return labels


def checked_object(field: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """A free JSON object, as databases can keep it. Raises: BadRequest."""
    try:
        found = plain_data(plain(dict(value)))
    except ConfigError as error:
        raise BadRequest(f"{field}: {error.problems[0].message}") from None
    if _has_nul(found):
        raise BadRequest(f"{field}: expected texts without NUL")
    return found


def _has_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\x00" in value
    if isinstance(value, dict):
        return any(_has_nul(key) or _has_nul(item) for key, item in value.items())  # pyright: ignore[reportUnknownVariableType]
    return isinstance(value, list) and any(map(_has_nul, value))  # pyright: ignore[reportUnknownArgumentType]


def named_metric(field: str, text: str) -> tuple[str, str]:
    """Group and name of a metric that a field names as group.name. Raises: BadRequest."""
    group, _, name = text.partition(".")
    if not name:
        raise BadRequest(f"{field}: {text[:80]!r}: expected group.name, such as validation.loss")
    return group, name
