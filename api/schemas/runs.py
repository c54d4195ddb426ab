"""Runs, which is what newer clients call trials. Names and fields: spec rest-api.md §6."""

from __future__ import annotations

from typing import Any

from api.schemas.base import Wire, example


class Metadata(Wire, json_schema_extra=example({"metadata": {"dataset": "v2"}})):
    """What is noted."""

    metadata: dict[str, Any]


class MetadataResponse(Wire):
    """Metadata, as recorded."""

    metadata: dict[str, Any]
