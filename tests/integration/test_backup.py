"""A backup of a cluster at work, restored where there is nothing: an empty database, an empty Temporal, a new host."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import signal
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import delete, select, update
from temporalio.client import Client

from api.auth.authentication import UserPrincipal
from api.schemas.experiments import CreateExperimentRequest
from api.services.experiments import Creator
from api.settings import ApiSettings
from database.checkpoint_files import Kept, checked
from database.migrate import migrate, seed
from database.models import Checkpoint, Experiment, Outbox, SearchDecision
from database.session import Database
from database.types import utc_now
from tests.conftest import empty_postgres
from tests.kit.platform import Platform, platform
from tests.kit.scripts import EPOCHS, config
from tests.kit.servers import temporal_server
from workers import restore
from workers.backup import BackupSettings, write
from workers.connect import GivenUp, configure_logging
from workers.restore import RestoreSettings, bring_back
from workflows.searchers.replay import parse_lines, replay

#: Reports and saves each step; goes on from the newest checkpoint. Behind its fourth step it waits for a file.
SAVES = """
import pathlib, sys, time
import determined as det
from determined import core

info = det.get_cluster_info()
hparams = info.trial.hparams
with core.init() as context:
    steps = 0
    if info.latest_checkpoint:
        steps = context.checkpoint.get_metadata(info.latest_checkpoint)["steps_completed"]
        print(f"resumed at {steps}", flush=True)
    for op in context.searcher.operations():
        while steps < op.length:
            time.sleep(hparams["sleep"])
            while steps == 4 and not pathlib.Path(hparams["go"]).exists():
                time.sleep(0.05)
            steps += 1
            context.train.report_validation_metrics(steps, {"accuracy": hparams["quality"] * steps})
            with context.checkpoint.store_path({"steps_completed": steps}) as (path, _):
                (path / "state.json").write_text("{}")
            print(f"step {steps}", flush=True)
            if context.preempt.should_preempt():
                sys.exit(0)
        op.report_completed(hparams["quality"] * steps)
"""
RANDOM = {"name": "random", "max_trials": 3, "max_concurrent_trials": 2, "max_length": 8}
ASHA = {"name": "async_halving", "num_rungs": 2, "max_trials": 3, "max_length": 6, "divisor": 2,
        "max_concurrent_trials": 2}  # fmt: skip
STOPPING = {"name": "adaptive_asha", "max_length": None, "max_time": 9, "time_metric": "epoch", "max_trials": 3,
            "max_concurrent_trials": 2, "max_rungs": 2}  # fmt: skip


def of(searcher: dict[str, Any], sleep: float, go: Path = Path("/")) -> dict[str, Any]:
    space = {"quality": {"type": "double", "minval": 0, "maxval": 1}, "sleep": sleep, "go": str(go)}
    return config(searcher, hyperparameters=space)


@pytest.fixture(autouse=True)
def _logging() -> None:
    """To where this test's output goes: that of the test before is closed."""
    configure_logging()


