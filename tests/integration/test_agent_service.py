"""Agents and slots leave service and come back, and files of checkpoints go, on a running platform."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from temporalio.worker import _worker

from tests.kit.platform import AGENT_TOKEN, Platform
from tests.kit.scripts import TRAIN, config


async def start(cluster: Platform) -> tuple[int, int]:
    """A running experiment of one slow trial, which takes 5 s of a fast machine, and the trial."""
    experiment_id = await cluster.create(
        config({"max_length": 50}, hyperparameters={"sleep": 0.1}), {"train.py": TRAIN}
    )
    return experiment_id, await cluster.until_reported(experiment_id)


async def test_trial_moves_on_when_its_agent_leaves_service(cluster: Platform) -> None:
    experiment_id, trial_id = await start(cluster)
    [agent] = (await cluster.get("/api/v1/agents"))["agents"]
    await cluster.post(f"/api/v1/agents/{agent['id']}/disable")

    async def waits() -> bool:
        return (await cluster.trials(experiment_id))[0]["state"] == "STATE_QUEUED"

    await cluster.until(waits, what="the trial has left, and waits")
    assert (await cluster.trials(experiment_id))[0]["restarts"] == 0
    await cluster.post(f"/api/v1/agents/{agent['id']}/enable")
    ended = await cluster.finish(experiment_id)
    assert ended["state"] == "STATE_COMPLETED"
    steps = [int(line.rsplit(" ", 1)[1]) for line in await cluster.logs(trial_id) if " step " in f" {line}"]
    assert steps == sorted(set(steps)), "nothing is trained twice"


async def test_trial_moves_to_another_slot_when_its_gpu_is_in_error(cluster: Platform) -> None:
    experiment_id, trial_id = await start(cluster)
    [agent] = (await cluster.get("/api/v1/agents"))["agents"]
    [held] = [name for name, slot in agent["slots"].items() if slot["container"] is not None]

    async def report(*broken: dict[str, Any]) -> dict[str, Any]:
        body = {"pool": cluster.pool, "devices": [{}, {}], "brokenSlots": broken}
        path = f"/api/v1/undeterred/agents/{agent['id']}/hello"
        done = await cluster.http.post(path, json=body, headers={"Authorization": f"Bearer {AGENT_TOKEN}"})
        assert done.status_code == 200, done.text
        [now] = (await cluster.get("/api/v1/agents"))["agents"]
        return now

    now = await report({"slot": int(held), "problem": "Xid 79: the driver reports a critical error"})
    assert (now["slots"][held]["enabled"], now["slots"][held]["problem"][:6]) == (False, "Xid 79")
    assert f"slot {held} is in error: Xid 79" in now["label"]
    ended = await cluster.finish(experiment_id)
    assert ended["state"] == "STATE_COMPLETED"
    [trial] = await cluster.trials(experiment_id)
    assert trial["restarts"] == 0
    lines = await cluster.logs(trial_id)
    assert any(line.startswith("preempted at") for line in lines), "it left with a checkpoint, and went on elsewhere"
    assert (await report())["slots"][held]["enabled"] is True


async def test_trial_stays_when_its_slot_is_drained(cluster: Platform) -> None:
    experiment_id, _ = await start(cluster)
    [agent] = (await cluster.get("/api/v1/agents"))["agents"]
    for slot in agent["slots"]:
        await cluster.post(f"/api/v1/agents/{agent['id']}/slots/{slot}/disable", {"drain": True})
    second = await cluster.create(config(), {"train.py": TRAIN})
    assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
    assert (await cluster.trials(second))[0]["state"] == "STATE_QUEUED"
    for slot in agent["slots"]:
        await cluster.post(f"/api/v1/agents/{agent['id']}/slots/{slot}/enable")
    assert (await cluster.finish(second))["state"] == "STATE_COMPLETED"


async def test_files_go_from_storage_when_they_match(cluster: Platform) -> None:
    experiment_id = await cluster.create(config(), {"train.py": TRAIN})
    await cluster.finish(experiment_id)
    listed = await cluster.get(f"/api/v1/experiments/{experiment_id}/checkpoints", sortBy="SORT_BY_BATCH_NUMBER")
    checkpoint = listed["checkpoints"][-1]  # the policy keeps the latest one
    storage = checkpoint["training"]["experimentConfig"]["checkpoint_storage"]
    folder = Path(storage["host_path"]) / (storage.get("storage_path") or "") / checkpoint["uuid"]
    files = [name for name in checkpoint["resources"] if not name.endswith("/")]
    doomed, *kept = sorted(files)
    assert (folder / doomed).exists()
    assert kept
    await cluster.post("/api/v1/checkpoints/rm", {"checkpointUuids": [checkpoint["uuid"]], "checkpointGlobs": [doomed]})

    async def shown() -> dict[str, Any]:
        return (await cluster.get(f"/api/v1/checkpoints/{checkpoint['uuid']}"))["checkpoint"]

    async def is_recorded() -> bool:
        return (await shown())["state"] == "STATE_PARTIALLY_DELETED"

    await cluster.until(is_recorded, what="the removal is recorded")
    assert not (folder / doomed).exists(), "the files go before the record says so"
    assert all((folder / name).exists() for name in kept)
    assert sorted(name for name in (await shown())["resources"] if not name.endswith("/")) == kept


async def test_start_of_an_agent_does_not_read_the_code_of_each_module_anew(
    cluster: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker without a build ID hashes it: 0.3 s of processor time, and more where nothing is compiled."""

    def unwanted(**_: Any) -> str:
        pytest.fail("a worker of the agent has no build ID")

    monkeypatch.setattr(_worker, "load_default_build_id", unwanted)
    await cluster.start_agent("agent-b")
