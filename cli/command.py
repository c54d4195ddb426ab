"""`det command`: programs that run once on slots of the cluster."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cli import kinds, launching, render
from cli.bundles import bundled
from cli.group import command_of
from cli.launching import LaunchOptions

app = kinds.app_of("command", "Commands: programs that run once on slots of the cluster, without an experiment.")
#: What follows the first word belongs to the command, options too.
_WORDS = {"allow_interspersed_args": False, "ignore_unknown_options": True}


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("run", context_settings=_WORDS)
@bundled
def run(
    options: LaunchOptions,
    entrypoint: Annotated[
        list[str] | None,
        typer.Argument(help="The command and its arguments; a single word is a line for the shell."),
    ] = None,
    detach: kinds.Detach = False,
) -> None:
    """Run a command, print its output, and end with its exit code.

    Ctrl-C ends the watching; the command goes on.
    """
    config = options.written()
    if entrypoint and not config.get("entrypoint"):
        config["entrypoint"] = entrypoint
    launched = launching.launch("commands", options.body() | {"config": config})["command"]
    if detach:
        render.say(launched["id"])
        return
    render.note(f"Launched command (id: {launched['id']}, name: {launched['description']})")
    raise typer.Exit(launching.follow(launched["id"]))
