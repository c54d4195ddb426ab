"""`det resource-pool`: where trials queue."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cli import files, lookup, render, session
from cli.group import command_of, new_app
from cli.options import Json, lists
from cli.render import Form
from determined.common.api._url import api_path

app = new_app("Resource pools: agents that share a queue.", aliases={"ls": "list"}, default="list")
bindings_app = new_app("Which workspaces a pool is for; one that is bound to none is for all.")
app.add_typer(bindings_app, name="bindings")
access_app = new_app("Whom a restricted pool is granted to; a public one is for all.", default="list")
app.add_typer(access_app, name="access")

PoolName = Annotated[str, typer.Argument(metavar="POOL_NAME", help="The pool.", show_default=False)]
NewName = Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits, '.', '_', '-'.", show_default=False)]
Workspaces = Annotated[list[str], typer.Argument(metavar="WORKSPACE_NAME", help="The workspaces.", show_default=False)]


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("list")
@lists
def list_pools(form: Form) -> None:
    """List resource pools, and how full they are."""
    found = session.fetch_all("resource-pools", "resourcePools", form.limit)
    rows = [
        [
            pool["name"],
            pool.get("description"),
            pool.get("numAgents"),
            pool.get("slotsUsed"),
            pool.get("slotsAvailable"),
            str(pool.get("slotType") or "").removeprefix("TYPE_").lower(),
            bool(pool.get("defaultComputePool")),
            bool(pool.get("defaultAuxPool")),
        ]
        for pool in found
    ]
    headers = ["Name", "Description", "Agents", "Slots Used", "Slots", "Slot Type", "Default", "Default Aux"]
    render.listing(headers, rows, form, raw=found)


Description = Annotated[str | None, typer.Option("--description", "-d", help="What it is for.", show_default=False)]
Changes = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="What to change: preemption=true, quotas.users.ann=4; `KEY=` takes it back."
    ),
]


@app.command("describe")
def describe(pool_name: PoolName, as_json: Json = False) -> None:
    """Show a resource pool: how full it is, how it shares its slots, and what is its default."""
    with lookup.nearest(pool_name, lookup.pool_names):
        answered = session.get().get(_ours(pool_name)).json()
        found = answered["resourcePool"] | {"nodes": answered["nodes"], "access": answered["access"]}
        if answered["nodesError"]:
            found["nodesError"] = answered["nodesError"]
        found["settings"] = session.get().get(_ours(pool_name, "settings")).json()["settings"]
    render.document(found, as_json=as_json)


@app.command("create")
def create(
    pool_name: NewName,
    changes: Changes = None,
    description: Description = None,
    scheduler: Annotated[
        str | None, typer.Option("--scheduler", help="priority (the default), fair_share or round_robin.")
    ] = None,
    restricted: Annotated[
        bool, typer.Option("--restricted", help="Only for those whom `det resource-pool access grant` names.")
    ] = False,
) -> None:
    """Create a resource pool; `det resource-pool settings` shows its possible settings."""
    wanted = _patch(changes)
    if scheduler is not None:
        wanted["scheduler"] = scheduler
    body = {"name": pool_name, "description": description, "settings": wanted, "restricted": restricted}
    session.get().post("/api/v1/undeterred/resource-pools", body)
    render.say(f"Created resource pool '{pool_name}'")


@app.command("remove")
def remove_pool(pool_name: PoolName) -> None:
    """Remove a resource pool that no agent is in and no live experiment uses."""
    with lookup.nearest(pool_name, lookup.pool_names):
        session.get().delete(_ours(pool_name))
    render.say(f"Removed resource pool '{pool_name}'")


@app.command("set-description")
def set_description(
    pool_name: PoolName, description: Annotated[str, typer.Argument(help="What it is for.", show_default=False)]
) -> None:
    """Set the description of a resource pool."""
    with lookup.nearest(pool_name, lookup.pool_names):
        session.get().patch(_ours(pool_name), json={"description": description})
    render.say(f"Described resource pool '{pool_name}'")


@app.command("set-default")
def set_default(
    pool_name: PoolName,
    compute: Annotated[bool, typer.Option("--compute", help="Of experiments with slots.")] = False,
    aux: Annotated[bool, typer.Option("--aux", help="Of experiments without slots.")] = False,
) -> None:
    """Make a pool the default for experiments and workspaces that name none."""
    if not (compute or aux):
        raise typer.BadParameter("expected --compute, --aux or both.")
    wanted = {"defaultComputePool": compute or None, "defaultAuxPool": aux or None}
    with lookup.nearest(pool_name, lookup.pool_names):
        session.get().patch(_ours(pool_name), json=wanted)
    kinds = " and ".join(kind for kind, is_meant in (("with", compute), ("without", aux)) if is_meant)
    render.say(f"Experiments {kinds} slots that name no pool go to '{pool_name}'")


@app.command("settings")
def settings(
    pool_name: PoolName,
    changes: Changes = None,
    provider: Annotated[
        Path | None, typer.Option("--provider", help="A YAML file that says where its nodes come from.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show how a pool shares its slots, or change it at once: policy, preemption, quotas, nodes."""
    patch = _patch(changes)
    if provider is not None:
        patch["provider"] = files.read_mapping(provider)
    with lookup.nearest(pool_name, lookup.pool_names):
        path = _ours(pool_name, "settings")
        call = session.get()
        found = call.patch(path, json={"settings": patch}) if patch else call.get(path)
    render.document(found.json()["settings"], as_json=as_json)


