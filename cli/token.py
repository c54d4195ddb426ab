"""`det token`: access tokens, which programs log in with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import typer

from cli import budget, lookup, paging, render, session
from cli.budget import TokenId
from cli.group import command_of, new_app
from cli.options import Json, Yaml, at_most_one, lists, paged
from cli.render import Form
from determined import errors

app = new_app("Access tokens, by which programs log in.", aliases={"ls": "list"})
app.add_typer(budget.token_app, name="budget")

_HEADERS = ["ID", "User ID", "Description", "Created At", "Expires At", "Revoked", "Token Type", "Scope", "Last Used"]

Username = Annotated[str | None, typer.Argument(metavar="USERNAME", help="Of this user.", show_default=False)]


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("list")
@paged
def list_tokens(
    form: Form,
    username: Username = None,
    show_inactive: Annotated[bool, typer.Option("--show-inactive", help="Also revoked and expired ones.")] = False,
) -> None:
    """List my access tokens; for administrators those of all users."""
    params: dict[str, Any] = {"showInactive": show_inactive} | ({"username": username} if username else {})
    with lookup.nearest(username or "", lookup.user_names):
        found = paging.fetch("tokens", "tokenInfo", form, **params)
    render.listing(_HEADERS, map(_row, found), form, raw=found)


@app.command("describe")
@lists
def describe(
    form: Form,
    token_id: Annotated[list[int], typer.Argument(metavar="TOKEN_ID", help="Their numbers.", show_default=False)],
) -> None:
    """Show access tokens."""
    found = paging.fetch("tokens", "tokenInfo", tokenIds=token_id, showInactive=True)
    missing = sorted(set(token_id) - {token["id"] for token in found})
    if missing:
        raise errors.NotFoundException(f"access token {missing[0]} not found")
    render.listing(_HEADERS, map(_row, found), form, raw=found)


@app.command("create")
def create(
    username: Username = None,
    expiration_days: Annotated[
        int | None, typer.Option("--expiration-days", "-e", min=-1, help="Days until it expires (30); -1: never.")
    ] = None,
    description: Annotated[str | None, typer.Option("--description", "-d", help="What it is for.")] = None,
    scope: Annotated[Literal["full", "read-only"], typer.Option("--scope", help="What it may be used for.")] = "full",
    as_json: Json = False,
    as_yaml: Yaml = False,
) -> None:
    """Create an access token. It is shown only once."""
    at_most_one(json=as_json, yaml=as_yaml)
    user = lookup.user(username) if username else session.fetch("me")["user"]
    body: dict[str, Any] = {"userId": user["id"], "scope": scope}
    body |= {"lifespan": f"{expiration_days * 24}h"} if expiration_days is not None else {}
    body |= {"description": description} if description is not None else {}
    made = session.get().post("/api/v1/tokens", body).json()
    if as_json or as_yaml:
        render.document(made, as_json=as_json)
        return
    render.say(f"Created access token {made['tokenId']}")
    render.say(made["token"])


@app.command("edit")
def edit(
    token_id: TokenId,
    description: Annotated[str | None, typer.Option("--description", "-d", help="What it is for.")] = None,
    as_json: Json = False,
    as_yaml: Yaml = False,
) -> None:
    """Change the description of an access token."""
    at_most_one(json=as_json, yaml=as_yaml)
    if description is None:
        raise typer.BadParameter("nothing to change was given: expected --description.")
    found = session.get().patch(f"/api/v1/tokens/{token_id}", {"description": description}).json()["tokenInfo"]
    if as_json or as_yaml:
        render.document(found, as_json=as_json)
    else:
        render.table(_HEADERS, [_row(found)])


@app.command("revoke")
def revoke(token_id: TokenId) -> None:
    """Revoke an access token."""
    session.get().patch(f"/api/v1/tokens/{token_id}", {"setRevoked": True})
    render.say(f"Revoked access token {token_id}")


@app.command("login")
def login(
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="The token itself.", show_default=False)],
) -> None:
    """Log in with an access token; it is kept until `det user logout`."""
    from determined.common.api import Cert, Session, authentication

    url = session.master_url()
    given = Session(url, token=token, cert=Cert.of(url))
    try:
        name = str(given.get("/api/v1/me").json()["user"]["username"])
    except errors.UnauthenticatedException:
        raise errors.UnauthenticatedException(f"{url} takes no such access token: it is unknown or over") from None
    finally:
        given.close()
    authentication.TokenStore().set(url, name, token)
    render.say(f"Logged in as user '{name}' at {url}")


def _row(token: Mapping[str, Any]) -> render.Row:
    return [
        token["id"],
        token.get("userId"),
        token.get("description"),
        render.time_of(token.get("createdAt")),
        render.time_of(token.get("expiry")),
        bool(token.get("revoked")),
        str(token.get("tokenType") or "").removeprefix("TOKEN_TYPE_"),
        token.get("scope"),
        render.time_of(token.get("lastUsedAt")),
    ]
