"""What routes take and answer, for the OpenAPI page, by method and path.

A body is a message and an example of it. An answer is named field by field where its fields are messages; where one is
not listed, its docstring says what it is. Tests hold both against the routes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from typing_extensions import TypedDict

from api.schemas import access, agents, jobs, master, models, templates, webhooks, workspaces
from api.schemas import legacy as old
from api.schemas import messages as wire
from api.schemas.base import Pagination
from workflows.scheduling.settings import PoolSettings


class Body(NamedTuple):
    """What a route takes."""

    kind: Any
    example: Any


# -- bodies that routes read field by field ------------------------------------------------------------------------


class Drain(TypedDict, total=False):
    """Whether what runs there may stay until it ends, or at least for so many seconds."""

    drain: bool
    graceSeconds: float


class Enabled(TypedDict):
    """Whether it is in service."""

    enabled: bool


class RunId(TypedDict):
    """Which trial."""

    runId: int


class Metadata(TypedDict):
    """What is noted."""

    metadata: dict[str, Any]


class CheckpointMetadata(TypedDict):
    """A checkpoint, as far as it is changed."""

    checkpoint: Metadata


class CheckpointFile(TypedDict):
    """A file of a checkpoint: its size in bytes, and its XXH3 hash, "" where none is known."""

    size: int
    xxh3: str


class CheckpointUuids(TypedDict):
    """Which checkpoints."""

    checkpointUuids: list[str]


class Days(TypedDict):
    """How long; -1: for ever."""

    numDays: int


class Path(TypedDict):
    """Which file."""

    path: str


class Gather(TypedDict, total=False):
    """How many containers there are, and what this one says."""

    numPeers: int
    data: dict[str, Any]


class Accelerators(TypedDict):
    """What a container found."""

    acceleratorData: dict[str, Any]


class Progress(TypedDict):
    """A fraction, or units."""

    progress: float


class RunnerState(TypedDict):
    """What the trial does now."""

    state: str


_UUID = "2f6a9d7e-0b7c-4a52-9d0c-0a5b8e3d1c44"
_CONFIG = "name: mnist\nentrypoint: python3 train.py\nsearcher: {name: single, metric: loss, max_length: 100}\n"
_EXPERIMENT = {
    "config": _CONFIG,
    "modelDefinition": [{"path": "train.py", "type": 48, "content": "cHJpbnQoMSkK", "mode": 33188}],
    "activate": True,
}
_METRICS = {"trialRunId": 1, "stepsCompleted": 100, "metrics": {"avgMetrics": {"loss": 0.25}}}
_LOG = {"taskId": f"7.{_UUID}", "timestamp": "2026-01-31T12:00:00Z", "level": "INFO", "log": "epoch 1\n", "rankId": 0}
_BULK = Body(wire.BulkExperiments, {"experimentIds": [7, 8]})
_PATCH_EXPERIMENT = Body(wire.PatchExperiment, {"description": "a better one", "labels": ["mnist"]})
_NEW_EXPERIMENT = Body(wire.CreateExperimentRequest, _EXPERIMENT)
_POOLS = Body(workspaces.PoolBindings, {"workspaceIds": [2]})
_NOTE = {"name": "results", "contents": "the larger batch is better"}
_TEMPLATE = Body(templates.PostTemplate, {"name": "large", "config": {"resources": {"slots_per_trial": 4}}})
_ASSIGNMENTS = Body(
    access.RoleAssignments,
    {"userRoleAssignments": [{"userId": 3, "roleAssignment": {"role": {"roleId": 5}, "scopeWorkspaceId": 2}}]},
)
_GATHER = Body(Gather, {"numPeers": 1, "data": {"address": "10.0.0.1"}})
_NONE = Body(dict[str, Any], {})

BODIES: dict[str, Body] = {
    # users
    "POST /api/v1/auth/login": Body(wire.LoginRequest, {"username": "ada", "password": "correct horse"}),
    "POST /login": Body(old.OldLogin, {"username": "ada", "password": "a hash of it"}),
    "POST /api/v1/users": Body(wire.PostUserRequest, {"user": {"username": "ada"}, "password": "correct horse"}),
    "POST /users": Body(old.OldUser, {"username": "ada", "admin": False, "active": True}),
    "PATCH /api/v1/users": Body(wire.PatchUsersRequest, {"userIds": [3], "activate": False}),
    "PATCH /api/v1/users/{user_id}": Body(wire.PatchUser, {"displayName": "Ada Lovelace"}),
    "PATCH /users/{username}": Body(old.OldUser, {"active": False}),
    "PATCH /users/{username}/username": Body(old.OldUser, {"username": "ada"}),
    "PUT /users/{username}/username": Body(old.OldUser, {"username": "ada"}),
    "POST /api/v1/users/{user_id}/password": Body(str, "correct horse battery staple"),
    "PATCH /api/v1/users/assignments": Body(wire.AssignMultipleGroupsRequest, {"userIds": [3], "addGroups": [1]}),
    "POST /api/v1/users/setting": Body(
        wire.PostUserSettingRequest, {"settings": [{"storagePath": "table", "key": "columns", "value": "[]"}]}
    ),
    "POST /api/v1/users/activity": Body(
        workspaces.Activity,
        {"activityType": "ACTIVITY_TYPE_GET", "entityType": "ENTITY_TYPE_PROJECT", "entityId": 1},
    ),
    "POST /api/v1/tokens": Body(access.PostAccessTokenRequest, {"lifespan": "720h", "description": "nightly runs"}),
    "PATCH /api/v1/tokens/{token_id}": Body(access.PatchAccessTokenRequest, {"setRevoked": True}),
    "POST /api/v1/groups": Body(access.CreateGroupRequest, {"name": "vision", "addUsers": [3]}),
    "POST /api/v1/groups/search": Body(access.GetGroupsRequest, {"limit": 100}),
    "PUT /api/v1/groups/{group_id}": Body(access.UpdateGroupRequest, {"addUsers": [4], "removeUsers": [3]}),
    "POST /api/v1/roles/search": Body(access.Search, {"limit": 100}),
    "POST /api/v1/roles/search/by-assignability": Body(access.AssignableRolesRequest, {"workspaceId": 1}),
    "POST /api/v1/roles/search/by-ids": Body(access.GetRolesByIdRequest, {"roleIds": [5]}),
    "POST /api/v1/roles/add-assignments": _ASSIGNMENTS,
    "POST /api/v1/roles/remove-assignments": _ASSIGNMENTS,
    # experiments
    "POST /api/v1/experiments": _NEW_EXPERIMENT,
    "PUT /api/v1/experiments/by-external-id/{external_id}": Body(
        wire.CreateExperimentRequest, {"config": "name: elsewhere\n", "unmanaged": True}
    ),
    "POST /api/v1/experiments/continue": Body(wire.ContinueExperimentRequest, {"id": 7}),
    "PATCH /api/v1/experiments/{experiment_id}": _PATCH_EXPERIMENT,
    "PATCH /experiments/{experiment_id}": _PATCH_EXPERIMENT,
    "POST /api/v1/projects/{project_id}/experiments/{command}": _BULK,
    "DELETE /api/v1/projects/{project_id}/experiments/delete": _BULK,
    "POST /api/v1/experiments/{experiment_id}/move": Body(workspaces.MoveExperiment, {"destinationProjectId": 2}),
    "POST /api/v1/experiments/{experiment_id}/file": Body(Path, {"path": "train.py"}),
    "PUT /api/v1/experiments/{experiment_id}/retain_logs": Body(Days, {"numDays": 90}),
    "POST /api/v1/experiments/{experiment_id}/fork": Body(wire.ForkExperimentRequest, {"at": 12}),
    "POST /api/v1/experiments/{experiment_id}/search/amend": Body(wire.AmendSearch, {"maxTrials": 64}),
    "POST /api/v1/experiments/{experiment_id}/searcher_operations": Body(
        wire.PostSearcherOperations,
        {"searcherOperations": [{"shutDown": {}}], "triggeredByEvent": {"id": 3}},
    ),
    "POST /api/v1/preview-hp-search": Body(
        wire.PreviewSearchRequest,
        {"config": {"name": "x", "searcher": {"name": "random", "metric": "loss", "max_trials": 8, "max_length": 10}}},
    ),
    "POST /searcher/preview": Body(
        dict[str, Any], {"name": "x", "searcher": {"name": "single", "metric": "loss", "max_length": 10}}
    ),
    # trials
    "POST /api/v1/trials": Body(wire.CreateTrialRequest, {"experimentId": 7, "unmanaged": True}),
    "PUT /api/v1/trials": Body(
        wire.PutTrialRequest,
        {"externalTrialId": "a", "createTrialRequest": {"experimentId": 7, "unmanaged": True}},
    ),
    "POST /api/v1/trials/{trial_id}/start": Body(wire.StartTrialRequest, {"resume": True}),
    "PATCH /api/v1/trials/{trial_id}": Body(wire.PatchTrialRequest, {"state": "STATE_COMPLETED"}),
    "POST /api/v1/trials/{trial_id}/metrics": Body(
        wire.ReportTrialMetricsRequest, {"group": "validation", "metrics": _METRICS}
    ),
    "POST /api/v1/trials/{trial_id}/metrics/batch": Body(
        wire.MetricReports, {"reports": [{"group": "training", **_METRICS}]}
    ),
    "POST /api/v1/trials/profiler/metrics": Body(
        wire.ProfilerBatches,
        {
            "batches": [
                {
                    "labels": {"trialId": 9, "name": "cpu_util_simple"},
                    "values": [12.5],
                    "timestamps": ["2026-01-31T12:00:00Z"],
                }
            ]
        },
    ),
    "POST /api/v1/trials/{trial_id}/{kind}_metrics": Body(wire.TrialMetrics, _METRICS),
    "POST /api/v1/trials/{trial_id}/progress": Body(float | Progress, {"progress": 0.5}),
    "POST /api/v1/trials/{trial_id}/early_exit": Body(wire.EarlyExit, {"reason": "EXITED_REASON_INVALID_HP"}),
    "POST /api/v1/trials/{trial_id}/runner/metadata": Body(RunnerState, {"state": "TRAINING"}),
    "POST /api/v1/trials/{trial_id}/searcher/completed_operation": Body(
        wire.CompleteOperation, {"op": {"length": "100"}, "searcherMetric": 0.25}
    ),
    "PUT /api/v1/trials/{trial_id}/retain_logs": Body(Days, {"numDays": -1}),
    "POST /api/v1/trial-source-info": Body(
        models.ReportTrialSourceInfo, {"trialSourceInfo": {"trialId": 9, "checkpointUuid": _UUID}}
    ),
    "POST /api/v1/runs/start": Body(RunId, {"runId": 9}),
    "POST /api/v1/runs/{run_id}/metadata": Body(Metadata, {"metadata": {"dataset": "v2"}}),
    # allocations and logs
    "POST /api/v1/allocations/{allocation_id}/all_gather": _GATHER,
    "POST /api/v1/allocations/{allocation_id}/notify_container_running": _GATHER,
    "POST /api/v1/allocations/{allocation_id}/acceleratorData": Body(
        Accelerators, {"acceleratorData": {"acceleratorType": "H100", "acceleratorUuids": []}}
    ),
    "POST /api/v1/task/logs": Body(wire.LogBatch, {"logs": [_LOG]}),
    "POST /task-logs": Body(list[wire.LogEntry], [_LOG]),
    # checkpoints
    "POST /api/v1/checkpoints": Body(
        wire.ReportCheckpoint,
        {"uuid": _UUID, "resources": {"model.pt": 1048576}, "metadata": {"steps_completed": 100}},
    ),
    "PATCH /api/v1/checkpoints": Body(
        wire.PatchCheckpoints, {"checkpoints": [{"uuid": _UUID, "resources": {"resources": {"model.pt": 1048576}}}]}
    ),
    "DELETE /api/v1/checkpoints": Body(CheckpointUuids, {"checkpointUuids": [_UUID]}),
    "POST /api/v1/checkpoints/rm": Body(
        wire.RemoveCheckpointFiles, {"checkpointUuids": [_UUID], "checkpointGlobs": ["optimizer/**"]}
    ),
    "POST /api/v1/checkpoints/{uuid}/metadata": Body(
        CheckpointMetadata, {"checkpoint": {"metadata": {"steps_completed": 100, "quality": "good"}}}
    ),
    # models
    "POST /api/v1/models": Body(models.PostModel, {"name": "mnist", "labels": ["vision"], "workspaceId": 1}),
    "PATCH /api/v1/models/{name}": Body(models.PatchModel, {"description": "digits"}),
    "POST /api/v1/models/{name}/move": Body(models.MoveModel, {"destinationWorkspaceId": 2}),
    "POST /api/v1/models/{name}/versions": Body(models.PostModelVersion, {"checkpointUuid": _UUID}),
    "PATCH /api/v1/models/{name}/versions/{number}": Body(models.PatchModelVersion, {"comment": "in production"}),
    # workspaces and projects
    "POST /api/v1/workspaces": Body(workspaces.PostWorkspace, {"name": "vision", "everyone": "viewer"}),
    "PATCH /api/v1/workspaces/{workspace_id}": Body(workspaces.PatchWorkspace, {"defaultComputePool": "default"}),
    "POST /api/v1/workspaces/{workspace_id}/namespace-bindings": _NONE,
    "POST /api/v1/workspaces/{workspace_id}/set-resource-quota": _NONE,
    "POST /api/v1/workspaces/{workspace_id}/projects": Body(workspaces.PostProject, {"name": "digits"}),
    "PATCH /api/v1/projects/{project_id}": Body(workspaces.PatchProject, {"description": "handwritten"}),
    "POST /api/v1/projects/{project_id}/move": Body(workspaces.MoveProject, {"destinationWorkspaceId": 2}),
    "PUT /api/v1/projects/{project_id}/notes": Body(workspaces.Notes, {"notes": [_NOTE]}),
    "POST /api/v1/projects/{project_id}/notes": Body(workspaces.Note, _NOTE),
    # templates, webhooks
    "POST /api/v1/templates/{name}": _TEMPLATE,
    "PUT /api/v1/templates/{name}": _TEMPLATE,
    "PATCH /api/v1/templates/{name}": Body(dict[str, Any], {"resources": {"slots_per_trial": 8}}),
    "PUT /templates/{name}": Body(dict[str, Any], {"resources": {"slots_per_trial": 8}}),
    "PATCH /api/v1/template/rename": Body(templates.RenameTemplate, {"oldName": "large", "newName": "huge"}),
    "POST /api/v1/webhooks": Body(
        webhooks.Webhook,
        {
            "url": "https://hooks.example.com/x",
            "name": "ends",
            "webhookType": "WEBHOOK_TYPE_DEFAULT",
            "triggers": [{"triggerType": "TRIGGER_TYPE_EXPERIMENT_STATE_CHANGE", "condition": {"state": "COMPLETED"}}],
        },
    ),
    "PATCH /api/v1/webhooks/{webhook_id}": Body(webhooks.PatchWebhook, {"url": "https://hooks.example.com/y"}),
    "POST /api/v1/webhooks/custom": Body(
        webhooks.PostCustomEvent,
        {"experimentId": 7, "data": {"title": "converged", "level": "LOG_LEVEL_INFO"}},
    ),
    # cluster
    "POST /api/v1/agents/{agent_id}/disable": Body(Drain, {"drain": True}),
    "POST /api/v1/agents/{agent_id}/slots/{slot_id}/disable": Body(Drain, {"drain": True}),
    "PATCH /agents/{agent_id}/slots/{slot_id}": Body(Enabled, {"enabled": True}),
    "POST /api/v1/undeterred/agent-join-tokens": Body(
        agents.PostJoinToken, {"pool": "default", "uses": 4, "lifespan": "24h", "description": "rack 7"}
    ),
    "POST /api/v1/undeterred/agents/join": Body(
        agents.JoinAgent, {"token": "…", "agentId": "rack-7-host-1", "credential": f"agent-{'0' * 64}"}
    ),
    "POST /api/v1/job-queues": Body(jobs.UpdateJobQueue, {"updates": [{"jobId": _UUID, "priority": 10}]}),
    "POST /api/v1/undeterred/resource-pools": Body(
        jobs.PostPool, {"name": "a100", "description": "eight of them a host", "settings": {"preemption": True}}
    ),
    "PATCH /api/v1/undeterred/resource-pools/{pool}": Body(jobs.PatchPool, {"defaultAuxPool": True}),
    "PATCH /api/v1/undeterred/resource-pools/{pool}/settings": Body(
        jobs.PatchPoolSettings, {"settings": {"preemption": True, "quotas": {"users": {"*": 4}}}}
    ),
    "POST /api/v1/resource-pools/{pool}/workspace-bindings": _POOLS,
    "PUT /api/v1/resource-pools/{pool}/workspace-bindings": _POOLS,
    "DELETE /api/v1/resource-pools/{pool}/workspace-bindings": _POOLS,
    "PATCH /api/v1/master/config": Body(
        master.PatchMasterConfigRequest,
        {"config": {"log": {"level": "LOG_LEVEL_DEBUG"}}, "fieldMask": {"paths": ["log.level"]}},
    ),
    "PUT /api/v1/master/cluster_message": Body(
        master.SetClusterMessageRequest,
        {"message": "maintenance at noon", "startTime": "2026-01-31T08:00:00Z", "duration": "8h"},
    ),
}

# -- answers -------------------------------------------------------------------------------------------------------

_USER = {"user": wire.User}
_ONE_EXPERIMENT = {"experiment": wire.Experiment, "config": dict[str, Any]}
_CREATED = _ONE_EXPERIMENT | {"warnings": list[str], "notices": list[str]}
_TRIAL = {"trial": wire.Trial}
_CHECKPOINT = {"checkpoint": wire.Checkpoint}
_CHECKPOINTS = {"checkpoints": list[wire.Checkpoint], "pagination": Pagination}
_MODEL = {"model": models.Model}
_VERSION = {"modelVersion": models.ModelVersion}
_WORKSPACE = {"workspace": workspaces.Workspace}
_PROJECT = {"project": workspaces.Project}
_ONE_TEMPLATE = {"template": templates.Template}
_WEBHOOK = {"webhook": webhooks.Webhook}
_NOTES = {"notes": list[workspaces.Note]}
_PAGED = {"pagination": Pagination}

ANSWERS: dict[str, dict[str, Any]] = {
    "POST /api/v1/auth/login": {"token": str} | _USER,
    "POST /login": {"token": str},
    "GET /api/v1/me": _USER,
    "GET /api/v1/auth/user": _USER,
    "GET /api/v1/users": {"users": list[wire.User]} | _PAGED,
    "POST /api/v1/users": _USER,
    "GET /api/v1/users/{user_id}": _USER,
    "PATCH /api/v1/users/{user_id}": _USER,
    "GET /api/v1/users/{username}/by-username": _USER,
    "GET /api/v1/users/setting": {"settings": list[wire.UserWebSetting]},
    "GET /api/v1/tokens": {"tokenInfo": list[access.TokenInfo]} | _PAGED,
    "POST /api/v1/tokens": {"token": str, "tokenId": int},
    "PATCH /api/v1/tokens/{token_id}": {"tokenInfo": access.TokenInfo},
    "GET /api/v1/experiments": {"experiments": list[wire.Experiment]} | _PAGED,
    "POST /api/v1/experiments": _CREATED,
    "POST /api/v1/experiments/continue": _CREATED,
    "POST /api/v1/experiments/{experiment_id}/fork": _CREATED,
    "PUT /api/v1/experiments/by-external-id/{external_id}": _ONE_EXPERIMENT,
    "GET /api/v1/experiments/{experiment_id}": _ONE_EXPERIMENT | {"jobSummary": wire.JobSummary | None},
    "PATCH /api/v1/experiments/{experiment_id}": {"experiment": wire.Experiment},
    "GET /api/v1/experiments/{experiment_id}/trials": {"trials": list[wire.Trial]} | _PAGED,
    "GET /api/v1/experiments/{experiment_id}/checkpoints": _CHECKPOINTS,
    "GET /api/v1/experiments/{experiment_id}/model_def": {"b64Tgz": str},
    "POST /api/v1/experiments/{experiment_id}/file": {"file": str},
    "GET /api/v1/experiment/labels": {"labels": list[str]},
    "GET /api/v1/trials/{trial_id}": _TRIAL,
    "PATCH /api/v1/trials/{trial_id}": _TRIAL,
    "POST /api/v1/trials": _TRIAL,
    "PUT /api/v1/trials": _TRIAL,
    "GET /api/v1/trials/{trial_id}/checkpoints": _CHECKPOINTS,
    "GET /api/v1/trials/{trial_id}/remaining_log_retention_days": {"remainingDays": int},
    "GET /api/v1/tasks/{task_id}/context_directory": {"b64Tgz": str},
    "GET /api/v1/runs/{run_id}/metadata": {"metadata": dict[str, Any]},
    "POST /api/v1/runs/{run_id}/metadata": {"metadata": dict[str, Any]},
    "POST /api/v1/runs/start": {"storageId": int},
    "GET /api/v1/allocations/{allocation_id}/signals/preemption": {"preempt": bool},
    "GET /api/v1/checkpoints/{uuid}": _CHECKPOINT,
    "GET /api/v1/undeterred/checkpoints/{uuid}/files": {"files": dict[str, CheckpointFile]},
    "POST /api/v1/checkpoints/{uuid}/metadata": _CHECKPOINT,
    "GET /api/v1/models": {"models": list[models.Model]} | _PAGED,
    "POST /api/v1/models": _MODEL,
    "GET /api/v1/models/{name}": _MODEL,
    "PATCH /api/v1/models/{name}": _MODEL,
    "GET /api/v1/models/{name}/versions": _MODEL | {"modelVersions": list[models.ModelVersion]} | _PAGED,
    "POST /api/v1/models/{name}/versions": _VERSION,
    "GET /api/v1/models/{name}/versions/{number}": _VERSION,
    "PATCH /api/v1/models/{name}/versions/{number}": _VERSION,
    "GET /api/v1/model/labels": {"labels": list[str]},
    "GET /api/v1/workspaces": {"workspaces": list[workspaces.Workspace]} | _PAGED,
    "POST /api/v1/workspaces": _WORKSPACE,
    "GET /api/v1/workspaces/{workspace_id}": _WORKSPACE,
    "PATCH /api/v1/workspaces/{workspace_id}": _WORKSPACE,
    "DELETE /api/v1/workspaces/{workspace_id}": {"completed": bool},
    "GET /api/v1/workspaces/{workspace_id}/projects": {"projects": list[workspaces.Project]} | _PAGED,
    "POST /api/v1/workspaces/{workspace_id}/projects": _PROJECT,
    "GET /api/v1/projects/{project_id}": _PROJECT,
    "PATCH /api/v1/projects/{project_id}": _PROJECT,
    "DELETE /api/v1/projects/{project_id}": {"completed": bool},
    "GET /api/v1/projects/key/{key}": _PROJECT,
    "PUT /api/v1/projects/{project_id}/notes": _NOTES,
    "POST /api/v1/projects/{project_id}/notes": _NOTES,
    "GET /api/v1/resource-pools/{pool}/workspace-bindings": {"workspaceIds": list[int]} | _PAGED,
    "GET /api/v1/undeterred/resource-pools/{pool}/settings": {"settings": PoolSettings},
    "PATCH /api/v1/undeterred/resource-pools/{pool}/settings": {"settings": PoolSettings},
    "GET /api/v1/templates": {"templates": list[templates.Template]} | _PAGED,
    "GET /api/v1/templates/{name}": _ONE_TEMPLATE,
    "POST /api/v1/templates/{name}": _ONE_TEMPLATE,
    "PUT /api/v1/templates/{name}": _ONE_TEMPLATE,
    "PATCH /api/v1/templates/{name}": _ONE_TEMPLATE,
    "PATCH /api/v1/template/rename": _ONE_TEMPLATE,
    "GET /api/v1/webhooks": {"webhooks": list[webhooks.Webhook]},
    "POST /api/v1/webhooks": _WEBHOOK,
    "PATCH /api/v1/webhooks/{webhook_id}": _WEBHOOK,
    "POST /api/v1/webhooks/{webhook_id}/test": {"completed": bool, "error": str},
    "GET /api/v1/undeterred/webhooks/{webhook_id}/deliveries": {"deliveries": list[webhooks.Delivery]} | _PAGED,
    "GET /api/v1/master/cluster_message": {"clusterMessage": master.ClusterMessage | None},
}

#: Answers that are files, and the content types that they may have.
FILES = {
    "GET /checkpoints/{uuid}": ("application/x-tar", "application/gzip"),
    "GET /api/v1/undeterred/checkpoints/{uuid}/file": ("application/octet-stream",),
    "GET /experiments/{experiment_id}/model_def": ("application/x-gtar",),
    "GET /resources/allocation/raw": ("text/csv",),
    "GET /resources/allocation/allocations-csv": ("text/csv",),
    "GET /resources/allocation/aggregated": ("text/csv",),
}
#: Answers that are lines of JSON.
STREAMS = {
    "GET /api/v1/master/logs": "application/json",
    "GET /api/v1/trials/{trial_id}/logs": "application/json",
    "GET /api/v1/trials/{trial_id}/logs/fields": "application/json",
    "GET /api/v1/tasks/{task_id}/logs": "application/json",
    "GET /api/v1/tasks/{task_id}/logs/fields": "application/json",
    "GET /api/v1/trials/metrics/{kind}": "application/json",
    "GET /api/v1/experiments/{experiment_id}/search/history": "application/x-ndjson",
}

#: Parameters that mean the same wherever they are.
PARAMETERS = {
    "offset": "Where the page begins; negative: counted from the end. Beyond the end it is refused.",
    "limit": "How many at most; 0: all (of experiments and jobs: 100).",
    "orderBy": "ORDER_BY_ASC or ORDER_BY_DESC.",
    "sortBy": "SORT_BY_… of an attribute; an unknown one is refused with a list of those that there are.",
    "states": "Only those in one of these states; repeated for several.",
    "labels": "Only those that have all of these labels; repeated for several.",
    "userIds": "Only those of these users; repeated for several.",
    "users": "Only those of users with these names; repeated for several.",
    "workspaceIds": "Only those in these workspaces; repeated for several.",
    "name": "What is in the name, in any case.",
    "archived": "Only what is put away, or only what is not.",
    "follow": "Stay connected and send what comes, until the end.",
    "experiment_id": "The number of an experiment.",
    "trial_id": "The number of a trial.",
    "run_id": "The number of a trial, which newer clients call a run.",
    "task_id": "The id of a task.",
    "allocation_id": "The id of an allocation: one run of a task.",
    "uuid": "The UUID of a checkpoint.",
    "workspace_id": "The number of a workspace.",
    "project_id": "The number of a project.",
    "user_id": "The number of a user.",
    "group_id": "The number of a group.",
    "agent_id": "The name of an agent.",
    "slot_id": "The number of a slot of an agent.",
    "pool": "The name of a resource pool.",
    "command": "What to do.",
}

TAGS = [
    {"name": "experiments", "description": "Searches over trials: create, look at, command, clean up."},
    {"name": "trials", "description": "What trials report, and what people look at."},
    {"name": "tasks", "description": "Contexts and logs."},
    {"name": "allocations", "description": "What a container says and asks about itself."},
    {"name": "checkpoints", "description": "Reported by trials, described and downloaded by people."},
    {"name": "models", "description": "The model registry."},
    {"name": "workspaces", "description": "Who shares what."},
    {"name": "users", "description": "Login, sessions and users."},
    {"name": "cluster", "description": "Agents, pools, the job queue and the master."},
]
