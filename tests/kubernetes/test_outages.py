"""What becomes of trials while the cluster's API server is out of reach, or the agent is killed again and again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kit.platform import Platform
from tests.kit.scripts import TRAIN, config
from tests.kubernetes.relay import Relay
from tests.kubernetes.test_pool import IN_IMAGE, platform_of_cluster, pods, start_agent

pytestmark = pytest.mark.long

#: 10 minutes in the long form: longer than any time-out of ours.
AWAY_S = 600 if os.environ.get("UNDETERRED_SOAK") else 20


@pytest.fixture
async def relay(tmp_path: Path) -> AsyncIterator[Relay]:
    async with Relay(tmp_path).serving() as relay:
        yield relay


@pytest.fixture
async def cluster(
    relay: Relay, temporal_address: str, postgres_database: str, tmp_path: Path
) -> AsyncIterator[Platform]:
    async with platform_of_cluster(temporal_address, postgres_database, tmp_path) as running:
        await start_agent(running, kubeconfig=relay.kubeconfig)
        yield running


async def created(cluster: Platform, steps: int) -> int:
    wanted = config({"max_length": steps}, hyperparameters={"sleep": 0.1}, max_restarts=0, **IN_IMAGE)
    return await cluster.create(wanted, {"train.py": TRAIN})


async def check_nothing_was_lost(cluster: Platform, experiment_id: int, steps: int) -> None:
    """Every step was done once, by one pod, and no restart was counted."""
    assert (await cluster.finish(experiment_id, 120))["state"] == "STATE_COMPLETED"
    [trial] = await cluster.trials(experiment_id)
    assert (trial["restarts"], trial["totalBatchesProcessed"]) == (0, steps)
    lines = [line for line in await cluster.logs(trial["id"]) if line.startswith("step ")]
    assert lines == [f"step {number}" for number in range(1, steps + 1)]


@pytest.mark.timeout(60 * 30)
async def test_trials_go_on_while_the_clusters_api_server_is_out_of_reach(cluster: Platform, relay: Relay) -> None:
    """One ends meanwhile, one goes on, one is killed, one is submitted: each ends as it would have."""
    ends, goes_on, killed = [await created(cluster, steps) for steps in (60, AWAY_S * 10 + 100, 20_000)]
    for experiment_id in (ends, goes_on, killed):
        await cluster.until_reported(experiment_id)
    relay.cut()
    await cluster.command(killed, "kill")
    submitted = await created(cluster, 5)
    await asyncio.sleep(AWAY_S)
    assert (await cluster.experiment(ends))["state"] == "STATE_RUNNING"
    relay.mend()
    await check_nothing_was_lost(cluster, ends, 60)
    await check_nothing_was_lost(cluster, submitted, 5)
    assert (await cluster.finish(killed, 60))["state"] == "STATE_CANCELED"
    await check_nothing_was_lost(cluster, goes_on, AWAY_S * 10 + 100)


@pytest.mark.timeout(600)
async def test_agent_that_is_cut_off_while_it_launches_makes_no_second_pod(cluster: Platform, relay: Relay) -> None:
    """The connection goes at each step of a launch: there is one Job an allocation, and each trial has one pod."""
    for pause in (0.0, 0.02, 0.05, 0.1, 0.2, 0.4):
        experiment_id = await created(cluster, 3)
        await asyncio.sleep(pause)
        relay.cut()
        await asyncio.sleep(0.5)
        relay.mend()
        await check_nothing_was_lost(cluster, experiment_id, 3)
        [trial] = await cluster.trials(experiment_id)
        assert len(await pods(trial["id"])) <= 1
