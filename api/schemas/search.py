"""What a search is asked, and what a custom one answers. Names and fields: spec rest-api.md §6."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from api.schemas.base import Map, Wire, example


class ForkExperimentRequest(Wire, json_schema_extra=example({"at": 12})):
    """Ours. `at`: the last decision that is shared, default the last one. `config`: default the parent's."""

    at: int | None = None
    config: str | None = None
    activate: bool = True


class AmendSearch(Wire, json_schema_extra=example({"maxTrials": 64})):
    """Ours: what of a running search is to change; absent fields stay."""

    max_trials: int | None = None
    max_concurrent_trials: int | None = None
    max_length: int | None = None
    hyperparameters: Map | None = None


class PreviewSearchRequest(
    Wire,
    json_schema_extra=example(
        {"config": {"name": "x", "searcher": {"name": "random", "metric": "loss", "max_trials": 8, "max_length": 10}}}
    ),
):
    """v1PreviewHPSearchRequest."""

    config: Map = Field(default_factory=dict[str, Any])
    seed: int | None = None


class PlannedTrials(Wire):
    """A number of trials and how long they train; `length` None: for the whole length of the search."""

    count: int
    length: int | None = None


class ExperimentPlan(Wire):
    """What an experiment would be, and what its search would do if all goes as planned.

    Attributes:
        config: With every default.
        warnings: As of a creation.
        notices: What is accepted and not acted on.
        unit: Of the lengths.
        trials: Empty where a program decides, and nothing is known beforehand.
    """

    config: dict[str, Any]
    warnings: list[str] = []
    notices: list[str] = []
    unit: str = "units"
    trials: list[PlannedTrials] = []


class SearcherEventRef(Wire):
    """v1SearcherEvent, as far as it is named when it is answered."""

    id: int


class PostSearcherOperations(
    Wire, json_schema_extra=example({"searcherOperations": [{"shutDown": {}}], "triggeredByEvent": {"id": 3}})
):
    """v1PostSearcherOperationsRequest."""

    searcher_operations: list[Map] = Field(default_factory=list[dict[str, Any]])
    triggered_by_event: SearcherEventRef | None = None
