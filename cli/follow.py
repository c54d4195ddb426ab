"""Watching an experiment: a live picture for a person, a line for each change in a pipe."""

from __future__ import annotations

from typing import NoReturn

import typer

from cli import render, session
from cli.options import LogLines
from cli.snapshot import Snapshot, snapshots


def follow(experiment_id: int) -> str:
    """Watch until the experiment ends; its last state. Ctrl-C ends the watching, the experiment goes on."""
    try:
        if render.is_interactive():
            from cli.live import watch

            last = watch(experiment_id)
        else:
            last = _follow_plain(experiment_id)
    except KeyboardInterrupt:
        render.note(
            f"\nstopped watching, the experiment goes on; follow it again with `det experiment follow {experiment_id}`"
        )
        raise
    render.say(summary(last))
    return last.state


def summary(last: Snapshot) -> str:
    """One or two sentences on an experiment that ended."""
    experiment_id = last.experiment["id"]
    duration = _duration(last.experiment.get("duration"))
    text = f"experiment {experiment_id}: {last.state} after {duration}, {len(last.trials)} trial(s)"
    if last.experiment.get("error"):
        text += f"; {last.experiment['error']}"
    value = last.experiment.get("bestTrialSearcherMetric")
    if value is not None:
        text += f"; best: {last.metric} {render.cell(value)} in trial {last.experiment.get('bestTrialId')}"
    if last.state == "COMPLETED":
        return f"{text}\nget the best checkpoint with `det experiment download {experiment_id}`"
    if last.state == "ERROR" and last.trials:
        failed = [trial for trial in last.trials if render.state(trial["state"]) == "ERROR"] or last.trials
        return f"{text}\nsee why with `det trial logs {failed[0]['id']} --tail 50`"
    return text


def changes(old: Snapshot | None, new: Snapshot) -> list[str]:
    """What changed from one moment to the next, as lines."""
    lines: list[str] = []
    before = {trial["id"]: trial for trial in old.trials} if old else {}
    if old is None or old.state != new.state:
        lines.append(f"experiment {new.experiment['id']}: {new.state}{_progress_text(new)}")
    elif _tenths(old) != _tenths(new):
        lines.append(f"experiment {new.experiment['id']}:{_progress_text(new)}")
    for trial in new.trials:
        was = before.get(trial["id"])
        state, rung = render.state(trial["state"]), trial.get("rung")
        if was is not None and (render.state(was["state"]), was.get("rung")) == (state, rung):
            continue
        parts = [f"trial {trial['id']}: {state}"]
        parts += [f"rung {rung}"] if rung is not None else []
        parts += [f"{trial['totalBatchesProcessed']} steps"] if trial.get("totalBatchesProcessed") else []
        value = trial.get("searcherMetricValue")
        parts += [f"{new.metric} {render.cell(value)}"] if value is not None else []
        parts += [trial["message"]] if trial.get("message") else []
        lines.append(", ".join(parts))
    best = new.experiment.get("bestTrialSearcherMetric")
    if best is not None and (old is None or old.experiment.get("bestTrialSearcherMetric") != best):
        lines.append(f"best: {new.metric} {render.cell(best)} in trial {new.experiment.get('bestTrialId')}")
    return lines


def _follow_plain(experiment_id: int) -> Snapshot:
    last: Snapshot | None = None
    is_away = False
    for now in snapshots(experiment_id):
        if now is None:
            if not is_away:
                render.note("the cluster does not answer; trying again …")
            is_away = True
            continue
        is_away = False
        for line in changes(last, now):
            render.say(line)
        _flush()
        last = now
    assert last is not None
    return last


def _tenths(snapshot: Snapshot) -> int:
    return int((snapshot.experiment.get("progress") or 0) * 10)


def _progress_text(snapshot: Snapshot) -> str:
    progress = snapshot.experiment.get("progress")
    return "" if progress is None else f" {render.percent(progress)}"


def _duration(seconds: float | None) -> str:
    minutes, rest = divmod(int(seconds or 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m{rest:02}s" if hours else f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


def _flush() -> None:
    import sys

    sys.stdout.flush()


# -- the log of the first trial --------------------------------------------------------------------------------------


def follow_log(experiment_id: int, *, wait: bool = False) -> None:
    """Print the first trial's log to its end, then leave with the exit code that tells how it went."""
    _print_first_trial(experiment_id)
    end_with(_state_after_log(experiment_id, wait=wait))


def _print_first_trial(experiment_id: int) -> None:
    from cli.log_output import print_logs

    try:
        render.note(f"Waiting for the first trial of experiment {experiment_id} …")
        trial_id = first_trial(experiment_id, wait=True)
        render.note(f"Following the log of trial {trial_id}")
        print_logs(trial_id, LogLines(follow=True))
    except KeyboardInterrupt:
        render.note(f"the experiment goes on; follow it again with `det experiment follow {experiment_id}`")
        raise


def _state_after_log(experiment_id: int, wait: bool) -> str:
    """The first trial ended. Others may go on: then all is well so far."""
    from determined.experimental import Experiment

    experiment = Experiment(experiment_id, session.get())
    if wait:
        return experiment.wait(0.5).name
    experiment.reload()
    name = experiment.state.name if experiment.state else ""
    return name if name in ("ERROR", "CANCELED") else "COMPLETED"


def first_trial(experiment_id: int, wait: bool) -> int:
    """The number of the first trial. Raises: ValueError, if there is none and none is waited for."""
    from determined.experimental import Experiment

    experiment = Experiment(experiment_id, session.get())
    if wait:
        return experiment.await_first_trial().id
    for trial in experiment.iter_trials(limit=1):
        return trial.id
    raise ValueError(f"experiment {experiment_id} has no trial yet; wait for it with `det experiment logs -f`.")


def end_with(state: str) -> NoReturn:
    """Leave with the exit code that tells how an experiment went."""
    raise typer.Exit(0 if state == "COMPLETED" else 1)
