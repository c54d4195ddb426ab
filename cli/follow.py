"""Watching an experiment: a live picture for a person, a line for each change in a pipe."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cli import render, session
from determined import errors

INTERVAL_S = 1.0
_TERMINAL = ("COMPLETED", "CANCELED", "ERROR", "DELETED")


@dataclass(frozen=True)
class Snapshot:
    """An experiment and its trials at one moment."""

    experiment: dict[str, Any]
    trials: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @property
    def state(self) -> str:
        """The experiment's state, without its prefix."""
        return render.state(self.experiment.get("state"))

    @property
    def metric(self) -> str:
        """The name of the searcher's metric."""
        return self.experiment.get("searcherMetric") or "metric"

    @property
    def best(self) -> dict[str, Any] | None:
        """The best trial so far."""
        best_id = self.experiment.get("bestTrialId")
        return next((trial for trial in self.trials if trial["id"] == best_id), None)

    @property
    def is_over(self) -> bool:
        """Whether nothing will change any more."""
        return self.state in _TERMINAL


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


def snapshot(experiment_id: int) -> Snapshot | None:
    """What there is now; None if the cluster does not answer."""
    try:
        # The trials first: when the experiment says that it ended, they are read once more below.
        trials = session.fetch_all(f"experiments/{experiment_id}/trials", "trials")
        experiment = session.fetch(f"experiments/{experiment_id}")["experiment"]
        if Snapshot(experiment).is_over:
            trials = session.fetch_all(f"experiments/{experiment_id}/trials", "trials")
    except (errors.MasterNotFoundException, errors.ServerException):
        return None
    return Snapshot(experiment, trials)


def snapshots(experiment_id: int) -> Iterator[Snapshot | None]:
    """What there is, about once a second, the last when it has ended; None while the cluster does not answer."""
    while True:
        began = time.monotonic()
        now = snapshot(experiment_id)
        yield now
        if now is not None and now.is_over:
            return
        time.sleep(max(0.05, INTERVAL_S - (time.monotonic() - began)))


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
