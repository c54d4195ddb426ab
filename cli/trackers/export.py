"""Experiments of the cluster for other programs: runs of MLflow, and tables that pandas reads."""

from __future__ import annotations

import csv
import hashlib
import importlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml

from cli.flat import flat
from cli.trackers.mlflow import Server
from cli.trackers.runs import Point, Run, Source, Unreadable, group_of, plain
from determined.common.api import Session
from determined.common.experimental._wire import pages
from determined.common.experimental.trial import metrics_of_trials

Item = TypeVar("Item")

_STATUS = {"COMPLETED": "FINISHED", "ERROR": "FAILED", "CANCELED": "KILLED"}
_NUMBERS = {"RUNNING": 1, "FINISHED": 3, "FAILED": 4, "KILLED": 5}
#: Tags by which what was exported is known again.
_FROM, _DIGEST = "undeterred.trial", "undeterred.digest"
_METRICS_AT_ONCE, _PAIRS_AT_ONCE = 900, 50
_LONGEST_NAME, _LONGEST_VALUE = 250, 5000
_LINES_AT_ONCE = 50_000

#: Of the metrics' table, with their types.
METRIC_COLUMNS = {"trial_id": "int64", "group": "string", "steps_completed": "int64", "time": "timestamp",
                  "name": "string", "value": "float64"}  # fmt: skip


# -- what an experiment has --------------------------------------------------------------------------------------------


def source_of(session: Session, experiment_id: int) -> Source:
    """An experiment with its trials as runs, one read after the other."""
    experiment: dict[str, Any] = session.get(f"/api/v1/experiments/{experiment_id}").json()["experiment"]
    cluster = str(session.get("/api/v1/master").json()["clusterId"])
    trials = pages(session, f"/api/v1/experiments/{experiment_id}/trials", {}, "trials", None)
    runs = (_run(session, cluster, experiment, trial) for trial in trials)
    tags = {"undeterred.experiment": f"{cluster}/{experiment_id}"}
    return Source(f"{cluster}/{experiment_id}", f"{experiment['name']} (experiment {experiment_id})", runs, tags)


def _run(session: Session, cluster: str, experiment: dict[str, Any], trial: dict[str, Any]) -> Run:
    trial_id = int(trial["id"])
    labels = dict.fromkeys(cast("list[str]", experiment.get("labels") or []), "")
    run = Run(
        key=f"{cluster}/{trial_id}",
        name=f"trial {trial_id}",
        state=str(trial["state"]).removeprefix("STATE_"),
        params=flat(trial.get("hparams") or {}),
        tags=labels | {_FROM: f"{cluster}/{trial_id}"},
        started=_time(trial.get("startTime")),
        ended=_time(trial.get("endTime")),
    )
    for report in metrics_of_trials(session, [trial_id], ""):
        at = report.end_time.timestamp() if report.end_time is not None else 0.0
        for name, value in flat(report.metrics).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                full = name if group_of(name) == report.group else f"{report.group}/{name}"
                run.points.append(Point(full, report.steps_completed, at, float(value)))
    return run


def _time(text: Any) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


# -- MLflow ------------------------------------------------------------------------------------------------------------


def to_mlflow(source: Source, place: str) -> tuple[int, int]:
    """Write a source to a tracking server, or to a folder as its file store: runs that were written, and unchanged."""
    if place.startswith(("http://", "https://")):
        return to_server(source, Server(place.rstrip("/")))
    return to_folder(source, Path(place))


def to_server(source: Source, server: Server) -> tuple[int, int]:
    """As `to_mlflow`."""
    name = source.name[:_LONGEST_NAME]
    known = next(
        server.pages("experiments/search", "experiments", {"max_results": 1, "filter": f"name = '{_quoted(name)}'"}),
        None,
    )
    if known is None:
        known = server.ask("experiments/create", {"name": name, "tags": _pairs(source.tags)})
    number = str(known["experiment_id"])
    written = unchanged = 0
    for run in source.runs:
        query = {"experiment_ids": [number], "max_results": 1, "filter": f"tags.`{_FROM}` = '{run.tags[_FROM]}'"}
        there = next(server.pages("runs/search", "runs", query), None)
        digest = run.digest()
        if there is not None and {"key": _DIGEST, "value": digest} in (there["data"].get("tags") or []):
            unchanged += 1
            continue
        _write(server, number, run, there, digest)
        written += 1
    return written, unchanged


