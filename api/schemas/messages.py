"""The messages that this release serves. Names and fields: spec rest-api.md §6."""

from __future__ import annotations

import math
from typing import Annotated, Any, cast

from fastapi import Body
from pydantic import BeforeValidator, Field, StrictInt

from api.schemas.base import EXAMPLE_UUID, I64, Instant, Map, Pagination, Raw, Real, Timestamp, Wire, example
from api.schemas.jobs import PatchResources

# -- users ---------------------------------------------------------------------------------------------------------


class AgentUserGroup(Wire):
    """v1AgentUserGroup: whom containers run as on their host."""

    agent_uid: int | None = None
    agent_user: str | None = None
    agent_gid: int | None = None
    agent_group: str | None = None


class User(Wire):
    """v1User."""

    id: int
    username: str
    admin: bool
    active: bool
    display_name: str | None = None
    modified_at: Timestamp | None = None
    last_auth_at: Timestamp | None = None
    remote: bool = False
    agent_user_group: AgentUserGroup | None = None


class LoginRequest(Wire, json_schema_extra=example({"username": "ada", "password": "correct horse"})):
    """v1LoginRequest. The password is hashed by the client unless `is_hashed` is absent or false."""

    username: str
    password: str = ""
    is_hashed: bool = False


class NewUser(Wire):
    """v1User, as far as it is chosen by who creates it."""

    username: str = ""
    display_name: str | None = None
    admin: bool = False
    active: bool = True
    remote: bool = False
    agent_user_group: AgentUserGroup | None = None


class PostUserRequest(Wire, json_schema_extra=example({"user": {"username": "ada"}, "password": "correct horse"})):
    """v1PostUserRequest."""

    user: NewUser = Field(default_factory=NewUser)
    password: str = ""
    is_hashed: bool = False


class PatchUser(Wire, json_schema_extra=example({"displayName": "Ada Lovelace"})):
    """v1PatchUser: absent fields stay."""

    username: str | None = None
    display_name: str | None = None
    admin: bool | None = None
    active: bool | None = None
    password: str | None = None
    is_hashed: bool = False
    remote: bool | None = None
    agent_user_group: AgentUserGroup | None = None


class UserFilters(Wire):
    """v1UserFilters."""

    name: str = ""
    admin: bool | None = None


class PatchUsersRequest(Wire, json_schema_extra=example({"userIds": [3], "activate": False})):
    """v1PatchUsersRequest: of those named, or of those that the filters find if none is named."""

    user_ids: list[int] = Field(default_factory=list[int])
    activate: bool
    filters: UserFilters | None = None


class AssignMultipleGroupsRequest(Wire, json_schema_extra=example({"userIds": [3], "addGroups": [1]})):
    """v1AssignMultipleGroupsRequest."""

    user_ids: list[int]
    add_groups: list[int] = Field(default_factory=list[int])
    remove_groups: list[int] = Field(default_factory=list[int])


class UserWebSetting(Wire):
    """v1UserWebSetting."""

    key: str
    storage_path: str = ""
    value: str = ""


class PostUserSettingRequest(
    Wire, json_schema_extra=example({"settings": [{"storagePath": "table", "key": "columns", "value": "[]"}]})
):
    """v1PostUserSettingRequest: a list, or one of them as 0.21 sends it."""

    settings: list[UserWebSetting] = Field(default_factory=list[UserWebSetting])
    setting: UserWebSetting | None = None
    storage_path: str = ""


# -- experiments ---------------------------------------------------------------------------------------------------


class File(Wire):
    """v1File: one member of a context. `type` is the tar type byte."""

    path: str
    type: int = 48
    content: str = ""
    mtime: int = 0
    mode: int = 0o100644
    uid: int = 0
    gid: int = 0


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


class ForkExperimentRequest(Wire, json_schema_extra=example({"at": 12})):
    """Ours. `at`: the last decision that is shared, default the last one. `config`: default the parent's."""

    at: int | None = None
    config: str | None = None
    activate: bool = True


class ContinueExperimentRequest(Wire, json_schema_extra=example({"id": 7})):
    """v1ContinueExperimentRequest."""

    id: int
    override_config: str = ""


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


class SearcherEventRef(Wire):
    """v1SearcherEvent, as far as it is named when it is answered."""

    id: int


