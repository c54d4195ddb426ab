"""`det import`: bring the records of a Determined cluster over."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from cli import dumps, render, session, tracked
from cli.bundles import Bundle, bundled
from cli.group import command_of, new_app
from cli.options import Json, lists
from cli.render import Form
from determined import errors
from determined.common.experimental._wire import new_key

app = new_app("Bring what a Determined cluster or another tracker has over.", aliases={"ls": "list"}, default="status")

_EVERY_S = 0.5
_ENDED = ("COMPLETED", "CANCELED", "ERROR")
_HEADERS = ["What", "There", "Looked at", "Written", "Unchanged", "Skipped"]
_PLANNED = ["What", "There", "Looked at", "Would come", "Unchanged", "Skipped"]
_VERIFIED = ["What", "There", "Compared", "Same", "Different", "Checksum there", "Checksum here"]


@dataclass(frozen=True)
class Source(Bundle):
    """Where the records come from."""

    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="URL|DUMP",
            help="The other cluster's database, as its orchestrator reaches it: postgresql://USER:PASSWORD@HOST/NAME."
            " Or a file of `pg_dump` or `pg_dump -Fc`, restored into a temporary PostgreSQL on this host."
            " Without it: $DET_IMPORT_FROM, so that the password is in no list of processes.",
            show_default=False,
        ),
    ] = None
    reachable_at: Annotated[
        str,
        typer.Option(
            help="Of a dump: this host's name for the orchestrator, if that runs on another one.", show_default=False
        ),
    ] = ""
    max_gib: Annotated[
        int, typer.Option(min=1, help="Of a dump: what it may take on the disk with $TMPDIR, in GiB.")
    ] = 200


Shift = Annotated[bool, typer.Option("--shift", help="Move all numbers, for a cluster that is not empty.")]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Do not wait for the end.")]
ImportId = Annotated[
    int | None, typer.Argument(metavar="IMPORT_ID", help="Its number; the newest.", show_default=False)
]


for _command in (tracked.mlflow, tracked.tensorboard, tracked.wandb):
    app.command(_command.__name__)(_command)


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("plan")
@bundled
def plan(source: Source, shift: Shift = False, as_json: Json = False) -> None:
    """Say what would come, what collides and what can't come. Nothing is written."""
    _start("PLAN", source, shift=shift, detach=False, as_json=as_json)


@app.command("run")
@bundled
def run(source: Source, shift: Shift = False, detach: Detach = False, as_json: Json = False) -> None:
    """Bring everything over that is not here yet. Repeated, only what is new or changed there comes."""
    _start("RUN", source, shift=shift, detach=detach, as_json=as_json)


@app.command("verify")
@bundled
def verify(source: Source, shift: Shift = False, detach: Detach = False, as_json: Json = False) -> None:
    """Compare each record that came with its source, by counts and checksums. Nothing is written."""
    _start("VERIFY", source, shift=shift, detach=detach, as_json=as_json)


@app.command("status")
def status(import_id: ImportId = None, as_json: Json = False) -> None:
    """Show how far an import is, or how it ended."""
    found = _fetch(import_id or _newest())
    _report(found, as_json=as_json)


@app.command("list")
@lists
def list_imports(form: Form) -> None:
    """List imports, plans and verifications, the newest first."""
    found: list[dict[str, Any]] = session.fetch("undeterred/imports")["imports"]
    rows = [
        [each["id"], each["mode"], each["state"], each["source"], render.time_of(each["createdAt"]),
         render.time_of(each.get("endedAt")), each["error"]]
        for each in found
    ]  # fmt: skip
    render.listing(["ID", "Mode", "State", "Source", "Started", "Ended", "Error"], rows, form, raw=found)


@app.command("cancel")
def cancel(import_id: ImportId = None) -> None:
    """End an import. What came stays; `det import run` goes on from there."""
    number = import_id or _newest()
    found = session.get().post(f"/api/v1/undeterred/imports/{number}/cancel").json()["import"]
    render.say(f"Import {number} is {found['state']}")


def _start(mode: str, source: Source, *, shift: bool, detach: bool, as_json: bool) -> None:
    url = source.source or os.environ.get("DET_IMPORT_FROM", "")
    if not url:
        raise typer.BadParameter("no source was given: expected --from postgresql://… or a dump, or DET_IMPORT_FROM.")
    if not dumps.is_dump(url):
        _do(mode, url, shift=shift, detach=detach, as_json=as_json)
        return
    if detach:
        raise typer.BadParameter("--detach: a dump is served by this command, which has to wait for the end.")
    render.note(f"Restoring {url} …")
    with dumps.served(Path(url), reachable_at=source.reachable_at, most_gib=source.max_gib) as restored:
        _do(mode, restored, shift=shift, detach=False, as_json=as_json, is_passing=True)


