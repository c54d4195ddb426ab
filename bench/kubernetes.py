"""What a trial costs on Kubernetes: from its submission to the first line of its code, and to its end."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from activities.launchers.kubernetes.cluster import Cluster
from bench.measure import Figure, p95
from tests.kit.platform import Platform
from tests.kit.scripts import TRAIN, config
from tests.kit.servers import postgres_server, temporal_server
from tests.kubernetes.machine import in_environment
from tests.kubernetes.test_pool import IN_IMAGE, platform_of_cluster, start_agent

_RUNS = 20


def figures() -> Iterator[Figure]:
    """One trial after the other, each a pod, the image present."""
    with (
        in_environment(),
        tempfile.TemporaryDirectory() as folder,
        temporal_server(Path(folder)) as temporal_address,
        postgres_server() as database_url,
    ):
        first, whole, requests = asyncio.run(_measured(Path(folder), temporal_address, database_url))
    note = "one at a time, PostgreSQL, cluster and platform on one machine"
    yield Figure("Kubernetes: submitted -> first line of a trial's code", first, "s", note=note)
    yield Figure("Kubernetes: the same, p95", [p95(first)], "s", goal=6.0, note=f"of {len(first)}")
    yield Figure("Kubernetes: submitted -> completed, 1 step", whole, "s", note=note)
    yield Figure("Kubernetes: requests to the cluster a trial", [requests], "", note="of the agent; a watch is one")


async def _measured(folder: Path, temporal_address: str, database_url: str) -> tuple[list[float], list[float], float]:
    counted = Counter[str]()
    first: list[float] = []
    whole: list[float] = []
    async with platform_of_cluster(temporal_address, database_url, folder) as running:
        await start_agent(running)
        with counting(counted):
            await _one(running)  # warms up
            counted.clear()
            for _ in range(_RUNS):
                took = await _one(running)
                first.append(took[0])
                whole.append(took[1])
        for agent_id in list(running.agents):
            await running.stop_agent(agent_id)
    return first, whole, sum(counted.values()) / _RUNS


class counting:
    """Counts requests of this process to a cluster, by method."""

    def __init__(self, counted: Counter[str]) -> None:
        self._counted = counted
        self._answer = Cluster._answer

    def __enter__(self) -> None:
        answer, counted = self._answer, self._counted

        def count(cluster: Cluster, method: str, *rest: Any) -> Any:
            counted[method] += 1
            return answer(cluster, method, *rest)

        setattr(Cluster, "_answer", count)  # noqa: B010

    def __exit__(self, *_: object) -> None:
        setattr(Cluster, "_answer", self._answer)  # noqa: B010


async def _one(running: Platform) -> tuple[float, float]:
    began = time.monotonic()
    experiment_id = await running.create(
        config({"max_length": 1}, **IN_IMAGE), {"train.py": 'print("begins", flush=True)\n' + TRAIN}
    )

    async def has_begun() -> bool:
        trials = await running.trials(experiment_id)
        return bool(trials) and "begins" in await running.logs(trials[0]["id"])

    await running.until(has_begun, 60, what="its first line is there")  # looks every 50 ms
    seen = time.monotonic() - began
    assert (await running.finish(experiment_id, 60))["state"] == "STATE_COMPLETED"
    return seen, time.monotonic() - began
