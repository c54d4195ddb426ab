"""`det user-group`: groups of users, which can be given roles together."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cli import lookup, paging, render, session
from cli.group import command_of, new_app
from cli.options import Yes, paged, shows
from cli.render import Form

app = new_app("Groups of users, which can be given roles together.", aliases={"ls": "list"}, default="list")

GroupName = Annotated[str, typer.Argument(metavar="GROUP_NAME", help="The group.", show_default=False)]
Usernames = Annotated[str, typer.Argument(metavar="USERNAMES", help="Names, with commas between.", show_default=False)]


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("list")
@paged
def list_groups(
    form: Form,
    groups_user_belongs_to: Annotated[
        str | None, typer.Option("--groups-user-belongs-to", help="Only those of this user.")
    ] = None,
) -> None:
    """List groups."""
    wanted = {"userId": lookup.user(groups_user_belongs_to)["id"]} if groups_user_belongs_to else {}

    def read(size: int, start: int) -> dict[str, Any]:
        return session.get().post("/api/v1/groups/search", wanted | {"limit": size, "offset": start}).json()

    found = paging.items(read, "groups", form)
    rows = [[each["group"]["groupId"], each["group"]["name"], each.get("numMembers")] for each in found]
    render.listing(["Group Id", "Name", "Num Members"], rows, form, raw=found)


@app.command("describe")
@shows
def describe(form: Form, group_name: GroupName) -> None:
    """Show a group and its members."""
    found = session.fetch(f"groups/{lookup.group(group_name)['groupId']}")["group"]
    users: list[dict[str, Any]] = render.parts(found, "users")
    rows = [[user["id"], user["username"], user.get("displayName"), bool(user.get("active"))] for user in users]
    headers = ["User Id", "Username", "Display Name", "Active"]
    if not form.is_for_programs:
        render.say(f"Group {found['groupId']}: {found['name']}\n")
    render.listing(headers, rows, form, raw=found)


@app.command("create")
def create(
    group_name: GroupName,
    add_user: Annotated[list[str] | None, typer.Option("--add-user", help="With this user in it.")] = None,
) -> None:
    """Create a group."""
    body = {"name": group_name, "addUsers": _ids(add_user or [])}
    made = session.get().post("/api/v1/groups", body).json()["group"]
    render.say(f"Created user group '{group_name}' with ID {made['groupId']}")


@app.command("delete")
def delete(group_name: GroupName, yes: Yes = False) -> None:
    """Delete a group, and the permissions that its members had through it."""
    path = _path(group_name)
    render.confirm(f"Delete user group '{group_name}'?", yes)
    session.get().delete(path)
    render.say(f"Deleted user group '{group_name}'")


@app.command("add-user")
def add_user(group_name: GroupName, usernames: Usernames) -> None:
    """Add users to a group."""
    session.get().put(_path(group_name), {"addUsers": _ids(usernames.split(","))})
    render.say(f"Added to user group '{group_name}': {usernames}")


@app.command("remove-user")
def remove_user(group_name: GroupName, usernames: Usernames) -> None:
    """Remove users from a group."""
    session.get().put(_path(group_name), {"removeUsers": _ids(usernames.split(","))})
    render.say(f"Removed from user group '{group_name}': {usernames}")


@app.command("change-name")
def change_name(
    old_group_name: GroupName,
    new_group_name: Annotated[str, typer.Argument(metavar="NEW_GROUP_NAME", show_default=False)],
) -> None:
    """Rename a group."""
    session.get().put(_path(old_group_name), {"name": new_group_name})
    render.say(f"User group '{old_group_name}' is now '{new_group_name}'")


def _ids(names: list[str]) -> list[int]:
    return [int(lookup.user(name.strip())["id"]) for name in names if name.strip()]


def _path(name: str) -> str:
    return f"/api/v1/groups/{lookup.group(name)['groupId']}"
