"""`det experiment move`, `bulk`, `delete-tb-files`, `set max-slots`, `weight`, `priority` and `log-retention`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from cli import lookup, render, session
from cli.options import Days, ExperimentId, Forever, InWorkspace, ProjectName, WorkspaceName, Yes, lists, retention
from cli.render import Form

_DONE = {"activate": "Activated", "pause": "Paused", "cancel": "Canceled", "kill": "Killed", "archive": "Archived",
         "unarchive": "Unarchived", "delete": "Deletion has begun"}  # fmt: skip


def move(experiment_id: ExperimentId, workspace_name: WorkspaceName, project_name: ProjectName) -> None:
    """Move an experiment to another project."""
    target = lookup.project(workspace_name, project_name)["id"]
    session.get().post(f"/api/v1/experiments/{experiment_id}/move", {"destinationProjectId": target})
    render.say(f"Moved experiment {experiment_id} to project '{project_name}' of workspace '{workspace_name}'")


def delete_tb_files(experiment_id: ExperimentId) -> None:
    """Remove the TensorBoard files of an experiment that has ended."""
    session.get().delete(f"/api/v1/experiments/{experiment_id}/tensorboard-files")
    render.say(f"The removal of the TensorBoard files of experiment {experiment_id} has begun")


def set_max_slots(
    experiment_id: ExperimentId,
    max_slots: Annotated[int, typer.Argument(metavar="MAX_SLOTS", help="For all its trials.", show_default=False)],
) -> None:
    """Limit the slots that an experiment may have at once."""
    _set(experiment_id, "maxSlots", max_slots)


def set_weight(
    experiment_id: ExperimentId,
    weight: Annotated[float, typer.Argument(metavar="WEIGHT", help="More is a larger share.", show_default=False)],
) -> None:
    """Change the share that an experiment has of its pool."""
    _set(experiment_id, "weight", weight)


def set_priority(
    experiment_id: ExperimentId,
    priority: Annotated[int, typer.Argument(metavar="PRIORITY", help="1 to 99: lower is earlier.", show_default=False)],
) -> None:
    """Change the place of an experiment in its queue."""
    _set(experiment_id, "priority", priority)


def set_log_retention(experiment_id: ExperimentId, days: Days = None, forever: Forever = False) -> None:
    """Change how long the logs of an experiment's trials are kept after their end."""
    count = retention(days, forever)
    session.get().put(f"/api/v1/experiments/{experiment_id}/retain_logs", {"numDays": count})
    render.say(f"The logs of experiment {experiment_id} are kept " + ("indefinitely" if count < 0 else f"{count} days"))


@lists
def bulk(
    form: Form,
    action: Annotated[
        Literal["activate", "pause", "cancel", "kill", "archive", "unarchive", "delete"],
        typer.Argument(
            metavar="COMMAND", help="activate, pause, cancel, kill, archive, unarchive, delete.", show_default=False
        ),
    ],
    experiment_ids: Annotated[
        list[int] | None, typer.Argument(metavar="EXPERIMENT_ID", help="Which ones.", show_default=False)
    ] = None,
    workspace_name: InWorkspace = None,
    project_name: Annotated[str | None, typer.Option("--project-name", "-p", help="All of this project.")] = None,
    states: Annotated[list[str] | None, typer.Option("--state", help="Of those, only in this state.")] = None,
    labels: Annotated[list[str] | None, typer.Option("--label", help="Of those, only with this label.")] = None,
    yes: Yes = False,
) -> None:
    """Give many experiments one command: those named, or those of a project.

    Lists what was wrong with which. Exit code 0 only if nothing was.
    """
    where: dict[str, Any] = {}
    if experiment_ids:
        if any((workspace_name, project_name, states, labels)):
            raise typer.BadParameter("expected either numbers of experiments, or options that choose them.")
        body: dict[str, Any] = {"experimentIds": experiment_ids}
    else:
        if not (workspace_name and project_name):
            raise typer.BadParameter("expected numbers of experiments, or --workspace-name with --project-name.")
        where = lookup.project(workspace_name, project_name)
        wanted = {"states": [f"STATE_{state.upper()}" for state in states or []], "labels": labels or []}
        body = {"filters": wanted | {"projectId": where["id"]}}
    if action in ("kill", "delete"):
        which = f"{len(experiment_ids)} experiment(s)" if experiment_ids else f"experiments of project '{project_name}'"
        render.confirm(f"{action.capitalize()} {which}?", yes)
    path = f"/api/v1/projects/{where.get('id', 1)}/experiments/{action}"
    method = "DELETE" if action == "delete" else "POST"
    results: list[dict[str, Any]] = session.get().request(method, path, json=body).json().get("results") or []
    rows = [[each["id"], each.get("error") or _DONE[action]] for each in results]
    render.listing(["ID", "Result"], rows, form, raw=results)
    if any(each.get("error") for each in results):
        raise typer.Exit(1)


def _set(experiment_id: int, field: str, value: float) -> None:
    session.get().patch(f"/api/v1/experiments/{experiment_id}", {"resources": {field: value}})
    name = {"maxSlots": "max slots"}.get(field, field)
    render.say(f"Set {name} of experiment {experiment_id} to {value}")