class PostSearcherOperations(
    Wire, json_schema_extra=example({"searcherOperations": [{"shutDown": {}}], "triggeredByEvent": {"id": 3}})
):
    """v1PostSearcherOperationsRequest."""

    searcher_operations: list[Map] = Field(default_factory=list[dict[str, Any]])
    triggered_by_event: SearcherEventRef | None = None


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
    trial_ids: list[int] = Field(default_factory=list[int])
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


# -- trials --------------------------------------------------------------------------------------------------------


class Metrics(Wire):
    """v1Metrics."""

    avg_metrics: Map = Field(default_factory=dict)
    batch_metrics: list[Any] | None = None


class MetricsWorkload(Wire):
    """v1MetricsWorkload."""

    total_batches: int
    metrics: Metrics
    end_time: Timestamp | None = None
    num_inputs: int = 0


class CheckpointWorkload(Wire):
    """v1CheckpointWorkload."""

    uuid: str
    state: str
    total_batches: int
    end_time: Timestamp | None = None
    resources: dict[str, I64] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)


class Trial(Wire):
    """trialv1Trial."""

    id: int
    experiment_id: int
    state: str
    hparams: dict[str, Any]
    restarts: int = 0
    start_time: Timestamp
    end_time: Timestamp | None = None
    total_batches_processed: int = 0
    best_validation: MetricsWorkload | None = None
    latest_validation: MetricsWorkload | None = None
    best_checkpoint: CheckpointWorkload | None = None
    searcher_metric_value: Real | None = None
    summary_metrics: dict[str, Any] | None = None
    checkpoint_count: int = 0
    total_checkpoint_size: I64 = 0
    runner_state: str = ""
    task_id: str = ""
    task_ids: list[str] = Field(default_factory=list[str])
    wall_clock_time: Real = 0.0
    warm_start_checkpoint_uuid: str | None = None
    metadata: dict[str, Any] | None = None
    log_policy_matched: str | None = None
    log_retention_days: int | None = None
    # ours: where the trial stands in the search, and why it ended or waits
    rung: int | None = None
    bracket: int | None = None
    run_id: int = 0
    message: str = ""


class MetricReport(Wire):
    """One report of one group: v1TrialMetrics with its group."""

    group: str
    trial_run_id: int
    steps_completed: int | None = None
    report_time: Instant | None = None
    metrics: Metrics


class MetricReports(
    Wire,
    json_schema_extra=example(
        {
            "reports": [
                {"group": "training", "trialRunId": 1, "stepsCompleted": 100, "metrics": {"avgMetrics": {"loss": 0.25}}}
            ]
        }
    ),
):
    """Ours: several reports of one trial, in order."""

    reports: list[MetricReport]


class TrialMetrics(
    Wire, json_schema_extra=example({"trialRunId": 1, "stepsCompleted": 100, "metrics": {"avgMetrics": {"loss": 0.25}}})
):
    """v1TrialMetrics, as the older routes bind it."""

    trial_run_id: int
    steps_completed: int | None = None
    report_time: Instant | None = None
    metrics: Metrics


class ReportTrialMetricsRequest(
    Wire,
    json_schema_extra=example(
        {
            "group": "validation",
            "metrics": {"trialRunId": 1, "stepsCompleted": 100, "metrics": {"avgMetrics": {"loss": 0.25}}},
        }
    ),
):
    """v1ReportTrialMetricsRequest."""

    group: str
    metrics: TrialMetrics


class CompleteOperation(Wire, json_schema_extra=example({"op": {"length": "100"}, "searcherMetric": 0.25})):
    """v1CompleteValidateAfterOperation."""

    op: Map
    searcher_metric: Any = None


class EarlyExit(Wire, json_schema_extra=example({"reason": "EXITED_REASON_INVALID_HP"})):
    """v1TrialEarlyExit."""

    reason: str


class CreateTrialRequest(Wire, json_schema_extra=example({"experimentId": 7, "unmanaged": True})):
    """v1CreateTrialRequest."""

    experiment_id: int
    hparams: Map = Field(default_factory=dict)
    unmanaged: bool = False


class PutTrialRequest(
    Wire,
    json_schema_extra=example({"externalTrialId": "a", "createTrialRequest": {"experimentId": 7, "unmanaged": True}}),
):
    """v1PutTrialRequest."""

    create_trial_request: CreateTrialRequest
    external_trial_id: str


class StartTrialRequest(Wire, json_schema_extra=example({"resume": True})):
    """v1StartTrialRequest."""

    resume: bool = False