def _patch(changes: list[str] | None) -> dict[str, Any]:
    patch: dict[str, Any] = {}
    for text in changes or ():
        _put(patch, text)
    return patch


def _put(patch: dict[str, Any], text: str) -> None:
    import yaml

    key, equals, value = text.partition("=")
    *path, last = key.split(".")
    try:
        for name in path:
            patch = patch.setdefault(name, {})
        patch[last] = yaml.safe_load(value) if value else None
    except (AttributeError, TypeError, yaml.YAMLError):
        equals = ""
    if not last or not equals:
        raise typer.BadParameter(f"{text!r}: expected KEY=VALUE, such as preemption=true or quotas.users.ann=4.")


@bindings_app.command("list-workspaces")
@lists
def list_workspaces(form: Form, pool_name: PoolName) -> None:
    """List the workspaces that a pool is bound to, or all that may use it if it is bound to none."""
    with lookup.nearest(pool_name, lookup.pool_names):
        path = _path(pool_name).removeprefix("/api/v1/")
        bound: list[Any] = session.fetch_all(path, "workspaceIds")
    if not bound:
        render.note(f"Resource pool '{pool_name}' is bound to no workspace: all may use it.")
    spaces = session.fetch_all("workspaces", "workspaces") if bound else []
    found = [each for each in spaces if each["id"] in bound]
    render.listing(["ID", "Name"], [[each["id"], each["name"]] for each in found], form, raw=found)


@bindings_app.command("add")
def add(pool_name: PoolName, workspace_names: Workspaces) -> None:
    """Bind a pool to further workspaces."""
    _change("POST", pool_name, workspace_names)
    render.say(f"Bound resource pool '{pool_name}' to: {', '.join(workspace_names)}")


@bindings_app.command("replace")
def replace(pool_name: PoolName, workspace_names: Workspaces) -> None:
    """Bind a pool to these workspaces and to no others."""
    _change("PUT", pool_name, workspace_names)
    render.say(f"Bound resource pool '{pool_name}' to these only: {', '.join(workspace_names)}")


@bindings_app.command("remove")
def remove(pool_name: PoolName, workspace_names: Workspaces) -> None:
    """Unbind a pool from workspaces."""
    _change("DELETE", pool_name, workspace_names)
    render.say(f"Unbound resource pool '{pool_name}' from: {', '.join(workspace_names)}")