def _write(server: Server, number: str, run: Run, there: dict[str, Any] | None, digest: str) -> None:
    """A run: new, or what is missing of one that is there."""
    found = there
    if found is None:
        body = {"experiment_id": number, "start_time": _milliseconds(run.started), "run_name": run.name,
                "tags": _pairs({_FROM: run.tags[_FROM]})}  # fmt: skip
        found = cast("dict[str, Any]", server.ask("runs/create", body)["run"])
    run_id = str(found["info"]["run_id"])
    params, tags = _pairs(_texts(run.params)), _pairs(run.tags)
    for some in _batches(params, _PAIRS_AT_ONCE):
        server.ask("runs/log-batch", {"run_id": run_id, "params": some})
    for some in _batches(tags, _PAIRS_AT_ONCE):
        server.ask("runs/log-batch", {"run_id": run_id, "tags": some})
    metrics = (
        {"key": safe(name), "value": plain(value), "timestamp": round(at * 1000), "step": step}
        for name, step, at, value in run.points
    )
    for some in _batches(metrics, _METRICS_AT_ONCE):
        server.ask("runs/log-batch", {"run_id": run_id, "metrics": some})
    end = {"status": _STATUS.get(run.state, "RUNNING"), "end_time": _milliseconds(run.ended)}
    server.ask("runs/update", {"run_id": run_id, **{name: value for name, value in end.items() if value}})
    server.ask("runs/set-tag", {"run_id": run_id, "key": _DIGEST, "value": digest})


def to_folder(source: Source, folder: Path) -> tuple[int, int]:
    """As `to_mlflow`."""
    number = str(int(hashlib.sha256(source.key.encode()).hexdigest()[:15], 16))
    home = folder / number
    home.mkdir(parents=True, exist_ok=True)
    about = {
        "experiment_id": number,
        "name": source.name,
        "lifecycle_stage": "active",
        "artifact_location": home.resolve().as_uri(),
    }
    (home / "meta.yaml").write_text(yaml.safe_dump(about))
    _write_texts(home / "tags", source.tags)
    written = unchanged = 0
    for run in source.runs:
        run_id = hashlib.md5(run.key.encode(), usedforsecurity=False).hexdigest()
        target, digest = home / run_id, run.digest()
        noted = target / "tags" / _DIGEST
        if noted.is_file() and noted.read_text() == digest:
            unchanged += 1
            continue
        _write_folder(target, run, run_id, number)
        _write_texts(target / "tags", {_DIGEST: digest})  # the last: a run that is cut off is written again
        written += 1
    return written, unchanged


def _write_folder(target: Path, run: Run, run_id: str, number: str) -> None:
    for name in ("params", "metrics", "tags", "artifacts"):
        (target / name).mkdir(parents=True, exist_ok=True)
    status = _NUMBERS[_STATUS.get(run.state, "RUNNING")]
    about: dict[str, Any] = {
        "run_id": run_id, "run_name": run.name, "experiment_id": number, "status": status, "user_id": "", "tags": [],
        "start_time": _milliseconds(run.started), "end_time": _milliseconds(run.ended), "lifecycle_stage": "active",
        "artifact_uri": (target / "artifacts").resolve().as_uri(), "source_type": 4, "source_name": "",
        "entry_point_name": "", "source_version": "",
    }  # fmt: skip
    _write_texts(target / "params", _texts(run.params))
    _write_texts(target / "tags", run.tags | {"mlflow.runName": run.name})
    curves: dict[str, list[str]] = {}
    for point in run.points:
        curves.setdefault(safe(point.name), []).append(f"{round(point.at * 1000)} {point.value} {point.step}\n")
    _write_texts(target / "metrics", {name: "".join(lines) for name, lines in curves.items()})
    (target / "meta.yaml").write_text(yaml.safe_dump(about))


def _write_texts(folder: Path, texts: dict[str, str]) -> None:
    """One file a name. A name that is also the folder of others gets an underscore."""
    taken = {parent.as_posix() for name in texts for parent in Path(safe(name)).parents}
    for name, text in texts.items():
        path = safe(name)
        while path in taken:
            path += "_"
        taken.add(path)
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def safe(name: str) -> str:
    """A name as MLflow takes it, which is a path within its folder and leads nowhere else."""
    parts = [re.sub(r"[^\w.\- ]", "_", part) for part in name.split("/")]
    kept = [part if part.strip(".") else "_" * max(1, len(part)) for part in parts]
    return "/".join(kept)[:_LONGEST_NAME]


