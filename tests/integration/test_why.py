"""Why a trial waits, on a running platform: the pool's queue, a pause, a back-off."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.platform import QUICK, Platform, platform
from tests.kit.scripts import TRAIN, config

_numbers = itertools.count(1)


async def why(cluster: Platform, kind: str, number: int) -> tuple[list[str], dict[str, Any]]:
    told = await cluster.get(f"/api/v1/undeterred/{kind}/{number}/why")
    return told["sentences"], told["facts"]


async def only_trial(cluster: Platform, experiment_id: int) -> int:
    await cluster.until(lambda: _has_trial(cluster, experiment_id), what="the trial is recorded")
    return (await cluster.trials(experiment_id))[0]["id"]


async def _has_trial(cluster: Platform, experiment_id: int) -> bool:
    return bool(await cluster.trials(experiment_id))


@pytest.fixture
async def patient(temporal_address: str, database_url: str, tmp_path: Path) -> AsyncIterator[Platform]:
    """A platform whose back-offs are long enough to be looked at."""
    timing = QUICK.model_copy(update={"restart_backoff_s": 60.0, "restart_backoff_cap_s": 60.0})
    pool = f"why{os.getpid()}x{next(_numbers)}"
    async with platform(
        temporal_address=temporal_address, database_url=database_url, folder=tmp_path, pool=pool, timing=timing
    ) as running:
        await running.start_agent()
        yield running


async def test_queued_trials_tell_their_places(cluster: Platform) -> None:
    script = "import time\ntime.sleep(600)\n"
    first = await cluster.create(config(resources={"slots_per_trial": 2}), {"train.py": script})
    await cluster.until_state(first, "RUNNING")
    running = await only_trial(cluster, first)
    assert (await why(cluster, "trials", running))[0][0].startswith(f"trial {running} has its container on ")
    second = await cluster.create(config(), {"train.py": TRAIN})
    waiting = await only_trial(cluster, second)
    place = f"trial {waiting} waits for 1 slot of pool `{cluster.pool}`: place 1 of 1 in the queue, 0 of 2 slots free"
    place += f"; slots are held by trial {running} of experiment {first} (2)"

    async def is_queued() -> bool:
        return (await why(cluster, "trials", waiting))[0][0] == place

    await cluster.until(is_queued, what="its place is told")
    third = await cluster.create(config(resources={"slots_per_trial": 8}), {"train.py": TRAIN})
    large = await only_trial(cluster, third)
    too_large = (
        f"trial {large} waits for 8 slots of pool `{cluster.pool}`: place 2 of 2 in the queue, 0 of 2 slots free; it never "
        "fits: the pool's agents are too small or too few"
    )

    async def is_told() -> bool:
        return (await why(cluster, "trials", large))[0][0] == too_large

    await cluster.until(is_told, what="it is told that it never fits")
    sentences, _ = await why(cluster, "experiments", third)
    assert sentences == [f"experiment {third} is ACTIVE", "1 trial: 1 waiting for slots", too_large]
    for experiment_id in (first, second, third):
        await cluster.command(experiment_id, "kill")
        await cluster.finish(experiment_id)
    sentences, _ = await why(cluster, "trials", large)
    assert ": its experiment was killed by admin at " in sentences[0]
    assert (await why(cluster, "experiments", third))[0][0].startswith(f"experiment {third} ended as CANCELED at ")


async def test_paused_trial_tells_by_whom(cluster: Platform) -> None:
    wanted = config({"max_length": 1000}, hyperparameters={"sleep": 0.05})
    experiment_id = await cluster.create(wanted, {"train.py": TRAIN})
    await cluster.until_state(experiment_id, "RUNNING")
    trial_id = await only_trial(cluster, experiment_id)
    await cluster.command(experiment_id, "pause")

    async def is_paused() -> bool:
        return (await why(cluster, "trials", trial_id))[0][0].startswith(f"trial {trial_id} is paused by admin at ")

    await cluster.until(is_paused, what="it is paused")
    sentences, _ = await why(cluster, "trials", trial_id)
    assert f"goes on from its newest checkpoint after `det experiment activate {experiment_id}`" in sentences
    await cluster.command(experiment_id, "kill")
    await cluster.finish(experiment_id)


async def test_trial_in_a_back_off_tells_until_when(patient: Platform) -> None:
    experiment_id = await patient.create(config(max_restarts=2), {"train.py": "import sys; sys.exit(3)"})
    trial_id = await only_trial(patient, experiment_id)

    async def backs_off() -> bool:
        return (await why(patient, "trials", trial_id))[1]["nextRunAt"] is not None

    await patient.until(backs_off, what="it backs off")
    sentences, facts = await why(patient, "trials", trial_id)
    assert sentences[0].startswith(f"trial {trial_id} waits until ")
    assert sentences[0].endswith(" before it runs again: exited with code 3")
    assert "if it fails, it starts again after 60 s: restart 2 of 2" in sentences
    assert sentences[-1] == "1 of 2 restarts spent"
    assert [run["cause"] for run in facts["runs"]] == ["user_code"]
    sentences, _ = await why(patient, "experiments", experiment_id)
    assert sentences[1] == "1 trial: 1 in a back-off"
    await patient.command(experiment_id, "kill")
    await patient.finish(experiment_id)
    sentences, facts = await why(patient, "trials", trial_id)
    assert facts["nextRunAt"] is None
    assert sentences[0].startswith(f"trial {trial_id} ended as CANCELED at ")
