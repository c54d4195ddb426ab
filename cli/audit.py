"""`det audit`: who changed what."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer

from cli import paging, render, session
from cli.group import command_of, new_app
from cli.options import Json, paged
from cli.render import Form

app = new_app("The audit log: who changed what; for administrators.", aliases={"ls": "list"}, default="list")


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("list")
@paged
def list_entries(
    form: Form,
    actor: Annotated[str | None, typer.Option("--actor", help="Only what this user did.")] = None,
    since: Annotated[str | None, typer.Option("--since", help="From this time on (RFC 3339).")] = None,
    until: Annotated[str | None, typer.Option("--until", help="Up to this time (RFC 3339).")] = None,
    route: Annotated[str | None, typer.Option("--route", help="Only changes by this route of the API.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="Only of paths that begin so.")] = None,
) -> None:
    """List changes, the newest first: the latest 200, or as many as --limit and --pages say."""
    given = {"actor": actor, "since": since, "until": until, "route": route, "target": target}
    wanted = {name: value for name, value in given.items() if value is not None}
    if form.limit is None and form.pages is None:
        form = dataclasses.replace(form, pages="1")  # the whole log may be of years
    found = paging.fetch("undeterred/audit", "entries", form, **wanted)
    rows: list[render.Row] = [
        [
            each["number"],
            render.time_of(each.get("at")),
            each.get("actor"),
            each.get("address"),
            each.get("method"),
            each.get("target"),
            ", ".join(render.parts(each, "fields")),
        ]
        for each in found
    ]
    render.listing(["#", "Time", "Actor", "Address", "Method", "Target", "Fields"], rows, form, raw=found)


@app.command("verify")
def verify(as_json: Json = False) -> None:
    """Verify that the audit log was not altered. Exit code 0 only if it is intact."""
    found: dict[str, Any] = session.fetch("undeterred/audit/verify")
    if as_json:
        render.json_out(found)
    elif found["isIntact"]:
        render.say(f"The audit log is whole: {found['checked']} entries checked, the last one is {found['head']}")
    else:
        render.say(f"The audit log was changed: {found['problem']}")
    raise typer.Exit(0 if found["isIntact"] else 1)