def _batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    iterator = iter(items)
    while some := list(itertools.islice(iterator, size)):
        yield some


def _texts(params: dict[str, Any]) -> dict[str, str]:
    return {safe(name): (value if isinstance(value, str) else json.dumps(value))[:_LONGEST_VALUE]
            for name, value in params.items()}  # fmt: skip


def _pairs(values: dict[str, str]) -> list[dict[str, str]]:
    return [{"key": safe(name), "value": text} for name, text in values.items()]


def _quoted(text: str) -> str:
    return text.replace("'", "_")


def _milliseconds(time: datetime | None) -> int | None:
    return None if time is None else round(time.timestamp() * 1000)


# -- tables ------------------------------------------------------------------------------------------------------------


def to_files(session: Session, experiment_id: int, folder: Path, kind: str) -> list[Path]:
    """Write an experiment as tables: its trials, and all metrics, a value a row; and its configuration.

    Args:
        session: Of the cluster.
        experiment_id: The experiment.
        folder: Is made; files in it are replaced.
        kind: `csv` or `parquet`.

    Returns: The files.
    """
    answer = session.get(f"/api/v1/experiments/{experiment_id}").json()
    folder.mkdir(parents=True, exist_ok=True)
    trials = list(pages(session, f"/api/v1/experiments/{experiment_id}/trials", {}, "trials", None))
    rows = [_trial_row(trial) for trial in trials]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    write = _write_parquet if kind == "parquet" else _write_csv
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(answer.get("config") or answer["experiment"]["config"], sort_keys=False))
    found = [folder / f"trials.{kind}", folder / f"metrics.{kind}"]
    write(found[0], columns, ([row.get(name) for name in columns] for row in rows))
    write(found[1], METRIC_COLUMNS, _metric_rows(session, [int(trial["id"]) for trial in trials]))
    return [*found, config]


def _trial_row(trial: dict[str, Any]) -> dict[str, Any]:
    hparams = {f"hparams.{name}": value if isinstance(value, int | float | str | None) else json.dumps(value)
               for name, value in flat(trial.get("hparams") or {}).items()}  # fmt: skip
    return {
        "trial_id": int(trial["id"]),
        "state": str(trial["state"]).removeprefix("STATE_"),
        "start_time": trial.get("startTime"),
        "end_time": trial.get("endTime"),
        "steps_completed": int(trial.get("totalBatchesProcessed") or 0),
        "restarts": int(trial.get("restarts") or 0),
        "searcher_metric": trial.get("searcherMetricValue"),
        **hparams,
    }


def _metric_rows(session: Session, trial_ids: list[int]) -> Iterator[list[Any]]:
    for report in metrics_of_trials(session, trial_ids, "") if trial_ids else ():
        for name, value in flat(report.metrics).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                yield [report.trial_id, report.group, report.steps_completed, report.end_time, name, float(value)]


def _write_csv(path: Path, columns: Iterable[str], rows: Iterable[list[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for row in rows:
            writer.writerow([value.isoformat() if isinstance(value, datetime) else value for value in row])


def _write_parquet(path: Path, columns: Iterable[str], rows: Iterable[list[Any]]) -> None:
    try:
        arrow: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise Unreadable("parquet needs the package pyarrow: `pip install pyarrow`, or --format csv") from None
    names, writer = list(columns), None
    types = {"timestamp": arrow.timestamp("us", tz="UTC")}
    for some in _batches(itertools.chain(rows, [[]]), _LINES_AT_ONCE):
        full = [row for row in some if row]
        arrays = {
            name: arrow.array(_column([row[at] for row in full]), types.get(METRIC_COLUMNS.get(name, ""))
                              or METRIC_COLUMNS.get(name))
            for at, name in enumerate(names)
        }  # fmt: skip
        table = arrow.table(arrays)
        writer = writer or parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def _column(values: list[Any]) -> list[Any]:
    """Of one type: what differs is text."""
    kinds: set[type] = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    return values if len(kinds) <= 1 else [None if value is None else str(value) for value in values]
