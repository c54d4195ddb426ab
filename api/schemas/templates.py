"""Templates of configurations on the wire. Names and fields: spec rest-api.md §6."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from api.schemas.base import Map, Wire


class Template(Wire):
    """v1Template."""

    name: str
    config: dict[str, Any]
    workspace_id: int


class PostTemplate(Wire):
    """v1Template, as it is sent. The path names it as well."""

    name: str = ""
    config: Map = Field(default_factory=dict[str, Any])
    workspace_id: int | None = None


class RenameTemplate(Wire):
    """v1PatchTemplateNameRequest."""

    old_name: str
    new_name: str
