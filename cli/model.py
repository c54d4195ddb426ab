"""`det model`: registered models and their versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import typer

from cli import lookup, paging, render, session
from cli.group import command_of, new_app
from cli.options import InWorkspace, Json, OrderBy, paged, shows
from cli.render import Form
from determined import errors
from determined.common.api._url import api_path

app = new_app("Registered models and their versions.", aliases={"ls": "list"}, default="list")

_HEADERS = ["ID", "Name", "Workspace ID", "Creation Time", "Last Updated Time", "Metadata"]
_VERSION_HEADERS = ["Version #", "Trial ID", "Batch #", "Checkpoint UUID", "Validation Metrics", "Metadata"]

Name = Annotated[str, typer.Argument(metavar="NAME", help="The model's name.", show_default=False)]
SortBy = Annotated[
    Literal["name", "description", "creation_time", "last_updated_time"],
    typer.Option("--sort-by", help="In which order."),
]


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("list")
@paged
def list_models(
    form: Form,
    workspace_names: Annotated[
        str | None, typer.Option("--workspace-names", "-w", help="Only of these: names with commas between.")
    ] = None,
    sort_by: SortBy = "last_updated_time",
    order_by: OrderBy = "asc",
) -> None:
    """List models."""
    params: dict[str, Any] = {"sortBy": f"SORT_BY_{sort_by.upper()}", "orderBy": f"ORDER_BY_{order_by.upper()}"}
    if workspace_names:
        params["workspaceIds"] = [lookup.workspace(name.strip())["id"] for name in workspace_names.split(",")]
    found = paging.fetch("models", "models", form, **params)
    render.listing(_HEADERS, map(_row, found), form, raw=found)


@app.command("describe")
@shows
def describe(
    form: Form,
    name: Name,
    version: Annotated[int, typer.Option("--version", help="Which version; -1: the latest.")] = -1,
) -> None:
    """Show a model and one of its versions."""
    with lookup.nearest(name, lookup.model_names):
        model = session.get().get(api_path("models", name)).json()["model"]
    found = _latest(name) if version == -1 else _version(name, version)
    if form.as_document:
        render.document(model | {"modelVersion": found}, as_json=form.as_json)
    elif form.as_csv or form.columns:
        shown = [[*_row(model), *(_version_row(found) if found else [None] * len(_VERSION_HEADERS))]]
        names = [*_HEADERS, *(f"Version {header}" if header == "Metadata" else header for header in _VERSION_HEADERS)]
        render.listing(names, shown, form)
    else:
        render.table(_HEADERS, [_row(model)])
        render.say()
        render.table(_VERSION_HEADERS, [_version_row(found)] if found else [])


@app.command("list-versions")
@paged
def list_versions(form: Form, name: Name) -> None:
    """List the versions of a model."""
    path = api_path("models", name, "versions").removeprefix("/api/v1/")
    with lookup.nearest(name, lookup.model_names):
        found = paging.fetch(path, "modelVersions", form)
    render.listing(_VERSION_HEADERS, map(_version_row, found), form, raw=found)


@app.command("create")
def create(
    name: Name,
    workspace_name: InWorkspace = None,
    description: Annotated[str | None, typer.Option("--description", help="What it is for.")] = None,
    as_json: Json = False,
) -> None:
    """Register a model, without versions yet."""
    body: dict[str, Any] = {"name": name}
    body |= {"description": description} if description is not None else {}
    body |= {"workspaceId": lookup.workspace(workspace_name)["id"]} if workspace_name is not None else {}
    model = session.get().post("/api/v1/models", body).json()["model"]
    if as_json:
        render.json_out(model)
    else:
        render.table(_HEADERS, [_row(model)])


@app.command("register-version")
def register_version(
    name: Name,
    uuid: Annotated[str, typer.Argument(metavar="UUID", help="The checkpoint's id.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Register a checkpoint as the next version of a model."""
    with lookup.nearest(name, lookup.model_names):
        answer = session.get().post(api_path("models", name, "versions"), {"checkpointUuid": uuid}).json()
    version = answer["modelVersion"]
    if as_json:
        render.json_out(version)
    else:
        render.table(_VERSION_HEADERS, [_version_row(version)])


@app.command("move")
def move(
    name: Name,
    workspace_name: Annotated[str, typer.Option("--workspace-name", "-w", help="Where to.", show_default=False)],
) -> None:
    """Move a model to another workspace."""
    target = lookup.workspace(workspace_name)["id"]
    with lookup.nearest(name, lookup.model_names):
        session.get().post(api_path("models", name, "move"), {"destinationWorkspaceId": target})
    render.say(f"Moved model '{name}' to workspace '{workspace_name}'")


@app.command("delete")
def delete(name: Name) -> None:
    """Delete a model with all its versions; their checkpoints stay."""
    with lookup.nearest(name, lookup.model_names):
        session.get().delete(api_path("models", name))
    render.say(f"Deleted model '{name}'")


def _version(name: str, number: int) -> dict[str, Any]:
    try:
        return session.get().get(api_path("models", name, "versions", number)).json()["modelVersion"]
    except errors.NotFoundException as error:
        latest = _latest(name)
        told = f"the latest is {latest['version']}" if latest else "it has none yet"
        raise errors.NotFoundException(f"{error.message}; {told}") from None


def _latest(name: str) -> dict[str, Any] | None:
    order = {"sortBy": "SORT_BY_VERSION", "orderBy": "ORDER_BY_DESC", "limit": 1}
    found = session.get().get(api_path("models", name, "versions"), order).json().get("modelVersions")
    return found[0] if found else None


def _row(model: Mapping[str, Any]) -> render.Row:
    return [
        model["id"],
        model["name"],
        model.get("workspaceId"),
        render.time_of(model.get("creationTime")),
        render.time_of(model.get("lastUpdatedTime")),
        model.get("metadata"),
    ]


def _version_row(version: Mapping[str, Any]) -> render.Row:
    training = render.part(version, "checkpoint", "training")
    return [
        version["version"],
        training.get("trialId"),
        render.part(version, "checkpoint", "metadata").get("steps_completed"),
        render.part(version, "checkpoint").get("uuid"),
        render.part(training, "validationMetrics", "avgMetrics"),
        version.get("metadata"),
    ]