def _change(method: str, pool_name: str, workspace_names: list[str]) -> None:
    ids = [lookup.workspace(name)["id"] for name in workspace_names]
    with lookup.nearest(pool_name, lookup.pool_names):
        session.get().request(method, _path(pool_name), json={"workspaceIds": ids})


Users = Annotated[list[str] | None, typer.Option("--user", "-u", help="A user, by name; may be repeated.")]
Groups = Annotated[list[str] | None, typer.Option("--group", "-g", help="A group of users; may be repeated.")]
Places = Annotated[
    list[str] | None, typer.Option("--workspace", "-w", help="All who submit in this workspace; may be repeated.")
]


@access_app.command("list")
@lists
def list_access(form: Form) -> None:
    """List resource pools, and who may use each (administrators only)."""
    found: list[dict[str, Any]] = session.get().get("/api/v1/resource-pool-access").json()["resource_pools"]
    rows = [
        [
            pool["pool_name"],
            pool["mode"],
            ", ".join(each["username"] for each in pool["users"]),
            ", ".join(each["name"] for each in pool["groups"]),
            ", ".join(each["name"] for each in pool["workspaces"]),
            pool["restricted_by"],
        ]
        for pool in found
    ]
    render.listing(["Pool", "Mode", "Users", "Groups", "Workspaces", "Restricted By"], rows, form, raw=found)


@access_app.command("restrict")
def restrict(pool_name: PoolName) -> None:
    """Have a pool for administrators only, and for those to whom it is granted. What is in it stays."""
    _set_mode(pool_name, "restricted")
    render.say(f"Restricted resource pool '{pool_name}'")


@access_app.command("open")
def open_to_all(pool_name: PoolName) -> None:
    """Have a pool for all again; its grants are kept."""
    _set_mode(pool_name, "public")
    render.say(f"Resource pool '{pool_name}' is public")


@access_app.command("grant")
def grant(pool_name: PoolName, users: Users = None, groups: Groups = None, workspaces: Places = None) -> None:
    """Grant a restricted pool to users, to the members of groups, or to all who submit in a workspace."""
    names = _change_holders("grant", pool_name, users, groups, workspaces)
    render.say(f"Granted resource pool '{pool_name}' to: {names}")


@access_app.command("revoke")
def revoke(pool_name: PoolName, users: Users = None, groups: Groups = None, workspaces: Places = None) -> None:
    """Take a pool back from users, groups or workspaces. What they have in it stays until it ends."""
    names = _change_holders("revoke", pool_name, users, groups, workspaces)
    render.say(f"Revoked resource pool '{pool_name}' from: {names}")


def _set_mode(pool_name: str, mode: str) -> None:
    with lookup.nearest(pool_name, lookup.pool_names):
        _warn(session.get().put(api_path("resource-pool-access", pool_name), json={"mode": mode}).json())


def _change_holders(
    verb: str, pool_name: str, users: list[str] | None, groups: list[str] | None, workspaces: list[str] | None
) -> str:
    body = {"usernames": users or [], "groups": groups or [], "workspaces": workspaces or []}
    if not any(body.values()):
        raise typer.BadParameter("expected one --user, --group or --workspace, or more.")
    with lookup.nearest(pool_name, lookup.pool_names):
        _warn(session.get().post(api_path("resource-pool-access", pool_name, verb), body).json())
    return ", ".join(name for names in body.values() for name in names)


def _warn(answered: dict[str, Any]) -> None:
    for warning in answered["warnings"]:
        render.note(f"Warning: {warning}.")


def _ours(pool_name: str, *more: str) -> str:
    return api_path("undeterred", "resource-pools", pool_name, *more)


def _path(pool_name: str) -> str:
    return api_path("resource-pools", pool_name, "workspace-bindings")
