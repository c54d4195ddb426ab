"""`det master` and `det version`: the cluster's own information."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cli import render, server, session
from cli.group import command_of, new_app
from cli.options import Json, Yaml, at_most_one

app = new_app("The cluster's own information.")
config_app = new_app("The cluster's configuration.", default="show")
message_app = new_app("The message of the administrators to all users.")
app.add_typer(config_app, name="config")
app.add_typer(message_app, name="cluster-message")


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("info")
def info(as_json: Json = False, as_yaml: Yaml = False) -> None:
    """Print information on the cluster: YAML, or JSON."""
    at_most_one(json=as_json, yaml=as_yaml)
    found: dict[str, Any] = session.anonymous().get("/api/v1/master").json()
    if path := found.get("temporalCodec"):
        found["temporalCodec"] = f"{session.master_url()}{path}"  # as Temporal's Web UI and CLI take it
    render.document(found, as_json=as_json)


@config_app.command("show")
def show_config(as_json: Json = False, as_yaml: Yaml = False) -> None:
    """Print the cluster's configuration, without secrets: YAML, or JSON."""
    at_most_one(json=as_json, yaml=as_yaml)
    render.document(session.fetch("master/config")["config"], as_json=as_json)


@config_app.command("check")
def check_config(file: Annotated[Path, typer.Argument(help="The file, in YAML.")]) -> None:
    """Check a configuration file of the cluster's processes."""
    try:
        server.require("det master config check")
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    line = server.python("workers.configuration", [str(file)])
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    raise typer.Exit(done.returncode)


@config_app.command("set")
def set_config(
    log_level: Annotated[
        Literal["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] | None,
        typer.Option("--log.level", help="What the log of the API holds."),
    ] = None,
    log_color: Annotated[
        Literal["on", "off"] | None, typer.Option("--log.color", help="Whether that log has colours.")
    ] = None,
) -> None:
    """Change the configuration while the cluster runs."""
    log: dict[str, Any] = {"level": f"LOG_LEVEL_{log_level}"} if log_level is not None else {}
    log |= {"color": log_color == "on"} if log_color is not None else {}
    if not log:
        raise typer.BadParameter("nothing to change was given: expected --log.level or --log.color.")
    paths = ",".join(f"log.{name}" for name in log)
    session.get().patch("/api/v1/master/config", {"config": {"log": log}, "fieldMask": {"paths": paths.split(",")}})
    render.say("Changed " + " and ".join(paths.split(",")))


@app.command("logs")
def logs(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more lines.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", min=1, help="Print only this many lines from the end.")] = None,
    as_json: Json = False,
) -> None:
    """Print the log of the API; only administrators may read it."""
    params: dict[str, Any] = {"follow": follow} | ({"offset": -tail} if tail else {})
    for answer in session.get().stream("/api/v1/master/logs", params):
        entry: dict[str, Any] = answer["logEntry"]
        if as_json:
            import json

            render.say(json.dumps(entry, sort_keys=True))
        else:
            level = str(entry.get("level") or "").removeprefix("LOG_LEVEL_")
            render.say(f"{render.time_of(entry.get('timestamp'))} [{level}]: {entry['message']}")
        if follow:
            sys.stdout.flush()


@message_app.command("get")
def get_message(as_json: Json = False, as_yaml: Yaml = False) -> None:
    """Print the message, even before its start time: YAML, or JSON."""
    at_most_one(json=as_json, yaml=as_yaml)
    render.document(session.fetch("master/cluster_message").get("clusterMessage"), as_json=as_json)


@message_app.command("set")
def set_message(
    message: Annotated[str, typer.Option("--message", "-m", help="What to say.", show_default=False)],
    start: Annotated[
        str | None, typer.Option("--start", "-s", help="From this time on (RFC 3339; default: now).")
    ] = None,
    end: Annotated[str | None, typer.Option("--end", "-e", help="Up to this time (RFC 3339).")] = None,
    duration: Annotated[str | None, typer.Option("--duration", "-d", help="For so long, such as 24h.")] = None,
) -> None:
    """Show a message to all users until it is cleared or expires."""
    at_most_one(end=end, duration=duration)
    body: dict[str, Any] = {"message": message, "startTime": _now() if start in (None, "now") else start}
    body |= {"endTime": end} if end is not None else {}
    body |= {"duration": duration} if duration is not None else {}
    session.get().put("/api/v1/master/cluster_message", body)
    render.say("Set the cluster's message")


@message_app.command("clear")
def clear_message(
    clear: Annotated[bool, typer.Option("--clear", "-c", help="The same; for scripts that give it.")] = False,
) -> None:
    """Clear the message."""
    session.get().delete("/api/v1/master/cluster_message")
    render.say("Cleared the cluster's message")


@app.command("version")
def version() -> None:
    """Print the versions of this client and of the cluster, as YAML."""
    from determined import __version__, errors

    shown: dict[str, Any] = {"client": {"version": __version__}, "master_address": session.master_url()}
    try:
        shown["master"] = session.anonymous().get("/info").json()
    except errors.MasterNotFoundException as error:
        render.yaml_out(shown)
        raise error from None
    render.yaml_out(shown)


def _now() -> str:
    from datetime import UTC, datetime

    return datetime.now(UTC).isoformat()
