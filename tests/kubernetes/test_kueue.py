"""Under a real Kueue: Jobs wait in its queue, and a trial that it preempts saves first and goes on later."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.platform import Platform
from tests.kit.scripts import TRAIN, config
from tests.kubernetes.images import TRIAL_IMAGE
from tests.kubernetes.kueue import applied, kubectl, kueue, queue
from tests.kubernetes.test_pool import IN_IMAGE, SLOT_CPU, platform_of_cluster, start_agent

pytestmark = pytest.mark.long

QUEUE = "research"


@pytest.fixture(scope="module")
def kueues(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with kueue(tmp_path_factory.mktemp("kueue")):
        applied(*queue(QUEUE, slots=2, cpu_of_slot=SLOT_CPU, memory_mib=512))
        yield


@pytest.fixture
async def cluster(
    kueues: None, temporal_address: str, postgres_database: str, tmp_path: Path
) -> AsyncIterator[Platform]:
    async with platform_of_cluster(temporal_address, postgres_database, tmp_path) as running:
        await start_agent(running, kueue_queue=QUEUE)
        yield running


def urgent(name: str, seconds: int) -> dict[str, Any]:
    """A Job of another user of the queue, which takes all of it for some seconds."""
    amounts = {"cpu": f"{round(SLOT_CPU * 2000)}m", "memory": "900Mi"}
    container = {
        "name": "main",
        "image": TRIAL_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", f"import time; time.sleep({seconds})"],
        "resources": {"requests": amounts, "limits": amounts},
    }
    labels = {"kueue.x-k8s.io/queue-name": QUEUE, "kueue.x-k8s.io/priority-class": "urgent"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {"suspend": True, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    }


@pytest.mark.timeout(900)
async def test_trial_that_kueue_preempts_saves_first_and_goes_on_when_it_is_admitted_again(cluster: Platform) -> None:
    experiment_id = await cluster.create(
        config({"max_length": 80}, hyperparameters={"sleep": 0.1}, max_restarts=0, **IN_IMAGE), {"train.py": TRAIN}
    )
    trial_id = await cluster.until_reported(experiment_id)
    applied(urgent("of-others", 8))

    async def said(text: str) -> bool:
        return any(line.startswith(text) for line in await cluster.logs(trial_id))

    async def waits() -> bool:
        found = json.dumps(await cluster.get(f"/api/v1/undeterred/trials/{trial_id}/why"))
        return f"Kueue's queue {QUEUE} has not admitted it yet" in found

    await cluster.until(lambda: said("preempted at"), 60, what="the trial has left with a checkpoint")
    await cluster.until(waits, 60, what="`why` says that it waits in the queue")
    assert (await cluster.finish(experiment_id, 120))["state"] == "STATE_COMPLETED"
    [trial] = await cluster.trials(experiment_id)
    assert (trial["restarts"], trial["totalBatchesProcessed"]) == (0, 80)
    steps = [line for line in await cluster.logs(trial_id) if line.startswith("step ")]
    assert steps == [f"step {number}" for number in range(1, 81)], "no step is lost, and none is done twice"
    others = json.loads(kubectl("get", "job", "of-others", "-o", "json"))
    assert others["status"].get("succeeded") == 1, "the urgent Job had its turn first"


@pytest.mark.timeout(600)
async def test_trials_share_the_queue_and_each_has_its_turn(cluster: Platform) -> None:
    """The pool has more slots than the queue: Kueue lets in what has room, and `kill` takes back what waits."""
    experiment_id = await cluster.create(
        config({"name": "random", "max_trials": 4, "max_length": 5}, **IN_IMAGE), {"train.py": TRAIN}
    )
    assert (await cluster.finish(experiment_id, 240))["state"] == "STATE_COMPLETED"
    trials = await cluster.trials(experiment_id)
    assert [(trial["state"], trial["restarts"]) for trial in trials] == [("STATE_COMPLETED", 0)] * 4
    waiting = await cluster.create(
        config({"max_length": 5}, resources={"slots_per_trial": 4}, **IN_IMAGE), {"train.py": TRAIN}
    )
    await asyncio.sleep(5)
    await cluster.command(waiting, "kill")
    assert (await cluster.finish(waiting, 60))["state"] == "STATE_CANCELED"
