"""The JSON Schema of what a user may write, derived from the models.

The models describe the finished config. What may be written is wider: every optional key may be null, required ones
may still come from a template or the cluster, and older spellings are accepted. The validator in check.py reads the
same schema, so what an editor accepts and what the server accepts cannot drift apart. Keys that start with ``x-`` are
for that validator; editors ignore them.
"""

from copy import deepcopy
from functools import lru_cache
from typing import Any, cast

from workflows.config.base import JsonMap
from workflows.config.experiment import ExperimentConfig
from workflows.config.hyperparameters import HP_TYPE_MESSAGE, LEAF_TYPES
from workflows.config.resources import Device
from workflows.config.searcher import REMOVED_SEARCHERS, SEARCHER_UNION_MESSAGE
from workflows.config.storage import STORAGE_UNION_MESSAGE

_ANY_MAP: JsonMap = {"type": "object"}
# Keys that are accepted and dropped, by the model they appear in. Source: spec experiment-config.md §16.
_WRITE_ONLY: dict[str, JsonMap] = {
    "ExperimentConfig": {
        "version": {"type": "integer", "description": "Version of this format: 0."},
        "data_layer": {**_ANY_MAP, "description": "Ignored; older configs carry it."},
        "security": {**_ANY_MAP, "description": "Ignored; older configs carry it."},
        "tensorboard_storage": {
            **_ANY_MAP,
            "properties": {
                key: {"type": "null"} for key in ("save_experiment_best", "save_trial_best", "save_trial_latest")
            },
            "description": "Ignored; older configs carry it.",
        },
        "internal": {"type": "null", "description": "Ignored; only null is allowed."},
    },
    "Resources": {
        "agent_label": {"type": "string", "description": "Ignored; older configs carry it."},
        "slots": {"type": "integer", "minimum": 0, "description": "Ignored; it is for notebooks and commands."},
    },
    "SharedFSStorage": {
        key: {"type": "string", "description": "Ignored; older configs carry it."}
        for key in ("container_path", "checkpoint_path", "tensorboard_path")
    },
}
_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
_UNION_MESSAGES = {"name": SEARCHER_UNION_MESSAGE, "type": STORAGE_UNION_MESSAGE}


