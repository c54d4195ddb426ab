"""Tables of experiments, trials and checkpoints in full, and downloads: used by several commands."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cli import render, session
from cli.render import Form

CHECKPOINT_HEADERS = ("Trial ID", "# of Batches", "State", "Validation Metric", "UUID", "Resources", "Size")


def checkpoint_row(checkpoint: dict[str, Any]) -> render.Row:
    """A checkpoint as a row of `CHECKPOINT_HEADERS`."""
    training: dict[str, Any] = checkpoint.get("training") or {}
    resources: dict[str, Any] = checkpoint.get("resources") or {}
    return [
        training.get("trialId"),
        render.part(checkpoint, "metadata").get("steps_completed"),
        render.state(checkpoint.get("state")),
        training.get("searcherMetric"),
        checkpoint["uuid"],
        f"{len(resources)} files",
        render.size(sum(int(size) for size in resources.values())),
    ]


def describe_experiments(
    experiment_ids: Sequence[int], form: Form, *, with_training: bool, outdir: Path | None
) -> None:
    """Print three tables: the experiments, their trials, the trials' workloads; or write them as CSV files.

    If columns are chosen, they are those of the experiments, and the other tables are left out.
    """
    answers = [session.fetch(f"experiments/{experiment_id}") for experiment_id in experiment_ids]
    if form.as_document:
        render.document(answers, as_json=form.as_json)
        return
    experiments = [answer["experiment"] for answer in answers]
    headers = ["Experiment ID", "State", "Progress", "Started", "Ended", "Name", "Description", "Archived"]
    headers += ["Resource Pool", "Labels", "Best Metric", "Error"]
    tables: dict[str, tuple[Sequence[str], list[render.Row]]] = {
        "experiments": (headers, [_experiment_row(experiment) for experiment in experiments])
    }
    if form.columns:
        render.listing(*tables["experiments"], form)
        return
    trials = [
        trial
        for experiment_id in experiment_ids
        for trial in session.fetch_all(f"experiments/{experiment_id}/trials", "trials")
    ]
    tables["trials"] = (
        ["Trial ID", "Experiment ID", "State", "Started", "Ended", "H-Params", "Message"],
        [
            [
                trial["id"],
                trial["experimentId"],
                render.state(trial["state"]),
                render.time_of(trial.get("startTime")),
                render.time_of(trial.get("endTime")),
                trial.get("hparams"),
                trial.get("message"),
            ]
            for trial in trials
        ],
    )
    workloads: list[render.Row] = []
    for trial in trials:
        path = f"trials/{trial['id']}/workloads"
        done = session.fetch_all(path, "workloads", None, **chosen_workloads(with_training))
        workloads += [[trial["id"], *row] for row in workload_rows(done, with_training)]
    tables["workloads"] = (["Trial ID", *workload_headers(with_training)], workloads)
    _print_tables(tables, form.as_csv, outdir)


def chosen_workloads(with_training: bool) -> dict[str, str]:
    """What asks for the workloads that are shown: those of training may be a million."""
    return {} if with_training else {"filter": "FILTER_OPTION_CHECKPOINT_OR_VALIDATION"}


def workload_headers(with_training: bool) -> list[str]:
    """The headers that fit `workload_rows`."""
    headers = ["# of Batches", "Report Time", "Checkpoint", "Checkpoint UUID", "Validation Metrics"]
    return [*headers, "Training Metrics"] if with_training else headers


def workload_rows(workloads: Iterable[dict[str, Any]], with_training: bool) -> list[render.Row]:
    """One row for each number of steps that has a report or a checkpoint."""
    steps: dict[int, dict[str, Any]] = {}
    for workload in workloads:
        for kind, content in workload.items():
            if content and (with_training or kind != "training"):
                steps.setdefault(int(content.get("totalBatches") or 0), {})[kind] = content
    rows: list[render.Row] = []
    for count, found in sorted(steps.items()):
        checkpoint: dict[str, Any] = found.get("checkpoint") or {}
        times = [content.get("endTime") for content in found.values() if content.get("endTime")]
        row: list[Any] = [
            count,
            render.time_of(max(times)) if times else None,
            render.state(checkpoint.get("state")),
            checkpoint.get("uuid"),
            _metrics(found.get("validation")),
        ]
        rows.append([*row, _metrics(found.get("training"))] if with_training else row)
    return rows


def download_checkpoint(checkpoint: Any, target: Path, quiet: bool, mode: str = "auto") -> None:
    """Download a checkpoint of the SDK; print where it is, and unless quiet its metadata."""
    from cli.progress import Meter, progress
    from determined.experimental import DownloadMode

    if mode.upper() not in DownloadMode.__members__:
        raise ValueError(f"--mode: {mode!r}: expected one of direct, master, auto")
    meter = Meter()
    with progress("downloading", meter.at):
        path = checkpoint.download(target, DownloadMode[mode.upper()], progress=meter)
    if quiet:
        render.say(path)
        return
    render.say(f"Local checkpoint path:\n{path}\n")
    render.json_out(checkpoint.metadata)


def _experiment_row(e: dict[str, Any]) -> render.Row:
    return [
        e["id"],
        render.state(e.get("state")),
        render.percent(e.get("progress")),
        render.time_of(e.get("startTime")),
        render.time_of(e.get("endTime")),
        e.get("name"),
        e.get("description"),
        bool(e.get("archived")),
        e.get("resourcePool"),
        ", ".join(sorted(e.get("labels") or [])),
        e.get("bestTrialSearcherMetric"),
        e.get("error"),
    ]


def _metrics(workload: dict[str, Any] | None) -> str | None:
    values = render.part(workload, "metrics", "avgMetrics")
    return ", ".join(f"{name}={render.cell(value)}" for name, value in values.items()) or None


def _print_tables(tables: dict[str, tuple[Sequence[str], list[render.Row]]], as_csv: bool, outdir: Path | None) -> None:
    if outdir is not None:
        outdir.mkdir(parents=True, exist_ok=True)
    for name, (headers, rows) in tables.items():
        if outdir is not None:
            path = outdir / f"{name}.csv"
            with path.open("w", encoding="utf-8", newline="") as file:
                stdout, sys.stdout = sys.stdout, file
                try:
                    render.csv_out(headers, rows)
                finally:
                    sys.stdout = stdout
            render.say(str(path))
            continue
        if not as_csv:
            render.say(f"{name.capitalize()}:" if name == "experiments" else f"\n{name.capitalize()}:")
        render.listing(headers, rows, Form(as_csv=as_csv))
