"""Config policies on the wire. Names and fields: spec rest-api.md §6."""

from __future__ import annotations

from typing import Any

import orjson

from api.schemas.base import Map, Wire, example

_EXAMPLE = "invariant_config: {resources: {resource_pool: shared}}\nconstraints: {resources: {max_slots: 8}}\n"


class PutConfigPolicies(Wire, json_schema_extra=example({"configPolicies": _EXAMPLE})):
    """v1PutGlobalConfigPoliciesRequest and v1PutWorkspaceConfigPoliciesRequest: YAML, JSON, or an object.

    The path says the workspace and the workload.
    """

    config_policies: str | Map

    def text(self) -> str:
        """As text."""
        given = self.config_policies
        return given if isinstance(given, str) else orjson.dumps(given).decode()


class ConfigPoliciesResponse(Wire):
    """A policy as it was written; empty if there is none."""

    config_policies: dict[str, Any]
