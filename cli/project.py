"""`det project`: groups of experiments within a workspace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from cli import experiment_table, lookup, paging, render, session
from cli.group import command_of, new_app
from cli.options import Json, OrderBy, ProjectName, SortByName, WorkspaceName, Yes, paged, shows
from cli.render import Form

app = new_app("Projects: experiments within a workspace.", aliases={"ls": "list"})

_HEADERS = ["ID", "Key", "Name", "Description", "# Experiments", "# Active Experiments"]

Description = Annotated[str | None, typer.Option("--description", help="What it is about.")]
Key = Annotated[str | None, typer.Option("--key", help="Up to 5 capital letters and digits.")]
All = Annotated[bool, typer.Option("--all", "-a", help="Include archived experiments and those of all users.")]


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("list")
@paged
def list_projects(
    form: Form,
    workspace_name: WorkspaceName,
    sort_by: SortByName = "id",
    order_by: OrderBy = "asc",
) -> None:
    """List the projects of a workspace."""
    path = f"workspaces/{lookup.workspace(workspace_name)['id']}/projects"
    order = {"sortBy": f"SORT_BY_{sort_by.upper()}", "orderBy": f"ORDER_BY_{order_by.upper()}"}
    found = paging.fetch(path, "projects", form, **order)
    render.listing(_HEADERS, map(_row, found), form, raw=found)


@app.command("list-experiments")
@paged
def list_experiments(
    form: Form,
    workspace_name: WorkspaceName,
    project_name: ProjectName,
    all_: All = False,
    sort_by: SortByName = "id",
    order_by: OrderBy = "asc",
) -> None:
    """List the experiments of a project: mine that are not archived, or with -a all."""
    project_id = lookup.project(workspace_name, project_name)["id"]
    params: dict[str, Any] = {"projectId": project_id, "sortBy": f"SORT_BY_{sort_by.upper()}"}
    params |= {"orderBy": f"ORDER_BY_{order_by.upper()}"} | experiment_table.filters(all_)
    found = experiment_table.fetch(form, **params)
    experiment_table.show(found, form, with_archived=all_)


@app.command("describe")
@shows
def describe(form: Form, workspace_name: WorkspaceName, project_name: ProjectName, all_: All = False) -> None:
    """Show a project and its experiments: mine that are not archived, or with -a all."""
    found = lookup.project(workspace_name, project_name)
    params: dict[str, Any] = {"projectId": found["id"]} | experiment_table.filters(all_)
    experiments = experiment_table.fetch(form, **params)
    if form.as_document:
        render.document(found | {"experiments": experiments}, as_json=form.as_json)
        return
    if not form.as_csv and not form.columns:
        render.table(_HEADERS, [_row(found)])
        render.say("\nExperiments:")
    experiment_table.show(experiments, form, with_archived=all_)


@app.command("create")
def create(
    workspace_name: WorkspaceName,
    name: ProjectName,
    description: Description = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Create a project."""
    body = {"name": name} | _given(description, key)
    path = f"/api/v1/workspaces/{lookup.workspace(workspace_name)['id']}/projects"
    _show_one(session.get().post(path, body).json()["project"], as_json)


@app.command("edit")
def edit(
    workspace_name: WorkspaceName,
    project_name: ProjectName,
    new_name: Annotated[str | None, typer.Option("--new_name", "--new-name", help="Its new name.")] = None,
    description: Description = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Change a project; fields that are not given stay."""
    changes = _given(description, key) | ({"name": new_name} if new_name is not None else {})
    if not changes:
        raise typer.BadParameter("nothing to change was given: expected --new_name, --description or --key.")
    _show_one(session.get().patch(_path(workspace_name, project_name), changes).json()["project"], as_json)


@app.command("delete")
def delete(workspace_name: WorkspaceName, project_name: ProjectName, yes: Yes = False) -> None:
    """Delete a project with its experiments."""
    path = _path(workspace_name, project_name)
    render.confirm(f"Delete project '{project_name}' with all its experiments, for good?", yes)
    is_done = session.get().delete(path).json().get("completed")
    render.say(f"Deleted project '{project_name}'" if is_done else f"Deletion of '{project_name}' has begun")


@app.command("archive")
def archive(workspace_name: WorkspaceName, project_name: ProjectName) -> None:
    """Archive a project: it accepts no new experiments."""
    session.get().post(f"{_path(workspace_name, project_name)}/archive")
    render.say(f"Archived project '{project_name}'")


@app.command("unarchive")
def unarchive(workspace_name: WorkspaceName, project_name: ProjectName) -> None:
    """Unarchive a project."""
    session.get().post(f"{_path(workspace_name, project_name)}/unarchive")
    render.say(f"Unarchived project '{project_name}'")


def _row(project: Mapping[str, Any]) -> render.Row:
    """A project as a row of `_HEADERS`."""
    return [
        project["id"],
        project.get("key"),
        project["name"],
        project.get("description"),
        project.get("numExperiments"),
        project.get("numActiveExperiments"),
    ]


def _given(description: str | None, key: str | None) -> dict[str, Any]:
    given = {"description": description, "key": key}
    return {name: value for name, value in given.items() if value is not None}


def _path(workspace_name: str, project_name: str) -> str:
    return f"/api/v1/projects/{lookup.project(workspace_name, project_name)['id']}"


def _show_one(project: dict[str, Any], as_json: bool) -> None:
    if as_json:
        render.json_out(project)
    else:
        render.table(_HEADERS, [_row(project)])