class PatchTrialRequest(Wire, json_schema_extra=example({"state": "STATE_COMPLETED"})):
    """v1PatchTrialRequest."""

    state: str | None = None


class ProfilerLabels(Wire):
    """v1TrialProfilerMetricLabels: which series."""

    trial_id: int
    name: str
    agent_id: str = ""
    gpu_uuid: str = ""
    metric_type: str = "PROFILER_METRIC_TYPE_SYSTEM"


class ProfilerBatch(Wire):
    """v1TrialProfilerMetricsBatch: values of one series, with their times."""

    labels: ProfilerLabels
    values: list[float] = Field(default_factory=list[float])
    timestamps: list[Instant] = Field(default_factory=list[Any])
    batches: list[int] = Field(default_factory=list[int])


class ProfilerBatches(
    Wire,
    json_schema_extra=example(
        {
            "batches": [
                {
                    "labels": {"trialId": 9, "name": "cpu_util_simple"},
                    "values": [12.5],
                    "timestamps": ["2026-01-31T12:00:00Z"],
                }
            ]
        }
    ),
):
    """v1PostTrialProfilerMetricsBatchRequest."""

    batches: list[ProfilerBatch] = Field(default_factory=list[ProfilerBatch])


# -- checkpoints ---------------------------------------------------------------------------------------------------


class CheckpointTraining(Wire):
    """v1CheckpointTrainingMetadata."""

    trial_id: int = 0
    experiment_id: int = 0
    experiment_config: dict[str, Any] | None = None
    hparams: dict[str, Any] | None = None
    training_metrics: Metrics | None = None
    validation_metrics: Metrics | None = None
    searcher_metric: Real | None = None


#: Of an experiment's own storage, which all of its checkpoints are in.
STORAGE_ID = 1


class Checkpoint(Wire):
    """v1Checkpoint."""

    uuid: str
    task_id: str = ""
    allocation_id: str | None = None
    state: str
    report_time: Timestamp | None = None
    resources: dict[str, I64] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)
    training: CheckpointTraining = Field(default_factory=CheckpointTraining)
    storage_id: int | None = None


class ReportCheckpoint(
    Wire,
    json_schema_extra=example(
        {
            "uuid": EXAMPLE_UUID,
            "resources": {"model.pt": 1048576},
            "metadata": {"steps_completed": 100},
        }
    ),
):
    """v1Checkpoint as the harness sends it."""

    uuid: str
    task_id: str = ""
    allocation_id: str | None = None
    state: str = "STATE_COMPLETED"
    report_time: Instant | None = None
    resources: dict[str, int] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)


class RemoveCheckpointFiles(
    Wire,
    json_schema_extra=example({"checkpointUuids": [EXAMPLE_UUID], "checkpointGlobs": ["optimizer/**"]}),
):
    """v1CheckpointsRemoveFilesRequest."""

    checkpoint_uuids: list[str] = Field(default_factory=list[str])
    checkpoint_globs: list[str] | None = None


class CheckpointResources(Wire):
    """PatchCheckpointOptionalResources: the files that are left, with their sizes."""

    resources: dict[str, int] = Field(default_factory=dict[str, int])


class PatchCheckpoint(Wire):
    """v1PatchCheckpoint."""

    uuid: str
    resources: CheckpointResources | None = None


class PatchCheckpoints(
    Wire,
    json_schema_extra=example(
        {"checkpoints": [{"uuid": EXAMPLE_UUID, "resources": {"resources": {"model.pt": 1048576}}}]}
    ),
):
    """v1PatchCheckpointsRequest."""

    checkpoints: list[PatchCheckpoint] = Field(default_factory=list[PatchCheckpoint])


# -- logs ----------------------------------------------------------------------------------------------------------


class LogEntry(Wire):
    """A line as shippers send it. `line_offset` is ours: the line's identity within its container."""

    task_id: str = ""
    allocation_id: str | None = None
    agent_id: str | None = None
    container_id: str | None = None
    rank_id: int | None = None
    timestamp: Instant | None = None
    level: str | None = None
    log: str = ""
    source: str | None = None
    stdtype: str | None = None
    line_offset: int | None = None


#: Lines in one request: who has more sends more requests.
MOST_LINES = 10_000
LogEntries = Annotated[list[LogEntry], Field(max_length=MOST_LINES)]


