"""`det workspace`: groups of projects with members, storage and pools of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from cli import budget, lookup, paging, render, session
from cli.bundles import bundled
from cli.group import command_of, new_app
from cli.options import (
    Json,
    OrderBy,
    SortByName,
    TaskUser,
    WorkspaceName,
    Yes,
    at_most_one,
    lists,
    paged,
    shows,
)
from cli.project import list_projects
from cli.render import Form

app = new_app(
    "Workspaces: projects with members, storage and pools of their own.", aliases={"ls": "list"}, default="list"
)
bindings_app = new_app("Kubernetes namespaces of workspaces.", aliases={"ls": "list"}, default="list")
quota_app = new_app("Kubernetes quotas of workspaces.")
app.add_typer(bindings_app, name="bindings")
app.add_typer(quota_app, name="resource-quota")
app.add_typer(budget.workspace_app, name="budget")

_HEADERS = [
    "ID",
    "Name",
    "# Projects",
    "Agent Uid",
    "Agent Gid",
    "Agent User",
    "Agent Group",
    "Default Compute Pool",
    "Default Aux Pool",
    "Everyone",
]


@dataclass(frozen=True)
class Settings(TaskUser):
    """What a workspace is created with and can be changed."""

    checkpoint_storage_config: Annotated[
        str | None, typer.Option("--checkpoint-storage-config", help="Where checkpoints go, as YAML or JSON.")
    ] = None
    checkpoint_storage_config_file: Annotated[
        Path | None, typer.Option("--checkpoint-storage-config-file", help="The same, in a file.", show_default=False)
    ] = None
    default_compute_pool: Annotated[
        str | None, typer.Option("--default-compute-pool", help="The pool of its experiments.")
    ] = None
    default_aux_pool: Annotated[
        str | None, typer.Option("--default-aux-pool", help="The pool of tasks without slots.")
    ] = None
    everyone: Annotated[
        str | None, typer.Option("--everyone", help="Role of all users: viewer, contributor, editor, or '' for none.")
    ] = None

    def given(self) -> dict[str, Any]:
        """What was given, as the API has it. Raises: BadParameter, ValueError for the storage."""
        return _given(
            agentUserGroup=self.agent_user_group(),
            checkpointStorageConfig=_storage(self.checkpoint_storage_config, self.checkpoint_storage_config_file),
            defaultComputePool=self.default_compute_pool,
            defaultAuxPool=self.default_aux_pool,
            everyone=self.everyone,
        )


ClusterName = Annotated[str | None, typer.Option("--cluster-name", help="A Kubernetes cluster.")]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="A Kubernetes namespace.")]
AutoNamespace = Annotated[bool, typer.Option("--auto-create-namespace", help="Make a Kubernetes namespace.")]
AutoEverywhere = Annotated[
    bool, typer.Option("--auto-create-namespace-all-clusters", help="Make one in each Kubernetes cluster.")
]


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("list")
@paged
def list_workspaces(form: Form, sort_by: SortByName = "id", order_by: OrderBy = "asc") -> None:
    """List workspaces."""
    order = {"sortBy": f"SORT_BY_{sort_by.upper()}", "orderBy": f"ORDER_BY_{order_by.upper()}"}
    found = paging.fetch("workspaces", "workspaces", form, **order)
    render.listing(_HEADERS, map(_row, found), form, raw=found)


@app.command("describe")
@shows
def describe(form: Form, workspace_name: WorkspaceName) -> None:
    """Show a workspace."""
    found = lookup.workspace(workspace_name)
    render.listing(_HEADERS, [_row(found)], form, raw=found)


app.command("list-projects")(list_projects)


@app.command("list-pools")
@lists
def list_pools(form: Form, workspace_name: WorkspaceName) -> None:
    """List the resource pools that a workspace may use."""
    path = f"workspaces/{lookup.workspace(workspace_name)['id']}/available-resource-pools"
    names: list[Any] = session.fetch_all(path, "resourcePools")
    render.listing(["Name"], [[name] for name in names], form, raw=names)


@app.command("list-members")
@lists
def list_members(form: Form, workspace_name: WorkspaceName) -> None:
    """List who has which role in a workspace."""
    answer = session.fetch(f"roles/workspace/{lookup.workspace(workspace_name)['id']}")
    users = {user["id"]: user["username"] for user in render.parts(answer, "usersAssignedDirectly")}
    groups = {group["groupId"]: group["name"] for group in render.parts(answer, "groups")}
    members: list[dict[str, Any]] = []
    for held in render.parts(answer, "assignments"):
        role = held["role"]["name"]
        for each in render.parts(held, "userRoleAssignments"):
            members.append({"name": users.get(each["userId"]), "type": "User", "role": role})
        for each in render.parts(held, "groupRoleAssignments"):
            members.append({"name": groups.get(each["groupId"]), "type": "Group", "role": role})
    headers = ["User/Group Name", "User/Group", "Role Name"]
    render.listing(headers, [list(member.values()) for member in members], form, raw=members)


@app.command("create")
@bundled
def create(
    name: WorkspaceName,
    settings: Settings,
    cluster_name: ClusterName = None,
    namespace: Namespace = None,
    auto_create_namespace: AutoNamespace = False,
    auto_create_namespace_all_clusters: AutoEverywhere = False,
    resource_quota: Annotated[int | None, typer.Option("--resource-quota", help="A Kubernetes quota.")] = None,
    as_json: Json = False,
) -> None:
    """Create a workspace; its creator becomes its administrator."""
    body = {"name": name, **settings.given()} | _given(
        clusterNamespaceMeta=_namespaces(
            cluster_name, namespace, auto_create_namespace, auto_create_namespace_all_clusters
        ),
        clusterQuotaPairs={cluster_name or "": resource_quota} if resource_quota is not None else None,
    )
    _show_one(session.get().post("/api/v1/workspaces", body).json()["workspace"], as_json)


@app.command("edit")
@bundled
def edit(
    workspace_name: WorkspaceName,
    *,
    name: Annotated[str | None, typer.Option("--name", help="Its new name.")] = None,
    settings: Settings,
    as_json: Json = False,
) -> None:
    """Change a workspace; fields that are not given stay."""
    changes = _given(name=name) | settings.given()
    if not changes:
        raise typer.BadParameter("nothing to change was given; see `det workspace edit --help`.")
    _show_one(session.get().patch(_path(workspace_name), changes).json()["workspace"], as_json)


@app.command("delete")
def delete(workspace_name: WorkspaceName, yes: Yes = False) -> None:
    """Delete a workspace with its projects and their experiments."""
    path = _path(workspace_name)
    render.confirm(f"Delete workspace '{workspace_name}' with all its projects and experiments, for good?", yes)
    is_done = session.get().delete(path).json().get("completed")
    render.say(f"Deleted workspace '{workspace_name}'" if is_done else f"Deletion of '{workspace_name}' has begun")


@app.command("archive")
def archive(workspace_name: WorkspaceName) -> None:
    """Archive a workspace: it accepts nothing new."""
    session.get().post(f"{_path(workspace_name)}/archive")
    render.say(f"Archived workspace '{workspace_name}'")


@app.command("unarchive")
def unarchive(workspace_name: WorkspaceName) -> None:
    """Unarchive a workspace."""
    session.get().post(f"{_path(workspace_name)}/unarchive")
    render.say(f"Unarchived workspace '{workspace_name}'")


# -- Kubernetes: the cluster says what it has of it ----------------------------------------------------------------


@bindings_app.command("list")
@lists
def list_bindings(form: Form, workspace_name: WorkspaceName) -> None:
    """List the Kubernetes namespaces of a workspace."""
    answer = session.get().get(f"{_path(workspace_name)}/list-namespace-bindings").json()
    found: dict[str, Any] = answer.get("namespaceBindings") or {}
    rows = [[cluster, render.part(binding).get("namespace")] for cluster, binding in found.items()]
    render.listing(["Cluster Name", "Namespace"], rows, form, raw=found)


@bindings_app.command("set")
def set_binding(
    workspace_name: WorkspaceName,
    cluster_name: ClusterName = None,
    namespace: Namespace = None,
    auto_create_namespace: AutoNamespace = False,
    auto_create_namespace_all_clusters: AutoEverywhere = False,
) -> None:
    """Bind a workspace to a Kubernetes namespace."""
    wanted = _namespaces(cluster_name, namespace, auto_create_namespace, auto_create_namespace_all_clusters)
    if wanted is None:
        raise typer.BadParameter("expected --namespace, --auto-create-namespace or the same for all clusters.")
    session.get().post(f"{_path(workspace_name)}/namespace-bindings", {"clusterNamespaceMeta": wanted})
    render.say(f"Bound workspace '{workspace_name}'")


@bindings_app.command("delete")
def delete_binding(workspace_name: WorkspaceName, cluster_name: ClusterName = None) -> None:
    """Unbind a workspace from a Kubernetes namespace."""
    path = f"{_path(workspace_name)}/namespace-bindings"
    session.get().request("DELETE", path, params={"clusterNames": [cluster_name or ""]})
    render.say(f"Unbound workspace '{workspace_name}'")


@quota_app.command("set")
def set_quota(
    workspace_name: WorkspaceName,
    resource_quota: Annotated[int, typer.Argument(help="How many slots.", show_default=False)],
    cluster_name: ClusterName = None,
) -> None:
    """Limit what a workspace may use of a Kubernetes cluster."""
    pairs = {"clusterQuotaPairs": {cluster_name or "": resource_quota}}
    session.get().post(f"{_path(workspace_name)}/set-resource-quota", pairs)
    render.say(f"Set the quota of workspace '{workspace_name}'")


def _namespaces(
    cluster: str | None, namespace: str | None, auto_create: bool, everywhere: bool
) -> dict[str, Any] | None:
    at_most_one(namespace=namespace, auto_create_namespace=auto_create, auto_create_namespace_all_clusters=everywhere)
    if namespace is None and not auto_create and not everywhere:
        return None
    wanted = {"namespace": namespace, "autoCreateNamespace": auto_create}
    return {cluster or "": wanted | {"autoCreateNamespaceAllClusters": everywhere}}


def _storage(text: str | None, path: Path | None) -> Any:
    at_most_one(checkpoint_storage_config=text, checkpoint_storage_config_file=path)
    if text is None and path is None:
        return None
    from cli import files

    if path is not None:
        return files.read_mapping(path)
    return files.mapping_of(str(text), "--checkpoint-storage-config")


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _path(name: str) -> str:
    return f"/api/v1/workspaces/{lookup.workspace(name)['id']}"


def _show_one(workspace: dict[str, Any], as_json: bool) -> None:
    if as_json:
        render.json_out(workspace)
    else:
        render.table(_HEADERS, [_row(workspace)])


def _row(workspace: Mapping[str, Any]) -> render.Row:
    group = render.part(workspace, "agentUserGroup")
    return [
        workspace["id"],
        workspace["name"],
        workspace.get("numProjects"),
        group.get("agentUid"),
        group.get("agentGid"),
        group.get("agentUser"),
        group.get("agentGroup"),
        workspace.get("defaultComputePool"),
        workspace.get("defaultAuxPool"),
        workspace.get("everyone"),
    ]
