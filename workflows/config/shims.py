"""Rewrites what older clients send, and every second spelling, into the one form that merging and the models know.

Tolerant: what does not have the expected shape is left alone, because the validator has told or will tell about it.
Source: spec experiment-config.md §16.
"""

import posixpath
from typing import Any, cast

from workflows.config.base import JsonMap, parse_memory_size
from workflows.config.hyperparameters import normalize_hyperparameters

_IGNORED_SECTIONS = ("version", "data_layer", "security", "tensorboard_storage", "internal")
_IGNORED_STORAGE = ("container_path", "checkpoint_path", "tensorboard_path")
DEVICE_KINDS = ("cpu", "cuda", "rocm")
# Maps whose nulls are the user's own values, not absences.
_OPAQUE = ("data", "hyperparameters")


def normalize(config: JsonMap) -> JsonMap:
    """A copy in the one current form: no nulls, no old names, every shorthand spelled out."""
    result: JsonMap = {}
    for key, value in config.items():
        if value is not None and key not in _IGNORED_SECTIONS:
            result[key] = value if key in _OPAQUE else _without_nulls(value, keep=("pod_spec",))
    _rewrite(result, "labels", _labels)
    _rewrite(result, "hyperparameters", _hyperparameters)
    _rewrite(result, "resources", _resources)
    _rewrite(result, "environment", _environment)
    _rewrite(result, "checkpoint_storage", _storage)
    _rewrite(result, "log_policies", _log_policies)
    return result


def _rewrite(config: JsonMap, key: str, change: Any) -> None:
    if key in config:
        config[key] = change(config[key])


def _hyperparameters(value: Any) -> Any:
    return normalize_hyperparameters(cast(JsonMap, value)) if isinstance(value, dict) else value


def _without_nulls(value: Any, keep: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        items = cast(JsonMap, value)
        return {
            key: item if key in keep else _without_nulls(item, keep) for key, item in items.items() if item is not None
        }
    if isinstance(value, list):
        return [_without_nulls(item, keep) for item in cast(list[Any], value)]
    return value


def _labels(value: Any) -> Any:
    if isinstance(value, dict):
        return list(cast(JsonMap, value))
    if not isinstance(value, list):
        return value
    labels = cast(list[Any], value)
    return list(dict.fromkeys(labels)) if all(isinstance(label, str) for label in labels) else labels


def _resources(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    fields = dict(cast(JsonMap, value))
    fields.pop("agent_label", None)
    fields.pop("slots", None)
    if isinstance(fields.get("shm_size"), str):
        size = parse_memory_size(fields["shm_size"])
        fields["shm_size"] = fields["shm_size"] if size is None else size
    if isinstance(fields.get("devices"), list):
        fields["devices"] = [
            (parse_device(item) or item) if isinstance(item, str) else item for item in fields["devices"]
        ]
    return fields


def parse_device(text: str) -> JsonMap | None:
    """``/host:/container[:rwm]`` spelled out, or None when it is not that."""
    parts = text.split(":")
    if len(parts) not in (2, 3) or not all(parts):
        return None
    return {"host_path": parts[0], "container_path": parts[1], "mode": parts[2] if len(parts) == 3 else "mrw"}


def _environment(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    fields = dict(cast(JsonMap, value))
    for key, shorthand in (("image", str), ("environment_variables", list)):
        if isinstance(fields.get(key), shorthand):
            fields[key] = dict.fromkeys(DEVICE_KINDS, fields[key])
        elif isinstance(fields.get(key), dict):
            by_kind = dict(cast(JsonMap, fields[key]))
            gpu = by_kind.pop("gpu", None)
            if gpu is not None:
                by_kind.setdefault("cuda", gpu)
            fields[key] = by_kind
    return fields


def _storage(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    fields = dict(cast(JsonMap, value))
    if fields.get("type") == "shared_fs":
        for key in _IGNORED_STORAGE:
            fields.pop(key, None)
    prefix = fields.get("prefix")
    if isinstance(prefix, str) and prefix and ".." not in prefix.split("/"):
        normal = posixpath.normpath(prefix)
        fields["prefix"] = "" if normal == "." else normal
    return fields


def _log_policies(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    result: list[Any] = []
    for item in cast(list[Any], value):
        if isinstance(item, dict) and isinstance(cast(JsonMap, item).get("action"), dict):
            fields = cast(JsonMap, item)
            result.append({**fields, "action": fields["action"].get("type")})
        else:
            result.append(item)
    return result
