"""The commands that commands, notebooks, shells and TensorBoards have in common: list, describe, config, logs, kill."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import typer

from cli import lookup, paging, render, session
from cli.bundles import bundled
from cli.group import new_app
from cli.options import InWorkspace, LogLines, OfAllocation, OrderBy, paged, shows
from cli.render import Form
from determined.common.api._url import api_path

TaskId = Annotated[str, typer.Argument(metavar="ID", help="Its id, or how that begins.", show_default=False)]
TaskIds = Annotated[list[str], typer.Argument(metavar="ID", help="Which: ids, or how they begin.", show_default=False)]
SortBy = Annotated[
    Literal["id", "username", "description", "state", "exitStatus", "resourcePool", "workspaceName", "startTime"]
    | None,
    typer.Option(
        "--sort-by", help="In the order of this, upwards unless --order-by says otherwise.", show_default=False
    ),
]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Print the id and return at once.")]
Lifetime = Annotated[
    str, typer.Argument(metavar="LIMIT", help="A duration, as 8h: so long in all; 0s: never.", show_default=False)
]
IdleTimeout = Annotated[
    str, typer.Argument(metavar="LIMIT", help="A duration, as 2h, from now on; 0s: never.", show_default=False)
]
#: Kinds that end when nobody uses them.
ENDS_IDLE = ("notebook", "tensorboard")
_REACHED = {"maxLifetime": "when it has run for", "idleTimeout": "when it has not been used for"}
#: Characters of an id.
_WHOLE = 36
HEADERS = ("Id", "Owner", "Description", "State", "Exit Status", "Resource Pool", "Workspace")


def app_of(kind: str, help: str, *, name: str = "", more: Sequence[tuple[str, str]] = ()) -> typer.Typer:
    """A group with the commands that all kinds have.

    Args:
        kind: As the API calls one of them: its path has an s behind it.
        help: One line on the group.
        name: As people read it, if not so.
        more: Further columns of its list, and the fields that they show.
    """
    app = new_app(help, aliases={"ls": "list"}, default="list")
    for add in (_add_readers, _add_changes):
        add(app, kind, name or kind, more)
    return app


def resolved(kind: str, text: str) -> str:
    """The id that begins so; what is no beginning of one is left for the API to refuse. Raises: ValueError."""
    if len(text) >= _WHOLE:
        return text
    found = [each["id"] for each in session.fetch_all(f"{kind}s", f"{kind}s") if each["id"].startswith(text)]
    if len(found) > 1:
        raise ValueError(f"{text!r} begins the ids of {len(found)} {kind}s, {', '.join(found[:3])}: give more of it.")
    return found[0] if found else text


def fetched(kind: str, text: str) -> dict[str, Any]:
    """One of them, by its id or how that begins, with its configuration: the API's answer."""
    return session.get().get(api_path(f"{kind}s", resolved(kind, text))).json()


def _add_readers(app: typer.Typer, kind: str, name: str, more: Sequence[tuple[str, str]]) -> None:
    headers = [*HEADERS, *(header for header, _ in more)]

    def row(each: dict[str, Any], spaces: dict[int, str]) -> render.Row:
        return [*_row(each, spaces), *(", ".join(map(str, each.get(field) or [])) for _, field in more)]

    def list_them(
        form: Form,
        every: Annotated[bool, typer.Option("--all", "-a", help="Those of other users too.")] = False,
        quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the ids only.")] = False,
        workspace_name: InWorkspace = None,
        sort_by: SortBy = None,
        order_by: OrderBy = "asc",
    ) -> None:
        wanted: dict[str, Any] = {} if every else {"users": session.get().username}
        if workspace_name is not None:
            wanted["workspaceId"] = lookup.workspace(workspace_name)["id"]
        found = paging.fetch(f"{kind}s", f"{kind}s", form, **wanted)
        needs_names = not quiet or sort_by == "workspaceName"
        spaces = lookup.workspaces_by_id() if needs_names else {}
        if sort_by is not None:
            found.sort(key=lambda each: _sorts_by(each, sort_by, spaces), reverse=order_by == "desc")
        if quiet:
            for each in found:
                render.say(each["id"])
            return
        render.listing(headers, [row(each, spaces) for each in found], form, raw=found)

    def describe(form: Form, task_id: TaskId) -> None:
        found = fetched(kind, task_id)[kind]
        shown = {key: value for key, value in found.items() if key != "privateKey"}
        render.listing(headers, [row(found, lookup.workspaces_by_id())], form, raw=shown)

    def config_of(task_id: TaskId) -> None:
        render.yaml_out(fetched(kind, task_id)["config"])

    def logs(task_id: TaskId, lines: LogLines, allocation_id: OfAllocation = None) -> None:
        from cli.log_output import print_logs

        print_logs(resolved(kind, task_id), lines, kind="task", allocations=allocation_id)

    _add(app, "list", paged(list_them), f"List {name}s, the newest first unless it is said otherwise.")
    _add(app, "describe", shows(describe), f"Show a {name}.")
    _add(app, "config", config_of, f"Print a {name}'s configuration with every default, as YAML.")
    _add(app, "logs", bundled(logs), f"Print a {name}'s log.")


