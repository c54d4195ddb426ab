"""Templates of configurations on the wire. Names and fields: spec rest-api.md §6."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from api.schemas.base import Map, Pagination, Wire, example


class Template(Wire):
    """v1Template. `user_id` is ours: who made it may change it."""

    name: str
    config: dict[str, Any]
    workspace_id: int
    user_id: int


class PostTemplate(Wire, json_schema_extra=example({"name": "large", "config": {"resources": {"slots_per_trial": 4}}})):
    """v1Template, as it is sent. The path names it as well."""

    name: str = ""
    config: Map = Field(default_factory=dict[str, Any])
    workspace_id: int | None = None


class RenameTemplate(Wire, json_schema_extra=example({"oldName": "large", "newName": "huge"})):
    """v1PatchTemplateNameRequest."""

    old_name: str
    new_name: str


class TemplatesResponse(Wire):
    """A page of templates."""

    templates: list[Template]
    pagination: Pagination


class TemplateResponse(Wire):
    """Template, as recorded."""

    template: Template