@pytest.fixture
def second_url(database_url: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database on the engine of the first one."""
    if database_url.startswith("sqlite"):
        yield f"sqlite:///{tmp_path / 'restored' / 'undeterred.db'}"
        return
    with empty_postgres(request.getfixturevalue("postgres_url")) as url:
        yield url


@contextlib.asynccontextmanager
async def at_work(folder: Path, url: str, temporal: str, agent: str) -> AsyncGenerator[Platform]:
    """A platform with one host, which is gone after it with all that runs there."""
    async with platform(temporal_address=temporal, database_url=url, folder=folder, pool="main") as running:
        await running.start_agent(agent, slots=8)
        try:
            yield running
        finally:
            _end_processes(folder / f"main-{agent}")


def _end_processes(folder: Path) -> None:
    """The host goes."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(folder) in process.environ().get("DET_RUN_DIR", ""):
                process.send_signal(signal.SIGKILL)


def settings(model: type[Any], url: str, folder: Path, address: str = "127.0.0.1:9") -> Any:
    return model(database_url=url, temporal_address=address, storage_roots=str(folder))


async def results(cluster: Platform, experiment_id: int) -> list[tuple[Any, ...]]:
    """What a search came to, trial by trial."""
    trials = sorted(await cluster.trials(experiment_id), key=lambda trial: trial["id"])
    return [(trial["hparams"], trial["state"], trial["totalBatchesProcessed"]) for trial in trials]


async def check_search(cluster: Platform, experiment_id: int) -> None:
    """Its record is that of one search, without a gap."""
    lines = (await cluster.http.get(f"/api/v1/experiments/{experiment_id}/search/history")).text.splitlines()
    header, decisions = parse_lines(lines)
    assert replay(header.new_search(), decisions) is None
    assert [decision.number for decision in decisions] == list(range(1, len(decisions) + 1))


async def start_command(cluster: Platform, line: str, **more: Any) -> str:
    body = {"config": {"entrypoint": ["sh", "-c", line], "resources": {"resource_pool": "main", "slots": 1}, **more}}
    return (await cluster.post("/api/v1/commands", body))["command"]["id"]


async def test_running_experiments_go_on_where_nothing_is_left(
    tmp_path: Path, database_url: str, second_url: str, temporal_address: str
) -> None:
    async with at_work(tmp_path, database_url, temporal_address, "first") as cluster:
        undisturbed = await cluster.create(of(RANDOM, 0.0), {"train.py": SAVES})
        await cluster.finish(undisturbed)
        expected = await results(cluster, undisturbed)
        random = await cluster.create(of(RANDOM, 0.0, tmp_path / "go"), {"train.py": SAVES})
        halving = await cluster.create(of(ASHA, 0.15), {"train.py": SAVES})
        stopping = await cluster.create(of(STOPPING, 0.15), {"train.py": EPOCHS})
        held = await cluster.create(of(RANDOM, 0.0), {"train.py": SAVES}, activate=False)
        paused = await cluster.create(of({"max_length": 20}, 0.1), {"train.py": SAVES})
        await cluster.until_reported(paused)
        await cluster.command(paused, "pause")
        lost = await start_command(cluster, "sleep 600")
        await cluster.until(lambda: _runs(cluster, lost), what="the command runs")
        for experiment_id in (random, halving, stopping):
            await cluster.until_reported(experiment_id)
        await cluster.until(lambda: _saved(cluster, random, 4) == 2, what="two trials wait behind their fourth step")
        before = {experiment_id: await cluster.trials(experiment_id) for experiment_id in (random, halving, stopping)}
        await asyncio.to_thread(write, settings(BackupSettings, database_url, tmp_path), tmp_path / "backup")
        late = await cluster.create(of(RANDOM, 0.0), {"train.py": SAVES}, activate=False)  # which is lost
    shutil.rmtree(tmp_path / "main-first")
    (tmp_path / "go").touch()

    began = time.monotonic()
    revived = await asyncio.to_thread(bring_back, settings(RestoreSettings, second_url, tmp_path), tmp_path / "backup")
    restored_s = time.monotonic() - began
    assert revived.experiments == [random, halving, stopping, paused]
    assert (revived.tasks, revived.lost_tasks) == ([], [lost])
    second = tmp_path / "second"
    second.mkdir()
    with temporal_server(second) as address:
        async with at_work(tmp_path, second_url, address, "second") as cluster:
            for experiment_id in (random, halving, stopping):
                assert (await cluster.finish(experiment_id, 90))["state"] == "STATE_COMPLETED"
                await check_search(cluster, experiment_id)
            print(
                f"\nrestored within {restored_s:.2f} s, all three were over {time.monotonic() - began:.1f} s after it began"
            )
            assert await results(cluster, random) == [
                ({**hparams, "go": str(tmp_path / "go")}, state, steps) for hparams, state, steps in expected
            ], "the same points, trained as far"
            for experiment_id in (random, halving, stopping):
                after = {trial["id"]: trial for trial in await cluster.trials(experiment_id)}
                for trial in before[experiment_id]:
                    assert after[trial["id"]]["hparams"] == trial["hparams"]
                    assert after[trial["id"]]["restarts"] == 0
            resumed = [trial["id"] for trial in await cluster.trials(random) if len(trial["taskIds"]) == 2]
            assert resumed, "some were interrupted"
            logs = [await cluster.logs(trial_id) for trial_id in resumed]
            assert all(any("restored from a backup" in line for line in lines) for lines in logs)
            assert ["resumed at 4" in lines for lines in logs] == [True, True], "at its checkpoint, not anew"
            for trial_id in resumed:
                steps = [report["totalBatches"] for report in await cluster.metrics(trial_id)]
                assert steps == list(range(1, 9)), "each step is there once"

            for experiment_id in (held, paused):
                assert (await cluster.experiment(experiment_id))["state"] == "STATE_PAUSED"
                await cluster.command(experiment_id, "activate")
                assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
            command = (await cluster.get(f"/api/v1/commands/{lost}"))["command"]
            assert command["state"] == "STATE_TERMINATED"
            assert "it may have done part of its work" in (await cluster.http.get(f"/api/v1/tasks/{lost}/logs")).text
            assert await cluster.create(of(RANDOM, 0.0), {"train.py": SAVES}) > late + 900, "no number means two things"


def _saved(cluster: Platform, experiment_id: int, step: int) -> int:
    """How many of its trials have saved this step."""
    saved = select(Checkpoint.uuid).where(
        Checkpoint.experiment_id == experiment_id, Checkpoint.steps_completed == step, Checkpoint.state == "COMPLETED"
    )
    with cluster.database.read() as session:
        return len(session.scalars(saved).all())


async def _runs(cluster: Platform, command_id: str) -> bool:
    return (await cluster.get(f"/api/v1/commands/{command_id}"))["command"]["state"] == "STATE_RUNNING"


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.fixture
def copied(database_url: str, tmp_path: Path) -> Path:
    """A backup of a cluster that has done nothing yet."""
    database = Database(database_url)
    migrate(database)
    with database.write() as session:
        seed(session, cluster_name="test", admin_password_hash=None, pools=["default"])
    database.close()
    write(settings(BackupSettings, database_url, tmp_path), tmp_path / "backup")
    return tmp_path / "backup"


def test_backup_is_closed_to_others_and_is_never_written_over(copied: Path, database_url: str, tmp_path: Path) -> None:
    assert copied.stat().st_mode & 0o077 == 0
    assert {path.stat().st_mode & 0o077 for path in copied.iterdir() if path.name != "backup.json"} == {0}
    with pytest.raises(GivenUp, match="it exists: expected the name of a new folder"):
        write(settings(BackupSettings, database_url, tmp_path), copied)
    assert sorted(path.name for path in tmp_path.iterdir() if "backup" in path.name) == ["backup"], (
        "nothing is left over"
    )


def test_database_of_nobody_is_not_backed_up(second_url: str, tmp_path: Path) -> None:
    Database(second_url).close()
    with pytest.raises(GivenUp, match=r"without our tables|unable to open"):
        write(settings(BackupSettings, second_url, tmp_path), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_damaged_backup_is_refused(copied: Path, second_url: str, tmp_path: Path) -> None:
    path = next(path for path in copied.iterdir() if path.name.startswith("database."))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(GivenUp, match=f"{path.name}: it is missing or damaged"):
        bring_back(settings(RestoreSettings, second_url, tmp_path), copied)
    with pytest.raises(GivenUp, match="expected the folder of a backup"):
        bring_back(settings(RestoreSettings, second_url, tmp_path), tmp_path)


def test_database_with_tables_and_later_schema_are_refused(
    copied: Path, database_url: str, second_url: str, tmp_path: Path
) -> None:
    with pytest.raises(GivenUp, match="expected an empty one"):
        bring_back(settings(RestoreSettings, database_url, tmp_path), copied)
    note = json.loads((copied / "backup.json").read_text())
    (copied / "backup.json").write_text(json.dumps(note | {"schema_revision": "9999"}))
    with pytest.raises(GivenUp, match="schema 9999, and this release knows those up to"):
        bring_back(settings(RestoreSettings, second_url, tmp_path), copied)


def test_one_experiment_whose_records_do_not_fit_does_not_keep_the_others(
    database_url: str, second_url: str, tmp_path: Path
) -> None:
    database = Database(database_url)
    migrate(database)
    with database.write() as session:
        seed(session, cluster_name="test", admin_password_hash=None, pools=["default"])
    user = UserPrincipal(user_id=1, username="admin", is_admin=True)
    created = Creator(database, ApiSettings(database_url=database_url, agent_token="x", storage_path=str(tmp_path)))  # pyright: ignore[reportArgumentType]
    wanted = CreateExperimentRequest(config=json.dumps(config()), activate=True)
    ids = [created.create(wanted, user, None).experiment_id for _ in range(3)]
    with database.write() as session:
        session.execute(update(Outbox).values(sent_at=utc_now()))
        session.execute(delete(SearchDecision).where(SearchDecision.experiment_id == ids[1]))
    database.close()
    write(settings(BackupSettings, database_url, tmp_path), tmp_path / "backup")
    revived = bring_back(settings(RestoreSettings, second_url, tmp_path), tmp_path / "backup")
    assert (revived.experiments, revived.broken, revived.trials) == ([ids[0], ids[2]], [ids[1]], 2)
    restored = Database(second_url)
    with restored.read() as session:
        broken = session.get_one(Experiment, ids[1])
        assert (broken.state, broken.ended_at is None) == ("ERROR", False)
        assert "its records do not fit together" in broken.error
        starts = session.scalars(
            select(Outbox.workflow_id).where(Outbox.kind == "start_experiment", Outbox.sent_at.is_(None))
        )
        assert sorted(starts) == [f"experiment-{ids[0]}", f"experiment-{ids[2]}"]
    restored.close()


async def test_namespace_with_workflows_is_refused(
    copied: Path, second_url: str, temporal_address: str, tmp_path: Path
) -> None:
    client = await Client.connect(temporal_address)
    await client.start_workflow("Experiment", id="experiment-1", task_queue="nobody")
    wanted = settings(RestoreSettings, second_url, tmp_path, temporal_address)
    arguments = argparse.Namespace(folder=str(copied), no_temporal_check=False, no_file_check=False)
    deadline = time.monotonic() + 20
    while (await client.count_workflows()).count == 0:  # it is listed a moment after its start
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    with pytest.raises(GivenUp, match="expected a namespace without workflows, and it has 1"):
        await restore.main(arguments, wanted, asyncio.Event())


def test_files_that_are_gone_are_missing(tmp_path: Path) -> None:
    def kept(uuid: str, folder: str) -> Kept:
        storage = {"type": "shared_fs", "host_path": folder}
        return Kept(uuid, len(folder), 1, "1.a", True, "COMPLETED", storage, {"weights": 3, "metadata.json": 2})

    uuids = [f"{number}0000000-0000-4000-8000-000000000000" for number in range(3)]
    for uuid in uuids[:2]:
        (tmp_path / uuid).mkdir()
        (tmp_path / uuid / "metadata.json").write_text("{}")
        (tmp_path / uuid / "weights").write_text("abc")
    (tmp_path / uuids[1] / "weights").unlink()
    wanted = [kept(uuid, str(tmp_path)) for uuid in uuids] + [kept(uuids[0], "/somewhere")]
    whole, partial, gone, elsewhere = checked(wanted, [str(tmp_path)])
    assert (whole.missing, partial.missing) == ([], ["weights"])
    assert gone.missing == ["metadata.json", "weights"]
    assert (elsewhere.missing, bool(elsewhere.unknown)) == ([], True), "what can't be seen is not called missing"
