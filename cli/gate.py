"""`det gate`: what waits for approval, and deciding about it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cli import render, session
from cli.group import command_of, new_app
from cli.options import lists
from cli.render import Form

app = new_app("What waits for approval (`approve_before` of a configuration).", aliases={"ls": "list"}, default="list")

_HEADERS = ["ID", "Experiment", "What Waits", "State", "Asked At", "Due At", "Decided By"]

GateId = Annotated[int, typer.Argument(metavar="GATE_ID", help="The gate's number.", show_default=False)]


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("list")
@lists
def list_gates(
    form: Form,
    experiment_id: Annotated[int | None, typer.Option("--experiment", help="Of this experiment.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Also those that are decided.")] = False,
) -> None:
    """List gates that wait, the newest first."""
    wanted = {"experimentId": experiment_id, "state": None if all_ else "WAITING"}
    params = {name: value for name, value in wanted.items() if value is not None}
    found = render.parts(session.get().get("/api/v1/undeterred/gates", params=params).json(), "gates")
    rows = [
        [
            gate["id"],
            f"{gate['experimentId']} {gate['experimentName']}",
            gate["text"],
            gate["state"],
            gate["askedAt"],
            gate.get("dueAt"),
            gate.get("decidedBy"),
        ]
        for gate in found
    ]
    render.listing(_HEADERS, rows, form, raw=found)


@app.command("approve")
def approve(gate_id: GateId) -> None:
    """Have what waits at a gate done."""
    session.get().post(f"/api/v1/undeterred/gates/{gate_id}/approve")
    render.say(f"Approved gate {gate_id}")


@app.command("deny")
def deny(gate_id: GateId) -> None:
    """Refuse what waits at a gate: trials that wait there end."""
    session.get().post(f"/api/v1/undeterred/gates/{gate_id}/deny")
    render.say(f"Denied gate {gate_id}")
