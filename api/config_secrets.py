"""Keys of checkpoint storage in configurations: trials get them, nobody is shown them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import orjson

from api.redact import MASK

_SECTION = "checkpoint_storage"
_FIELDS = ("access_key", "secret_key", "connection_string", "credential")
#: Most configurations have none: that is found out without reading them.
_QUOTED = tuple(f'"{field}"' for field in _FIELDS)


def shown(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without its keys."""
    section = config.get(_SECTION)
    secrets = _secrets(section)
    return dict(config) | ({_SECTION: {**section, **dict.fromkeys(secrets, MASK)}} if section and secrets else {})


def shown_texts(config: str, original: str) -> tuple[str, str]:
    """A configuration as JSON and the text that a user sent for it, both without its keys."""
    if not any(field in config for field in _QUOTED):
        return config, original
    read = orjson.loads(config)
    secrets = _secrets(read.get(_SECTION))
    if not secrets:
        return config, original
    for secret in secrets.values():
        original = original.replace(secret, MASK)
    return orjson.dumps(shown(read)).decode(), original


def _secrets(section: object) -> dict[str, str]:
    if not isinstance(section, Mapping):
        return {}
    found = {field: cast("Mapping[str, Any]", section).get(field) for field in _FIELDS}
    return {field: value for field, value in found.items() if isinstance(value, str) and value}
