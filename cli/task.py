"""`det task`: what runs at present, and its log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from cli import render, session
from cli.bundles import bundled
from cli.group import new_app
from cli.later import not_there
from cli.options import (
    LogLines,
    lists,
)
from cli.render import Form

app = new_app("Running tasks and their logs.", aliases={"ls": "list"}, default="list")
not_there(app, "tasks are trials of experiments here", "create", "config", "fork", "kill", "pause", "unpause")

HEADERS = [
    "Task ID",
    "Allocation ID",
    "Name",
    "Slots Needed",
    "Registered Time",
    "Agent",
    "Priority",
    "Resource Pool",
    "Ports",
]


def command() -> Any:
    """The group as a command."""
    return typer.main.get_command(app)


@app.command("list")
@lists
def list_tasks(form: Form) -> None:
    """List running tasks, by allocation."""
    found: dict[str, Any] = session.fetch("tasks").get("allocationIdToSummary") or {}
    kept = dict(list(found.items())[: form.limit])
    render.listing(HEADERS, [row(summary) for summary in kept.values()], form, raw=kept)


@app.command("logs")
@bundled
def logs(
    task_id: Annotated[str, typer.Argument(metavar="TASK_ID", help="The task's id.", show_default=False)],
    lines: LogLines,
    allocation_id: Annotated[list[str] | None, typer.Option("--allocation-id", help="Only of this allocation.")] = None,
) -> None:
    """Print a task's log."""
    from cli.log_output import print_logs

    print_logs(task_id, lines, kind="task", allocations=allocation_id)


@app.command("cleanup-logs")
def cleanup_logs() -> None:
    """Remove logs that are past their retention; for administrators only."""
    count = session.get().post("/api/v1/cleanup_logs").json().get("removedCount")
    render.say(f"Removed {count} log lines")


def row(summary: Mapping[str, Any]) -> render.Row:
    """A task of the API as a row of `HEADERS`."""
    agents = {name for resource in render.parts(summary, "resources") for name in render.part(resource, "agentDevices")}
    ports = [str(port["port"]) for port in render.parts(summary, "proxyPorts")]
    return [
        summary["taskId"],
        summary["allocationId"],
        summary.get("name"),
        summary.get("slotsNeeded"),
        render.time_of(summary.get("registeredTime")),
        ", ".join(sorted(agents)) or "unassigned",
        summary.get("priority"),
        summary.get("resourcePool"),
        ", ".join(ports),
    ]
