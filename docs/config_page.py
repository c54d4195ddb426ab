"""The reference of the experiment configuration, from its JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from docs.tables import cell
from workflows.config import experiment_config_json_schema
from workflows.config.served import DOCKER, KUBERNETES, PROCESS, UNSERVED

Schema = Mapping[str, Any]
_DEEPEST = 4


def page() -> str:
    """The page as Markdown."""
    schema = experiment_config_json_schema()
    lines = [
        "# Experiment configuration, by field",
        "",
        "Generated from the [JSON Schema](experiment-config.schema.json), which also completes and checks",
        "in an editor. How the fields work together: [Configure](../configuration.md), [Search](../search.md).",
        "`null` counts as absent.",
        "",
        "| field | type | default | |",
        "| --- | --- | --- | --- |",
    ]
    for path, field in _fields(schema, schema, ""):
        lines.append(
            f"| `{path}` | {_type(schema, field)} | {_default(field)} | {cell(field.get('description', ''))} |"
        )
    return "\n".join([*lines, "", *_unserved(), ""])


_WHERE = {PROCESS: "plain processes", DOCKER: "Docker", KUBERNETES: "Kubernetes"}


def _unserved() -> Iterator[str]:
    """What is kept and does nothing, from the table by which it is said at creation."""
    yield "## Not acted upon"
    yield ""
    yield "Valid, kept and shown, but nobody acts upon it yet. `det experiment create` says so of each that is written."
    yield ""
    yield "| field | where trials are | |"
    yield "| --- | --- | --- |"
    for field in UNSERVED:
        where = ", ".join(name for launcher, name in _WHERE.items() if launcher in field.launchers)
        yield f"| `{field.path}` | {where} | {cell(field.instead)} |"


def _fields(root: Schema, schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    for name, field in schema.get("properties", {}).items():
        inner = f"{path}.{name}" if path else name
        yield inner, field
        if inner.count(".") < _DEEPEST - 1:
            for part in _parts(root, field):
                yield from _fields(root, part, inner)


def _parts(root: Schema, field: Schema) -> Iterator[Schema]:
    """The objects that a field may be, or a list of."""
    field = _resolved(root, field)
    if "properties" in field:
        yield field
        return
    if isinstance(field.get("items"), dict):
        yield from _parts(root, field["items"])
    objects = [part for part in field.get("anyOf", ()) if "properties" in _resolved(root, part)]
    if len(objects) == 1:  # of several, each has fields of its own: the guides tell of them
        yield _resolved(root, objects[0])


def _resolved(root: Schema, field: Schema) -> Schema:
    reference = field.get("$ref")
    return root["$defs"][reference.rpartition("/")[2]] if reference else field


def _type(root: Schema, field: Schema) -> str:
    field = _resolved(root, field)
    if "enum" in field:
        return " \\| ".join(f"`{value}`" for value in field["enum"] if value is not None)
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(filter(None, (_type(root, part) for part in field["anyOf"]))))
    kinds = field.get("type", "any")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    shown = " or ".join(kind for kind in kinds if kind != "null")
    if shown == "array" and "items" in field:
        return f"list of {_type(root, field['items'])}"
    return {"object": "map", "array": "list"}.get(shown, shown)


def _default(field: Schema) -> str:
    if field.get("default") in (None, "", {}, []):
        return ""
    text = json.dumps(field["default"])
    return f"`{text}`".replace("|", "\\|") if len(text) <= 40 else "see its fields"
