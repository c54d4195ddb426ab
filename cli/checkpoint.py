"""`det checkpoint`: describe, download, delete, as a whole or file by file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cli import render, session
from cli.group import command_of, new_app
from cli.options import Json, Quiet, Yes

app = new_app("Describe and download checkpoints.")

Uuids = Annotated[str, typer.Argument(metavar="UUIDS", help="Ids, with commas between them.", show_default=False)]
Uuid = Annotated[str, typer.Argument(metavar="UUID", help="The checkpoint's id.", show_default=False)]


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("describe")
def describe(uuid: Uuid, as_json: Json = False) -> None:
    """Show what is known of a checkpoint."""
    from determined.common.api._url import api_path

    found = session.get().get(api_path("checkpoints", uuid)).json()["checkpoint"]
    if as_json:
        render.json_out(found)
        return
    training: dict[str, Any] = found.get("training") or {}
    resources: dict[str, Any] = found.get("resources") or {}
    validation: dict[str, Any] = render.part(training, "validationMetrics", "avgMetrics")
    values = {
        "Experiment ID": training.get("experimentId"),
        "Trial ID": training.get("trialId"),
        "# of Batches": render.part(found, "metadata").get("steps_completed"),
        "State": render.state(found.get("state")),
        "Reported": render.time_of(found.get("reportTime")),
        "UUID": found["uuid"],
        "Size": render.size(sum(int(size) for size in resources.values())),
        "Metadata": found.get("metadata"),
        **{f"Validation {name}": value for name, value in validation.items()},
        **{f"File {name}": render.size(int(size)) for name, size in sorted(resources.items())},
    }
    width = max(len(name) for name in values)
    for name, value in values.items():
        render.say(f" {name:<{width}} | {render.cell(value)}")


@app.command("download")
def download(
    uuid: Uuid,
    output_dir: Annotated[Path | None, typer.Option("--output-dir", "-o", help="Where to put it.")] = None,
    mode: Annotated[str, typer.Option("--mode", help="direct, master or auto.")] = "auto",
    quiet: Quiet = False,
) -> None:
    """Download a checkpoint, by default into checkpoints/UUID."""
    from cli.describe import download_checkpoint
    from determined.experimental import Determined

    checkpoint = Determined.from_session(session.get()).get_checkpoint(uuid)
    download_checkpoint(checkpoint, output_dir or Path("checkpoints", uuid), quiet, mode)


@app.command("delete")
def delete(uuids: Uuids, yes: Yes = False) -> None:
    """Delete checkpoints and their files."""
    ids = _ids(uuids)
    render.confirm(f"Delete {len(ids)} checkpoint(s) for good?", yes)
    session.get().delete("/api/v1/checkpoints", {"checkpointUuids": ids})
    render.say(f"Deletion of {len(ids)} checkpoint(s) has begun")


@app.command("rm")
def remove(
    uuids: Uuids,
    glob: Annotated[
        list[str] | None, typer.Option("--glob", help="Files to remove: a pattern; without one, sizes are read anew.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Remove files of checkpoints that match a pattern."""
    ids = _ids(uuids)
    if glob:
        render.confirm(f"Remove the files {', '.join(glob)} of {len(ids)} checkpoint(s) for good?", yes)
    session.get().post("/api/v1/checkpoints/rm", {"checkpointUuids": ids, "checkpointGlobs": glob or []})
    render.say(f"The removal of files of {len(ids)} checkpoint(s) has begun")


def _ids(uuids: str) -> list[str]:
    ids = [uuid.strip() for uuid in uuids.split(",") if uuid.strip()]
    if not ids:
        raise typer.BadParameter("expected ids of checkpoints, with commas between them.")
    return ids
