"""Runs, which is what newer clients call trials. Names and fields: spec rest-api.md §6."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from api.schemas.base import I64, Pagination, Real, Timestamp, Wire, example
from api.schemas.experiments import Experiment
from api.schemas.trials import Trial


class Metadata(Wire, json_schema_extra=example({"metadata": {"dataset": "v2"}})):
    """What is noted."""

    metadata: dict[str, Any]


class MetadataResponse(Wire):
    """Metadata, as recorded."""

    metadata: dict[str, Any]


class SearchRuns(
    Wire, json_schema_extra=example({"projectId": 1, "sort": "searcherMetricsVal=asc,id=desc", "limit": 50})
):
    """v1SearchRunsRequest, and v1SearchExperimentsRequest. `filter`: JSON, see `api.queries.filters`."""

    project_id: int = 0
    filter: str = ""
    sort: str = ""
    offset: int = 0
    limit: int = 0


class FlatRunExperiment(Wire):
    """v1FlatRunExperiment."""

    id: int
    name: str
    description: str
    progress: Real
    searcher_type: str
    searcher_metric: str
    resource_pool: str
    forked_from: int | None = None
    unmanaged: bool
    external_experiment_id: str | None = None
    is_multitrial: bool


class FlatRun(Wire):
    """v1FlatRun."""

    id: int
    start_time: Timestamp
    end_time: Timestamp | None = None
    duration: int
    state: str
    labels: list[str]
    hyperparameters: dict[str, Any]
    summary_metrics: dict[str, Any] | None = None
    searcher_metric_value: Real | None = None
    checkpoint_size: I64
    checkpoint_count: int
    external_run_id: str | None = None
    log_policy_matched: str | None = None
    metadata: dict[str, Any] | None = None
    user_id: int
    project_id: int
    project_name: str
    workspace_id: int
    workspace_name: str
    parent_archived: bool
    archived: bool
    experiment: FlatRunExperiment


class RunsResponse(Wire):
    """v1SearchRunsResponse."""

    runs: list[FlatRun]
    pagination: Pagination


class FoundExperiment(Wire):
    """v1SearchExperimentExperiment."""

    experiment: Experiment
    best_trial: Trial | None = None


class FoundExperimentsResponse(Wire):
    """v1SearchExperimentsResponse."""

    experiments: list[FoundExperiment]
    pagination: Pagination


#: Of a grid's rows so many are counted behind the page: the count of all is most of the work where there are millions.
MOST_COUNTED = 1000


class GridRequest(SearchRuns):
    """Ours: a page of a grid. `columns`: of runs, or of the best trials, named as filters name them, `hp.lr`."""

    columns: list[Annotated[str, Field(max_length=1000)]] = Field(default_factory=list[str], max_length=30)


class GridRow(Wire):
    """An experiment in a grid, without what no list shows. `values`: of the columns that were asked for."""

    id: int
    name: str
    labels: list[str]
    state: str
    archived: bool
    unmanaged: bool
    progress: Real | None = None
    start_time: Timestamp
    end_time: Timestamp | None = None
    num_trials: int
    best_trial_id: int | None = None
    best_trial_searcher_metric: Real | None = None
    searcher_type: str
    searcher_metric: str
    resource_pool: str
    user_id: int
    username: str
    display_name: str
    project_id: int
    workspace_id: int
    values: list[Any]


class GridResponse(Wire):
    """A page of a grid. `total` counts at most 1,000 rows behind the page."""

    experiments: list[GridRow]
    pagination: Pagination


class RunGridRow(Wire):
    """A run in a grid, without what no list shows. `values`: of the columns that were asked for."""

    id: int
    experiment_id: int
    experiment_name: str
    labels: list[str]
    state: str
    archived: bool
    start_time: Timestamp
    end_time: Timestamp | None = None
    searcher_type: str
    searcher_metric: str
    searcher_metric_value: Real | None = None
    total_batches: int
    restarts: int
    checkpoint_count: int
    resource_pool: str
    user_id: int
    username: str
    display_name: str
    workspace_id: int
    values: list[Any]


class RunGridResponse(Wire):
    """A page of a grid of runs. `total` counts at most 1,000 rows behind the page."""

    runs: list[RunGridRow]
    pagination: Pagination


class RunsOrFilter(Wire, json_schema_extra=example({"runIds": [7, 8], "projectId": 1})):
    """v1KillRunsRequest and its siblings: those named; with `filter`, those of them (or of all) that match."""

    run_ids: list[int] = Field(default_factory=list[int])
    filter: str = ""
    project_id: int = 0


class MoveRuns(
    RunsOrFilter, json_schema_extra=example({"runIds": [7], "sourceProjectId": 1, "destinationProjectId": 2})
):
    """v1MoveRunsRequest. `skipMultitrial`: leave out the runs of searches."""

    source_project_id: int = 0
    destination_project_id: int
    skip_multitrial: bool = False
