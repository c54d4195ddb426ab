"""Commands on several experiments. Names and fields: spec rest-api.md §6."""

from __future__ import annotations

from pydantic import Field, StrictInt

from api.schemas.base import Wire, example


class BulkFilters(Wire):
    """v1BulkExperimentFilters."""

    name: str = ""
    description: str = ""
    archived: bool | None = None
    labels: list[str] = Field(default_factory=list[str])
    states: list[str] = Field(default_factory=list[str])
    user_ids: list[int] = Field(default_factory=list[int])
    project_id: int = 0
    excluded_experiment_ids: list[int] = Field(default_factory=list[int])


class BulkExperiments(Wire, json_schema_extra=example({"experimentIds": [7, 8]})):
    """v1ActivateExperimentsRequest and its siblings."""

    experiment_ids: list[int] = Field(default_factory=list[int])
    filters: BulkFilters | None = None


class BulkMove(BulkExperiments, json_schema_extra=example({"experimentIds": [7, 8], "destinationProjectId": 2})):
    """v1MoveExperimentsRequest."""

    destination_project_id: int


class BulkRetention(BulkExperiments, json_schema_extra=example({"experimentIds": [7, 8], "numDays": 90})):
    """v1PutExperimentsRetainLogsRequest."""

    num_days: StrictInt
