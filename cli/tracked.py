"""`det import mlflow|tensorboard|wandb`, and the other way `det export`: other trackers of experiments."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import render, session
from cli.bundles import Bundle, bundled
from cli.group import command_of, new_app
from cli.options import ExperimentId

if TYPE_CHECKING:
    from cli.trackers.runs import Source


class FileKind(StrEnum):
    """Of files with tables."""

    CSV = "csv"
    PARQUET = "parquet"


Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder.", show_default=False)]


@dataclass(frozen=True)
class Goal(Bundle):
    """Where the experiments go, and by what their trials are compared."""

    workspace_name: Annotated[
        str, typer.Option("--workspace-name", "-w", help="The workspace of the experiments.", show_default=False)
    ] = ""
    project_name: Annotated[
        str, typer.Option("--project-name", "-p", help="Their project in it.", show_default=False)
    ] = ""
    metric: Annotated[
        str, typer.Option("--metric", help="The validation metric that says which is the best.", show_default=False)
    ] = ""
    larger_is_better: Annotated[bool, typer.Option("--larger-is-better", help="Of that metric.")] = False


@bundled
def mlflow(
    place: Annotated[
        str,
        typer.Argument(
            metavar="DIR|URL", help="A file store (`mlruns`), or a tracking server: http://…", show_default=False
        ),
    ],
    goal: Goal,
    experiment: Annotated[
        list[str] | None, typer.Option("--experiment", "-e", help="Only this one; may be given more than once.")
    ] = None,
) -> None:
    """Bring the runs of MLflow. Repeated, only what is new or changed comes."""
    from cli.trackers.mlflow import read

    _bring(read(place, experiment or []), goal)


@bundled
def tensorboard(folder: Folder, goal: Goal) -> None:
    """Bring the runs of a TensorBoard folder: each folder in it with event files. Repeated, only what is new comes."""
    from cli.trackers.tensorboard import read

    _bring(read(folder), goal)


@bundled
def wandb(folder: Folder, goal: Goal) -> None:
    """Bring the runs that Weights & Biases kept offline. Repeated, only what is new or changed comes."""
    from cli.trackers.wandb import read

    _bring(read(folder), goal)


def _bring(sources: Iterable[Source], goal: Goal) -> None:
    from cli.trackers.bring import Place, bring

    place = Place(goal.workspace_name, goal.project_name, goal.metric, not goal.larger_is_better)
    is_empty = True
    for found in bring(session.get(), sources, place):
        is_empty = False
        render.say(
            f"Experiment {found.experiment_id} ({found.name}): {len(found.written)} runs written,"
            f" {found.unchanged} as they were"
        )
    if is_empty:
        render.say("There are no runs")


# -- the other way -----------------------------------------------------------------------------------------------------

app = new_app("Write experiments for other programs.")


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("mlflow")
def to_mlflow(
    experiment_ids: Annotated[
        list[int], typer.Argument(metavar="EXPERIMENT_ID...", help="The experiments' numbers.", show_default=False)
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="DIR|URL", help="A folder for a file store, or a tracking server.", show_default=False
        ),
    ],
) -> None:
    """Write experiments as runs of MLflow. Repeated, only what is new or changed is written."""
    from cli.trackers import export

    for experiment_id in experiment_ids:
        source = export.source_of(session.get(), experiment_id)
        written, unchanged = export.to_mlflow(source, to)
        render.say(f"Experiment {experiment_id} ({source.name}): {written} runs written, {unchanged} as they were")


def to_files(
    experiment_id: ExperimentId,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="The folder; it is made.", show_default=False)],
    kind: Annotated[FileKind, typer.Option("--format", help="csv, or parquet, which needs pyarrow.")] = FileKind.CSV,
) -> None:
    """Write an experiment's trials, metrics and configuration as files that pandas reads."""
    from cli.trackers import export

    for path in export.to_files(session.get(), experiment_id, to, kind.value):
        render.say(str(path))
