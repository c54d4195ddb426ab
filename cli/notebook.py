"""`det notebook`: JupyterLab on slots of the cluster."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cli import kinds, launching, opening, render
from cli.bundles import bundled
from cli.group import command_of
from cli.launching import LaunchOptions
from cli.opening import NoBrowser

app = kinds.app_of("notebook", "Notebooks: JupyterLab on slots of the cluster, in your browser.")


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("start")
@bundled
def start(
    options: LaunchOptions,
    no_browser: NoBrowser = False,
    detach: kinds.Detach = False,
    preview: Annotated[bool, typer.Option("--preview", help="Print its configuration and start nothing.")] = False,
) -> None:
    """Start a notebook, and open it in your browser when it is ready."""
    if preview:
        render.yaml_out(launching.launch("notebooks", options.body() | {"preview": True})["config"])
        return
    opening.start("notebook", "notebook", options.body(), detach=detach, no_browser=no_browser)


@app.command("open")
def open_one(task_id: kinds.TaskId, no_browser: NoBrowser = False) -> None:
    """Open a notebook in your browser."""
    opening.reopen("notebook", "notebook", task_id, no_browser=no_browser)
