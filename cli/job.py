"""`det job`: the queue of a resource pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from cli import lookup, paging, render, session
from cli.group import command_of, new_app
from cli.options import at_most_one, paged
from cli.render import Form

app = new_app("Jobs in the queue of a resource pool.", aliases={"ls": "list"}, shortest={"update": "u"}, default="list")

_FIELDS = {"priority": int, "weight": float, "resource-pool": str}
_NAMES = {"priority": "priority", "weight": "weight", "resource-pool": "resourcePool"}


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("list")
@paged
def list_jobs(
    form: Form,
    resource_pool: Annotated[
        str | None, typer.Option("--resource-pool", "-p", help="Of this pool (default: the cluster's default).")
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="The last in the queue first.")] = False,
    as_table: Annotated[bool, typer.Option("--table", help="Print as a table, which is the default.")] = False,
) -> None:
    """List the jobs of a pool, in the order of its queue."""
    at_most_one(table=as_table, json=form.as_json, yaml=form.as_yaml, csv=form.as_csv)
    params: dict[str, Any] = {"orderBy": f"ORDER_BY_{'DESC' if reverse else 'ASC'}"}
    params |= {"resourcePool": resource_pool} if resource_pool else {}
    with lookup.nearest(resource_pool or "", lookup.pool_names):
        found = paging.fetch("job-queues-v2", "jobs", form, **params)
    jobs = [each.get("full") or each["limited"] for each in found]
    headers = ["#", "ID", "Type", "Job Name", "Priority", "Weight", "Submitted", "Slots (acquired/needed)", "State"]
    raw = {"jobs": jobs}  # what there is to see of those of others is their size
    render.listing([*headers, "User", "Starts In", "Waits"], map(_row, jobs), form, raw=raw)


@app.command("update")
def update(
    job_id: Annotated[str, typer.Argument(metavar="JOB_ID", help="The job's id.", show_default=False)],
    priority: Annotated[int | None, typer.Option("--priority", "-p", help="Lower is earlier.")] = None,
    weight: Annotated[float | None, typer.Option("--weight", "-w", help="More is a larger share.")] = None,
    resource_pool: Annotated[str | None, typer.Option("--resource-pool", help="Move it to this pool.")] = None,
    ahead_of: Annotated[str | None, typer.Option("--ahead-of", help="Move it before this job.")] = None,
    behind_of: Annotated[str | None, typer.Option("--behind-of", help="Move it after this job.")] = None,
) -> None:
    """Change the place of a job in its queue: exactly one of the options."""
    given = {"priority": priority, "weight": weight, "resourcePool": resource_pool}
    given |= {"aheadOf": ahead_of, "behindOf": behind_of}
    changes = {name: value for name, value in given.items() if value is not None}
    if len(changes) != 1:
        raise typer.BadParameter(
            "expected exactly one of --priority, --weight, --resource-pool, --ahead-of, --behind-of."
        )
    session.get().post("/api/v1/job-queues", {"updates": [{"jobId": job_id} | changes]})
    render.say(f"Updated job {job_id}")


@app.command("update-batch")
def update_batch(
    operations: Annotated[
        list[str],
        typer.Argument(
            metavar="OPERATION", help="JOB_ID.priority=N, .weight=N, .resource-pool=NAME.", show_default=False
        ),
    ],
) -> None:
    """Change the places of several jobs."""
    updates = [_operation(text) for text in operations]
    session.get().post("/api/v1/job-queues", {"updates": updates})
    render.say(f"Updated {len(updates)} job(s)")


def _operation(text: str) -> dict[str, Any]:
    target, equals, value = text.partition("=")
    job_id, dot, field = target.rpartition(".")
    wire = {**_NAMES, "ahead-of": "aheadOf", "behind-of": "behindOf"}
    if not equals or not dot or not job_id or field not in wire:
        raise typer.BadParameter(f"{text!r}: expected JOB_ID.priority=N, JOB_ID.weight=N or JOB_ID.resource-pool=NAME.")
    try:
        return {"jobId": job_id, wire[field]: _FIELDS.get(field, str)(value)}
    except ValueError:
        raise typer.BadParameter(f"{text!r}: expected a number after the `=`, not {value!r}.") from None


def _row(job: Mapping[str, Any]) -> render.Row:
    summary = render.part(job, "summary")
    return [
        summary.get("jobsAhead"),
        job["jobId"],
        str(job.get("type") or "").removeprefix("TYPE_"),
        job.get("name"),
        job.get("priority"),
        job.get("weight"),
        render.time_of(job.get("submissionTime")),
        f"{job.get('allocatedSlots')}/{job.get('requestedSlots')}",
        render.state(summary.get("state")),
        job.get("username"),
        _about(job.get("estimatedWaitSeconds")),
        job.get("waits"),
    ]


def _about(seconds: float | None) -> str | None:
    """How long it still waits, if slots come free as they did in the last hour."""
    if seconds is None:
        return None
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min" if minutes else "a moment"
