"""YAML and JSON files that commands send."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast


def read_text(path: Path) -> str:
    """The file's text. Raises: ValueError."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{str(path)!r} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{str(path)!r} can't be read: expected UTF-8 text") from None


def read_mapping(path: Path) -> dict[str, Any]:
    """The file's content, names with values. Raises: ValueError."""
    return mapping_of(read_text(path), str(path))


def mapping_of(text: str, where: str) -> dict[str, Any]:
    """What a YAML or JSON text says, names with values. Raises: ValueError."""
    import yaml

    try:
        content: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise ValueError(f"{where} is no YAML: {problem}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{where}: expected names with values, such as `max_restarts: 3`")
    return cast("dict[str, Any]", content)
