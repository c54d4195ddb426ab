"""`det trial`: describe trials, read their logs, end them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cli import paging, render, session
from cli.bundles import bundled
from cli.group import command_of, new_app
from cli.options import (
    Days,
    ExperimentId,
    Forever,
    Json,
    LogLines,
    Quiet,
    TrialId,
    paged,
    retention,
)
from cli.render import Form

app = new_app("Describe trials and read their logs.")
set_app = new_app("Change how long data of a trial is stored.")
app.add_typer(set_app, name="set")


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("describe")
@paged
def describe(
    form: Form,
    trial_id: TrialId,
    metrics: Annotated[bool, typer.Option("--metrics", help="Show training metrics too.")] = False,
    metrics_summary: Annotated[bool, typer.Option("--metrics-summary", help="Show the summary metrics.")] = False,
) -> None:
    """Show a trial and what it did. --columns is about the table of what it did."""
    from cli.describe import chosen_workloads, workload_headers, workload_rows

    answer = session.fetch(f"trials/{trial_id}")
    trial = answer["trial"]
    path = f"trials/{trial_id}/workloads"
    workloads = paging.fetch(path, "workloads", form, **chosen_workloads(metrics or form.as_document))
    if form.as_document:
        render.document(answer | {"workloads": workloads}, as_json=form.as_json)
        return
    headers = ["Experiment ID", "State", "H-Params", "Started", "Ended", "Restarts", "Message", "Log Policy Matched"]
    row = [
        trial["experimentId"],
        render.state(trial["state"]),
        trial.get("hparams"),
        render.time_of(trial.get("startTime")),
        render.time_of(trial.get("endTime")),
        trial.get("restarts"),
        trial.get("message"),
        trial.get("logPolicyMatched"),
    ]
    if metrics_summary:
        headers.insert(3, "Summary Metrics")
        row.insert(3, trial.get("summaryMetrics"))
    if not form.columns:
        render.listing(headers, [row], form)
    if not form.columns and not form.as_csv:
        render.say("\nWorkloads:")
    render.listing(workload_headers(metrics), workload_rows(workloads, metrics), form)


@app.command("why")
def why(trial_id: TrialId, as_json: Json = False) -> None:
    """Tell what a trial waits for, how its runs ended, what comes next, and what the search decided about it."""
    from cli.search import trial_why

    trial_why(trial_id, as_json)


@app.command("logs")
@bundled
def logs(trial_id: TrialId, lines: LogLines) -> None:
    """Print a trial's log."""
    from cli.log_output import print_logs

    print_logs(trial_id, lines)


@app.command("download")
def download(
    trial_id: TrialId,
    best: Annotated[bool, typer.Option("--best", help="The best checkpoint.")] = False,
    latest: Annotated[bool, typer.Option("--latest", help="The latest checkpoint.")] = False,
    uuid: Annotated[str | None, typer.Option("--uuid", help="The checkpoint with this id.")] = None,
    output_dir: Annotated[Path | None, typer.Option("--output-dir", "-o", help="Where to put it.")] = None,
    sort_by: Annotated[str | None, typer.Option("--sort-by", help="By this metric (default: the searcher's).")] = None,
    smaller_is_better: Annotated[bool | None, typer.Option(help="Goes with --sort-by.")] = None,
    quiet: Quiet = False,
) -> None:
    """Download one of a trial's checkpoints: exactly one of --best, --latest and --uuid."""
    from cli.describe import download_checkpoint
    from determined.experimental import Trial

    if sum((best, latest, uuid is not None)) != 1:
        raise ValueError("exactly one of --best, --latest and --uuid must be given.")
    trial = Trial(trial_id, session.get())
    checkpoint = trial.select_checkpoint(latest, best, uuid, sort_by, smaller_is_better)
    download_checkpoint(checkpoint, output_dir or Path("checkpoints", checkpoint.uuid), quiet)


_OVER = ("CANCELED", "COMPLETED", "ERROR")


@app.command("kill")
def kill(trial_id: TrialId) -> None:
    """Kill a trial at once; the search continues without it."""
    from determined.experimental import Trial

    trial = Trial(trial_id, session.get())
    trial.reload()
    was = trial.state
    trial.kill()
    if was is not None and was.name in _OVER:
        render.say(f"Trial {trial_id} is {was.name} already: there was nothing to kill")
    else:
        render.say(f"Killed trial {trial_id}")


@app.command("add")
def add(
    experiment_id: ExperimentId,
    hparams: Annotated[
        list[str],
        typer.Argument(metavar="NAME=VALUE...", help="A value for each hyperparameter: lr=0.1.", show_default=False),
    ],
) -> None:
    """Add a trial with a point of your own to a running search. Prints `Added trial N`."""
    import yaml

    from cli.create import override_config

    given: dict[str, Any] = yaml.safe_load(override_config("{}\n", hparams, "NAME=VALUE"))
    render.say(f"Added trial {_steer(experiment_id, {'action': 'add', 'hparams': given})}")


@app.command("stop")
def stop(trial_id: TrialId) -> None:
    """Have a trial of a running search save a checkpoint and end; the search takes what it reached."""
    _steer_one(trial_id, "stop", "Stopped")


@app.command("promote")
def promote(trial_id: TrialId) -> None:
    """Have a trial of a running search pass the next rung, whatever its result there."""
    _steer_one(trial_id, "promote", "Promoted")


@app.command("boost")
def boost(trial_id: TrialId) -> None:
    """Have a trial of a running search pass every rung, and train to its full length."""
    _steer_one(trial_id, "boost", "Boosted")


def _steer_one(trial_id: int, action: str, said: str) -> None:
    experiment_id = int(session.fetch(f"trials/{trial_id}")["trial"]["experimentId"])
    _steer(experiment_id, {"action": action, "trialId": trial_id})
    render.say(f"{said} trial {trial_id}")


def _steer(experiment_id: int, body: dict[str, Any]) -> int:
    from determined.common.experimental._wire import new_key

    path = f"/api/v1/undeterred/experiments/{experiment_id}/search/steer"
    return int(session.get().post(path, body, idempotency_key=new_key()).json()["trialId"])


@app.command("support-bundle")
def support_bundle(
    trial_id: TrialId,
    output_dir: Annotated[Path, typer.Option("--output-dir", "-o", help="Where to put it.")] = Path(),
) -> None:
    """Pack a trial's log, configuration and records into one file, for support."""
    from cli.support_bundle import pack

    render.say(str(pack(trial_id, output_dir)))


@set_app.command("log-retention")
def set_log_retention(trial_id: TrialId, days: Days = None, forever: Forever = False) -> None:
    """Change how long a trial's log is kept after its end."""
    count = retention(days, forever)
    session.get().put(f"/api/v1/trials/{trial_id}/retain_logs", {"numDays": count})
    render.say(f"The log of trial {trial_id} is kept " + ("indefinitely" if count < 0 else f"{count} days"))