def experiment_config_json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of an experiment config as a user may write it, for editors.

    Put ``# yaml-language-server: $schema=<address>`` in a config's first line to have it checked while typing.
    """
    return cast(JsonMap, _without_private_keys(deepcopy(write_schema())))


@lru_cache(maxsize=1)
def write_schema() -> JsonMap:
    """The same with the ``x-`` keys that check.py reads; treat it as immutable."""
    root = cast(JsonMap, _resolved(ExperimentConfig.model_json_schema()))
    defs = cast(dict[str, JsonMap], root.pop("$defs"))
    # These are named by placeholders only, so pydantic does not list them by itself.
    defs.update({cls.__name__: cls.model_json_schema() for cls in (*LEAF_TYPES.values(), Device)})
    for name, model in [*defs.items(), ("ExperimentConfig", root)]:
        model.get("properties", {}).update(deepcopy(_WRITE_ONLY.get(name, {})))
        _widen_model(model, defs)
    defs["Hyperparameter"] = _hyperparameter_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Experiment configuration",
        **{key: value for key, value in root.items() if key != "title"},
        "$defs": defs,
    }


def _resolved(node: Any) -> Any:
    """Replace ``x-ref``: pydantic refuses a ``$ref`` to something it did not define itself."""
    if isinstance(node, dict):
        items = cast(JsonMap, node)
        if "x-ref" in items:
            return {"$ref": f"#/$defs/{items['x-ref']}"}
        return {key: _resolved(value) for key, value in items.items()}
    if isinstance(node, list):
        return [_resolved(item) for item in cast(list[Any], node)]
    return node


def _widen_model(model: JsonMap, defs: dict[str, JsonMap]) -> None:
    """Turn the schema of a finished section into that of a written one, in place."""
    model.pop("title", None)
    required = cast(list[str], model.pop("required", []))
    if model.pop("x-complete-only", False):
        # `name` and `reproducibility` get defaults on the way, so nobody has to give them.
        model["x-complete"] = [key for key in required if key not in ("name", "type", "reproducibility")]
        required = []
    if required:
        model["required"] = required
    properties = cast(dict[str, JsonMap], model.get("properties", {}))
    for name, prop in properties.items():
        widened = _widen_property(prop, defs)
        properties[name] = widened if name in required else _nullable(widened)


def _widen_property(prop: JsonMap, defs: dict[str, JsonMap]) -> JsonMap:
    prop.pop("title", None)
    if prop.get("default", 0) is None:
        prop.pop("default")  # null says no more than the key's absence
    branches = cast(list[JsonMap] | None, prop.get("anyOf"))
    if branches is not None:
        kept = [branch for branch in branches if branch != {"type": "null"}]
        if len(kept) == 1:
            del prop["anyOf"]
            prop = {**kept[0], **prop}
        elif kept == [{"type": "integer"}, {"type": "number"}]:
            # base.Number; pydantic leaves a union's bounds under its own names.
            del prop["anyOf"]
            bounds = {_BOUNDS[key]: prop.pop(key) for key in _BOUNDS if key in prop}
            prop = {"type": "number", **bounds, **prop}
    for branch in cast(list[JsonMap], prop.get("anyOf", [])):
        if "properties" in branch:
            inner = cast(dict[str, JsonMap], branch["properties"])
            branch["properties"] = {key: _inline(value) for key, value in inner.items()}
    discriminator = cast(JsonMap | None, prop.pop("discriminator", None))
    if discriminator is not None:
        prop.pop("oneOf", None)
        prop.update(_union_schema(discriminator, defs))
    return prop


def _inline(prop: JsonMap) -> JsonMap:
    prop = dict(prop)
    return _nullable(prop) if prop.pop("x-nullable", False) else prop


def _union_schema(discriminator: JsonMap, defs: dict[str, JsonMap]) -> JsonMap:
    """A union by name or type, such that an absent tag is fine: it may come from a template or the cluster."""
    key = cast(str, discriminator["propertyName"])
    mapping = cast(dict[str, str], discriminator["mapping"])
    members = {tag: defs[ref.rsplit("/", 1)[1]] for tag, ref in mapping.items()}
    known = list(dict.fromkeys(name for model in members.values() for name in model["properties"]))
    removed = REMOVED_SEARCHERS if key == "name" else ()
    schema: JsonMap = {
        "type": "object",
        "properties": {key: {"enum": [None, *mapping]}},
        "allOf": [
            # `required` alone would hold for null as well.
            {"if": {"type": "object", "properties": {key: {"const": tag}}, "required": [key]}, "then": {"$ref": ref}}
            for tag, ref in mapping.items()
        ],
        "x-union": {"key": key, "mapping": mapping, "message": _UNION_MESSAGES[key], "removed": list(removed)},
    }
    # Without the tag, every member's keys may appear. A member that takes any key must be able to.
    schema["allOf"].append(
        {
            "if": {"not": {"properties": {key: {"type": "string"}}, "required": [key]}},
            "then": {"propertyNames": {"enum": known}},
        },
    )
    return schema


def _hyperparameter_schema() -> JsonMap:
    leaf: JsonMap = {
        "required": ["type"],
        "properties": {"type": {"enum": list(LEAF_TYPES)}},
        "allOf": [
            {
                "if": {"properties": {"type": {"const": tag}}, "required": ["type"]},
                "then": {"$ref": f"#/$defs/{cls.__name__}"},
            }
            for tag, cls in LEAF_TYPES.items()
        ],
    }
    return {
        "description": "A constant, a range, a choice (a map with a type), or a map of further hyperparameters.",
        "if": {"type": "object", "required": ["type"]},
        "then": leaf,
        "else": {
            "if": {"type": "object"},
            "then": {"additionalProperties": {"$ref": "#/$defs/Hyperparameter"}},
        },
        "x-hyperparameter": {
            "mapping": {tag: f"#/$defs/{cls.__name__}" for tag, cls in LEAF_TYPES.items()},
            "message": HP_TYPE_MESSAGE,
        },
    }


def _nullable(prop: JsonMap) -> JsonMap:
    """Let a property be null as well; null means absent everywhere."""
    if "const" in prop or prop == {}:
        return prop
    if "$ref" in prop:
        ref = prop.pop("$ref")
        return {**prop, "anyOf": [{"$ref": ref}, {"type": "null"}]}
    if "anyOf" in prop:
        if {"type": "null"} not in prop["anyOf"]:
            prop["anyOf"] = [*prop["anyOf"], {"type": "null"}]
        return prop
    if "enum" in prop:
        prop.pop("type", None)
        if None not in prop["enum"]:
            prop["enum"] = [None, *prop["enum"]]
        return prop
    kind = prop.get("type")
    if isinstance(kind, str) and kind != "null":
        prop["type"] = [kind, "null"]
    return prop


def _without_private_keys(node: Any) -> Any:
    if isinstance(node, dict):
        items = cast(JsonMap, node)
        return {key: _without_private_keys(value) for key, value in items.items() if not key.startswith("x-")}
    if isinstance(node, list):
        return [_without_private_keys(item) for item in cast(list[Any], node)]
    return node
