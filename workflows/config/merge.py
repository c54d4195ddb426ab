"""Merges two configs: the submitted one over a template, over the pool's and the cluster's defaults.

Source: spec experiment-config.md §6.
"""

from collections.abc import Callable
from typing import Any, cast

from workflows.config.base import JsonMap
from workflows.config.shims import DEVICE_KINDS, normalize

_COMMON_FIELDS = {
    "searcher": ("name", ("metric", "smaller_is_better", "source_trial_id", "source_checkpoint_uuid")),
    "checkpoint_storage": ("type", ("save_experiment_best", "save_trial_best", "save_trial_latest")),
}
_AZURE_CREDENTIALS = ("connection_string", "account_url", "credential")
# Keys by which Kubernetes merges a list of objects; other lists are replaced.
_POD_LIST_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}


def merge_configs(higher: JsonMap, lower: JsonMap) -> JsonMap:
    """Fill `higher` up from `lower`; where both speak, `higher` wins, except for the lists that are joined.

    Both are brought into the current form first (:func:`workflows.config.shims.normalize`), null counts as absent, and
    neither is changed. Merging is for configs that passed validation; sections of a wrong type are taken as they are.
    """
    return _merge_sections(normalize(higher), normalize(lower))


def _merge_sections(higher: JsonMap, lower: JsonMap) -> JsonMap:
    result = dict(lower)
    for key, value in higher.items():
        result[key] = _merge_value((key,), value, lower[key]) if key in lower else value
    # The higher config's order of keys comes first: it is what the user reads again.
    return {key: result[key] for key in (*higher, *(k for k in lower if k not in higher))}


def _merge_value(path: tuple[str, ...], higher: Any, lower: Any) -> Any:
    rule = _RULES.get(path)
    if rule is not None:
        return rule(higher, lower) if isinstance(higher, type(lower)) else higher
    if isinstance(higher, dict) and isinstance(lower, dict):
        return _merge_maps(path, cast(JsonMap, higher), cast(JsonMap, lower))
    return cast(Any, higher)


def _merge_maps(path: tuple[str, ...], higher: JsonMap, lower: JsonMap) -> JsonMap:
    result = dict(higher)
    for key, value in lower.items():
        result[key] = _merge_value((*path, key), higher[key], value) if key in higher else value
    return result


def _tagged(section: str) -> Callable[[Any, Any], Any]:
    """A union: fields of one type never mix with those of another."""
    tag, common = _COMMON_FIELDS[section]

    def merge(higher: JsonMap, lower: JsonMap) -> JsonMap:
        ours, theirs = higher.get(tag), lower.get(tag)
        if ours is not None and theirs is not None and ours != theirs:
            lower = {key: value for key, value in lower.items() if key in common}
        if section == "checkpoint_storage" and any(key in higher for key in _AZURE_CREDENTIALS):
            lower = {key: value for key, value in lower.items() if key not in _AZURE_CREDENTIALS}
        # A length in epochs is not a length in batches that lacks epochs: lengths are atomic, so no recursion.
        return {**lower, **higher}

    return merge


def _appended(key: str) -> Callable[[Any, Any], Any]:
    """Higher entries, then the lower ones whose key does not occur above."""

    def merge(higher: list[Any], lower: list[Any]) -> list[Any]:
        taken = [_entry_key(item, key) for item in higher]
        return higher + [item for item in lower if _entry_key(item, key) not in taken]

    return merge


def _entry_key(item: Any, key: str) -> Any:
    return cast(JsonMap, item).get(key) if isinstance(item, dict) else item


def _lower_first(higher: list[Any], lower: list[Any]) -> list[Any]:
    return lower + higher


def merge_environment_variables(higher: JsonMap, lower: JsonMap) -> JsonMap:
    """Per kind of device the lower list, then the higher: the later entry of a name wins when the task starts."""
    kinds = (*DEVICE_KINDS, *(k for k in (*higher, *lower) if k not in DEVICE_KINDS))
    return {
        kind: [*_list(lower.get(kind)), *_list(higher.get(kind))]
        for kind in dict.fromkeys(kinds)
        if kind in higher or kind in lower
    }


def _list(value: Any) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else ([] if value is None else [value])


def merge_log_policies(higher: list[Any], lower: list[Any]) -> list[Any]:
    """Union by name; those without a name are the same if action and pattern are."""
    taken = [_policy_key(item) for item in higher]
    return higher + [item for item in lower if _policy_key(item) not in taken]


def _policy_key(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    fields = cast(JsonMap, item)
    name = fields.get("name")
    return ("name", name) if name is not None else ("rule", fields.get("action"), fields.get("pattern"))


def _merge_hyperparameters(higher: JsonMap, lower: JsonMap) -> JsonMap:
    """Only nested maps merge; a range, a choice or a constant replaces whatever was there."""
    result = dict(higher)
    for key, value in lower.items():
        if key not in higher:
            result[key] = value
        elif _is_nested(higher[key]) and _is_nested(value):
            result[key] = _merge_hyperparameters(higher[key], value)
    return result


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict) and "type" not in value


def _merge_pod(higher: Any, lower: Any, list_key: str | None = None) -> Any:
    """Kubernetes' strategic merge, reduced to pods."""
    if isinstance(higher, dict) and isinstance(lower, dict):
        ours, theirs = cast(JsonMap, higher), cast(JsonMap, lower)
        result = dict(ours)
        for key, value in theirs.items():
            result[key] = _merge_pod(ours[key], value, _POD_LIST_KEYS.get(key)) if key in ours else value
        return result
    if isinstance(higher, list) and isinstance(lower, list) and list_key is not None:
        ours_list, theirs_list = cast(list[Any], higher), cast(list[Any], lower)
        below: JsonMap = {_entry_key(item, list_key): item for item in theirs_list}
        merged = [_merge_pod(item, below.get(_entry_key(item, list_key), item)) for item in ours_list]
        taken = [_entry_key(item, list_key) for item in ours_list]
        return merged + [item for item in theirs_list if _entry_key(item, list_key) not in taken]
    return cast(Any, higher)


def _higher_wins(higher: Any, lower: Any) -> Any:
    return higher


_RULES: dict[tuple[str, ...], Callable[[Any, Any], Any]] = {
    ("searcher",): _tagged("searcher"),
    ("checkpoint_storage",): _tagged("checkpoint_storage"),
    ("hyperparameters",): _merge_hyperparameters,
    ("bind_mounts",): _appended("container_path"),
    ("resources", "devices"): _appended("container_path"),
    ("environment", "proxy_ports"): _appended("proxy_port"),
    ("environment", "environment_variables"): merge_environment_variables,
    ("environment", "pod_spec"): _merge_pod,
    ("log_policies",): merge_log_policies,
    ("slurm", "sbatch_args"): _lower_first,
    ("pbs", "pbsbatch_args"): _lower_first,
    ("min_validation_period",): _higher_wins,
    ("min_checkpoint_period",): _higher_wins,
}
