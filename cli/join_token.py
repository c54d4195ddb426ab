"""`det agent join-token`: what hosts become agents by."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from cli import paging, render, session
from cli.group import new_app
from cli.options import paged
from cli.render import Form
from determined.common.api._url import api_path

app = new_app("Tokens by which hosts join as agents.", aliases={"ls": "list"}, default="list")

_PATH = "undeterred/agent-join-tokens"
_HEADERS = ["ID", "Pool", "Description", "Uses Left", "Created By", "Created At", "Expires At", "Revoked"]


@app.command("create")
def create(
    pool: Annotated[str, typer.Option("--pool", help="Of this resource pool (the default one).")] = "",
    uses: Annotated[
        int | None, typer.Option("--uses", min=1, help="The number of hosts that may join by it (any).")
    ] = None,
    lifespan: Annotated[str, typer.Option("--lifespan", help="Such as 24h; -1: it never expires.")] = "24h",
    description: Annotated[str, typer.Option("--description", help="For people.")] = "",
) -> None:
    """Create a token by which hosts join. It is shown only once."""
    body = {"pool": pool, "description": description, "lifespan": lifespan, "uses": uses}
    made = session.get().post(f"/api/v1/{_PATH}", body).json()
    render.note(f"join token {made['tokenId']}; on the new host:")
    if urlsplit(session.master_url()).hostname in ("localhost", "127.0.0.1", "::1"):
        render.note("(with an address of this machine, as the new host reaches it, in place of the local one)")
    known_by = str(made.get("authorityFingerprint") or "")
    trust = f" --trust {known_by}" if known_by else ""
    render.say(f"det -m {session.master_url()} agent run --join-token {made['token']}{trust}")


@app.command("list")
@paged
def list_tokens(form: Form) -> None:
    """List join tokens."""
    found = paging.fetch(_PATH, "tokens", form)
    render.listing(_HEADERS, map(_row, found), form, raw=found)


@app.command("revoke")
def revoke(
    token_id: Annotated[int, typer.Argument(metavar="TOKEN_ID", help="The token's number.", show_default=False)],
) -> None:
    """Revoke a token; hosts that joined by it stay."""
    session.get().delete(api_path("undeterred", "agent-join-tokens", str(token_id)))
    render.say(f"Revoked join token {token_id}")


def _row(token: dict[str, Any]) -> list[Any]:
    left = token.get("usesLeft")
    return [
        token["id"],
        token["pool"],
        token["description"],
        "any" if left is None else left,
        token["createdBy"],
        render.time_of(token["createdAt"]),
        render.time_of(token["expiresAt"]),
        token["isRevoked"],
    ]
