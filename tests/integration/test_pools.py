"""Pools come and go on a running platform."""

from __future__ import annotations

from typing import Any

from tests.integration.test_scheduling import until_waits
from tests.platform import Platform
from tests.scripts import TRAIN, config

OURS = "/api/v1/undeterred/resource-pools"


async def new_pool(cluster: Platform, name: str, **settings: Any) -> str:
    """Make a pool; returns its name."""
    await cluster.post(OURS, {"name": name, "settings": settings})
    return name


async def start_without_slots(cluster: Platform, length: int, sleep: float = 0.0) -> int:
    """An experiment without slots that names no pool."""
    wanted = config({"max_length": length}, hyperparameters={"sleep": sleep},
                    resources={"slots_per_trial": 0, "resource_pool": ""})  # fmt: skip
    return await cluster.create(wanted, {"train.py": TRAIN})


async def test_pool_takes_what_needs_no_slots_and_goes_when_it_is_empty_and_comes_back(cluster: Platform) -> None:
    name = await new_pool(cluster, f"{cluster.pool}-aux", max_aux_containers_per_agent=1)
    agent_id = await cluster.start_agent("aux", slots=1, pool=name)
    assert (await cluster.http.patch(f"{OURS}/{name}", json={"defaultAuxPool": True})).status_code == 200
    first = await start_without_slots(cluster, 200, 0.05)
    await cluster.until_reported(first)
    second = await start_without_slots(cluster, 2)
    await until_waits(cluster, second, "has as many as it takes: `max_aux_containers_per_agent` is 1")
    slotted = await cluster.create(config(resources={"resource_pool": name}), {"train.py": TRAIN})
    assert (await cluster.finish(slotted))["resourcePool"] == name, "its slot was free all the time"
    assert (await cluster.experiment(first))["state"] == "STATE_RUNNING"
    refused = await cluster.http.delete(f"{OURS}/{name}")
    assert f"by agent {agent_id}; by experiments {first}, {second}" in refused.json()["message"]
    for experiment_id in (first, second):
        ended = await cluster.finish(experiment_id)
        assert (ended["state"], ended["resourcePool"]) == ("STATE_COMPLETED", name)
    assert (await cluster.http.patch(f"{OURS}/{cluster.pool}", json={"defaultAuxPool": True})).status_code == 200
    await cluster.stop_agent(agent_id)

    async def is_removed() -> bool:
        return (await cluster.http.delete(f"{OURS}/{name}")).status_code == 200

    await cluster.until(is_removed, what="the pool is removed")
    await new_pool(cluster, name)
    await cluster.start_agent("aux", slots=1, pool=name)
    again = await cluster.create(config(resources={"resource_pool": name}), {"train.py": TRAIN})
    assert (await cluster.finish(again))["state"] == "STATE_COMPLETED"
