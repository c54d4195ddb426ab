"""What other trackers have comes over as unmanaged experiments, once. The folders are of the trackers' own packages."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pandas
import pytest
from sqlalchemy import func, select
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import summary_v2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from cli.trackers import export, mlflow, tensorboard, wandb
from cli.trackers.bring import Brought, Place, bring
from cli.trackers.runs import Point, Report, Run, Source, Unreadable, group_of, value_of
from database.models import Experiment, Metric, Task, Trial
from determined.common.api import Session
from tests.integration.api.served import Caller, Served
from tests.integration.trackers.record import DATA, asked, exported


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a tracking server whose answers were recorded."""
    answers: dict[str, Any] = json.loads((DATA / "server.json").read_text())
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=answers[asked(request)]))
    monkeypatch.setattr(mlflow, "transport", lambda: transport)
    return "http://127.0.0.1:1"


def written(folder: Path) -> Path:
    """A TensorBoard folder with two runs; one has hyperparameters, and both forms of scalars."""
    for name in ("first", "deeper/second"):
        writer = EventFileWriter(str(folder / name))
        if name == "first":
            hparams = summary_v2.hparams_pb({"lr": 0.1, "optimizer": "sgd", "nested": True})
            writer.add_event(Event(wall_time=1_700_000_000, summary=hparams))
        for step in range(3):
            scalar = Summary(value=[Summary.Value(tag="val/loss", simple_value=1 / (step + 1))])
            writer.add_event(Event(wall_time=1_700_000_000 + step, step=step, summary=scalar))
        writer.close()
    return folder


