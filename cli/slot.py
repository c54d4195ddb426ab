"""`det slot`: what trials run on."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cli import lookup, render, session
from cli.group import command_of, new_app
from cli.options import lists
from cli.render import Form
from determined.common.api._url import api_path

app = new_app("Slots: the GPUs or cores of agents.", aliases={"ls": "list"}, default="list")

_HEADERS = [
    "Agent ID",
    "Resource Pool",
    "Slot ID",
    "Enabled",
    "Draining",
    "Allocation ID",
    "Task Name",
    "Type",
    "Device",
]

AgentId = Annotated[str, typer.Argument(metavar="AGENT_ID", help="The agent.", show_default=False)]
SlotId = Annotated[str, typer.Argument(metavar="SLOT_ID", help="The slot's number on it.", show_default=False)]


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("list")
@lists
def list_slots(form: Form) -> None:
    """List slots and the allocations that hold them."""
    tasks: dict[str, Any] = session.fetch("tasks").get("allocationIdToSummary") or {}
    found: list[dict[str, Any]] = []
    for agent in session.fetch_all("agents", "agents"):
        for slot in render.part(agent, "slots").values():
            allocation_id = render.part(slot, "container").get("parent")
            task = render.part(tasks, str(allocation_id))
            found.append(
                {
                    "agent_id": agent["id"],
                    "resource_pool": ", ".join(render.parts(agent, "resourcePools")),
                    "slot_id": slot["id"],
                    "enabled": bool(slot.get("enabled")),
                    "draining": bool(slot.get("draining")),
                    "allocation_id": allocation_id or "FREE",
                    "task_name": (task.get("name") or "OCCUPIED") if allocation_id else "None",
                    "type": str(render.part(slot, "device").get("type") or "").removeprefix("TYPE_").lower(),
                    "device": _device(slot),
                }
            )
    render.listing(_HEADERS, [list(slot.values()) for slot in found], form, raw=found)


def _device(slot: dict[str, Any]) -> str | None:
    if slot.get("problem"):
        return f"in error: {slot['problem']}"
    brand = render.part(slot, "device").get("brand")
    return f"{brand} ({slot['groups']})" if slot.get("groups") else brand


@app.command("enable")
def enable(agent_id: AgentId, slot_id: SlotId) -> None:
    """Enable a slot."""
    with lookup.nearest(agent_id, lookup.agent_names):
        session.get().post(api_path("agents", agent_id, "slots", slot_id, "enable"))
    render.say(f"Enabled slot {slot_id} of agent '{agent_id}'")


@app.command("disable")
def disable(
    agent_id: AgentId,
    slot_id: SlotId,
    drain: Annotated[bool, typer.Option("--drain", help="Let what runs there run to its end.")] = False,
) -> None:
    """Disable a slot."""
    with lookup.nearest(agent_id, lookup.agent_names):
        session.get().post(api_path("agents", agent_id, "slots", slot_id, "disable"), {"drain": drain})
    render.say(f"Disabled slot {slot_id} of agent '{agent_id}'")
