"""Labels of experiments and models. Names and fields: spec rest-api.md §6."""

from __future__ import annotations

from api.schemas.base import Wire


class LabelsResponse(Wire):
    """Labels, as recorded."""

    labels: list[str]
