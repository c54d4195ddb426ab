"""The Python SDK against a running platform: every documented example, synchronous and asynchronous."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from determined import errors
from determined.experimental import aio, client
from tests.kit.platform import ADMIN_PASSWORD, Platform
from tests.kit.scripts import TRAIN, config


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    """SQLite only: what is tested here does not depend on the engine."""
    return f"sqlite:///{tmp_path / 'undeterred.db'}"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with training code, of somebody who has not logged in yet."""
    for name in [name for name in os.environ if name.startswith("DET_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(client, "_determined", None)
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    monkeypatch.chdir(folder)
    yield folder
    if client._determined is not None:
        client._determined.close()


def written(cluster: Platform, here: Path, searcher: dict | None = None, **more: object) -> Path:
    """`my_config.yaml`, for this platform's pool."""
    storage = {"type": "shared_fs", "host_path": str(cluster.folder / "checkpoints"), "save_trial_latest": 5}
    wanted = config(searcher, name="sdk", checkpoint_storage=storage, resources={"resource_pool": cluster.pool}, **more)
    path = here / "my_config.yaml"
    path.write_text(yaml.safe_dump(wanted))
    return path


async def test_documented_examples_of_the_sdk_do_what_they_say(
    cluster: Platform, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(cluster, here, {"name": "random", "max_trials": 2, "max_length": 3})
    client.TrialReference  # noqa: B018  the older names are there
    await asyncio.to_thread(_login, cluster, monkeypatch)
    exp = await asyncio.to_thread(_workflow)
    checkpoint = await asyncio.to_thread(_trials, exp)
    await asyncio.to_thread(_checkpoints, exp, checkpoint, here)
    await asyncio.to_thread(_registry, checkpoint)
    await asyncio.to_thread(_places, exp, cluster.pool)
    await asyncio.to_thread(_the_rest, exp, here)


def _login(cluster: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    client.login(master=cluster.url, user="admin", password=ADMIN_PASSWORD)
    assert client.get_session_username() == client.whoami().username == "admin"
    with pytest.raises(RuntimeError, match="before any other function"):
        client.login(master=cluster.url)
    client._determined.close()  # type: ignore[union-attr]
    monkeypatch.setattr(client, "_determined", None)
    # From here on as after `det user login`: neither user nor password in the code.
    monkeypatch.setenv("DET_MASTER", cluster.url)
    with pytest.raises(errors.UnauthenticatedException, match=r"can't log in at .* as 'nobody'"):
        client.Determined(user="nobody", password="wrong")


def _workflow() -> client.ExperimentReference:
    exp = client.create_experiment(config="my_config.yaml", model_dir=".")
    assert exp.await_first_trial().experiment_id == exp.id
    exit_status = exp.wait(interval=0.1)
    assert exit_status == client.ExperimentState.COMPLETED
    best_checkpoint = exp.top_checkpoint()
    assert client.get_checkpoint(best_checkpoint.uuid).uuid == best_checkpoint.uuid
    assert client.get_experiment(exp.id).name == "sdk"
    with pytest.raises(errors.NotFoundException, match="987654"):
        client.get_experiment(987654)
    return exp


def _trials(exp: client.ExperimentReference) -> client.Checkpoint:
    by_metric = exp.get_trials(client.TrialSortBy.BEST_VALIDATION_METRIC, client.TrialOrderBy.DESCENDING)
    assert len(by_metric) == 2
    assert [t.id for t in exp.get_trials()] == sorted(t.id for t in by_metric)
    trial = client.get_trial(by_metric[0].id)
    assert trial.get_experiment().id == exp.id
    assert exp.top_checkpoint().training.trial_id == trial.id  # type: ignore[union-attr]
    assert [c.training.trial_id for c in exp.top_n_checkpoints(5)] == [t.id for t in by_metric]  # type: ignore[union-attr]
    worst = exp.top_checkpoint(sort_by="accuracy", smaller_is_better=True)
    assert worst.training.trial_id == by_metric[1].id  # type: ignore[union-attr]

    lines = list(trial.logs())
    assert any("step 3" in line for line in lines)
    assert list(trial.logs(head=2)) == lines[:2]
    assert list(trial.logs(tail=2)) == lines[-2:]
    assert list(trial.logs(follow=True)) == lines
    assert list(trial.logs(min_level=client.LogLevel.CRITICAL)) == []
    assert set(trial.logs(stdtypes=["stdout"], rank_ids=[0])) <= set(lines)

    latest, best = trial.select_checkpoint(latest=True), trial.select_checkpoint(best=True)
    assert latest.uuid == best.uuid == trial.top_checkpoint().uuid
    assert trial.select_checkpoint(uuid=best.uuid).state == client.CheckpointState.COMPLETED
    listed = trial.get_checkpoints(client.CheckpointSortBy.BATCH_NUMBER, client.CheckpointOrderBy.DESC)
    assert [c.uuid for c in listed] == [best.uuid]
    assert [c.uuid for c in trial.get_checkpoints("accuracy", client.CheckpointOrderBy.ASC)] == [best.uuid]

    reports = trial.list_metrics("validation")
    assert [r.steps_completed for r in reports] == [1, 2, 3]
    assert all(isinstance(r, client.ValidationMetrics) for r in reports)
    assert [r.metrics["loss"] for r in trial.iter_metrics("training")] == [1.0, 0.5, 1 / 3]
    assert len(list(client.stream_trials_metrics([t.id for t in by_metric], "validation"))) == 6
    assert len(list(client.stream_trials_training_metrics([trial.id]))) == 3
    assert isinstance(next(iter(client.stream_trials_validation_metrics([trial.id]))).end_time, datetime.datetime)
    frame = exp.list_metrics().to_dataframe()
    assert list(frame.groupby("trial_id")["accuracy"].count()) == [3, 3]
    assert f"<td>{trial.id}</td>" in by_metric._repr_html_()
    assert "hparams.quality" in by_metric.to_dataframe().columns
    return best


def _checkpoints(exp: client.ExperimentReference, checkpoint: client.Checkpoint, here: Path) -> None:
    seen: list[tuple[int, int]] = []
    assert checkpoint.download() == f"checkpoints/{checkpoint.uuid}"
    for mode in client.DownloadMode:
        path = Path(checkpoint.download(str(here / mode.value), mode, progress=lambda *told: seen.append(told)))
        assert json.loads((path / "state.json").read_text()) == {"steps": 3}
        assert json.loads((path / "metadata.json").read_text()) == checkpoint.metadata
        assert seen[-1][0] == seen[-1][1] >= checkpoint.resources["state.json"]
    assert not [name for name in os.listdir(here) if name.startswith(".")]
    checkpoint.add_metadata({"owner": "me", "stage": "test"})
    assert client.get_checkpoint(checkpoint.uuid).metadata["owner"] == "me"
    checkpoint.remove_metadata(["owner"])
    checkpoint.reload()
    assert "owner" not in checkpoint.metadata
    checkpoint.write_metadata_file(str(here / "latest.json"))
    assert json.loads((here / "latest.json").read_text())["stage"] == "test"
    assert json.loads((here / "direct" / "metadata.json").read_text()) == {"steps_completed": 3}
    assert list(checkpoint.get_metrics()) == []
    assert [c.uuid for c in exp.list_checkpoints(max_results=1)]
    assert checkpoint.uuid in exp.list_checkpoints()._repr_html_()


def _registry(checkpoint: client.Checkpoint) -> None:
    model = client.create_model("mnist", "digits", {"from": "here"})
    assert (model.name, model.description, model.username, model.archived) == ("mnist", "digits", "admin", False)
    assert isinstance(model.creation_time, datetime.datetime)
    assert client.get_model("mnist").model_id == client.get_model(model.model_id).model_id == model.model_id
    assert client.get_model_by_id(model.model_id).name == "mnist"
    with pytest.raises(errors.ConflictException):
        client.create_model("mnist")
    with pytest.raises(errors.NotFoundException):
        client.get_model("none of this name")
    assert model.get_version() is None
    first = model.register_version(checkpoint.uuid)
    second = model.register_version(checkpoint.uuid)
    assert [v.model_version for v in model.get_versions()] == [2, 1]
    assert [v.model_version for v in model.get_versions(client.ModelOrderBy.ASCENDING)] == [1, 2]
    assert model.get_version().model_version == second.model_version == 2  # type: ignore[union-attr]
    assert model.get_version(1).checkpoint.uuid == checkpoint.uuid  # type: ignore[union-attr]
    with pytest.raises(errors.NotFoundException):
        model.get_version(3)
    first.set_name("baseline")
    first.set_notes("the first")
    first.reload()
    assert (first.name, first.notes, first.model_name) == ("baseline", "the first", "mnist")
    assert list(first.iter_metrics()) == list(first.get_metrics("validation")) == []
    second.delete()
    assert [v.name for v in model.list_versions()] == ["baseline"]
    model.add_metadata({"a": 1, "b": 2})
    model.remove_metadata(["a", "from"])
    model.set_labels(["x", "y"])
    model.set_description("handwritten digits")
    model.reload()
    assert (model.metadata, sorted(model.labels), model.description) == ({"b": 2}, ["x", "y"], "handwritten digits")
    other = client._client().create_model("cifar", labels=["y"], workspace_name="Uncategorized")
    assert client.get_model_labels() == ["y", "x"]
    assert [m.name for m in client.get_models()] == ["cifar", "mnist"]
    by_time = client.get_models(client.ModelSortBy.CREATION_TIME, client.ModelOrderBy.DESCENDING)
    assert [m.name for m in by_time] == ["cifar", "mnist"]
    assert [m.name for m in client.get_models(name="mni", description="digits")] == ["mnist"]
    assert [m.name for m in client.list_models(workspace_names=["Uncategorized"], model_id=other.model_id)] == ["cifar"]
    model.archive()
    assert client.get_model("mnist").archived
    model.unarchive()
    assert model.to_json()["archived"] is False
    model.delete()
    other.delete()
    assert client.get_models() == []


def _places(exp: client.ExperimentReference, pool_name: str) -> None:
    workspace = client.create_workspace("research")
    assert [w.name for w in client.list_workspaces()] == ["Uncategorized", "research"]
    assert client.get_workspace("research").id == workspace.id
    project = workspace.create_project("vision", "pictures")
    assert workspace.get_project("vision").description == "pictures"
    project.set_name("images")
    project.set_description("more pictures")
    project.set_key("IMG")
    project.add_note("todo", "label them")
    project.add_note("done", "found them")
    project.remove_note("todo")
    with pytest.raises(ValueError, match="0 notes named 'todo'"):
        project.remove_note("todo")
    project.reload()
    assert (project.name, project.key, [n["name"] for n in project.notes]) == ("images", "IMG", ["done"])
    exp.move_to_project("research", "images")
    assert exp.project_id == project.id
    assert [e.id for e in project.list_experiments()] == [exp.id]
    with pytest.raises(errors.NotFoundException, match="no workspace 'nowhere'"):
        exp.move_to_project("nowhere", "images")
    with pytest.raises(errors.NotFoundException, match="no project 'nothing'"):
        exp.move_to_project("research", "nothing")
    exp.move_to_project("Uncategorized", "Uncategorized")
    project.archive()
    project.unarchive()
    assert [p.name for p in workspace.list_projects()] == ["images"]
    pool = client.ResourcePool(client._client()._session, pool_name)
    assert pool_name in [p.name for p in workspace.list_pools()]
    assert pool.list_workspaces() == []
    with pytest.raises(errors.APIException):  # the default pool is there for all
        pool.add_bindings(["research"])
    workspace.delete_project("images")
    client.delete_workspace("research")
    with pytest.raises(errors.NotFoundException, match="no workspace 'research'"):
        client.get_workspace("research")


def _the_rest(exp: client.ExperimentReference, here: Path) -> None:
    exp.set_name("toured")
    exp.set_labels({"one", "two"})
    exp.remove_label("one")
    found = client.list_experiments(
        client.ExperimentSortBy.ID, client.OrderBy.DESC, labels=["two"], states=[client.ExperimentState.COMPLETED]
    )
    assert [(e.id, e.name, e.labels) for e in found] == [(exp.id, "toured", {"two"})]
    assert list(found.to_dataframe()["state"]) == ["COMPLETED"]
    assert Path(exp.download_code(str(here))).stat().st_size > 0
    assert exp.get_pachyderm_config() == {}
    with pytest.raises(errors.EnterpriseOnlyError, match="no clients of OAuth"):
        client.list_oauth_clients()
    user = client.create_user("ann", admin=False, password="Pa55-word-of-ann")
    assert client.Determined(user="ann", password="Pa55-word-of-ann").whoami().user_id == user.user_id
    user.deactivate()
    assert "ann" not in [u.username for u in client.list_users(active=True)]
    exp.archive()
    exp.unarchive()
    exp.delete_tensorboard_files()
    exp.delete()
    client.logout()


async def test_asynchronous_twins_do_the_same(cluster: Platform, here: Path) -> None:
    path = written(cluster, here, {"max_length": 2})
    async with await aio.AsyncDetermined.login(cluster.url, "admin", ADMIN_PASSWORD) as det:
        assert (await det.whoami()).username == await det.get_session_username() == "admin"
        experiments = await asyncio.gather(*(det.create_experiment(path, here) for _ in range(2)))
        trials = await asyncio.gather(*(each.await_first_trial() for each in experiments))
        states = await asyncio.gather(*(each.wait(interval=0.1) for each in experiments))
        assert states == [client.ExperimentState.COMPLETED] * 2
        exp, trial = experiments[0], trials[0]
        assert [t.id async for t in exp.iter_trials()] == [t.id for t in await exp.list_trials()] == [trial.id]
        lines = [line async for line in trial.logs()]
        assert lines == [line async for line in trial.logs(follow=True)]
        assert lines[-1:] == [line async for line in trial.logs(tail=1)]
        assert [m.steps_completed async for m in trial.iter_metrics("validation")] == [1, 2]
        assert len((await exp.list_metrics("training")).to_dataframe()) == 2
        checkpoint = await exp.top_checkpoint()
        for mode in client.DownloadMode:
            folder = await checkpoint.download(here / mode.value, mode)
            assert json.loads((Path(folder) / "state.json").read_text()) == {"steps": 2}
        model = await det.create_model("async")
        version = await model.register_version(checkpoint.uuid)
        assert (await model.get_version()).model_version == version.model_version == 1  # type: ignore[union-attr]
        assert version.checkpoint.uuid == checkpoint.uuid  # type: ignore[union-attr]
        workspace = await det.create_workspace("async")
        project = await workspace.create_project("async")
        await exp.move_to_project("async", "async")
        assert [e.id for e in await project.list_experiments()] == [exp.id]
        with pytest.raises(errors.NotFoundException, match="987654"):
            await det.get_experiment(987654)


async def test_campaign_is_created_from_python_and_waited_for(
    cluster: Platform, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(cluster, here, {"max_length": 2})
    definition = {
        "name": "of python",
        "params": {"model": "kept"},
        "schedule": {"cron": "@daily"},
        "steps": {
            "train": {"experiment": "my_config.yaml"},
            "publish": {"register": {"checkpoint": "${steps.train.best_checkpoint}", "model": "${params.model}"}},
        },
    }
    await asyncio.to_thread(_login, cluster, monkeypatch)

    def lives() -> None:
        campaign = client.create_campaign(definition, ".")
        assert (campaign.name, campaign.params) == ("of python", {"model": "kept"})
        run = campaign.run(params={"model": "other"})
        assert run.wait(interval=0.2) == "COMPLETED"
        assert list(run.steps) == ["train", "publish"]
        checkpoint = client.get_model("other").get_version().checkpoint
        assert run.outputs("train")["best_checkpoint"] == checkpoint.uuid
        assert run.outputs("publish")["version"] == 1
        assert [each.number for each in client.get_campaign(campaign.id).list_runs()] == [1]
        campaign.pause()
        assert client.list_campaigns("python")[0].is_paused
        campaign.activate()
        end = datetime.datetime(2026, 1, 3, tzinfo=datetime.UTC)
        assert len(campaign.backfill(end - datetime.timedelta(days=2), end, dry_run=True)) == 3
        with pytest.raises(errors.InvalidRequestException, match="no such parameter"):
            campaign.run(params={"epochs": 1})
        campaign.delete()
        with pytest.raises(errors.NotFoundException):
            campaign.reload()

    await asyncio.to_thread(lives)
