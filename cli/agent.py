"""`det agent`: the hosts that run trials."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, Literal

import typer

from cli import join_token as join_tokens
from cli import lookup, render, server, session
from cli.group import command_of, new_app
from cli.options import lists
from cli.render import Form
from determined.common.api._url import api_path

app = new_app("Agents: the hosts that run trials.", aliases={"ls": "list"}, default="list")

app.add_typer(join_tokens.app, name="join-token")

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
    "Labels",
]

AgentId = Annotated[str | None, typer.Argument(metavar="AGENT_ID", help="The agent's id.", show_default=False)]
All = Annotated[bool, typer.Option("--all", help="All agents.")]


def command() -> Any:
    """The group as a command."""
    return command_of(app)


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
            "labels": agent.get("label") or "",
        }
        for agent in session.fetch_all("agents", "agents", form.limit)
    ]
    render.listing(_HEADERS, [list(agent.values()) for agent in found], form, raw=found)


@app.command("enable")
def enable(agent_id: AgentId = None, all_: All = False) -> None:
    """Enable an agent with all of its slots."""
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
    grace: Annotated[
        int | None, typer.Option("--grace", min=0, help="With --drain: wait at most this many seconds.")
    ] = None,
) -> None:
    """Disable an agent: its trials move to other agents or, with --drain, run to their end."""
    if grace is not None and not drain:
        raise typer.BadParameter("--grace: expected only with --drain.")
    names = _wanted(agent_id, all_)
    for name in names:
        with lookup.nearest(name, lookup.agent_names):
            body = {"drain": drain} | ({} if grace is None else {"graceSeconds": grace})
            session.get().post(api_path("agents", name, "disable"), body)
        render.note(f"Disabled agent '{name}'")
    if drain:
        from cli import task

        found: dict[str, Any] = session.fetch("tasks").get("allocationIdToSummary") or {}
        left = {id_: each for id_, each in found.items() if _agents_of(each) & set(names)}
        render.listing(task.HEADERS, [task.row(each) for each in left.values()], form, raw=left)


@app.command("remove")
def remove(
    agent_id: Annotated[str, typer.Argument(metavar="AGENT_ID", help="The agent's id.", show_default=False)],
    force: Annotated[bool, typer.Option("--force", help="Even if it is connected.")] = False,
) -> None:
    """Remove an agent for good: its credential is revoked, its trials resume elsewhere."""
    with lookup.nearest(agent_id, lookup.agent_names):
        session.get().delete(api_path("undeterred", "agents", agent_id), params={"force": str(force).lower()})
    render.say(f"Removed agent '{agent_id}'")


@app.command("run")
def run(
    join_token: Annotated[
        str | None,
        typer.Option("--join-token", help="From `det agent join-token create`; needed once. Or UNDETERRED_JOIN_TOKEN."),
    ] = None,
    trust: Annotated[
        str | None, typer.Option("--trust", help="Fingerprint of the cluster's own authority, beside the token.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Its id (this host's name).")] = None,
    slots: Annotated[int | None, typer.Option("--slots", min=0, help="Slots (its GPUs, else its cores).")] = None,
    slot_type: Annotated[Literal["auto", "cuda", "cpu"], typer.Option("--slot-type", help="What slots are.")] = "auto",
    label: Annotated[
        list[str] | None, typer.Option("--label", help="What people should know of it, key=value.")
    ] = None,
    launcher: Annotated[
        Literal["process", "docker"], typer.Option("--launcher", help="How trials are run.")
    ] = "process",
    address: Annotated[
        str | None, typer.Option("--address", help="Where other hosts reach it (the one towards the master).")
    ] = None,
    folder: Annotated[str | None, typer.Option("--folder", help="Where it keeps its files.")] = None,
    memory_mib: Annotated[int | None, typer.Option("--memory-mib", min=1, help="Memory of a slot, on Docker.")] = None,
    trial_python: Annotated[str | None, typer.Option("--trial-python", help="Interpreter of process trials.")] = None,
) -> None:
    """Make this host an agent of the cluster, and work for it until stopped (by Ctrl-C, or SIGTERM).

    Containers outlive it: started again, it goes on with them.
    """
    server.require("det agent run")
    words = {
        "--master": session.master_url(),
        "--join-token": join_token,
        "--trust": trust,
        "--name": name,
        "--slots": slots,
        "--slot-type": slot_type,
        "--launcher": launcher,
        "--address": address,
        "--folder": folder,
        "--memory-mib": memory_mib,
        "--trial-python": trial_python,
    }
    given = [word for option, value in words.items() if value is not None for word in (option, str(value))]
    labels = [word for text in label or [] for word in ("--label", text)]
    # in our place: signals reach it, and its exit code is ours
    os.execv(sys.executable, server.python("workers.enrolled_agent", [*given, *labels]))


def _wanted(agent_id: str | None, all_: bool) -> list[str]:
    if (agent_id is not None) == all_:
        raise typer.BadParameter("expected either an agent's id or --all.")
    return [agent_id] if agent_id is not None else lookup.agent_names()


def _agents_of(task: dict[str, Any]) -> set[str]:
    return {name for resource in render.parts(task, "resources") for name in render.part(resource, "agentDevices")}
