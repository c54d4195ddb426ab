"""`det tensorboard`: TensorBoards of experiments and trials."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cli import kinds, opening
from cli.bundles import bundled
from cli.group import command_of
from cli.launching import LaunchOptions
from cli.opening import NoBrowser

app = kinds.app_of(
    "tensorboard",
    "TensorBoards: what experiments and trials have written for TensorBoard, in your browser.",
    name="TensorBoard",
    more=(("Experiment Ids", "experimentIds"), ("Trial Ids", "trialIds")),
)


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("start")
@bundled
def start(
    options: LaunchOptions,
    experiment_ids: Annotated[
        list[int] | None, typer.Argument(metavar="EXPERIMENT_ID", help="Which experiments.", show_default=False)
    ] = None,
    trial_ids: Annotated[
        list[int] | None, typer.Option("--trial-ids", "-t", help="A single trial; give it for each.")
    ] = None,
    no_browser: NoBrowser = False,
    detach: kinds.Detach = False,
) -> None:
    """Start a TensorBoard for experiments and trials, and open it in your browser when it is ready."""
    shown = {"experimentIds": experiment_ids or [], "trialIds": trial_ids or []}
    if not any(shown.values()):
        raise typer.BadParameter("expected ids of experiments, or --trial-ids.")
    opening.start("tensorboard", "TensorBoard", options.body() | shown, detach=detach, no_browser=no_browser)


@app.command("open")
def open_one(task_id: kinds.TaskId, no_browser: NoBrowser = False) -> None:
    """Open a TensorBoard in your browser."""
    opening.reopen("tensorboard", "TensorBoard", task_id, no_browser=no_browser)
