"""Workspaces, projects and pool bindings on the wire. Names and fields: spec rest-api.md §6."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from api.schemas.base import Pagination, Timestamp, Wire, example, null_as_empty
from api.schemas.users import AgentUserGroup

#: Slots of a workspace in a cluster.
Quota = Annotated[int, Field(ge=0, le=1_000_000)]
_MOST_CLUSTERS = 100
NamespaceMetas = Annotated[dict[str, "NamespaceMeta"], Field(max_length=_MOST_CLUSTERS), BeforeValidator(null_as_empty)]
QuotaPairs = Annotated[dict[str, Quota], Field(max_length=_MOST_CLUSTERS), BeforeValidator(null_as_empty)]


class Workspace(Wire):
    """v1Workspace."""

    id: int
    name: str
    archived: bool = False
    immutable: bool = False
    user_id: int
    username: str
    num_projects: int = 0
    num_experiments: int = 0
    pinned: bool = False
    pinned_at: Timestamp | None = None
    state: str = "WORKSPACE_STATE_UNSPECIFIED"
    error_message: str = ""
    agent_user_group: AgentUserGroup | None = None
    checkpoint_storage_config: dict[str, Any] | None = None
    default_compute_pool: str = ""
    default_aux_pool: str = ""
    auto_created_namespace: str | None = None
    everyone: str = ""  # ours: the role that every user has in it


class PatchWorkspace(Wire, json_schema_extra=example({"defaultComputePool": "default"})):
    """v1PatchWorkspace: absent fields stay; empty ones are taken away. The older names of the pools are understood.

    `everyone` is ours: viewer, contributor, editor, or empty for nobody.
    """

    name: str | None = None
    agent_user_group: AgentUserGroup | None = None
    checkpoint_storage_config: dict[str, Any] | None = None
    default_compute_pool: str | None = None
    default_aux_pool: str | None = None
    default_compute_resource_pool: str | None = None
    default_aux_resource_pool: str | None = None
    cluster_namespace_meta: NamespaceMetas | None = None
    cluster_quota_pairs: QuotaPairs | None = None
    everyone: str | None = None


class PostWorkspace(PatchWorkspace, json_schema_extra=example({"name": "vision", "everyone": "viewer"})):
    """v1PostWorkspaceRequest."""

    name: str | None = ""


class Note(Wire, json_schema_extra=example({"name": "results", "contents": "the larger batch is better"})):
    """v1Note."""

    name: str = ""
    contents: str = ""


class Notes(
    Wire, json_schema_extra=example({"notes": [{"name": "results", "contents": "the larger batch is better"}]})
):
    """v1PutProjectNotesRequest."""

    notes: list[Note] = Field(default_factory=list[Note])


class Project(Wire):
    """v1Project."""

    id: int
    name: str
    key: str = ""
    description: str = ""
    notes: list[Note] = Field(default_factory=list[Note])
    workspace_id: int
    workspace_name: str = ""
    archived: bool = False
    immutable: bool = False
    user_id: int
    username: str
    num_experiments: int = 0
    num_active_experiments: int = 0
    num_runs: int = 0
    last_experiment_started_at: Timestamp | None = None
    state: str = "WORKSPACE_STATE_UNSPECIFIED"
    error_message: str = ""


class PostProject(Wire, json_schema_extra=example({"name": "digits"})):
    """v1PostProjectRequest."""

    name: str = ""
    description: str | None = None
    key: str | None = None


class PatchProject(Wire, json_schema_extra=example({"description": "handwritten"})):
    """v1PatchProject: absent fields stay."""

    name: str | None = None
    description: str | None = None
    key: str | None = None


class MoveExperiment(Wire, json_schema_extra=example({"destinationProjectId": 2})):
    """v1MoveExperimentRequest."""

    destination_project_id: int


class MoveProject(Wire, json_schema_extra=example({"destinationWorkspaceId": 2})):
    """v1MoveProjectRequest."""

    destination_workspace_id: int


class Activity(
    Wire,
    json_schema_extra=example(
        {"activityType": "ACTIVITY_TYPE_GET", "entityType": "ENTITY_TYPE_PROJECT", "entityId": 1}
    ),
):
    """v1PostUserActivityRequest."""

    activity_type: str = ""
    entity_type: str = ""
    entity_id: int = 0


class PoolBindings(Wire, json_schema_extra=example({"workspaceIds": [2]})):
    """v1BindRPToWorkspaceRequest, and those that overwrite and unbind."""

    workspace_ids: list[int] = Field(default_factory=list[int])
    workspace_names: list[str] = Field(default_factory=list[str])


class NamespaceMeta(Wire):
    """v1WorkspaceNamespaceMeta: exactly one of `namespace` and the two that make one is given."""

    namespace: str = Field(default="", max_length=63)
    auto_create_namespace: bool = False
    auto_create_namespace_all_clusters: bool = False
    resource_quota: Quota | None = None


class NamespaceBindings(
    Wire, json_schema_extra=example({"clusterNamespaceMeta": {"gke": {"autoCreateNamespace": True}}})
):
    """v1SetWorkspaceNamespaceBindingsRequest: by cluster; an empty name is that of the only one."""

    cluster_namespace_meta: NamespaceMetas = Field(default_factory=dict[str, NamespaceMeta])


class ResourceQuotas(Wire, json_schema_extra=example({"clusterQuotaPairs": {"gke": 8}})):
    """v1SetResourceQuotasRequest: slots, by cluster."""

    cluster_quota_pairs: QuotaPairs = Field(default_factory=dict[str, int])


class NamespaceBinding(Wire):
    """v1WorkspaceNamespaceBinding."""

    workspace_id: int
    cluster_name: str
    namespace: str
    auto_create_namespace: bool


class NamespaceBindingsResponse(Wire):
    """By cluster."""

    namespace_bindings: dict[str, NamespaceBinding]


class ResourceQuotasResponse(Wire):
    """Slots that the workspace may have in its own namespaces, by cluster."""

    resource_quotas: dict[str, int]


class WorkspacesResponse(Wire):
    """A page of workspaces."""

    workspaces: list[Workspace]
    pagination: Pagination


class WorkspaceResponse(Wire):
    """Workspace, as recorded."""

    workspace: Workspace


class ProjectsResponse(Wire):
    """A page of projects."""

    projects: list[Project]
    pagination: Pagination


class ProjectResponse(Wire):
    """Project, as recorded."""

    project: Project


class NotesResponse(Wire):
    """Notes, as recorded."""

    notes: list[Note]


class CompletedResponse(Wire):
    """Whether it is done; if not, it goes on in the background."""

    completed: bool
