"""The options that say what a task is launched with: a configuration, overrides of it, mounts and files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from cli import create, files, lookup, session
from cli.bundles import Bundle
from cli.options import LogLines
from cli.progress import progress
from determined.common.api._url import api_path
from determined.common.context import Folder


@dataclass(frozen=True)
class LaunchOptions(Bundle):
    """What a task is launched with."""

    config_file: Annotated[
        Path | None, typer.Option("--config-file", help="A YAML file with the configuration.", show_default=False)
    ] = None
    config: Annotated[
        list[str] | None, typer.Option("--config", help="Change the configuration: key.sub=value.", show_default=False)
    ] = None
    volume: Annotated[
        list[str] | None,
        typer.Option("--volume", "-v", help="A folder of the host in the container: /host:/container."),
    ] = None
    context: Annotated[
        Path | None,
        typer.Option("--context", "-c", help="A folder whose contents the task finds where it starts."),
    ] = None
    include: Annotated[
        list[Path] | None, typer.Option("--include", "-i", help="A file or folder to put beside them.")
    ] = None
    template: Annotated[str | None, typer.Option("--template", help="Fill the configuration up from it.")] = None
    workspace_name: Annotated[
        str | None, typer.Option("--workspace-name", "-w", help="In this workspace.", show_default=False)
    ] = None

    def written(self) -> dict[str, Any]:
        """The configuration. Raises: ValueError, InvalidExperimentException."""
        text = files.read_text(self.config_file) if self.config_file is not None else "{}\n"
        text = create.override_config(text, self.config or [], str(self.config_file or "--config"))
        config = files.mapping_of(text, str(self.config_file or "--config"))
        mounts: list[Any] = [*(config.get("bind_mounts") or []), *map(_mount, self.volume or [])]
        return config | ({"bind_mounts": mounts} if mounts else {})

    def code(self, field: str = "files") -> dict[str, Any]:
        """The fields that say the files: see `create.code_of`. Raises: InvalidContextException."""
        with progress("reading the folder"):
            folder = create.read(Folder(self.context, self.include or []))
        return create.code_of(folder, field) if folder.entries else {}

    def workspace_id(self) -> int | None:
        """None: the cluster's first one. Raises: NotFoundException."""
        return None if self.workspace_name is None else lookup.workspace(self.workspace_name)["id"]

    def body(self) -> dict[str, Any]:
        """The message that launches it. Raises: as the others here."""
        return {
            "config": self.written(),
            "templateName": self.template,
            "workspaceId": self.workspace_id(),
            **self.code(),
        }


def _mount(text: str) -> dict[str, str]:
    host, _, inside = text.partition(":")
    if not host or not inside:
        raise ValueError(f"--volume: {text!r}: expected /host/folder:/container/folder")
    return {"host_path": host, "container_path": inside}


def launch(path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Create a task, once however often it is sent; the cluster's answer. Prints its warnings to stderr."""
    from cli import render
    from determined.common.experimental._wire import new_key, warnings_of

    sent = {name: value for name, value in body.items() if value is not None}
    with progress("sending"):
        answer = session.get().post(f"/api/v1/{path}", sent, idempotency_key=new_key(), timeout_s=300.0).json()
    for warning in warnings_of(answer):
        render.note(f"warning: {warning}")
    return answer


def follow(task_id: str) -> int:
    """Print a task's log until it has ended; the exit code of its last run, or 1 if that never had one."""
    from cli import render
    from cli.log_output import print_logs

    print_logs(task_id, LogLines(follow=True, source=["task"]), kind="task")
    allocations: list[dict[str, Any]] = session.get().get(api_path("tasks", task_id)).json()["task"]["allocations"]
    last = allocations[0] if allocations else dict[str, Any]()  # the newest one comes first
    code: int | None = last.get("statusCode")
    if code != 0:
        render.note(f"task {task_id}: {last.get('exitReason') or 'ended before it had slots'}")
    return 1 if code is None else code
