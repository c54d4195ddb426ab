"""`det task`: what runs at present and its log, and generic tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cli import kinds, launching, render, session
from cli.bundles import bundled
from cli.group import command_of, new_app
from cli.options import Json, LogLines, OfAllocation, lists
from cli.render import Form
from determined.common.api._url import api_path

app = new_app("Tasks of all kinds, and tasks of your own that run any program.", aliases={"ls": "list"}, default="list")
set_app = new_app("Change a task of any kind that waits or runs.")
app.add_typer(set_app, name="set")

TaskId = Annotated[str, typer.Argument(metavar="TASK_ID", help="The task's id.", show_default=False)]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Print its log until it ends.")]
ProjectId = Annotated[
    int | None, typer.Option("--project_id", "--project-id", help="In the workspace of this project.")
]

After = Annotated[
    list[str] | None,
    typer.Option(
        "--after", help="Wait until this task has completed; may be repeated. If it fails, this one is canceled."
    ),
]
AfterAny = Annotated[
    list[str] | None, typer.Option("--after-any", help="Wait until this task has ended, in whatever way.")
]

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
    return command_of(app)


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
    task_id: TaskId,
    lines: LogLines,
    allocation_id: OfAllocation = None,
) -> None:
    """Print a task's log."""
    from cli.log_output import print_logs

    print_logs(task_id, lines, kind="task", allocations=allocation_id)


@app.command("why")
def why(task_id: TaskId, as_json: Json = False) -> None:
    """Tell what a task waits for, how its runs ended and what comes next."""
    known = session.fetch(f"undeterred/tasks/{task_id}/why")
    if as_json:
        render.json_out(known)
        return
    for line in known["sentences"]:
        render.say(line)


@app.command("create")
def create(
    config_file: Annotated[Path, typer.Argument(help="A YAML file with the configuration.", show_default=False)],
    context: Annotated[Path | None, typer.Option("--context", "-c", help="A folder that the task finds.")] = None,
    include: Annotated[list[Path] | None, typer.Option("--include", "-i", help="A file or folder beside it.")] = None,
    project_id: ProjectId = None,
    config: Annotated[list[str] | None, typer.Option("--config", help="Change it: key.sub=value.")] = None,
    follow: Follow = False,
    fork: Annotated[str | None, typer.Option("--fork", help="Take what is not given from this task.")] = None,
    parent: Annotated[str | None, typer.Option("--parent", "-p", help="The task that it belongs to.")] = None,
    inherit_context: Annotated[
        bool, typer.Option("--inherit_context", "--inherit-context", help="With the files of its parent.")
    ] = False,
    no_pause: Annotated[
        bool, typer.Option("--no_pause", "--no-pause", help="It is never paused, and never started twice.")
    ] = False,
    after: After = None,
    after_any: AfterAny = None,
) -> None:
    """Run a program of your own as a task. Prints its id."""
    options = launching.LaunchOptions(config_file=config_file, config=config, context=context, include=include)
    body = {
        "config": json.dumps(options.written()),
        **options.code("contextDirectory"),
        "projectId": project_id,
        "forkedFrom": fork,
        "parentId": parent,
        "inheritContext": inherit_context,
        "noPause": no_pause,
        "after": after,
        "afterAny": after_any,
    }
    _created(body, follow)


@app.command("fork")
def fork(
    parent_task_id: Annotated[str, typer.Argument(help="The task to run once more.", show_default=False)],
    follow: Follow = False,
    project_id: ProjectId = None,
    after: After = None,
    after_any: AfterAny = None,
) -> None:
    """Run a generic task once more: its configuration and its files. What it came after is not waited for again."""
    body: dict[str, Any] = {"config": "", "contextDirectory": [], "forkedFrom": parent_task_id, "projectId": project_id}
    _created(body | {"after": after, "afterAny": after_any}, follow)


def _created(body: Mapping[str, Any], follow: bool) -> None:
    task_id = launching.launch("generic-tasks", body)["taskId"]
    render.say(f"Created task {task_id}")
    if follow:
        raise typer.Exit(launching.follow(task_id))


@app.command("config")
def config_of(task_id: TaskId, as_json: Json = False) -> None:
    """Print the configuration of a generic task as it was given."""
    text = session.get().get(api_path("tasks", task_id, "config")).json()["config"]
    render.document(json.loads(text), as_json=as_json)


@app.command("kill")
def kill(
    task_id: TaskId,
    root: Annotated[bool, typer.Option("--root", help="The whole tree that it belongs to.")] = False,
) -> None:
    """End a generic task and those below it."""
    session.get().post(api_path("tasks", task_id, "kill"), {"taskId": task_id, "killFromRoot": root})
    render.say(f"Killed task: {task_id}")


@app.command("pause")
def pause(task_id: TaskId) -> None:
    """Have a generic task give its slots back, and those below it."""
    session.get().post(api_path("tasks", task_id, "pause"))
    render.say(f"Paused task: {task_id}")


@app.command("unpause")
def unpause(task_id: TaskId) -> None:
    """Have a paused task go on, and those below it: each is started again."""
    session.get().post(api_path("tasks", task_id, "unpause"))
    render.say(f"Unpaused task: {task_id}")


@set_app.command("lifetime")
def set_lifetime(task_id: TaskId, limit: kinds.Lifetime) -> None:
    """Change after how long on its slots a task ends, all its runs together."""
    kinds.set_limit(task_id, "maxLifetime", limit)


@set_app.command("idle-timeout")
def set_idle_timeout(task_id: TaskId, limit: kinds.IdleTimeout) -> None:
    """Change after how long without use a notebook or TensorBoard ends."""
    kinds.set_limit(task_id, "idleTimeout", limit)


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