def read(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> list[Source]:
    """The sources of one of the trackers."""
    if kind == "tensorboard":
        boards = tmp_path / "boards"
        return list(tensorboard.read(boards if boards.exists() else written(boards)))
    if kind == "wandb":
        return list(wandb.read(DATA / "wandb"))
    place = str(DATA / "mlruns") if kind == "mlflow" else request.getfixturevalue("recorded")
    return list(mlflow.read(place, []))


KINDS = ("mlflow", "mlflow-server", "wandb", "tensorboard")


@pytest.mark.parametrize("kind", KINDS)
async def test_runs_come_with_all_that_is_known_and_once(
    api: Served, request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    user = api.user()
    [brought] = await brought_by(api, user, read(kind, request, tmp_path), kind)
    assert (len(brought.written), brought.unchanged) == (2, 0)
    experiment = (await user.get(f"/api/v1/experiments/{brought.experiment_id}"))["experiment"]
    assert experiment["name"] == ("boards" if kind == "tensorboard" else "digits")
    assert experiment["labels"] == [kind.partition("-")[0]]
    assert experiment["unmanaged"]
    trials = {trial["name"]: trial for trial in [await trial_of(user, number) for number in brought.written]}
    first = trials["first"]
    assert first["hparams"]["lr"] == 0.1
    assert first["state"] == "STATE_COMPLETED"
    assert first["endTime"][:4] == ("2023" if kind == "tensorboard" else "2026")
    assert first["startTime"] <= first["endTime"]
    assert experiment["startTime"] <= first["startTime"]
    name = {"mlflow": "val_loss", "mlflow-server": "val_loss", "wandb": "val/loss", "tensorboard": "val/loss"}[kind]
    curve = await values(user, first["id"], "validation", name)
    top = 1 if kind == "tensorboard" else 2
    assert curve == [pytest.approx(top / (step + 1)) for step in range(3 if kind == "tensorboard" else 5)]
    if kind.startswith("mlflow"):
        assert first["hparams"] == {"lr": 0.1, "depth": 3, "optimizer": "sgd", "nested": True}
        assert first["tags"]["team"] == "vision"
        assert await values(user, first["id"], "training", "score/last") == [0.5, 0.9], "logged without steps"
    if kind == "wandb":
        assert (first["hparams"]["model"], first["tags"]) == ({"depth": 3}, {"vision": ""})
    if kind != "tensorboard":
        broken = trials["broken"]
        assert broken["state"] == "STATE_ERROR"
        assert await values(user, broken["id"], "training", "loss") == ["NaN"]
    before = await state(api, user)
    [again] = await brought_by(api, user, read(kind, request, tmp_path), kind)
    assert (again.experiment_id, again.written, again.unchanged) == (brought.experiment_id, [], 2)
    assert await state(api, user) == before


async def test_run_that_went_on_replaces_what_came_before(api: Served) -> None:
    user = api.user()

    def source(count: int, state: str, *, value: float = 1.0) -> Source:
        points = [Point("loss", step, 1_700_000_000.0 + step, value) for step in range(count)]
        return Source("mlflow:of a run that goes on", "on", iter([Run("a", "a", state=state, points=points)]))

    [first] = await brought_by(api, user, [source(3, "PAUSED")], "")
    [trial_id] = first.written
    assert (await trial_of(user, trial_id))["state"] == "STATE_PAUSED"
    [more] = await brought_by(api, user, [source(5, "COMPLETED", value=2.0)], "")
    assert more.written == [trial_id]
    assert await values(user, trial_id, "training", "loss") == [2.0] * 5
    assert (await trial_of(user, trial_id))["state"] == "STATE_COMPLETED"


def test_what_is_no_such_folder_is_refused(tmp_path: Path, recorded: str) -> None:
    (tmp_path / "run-a.wandb").write_bytes(b"nonsense")
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "meta.yaml").write_text("a: [")
    (tmp_path / "mlflow.db").write_text("")
    for sources, said in (
        (lambda: wandb.read(tmp_path), "no file of Weights & Biases"),
        (lambda: tensorboard.read(tmp_path), "no event files"),
        (lambda: mlflow.read(str(tmp_path), []), "it is no YAML"),
        (lambda: mlflow.read(str(DATA / "wandb"), []), "no file store of MLflow"),
        (lambda: mlflow.read(str(tmp_path / "mlflow.db"), []), "mlflow server --backend-store-uri"),
        (lambda: mlflow.read(recorded, ["no such"]), "no experiment 'no such'"),
    ):
        with pytest.raises(Unreadable, match=said):
            runs_of(sources())


def test_file_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    [whole] = [path for path in DATA.glob("wandb/*/*.wandb") if path.stat().st_size > 32 * 1024]
    shutil.copy(whole, tmp_path / "run-cut.wandb")
    counts: set[int] = set()
    content = whole.read_bytes()
    for size in range(400, len(content), 997):
        (tmp_path / "run-cut.wandb").write_bytes(content[:size])
        [run] = runs_of(wandb.read(tmp_path))
        assert run.state == "PAUSED", "it may go on"
        counts.add(len(run.points))
    assert counts == {0, 2, 4, 6, 8, 10}


async def test_experiment_becomes_tables_and_comes_back_from_mlflow(api: Served, tmp_path: Path) -> None:
    user = api.user()
    [brought] = await brought_by(api, user, list(mlflow.read(str(DATA / "mlruns"), [])), "to export")
    files, counts = await asyncio.to_thread(exported_by, api, user, brought.experiment_id, tmp_path)
    assert [path.name for path in files] == ["trials.csv", "metrics.csv", "config.yaml"]
    assert counts == [(2, 0), (0, 2)]
    trials, metrics = (pandas.read_csv(path) for path in files[:2])
    assert sorted(trials["trial_id"]) == sorted(brought.written)
    assert trials.set_index("state")["hparams.lr"]["COMPLETED"] == 0.1
    losses = metrics[metrics["name"] == "val_loss"].sort_values("steps_completed")
    assert list(losses["value"]) == [2 / (step + 1) for step in range(5)]
    assert set(losses["group"]) == {"validation"}
    runs = {run.state: run for run in runs_of(mlflow.read(str(tmp_path / "store"), []))}
    assert runs["COMPLETED"].params == {"lr": 0.1, "depth": 3, "optimizer": "sgd", "nested": True}
    assert [point.value for point in runs["COMPLETED"].points if point.name == "score/last"] == [0.5, 0.9]
    assert runs["ERROR"].tags["mlflow"] == "", "a label"


def exported_by(
    api: Served, user: Caller, experiment_id: int, folder: Path
) -> tuple[list[Path], list[tuple[int, int]]]:
    """Write an experiment as files, and twice as a file store."""
    session = Session(str(api.http.base_url), token=user.headers["Authorization"].removeprefix("Bearer "))
    try:
        files = export.to_files(session, experiment_id, folder / "files", "csv")
        store = str(folder / "store")
        return files, [export.to_mlflow(export.source_of(session, experiment_id), store) for _ in range(2)]
    finally:
        session.close()


def test_server_is_sent_what_a_real_one_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    conversation: list[tuple[str, int, Any]] = json.loads((DATA / "export.json").read_text())
    sent = iter(conversation)

    def answer(request: httpx.Request) -> httpx.Response:
        expected, status, said = next(sent)
        assert asked(request) == expected
        return httpx.Response(status, json=said)

    monkeypatch.setattr(mlflow, "transport", lambda: httpx.MockTransport(answer))
    assert [export.to_mlflow(exported(), "http://127.0.0.1:1") for _ in range(2)] == [(2, 0), (0, 2)]
    assert next(sent, None) is None


def test_names_lead_nowhere_else(tmp_path: Path) -> None:
    points = [Point(name, 1, 1.0, 1.0) for name in ("a", "a/b", "../../x", "/etc/x", ".", "ü ber", "a\nb")]
    run = Run("k", "k", tags={"../t": "v", "undeterred.trial": "k"}, params={"..": 1}, points=points)
    export.to_folder(Source("s", "s", iter([run])), tmp_path / "store")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    [read] = runs_of(mlflow.read(str(tmp_path / "store"), []))
    assert {point.name for point in read.points} == {"___", "__/__/x", "_/etc/x", "a/b", "a_", "a_b", "ü ber"}


def test_names_and_values_are_read_as_people_mean_them() -> None:
    assert [group_of(name) for name in ("val_loss", "eval/f1", "loss", "value", "system/gpu", "test.acc")] == [
        "validation", "validation", "training", "training", "system", "validation"
    ]  # fmt: skip
    assert [value_of(text) for text in ("1", "-2.5e-3", "True", "1.2.3", "nan", "0x1")] == [
        1, -0.0025, True, "1.2.3", "nan", "0x1"
    ]  # fmt: skip
    run = Run("a", "a", points=[Point("x", -1, 1.0, 1.0), Point("x", 2, 2.0, math.inf)])
    assert run.groups() == {"training": {2: Report(2.0, {"x": math.inf})}}
    assert replace(run, state="ERROR").digest() != run.digest()


# -- helpers -----------------------------------------------------------------------------------------------------------


def runs_of(sources: Iterable[Source]) -> list[Run]:
    """All runs."""
    return [run for source in sources for run in source.runs]


async def brought_by(api: Served, user: Caller, sources: list[Source], kind: str) -> list[Brought]:
    """Bring sources as a user; each kind on its own, as recorded ones have the same names."""

    def run() -> list[Brought]:
        token = user.headers["Authorization"].removeprefix("Bearer ")
        named: Iterator[Source] = (replace(source, key=f"{source.key} {kind} {user.user_id}") for source in sources)
        session = Session(str(api.http.base_url), token=token)
        try:
            return list(bring(session, named, Place(metric="val_loss")))
        finally:
            session.close()

    return await asyncio.to_thread(run)


async def trial_of(user: Caller, trial_id: int) -> dict[str, Any]:
    """A trial, with the name and the tags that are noted of it."""
    noted = (await user.get(f"/api/v1/runs/{trial_id}/metadata"))["metadata"]
    return (await user.get(f"/api/v1/trials/{trial_id}"))["trial"] | {"name": noted["name"], "tags": noted.get("tags")}


async def values(user: Caller, trial_id: int, group: str, name: str) -> list[Any]:
    """A curve, by steps."""
    path = "/api/v1/trials/metrics/trial_metrics"
    lines = await user.lines(path, trialIds=trial_id, group=group)
    reports = [report for line in lines for report in line["metrics"]]
    found = [report["metrics"]["avg_metrics" if group == "training" else "validation_metrics"] for report in reports]
    return [each[name] for each in found if name in each]


async def state(api: Served, user: Caller) -> list[Any]:
    """All that an import of a user could change; other tests' experiments may be erased meanwhile."""
    mine = select(Trial.id).join(Experiment, Experiment.id == Trial.experiment_id)
    mine = mine.where(Experiment.owner_id == user.user_id)
    with api.database.read() as session:
        columns = Trial.id, Trial.run_id, Trial.state, Trial.started_at, Trial.ended_at
        trials = session.execute(select(*columns).where(Trial.id.in_(mine)).order_by(Trial.id)).all()
        whose = (
            (Experiment, Experiment.owner_id == user.user_id), (Metric, Metric.trial_id.in_(mine)),
            (Task, Task.trial_id.in_(mine)),
        )  # fmt: skip
        counts = [session.scalar(select(func.count()).select_from(table).where(where)) for table, where in whose]
    assert all(counts)
    return [*map(tuple, trials), *counts]