def _add_changes(app: typer.Typer, kind: str, name: str, more: Sequence[tuple[str, str]]) -> None:
    set_app = new_app(f"Change a {name} that waits or runs.")
    app.add_typer(set_app, name="set")

    def kill(
        task_ids: TaskIds,
        force: Annotated[bool, typer.Option("--force", "-f", help="Go on with the others after an error.")] = False,
    ) -> None:
        from determined import errors

        for number, text in enumerate(task_ids):
            task_id = text
            try:
                task_id = resolved(kind, text)
                session.get().post(api_path(f"{kind}s", task_id, "kill"))
            except errors.APIException as error:
                left = task_ids[number + 1 :]
                if not force:
                    if left:
                        render.note(f"not killed: {', '.join(left)}")
                    raise
                render.note(f"{name} {task_id}: {error.message}")
            else:
                render.say(f"Killed {name} {task_id}")

    def set_priority(
        task_id: TaskId,
        priority: Annotated[int, typer.Argument(metavar="PRIORITY", help="1 to 99; 1 goes first.", min=1, max=99)],
    ) -> None:
        task_id = resolved(kind, task_id)
        session.get().post(api_path(f"{kind}s", task_id, "set_priority"), {"priority": priority})
        render.say(f"Set priority of {name} {task_id} to {priority}")

    def set_lifetime(task_id: TaskId, limit: Lifetime) -> None:
        set_limit(resolved(kind, task_id), "maxLifetime", limit)

    def set_idle_timeout(task_id: TaskId, limit: IdleTimeout) -> None:
        set_limit(resolved(kind, task_id), "idleTimeout", limit)

    _add(app, "kill", kill, f"End {name}s at once. Those that have ended stay as they are.")
    _add(set_app, "priority", set_priority, f"Change the place of a {name} in the queue of its pool.")
    _add(set_app, "lifetime", set_lifetime, f"Change after how long on its slots a {name} ends.")
    if kind in ENDS_IDLE:
        _add(set_app, "idle-timeout", set_idle_timeout, f"Change after how long without use a {name} ends.")


def set_limit(task_id: str, name: str, limit: str) -> None:
    """Change a limit of a task's time, and print what holds then. `name`: of the request's field."""
    from workflows.config.durations import seconds_of

    path = api_path("undeterred", "tasks", task_id, "limits")
    now = session.get().patch(path, {name: limit}).json()[name]
    never = "not end for that" if not seconds_of(now) else f"end {_REACHED[name]} {now}"
    render.say(f"Task {task_id} will {never}")


def _add(app: typer.Typer, word: str, command: Callable[..., None], help: str) -> None:
    app.command(word, help=help)(command)


def _sorts_by(each: dict[str, Any], name: str, spaces: dict[int, str]) -> str:
    value = spaces.get(each["workspaceId"]) if name == "workspaceName" else each.get(name)
    return str(value or "").lower()


def _row(each: dict[str, Any], spaces: dict[int, str]) -> render.Row:
    return [
        each["id"],
        each["username"],
        each["description"],
        render.state(each["state"]),
        each.get("exitStatus"),
        each["resourcePool"],
        spaces.get(each["workspaceId"]),
    ]
