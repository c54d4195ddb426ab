"""What becomes of experiments that are over: checkpoints are collected, and experiments deleted, on real storage."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from sqlalchemy import select
from temporalio import activity
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from api.settings import TemporalSettings
from api.temporal.commands import Commands
from api.temporal.connection import Connection
from database import retention
from database.models import Checkpoint
from determined.common.storage.hosted import Claim, HostedFolder
from tests.kit.patience import PATIENCE
from tests.kit.platform import Platform
from tests.kit.scripts import TRAIN, config
from tests.kit.servers import temporal_server
from workflows import names
from workflows.cleanup import ExperimentDeletion
from workflows.messages import (
    ClaimedCheckpoints,
    CleanupOrder,
    DeletionFailed,
    ErasedExperiment,
    RemovedFiles,
    RemoveFiles,
    Timing,
)

#: Saves a checkpoint at each step; the accuracy is best in the middle.
SAVES = """
import json
import determined as det
from determined import core

info = det.get_cluster_info()
with core.init() as context:
    steps = 0
    if info.latest_checkpoint:
        steps = context.checkpoint.get_metadata(info.latest_checkpoint)["steps_completed"]
        print(f"resumed at {steps}", flush=True)
    for op in context.searcher.operations():
        while steps < op.length:
            steps += 1
            accuracy = -abs(steps - 3)
            context.train.report_validation_metrics(steps, {"accuracy": accuracy})
            with context.checkpoint.store_path({"steps_completed": steps}) as (path, _):
                (path / "state.json").write_text("{}")
        op.report_completed(accuracy)
