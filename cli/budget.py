"""`det experiment budget`, `workspace budget`, `token budget`: what may be used, what was, and how that is changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from cli import lookup, render, session
from cli.bundles import Bundle, bundled
from cli.group import new_app
from cli.options import ExperimentId, WorkspaceName, shows
from cli.render import Form

experiment_app = new_app("The budget of an experiment: what it may use before it is paused.")
workspace_app = new_app("The budget of a workspace: what all that is in it may use together.")
token_app = new_app("The budget of an access token: what all that it starts may use together.")

Reset = Annotated[bool, typer.Option("--reset", help="Count what is used from 0 again.")]
TokenId = Annotated[int, typer.Argument(metavar="TOKEN_ID", help="The token's number.", show_default=False)]

_HEADERS = ["What", "Limit", "Used", "Share"]
#: Limits, and what the API calls what was used of each.
_USED = {"slotHours": "slotHours", "price": "price", "wallTime": "wallTimeSeconds", "trials": "trials"}


@dataclass(frozen=True)
class Limits(Bundle):
    """The limits of a budget."""

    slot_hours: Annotated[
        float | None, typer.Option("--slot-hours", min=0, help="Hours of slots that all trials may hold; 0: no limit.")
    ] = None
    price: Annotated[
        float | None, typer.Option("--price", min=0, help="What these may cost at their pools' prices; 0: no limit.")
    ] = None
    wall_time: Annotated[
        str | None,
        typer.Option(
            "--wall-time",
            help="How long an experiment may be active, or others hold slots, such as 12h; 0s: no limit.",
        ),
    ] = None
    trials: Annotated[int | None, typer.Option("--trials", min=0, help="Trials that may start; 0: no limit.")] = None
    soft: Annotated[
        float | None, typer.Option("--soft", help="The share of a limit at which it is warned of, such as 0.8.")
    ] = None

    def given(self, *, reset: bool = False) -> dict[str, Any]:
        """What was given, as the API has it. Raises: BadParameter, if nothing was."""
        named = {_camel(field.name): getattr(self, field.name) for field in fields(self)}
        given = {name: value for name, value in named.items() if value is not None} | ({"reset": True} if reset else {})
        if not given:
            options = ", ".join(f"--{field.name.replace('_', '-')}" for field in fields(self))
            raise typer.BadParameter(f"expected one or more of {options}.")
        return given


@experiment_app.command("show")
@shows
def show_of_experiment(form: Form, experiment_id: ExperimentId) -> None:
    """Show the budget of an experiment, and what was used of it."""
    _show(session.get().get(_of_experiment(experiment_id)).json(), form)


@experiment_app.command("set")
@bundled
def set_of_experiment(experiment_id: ExperimentId, limits: Limits) -> None:
    """Change the budget of an experiment; limits that are not given stay.

    One that its budget paused goes on after `det experiment activate`.
    """
    session.get().patch(_of_experiment(experiment_id), limits.given())
    render.say(f"Set the budget of experiment {experiment_id}")


@workspace_app.command("show")
@shows
def show_of_workspace(form: Form, workspace_name: WorkspaceName) -> None:
    """Show the budget of a workspace, and what was used of it."""
    _show(session.get().get(_of_workspace(workspace_name)).json(), form)


@workspace_app.command("set")
@bundled
def set_of_workspace(workspace_name: WorkspaceName, limits: Limits, reset: Reset = False) -> None:
    """Change the budget of a workspace; limits that are not given stay.

    What it paused goes on after `det experiment activate`.
    """
    session.get().patch(_of_workspace(workspace_name), limits.given(reset=reset))
    render.say(f"Set the budget of workspace '{workspace_name}'")


@token_app.command("show")
@shows
def show_of_token(form: Form, token_id: TokenId) -> None:
    """Show the budget of an access token, and what was used of it."""
    _show(session.get().get(f"/api/v1/undeterred/tokens/{token_id}/budget").json(), form)


@token_app.command("set")
@bundled
def set_of_token(token_id: TokenId, limits: Limits, reset: Reset = False) -> None:
    """Change the budget of an access token; limits that are not given stay."""
    session.get().patch(f"/api/v1/undeterred/tokens/{token_id}/budget", limits.given(reset=reset))
    render.say(f"Set the budget of access token {token_id}")


def _of_workspace(name: str) -> str:
    return f"/api/v1/undeterred/workspaces/{lookup.workspace(name)['id']}/budget"


def _of_experiment(experiment_id: int) -> str:
    return f"/api/v1/undeterred/experiments/{experiment_id}/budget"


def _show(found: Mapping[str, Any], form: Form) -> None:
    limits, used = render.part(found, "limits"), render.part(found, "used")
    rows: list[render.Row] = []
    for name, of_used in _USED.items():
        limit, so_far = limits.get(name), used.get(of_used)
        if limit is not None and so_far is not None:
            rows.append(_row(name, limit, so_far))
    render.listing(_HEADERS, rows, form, raw=found)
    if form.is_for_programs:
        return
    if not rows:
        render.note("It has no budget.")
    if found.get("spent"):
        render.note(f"The budget is spent: {found['spent'].replace('_', ' ')}.")
    for notice in render.parts(found, "notices"):
        render.note(f"{notice['at']}: {notice['text']}")


def _row(name: str, limit: Any, so_far: float) -> render.Row:
    from workflows.config.durations import seconds_of, shown

    if name == "wallTime":
        return ["wall time", limit, shown(round(so_far)), f"{so_far / (seconds_of(limit) or 1):.0%}"]
    return ["slot-hours" if name == "slotHours" else name, f"{limit:g}", f"{so_far:.4g}", f"{so_far / limit:.0%}"]


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
