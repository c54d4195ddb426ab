"""Who may do what: every route for every kind of caller. A route without a row fails the first test.

The world below lies in a PRIVATE workspace: nobody has a role in it who was not given one. A row is the method, the
path with the world's fields in braces, the body, and the status for each of these callers, in this order:

    nobody · the owner of the experiment (a contributor of the workspace) · a viewer of the workspace (by a group) ·
    a contributor · an editor · an admin of the workspace · a user without a role in it · an administrator of the
    cluster · the trial's container · a container of another workspace's trial · an agent · a read-only token of the owner

Write the twelve codes, or have `row` write them: it climbs the roles from `least` on, and what it must be told is what
differs from "users only, and read-only tokens change nothing". To add an area: add rows, add what they need to
`World.build` as fields. Rows run in any order: none may change what another one needs.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from sqlalchemy import select, update

from api.app import create_app
from api.auth.authentication import client_hash
from api.middleware.audit import READING_POSTS
from api.settings import ApiSettings
from database.models import (
    Experiment,
    Gate,
    Group,
    GroupMember,
    Import,
    Project,
    ResourcePool,
    RoleAssignment,
    Workspace,
)
from database.retention import post_removal
from tests.integration.api.served import PASSWORD, Caller, Served, a_file
from web import files as web_files
from workflows.messages import RecordAgent
from workflows.scheduling.model import AgentSlots

ROLES = ["viewer", "contributor", "editor", "admin", "cluster admin"]


def row(
    least: str,
    then: str = "200",
    *,
    owner: str = "",
    foreign: str = "404",
    containers: str = "403 403",
    agent: str = "403",
    read_only: str = "403",
) -> str:
    """The twelve codes of a route that needs a role; who has it gets `then`.

    Args:
        least: The role in the workspace from which on it is allowed; "cluster admin": none in it suffices.
        then: What who may gets.
        owner: What the owner gets, if not `then`. On what belongs to the workspace he is a contributor: say so.
        foreign: What users get who don't see the workspace.
        containers: What the trial's own container gets, and that of a trial elsewhere.
        agent: What agents get.
        read_only: What the owner's read-only token gets.
    """
    may = {role: then if ROLES.index(role) >= ROLES.index(least) else "403" for role in ROLES}
    in_it = " ".join(may[role] for role in ROLES[:-1])
    return f"401 {owner or then} {in_it} {foreign} {may['cluster admin']} {containers} {agent} {read_only}"


# 503 is the answer to who may: Temporal is away. 400 at the login: nobody is asked who he is.
PUBLIC, OFF = " ".join(["200"] * 12), " ".join(["404"] * 12)
#: Any user, wherever he has roles; and the same with containers.
USERS = row("viewer", foreign="200", read_only="200")
USERS_WRITE = row("viewer", foreign="200")
READERS = row("viewer", foreign="200", containers="200 200", read_only="200")
#: What is seen by who sees the workspace; and the same with containers of its owner.
SEEN = row("viewer", read_only="200")
SEEN_BY_ALL = row("viewer", containers="200 404", read_only="200")
#: What the owner and editors of the workspace change; the same with Temporal asked.
EDITORS, TEMPORAL = row("editor"), row("editor", "503")
#: Of a user: only himself and administrators of the cluster.
OWN = row("cluster admin", foreign="403")
ADMINS = row("cluster admin", owner="403", foreign="403")
CONTAINER = "401 403 403 403 403 403 403 403 200 404 403 403"
#: What the first who may does: for the others nothing is left to do.
ONCE = "401 200 403 403 400 400 404 400 403 403 403 403"
#: What a trial reports: its container, and who may change its experiment.
REPORT = row("editor", containers="200 404")
LOGS = "401 403 403 403 403 403 404 403 200 403 200 403"
AGENT = "401 403 403 403 403 403 403 403 403 403 200 403"
LOSS = "metricName=loss&group=validation"
PREVIEWED = {"searcher": {"name": "single", "metric": "loss"}}
METRICS = {"trialRunId": 1, "stepsCompleted": 1, "metrics": {"avgMetrics": {"loss": 1.0}}}
CONTRIBUTES = {"role": {"roleId": 6}, "scopeWorkspaceId": "{workspace_id}"}
ROLE_OF_OWNER = {"userId": "{user_id}", "roleAssignment": CONTRIBUTES}
ROLE_OF_GROUP = {"groupId": "{spare_group_id}", "roleAssignment": CONTRIBUTES}
#: What belongs to the workspace, where the owner of the experiment is a contributor.
OF_EDITORS, OF_ADMINS = row("editor", owner="403"), row("admin", owner="403")
MODEL_EDITORS = row("editor", owner="403", containers="403 404")
SOURCE = {"trialId": "{trial_id}", "checkpointUuid": "{kept_uuid}",
          "trialSourceInfoType": "TRIAL_SOURCE_INFO_TYPE_INFERENCE"}  # fmt: skip
COMMAND = {"config": {"entrypoint": ["true"], "resources": {"slots": 0}}}
#: For each of these kinds; a TensorBoard has to show something.
LAUNCH = {"experimentIds": ["{experiment_id}"]}
KINDS = ("notebook", "shell", "tensorboard")
#: One that forbids nothing: other rows create experiments meanwhile.
POLICY = {"configPolicies": {"constraints": {"priority_limit": 1}}}
WEBHOOK = {"url": "https://example.com", "workspaceId": "{workspace_id}",
           "mode": "WEBHOOK_MODE_SPECIFIC", "triggers": [{"triggerType": "TRIGGER_TYPE_CUSTOM"}]}  # fmt: skip
CAMPAIGN = "name: x\nsteps:\n  a:\n    task:\n      entrypoint: 'true'\n"
#: Whoever else may see it has no part in what it does.
OF_CAMPAIGN_OWNER = "401 400 403 403 403 403 404 403 403 403 403 403"
ROWS: list[tuple[str, str, Any, str]] = [
    # imports: one at a time may run, so that none is started here
    ("GET", "/api/v1/undeterred/imports", None, ADMINS),
    ("POST", "/api/v1/undeterred/imports", {"mode": "PLAN", "source": "ftp://old"},
     row("cluster admin", "400", owner="403", foreign="403")),
    ("GET", "/api/v1/undeterred/imports/{import_id}", None, ADMINS),
    ("POST", "/api/v1/undeterred/imports/{import_id}/cancel", None, ADMINS),
    # the cluster
    ("GET", "/info", None, PUBLIC),
    ("GET", "/health", None, PUBLIC),
    ("GET", "/health/live", None, PUBLIC),
    ("GET", "/health/startup", None, PUBLIC),
    ("GET", "/health/ready", None, PUBLIC.replace("200", "503")),  # Temporal is away
    ("GET", "/api/v1/master", None, PUBLIC),
    ("GET", "/oidc/sso", None, PUBLIC.replace("200", "404")),  # this cluster has no identity provider
    ("GET", "/oidc/callback", None, PUBLIC.replace("200", "404")),
    ("GET", "/api/v1/undeterred/config-schema", None, PUBLIC),
    ("GET", "/api/v1/openapi.json", None, PUBLIC),
    ("GET", "/docs/rest-api", None, PUBLIC),
    ("GET", "/", None, PUBLIC.replace("200", "307")),
    ("GET", "/det", None, PUBLIC),
    ("GET", "/det/{page}", None, PUBLIC),
    ("GET", "/det/assets/{digest}/{asset}", None, PUBLIC),
    ("GET", "/docs/rest-api.js", None, PUBLIC),
    ("GET", "/docs/swagger-ui-bundle.js", None, PUBLIC),
    ("GET", "/docs/swagger-ui.css", None, PUBLIC),
    ("GET", "/api/v1/agents", None, USERS),
    ("GET", "/agents", None, USERS),
    ("GET", "/api/v1/agents/{agent_id}", None, USERS),
    ("GET", "/api/v1/agents/{agent_id}/slots", None, USERS),
    ("GET", "/api/v1/agents/{agent_id}/slots/{slot_id}", None, USERS),
    ("POST", "/api/v1/agents/{agent_id}/disable", {"drain": True}, ADMINS),
    ("POST", "/api/v1/agents/{agent_id}/enable", None, ADMINS),
    ("POST", "/api/v1/agents/{agent_id}/slots/{slot_id}/disable", {"drain": True}, ADMINS),
    ("POST", "/api/v1/agents/{agent_id}/slots/{slot_id}/enable", None, ADMINS),
    ("PATCH", "/agents/{agent_id}/slots/{slot_id}", {"enabled": True}, ADMINS),
    ("GET", "/api/v1/resource-pools", None, USERS),
    ("GET", "/api/v1/job-queues", None, USERS),
    ("GET", "/api/v1/job-queues-v2", None, USERS),
    ("GET", "/api/v1/job-queues/stats", None, USERS),
    ("POST", "/api/v1/job-queues", {"updates": [{"jobId": "{job_id}", "priority": 50}]}, EDITORS),
    ("GET", "/api/v1/resources/allocation/raw?timestampAfter=2020-01-01T00:00:00Z&timestampBefore=2999-01-01T00:00:00Z",
     None, USERS),
    ("GET", "/api/v1/resources/allocation/aggregated?startDate=2026-01-01&endDate=2026-12-31", None, USERS),
    ("GET", "/api/v1/undeterred/cluster/slots-over-time?timestampAfter=2026-01-01T00:00:00Z&timestampBefore=2026-02-01T00:00:00Z",
     None, USERS),
    ("GET", "/resources/allocation/raw?timestamp_after=2020-01-01T00:00:00Z&timestamp_before=2999-01-01T00:00:00Z",
     None, USERS),
    ("GET", "/resources/allocation/allocations-csv?timestamp_after=2020-01-01T00:00:00Z"
     "&timestamp_before=2999-01-01T00:00:00Z", None, USERS),
    ("GET", "/resources/allocation/aggregated?start_date=2026-01-01&end_date=2026-12-31", None, USERS),
    # users
    ("POST", "/api/v1/auth/login", None, " ".join(["400"] * 12)),
    ("POST", "/api/v1/auth/logout", None, USERS_WRITE),
    ("GET", "/api/v1/me", None, READERS),
    ("GET", "/api/v1/auth/user", None, READERS),
    ("GET", "/api/v1/users", None, USERS),
    ("POST", "/api/v1/users", {"user": {"username": "{new}"}, "password": ""}, ADMINS),
    ("GET", "/api/v1/users/{user_id}", None, USERS),
    ("GET", "/api/v1/users/{username}/by-username", None, USERS),
    ("PATCH", "/api/v1/users/{user_id}", {"displayName": "x"}, OWN),
    # the owner's change ends his tokens, the read-only one too
    ("POST", "/api/v1/users/{user_id}/password", client_hash(PASSWORD), OWN[:-3] + "401"),
    ("PATCH", "/api/v1/users", {"userIds": ["{user_id}"], "activate": True}, ADMINS),
    ("PATCH", "/api/v1/users/assignments", {"userIds": ["{user_id}"], "addGroups": ["{spare_group_id}"]}, ADMINS),
    ("GET", "/api/v1/users/setting", None, USERS),
    ("POST", "/api/v1/users/setting", {"settings": [{"key": "a", "value": "b"}]}, USERS_WRITE),
    ("POST", "/api/v1/users/setting/reset", None, USERS_WRITE),
    # users, for older clients
    ("POST", "/login", None, " ".join(["400"] * 12)),
    ("GET", "/users", None, USERS),
    ("GET", "/users/me", None, USERS),
    ("POST", "/users", {"username": "{new}"}, ADMINS),
    ("PATCH", "/users/{username}", {"display_name": "x"}, OWN),
    ("PATCH", "/users/{username}/username", {"username": "{username}"}, ADMINS),
    ("PUT", "/users/{username}/username", {"username": "{username}"}, ADMINS),
    # access tokens; other users' don't exist
    ("GET", "/api/v1/tokens", None, USERS),
    ("POST", "/api/v1/tokens", None, USERS_WRITE),
    ("PATCH", "/api/v1/tokens/{token_id}", {"description": "x"}, "401 200 404 404 404 404 404 200 403 403 403 403"),
    # groups and roles
    ("POST", "/api/v1/groups", {"name": "{new}"}, ADMINS),
    ("POST", "/api/v1/groups/search", {"limit": 1}, USERS),
    ("GET", "/api/v1/groups/{group_id}", None, USERS),
    ("PUT", "/api/v1/groups/{spare_group_id}", {"addUsers": ["{user_id}"]}, ADMINS),
    ("DELETE", "/api/v1/groups/{last_group_id}", None, ADMINS),
    ("GET", "/api/v1/permissions/summary", None, USERS),
    ("POST", "/api/v1/roles/search", {}, USERS),
    ("POST", "/api/v1/roles/search/by-assignability", {"workspaceId": "{workspace_id}"}, SEEN),
    ("POST", "/api/v1/roles/search/by-ids", {"roleIds": [1, 2]}, USERS),
    ("GET", "/api/v1/undeterred/roles/{role_id}/holders", None, ADMINS),
    ("GET", "/api/v1/roles/search/by-user/{user_id}", None, row("cluster admin", foreign="403", read_only="200")),
    # its members, and administrators
    ("GET", "/api/v1/roles/search/by-group/{group_id}", None, "401 403 200 403 403 403 403 200 403 403 403 403"),
    ("GET", "/api/v1/roles/workspace/{workspace_id}", None, SEEN),
    ("POST", "/api/v1/roles/add-assignments", {"userRoleAssignments": [ROLE_OF_OWNER]},
     row("admin", "409", owner="403")),  # he has it
    # 404 is the answer to who may: nobody gave it
    ("POST", "/api/v1/roles/remove-assignments", {"groupRoleAssignments": [ROLE_OF_GROUP]},
     row("admin", "404", owner="403")),
    ("GET", "/api/v1/config-policies/global/{workload}", None, USERS),
    ("PUT", "/api/v1/config-policies/global/{workload}", POLICY, row("cluster admin", owner="403", foreign="403")),
    ("DELETE", "/api/v1/config-policies/global/{workload}", None, ADMINS),
    ("GET", "/api/v1/config-policies/workspaces/{workspace_id}/{workload}", None, SEEN),
    ("PUT", "/api/v1/config-policies/workspaces/{workspace_id}/{workload}", POLICY, row("admin", owner="403")),
    ("DELETE", "/api/v1/config-policies/workspaces/{workspace_id}/{workload}", None, row("admin", owner="403")),
    # the master
    ("GET", "/api/v1/master/telemetry", None, USERS),
    ("GET", "/api/v1/master/config", None, ADMINS),
    ("PATCH", "/api/v1/master/config", {"config": {"log": {"level": "LOG_LEVEL_INFO"}}}, ADMINS),
    ("GET", "/config", None, ADMINS),
    ("GET", "/api/v1/master/logs", None, ADMINS),
    ("GET", "/logs", None, ADMINS),
    ("GET", "/api/v1/master/cluster_message", None, USERS),
    ("PUT", "/api/v1/master/cluster_message", {"message": "x", "startTime": "2026-01-01T00:00:00Z"}, ADMINS),
    ("DELETE", "/api/v1/master/cluster_message", None, ADMINS),
    ("GET", "/api/v1/undeterred/audit", None, ADMINS),
    ("GET", "/api/v1/undeterred/audit/verify", None, ADMINS),
    ("GET", "/debug/prom/metrics", None, ADMINS),
    # a provider's: there are none without its token in the settings, and with it for nobody else
    *((method, "/scim/v2/{kind}" + key, {}, OFF) for method, key in (("GET", ""), ("POST", ""), ("GET", "/{user_id}"),
                                                                    ("PUT", "/{user_id}"), ("PATCH", "/{user_id}"), ("DELETE", "/{user_id}"))),
    ("POST", "/api/v1/undeterred/temporal-codec/decode", {"payloads": []},
     row("cluster admin", owner="403", foreign="403", read_only="403")),
    # experiments
    ("GET", "/api/v1/experiments?orderBy=ORDER_BY_DESC", None, USERS),
    # a container acts for the owner of its experiment: the program of a custom search may run in a trial
    ("POST", "/api/v1/experiments", {"config": "{config}", "validateOnly": True},
     row("viewer", foreign="200", containers="200 200")),
    ("POST", "/api/v1/undeterred/experiments", {"experiments": [{"config": "{config}"}]},
     row("viewer", foreign="200", containers="200 200")),
    ("GET", "/api/v1/experiments/{experiment_id}", None, SEEN_BY_ALL),
    ("PATCH", "/api/v1/experiments/{experiment_id}", {"notes": "x"}, EDITORS),
    ("PATCH", "/experiments/{experiment_id}", {}, EDITORS),
    # 400: it is ACTIVE
    ("POST", "/api/v1/experiments/continue", {"id": "{experiment_id}"}, row("editor", "400")),
    ("DELETE", "/api/v1/experiments/{experiment_id}", None, row("editor", "400")),
    ("POST", "/api/v1/undeterred/experiments/{experiment_id}/gc", None, row("editor", "400")),
    ("GET", "/experiments/{experiment_id}/preview_gc", None, SEEN),
    ("POST", "/api/v1/experiments/{experiment_id}/{command}", None, TEMPORAL),
    ("GET", "/api/v1/experiments/{experiment_id}/trials", None, SEEN),
    ("GET", "/api/v1/experiments/{experiment_id}/checkpoints", None, SEEN),
    ("GET", "/api/v1/experiments/{experiment_id}/model_def", None, SEEN_BY_ALL),
    ("GET", "/experiments/{experiment_id}/model_def", None, SEEN_BY_ALL),
    ("GET", "/api/v1/experiments/{experiment_id}/searcher/best_searcher_validation_metric", None, SEEN_BY_ALL),
    ("GET", "/api/v1/experiment/labels", None, USERS),
    ("PUT", "/api/v1/experiments/{experiment_id}/labels/{label}", None, EDITORS),
    ("DELETE", "/api/v1/experiments/{experiment_id}/labels/{label}", None, EDITORS),
    ("PUT", "/api/v1/experiments/{experiment_id}/retain_logs", {"numDays": -1}, EDITORS),
    ("GET", "/api/v1/experiments/{experiment_id}/file_tree", None, SEEN),
    ("POST", "/api/v1/experiments/{experiment_id}/file", {"path": "train.py"}, SEEN),
    # 400: it is ACTIVE
    ("DELETE", "/api/v1/experiments/{experiment_id}/tensorboard-files", None, row("editor", "400")),
    # streams of an experiment go on while it is there: what is refused is refused at once
    ("GET", "/api/v1/experiments/metrics-stream/metric-names?ids={over_id}", None, SEEN),
    ("GET", "/api/v1/experiments/{over_id}/metrics-stream/metric-names", None, SEEN),
    ("GET", f"/api/v1/experiments/{{over_id}}/metrics-stream/batches?{LOSS}", None, SEEN),
    ("GET", f"/api/v1/experiments/{{over_id}}/metrics-stream/trials-sample?{LOSS}", None, SEEN),
    ("GET", f"/api/v1/experiments/{{over_id}}/metrics-stream/trials-snapshot?{LOSS}&batchesProcessed=1", None, SEEN),
    ("GET", "/api/v1/experiments/{experiment_id}/validation-history", None, SEEN),
    ("GET", "/api/v1/trials/{trial_id}/profiler/metrics", None, SEEN),
    ("GET", "/api/v1/trials/{trial_id}/summarize", None, SEEN),
    # there is none: what an unmanaged one's owner gets has a test of its own
    ("GET", "/api/v1/trials/by-external-id/{external_id}/{trial_id}", None, row("viewer", "404", read_only="404")),
    # many at once: 200 says of each what went wrong
    ("POST", "/api/v1/projects/{project_id}/experiments/{command}", {"experimentIds": ["{experiment_id}"]},
     "401 503 200 200 503 503 200 503 403 403 403 403"),
    ("DELETE", "/api/v1/projects/{project_id}/experiments/delete", {"experimentIds": ["{experiment_id}"]}, USERS_WRITE),
    ("POST", "/api/v1/projects/{project_id}/experiments/move",
     {"destinationProjectId": "{project_id}", "experimentIds": ["{experiment_id}"]}, row("contributor")),
    ("POST", "/api/v1/runs", {"projectId": "{project_id}"}, USERS),
    ("POST", "/api/v1/experiments-search", {"projectId": "{project_id}"}, USERS),
    ("POST", "/api/v1/undeterred/experiments-grid", {"projectId": "{project_id}"}, USERS),
    ("POST", "/api/v1/undeterred/runs-grid", {"projectId": "{project_id}"}, USERS),
    ("POST", "/api/v1/runs/{command}", {"runIds": ["{trial_id}"]}, USERS_WRITE),
    ("POST", "/api/v1/runs/move", {"destinationProjectId": "{project_id}", "runIds": ["{trial_id}"]},
     row("contributor")),
    ("PUT", "/api/v1/projects/{project_id}/experiments/retain_logs",
     {"numDays": -1, "experimentIds": ["{experiment_id}"]}, USERS_WRITE),
    # searches; 400 is the answer to who may: this one has decided nothing, and is no custom one
    ("GET", "/api/v1/experiments/{experiment_id}/search/history", None, SEEN),
    ("GET", "/api/v1/undeterred/experiments/{experiment_id}/budget", None, SEEN),
    ("PATCH", "/api/v1/undeterred/experiments/{experiment_id}/budget", {"slotHours": 1000}, EDITORS),
    ("GET", "/api/v1/undeterred/workspaces/{workspace_id}/budget", None, SEEN),
    ("PATCH", "/api/v1/undeterred/workspaces/{workspace_id}/budget", {"slotHours": 1000},
     row("cluster admin", owner="403")),
    ("GET", "/api/v1/undeterred/gates", None, USERS),
    ("POST", "/api/v1/undeterred/gates/{gate_id}/approve", None,
     "401 403 403 403 400 400 404 400 403 403 403 403"),  # it was decided before
    ("POST", "/api/v1/undeterred/gates/{gate_id}/deny", None,
     "401 403 403 403 400 400 404 400 403 403 403 403"),
    # who is asked by nobody but the signature
    ("POST", "/api/v1/undeterred/gates/{gate_id}/answer", {"webhook": "x", "approve": True},
     PUBLIC.replace("200", "403")),
    # campaigns; 400 is the answer to who may: this one has no schedule, and nothing is no definition
    ("GET", "/api/v1/undeterred/campaigns", None, USERS),
    ("POST", "/api/v1/undeterred/campaigns", {"definition": CAMPAIGN}, USERS_WRITE),
    ("GET", "/api/v1/undeterred/campaigns/{campaign_id}", None, SEEN),
    ("PUT", "/api/v1/undeterred/campaigns/{campaign_id}", {"definition": ""}, OF_CAMPAIGN_OWNER),
    ("POST", "/api/v1/undeterred/campaigns/{campaign_id}/pause", None, EDITORS),
    ("POST", "/api/v1/undeterred/campaigns/{campaign_id}/activate", None, EDITORS),
    ("POST", "/api/v1/undeterred/campaigns/{campaign_id}/backfill",
     {"start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"}, OF_CAMPAIGN_OWNER),
    ("GET", "/api/v1/undeterred/campaigns/{campaign_id}/runs", None, SEEN),
    ("POST", "/api/v1/undeterred/campaigns/{campaign_id}/runs", {}, EDITORS),
    ("GET", "/api/v1/undeterred/campaigns/{campaign_id}/runs/{number}", None, SEEN),
    ("POST", "/api/v1/undeterred/campaigns/{campaign_id}/runs/{number}/{command}", None, EDITORS),
    ("DELETE", "/api/v1/undeterred/campaigns/{spare_campaign_id}", None,
     "401 200 404 404 404 404 404 404 403 403 403 403"),
    ("GET", "/api/v1/undeterred/tokens/{token_id}/budget", None, "401 200 404 404 404 404 404 200 403 403 403 200"),
    ("PATCH", "/api/v1/undeterred/tokens/{token_id}/budget", {"slotHours": 1000},
     "401 200 404 404 404 404 404 200 403 403 403 403"),
    ("POST", "/api/v1/experiments/{experiment_id}/search/amend", {"maxTrials": 9}, TEMPORAL),
    ("POST", "/api/v1/undeterred/experiments/{experiment_id}/search/steer", {"action": "add", "hparams": {}}, TEMPORAL),
    ("POST", "/api/v1/undeterred/experiments/{experiment_id}/search/preview-amend", {"maxTrials": 9},
     row("editor", "400", read_only="400")),
    ("POST", "/api/v1/experiments/{experiment_id}/fork", {}, row("viewer", "400")),
    ("POST", "/api/v1/preview-hp-search", {"config": PREVIEWED}, USERS),
    ("POST", "/searcher/preview", PREVIEWED, USERS),
    ("GET", "/api/v1/experiments/{experiment_id}/searcher_events", None,
     row("viewer", "400", containers="400 404", read_only="400")),
    ("POST", "/api/v1/experiments/{experiment_id}/searcher_operations", {},
     row("editor", "400", containers="400 404")),
    # trials
    ("GET", "/api/v1/trials/metrics/{kind}", None, USERS),
    ("GET", "/api/v1/trials/{trial_id}", None, SEEN_BY_ALL),
    ("GET", "/api/v1/trials/{trial_id}/checkpoints", None, SEEN_BY_ALL),
    ("GET", "/api/v1/trials/{trial_id}/workloads", None, SEEN),
    ("GET", "/api/v1/trials/{trial_id}/logs", None, SEEN),
    ("GET", "/api/v1/undeterred/trials/{trial_id}/why", None, SEEN),
    ("GET", "/api/v1/undeterred/trials/{trial_id}/decisions", None, SEEN),
    ("GET", "/api/v1/undeterred/trials/{trial_id}/system-metrics", None, SEEN),
    ("GET", "/api/v1/undeterred/trials/{trial_id}/log-window", None, SEEN),
    ("GET", "/api/v1/undeterred/tasks/{task_id}/log-window", None, SEEN),
    ("GET", "/api/v1/undeterred/trials/{trial_id}/log-histogram", None, SEEN),
    ("GET", "/api/v1/undeterred/tasks/{task_id}/log-histogram", None, SEEN),
    ("GET", "/api/v1/undeterred/experiments/{experiment_id}/search", None, SEEN),
    ("GET", "/api/v1/undeterred/experiments/{experiment_id}/hyperparameters", None, SEEN),
    ("GET", "/api/v1/undeterred/experiments/{experiment_id}/importance", None, SEEN),
    ("GET", "/api/v1/undeterred/experiments/{experiment_id}/allocations", None, SEEN),
    ("GET", "/api/v1/undeterred/experiments/{experiment_id}/history", None, SEEN),
    ("GET", "/api/v1/undeterred/experiments/{experiment_id}/curves?metric=validation.loss", None, SEEN),
    ("POST", "/api/v1/undeterred/experiments/plan", {"config": "{config}"}, USERS),
    # a stream does not end: one that names no topic is refused to those who may open it
    ("GET", "/api/v1/undeterred/live", None, row("viewer", "400", foreign="400", read_only="400")),
    ("GET", "/api/v1/undeterred/experiments/{experiment_id}/why", None, SEEN),
    ("GET", "/api/v1/undeterred/tasks/{task_id}/why", None, SEEN),
    ("POST", "/api/v1/trials/{trial_id}/kill", None, TEMPORAL),
    ("POST", "/api/v1/trials/{trial_id}/metrics/batch", {"reports": [{"group": "a", **METRICS}]}, REPORT),
    ("POST", "/api/v1/trials/{trial_id}/metrics/curves",
     {"group": "c", "trialRunId": 1, "stepsCompleted": [1], "metrics": {"loss": [0.5]}}, REPORT),
    ("POST", "/api/v1/trials/{trial_id}/metrics", {"group": "b", "metrics": METRICS}, REPORT),
    ("POST", "/api/v1/trials/{trial_id}/{metrics_kind}_metrics", METRICS, REPORT),
    ("POST", "/api/v1/trials/{trial_id}/progress", 0.5, REPORT),
    ("POST", "/api/v1/trials/profiler/metrics", {"batches": [{"labels": {"trialId": "{trial_id}", "name": "x"}}]},
     REPORT),
    ("GET", "/api/v1/trials/{trial_id}/profiler/available_series", None, SEEN),
    ("POST", "/api/v1/trials/{trial_id}/early_exit", {"reason": "EXITED_REASON_INVALID_HP"}, CONTAINER),
    ("POST", "/api/v1/trials/{trial_id}/runner/metadata", {"state": "x"}, REPORT),
    ("GET", "/api/v1/trials/{trial_id}/searcher/operation", None, CONTAINER),
    ("POST", "/api/v1/trials/{trial_id}/searcher/completed_operation", {"op": {"length": 100}},
     "401 403 403 403 403 403 403 403 503 404 403 403"),
    ("GET", "/api/v1/trials/{trial_id}/logs/fields", None, SEEN),
    ("GET", "/api/v1/trials/{trial_id}/remaining_log_retention_days", None, SEEN),
    ("PUT", "/api/v1/trials/{trial_id}/retain_logs", {"numDays": -1}, EDITORS),
    ("GET", "/api/v1/trials/time-series?trialIds={trial_id}", None, SEEN),
    ("GET", "/api/v1/trials/compare?trialIds={trial_id}", None, SEEN),
    ("GET", "/api/v1/runs/{trial_id}/metadata", None, SEEN_BY_ALL),
    ("POST", "/api/v1/runs/{trial_id}/metadata", {"metadata": {}}, row("editor", containers="200 404")),
    # allocations
    ("GET", "/api/v1/allocations/{allocation_id}/signals/preemption?timeout_seconds=0", None, CONTAINER),
    ("POST", "/api/v1/allocations/{allocation_id}/signals/ack_preemption", None, CONTAINER),
    ("POST", "/api/v1/allocations/{allocation_id}/signals/pending_preemption", None, "401 403 403 403 403 403 403 403 503 404 403 403"),
    ("POST", "/api/v1/allocations/{allocation_id}/ready", None, CONTAINER),
    ("GET", "/api/v1/allocations/{allocation_id}/resources/{resources_id}/rendezvous", None, CONTAINER),
    ("POST", "/api/v1/allocations/{allocation_id}/acceleratorData", {}, CONTAINER),
    ("POST", "/api/v1/allocations/{allocation_id}/proxy_address", {}, CONTAINER),
    ("POST", "/api/v1/allocations/{allocation_id}/waiting", {}, CONTAINER),
    ("POST", "/api/v1/allocations/{allocation_id}/all_gather", {"data": {}}, CONTAINER),
    ("POST", "/api/v1/allocations/{allocation_id}/notify_container_running", {"data": {}}, CONTAINER),
    ("POST", "/api/v1/allocations/{allocation_id}/resources/{resources_id}/daemon", {}, CONTAINER),
    ("POST", "/api/v1/runs/start", {"runId": "{trial_id}"}, REPORT),
    # tasks
    ("GET", "/api/v1/tasks/{task_id}", None, SEEN),
    # contexts in chunks: a user's own; the task has its files in one piece
    ("POST", "/api/v1/undeterred/contexts/missing", {"chunks": ["0000000000000000000000000000000000000000000000000000000000000000"]}, USERS_WRITE),
    ("PUT", "/api/v1/undeterred/contexts/chunks/{chunk}", {"a": "chunk"}, USERS_WRITE),
    ("POST", "/api/v1/undeterred/contexts", {"chunks": [], "files": [{"path": "empty"}]}, USERS_WRITE),
    ("GET", "/api/v1/undeterred/tasks/{task_id}/context", None, "401 404 404 404 404 404 404 404 404 404 404 404"),
    ("GET", "/api/v1/tasks/{task_id}/context_directory", None, "401 404 404 404 404 404 404 404 200 404 404 404"),
    ("GET", "/api/v1/tasks/{task_id}/logs", None, SEEN),
    ("GET", "/api/v1/tasks/{task_id}/logs/fields", None, SEEN),
    ("GET", "/api/v1/tasks", None, USERS),
    ("GET", "/tasks", None, USERS),
    ("GET", "/api/v1/tasks/count", None, USERS),
    ("GET", "/api/v1/tasks/{task_id}/acceleratorData", None, SEEN),
    ("GET", "/api/v1/allocations/{allocation_id}", None, SEEN_BY_ALL),
    ("POST", "/api/v1/cleanup_logs", None, ADMINS),
    ("POST", "/api/v1/task/logs", {"logs": [{"taskId": "{task_id}", "log": "x"}]}, LOGS),
    ("POST", "/task-logs", [{"task_id": "{task_id}", "log": "x"}], LOGS),
    # unmanaged trials: 400 is the answer to who may change the experiment, which is managed
    ("PUT", "/api/v1/experiments/by-external-id/{external_id}", {"config": "{config}"},
     "401 200 403 403 403 403 403 200 403 403 403 403"),
    ("POST", "/api/v1/trials", {"experimentId": "{experiment_id}", "unmanaged": True}, row("editor", "400")),
    ("PUT", "/api/v1/trials", {"externalTrialId": "x", "createTrialRequest": {"experimentId": "{experiment_id}",
     "unmanaged": True}}, row("editor", "400")),
    ("POST", "/api/v1/trials/{trial_id}/start", {}, row("editor", "400")),
    ("PATCH", "/api/v1/trials/{trial_id}", {"trialId": "{trial_id}"}, row("editor", "400")),
    # checkpoints: any container may report its own
    ("POST", "/api/v1/checkpoints", {"uuid": "{new}", "metadata": {"steps_completed": 1}},
     "401 404 404 404 404 404 404 404 200 200 403 403"),
    ("GET", "/api/v1/checkpoints/{uuid}", None, SEEN_BY_ALL),
    ("POST", "/api/v1/checkpoints/{uuid}/metadata", {"checkpoint": {"metadata": {}}}, EDITORS),
    ("GET", "/checkpoints/{uuid}", None, SEEN_BY_ALL),
    ("GET", "/api/v1/undeterred/checkpoints/{uuid}/files", None, SEEN_BY_ALL),
    ("GET", "/api/v1/undeterred/checkpoints/{uuid}/file?path=weights", None, SEEN_BY_ALL),
    ("PATCH", "/api/v1/checkpoints", {"checkpoints": [{"uuid": "{uuid}", "resources": {"resources": {"weights": "1"}}}]},
     row("editor", containers="200 404")),
    ("POST", "/api/v1/checkpoints/rm", {"checkpointUuids": ["{uuid}"], "checkpointGlobs": ["nothing"]}, EDITORS),
    ("DELETE", "/api/v1/checkpoints", {"checkpointUuids": ["{uuid}"]}, EDITORS),
    # workspaces, projects and pools
    ("GET", "/api/v1/workspaces", None, READERS),
    ("POST", "/api/v1/workspaces", {"name": "{new}"}, USERS_WRITE),
    ("GET", "/api/v1/workspaces/{workspace_id}", None, SEEN_BY_ALL),
    ("PATCH", "/api/v1/workspaces/{workspace_id}", {}, OF_ADMINS),
    ("DELETE", "/api/v1/workspaces/{workspace_id}", None, row("admin", "400", owner="403")),
    ("POST", "/api/v1/workspaces/{spare_workspace_id}/archive", None, OF_ADMINS),
    ("POST", "/api/v1/workspaces/{spare_workspace_id}/unarchive", None, OF_ADMINS),
    ("POST", "/api/v1/workspaces/{workspace_id}/pin", None, row("viewer")),
    ("POST", "/api/v1/workspaces/{workspace_id}/unpin", None, row("viewer")),
    ("GET", "/api/v1/workspaces/{workspace_id}/available-resource-pools", None, SEEN_BY_ALL),
    ("GET", "/api/v1/workspaces/{workspace_id}/list-namespace-bindings", None, SEEN),
    ("GET", "/api/v1/workspaces/{workspace_id}/get-k8s-resource-quotas", None, SEEN),
    ("POST", "/api/v1/workspaces/{workspace_id}/namespace-bindings", {}, OF_ADMINS),
    ("DELETE", "/api/v1/workspaces/{workspace_id}/namespace-bindings", None, OF_ADMINS),
    ("POST", "/api/v1/workspaces/{workspace_id}/set-resource-quota", {}, OF_ADMINS),
    ("GET", "/api/v1/namespace-bindings/workspace-ids-with-default-bindings", None, USERS),
    ("POST", "/api/v1/namespace-bindings/bulk-auto-create", {}, row("viewer", "501", foreign="501")),
    ("GET", "/api/v1/workspaces/{workspace_id}/projects", None, SEEN_BY_ALL),
    ("POST", "/api/v1/workspaces/{workspace_id}/projects", {"name": "{new}"}, OF_EDITORS),
    ("GET", "/api/v1/projects/{project_id}", None, SEEN_BY_ALL),
    ("GET", "/api/v1/projects/key/{project_key}", None, SEEN),
    ("PATCH", "/api/v1/projects/{project_id}", {}, OF_EDITORS),
    ("DELETE", "/api/v1/projects/{project_id}", None, row("editor", "400", owner="403")),
    ("POST", "/api/v1/projects/{spare_project_id}/archive", None, OF_EDITORS),
    ("POST", "/api/v1/projects/{spare_project_id}/unarchive", None, OF_EDITORS),
    ("POST", "/api/v1/projects/{project_id}/move", {"destinationWorkspaceId": "{workspace_id}"}, OF_EDITORS),
    ("PUT", "/api/v1/projects/{project_id}/notes", {"notes": []}, OF_EDITORS),
    ("POST", "/api/v1/projects/{project_id}/notes", {"name": "n"}, OF_EDITORS),
    ("POST", "/api/v1/experiments/{experiment_id}/move", {"destinationProjectId": "{project_id}"}, EDITORS),
    ("GET", "/api/v1/projects/{project_id}/columns", None, SEEN),
    ("GET", "/api/v1/projects/{project_id}/experiments/metric-ranges", None, SEEN),
    ("GET", "/api/v1/projects/{project_id}/metadata/{metadata_key}", None, SEEN),
    ("GET", "/api/v1/user/projects/activity", None, USERS),
    ("POST", "/api/v1/users/activity", {"entityId": "{project_id}"}, row("viewer")),
    ("GET", "/api/v1/resource-pools/{pool}/workspace-bindings", None, USERS),
    ("GET", "/api/v1/resource-pool-access", None, ADMINS),
    ("PUT", "/api/v1/resource-pool-access/{pool}", {"mode": "public"}, ADMINS),
    ("POST", "/api/v1/resource-pool-access/{pool}/grant", {"usernames": ["{username}"]}, ADMINS),
    ("POST", "/api/v1/resource-pool-access/{pool}/revoke", {"usernames": ["{admin_name}"]},
     row("cluster admin", "400", owner="403", foreign="403")),
    ("GET", "/api/v1/undeterred/resource-pools/{pool}", None, USERS),
    ("POST", "/api/v1/undeterred/resource-pools", {"name": "{new}"}, ADMINS),
    ("PATCH", "/api/v1/undeterred/resource-pools/{pool}", {"description": "x"}, ADMINS),
    ("DELETE", "/api/v1/undeterred/resource-pools/{spare_pool}", None, ADMINS),
    ("GET", "/api/v1/undeterred/resource-pools/{pool}/settings", None, USERS),
    ("PATCH", "/api/v1/undeterred/resource-pools/{pool}/settings", {"settings": {}}, ADMINS),
    ("POST", "/api/v1/resource-pools/{pool}/workspace-bindings", {"workspaceIds": ["{workspace_id}"]}, ADMINS),
    ("PUT", "/api/v1/resource-pools/{pool}/workspace-bindings", {}, ADMINS),
    ("DELETE", "/api/v1/resource-pools/{pool}/workspace-bindings", {}, ADMINS),
    # models: a container acts for the owner of its experiment, who is a contributor here
    ("GET", "/api/v1/model/labels", None, READERS),
    ("GET", "/api/v1/models", None, READERS),
    ("POST", "/api/v1/models", {"name": "{new}"}, row("viewer", foreign="200", containers="200 200")),
    ("GET", "/api/v1/models/{model}", None, SEEN_BY_ALL),
    ("PATCH", "/api/v1/models/{model}", {}, MODEL_EDITORS),
    ("POST", "/api/v1/models/{shelved_model}/archive", None, MODEL_EDITORS),
    ("POST", "/api/v1/models/{shelved_model}/unarchive", None, MODEL_EDITORS),
    ("POST", "/api/v1/models/{model}/move", {"destinationWorkspaceId": "{workspace_id}"}, MODEL_EDITORS),
    # the first one who may delete does: there is nothing left then
    ("DELETE", "/api/v1/models/{spare_model}", None, "401 403 403 403 200 404 404 404 404 404 403 403"),
    ("GET", "/api/v1/models/{model}/versions", None, SEEN_BY_ALL),
    ("POST", "/api/v1/models/{model}/versions", {"checkpointUuid": "{kept_uuid}"},
     row("contributor", containers="200 404")),
    ("GET", "/api/v1/models/{model}/versions/{number}", None, SEEN_BY_ALL),
    ("PATCH", "/api/v1/models/{model}/versions/{number}", {}, MODEL_EDITORS),
    ("DELETE", "/api/v1/models/{model}/versions/{spare_number}", None, "401 403 403 403 200 404 404 404 404 404 403 403"),
    ("GET", "/api/v1/models/{model}/versions/{number}/metrics", None, SEEN_BY_ALL),
    ("GET", "/api/v1/checkpoints/{uuid}/metrics", None, SEEN_BY_ALL),
    ("POST", "/api/v1/trial-source-info", {"trialSourceInfo": SOURCE}, CONTAINER),
    # templates
    ("GET", "/api/v1/templates", None, USERS),
    ("GET", "/api/v1/templates/{template}", None, SEEN),
    ("POST", "/api/v1/templates/{new_template}", {"config": {"max_restarts": 1}, "workspaceId": "{workspace_id}"},
     "401 200 403 409 409 409 404 409 403 403 403 403"),
    ("PUT", "/api/v1/templates/{template}", {"config": {"max_restarts": 1}}, row("editor", owner="403", foreign="409")),
    ("PATCH", "/api/v1/templates/{template}", {"max_restarts": 1}, OF_EDITORS),
    ("PATCH", "/api/v1/template/rename", {"oldName": "{template}", "newName": "{template}"}, OF_EDITORS),
    ("DELETE", "/api/v1/templates/{spare_template}", None, "401 403 403 403 200 404 404 404 403 403 403 403"),
    ("GET", "/templates", None, USERS),
    ("GET", "/templates/{template}", None, SEEN),
    ("PUT", "/templates/{template}", {"max_restarts": 1}, row("editor", owner="403", foreign="409")),
    ("DELETE", "/templates/{last_template}", None, "401 403 403 403 200 404 404 404 403 403 403 403"),
    # webhooks
    ("GET", "/api/v1/webhooks", None, USERS),
    ("POST", "/api/v1/webhooks", WEBHOOK, OF_EDITORS),
    ("PATCH", "/api/v1/webhooks/{webhook_id}", {}, OF_EDITORS),
    ("DELETE", "/api/v1/webhooks/{spare_webhook_id}", None, "401 403 403 403 200 404 404 404 403 403 403 403"),
    ("POST", "/api/v1/webhooks/{webhook_id}/test", None, OF_EDITORS),
    ("POST", "/api/v1/webhooks/custom", {"experimentId": "{experiment_id}", "data": {"title": "x"}},
     row("editor", containers="200 404")),
    ("GET", "/api/v1/undeterred/webhooks/{webhook_id}/deliveries", None, OF_EDITORS),
    # agents
    ("POST", "/api/v1/undeterred/allocations/{spare_id}/containers/{rank}/launch", None, AGENT),
    ("POST", "/api/v1/undeterred/allocations/{allocation_id}/{progress}", None, AGENT),
    ("POST", "/api/v1/undeterred/allocations/{spare_id}/containers/{rank}/killed", None, AGENT),
    ("POST", "/api/v1/undeterred/agents/{agent_id}/reconcile", {"allocations": []}, AGENT),
    ("POST", "/api/v1/undeterred/agents/{agent_id}/hello", {"pool": "default", "devices": []},
     AGENT.replace("200", "503")),
    ("POST", "/api/v1/undeterred/agents/{agent_id}/present", {"pool": "default", "devices": []},
     AGENT.replace("200", "503")),
    ("POST", "/api/v1/undeterred/agents/join", {"token": "wrong", "agentId": "x", "credential": "agent-" + "0" * 64},
     " ".join(["401"] * 12)),
    ("GET", "/api/v1/undeterred/authority", None, PUBLIC),
    ("GET", "/api/v1/undeterred/agent-join-tokens", None, row("cluster admin", owner="403", foreign="403")),
    ("POST", "/api/v1/undeterred/agent-join-tokens", {}, ADMINS),
    ("DELETE", "/api/v1/undeterred/agent-join-tokens/{last_join_token_id}", None, ADMINS),
    ("POST", "/api/v1/undeterred/agents/{agent_id}/removals/{removal_id}", None, AGENT),
    ("DELETE", "/api/v1/undeterred/agents/{spare_agent_id}", None, ADMINS),
    # commands and generic tasks of the owner
    ("GET", "/api/v1/commands", None, USERS),
    ("POST", "/api/v1/commands", COMMAND | {"workspaceId": "{workspace_id}"}, row("contributor")),
    ("GET", "/api/v1/commands/{command_id}", None, SEEN),
    ("POST", "/api/v1/commands/{command_id}/set_priority", {"priority": 5}, EDITORS),
    ("POST", "/api/v1/commands/{spare_command_id}/kill", None, EDITORS),
    # a notebook's own container reports; these are of trials
    ("PUT", "/api/v1/notebooks/{notebook_id}/report_idle", {"idle": True}, row("editor", containers="404 404", agent="404")),
    ("GET", "/notebooks/{notebook_id}/events", None, SEEN),
    ("GET", "/shells/{shell_id}/events", None, SEEN),
    ("GET", "/tensorboard/{tensorboard_id}/events", None, SEEN),
    ("GET", "/api/v1/generic-tasks", None, USERS),
    ("POST", "/api/v1/generic-tasks", {"config": "entrypoint: [a]", "projectId": "{project_id}"}, row("contributor")),
    ("GET", "/api/v1/tasks/{generic_id}/config", None, SEEN),
    ("PATCH", "/api/v1/undeterred/tasks/{command_id}/limits", {"maxLifetime": "8h"}, EDITORS),
    ("POST", "/api/v1/tasks/{spare_generic_id}/kill", {}, EDITORS),
    ("POST", "/api/v1/tasks/{generic_id}/pause", None, ONCE),
    ("POST", "/api/v1/tasks/{paused_id}/unpause", None, ONCE),
    ("GET", "/api/v1/submissions", None, USERS),
    ("GET", "/api/v1/submissions/{submitted_id}", None, SEEN),
    ("POST", "/api/v1/submissions/{submitted_id}/cancel", None, EDITORS),
]  # fmt: skip


#: Known to clients and not served: whoever may ask is told so. `task` is none.
NOT_SERVED = row("viewer", "501", foreign="501")
NOT_SERVED_READ = row("viewer", "501", foreign="501", read_only="501")
for _kind in KINDS:
    ROWS += [
        ("GET", f"/api/v1/{_kind}s", None, USERS),
        ("POST", f"/api/v1/{_kind}s", LAUNCH | {"workspaceId": "{workspace_id}"}, row("contributor")),
        ("GET", f"/api/v1/{_kind}s/{{{_kind}_id}}", None, SEEN),
        ("POST", f"/api/v1/{_kind}s/{{{_kind}_id}}/set_priority", {"priority": 5}, EDITORS),
        ("POST", f"/api/v1/{_kind}s/{{spare_{_kind}_id}}/kill", None, EDITORS),
    ]
ROWS += [
    (method, path, None, NOT_SERVED_READ if method == "GET" or path in READING_POSTS else NOT_SERVED)
    for method, path in (
        ("GET", "/api/v1/experiments/{experiment_id}/hyperparameter-importance"),
        ("GET", "/api/v1/k8s-resource-managers"),
        ("GET", "/api/v1/trial-comparison/collections"),
        ("POST", "/api/v1/trial-comparison/collections"),
        ("PATCH", "/api/v1/trial-comparison/collections"),
        ("DELETE", "/api/v1/trial-comparison/collections"),
        ("POST", "/api/v1/trial-comparison/{command}"),
    )
]


def routes() -> Iterator[tuple[str, str]]:
    """Method and path of every route, with one name for every field of a path."""
    app = create_app(ApiSettings(database_url="sqlite://", agent_token="x"))  # pyright: ignore[reportArgumentType]
    for route in app.routes:
        for method in sorted(getattr(route, "methods", set()) - {"HEAD"}):  # none: a WebSocket
            yield method, generic(str(vars(route)["path"]))


def generic(path: str) -> str:
    parts = path.partition("?")[0].split("/")
    return "/".join("{}" + part[part.index("}") + 1 :] if part.startswith("{") else part for part in parts)


def test_every_route_has_a_row_when_routes_are_added() -> None:
    assert sorted((method, generic(path)) for method, path, _, _ in ROWS) == sorted(routes())


class World:
    """An experiment of `owner` in a private workspace with all that belongs to it, and everybody else."""

    def __init__(self, api: Served) -> None:
        self._api = api
        self.owner, self.viewer, self.contributor, self.editor, self.admin, self.foreign = (
            api.user() for _ in range(6)
        )
        self.cluster_admin = api.user(is_admin=True)
        self._users = [
            self.owner, self.viewer, self.contributor, self.editor, self.admin, self.foreign, self.cluster_admin
        ]  # fmt: skip

    async def build(self) -> None:
        """Write it all down."""
        api, owner = self._api, self.owner
        workspace_id, project_id, group_id = await asyncio.to_thread(self._organize)
        run, self.elsewhere = await api.trial(owner), await api.trial(self.foreign)
        with api.database.write() as session:
            session.execute(update(Experiment).where(Experiment.id == run.experiment_id).values(project_id=project_id))
        spare = await api.another_trial(run.experiment_id)
        over_id = await api.experiment(owner)
        submit = {"config": {"entrypoint": ["a"]}, "workspaceId": workspace_id, "submit": {"idempotencyKey": "k"}}
        submitted = await owner.post("/api/v1/commands", submit)
        with api.database.write() as session:
            values = {"project_id": project_id, "state": "COMPLETED"}
            session.execute(update(Experiment).where(Experiment.id == over_id).values(values))
        slots = AgentSlots(agent_id="agent-a", slot_ids=(0, 1))
        recorded = RecordAgent(agent_id="agent-a", revision=1, pool="default", slots=slots, is_connected=True)
        await asyncio.to_thread(api.an_agent, recorded)
        self._container = run.container
        checkpoint = str(uuid.uuid4())
        folder = api.folder / checkpoint
        folder.mkdir()
        (folder / "weights").write_bytes(b"1")
        (folder / "metadata.json").write_text("{}")
        await run.report("validation", 1, {"loss": 1.0})
        reported = {"uuid": checkpoint, "metadata": {"steps_completed": 1}, "resources": {"weights": 1}}
        await run.container.post("/api/v1/checkpoints", reported)
        with api.database.write() as session:
            removal_id = post_removal(session, session.get_one(Experiment, run.experiment_id)).id
            ended = Import(mode="PLAN", state="COMPLETED", shown_source="old", owner_id=owner.user_id)
            gate = Gate(experiment_id=run.experiment_id, what="promotion", number=1, state="DENIED", decided_by="x",
                        rule={"what": "promotion", "rung": 1, "by": "editor"})  # fmt: skip
            session.add_all((ended, gate))
            session.flush()
        self.fields: dict[str, Any] = {
            "user_id": owner.user_id, "username": owner.username, "experiment_id": run.experiment_id, "command": "pause",
            "trial_id": run.trial_id, "task_id": run.task_id, "allocation_id": run.allocation_id, "uuid": checkpoint,
            "import_id": ended.id, "gate_id": gate.id, "removal_id": removal_id, "spare_id": spare.allocation_id, "resources_id": f"{run.allocation_id}-0", "rank": 0, "progress": "running",
            "agent_id": "agent-a", "slot_id": "0", "page": "login", "asset": "icon.svg", "digest": web_files.load().digest,
            "kind": "validation_metrics", "metrics_kind": "training", "config": yaml.safe_dump(api.config()),
            "workspace_id": workspace_id, "project_id": project_id, "group_id": group_id, "role_id": 4, "workload": "EXPERIMENT",
            "over_id": over_id, "submitted_id": submitted["submission"]["jobId"], "label": "x", "chunk": "a15b18fb8a0353fa5b6491e378bf3379bcd0d34cd518e3a2bd97486e1c123cff", "external_id": str(uuid.uuid4()),
            "token_id": (await owner.post("/api/v1/tokens"))["tokenId"],
        }  # fmt: skip
        path = f"/api/v1/experiments/{run.experiment_id}"
        with api.database.read() as session:
            names = session.execute(
                select(Workspace.name, Project.name)
                .join(Project, Project.workspace_id == Workspace.id)
                .where(Project.id == project_id)
            ).one()
        renamed = {"name": f"experiment {uuid.uuid4()}", "labels": [f"label {uuid.uuid4()}"]}
        await owner.patch(path, renamed)
        #: What only who sees the workspace may read, anywhere.
        self.secrets = [*names, renamed["name"], *renamed["labels"], run.request_id, spare.request_id, checkpoint]
        self.fields |= {"task": "none", "job_id": (await owner.get(path))["experiment"]["jobId"]}
        for name in ("spare_group_id", "last_group_id"):
            made = await self.cluster_admin.post("/api/v1/groups", {"name": f"{name} {uuid.uuid4()}"})
            self.fields[name] = made["group"]["groupId"]

        await self._launch(owner)
        await self._furnish(run.container, workspace_id)
        # of nobody's workspace, and seen by all
        spare = RecordAgent(agent_id=f"agent-{uuid.uuid4()}", revision=1, pool="elsewhere",
                            slots=slots.model_copy(update={"slot_ids": ()}), is_connected=False)  # fmt: skip
        await asyncio.to_thread(api.an_agent, spare)
        made = await self.cluster_admin.post("/api/v1/undeterred/agent-join-tokens", {})
        self.fields |= {"spare_agent_id": spare.agent_id, "last_join_token_id": made["tokenId"]}

    async def _launch(self, owner: Caller) -> None:
        """Commands and generic tasks of the owner, and spare ones that rows may end."""
        body = self.filled(COMMAND | {"workspaceId": "{workspace_id}"})
        for name in ("command_id", "spare_command_id"):
            self.fields[name] = (await owner.post("/api/v1/commands", body))["command"]["id"]
        body = self.filled(LAUNCH | {"workspaceId": "{workspace_id}"})
        for kind in KINDS:
            for name in (f"{kind}_id", f"spare_{kind}_id"):
                self.fields[name] = (await owner.post(f"/api/v1/{kind}s", body))[kind]["id"]
        body = self.filled({"config": "entrypoint: [a]", "projectId": "{project_id}"})
        for name in ("generic_id", "spare_generic_id", "paused_id"):
            self.fields[name] = (await owner.post("/api/v1/generic-tasks", body))["taskId"]
        await owner.post(f"/api/v1/tasks/{self.fields['paused_id']}/pause")
        with self._api.database.read() as session:
            project = session.get_one(Project, self.fields["project_id"])
            workspace = session.get_one(Workspace, project.workspace_id)
        place = f"workspace: {workspace.name}\nproject: {project.name}\n"
        for name in ("campaign_id", "spare_campaign_id"):
            made = await owner.post("/api/v1/undeterred/campaigns", {"definition": place + CAMPAIGN})
            self.fields[name] = made["campaign"]["id"]
        await owner.post(f"/api/v1/undeterred/campaigns/{self.fields['campaign_id']}/runs")

    async def _furnish(self, container: Caller, workspace_id: int) -> None:
        """What is registered in the workspace by its administrators, and spare things that rows may use up."""
        admin, mark, fields = self.cluster_admin, uuid.uuid4().hex, self.fields
        fields |= {
            "kept_uuid": str(uuid.uuid4()),
            "number": 1,
            "spare_number": 2,
            "metadata_key": "a.b",
            "pool": f"pool-{mark}",
            "spare_pool": f"spare-pool-{mark}",
            "admin_name": admin.username,
        }
        with self._api.database.write() as session:
            session.add_all(ResourcePool(name=fields[name]) for name in ("pool", "spare_pool"))
            spare = Workspace(name=f"spare {mark}", owner_id=admin.user_id)
            session.add(spare)
            session.flush()
            for role, user in zip(
                ("contributor", "viewer", "contributor", "editor", "admin"), self._users, strict=False
            ):
                session.add(RoleAssignment(role=role, user_id=user.user_id, workspace_id=spare.id))
            fields["spare_workspace_id"] = spare.id
        made = await admin.post(f"/api/v1/workspaces/{workspace_id}/projects", {"name": "spare"})
        fields |= {"spare_project_id": made["project"]["id"], "project_key": made["project"]["key"]}
        await container.post("/api/v1/checkpoints", {"uuid": fields["kept_uuid"], "metadata": {"steps_completed": 2}})
        for name in ("model", "shelved_model", "spare_model"):
            fields[name] = f"{name} {mark}"
            await admin.post("/api/v1/models", {"name": fields[name], "workspaceId": workspace_id})
        for _ in range(2):
            await admin.post(f"/api/v1/models/{fields['model']}/versions", {"checkpointUuid": fields["kept_uuid"]})
        fields["new_template"] = f"new {mark}"
        for name in ("template", "spare_template", "last_template"):
            fields[name] = f"{name} {mark}"
            body = {"config": {"max_restarts": 1}, "workspaceId": workspace_id}
            await admin.post(f"/api/v1/templates/{fields[name]}", body)
        for name in ("webhook_id", "spare_webhook_id"):
            fields[name] = (await admin.post("/api/v1/webhooks", self.filled(WEBHOOK)))["webhook"]["id"]

    def _organize(self) -> tuple[int, int, int]:
        """The workspace, its project, and the viewers' group."""
        with self._api.database.write() as session:
            workspace = Workspace(name=f"workspace {uuid.uuid4()}", owner_id=self.cluster_admin.user_id, everyone=None)
            group = Group(name=f"viewers {uuid.uuid4()}")
            session.add_all([workspace, group])
            session.flush()
            project = Project(
                workspace_id=workspace.id, name=f"project {uuid.uuid4()}", owner_id=self.cluster_admin.user_id
            )
            session.add(project)
            session.add(GroupMember(group_id=group.id, user_id=self.viewer.user_id))
            session.add(RoleAssignment(role="viewer", group_id=group.id, workspace_id=workspace.id))
            for role, user in (
                ("contributor", self.owner), ("contributor", self.contributor), ("editor", self.editor),
                ("admin", self.admin),
            ):  # fmt: skip
                session.add(RoleAssignment(role=role, user_id=user.user_id, workspace_id=workspace.id))
            session.flush()
            return workspace.id, project.id, group.id

    def callers(self) -> list[Caller]:
        """In the order of the table; users with a session of their own, because some requests end it."""
        sessions = [self._api.session_of(user.user_id, user.username) for user in self._users]
        read_only = self._api.session_of(self.owner.user_id, self.owner.username, scope="read-only")
        others = [self._container, self.elsewhere.container, self._api.agent, read_only]
        return [self._api.nobody, *sessions, *others]

    def filled(self, value: Any) -> Any:
        """A body with the world's ids in it."""
        if isinstance(value, dict):
            return {key: self.filled(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.filled(item) for item in value]
        if value == "{new}":
            return str(uuid.uuid4())
        return value.format(**self.fields) if isinstance(value, str) else value


@pytest.fixture(scope="module")
async def world(api: Served) -> World:
    """One for each engine: no row changes what another one needs."""
    world = World(api)
    await world.build()
    return world


@pytest.mark.parametrize(("method", "path", "body", "expected"), ROWS, ids=[f"{row[0]} {row[1]}" for row in ROWS])
async def test_caller_gets_what_the_table_says_when_it_asks(
    world: World, method: str, path: str, body: Any, expected: str
) -> None:
    path = path.format(**world.fields)
    found = [(await who.ask(method, path, world.filled(body))) for who in world.callers()]
    assert " ".join(str(answer.status_code) for answer in found) == expected.strip(), [answer.text for answer in found]
    for answer in found:
        if answer.status_code >= 400:
            error = answer.json()
            assert error["message"] == error["error"]["error"]


ALL_REFUSED = "401 400 400 400 400 400 400 400 403 403 403 403"
#: What in the mode `basic` does not follow from the table of the mode `rbac`.
IN_BASIC: dict[tuple[str, str], str] = {
    # not by roles: the viewer is a member of the group
    ("GET", "/api/v1/roles/search/by-group/{group_id}"): "401 403 200 403 403 403 403 200 403 403 403 403",
    # roles are not in force
    ("POST", "/api/v1/roles/add-assignments"): ALL_REFUSED,
    ("POST", "/api/v1/roles/remove-assignments"): ALL_REFUSED,
    # a container acts for its owner, who is a contributor everywhere; but never has another experiment's files
    ("POST", "/api/v1/models/{model}/versions"): row("contributor", foreign="200", containers="200 200").replace(
        "401 200 403", "401 200 200"
    ),
    ("POST", "/api/v1/experiments/{experiment_id}/searcher_operations"):
        "401 400 403 403 403 403 403 400 400 403 403 403",
    ("GET", "/api/v1/experiments/{experiment_id}/model_def"): "401 200 200 200 200 200 200 200 200 404 403 200",
    ("GET", "/experiments/{experiment_id}/model_def"): "401 200 200 200 200 200 200 200 200 404 403 200",
}  # fmt: skip


def in_basic(method: str, path: str, codes: str) -> str:
    """The twelve codes in the mode `basic`: all users but the owner are what a contributor is, and see what he sees."""
    if (method, path) in IN_BASIC:
        return IN_BASIC[method, path]
    nobody, owner, _, contributor, editor, *_, cluster_admin, own, other, agent, read_only = codes.split()
    if (editor, cluster_admin) == ("200", "404"):
        cluster_admin = "200"  # the first one who may delete it is he
    if other == "404" and owner != "404" and contributor != "403" and method == "GET" and "{trial_id}" not in path:
        other = own
    if (own, other) == ("403", "404"):
        other = "403"
    return " ".join([nobody, owner, *[contributor] * 5, cluster_admin, own, other, agent, read_only])


@pytest.fixture(scope="module")
async def basic_world(basic_api: Served) -> World:
    world = World(basic_api)
    await world.build()
    return world


@pytest.mark.parametrize(("method", "path", "body", "expected"), ROWS, ids=[f"{row[0]} {row[1]}" for row in ROWS])
async def test_caller_gets_what_the_table_says_in_the_mode_basic(
    basic_world: World, method: str, path: str, body: Any, expected: str
) -> None:
    expected, path = in_basic(method, path, expected), path.format(**basic_world.fields)
    found = [(await who.ask(method, path, basic_world.filled(body))) for who in basic_world.callers()]
    assert " ".join(str(answer.status_code) for answer in found) == expected, [answer.text for answer in found]


async def test_foreign_user_reads_nothing_of_a_private_workspace_whatever_he_asks(world: World) -> None:
    """Lists, streams and searches leave out what their reader may not see, instead of refusing to answer."""
    told: dict[str, str] = {}
    for method, path, body, expected in ROWS:
        if expected.split()[6] != "200" or (method != "GET" and path not in READING_POSTS):
            continue
        for who in (world.foreign, world.viewer):
            answer = await who.ask(method, path.format(**world.fields), world.filled(body))
            shown = [name for name in world.secrets if name in answer.text]
            if who is world.foreign:
                assert not shown, f"{method} {path} tells {shown}"
            else:
                told |= dict.fromkeys(shown, path)
    assert {"workspace", "project", "label", "experiment"} <= {name.split()[0] for name in told}, "or it proves nothing"


async def test_every_change_leaves_one_entry_in_the_audit_log_whichever_it_is(world: World, api: Served) -> None:
    """Whatever an administrator is answered with success, unless it only reads, reports, uploads or notes a look at a page."""
    admin = world.cluster_admin
    changes = 0
    for method, path, body, codes in ROWS:
        if method == "GET" or path in READING_POSTS or path == "/api/v1/users/activity" or codes == REPORT:
            continue
        if path.startswith("/api/v1/undeterred/contexts"):  # what is created with them is an entry
            continue
        who = api.session_of(admin.user_id, admin.username)
        before = (await admin.get("/api/v1/undeterred/audit", limit=1))["pagination"]["total"]
        answer = await who.ask(method, path.format(**world.fields), world.filled(body))
        log = await admin.get("/api/v1/undeterred/audit", limit=1)
        expected = int(answer.status_code == 200)
        assert log["pagination"]["total"] - before == expected, f"{method} {path}: {answer.status_code} {answer.text}"
        if expected:
            [entry] = log["entries"]
            assert (entry["actor"], entry["method"]) == (admin.username, method)
            assert generic(entry["route"]) == generic(path)
            changes += 1
    assert changes > 50, "or it proves little"


@pytest.mark.parametrize("command", ["activate", "pause", "cancel", "kill", "archive", "unarchive"])
async def test_experiment_can_not_be_commanded_when_it_is_another_users(
    world: World, api: Served, command: str
) -> None:
    path = f"/api/v1/experiments/{world.fields['experiment_id']}/{command}"
    assert "belongs to another user" in await world.contributor.refused(403, "POST", path)
    assert "not found" in await world.foreign.refused(404, "POST", path)


async def test_context_of_another_experiment_can_be_had_by_fork_only_when_it_exists(world: World, api: Served) -> None:
    user = world.contributor
    body = {"config": yaml.safe_dump(api.config()), "parentId": world.fields["experiment_id"],
            "modelDefinition": [a_file("other.py")]}  # fmt: skip
    forked = (await user.post("/api/v1/experiments", body))["experiment"]
    assert forked["forkedFrom"] == world.fields["experiment_id"]
    parent = await user.get(f"/api/v1/experiments/{world.fields['experiment_id']}/model_def")
    assert await user.get(f"/api/v1/experiments/{forked['id']}/model_def") == parent
    assert "not found" in await user.refused(404, "POST", "/api/v1/experiments", body | {"parentId": 999_999})
    assert "not found" in await world.foreign.refused(404, "POST", "/api/v1/experiments", body)
