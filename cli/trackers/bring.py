"""Brings runs of other trackers to the cluster, as trials of unmanaged experiments; again, nothing changes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cli.trackers.runs import Run, Source, moment, plain
from determined.common.api import Session
from determined.common.api._url import api_path
from determined.common.experimental._wire import new_key
from determined.core._curves import requests

_REPORTS_AT_ONCE = 500
#: Limits of what is noted of a trial: of names and of texts.
_LONGEST_NAME, _LONGEST_TEXT, _MOST_TAGS = 50, 5000, 400


@dataclass
class Place:
    """Where the experiments go, and what decides about their trials.

    Attributes:
        workspace: Its name; empty: the first one.
        project: Likewise.
        metric: That says which validation is the best.
        smaller_is_better: Of that metric.
    """

    workspace: str = ""
    project: str = ""
    metric: str = ""
    smaller_is_better: bool = True


@dataclass
class Brought:
    """What became of the runs of a source."""

    name: str
    experiment_id: int = 0
    written: list[int] = field(default_factory=list[int])
    unchanged: int = 0


def bring(session: Session, sources: Iterable[Source], place: Place) -> Iterator[Brought]:
    """Bring sources, one after the other. Those without runs are left out."""
    for source in sources:
        brought = Brought(source.name)
        for run in source.runs:
            brought.experiment_id = brought.experiment_id or _experiment(session, source, place)
            _bring(session, brought, run)
        if brought.experiment_id:
            yield brought


def _experiment(session: Session, source: Source, place: Place) -> int:
    config: dict[str, Any] = {
        "name": source.name[:250] or source.key,
        "description": f"from {source.key.partition(':')[0]}",
        "labels": [source.key.partition(":")[0]],
        "workspace": place.workspace or None,
        "project": place.project or None,
        "searcher": {"metric": place.metric, "smaller_is_better": place.smaller_is_better} if place.metric else None,
    }
    wanted = {name: value for name, value in config.items() if value is not None}
    path = api_path("experiments", "by-external-id", source.key)
    made = session.put(path, {"config": json.dumps(wanted), "unmanaged": True}).json()
    return int(made["experiment"]["id"])


def _bring(session: Session, brought: Brought, run: Run) -> None:
    wanted = {"experimentId": brought.experiment_id, "hparams": run.params, "unmanaged": True}
    body = {"externalTrialId": run.key[-255:], "createTrialRequest": wanted}
    trial_id = int(session.put(api_path("trials"), body).json()["trial"]["id"])
    digest = run.digest()
    noted = api_path("runs", str(trial_id), "metadata")
    was: dict[str, Any] = session.get(noted).json()["metadata"]
    if was.get("import") == {"digest": digest}:
        brought.unchanged += 1
        return
    # a further run of the trial: what an earlier import reported, whole or in part, is replaced
    path = api_path("trials", str(trial_id))
    started = session.post(f"{path}/start", {"resume": True}, idempotency_key=new_key()).json()
    for kind, body in _metrics(run, started["trialRunId"]):
        session.post(f"{path}/metrics/{kind}", body, idempotency_key=new_key())
    times = {"startTime": run.started, "endTime": run.ended}
    told = {name: time.isoformat() for name, time in times.items() if time is not None}
    session.patch(path, {"state": f"STATE_{run.state}", **told})
    session.post(noted, {"metadata": _metadata(run) | {"import": {"digest": digest}}}, idempotency_key=new_key())
    brought.written.append(trial_id)


def _metrics(run: Run, run_id: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """What is sent of a run: the last part of the route, and the body. `run_id`: of the trial's run.

    Validations are reports, as the best one is looked for among them; all else are curves.
    """
    groups = run.groups()
    validations = [
        {"group": "validation", "trialRunId": run_id, "stepsCompleted": step, "reportTime": moment(at).isoformat(),
         "metrics": {"avgMetrics": {name: plain(value) for name, value in metrics.items()}}}
        for step, (at, metrics) in groups.pop("validation", {}).items()
    ]  # fmt: skip
    for begin in range(0, len(validations), _REPORTS_AT_ONCE):
        yield "batch", {"reports": validations[begin : begin + _REPORTS_AT_ONCE]}
    for group, reports in sorted(groups.items()):
        times = [moment(report.at).timestamp() for report in reports.values()]
        names = sorted({name for report in reports.values() for name in report.metrics})
        columns = {name: [report.metrics.get(name) for report in reports.values()] for name in names}
        for body in requests(group, list(reports), columns, times):
            yield "curves", body | {"trialRunId": run_id}


def _metadata(run: Run) -> dict[str, Any]:
    """Name and tags, as far as a trial takes them."""
    tags = sorted(run.tags.items())
    short = {name: text[:_LONGEST_TEXT] for name, text in tags[:_MOST_TAGS] if 0 < len(name) <= _LONGEST_NAME}
    return {"name": run.name[:_LONGEST_TEXT], **({"tags": short} if short else {})}
