"""What a search is asked, and what a custom one answers. Names and fields: spec rest-api.md §6."""

from __future__ import annotations

from typing import Any, Literal

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


class SteerSearch(Wire, json_schema_extra=example({"action": "promote", "trialId": 12})):
    """Ours: what is to be done to one trial of a running search.

    `action`: add, with `hparams`; stop, promote or boost, with `trialId`.
    """

    action: Literal["add", "stop", "promote", "boost"]
    trial_id: int | None = None
    hparams: Map | None = None


class Steered(Wire):
    """The trial that was steered, or added."""

    trial_id: int


class RungForecast(Wire):
    """A rung in the end: how many trials are compared there, and how many of them go on."""

    bracket: int
    rung: int
    length: int
    compared: int
    promoted: int


class SearchForecast(Wire):
    """What a search would still do.

    Attributes:
        trials: In the end, those that there are included.
        new_trials: Those of them that are still to be created.
        promotions: Comparisons from which a trial will go on.
        units: What all of them will still train; None if their code alone decides.
        at_once: The most trials that train at the same time.
        slot_hours: What that costs, at the speed so far; None if nothing was trained yet, or no slots are used.
        hours: How long it takes at that speed, if every trial gets its slots at once.
        rungs: In the end.
        is_whole: Whether the simulation came to the end.
    """

    trials: int
    new_trials: int
    promotions: int
    units: float | None = None
    at_once: int
    slot_hours: float | None = None
    hours: float | None = None
    rungs: list[RungForecast]
    is_whole: bool


class AmendPreview(Wire):
    """What a search would do from now on with a change, compared to without."""

    unit: str
    without: SearchForecast
    changed: SearchForecast


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
