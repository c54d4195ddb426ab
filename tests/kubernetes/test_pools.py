"""Pools of hosts and of clusters side by side, on one control plane."""

from __future__ import annotations

import pytest

from tests.integration.test_pools import move, new_pool
from tests.integration.test_scheduling import steps_of
from tests.kit.platform import Platform
from tests.kit.scripts import TRAIN, config
from tests.kubernetes.test_namespaces import team
from tests.kubernetes.test_pool import IN_IMAGE, cluster, pods, start_agent

__all__ = ["cluster", "team"]
pytestmark = pytest.mark.long


async def test_experiment_moves_from_a_cluster_to_a_host_and_to_another_cluster(
    cluster: Platform,
    team: str,
) -> None:
    """It saves, leaves, and goes on: no step is lost, none is done twice, and no restart is counted."""
    hosts, other = await new_pool(cluster, "hosts"), await new_pool(cluster, "other")
    host = await cluster.start_agent("host", slots=1, pool=hosts)
    second = await start_agent(cluster, "two", pool=other, kube_namespace=team)
    experiment_id = await cluster.create(
        config({"max_length": 200}, hyperparameters={"sleep": 0.1}, max_restarts=0, **IN_IMAGE), {"train.py": TRAIN}
    )
    trial_id = await cluster.until_reported(experiment_id)
    [pod] = await pods(trial_id)
    assert pod["metadata"]["namespace"] == "default"

    for pool, agent_id in ((hosts, host), (other, second)):
        await move(cluster, experiment_id, pool)

        async def goes_on(agent_id: str = agent_id) -> bool:
            runs = (await cluster.get(f"/api/v1/undeterred/trials/{trial_id}/why"))["facts"]["runs"]
            found = await cluster.logs(trial_id)
            lefts = [line.rpartition(" ")[2] for line in found if line.startswith("preempted at")]
            return runs[-1]["agents"] == [agent_id] and f"resumed at {lefts[-1]}" in found

        await cluster.until(goes_on, what=f"it goes on at {agent_id}")
    # the first pod, which has ended, may not be removed yet
    running = [pod for pod in await pods(trial_id) if pod["status"]["phase"] == "Running"]
    assert [pod["metadata"]["namespace"] for pod in running] == [team]
    ended = await cluster.finish(experiment_id, 120)
    assert (ended["state"], ended["resourcePool"]) == ("STATE_COMPLETED", other)
    [trial] = await cluster.trials(experiment_id)
    assert trial["restarts"] == 0
    assert steps_of(await cluster.logs(trial_id)) == list(range(1, 201))
