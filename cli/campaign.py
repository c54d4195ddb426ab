"""`det campaign`: steps that come after each other, run now or on a schedule."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from cli import lookup, render, session
from cli.create import pack, read_config, show
from cli.group import command_of, new_app
from cli.options import InWorkspace, Json, Yes, lists, paged
from cli.render import Form
from determined import errors
from determined.common.experimental._wire import new_key

app = new_app("Steps that come after each other, run now or on a schedule.", aliases={"ls": "list"}, default="list")

_PATH = "/api/v1/undeterred/campaigns"
_HEADERS = ["ID", "Name", "Owner", "Workspace", "Version", "Schedule", "Next Run", "Last Run"]
_RUNS = ["Run", "State", "Version", "Started By", "Scheduled For", "Started", "Ended", "Message"]
_STEPS = ["Step", "After", "Kind", "State", "What", "Message"]
_CREATE_TIMEOUT_S = 300.0
_EVERY_S = 1.0
_ENDED = ("COMPLETED", "CANCELED", "ERROR")
_FAILED = 1

CampaignId = Annotated[int, typer.Argument(metavar="CAMPAIGN_ID", help="The campaign's number.", show_default=False)]
File = Annotated[Path, typer.Argument(metavar="FILE", help="The campaign, a YAML file.", show_default=False)]
Folder = Annotated[
    Path | None,
    typer.Argument(metavar="FOLDER", help="The code, and the configurations that it names.", show_default=False),
]
Include = Annotated[
    list[Path] | None, typer.Option("--include", "-i", help="A file or folder to put beside the folder's.")
]
Run = Annotated[int | None, typer.Option("--run", help="Of the run with this number.", show_default=False)]


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("list")
@paged
def list_campaigns(
    form: Form,
    name: Annotated[str, typer.Option("--name", help="With this in their name.")] = "",
    workspace_name: InWorkspace = None,
) -> None:
    """List campaigns, the newest first."""
    wanted: dict[str, Any] = {"name": name} if name else {}
    wanted |= {"workspaceId": lookup.workspace(workspace_name)["id"]} if workspace_name is not None else {}
    found = session.fetch_all("undeterred/campaigns", "campaigns", form.most, **wanted)
    render.listing(_HEADERS, [_row(each) for each in found], form, raw=found)


def _row(campaign: Mapping[str, Any]) -> list[Any]:
    schedule: dict[str, Any] = campaign.get("schedule") or {}
    last: dict[str, Any] = campaign.get("lastRun") or {}
    due: list[str | None] = schedule.get("next") or [None]
    return [
        campaign["id"],
        campaign["name"],
        campaign["owner"],
        campaign["workspace"],
        campaign["version"],
        f"{schedule['cron']} {schedule['timeZone']}" if schedule else None,
        "paused" if schedule and campaign["isPaused"] else due[0],
        f"{last['number']} {last['state']}" if last else None,
    ]


@app.command("create")
def create(
    file: File,
    folder: Folder = None,
    include: Include = None,
    run: Annotated[bool, typer.Option("--run", help="Start a run at once.")] = False,
    validate: Annotated[bool, typer.Option("--validate", help="Only check it.")] = False,
    as_json: Json = False,
) -> None:
    """Create a campaign, with its schedule if it has one."""
    body = _body(file, folder, include or []) | ({"validateOnly": True} if validate else {})
    made = session.get().post(_PATH, body, idempotency_key=new_key(), timeout_s=_CREATE_TIMEOUT_S).json()["campaign"]
    if as_json:
        render.json_out(made)
    elif validate:
        render.say(f"{file} is valid: {len(made['steps'])} step(s)")
    else:
        render.say(f"Created campaign {made['id']}")
    if run and not validate:
        _started(made["id"], {}, fresh=False)


@app.command("edit")
def edit(campaign_id: CampaignId, file: File, folder: Folder = None, include: Include = None) -> None:
    """Give a campaign a further version, which its next runs have. Without a folder, its files stay."""
    body = _body(file, folder, include or [])
    if folder is None:
        del body["files"]
    path = f"{_PATH}/{campaign_id}"
    changed = session.get().put(path, body, timeout_s=_CREATE_TIMEOUT_S).json()["campaign"]
    render.say(f"Campaign {campaign_id} has version {changed['version']}")


def _body(file: Path, folder: Path | None, include: Sequence[Path]) -> dict[str, Any]:
    code = pack(folder, include)
    if code.entries:
        show(code, folder)
    return {"definition": read_config(file, []), "files": code.files()}


@app.command("describe")
def describe(campaign_id: CampaignId, run: Run = None, as_json: Json = False) -> None:
    """Show a campaign: its steps, and what became of them in its newest run, or in another one."""
    campaign = session.fetch(f"undeterred/campaigns/{campaign_id}")["campaign"]
    last: dict[str, Any] = campaign.get("lastRun") or {}
    number: int | None = run if run is not None else last.get("number")
    found = _run(campaign_id, number) if number is not None else None
    if as_json:
        render.json_out({"campaign": campaign, "run": found})
        return
    render.say(f"campaign {campaign_id} {campaign['name']!r} of {campaign['owner']}, version {campaign['version']}")
    schedule = campaign.get("schedule")
    if schedule:
        due = "is paused" if campaign["isPaused"] else f"next: {', '.join(schedule['next'][:3]) or 'never'}"
        render.say(f"schedule: {schedule['cron']} {schedule['timeZone']}, overlap {schedule['overlap']}; {due}")
    if found is None:
        render.say("no run yet: `det campaign run` starts one")
    else:
        render.say(_line(found))
    _steps(campaign, found)


def _line(run: Mapping[str, Any]) -> str:
    by = f"by {run['startedBy']}" if run.get("startedBy") else f"for {run.get('scheduledAt')}"
    return f"run {run['number']}: {run['state']} {by}" + (f": {run['message']}" if run.get("message") else "")


def _steps(campaign: Mapping[str, Any], run: Mapping[str, Any] | None) -> None:
    became = {step["name"]: step for step in (run or {}).get("steps", [])}
    rows: list[list[Any]] = []
    for step in campaign["steps"]:
        now = became.get(step["name"], {})
        rows.append([
            step["name"], ", ".join(step["before"]), step["kind"], now.get("state"), _what(now), now.get("message"),
        ])  # fmt: skip
    render.table(_STEPS, rows)


def _what(step: Mapping[str, Any]) -> str | None:
    outputs: Mapping[str, Any] = step.get("outputs") or {}
    if step.get("experimentId"):
        return f"experiment {step['experimentId']}"
    if step.get("taskId"):
        return f"task {step['taskId']}"
    return f"{outputs['model']} version {outputs['version']}" if "version" in outputs else None


@app.command("config")
def config(campaign_id: CampaignId) -> None:
    """Print the campaign as it was written."""
    render.say(session.fetch(f"undeterred/campaigns/{campaign_id}")["campaign"]["definition"].rstrip())


@app.command("run")
def run(
    campaign_id: CampaignId,
    params: Annotated[
        list[str] | None, typer.Option("--param", "-p", metavar="NAME=VALUE", help="A parameter of this run.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do every step, whatever earlier runs did.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Watch until it ends.")] = False,
) -> None:
    """Start a run now. It acts as you."""
    number = _started(campaign_id, dict(map(_param, params or [])), fresh=fresh)
    if follow:
        _follow(campaign_id, number)


def _param(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"--param {text!r}: expected NAME=VALUE.")
    words = {"true": True, "false": False}
    if value in words:
        return name, words[value]
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


def _started(campaign_id: int, params: dict[str, Any], *, fresh: bool) -> int:
    body = {"params": params, "fresh": fresh}
    made = session.get().post(f"{_PATH}/{campaign_id}/runs", body, idempotency_key=new_key()).json()["run"]
    render.say(f"Started run {made['number']} of campaign {campaign_id}")
    return int(made["number"])


@app.command("wait")
def wait(campaign_id: CampaignId, run: Run = None) -> None:
    """Watch a run, the newest one, until it ends. The exit code is 1 unless it completed."""
    _follow(campaign_id, _number(campaign_id, run))


def _follow(campaign_id: int, number: int) -> None:
    before: dict[str, str] = {}
    while True:
        now = _run(campaign_id, number)
        for step in now["steps"]:
            if step["state"] != before.get(step["name"], "WAITING"):
                what = _what(step)
                because = f": {step['message']}" if step.get("message") else ""
                render.say(f"{step['name']}: {step['state']}{f' ({what})' if what else ''}{because}")
            before[step["name"]] = step["state"]
        if now["state"] in _ENDED:
            render.say(_line(now))
            if now["state"] != "COMPLETED":
                raise typer.Exit(_FAILED)
            return
        time.sleep(_EVERY_S)


def _run(campaign_id: int, number: int) -> dict[str, Any]:
    return session.fetch(f"undeterred/campaigns/{campaign_id}/runs/{number}")["run"]


def _number(campaign_id: int, run: int | None) -> int:
    if run is not None:
        return run
    last = session.fetch(f"undeterred/campaigns/{campaign_id}")["campaign"].get("lastRun")
    if not last:
        raise errors.NotFoundException(f"campaign {campaign_id} has no run yet")
    return int(last["number"])


@app.command("runs")
@lists
def runs(campaign_id: CampaignId, form: Form) -> None:
    """List the runs of a campaign, the newest first."""
    found = session.fetch_all(f"undeterred/campaigns/{campaign_id}/runs", "runs", form.most)
    rows = [
        [
            each["number"],
            each["state"],
            each["version"],
            each.get("startedBy") or "schedule",
            each.get("scheduledAt"),
            each["startedAt"],
            each.get("endedAt"),
            each.get("message"),
        ]
        for each in found
    ]
    render.listing(_RUNS, rows, form, raw=found)


@app.command("pause")
def pause(campaign_id: CampaignId, run: Run = None) -> None:
    """Have the schedule start no runs; with --run, pause that run and the experiments of its steps."""
    _command(campaign_id, run, "pause", "Paused")


@app.command("activate")
def activate(campaign_id: CampaignId, run: Run = None) -> None:
    """Have the schedule start runs again; with --run, have that run go on."""
    _command(campaign_id, run, "activate", "Activated")


@app.command("cancel")
def cancel(campaign_id: CampaignId, run: Run = None) -> None:
    """Cancel a run, the newest one: the experiments of its steps store checkpoints and end."""
    _command(campaign_id, _number(campaign_id, run), "cancel", "Canceled")


@app.command("kill")
def kill(campaign_id: CampaignId, run: Run = None) -> None:
    """Kill a run, the newest one, and the experiments of its steps."""
    _command(campaign_id, _number(campaign_id, run), "kill", "Killed")


def _command(campaign_id: int, number: int | None, word: str, done: str) -> None:
    path, what = f"{_PATH}/{campaign_id}", f"campaign {campaign_id}"
    if number is not None:
        path, what = f"{path}/runs/{number}", f"run {number} of {what}"
    session.get().post(f"{path}/{word}")
    render.say(f"{done} {what}")


@app.command("backfill")
def backfill(
    campaign_id: CampaignId,
    start: Annotated[datetime, typer.Option("--from", help="From this time on, UTC.", show_default=False)],
    end: Annotated[datetime, typer.Option("--to", help="To this time, UTC; it is included.", show_default=False)],
    all_at_once: Annotated[bool, typer.Option("--all-at-once", help="Do not run them one after the other.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which times those are.")] = False,
) -> None:
    """Start runs for times of the schedule that are over. A time that has had its run gets no other one."""
    body = {
        "start": f"{start.isoformat()}Z",
        "end": f"{end.isoformat()}Z",
        "allAtOnce": all_at_once,
        "dryRun": dry_run,
    }
    answer = session.get().post(f"{_PATH}/{campaign_id}/backfill", body, idempotency_key=new_key()).json()
    for moment in answer["times"]:
        render.say(moment)
    render.note(f"{len(answer['times'])} time(s)" + ("" if dry_run else ": their runs begin"))


@app.command("delete")
def delete(campaign_id: CampaignId, yes: Yes = False) -> None:
    """Delete a campaign with its runs. Experiments, tasks and models that they made stay."""
    render.confirm(f"Delete campaign {campaign_id}?", yes)
    session.get().delete(f"{_PATH}/{campaign_id}")
    render.say(f"Deleted campaign {campaign_id}")
