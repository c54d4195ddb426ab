"""`det dev`: tools for work with the API itself."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cli import render, session
from cli.group import command_of, new_app
from cli.later import not_there
from cli.options import Json

app = new_app("Tools for work with the API itself.", shortest={"curl": "c"})
not_there(app, "`det dev curl` calls the API, and its page /docs/rest-api describes it", "bindings")


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("auth-token")
def auth_token() -> None:
    """Print the token of this session."""
    render.say(_token())


@app.command("curl", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def curl(
    context: typer.Context,
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="Such as /api/v1/experiments?limit=1.", show_default=False)
    ],
    shown: Annotated[bool, typer.Option("-x", help="Show the command first, without the token.")] = False,
) -> None:
    """Call the API by curl, logged in. Further words are curl's. The exit code is curl's."""
    token = _token()
    url = f"{session.get().master}/{path.lstrip('/')}"
    words = ["curl", *context.args, url]
    if shown:
        render.note(shlex.join(["curl", "-H", "Authorization: Bearer …", *words[1:]]))
    try:
        code = _run_curl(words[1:], f'header = "Authorization: Bearer {token}"\n'.encode())
    except FileNotFoundError:
        raise ValueError("the program curl is not installed; install it, or use `det dev auth-token`.") from None
    raise typer.Exit(code)


@app.command("simulate-pool")
def simulate_pool(
    trace: Annotated[
        Path, typer.Argument(metavar="TRACE", help="Agents, settings and jobs, a YAML file.", show_default=False)
    ],
    compare: Annotated[
        list[str] | None,
        typer.Option(
            "--compare",
            help="Show also what it were with this in the settings: scheduler=fair_share, or several: "
            "scheduler=priority,preemption=true. May be given more than once.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw utilization, waits and shares into this file, .png or .svg."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Replay jobs through a resource pool's scheduler, and show use, waits and fairness. Nothing is sent anywhere."""
    from cli import simulate

    simulate.run(trace, compare or [], plot, as_json)


def _run_curl(words: Sequence[str], config: bytes) -> int:
    """Hand the token over by a pipe: every user of this machine could read it among a process' arguments."""
    if sys.platform == "win32":  # only the three standard streams are handed on there
        return subprocess.run(["curl", "--config", "-", *words], input=config).returncode
    reader, writer = os.pipe()
    os.write(writer, config)
    os.close(writer)
    try:
        return subprocess.run(["curl", "--config", f"/dev/fd/{reader}", *words], pass_fds=[reader]).returncode
    finally:
        os.close(reader)


def _token() -> str:
    token = session.get().token
    if token is None:
        raise ValueError("this session is that of a task and has no token of a user; log in with `det user login`.")
    return token