def _do(mode: str, url: str, *, shift: bool, detach: bool, as_json: bool, is_passing: bool = False) -> None:
    """Start one and wait for its end. `is_passing`: its source ends with this command, and so it does."""
    body = {"mode": mode, "source": url, "shift": shift}
    started = session.get().post("/api/v1/undeterred/imports", body, idempotency_key=new_key()).json()["import"]
    if detach:
        render.say(f"Started import {started['id']}; `det import status {started['id']}` shows how far it is")
        return
    try:
        found = _watched(started["id"], is_quiet=as_json)
    except BaseException as error:
        if is_passing:
            session.get().post(f"/api/v1/undeterred/imports/{started['id']}/cancel", {})
            render.note(f"Import {started['id']} ends here; run it again to go on")
        elif isinstance(error, KeyboardInterrupt):
            render.note(f"Import {started['id']} goes on; `det import cancel {started['id']}` ends it")
        raise
    _report(found, as_json=as_json)


def _watched(import_id: int, *, is_quiet: bool) -> dict[str, Any]:
    """Wait for the end, with a line for each kind of record that is done, and one that moves for the present one."""
    done: set[str] = set()
    moves = render.is_interactive() and not is_quiet
    while True:
        found = _fetch(import_id)
        for table in found["tables"]:
            if table["isDone"] and table["kind"] not in done:
                done.add(table["kind"])
                if not is_quiet and table["total"] != "0":
                    render.note(f"{_erased(moves)}{_line(found['mode'], table)}")
        if found["state"] in _ENDED:
            return found
        present = next((table for table in found["tables"] if not table["isDone"]), None)
        if moves and present is not None:
            typer.echo(f"{_erased(moves)}{_line(found['mode'], present)} …", nl=False, err=True)
        time.sleep(_EVERY_S)


def _erased(moves: bool) -> str:
    return "\r\x1b[K" if moves else ""


def _line(mode: str, table: dict[str, Any]) -> str:
    """How far one kind of record is."""
    counts = {name: int(table[name]) for name in ("written", "unchanged", "differing")}
    told = {
        "PLAN": "{written:,} would come",
        "RUN": "{written:,} written, {unchanged:,} as they were",
        "VERIFY": "{unchanged:,} the same, {differing:,} different",
    }[mode].format(**counts)
    return f"{table['kind']}: {int(table['read']):,} of {int(table['total']):,}, {told}"


def _report(found: dict[str, Any], *, as_json: bool) -> None:
    """The tables, what did not come and why, and what is to be known. Raises: DeterminedException if it failed."""
    if as_json:
        render.document(found, as_json=True)
    else:
        _print(found)
    differing = sum(int(table["differing"]) for table in found["tables"])
    if found["state"] == "ERROR":
        raise errors.DeterminedException(f"import {found['id']}: {found['error']}")
    if found["mode"] == "VERIFY" and differing:
        raise errors.DeterminedException(f"{differing} records differ from what they are there, or are not here")


def _print(found: dict[str, Any]) -> None:
    tables: list[dict[str, Any]] = found["tables"]
    if found["mode"] == "VERIFY":
        rows = [
            [each["kind"], each["total"], each["read"], each["unchanged"], each["differing"], each["checksum"],
             each["ourChecksum"]]
            for each in tables
        ]  # fmt: skip
        render.table(_VERIFIED, rows)
    else:
        render.table(
            _PLANNED if found["mode"] == "PLAN" else _HEADERS,
            [
                [each["kind"], each["total"], each["read"], each["written"], each["unchanged"],
                 sum(reason["count"] for reason in each["skipped"])]
                for each in tables
            ],
        )  # fmt: skip
    for table in tables:
        for reason in table["skipped"]:
            keys = ", ".join(reason["keys"]) + (", …" if reason["count"] > len(reason["keys"]) else "")
            render.say(f"{table['kind']}: {reason['count']} skipped: {reason['reason']} ({keys})")
    shifts = {kind: by for kind, by in found["shifts"].items() if by}
    if shifts:
        render.say("Numbers move: " + ", ".join(f"{kind} by {by}" for kind, by in shifts.items()))
    for warning in found["warnings"]:
        render.say(f"Note: {warning}")
    render.say(f"Import {found['id']} ({found['mode']} from {found['source']}): {found['state']}")


def _fetch(import_id: int) -> dict[str, Any]:
    return session.fetch(f"undeterred/imports/{import_id}")["import"]


def _newest() -> int:
    found: list[dict[str, Any]] = session.fetch("undeterred/imports")["imports"]
    if not found:
        raise errors.NotFoundException("nothing has been imported: see `det import run --help`")
    return int(found[0]["id"])
