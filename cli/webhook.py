"""`det webhook`: send events to other systems."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import typer

from cli import lookup, paging, render, session
from cli.group import command_of, new_app
from cli.options import InWorkspace, Json, Yes, lists, paged
from cli.render import Form
from determined import errors

app = new_app("Send events to other systems.", aliases={"ls": "list"}, default="list")

_HEADERS = ["ID", "Name", "URL", "Type", "Mode", "Workspace ID", "Triggers"]

WebhookId = Annotated[int, typer.Argument(metavar="WEBHOOK_ID", help="The webhook's number.", show_default=False)]


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("list")
@lists
def list_webhooks(form: Form) -> None:
    """List webhooks."""
    found: list[dict[str, Any]] = session.fetch("webhooks").get("webhooks") or []
    render.listing(_HEADERS, map(_row, found), form, raw=found)


@app.command("create")
def create(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where to send events.", show_default=False)],
    name: Annotated[str | None, typer.Option("--name", help="A name for people.")] = None,
    workspace_name: InWorkspace = None,
    states: Annotated[
        list[str] | None, typer.Option("--state", help="When an experiment gets this state: COMPLETED, ERROR, …")
    ] = None,
    patterns: Annotated[
        list[str] | None, typer.Option("--log-pattern", help="When a line of a log matches this pattern.")
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option("--metric", help="When a validation metric of a trial crosses a threshold: 'accuracy>=0.9'."),
    ] = None,
    custom: Annotated[bool, typer.Option("--custom", help="When training code says so.")] = False,
    kind: Annotated[Literal["default", "slack"], typer.Option("--type", help="The format of the events.")] = "default",
    mode: Annotated[
        Literal["workspace", "specific"],
        typer.Option("--mode", help="Of all experiments, or of those whose configuration names it."),
    ] = "workspace",
    as_json: Json = False,
) -> None:
    """Create a webhook. Prints the secret that its events are signed with."""
    triggers = [_trigger("EXPERIMENT_STATE_CHANGE", state=state.upper()) for state in states or []]
    triggers += [_trigger("TASK_LOG", regex=pattern) for pattern in patterns or []]
    triggers += [_threshold(text) for text in metrics or []]
    triggers += [_trigger("CUSTOM")] if custom else []
    if not triggers:
        raise typer.BadParameter("expected one or more of --state, --log-pattern, --metric and --custom.")
    body: dict[str, Any] = {"url": url, "triggers": triggers, "webhookType": f"WEBHOOK_TYPE_{kind.upper()}"}
    body |= {"mode": f"WEBHOOK_MODE_{mode.upper()}"} | ({"name": name} if name is not None else {})
    body |= {"workspaceId": lookup.workspace(workspace_name)["id"]} if workspace_name is not None else {}
    made = session.get().post("/api/v1/webhooks", body).json()["webhook"]
    if as_json:
        render.json_out(made)
        return
    render.say(f"Created webhook {made['id']}")
    render.say(f"Secret: {made['secret']}")


@app.command("edit")
def edit(
    webhook_id: WebhookId,
    url: Annotated[str | None, typer.Option("--url", help="Where to send events.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="A name for people.")] = None,
) -> None:
    """Change the address or the name of a webhook."""
    changes = {key: value for key, value in {"url": url, "name": name}.items() if value is not None}
    if not changes:
        raise typer.BadParameter("nothing to change was given: expected --url or --name.")
    session.get().patch(f"/api/v1/webhooks/{webhook_id}", changes)
    render.say(f"Changed webhook {webhook_id}")


@app.command("delete")
def delete(webhook_id: WebhookId, yes: Yes = False) -> None:
    """Delete a webhook; its pending deliveries are dropped."""
    render.confirm(f"Delete webhook {webhook_id}?", yes)
    session.get().delete(f"/api/v1/webhooks/{webhook_id}")
    render.say(f"Deleted webhook {webhook_id}")


@app.command("test")
def test(webhook_id: WebhookId) -> None:
    """Send a test event. Exit code 0 only if it was accepted."""
    answer = session.get().post(f"/api/v1/webhooks/{webhook_id}/test").json()
    if not answer.get("completed"):
        raise errors.DeterminedException(
            f"the test event of webhook {webhook_id} did not arrive: {answer.get('error')}"
        )
    render.say(f"The test event of webhook {webhook_id} arrived")


@app.command("deliveries")
@paged
def deliveries(form: Form, webhook_id: WebhookId) -> None:
    """List the deliveries of a webhook, sent and pending, the newest first."""
    path = f"undeterred/webhooks/{webhook_id}/deliveries"
    found = paging.fetch(path, "deliveries", form)
    rows = [
        [
            each["id"],
            each["state"],
            each.get("attempts"),
            each.get("status"),
            render.time_of(each.get("createdAt")),
            render.time_of(each.get("attemptedAt")),
            each.get("error"),
        ]
        for each in found
    ]
    headers = ["ID", "State", "Attempts", "Status", "Created", "Attempted", "Error"]
    render.listing(headers, rows, form, raw=found)


def _threshold(text: str) -> dict[str, Any]:
    """Raises: BadParameter."""
    found = re.fullmatch(r"(.+?)\s*(>=|<=|>|<)\s*(\S+)", text.strip())
    try:
        value = float(found[3]) if found else math.nan
    except ValueError:
        value = math.nan
    if found is None or not math.isfinite(value):
        raise typer.BadParameter(f"--metric: {text!r}: expected a metric, one of > >= < <=, and a number.")
    return _trigger("METRIC_THRESHOLD_EXCEEDED", metric=found[1], operator=found[2], value=value)


def _trigger(kind: str, **condition: str | float) -> dict[str, Any]:
    return {"triggerType": f"TRIGGER_TYPE_{kind}", "condition": condition}


def _row(webhook: Mapping[str, Any]) -> render.Row:
    triggers = [
        f"{str(each['triggerType']).removeprefix('TRIGGER_TYPE_')} {_told(render.part(each, 'condition'))}".rstrip()
        for each in render.parts(webhook, "triggers")
    ]
    return [
        webhook["id"],
        webhook.get("name"),
        webhook.get("url"),
        str(webhook.get("webhookType") or "").removeprefix("WEBHOOK_TYPE_"),
        str(webhook.get("mode") or "").removeprefix("WEBHOOK_MODE_"),
        webhook.get("workspaceId"),
        ", ".join(triggers),
    ]


def _told(condition: Mapping[str, Any]) -> str:
    # PostgreSQL keeps keys in an order of its own
    return " ".join(
        str(condition[key]) for key in ("state", "regex", "metric", "operator", "value") if key in condition
    )
