"""`det rbac`: roles and permissions, by workspace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from cli import lookup, paging, render, session
from cli.bundles import Bundle, bundled
from cli.group import command_of, new_app
from cli.options import at_most_one, lists, paged
from cli.render import Form

app = new_app("Roles and permissions, by workspace.", default="list-roles")

RoleName = Annotated[str, typer.Argument(metavar="ROLE_NAME", help="The role.", show_default=False)]
_EVERYWHERE = "everywhere"


@dataclass(frozen=True)
class Assignment(Bundle):
    """Which role, who has it, and where."""

    role_name: RoleName
    workspace_name: Annotated[
        str | None,
        typer.Option("--workspace-name", "-w", help="In this workspace (default: in all).", show_default=False),
    ] = None
    username_to_assign: Annotated[
        str | None, typer.Option("--username-to-assign", "-u", help="The user.", show_default=False)
    ] = None
    group_name_to_assign: Annotated[
        str | None, typer.Option("--group-name-to-assign", "-g", help="The group.", show_default=False)
    ] = None

    @property
    def place(self) -> str:
        """Where, for a sentence."""
        return _EVERYWHERE if self.workspace_name is None else f"in workspace '{self.workspace_name}'"

    def request(self) -> tuple[dict[str, Any], str]:
        """The request's body, and who is meant. Raises: BadParameter, NotFoundException."""
        user, group = self.username_to_assign, self.group_name_to_assign
        at_most_one(username_to_assign=user, group_name_to_assign=group)
        given: dict[str, Any] = {"role": {"roleId": lookup.role(self.role_name)["roleId"]}}
        if self.workspace_name is not None:
            given["scopeWorkspaceId"] = lookup.workspace(self.workspace_name)["id"]
        if user is not None:
            mine = {"userId": lookup.user(user)["id"], "roleAssignment": given}
            return {"userRoleAssignments": [mine]}, f"user '{user}'"
        if group is not None:
            theirs = {"groupId": lookup.group(group)["groupId"], "roleAssignment": given}
            return {"groupRoleAssignments": [theirs]}, f"user group '{group}'"
        raise typer.BadParameter("expected --username-to-assign or --group-name-to-assign.")


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("my-permissions")
@lists
def my_permissions(form: Form) -> None:
    """List my permissions, by workspace."""
    answer = session.fetch("permissions/summary")
    spaces = lookup.workspaces_by_id()
    names = {role["roleId"]: role for role in render.parts(answer, "roles")}
    rows: list[render.Row] = []
    for held in render.parts(answer, "assignments"):
        role = names[held["roleId"]]
        where = _places(spaces, bool(held.get("scopeCluster")), render.parts(held, "scopeWorkspaceIds"))
        rows += [[place, role["name"], each["name"]] for place in where for each in render.parts(role, "permissions")]
    render.listing(["Where", "Role Name", "Permission"], rows, form, raw=answer)


@app.command("list-roles")
@paged
def list_roles(
    form: Form,
    exclude_global_roles: Annotated[
        bool, typer.Option("--exclude-global-roles", help="Without those that go for the whole cluster only.")
    ] = False,
) -> None:
    """List roles and their permissions."""

    def read(size: int, start: int) -> dict[str, Any]:
        return session.get().post("/api/v1/roles/search", {"limit": size, "offset": start}).json()

    found = paging.items(read, "roles", form)
    if exclude_global_roles:
        found = [role for role in found if render.part(role, "scopeTypeMask").get("workspace")]
    rows = [[role["roleId"], role["name"], _permissions(role)] for role in found]
    render.listing(["Role ID", "Role Name", "Permissions"], rows, form, raw=found)


