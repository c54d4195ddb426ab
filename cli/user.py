"""`det user`: log in and out, manage users."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cli import lookup, render, session
from cli.bundles import bundled
from cli.group import command_of, new_app
from cli.options import TaskUser, lists
from cli.render import Form
from determined.common.api._url import api_path

if TYPE_CHECKING:
    from determined.common.api import Session

app = new_app("Log in and out; manage users.", aliases={"ls": "list"}, default="list")

Username = Annotated[str, typer.Argument(metavar="USERNAME", help="The name.", show_default=False)]


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("login")
def login(
    username: Annotated[str | None, typer.Argument(metavar="USERNAME", help="The name.", show_default=False)] = None,
) -> None:
    """Log in; the session is kept until `det user logout`. A password that is piped in is not asked for."""
    from determined.common.api import Cert, authentication

    url = session.master_url()
    store = authentication.TokenStore()
    name = username or session.wanted_user() or store.active_user(url)
    if not name:
        name = typer.prompt("Username", default=authentication.DEFAULT_USER) if sys.stdin.isatty() else None
    if not name:
        raise ValueError("no user: give a name, `det user login NAME`.")
    token = authentication.request_token(url, name, _password(f"Password for user '{name}': "), Cert.of(url))
    store.set(url, name, token)
    render.say(f"Logged in as user '{name}' at {url}")


@app.command("logout")
def logout(all_: Annotated[bool, typer.Option("--all", "-a", help="Every user of this cluster.")] = False) -> None:
    """End the session and forget it."""
    from determined.common.api import Cert, Session, authentication

    url = session.master_url()
    store = authentication.TokenStore()
    names = store.users(url) if all_ else [session.wanted_user() or store.active_user(url)]
    known = [(name, store.token(url, name)) for name in names if name]
    if not any(token for _, token in known):
        render.say("Nobody is logged in")
        return
    for name, token in known:
        if token:
            ended = Session(url, token=token, username=name, cert=Cert.of(url), max_tries=1)
            authentication.logout(ended, store)
            ended.close()
            render.say(f"Logged out user '{name}'")


@app.command("whoami")
def whoami() -> None:
    """Print the name of the logged-in user."""
    render.say(f"You are logged in as user '{session.fetch('me')['user']['username']}'")


@app.command("list")
@lists
def list_users(
    form: Form,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Also those who may not log in.")] = False,
) -> None:
    """List users."""
    params = {} if all_ else {"active": True}
    found = session.fetch_all("users", "users", form.limit, **params)
    headers = ["User Id", "Username", "Display Name", "Admin", "Active", "Remote"]
    headers += ["Agent Uid", "Agent Gid", "Agent User", "Agent Group"]
    rows: list[render.Row] = []
    for user in found:
        group = render.part(user, "agentUserGroup")
        flags = [bool(user.get(name)) for name in ("admin", "active", "remote")]
        names = ("agentUid", "agentGid", "agentUser", "agentGroup")
        rows.append([user["id"], user["username"], user.get("displayName"), *flags, *(group.get(n) for n in names)])
    render.listing(headers, rows, form, raw=found)


@app.command("create")
def create(
    username: Username,
    admin: Annotated[bool, typer.Option("--admin", help="May do everything.")] = False,
    password: Annotated[str | None, typer.Option("--password", help="Better let it be asked for.")] = None,
    remote: Annotated[bool, typer.Option("--remote", help="Has no password here, and no session by one.")] = False,
) -> None:
    """Create a user; for administrators only."""
    from determined.experimental import Determined

    secret = password if password is not None or remote else _new_password(username)
    Determined.from_session(session.get()).create_user(username, admin, secret, remote)
    render.say(f"Created user '{username}'")


@app.command("change-password")
def change_password(
    target_user: Annotated[str | None, typer.Argument(metavar="USERNAME", show_default=False)] = None,
) -> None:
    """Change a password: one's own, or as an administrator another's. Ends that user's sessions and access tokens."""
    from determined.errors import ForbiddenException
    from determined.experimental import Determined

    client = Determined.from_session(session.get())
    me = client.whoami()
    if target_user:
        with lookup.nearest(target_user, lookup.user_names):
            user = client.get_user_by_name(target_user)
    else:
        user = me
    secret = _new_password(str(user.username))
    own = user.user_id == me.user_id
    try:
        user.change_password(secret)
    except ForbiddenException:
        if not own:
            raise
        fresh = _log_in_again(str(me.username), _password(f"Current password for user '{me.username}': "))
        Determined.from_session(fresh).get_user_by_id(me.user_id).change_password(secret)
    if own:  # that ended our own session
        _log_in_again(str(me.username), secret)
    render.say(f"Changed the password of user '{user.username}'")