class LogBatch(
    Wire,
    json_schema_extra=example(
        {
            "logs": [
                {
                    "taskId": f"7.{EXAMPLE_UUID}",
                    "timestamp": "2026-01-31T12:00:00Z",
                    "level": "INFO",
                    "log": "epoch 1\n",
                    "rankId": 0,
                }
            ]
        }
    ),
):
    """v1PostTaskLogsRequest."""

    logs: LogEntries


class RunId(Wire, json_schema_extra=example({"runId": 9})):
    """Which trial."""

    run_id: int


class Metadata(Wire, json_schema_extra=example({"metadata": {"dataset": "v2"}})):
    """What is noted."""

    metadata: dict[str, Any]


class CheckpointMetadata(
    Wire, json_schema_extra=example({"checkpoint": {"metadata": {"steps_completed": 100, "quality": "good"}}})
):
    """A checkpoint, as far as it is changed."""

    checkpoint: Metadata


class CheckpointFile(Wire):
    """A file of a checkpoint: its size in bytes, and its XXH3 hash, "" where none is known."""

    size: int
    xxh3: str


class CheckpointUuids(Wire, json_schema_extra=example({"checkpointUuids": [EXAMPLE_UUID]})):
    """Which checkpoints."""

    checkpoint_uuids: list[str]


class LogRetention(Wire, json_schema_extra=example({"numDays": 90})):
    """How long logs are kept; -1: without end."""

    num_days: StrictInt


class FilePath(Wire, json_schema_extra=example({"path": "train.py"})):
    """Which file."""

    path: str = Field(min_length=1)


class Gather(Wire, json_schema_extra=example({"numPeers": 1, "data": {"address": "10.0.0.1"}})):
    """How many containers there are, and what this one says."""

    num_peers: int = 0
    data: Map = Field(default_factory=dict[str, Any])


class Accelerators(
    Wire, json_schema_extra=example({"acceleratorData": {"acceleratorType": "H100", "acceleratorUuids": []}})
):
    """What a container found."""

    accelerator_data: Map = Field(default_factory=dict[str, Any])


class Progress(Wire, json_schema_extra=example({"progress": 0.5})):
    """How far a trial came, as a fraction."""

    progress: float


def _progress(value: Any) -> Any:
    fraction = cast("dict[str, Any]", value).get("progress") if isinstance(value, dict) else value
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction < math.inf:
        raise ValueError("expected a number of 0 or more")
    return cast(Any, value)


#: Older harnesses send a number, in the units of the search.
ProgressBody = Annotated[float | Progress, BeforeValidator(_progress), Body(examples=[{"progress": 0.5}])]


class RunnerState(Wire, json_schema_extra=example({"state": "TRAINING"})):
    """What the trial does now."""

    state: str = ""


class LoginResponse(Wire):
    """A session and its user."""

    token: str
    user: User


class TokenResponse(Wire):
    """A session."""

    token: str


class UserResponse(Wire):
    """User, as recorded."""

    user: User


class UsersResponse(Wire):
    """A page of users."""

    users: list[User]
    pagination: Pagination


class UserSettingsResponse(Wire):
    """User settings, as recorded."""

    settings: list[UserWebSetting]


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


class TrialsResponse(Wire):
    """A page of trials."""

    trials: list[Trial]
    pagination: Pagination


class CheckpointsResponse(Wire):
    """A page of checkpoints."""

    checkpoints: list[Checkpoint]
    pagination: Pagination


class ContextResponse(Wire):
    """A context as a tar.gz in base64."""

    b64_tgz: str = Field(alias="b64Tgz")


class FileResponse(Wire):
    """A file in base64."""

    file: str


class LabelsResponse(Wire):
    """Labels, as recorded."""

    labels: list[str]


class TrialResponse(Wire):
    """Trial, as recorded."""

    trial: Trial


class RemainingDaysResponse(Wire):
    """How many days the logs are still kept; -1: without end."""

    remaining_days: int


class MetadataResponse(Wire):
    """Metadata, as recorded."""

    metadata: dict[str, Any]


class StartRunResponse(Wire):
    """Where a run keeps its checkpoints; 0: as its configuration says."""

    storage_id: int


class PreemptionResponse(Wire):
    """Whether to leave at the next checkpoint."""

    preempt: bool


class CheckpointResponse(Wire):
    """Checkpoint, as recorded."""

    checkpoint: Checkpoint


class CheckpointFilesResponse(Wire):
    """The files of a checkpoint, by path."""

    files: dict[str, CheckpointFile]


class CompletedResponse(Wire):
    """Whether it is done; if not, it goes on in the background."""

    completed: bool
