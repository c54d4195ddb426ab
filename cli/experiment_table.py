"""Lists of experiments: used by `det experiment list` and `det project list-experiments`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cli import paging, render, session
from cli.render import Form


def filters(everything: bool) -> dict[str, Any]:
    """What to ask the API for: my experiments that are not archived, or all."""
    return {} if everything else {"archived": False, "users": [_me()]}


def fetch(form: Form, **params: Any) -> list[dict[str, Any]]:
    """Experiments, without what no table shows: configurations and trials would be nine tenths of the answer."""
    return paging.fetch("experiments", "experiments", form, **params, summary=not form.as_document)


def show(
    found: Sequence[dict[str, Any]], form: Form, *, with_archived: bool = False, with_project: bool = False
) -> None:
    """Print experiments, perhaps with a column of whether each is archived, and two of where it is."""
    headers = ["ID", "Owner", "Name", "Parent ID", "State", "Progress", "Started", "Ended", "Resource Pool"]
    rows = [
        [
            e["id"],
            e.get("username"),
            e.get("name"),
            e.get("forkedFrom"),
            render.state(e.get("state")),
            render.percent(e.get("progress")),
            render.time_of(e.get("startTime")),
            render.time_of(e.get("endTime")),
            e.get("resourcePool"),
        ]
        for e in found
    ]
    if with_project:
        headers = ["Workspace", "Project", *headers]
        rows = [[e.get("workspaceName"), e.get("projectName"), *row] for e, row in zip(found, rows, strict=True)]
    if with_archived:
        headers = [*headers, "Archived"]
        rows = [[*row, bool(e.get("archived"))] for e, row in zip(found, rows, strict=True)]
    render.listing(headers, rows, form, raw=list(found))


def _me() -> str:
    if session.wanted_user():
        return str(session.wanted_user())
    return session.get().username or str(session.fetch("me")["user"]["username"])
