"""`det config-policies`: rules for configurations, of the cluster or of a workspace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cli import files, lookup, render, session
from cli.group import command_of, new_app
from cli.options import InWorkspace, Json, Yaml, at_most_one

app = new_app("Policies: defaults and limits for configurations, of the cluster or a workspace.", default="describe")

Workload = Annotated[
    Literal["experiment", "tasks"], typer.Argument(metavar="experiment|tasks", help="Of what.", show_default=False)
]


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("describe")
def describe(
    workload_type: Workload, workspace_name: InWorkspace = None, as_json: Json = False, as_yaml: Yaml = False
) -> None:
    """Print the policies: YAML, or JSON."""
    at_most_one(json=as_json, yaml=as_yaml)
    answer = session.get().get(_path(workload_type, workspace_name)).json()
    render.document(answer.get("configPolicies"), as_json=as_json)


@app.command("set")
def set_policies(
    workload_type: Workload,
    config_file: Annotated[Path, typer.Argument(help="The rules, a YAML file.", show_default=False)],
    workspace_name: InWorkspace = None,
) -> None:
    """Set policies."""
    text = files.read_text(config_file)
    files.mapping_of(text, str(config_file))
    session.get().put(_path(workload_type, workspace_name), {"configPolicies": text})
    render.say(f"Set the rules for {workload_type} {_where(workspace_name)}")


@app.command("delete")
def delete(workload_type: Workload, workspace_name: InWorkspace = None) -> None:
    """Delete the policies."""
    session.get().delete(_path(workload_type, workspace_name))
    render.say(f"Deleted the rules for {workload_type} {_where(workspace_name)}")


def _path(workload_type: str, workspace_name: str | None) -> str:
    kind = "EXPERIMENT" if workload_type == "experiment" else "NTSC"
    if workspace_name is None:
        return f"/api/v1/config-policies/global/{kind}"
    return f"/api/v1/config-policies/workspaces/{lookup.workspace(workspace_name)['id']}/{kind}"


def _where(workspace_name: str | None) -> str:
    return "of the cluster" if workspace_name is None else f"of workspace '{workspace_name}'"
