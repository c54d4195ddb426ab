"""`det task`: what runs at present, and its log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from cli import render, session
from cli.group import new_app
from cli.later import not_there
from cli.options import (
    After,
    Agents,
    Allocations,
    Before,
    Containers,
    Follow,
    Head,
    Json,
    Level,
    Ranks,
    Sources,
    Stdtypes,
    Tail,
    lists,
)
from cli.render import Form

app = new_app("What runs at present, and its log.", aliases={"ls": "list"}, default="list")
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
    """List what runs, by allocation."""
    found: dict[str, Any] = session.fetch("tasks").get("allocationIdToSummary") or {}
    kept = dict(list(found.items())[: form.limit])
    render.listing(HEADERS, [row(summary) for summary in kept.values()], form, raw=kept)


@app.command("logs")
def logs(
    task_id: Annotated[str, typer.Argument(metavar="TASK_ID", help="The task's id.", show_default=False)],
    follow: Follow = False,
    head: Head = None,
    tail: Tail = None,
    as_json: Json = False,
    level: Level = None,
    allocation_id: Allocations = None,
    agent_id: Agents = None,
    container_id: Containers = None,
    rank_id: Ranks = None,
    stdtype: Stdtypes = None,
    source: Sources = None,
    timestamp_before: Before = None,
    timestamp_after: After = None,
) -> None:
    """Print a task's log."""
    from cli.log_output import print_logs

    filters = {"allocation_ids": allocation_id, "agent_ids": agent_id, "container_ids": container_id}
    filters |= {"rank_ids": rank_id, "stdtypes": stdtype, "sources": source}
    filters |= {"timestamp_before": timestamp_before, "timestamp_after": timestamp_after}
    print_logs(task_id, kind="task", follow=follow, head=head, tail=tail, as_json=as_json, level=level, filters=filters)


@app.command("cleanup-logs")
def cleanup_logs() -> None:
    """Remove the logs whose time is over now; only administrators may."""
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