"""


async def kept_steps(cluster: Platform, experiment_id: int) -> list[int]:
    """Of the checkpoints that are not deleted, or about to be."""
    answer = await cluster.get(f"/api/v1/experiments/{experiment_id}/checkpoints")
    left = [checkpoint for checkpoint in answer["checkpoints"] if checkpoint["state"] != "STATE_DELETED"]
    return sorted(checkpoint["metadata"]["steps_completed"] for checkpoint in left)


def folders(cluster: Platform) -> set[str]:
    """Of checkpoints. Each has its manifest beside it, and no manifest is left alone.

    The folder that has the cluster's files for TensorBoard is not one of them.
    """
    beside = (cluster.folder / "checkpoints").iterdir()
    names = {path.name for path in beside if not (path / "tensorboard").is_dir()}
    found = {name for name in names if not name.endswith(".manifest.json")}
    assert names - found == {f".{name.removeprefix('.').removesuffix('.deleted')}.manifest.json" for name in found}
    return found


async def until_kept(cluster: Platform, experiment_id: int, *steps: int) -> None:
    async def is_so() -> bool:
        return await kept_steps(cluster, experiment_id) == list(steps) and _is_settled(cluster, experiment_id)

    await cluster.until(is_so, what=f"only the checkpoints of the steps {steps} are left")


def _is_settled(cluster: Platform, experiment_id: int) -> bool:
    """Whether the files of all that is shown as deleted are gone."""
    with cluster.database.read() as session:
        waiting = select(Checkpoint).where(Checkpoint.experiment_id == experiment_id, Checkpoint.state == "DELETING")
        return session.scalar(waiting.limit(1)) is None


def storage(cluster: Platform, **policy: int) -> dict[str, Any]:
    return {"type": "shared_fs", "host_path": str(cluster.folder / "checkpoints"), **policy}


async def run(cluster: Platform, searcher: dict[str, Any] | None = None, **policy: int) -> int:
    wanted = config({"max_length": 6} | (searcher or {}), checkpoint_storage=storage(cluster, **policy))
    experiment_id = await cluster.create(wanted, {"train.py": SAVES})
    assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
    return experiment_id


async def test_best_and_latest_stay_when_an_experiment_ends(cluster: Platform) -> None:
    experiment_id = await run(cluster)
    await until_kept(cluster, experiment_id, 3, 6)
    answer = await cluster.get(f"/api/v1/experiments/{experiment_id}/checkpoints")
    deleted = [c for c in answer["checkpoints"] if c["state"] == "STATE_DELETED"]
    assert len(deleted) == 4, "their rows stay"
    assert all(c["resources"] == {} for c in deleted)
    assert folders(cluster) == {c["uuid"] for c in answer["checkpoints"]} - {c["uuid"] for c in deleted}
    assert (await cluster.experiment(experiment_id))["checkpointCount"] == 2


async def test_changed_policy_acts_at_once_and_its_preview_tells_the_truth(cluster: Platform) -> None:
    experiment_id = await run(cluster, save_trial_best=3, save_trial_latest=2)
    await until_kept(cluster, experiment_id, 2, 3, 4, 5, 6)
    policy = {"save_experiment_best": 0, "save_trial_best": 1, "save_trial_latest": 0}
    preview = await cluster.get(f"/experiments/{experiment_id}/preview_gc", **policy)
    assert [row["StepsCompleted"] for row in preview["checkpoints"]] == [2, 4, 5, 6]
    assert await kept_steps(cluster, experiment_id) == [2, 3, 4, 5, 6], "a preview changes nothing"
    wanted = {"saveExperimentBest": 0, "saveTrialBest": 1, "saveTrialLatest": 0}
    patched = await cluster.http.patch(f"/api/v1/experiments/{experiment_id}", json={"checkpointStorage": wanted})
    assert patched.json()["experiment"]["config"]["checkpoint_storage"]["save_trial_latest"] == 0
    await until_kept(cluster, experiment_id, 3)
    refused = await cluster.http.patch(
        f"/api/v1/experiments/{experiment_id}", json={"checkpointStorage": {"saveTrialBest": -1}}
    )
    assert refused.status_code == 400
    assert "save_trial_best: -1: expected 0 or more" in refused.json()["message"]


async def test_checkpoint_stays_while_another_experiment_starts_from_it(cluster: Platform) -> None:
    experiment_id = await run(cluster, save_trial_best=6)
    found = (await cluster.get(f"/api/v1/experiments/{experiment_id}/checkpoints"))["checkpoints"]
    source = next(c["uuid"] for c in found if c["metadata"]["steps_completed"] == 4)
    user = await run(cluster, {"source_checkpoint_uuid": source, "max_length": 6}, save_trial_latest=0)
    wanted = {"saveExperimentBest": 0, "saveTrialBest": 0, "saveTrialLatest": 0}
    await cluster.http.patch(f"/api/v1/experiments/{experiment_id}", json={"checkpointStorage": wanted})
    await until_kept(cluster, experiment_id, 4)
    for path, body in ((f"experiments/{experiment_id}", None), ("checkpoints", {"checkpointUuids": [source]})):
        refused = await cluster.http.request("DELETE", f"/api/v1/{path}", json=body)
        assert refused.status_code == 400, refused.text
        assert f"experiment {user}" in refused.json()["message"]
    assert (await cluster.http.delete(f"/api/v1/experiments/{user}")).status_code == 200
    await cluster.until(lambda: gone(cluster, user), what="the user is deleted")
    await until_kept(cluster, experiment_id)  # nobody needs it any more
    assert folders(cluster) == set()


async def _reported(cluster: Platform, trial_id: int) -> bool:
    return len(await cluster.metrics(trial_id)) > 1


async def gone(cluster: Platform, experiment_id: int) -> bool:
    return (await cluster.http.get(f"/api/v1/experiments/{experiment_id}")).status_code == 404


async def test_nothing_is_left_when_an_experiment_is_deleted(cluster: Platform) -> None:
    experiment_id = await cluster.create(
        config({"max_length": 1000}, hyperparameters={"sleep": 0.05}), {"train.py": TRAIN}
    )
    await cluster.until_state(experiment_id, "RUNNING")
    refused = await cluster.http.delete(f"/api/v1/experiments/{experiment_id}")
    assert refused.status_code == 400
    assert "cannot delete experiment in ACTIVE state" in refused.json()["message"]
    trial_id = (await cluster.trials(experiment_id))[0]["id"]
    await cluster.until(lambda: _reported(cluster, trial_id), what="it has something to save")
    await cluster.command(experiment_id, "cancel")
    await cluster.finish(experiment_id)
    assert len(folders(cluster)) == 1
    for _ in range(2):  # a repeat has no effect
        assert (await cluster.http.delete(f"/api/v1/experiments/{experiment_id}")).status_code in (200, 404)
    await cluster.until(lambda: gone(cluster, experiment_id), what="the experiment is gone")
    assert folders(cluster) == set()
    assert (await cluster.http.get(f"/api/v1/trials/{trial_id}")).status_code == 404
    left = await cluster.get("/api/v1/experiments", limit=-1)
    assert experiment_id not in [experiment["id"] for experiment in left["experiments"]]
    with cluster.database.read() as session:
        from sqlalchemy import func, select

        from database.models import Metric, TaskLog

        assert session.scalar(select(func.count()).select_from(Metric).where(Metric.trial_id == trial_id)) == 0
        logs = select(func.count()).select_from(TaskLog).where(TaskLog.task_id.startswith(f"{experiment_id}."))
        assert session.scalar(logs) == 0


async def test_deletion_fails_with_its_reason_and_can_be_repeated(
    cluster: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment_id = await run(cluster)
    await until_kept(cluster, experiment_id, 3, 6)

    def refuse(place: HostedFolder, claim: Claim) -> None:
        raise PermissionError(13, "Permission denied")  # root may do everything: this can't be had for real

    with monkeypatch.context() as patched:
        patched.setattr(HostedFolder, "remove", refuse)
        await cluster.http.delete(f"/api/v1/experiments/{experiment_id}")
        await cluster.until_state(experiment_id, "DELETE_FAILED", timeout_s=100)
    failed = await cluster.experiment(experiment_id)
    assert "Permission denied" in failed["error"]
    assert (await cluster.http.delete(f"/api/v1/experiments/{experiment_id}")).status_code == 200
    await cluster.until(lambda: gone(cluster, experiment_id), what="the experiment is gone")
    assert folders(cluster) == set()


async def test_deletion_is_repeated_though_the_one_that_failed_has_not_closed_yet(tmp_path: Path) -> None:
    order = CleanupOrder(experiment_id=1, everything=True)
    tries: list[str] = []
    with temporal_server(tmp_path) as address:
        commands = Commands(
            Connection(TemporalSettings(temporal_address=address)), Timing(removal_pauses_s=()), AsyncMock()
        )

        @activity.defn
        async def claim_checkpoints(_: CleanupOrder) -> ClaimedCheckpoints:
            tries.append("claimed")
            return (
                ClaimedCheckpoints(uuids=["u"], pool="p", removal_id="r") if len(tries) == 1 else ClaimedCheckpoints()
            )

        @activity.defn
        async def remove_files(_: RemoveFiles) -> RemovedFiles:
            return RemovedFiles(removal_id="r", uuids=[], problems=["Permission denied"])

        @activity.defn
        async def note_deletion_failed(_: DeletionFailed) -> None:
            tries.append("failed")  # it is recorded: a user sees it and tries again
            await commands.delete_experiment(order)

        @activity.defn
        async def erase_experiment(_: CleanupOrder) -> ErasedExperiment:
            tries.append("erased")
            return ErasedExperiment()

        client = await commands.client()
        own = [claim_checkpoints, note_deletion_failed, erase_experiment]
        async with (
            Worker(
                client, task_queue=names.ORCHESTRATOR_QUEUE, workflows=[ExperimentDeletion], activities=own,
                workflow_runner=UnsandboxedWorkflowRunner(),
            ),
            Worker(client, task_queue=names.storage_queue("p"), activities=[remove_files]),
        ):  # fmt: skip
            await commands.delete_experiment(order)
            handle = client.get_workflow_handle(names.deletion_workflow(1), result_type=bool)
            async with asyncio.timeout(20 * PATIENCE):
                assert await handle.result()
    assert tries == ["claimed", "failed", "claimed", "erased"]


async def test_collection_goes_on_where_a_crash_left_it(cluster: Platform) -> None:
    experiment_id = await run(cluster, save_trial_best=6)
    with cluster.database.write() as session:
        row = session.get_one(retention.Experiment, experiment_id)
        row.config = row.config | {"checkpoint_storage": row.config["checkpoint_storage"] | {"save_trial_best": 1}}
    with cluster.database.write() as session:  # claimed, then the orchestrator died; one was half removed
        claimed = retention.claim(session, experiment_id, everything=False, limit=2, roots=[str(cluster.folder)])
    root = cluster.folder / "checkpoints"
    (root / claimed[0]).rename(root / f".{claimed[0]}.deleted")
    shown = await cluster.get(f"/api/v1/checkpoints/{claimed[0]}")
    assert shown["checkpoint"]["state"] == "STATE_DELETED"
    await cluster.post(f"/api/v1/undeterred/experiments/{experiment_id}/gc")
    await until_kept(cluster, experiment_id, 3, 6)
    assert len(folders(cluster)) == 2, "nothing half-done is left"