@app.command("describe-role")
@lists
def describe_role(form: Form, role_name: RoleName) -> None:
    """List who has a role, and where."""
    number = lookup.role(role_name)["roleId"]
    (found,) = session.get().post("/api/v1/roles/search/by-ids", {"roleIds": [number]}).json()["roles"]
    users = {user["id"]: user["username"] for user in session.fetch_all("users", "users")}
    groups = {each["group"]["groupId"]: each["group"]["name"] for each in lookup.groups()}
    spaces = lookup.workspaces_by_id()
    rows: list[render.Row] = []
    for each in render.parts(found, "userRoleAssignments"):
        rows += [["User", users.get(each["userId"]), place] for place in _scope(spaces, each)]
    for each in render.parts(found, "groupRoleAssignments"):
        rows += [["Group", groups.get(each["groupId"]), place] for place in _scope(spaces, each)]
    if not form.is_for_programs:
        render.say(f"{found['role']['name']}: {_permissions(found['role'])}\n")
    render.listing(["User/Group", "User/Group Name", "Where"], rows, form, raw=found)


@app.command("list-users-roles")
@lists
def list_users_roles(
    form: Form, username: Annotated[str, typer.Argument(metavar="USERNAME", help="The user.", show_default=False)]
) -> None:
    """List the roles of a user: direct ones, and those of the user's groups."""
    found = render.parts(session.fetch(f"roles/search/by-user/{lookup.user(username)['id']}"), "roles")
    groups = {each["group"]["groupId"]: each["group"]["name"] for each in lookup.groups()}
    spaces = lookup.workspaces_by_id()
    rows: list[render.Row] = []
    for held in found:
        name = held["role"]["name"]
        for each in render.parts(held, "userRoleAssignments"):
            rows += [[name, place, "the user"] for place in _scope(spaces, each)]
        for each in render.parts(held, "groupRoleAssignments"):
            rows += [[name, place, f"group {groups.get(each['groupId'])}"] for place in _scope(spaces, each)]
    render.listing(["Role Name", "Where", "By"], rows, form, raw=found)


@app.command("list-groups-roles")
@lists
def list_groups_roles(
    form: Form, group_name: Annotated[str, typer.Argument(metavar="GROUP_NAME", help="The group.", show_default=False)]
) -> None:
    """List the roles of a group."""
    answer = session.fetch(f"roles/search/by-group/{lookup.group(group_name)['groupId']}")
    spaces = lookup.workspaces_by_id()
    names = {role["roleId"]: role["name"] for role in render.parts(answer, "roles")}
    rows: list[render.Row] = []
    for held in render.parts(answer, "assignments"):
        places = _places(spaces, bool(held.get("scopeCluster")), render.parts(held, "scopeWorkspaceIds"))
        rows += [[names[held["roleId"]], place] for place in places]
    render.listing(["Role Name", "Where"], rows, form, raw=answer)


@app.command("assign-role")
@bundled
def assign_role(assignment: Assignment) -> None:
    """Give a role to a user or a group, in a workspace or in all."""
    body, who = assignment.request()
    session.get().post("/api/v1/roles/add-assignments", body)
    render.say(f"Assigned role '{assignment.role_name}' to {who} {assignment.place}")


@app.command("unassign-role")
@bundled
def unassign_role(assignment: Assignment) -> None:
    """Remove a role from a user or a group."""
    body, who = assignment.request()
    session.get().post("/api/v1/roles/remove-assignments", body)
    render.say(f"Took role '{assignment.role_name}' from {who} {assignment.place}")


def _permissions(role: dict[str, Any]) -> str:
    return ", ".join(each["name"] for each in render.parts(role, "permissions"))


def _scope(names: Mapping[int, str], assignment: dict[str, Any]) -> list[str]:
    scope = assignment["roleAssignment"]
    workspace_id = scope.get("scopeWorkspaceId")
    return _places(names, not workspace_id, [workspace_id] if workspace_id else [])


def _places(names: Mapping[int, str], everywhere: bool, workspace_ids: list[int]) -> list[str]:
    return [*([_EVERYWHERE] if everywhere else []), *(names.get(each, f"workspace {each}") for each in workspace_ids)]
