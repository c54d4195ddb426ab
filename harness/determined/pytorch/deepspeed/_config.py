"""DeepSpeed's configuration, and what a trial changes of it."""

from __future__ import annotations

import copy
import json
from typing import Any

from determined import errors
from determined.util import merge_dicts


def overwrite_deepspeed_config(base_ds_config: str | dict[str, Any], source_ds_dict: dict[str, Any]) -> dict[str, Any]:
    """A configuration of DeepSpeed, in which some values are others; sections are merged.

    Args:
        base_ds_config: The configuration, or the path of its JSON file.
        source_ds_dict: What counts in place of it, for example the hyperparameter `overwrite_deepspeed_args`.

    Returns:
        A new dictionary, for `deepspeed.initialize(config=…)`.

    Raises:
        InvalidExperimentException: The file can't be read, or one of the two is no dictionary.
    """
    base = _from_file(base_ds_config) if isinstance(base_ds_config, str) else base_ds_config
    for name, value in (("base_ds_config", base), ("source_ds_dict", source_ds_dict)):
        if not isinstance(value, dict):
            raise errors.InvalidExperimentException(
                f"overwrite_deepspeed_config: {name} is {value!r}, but must be a dictionary"
                + (" or the path of a JSON file" if name == "base_ds_config" else "")
            )
    return merge_dicts(copy.deepcopy(base), source_ds_dict)


def _from_file(path: str) -> Any:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        raise errors.InvalidExperimentException(f"DeepSpeed's configuration {path!r} can't be read: {error}") from None
