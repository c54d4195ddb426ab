"""Nested documents as one level."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast


def flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested values by their paths: `model.depth`. An empty map is a value, and so is a list."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= flat(cast("Mapping[str, Any]", value), f"{before}{name}.")
        else:
            found[f"{before}{name}"] = value
    return found
