"""An experiment's configuration, as it is handed to us."""

from __future__ import annotations

import os
import pathlib

from determined import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def config_text(config: str | os.PathLike[str] | dict[str, Any]) -> str:
    """The YAML of a configuration: of a file, or of a dictionary.

    Raises:
        InvalidExperimentException: It can't be read, or YAML can't say it.
    """
    if isinstance(config, dict):
        import yaml

        try:
            return yaml.safe_dump(config)
        except yaml.YAMLError as e:
            raise errors.InvalidExperimentException(f"config has a value that YAML can't say: {e}") from e
    path = pathlib.Path(config)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is not UTF-8 text"
        raise errors.InvalidExperimentException(
            f"can't read the experiment's configuration {str(path)!r}: {reason}; "
            "give the path of a YAML file, or a dictionary"
        ) from e
