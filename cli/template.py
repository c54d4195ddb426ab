"""`det template`: parts of configurations that experiments can be filled up from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cli import files, lookup, paging, render, session
from cli.group import command_of, new_app
from cli.options import InWorkspace, Json, paged
from cli.render import Form
from determined.common.api._url import api_path

app = new_app(
    "Templates: defaults for the configurations of experiments.",
    aliases={"ls": "list", "rm": "remove"},
    default="list",
)
value_app = new_app("Replace a part of a template.")
app.add_typer(value_app, name="set-value")

Name = Annotated[str, typer.Argument(metavar="TEMPLATE_NAME", help="The template's name.", show_default=False)]
File = Annotated[Path, typer.Argument(metavar="TEMPLATE_FILE", help="A YAML file.", show_default=False)]


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("list")
@paged
def list_templates(
    form: Form,
    details: Annotated[bool, typer.Option("--details", "-d", help="Show the configurations too.")] = False,
) -> None:
    """List templates."""
    found = paging.fetch("templates", "templates", form)
    spaces = lookup.workspaces_by_id()
    headers = ["Name", "Workspace", *(["Config"] if details else [])]
    rows = [[each["name"], spaces.get(each["workspaceId"]), *([each["config"]] if details else [])] for each in found]
    render.listing(headers, rows, form, raw=found)


@app.command("describe")
def describe(template_name: Name, as_json: Json = False) -> None:
    """Print a template's configuration, as YAML."""
    with lookup.nearest(template_name, lookup.template_names):
        found = session.get().get(api_path("templates", template_name)).json()["template"]
    render.document(found["config"], as_json=as_json)


@app.command("create")
def create(template_name: Name, template_file: File, workspace_name: InWorkspace = None) -> None:
    """Create a template from a file."""
    body: dict[str, Any] = {"name": template_name, "config": files.read_mapping(template_file)}
    body |= {"workspaceId": lookup.workspace(workspace_name)["id"]} if workspace_name is not None else {}
    session.get().post(api_path("templates", template_name), body)
    render.say(f"Created template '{template_name}'")


@app.command("set")
def set_template(template_name: Name, template_file: File) -> None:
    """Create a template, or replace the one of this name."""
    body = {"name": template_name, "config": files.read_mapping(template_file)}
    session.get().put(api_path("templates", template_name), body)
    render.say(f"Set template '{template_name}'")


@value_app.command("config")
def set_config(template_name: Name, template_file: File) -> None:
    """Replace the configuration of a template."""
    config = files.read_mapping(template_file)
    with lookup.nearest(template_name, lookup.template_names):
        session.get().patch(api_path("templates", template_name), config)
    render.say(f"Set the configuration of template '{template_name}'")


@app.command("remove")
def remove(template_name: Name) -> None:
    """Delete a template; experiments keep what they took from it."""
    with lookup.nearest(template_name, lookup.template_names):
        session.get().delete(api_path("templates", template_name))
    render.say(f"Removed template '{template_name}'")
