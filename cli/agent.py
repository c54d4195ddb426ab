"""`det agent`: the hosts that run trials."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cli import lookup, render, session
from cli.group import new_app
from cli.options import lists
from cli.render import Form
from determined.common.api._url import api_path

app = new_app("The hosts that run trials.", aliases={"ls": "list"}, default="list")

_HEADERS = [
    "Agent ID",
    "Version",
    "Registered Time",
    "Slots",
    "Containers",
    "Resource Pool",
    "Enabled",
    "Draining",
    "Addresses",
]

AgentId = Annotated[str | None, typer.Argument(metavar="AGENT_ID", help="The agent's id.", show_default=False)]
All = Annotated[bool, typer.Option("--all", help="All agents.")]


def command() -> Any:
    """The group as a command."""
    return typer.main.get_command(app)


@app.command("list")
@lists
def list_agents(form: Form) -> None:
    """List agents."""
    found: list[dict[str, Any]] = [
        {
            "id": agent["id"],
            "version": agent.get("version"),
            "registered_time": render.time_of(agent.get("registeredTime")),
            "num_slots": len(agent.get("slots") or {}),
            "num_containers": len(agent.get("containers") or {}),
            "resource_pools": ", ".join(render.parts(agent, "resourcePools")),
            "enabled": bool(agent.get("enabled")),
            "draining": bool(agent.get("draining")),
            "addresses": ", ".join(render.parts(agent, "addresses")),
        }
        for agent in session.fetch_all("agents", "agents", form.limit)
    ]
    render.listing(_HEADERS, [list(agent.values()) for agent in found], form, raw=found)


@app.command("enable")
def enable(agent_id: AgentId = None, all_: All = False) -> None:
    """Put an agent back into service, with all of its slots."""
    for name in _wanted(agent_id, all_):
        with lookup.nearest(name, lookup.agent_names):
            session.get().post(api_path("agents", name, "enable"))
        render.say(f"Enabled agent '{name}'")


@app.command("disable")
@lists
def disable(
    form: Form,
    agent_id: AgentId = None,
    all_: All = False,
    drain: Annotated[bool, typer.Option("--drain", help="Let what runs there run to its end.")] = False,
) -> None:
    """Take an agent out of service: what runs there goes elsewhere, or with --drain may stay until it ends."""
    names = _wanted(agent_id, all_)
    for name in names:
        with lookup.nearest(name, lookup.agent_names):
            session.get().post(api_path("agents", name, "disable"), {"drain": drain})
        render.note(f"Disabled agent '{name}'")
    if drain:
        from cli import task

        found: dict[str, Any] = session.fetch("tasks").get("allocationIdToSummary") or {}
        left = {id_: each for id_, each in found.items() if _agents_of(each) & set(names)}
        render.listing(task.HEADERS, [task.row(each) for each in left.values()], form, raw=left)


def _wanted(agent_id: str | None, all_: bool) -> list[str]:
    if (agent_id is not None) == all_:
        raise typer.BadParameter("expected either an agent's id or --all.")
    return [agent_id] if agent_id is not None else lookup.agent_names()


def _agents_of(task: dict[str, Any]) -> set[str]:
    return {name for resource in render.parts(task, "resources") for name in render.part(resource, "agentDevices")}
