"""`det mcp`: the cluster's experiments for coding agents, by the Model Context Protocol."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cli import session
from cli.group import command_of, new_app
from determined import errors

app = new_app("Serve the cluster to a coding agent, by the Model Context Protocol.", default="serve")
_LEAST_PORT, _MOST_PORT = 1, 65535


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("serve")
def serve(
    write: Annotated[
        bool, typer.Option("--write", help="Offer also what changes something; what destroys asks first.")
    ] = False,
    http: Annotated[
        str | None,
        typer.Option("--http", metavar="HOST:PORT", help="Serve by HTTP; each request brings a token of its own."),
    ] = None,
) -> None:
    """Serve by standard input and output, with your login; an agent starts this command itself.

    Without --write there are only tools that read.
    """
    try:
        from cli.mcp_server.server import build, run_http
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mcp":
            raise
        raise errors.BadRequestException(
            "det mcp needs the Model Context Protocol's SDK: pip install 'undeterred[mcp]'"
        ) from None
    if http is None:
        session.get()  # a login that is missing is said before an agent talks to it
        build(writes=write, own=session.get).run("stdio")
        return
    host, port = _address(http)
    run_http(build(writes=write, own=None), host, port)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not _LEAST_PORT <= int(port) <= _MOST_PORT:
        raise ValueError(f"--http: {text!r}: expected HOST:PORT, as 127.0.0.1:8765")
    return host.strip("[]"), int(port)