def _log_in_again(username: str, password: str) -> Session:
    from determined.common.api import Cert, Session, authentication

    url = session.master_url()
    token = authentication.request_token(url, username, password)
    authentication.TokenStore().set(url, username, token)
    session.close()
    return Session(url, username, token, cert=Cert.of(url))


@app.command("edit")
def edit(
    target_user: Username,
    display_name: Annotated[str | None, typer.Option("--display-name", help="A name for people.")] = None,
    username: Annotated[str | None, typer.Option("--username", help="The name to log in with.")] = None,
    remote: Annotated[
        Literal["true", "false"] | None, typer.Option("--remote", help="Whether it has no password here.")
    ] = None,
    active: Annotated[Literal["true", "false"] | None, typer.Option("--active", help="Whether it may log in.")] = None,
    admin: Annotated[
        Literal["true", "false"] | None, typer.Option("--admin", help="Whether it may do everything.")
    ] = None,
) -> None:
    """Change a user; fields that are not given stay."""
    changes: dict[str, Any] = {"displayName": display_name, "username": username}
    for name, word in (("remote", remote), ("active", active), ("admin", admin)):
        changes[name] = None if word is None else word == "true"
    changes = {name: value for name, value in changes.items() if value is not None}
    if not changes:
        raise typer.BadParameter("nothing to change was given; see `det user edit --help`.")
    _patch(target_user, changes)
    render.say(f"Changed user '{target_user}'")


@app.command("link-with-agent-user")
@bundled
def link_with_agent_user(det_username: Username, owner: TaskUser) -> None:
    """Set the user and group that a user's tasks run as on the agents."""
    group = owner.agent_user_group()
    if group is None or len(group) < 4:
        raise typer.BadParameter("expected all of --agent-uid, --agent-user, --agent-gid and --agent-group.")
    _patch(det_username, {"agentUserGroup": group})
    render.say(f"Linked user '{det_username}' with '{owner.agent_user}' on the agents")


@app.command("rename")
def rename(target_user: Username, new_username: str) -> None:
    """Change the name that a user logs in with."""
    _patch(target_user, {"username": new_username})
    render.say(f"User '{target_user}' is now '{new_username}'")


@app.command("activate")
def activate(username: Username) -> None:
    """Let a user log in."""
    _patch(username, {"active": True})
    render.say(f"Activated user '{username}'")


@app.command("deactivate")
def deactivate(username: Username) -> None:
    """Keep a user from logging in."""
    _patch(username, {"active": False})
    render.say(f"Deactivated user '{username}'")


def _patch(name: str, changes: dict[str, Any]) -> None:
    session.get().patch(api_path("users", lookup.user(name)["id"]), changes)


def _password(prompt: str) -> str:
    if sys.stdin.isatty():
        import getpass

        return getpass.getpass(prompt)
    return sys.stdin.readline().rstrip("\n")


def _new_password(username: str) -> str:
    first = _password(f"New password for user '{username}': ")
    if sys.stdin.isatty() and first != _password("Again: "):
        raise ValueError("the two passwords differ; nothing was changed.")
    if not first:
        raise ValueError("the password is empty; nothing was changed.")
    return first
