"""Experiments on the wire. Names and fields: spec rest-api.md §6."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from api.schemas.base import I64, Pagination, Raw, Real, Timestamp, Wire, example
from api.schemas.contexts import CONTEXT, File
from api.schemas.jobs import PatchResources
from api.schemas.submissions import Submit, Submitted


class CreateExperimentRequest(
    Wire,
    json_schema_extra=example(
        {
            "config": "name: mnist\nentrypoint: python3 train.py\nsearcher: {name: single, metric: loss}\n",
            "modelDefinition": [{"path": "train.py", "type": 48, "content": "cHJpbnQoMSkK", "mode": 33188}],
            "activate": True,
        }
    ),
):
    """v1CreateExperimentRequest."""

    config: str = ""
    model_definition: list[File] | None = Field(default=None, max_length=100_000)
    activate: bool = False
    validate_only: bool | None = False
    parent_id: int | None = None
    project_id: int | None = None
    template: str | None = None
    unmanaged: bool | None = None
    submit: Submit | None = None
    context: str | None = Field(default=None, max_length=64, description=CONTEXT)


class OneOfMany(Wire):
    """An experiment of a list that is created together; its fields are those of `CreateExperimentRequest`."""

    config: str
    activate: bool = False
    project_id: int | None = None
    template: str | None = None


class CreateExperimentsRequest(
    Wire,
    json_schema_extra=example(
        {
            "experiments": [
                {"config": f"name: seed {n}\nentrypoint: python3 train.py\nsearcher: {{name: single, metric: loss}}\n"}
                for n in (1, 2)
            ]
        }
    ),
):
    """Experiments that are created together, all or none, with the same files."""

    experiments: list[OneOfMany] = Field(min_length=1, max_length=100)
    model_definition: list[File] | None = Field(default=None, max_length=100_000)
    context: str | None = Field(default=None, max_length=64, description=CONTEXT)


class ContinueExperimentRequest(Wire, json_schema_extra=example({"id": 7})):
    """v1ContinueExperimentRequest."""

    id: int
    override_config: str = ""


class PatchCheckpointStorage(Wire):
    """How many checkpoints are kept; absent fields stay."""

    save_experiment_best: int | None = None
    save_trial_best: int | None = None
    save_trial_latest: int | None = None


class PatchExperiment(Wire, json_schema_extra=example({"description": "a better one", "labels": ["mnist"]})):
    """v1PatchExperiment: absent fields stay."""

    name: str | None = None
    description: str | None = None
    notes: str | None = None
    labels: list[str] | None = None
    checkpoint_storage: PatchCheckpointStorage | None = None
    resources: PatchResources | None = None


#: Trials that an answer with one experiment names, and one with many.
MOST_TRIAL_IDS, MOST_TRIAL_IDS_OF_MANY = 1000, 100
TRIAL_IDS = (
    f"the first {MOST_TRIAL_IDS:,} trials, in a list of experiments the first {MOST_TRIAL_IDS_OF_MANY}:"
    " `numTrials` says how many there are, and a list of trials has them all"
)
#: Ids, or the text that the database has them as.
TrialIds = Annotated[Any, WithJsonSchema({"type": "array", "items": {"type": "integer"}})]


class Experiment(Wire):
    """v1Experiment."""

    id: int
    name: str
    description: str = ""
    notes: str = ""
    labels: list[str] = Field(default_factory=list[str])
    state: str
    archived: bool = False
    config: Raw
    original_config: str
    hyperparameters: Raw = Field(default_factory=dict[str, Any])
    job_id: str = ""
    start_time: Timestamp
    end_time: Timestamp | None = None
    duration: int = 0
    num_trials: int = 0
    trial_ids: TrialIds = Field(default_factory=list[int], description=TRIAL_IDS)
    progress: Real | None = None
    project_id: int = 1
    project_name: str = "Uncategorized"
    project_owner_id: int = 1
    workspace_id: int = 1
    workspace_name: str = "Uncategorized"
    parent_archived: bool = False
    forked_from: int | None = None
    resource_pool: str = ""
    searcher_type: str = ""
    searcher_metric: str = ""
    best_trial_id: int | None = None
    best_trial_searcher_metric: Real | None = None
    checkpoint_count: int = 0
    checkpoint_size: I64 = 0
    model_definition_size: int = 0
    user_id: int = 0
    username: str = ""
    display_name: str = ""
    unmanaged: bool = False
    external_experiment_id: str | None = None
    external_trial_id: None = None
    pachyderm_integration: None = None
    error: str = ""  # ours: why the search could not go on


class JobSummary(Wire):
    """v1JobSummary."""

    state: str
    jobs_ahead: int = 0


class ExperimentsResponse(Wire):
    """A page of experiments."""

    experiments: list[Experiment]
    pagination: Pagination


class NewExperimentResponse(Wire):
    """A new experiment, and what its user should know about it."""

    experiment: Experiment
    config: dict[str, Any]
    warnings: list[str]
    notices: list[str]
    submission: Submitted | None = None


class CreatedOfMany(Wire):
    """One of the experiments that were created together, and what its user should know about it."""

    id: int
    name: str
    warnings: list[str]
    notices: list[str]


class NewExperimentsResponse(Wire):
    """The new experiments, in the order in which they were asked for."""

    experiments: list[CreatedOfMany]


class ExperimentResponse(Wire):
    """An experiment and its configuration."""

    experiment: Experiment
    config: dict[str, Any]


class ExperimentWithJobResponse(Wire):
    """An experiment, its configuration, and its place in the queue."""

    experiment: Experiment
    config: dict[str, Any]
    job_summary: JobSummary | None


class OneExperimentResponse(Wire):
    """One experiment, as recorded."""

    experiment: Experiment
