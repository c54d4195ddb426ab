"""What a trial costs on Kubernetes: from its submission to the first line of its code, and to its end.

`KUBECONFIG` names a cluster whose node is this machine and has the image undeterred/trial:dev, as `make test-kubernetes`.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.measure import Figure, p95
from tests.kit.platform import Platform, platform
from tests.kit.scripts import TRAIN, config
from tests.kit.servers import postgres_server, temporal_server
from tests.kubernetes.test_launcher import BRIDGE, IMAGE

_RUNS = 20


def figures() -> Iterator[Figure]:
    """One trial after the other, each a pod, the image present."""
    with (
        tempfile.TemporaryDirectory() as folder,
        temporal_server(Path(folder)) as temporal_address,
        postgres_server() as database_url,
    ):
        first, whole = asyncio.run(_measured(Path(folder), temporal_address, database_url))
    note = "one at a time, PostgreSQL, cluster and platform on one machine"
    yield Figure("Kubernetes: submitted -> first line of a trial's code", first, "s", note=note)
    yield Figure("Kubernetes: the same, p95", [p95(first)], "s", goal=6.0, note=f"of {len(first)}")
    yield Figure("Kubernetes: submitted -> completed, 1 step", whole, "s", note=note)


async def _measured(folder: Path, temporal_address: str, database_url: str) -> tuple[list[float], list[float]]:
    Path(folder).chmod(0o777)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints").chmod(0o777)
    first: list[float] = []
    whole: list[float] = []
    async with platform(
        temporal_address=temporal_address,
        database_url=database_url,
        folder=folder,
        pool="cluster",
        host=f"127.0.0.1,{BRIDGE}",
    ) as running:
        agent_id = await running.start_agent(
            "one",
            slots=None,
            launcher="kubernetes",
            kubeconfig=os.environ["KUBECONFIG"],
            slot_resource="cpu",
            slot_cpu=0.5,
            slot_memory_mib=1024,
            slots_per_pod=2,
            container_api_url=f"http://{BRIDGE}:{running.port}",
        )
        for number in range(_RUNS + 1):
            took = await _one(running)
            if number:  # the first one warms up
                first.append(took[0])
                whole.append(took[1])
        await running.stop_agent(agent_id)
    return first, whole


async def _one(running: Platform) -> tuple[float, float]:
    began = time.monotonic()
    experiment_id = await running.create(
        config({"max_length": 1}, environment={"image": IMAGE}), {"train.py": 'print("begins", flush=True)\n' + TRAIN}
    )

    async def has_begun() -> bool:
        trials = await running.trials(experiment_id)
        return bool(trials) and "begins" in await running.logs(trials[0]["id"])

    await running.until(has_begun, what="its first line is there")  # looks every 50 ms
    seen = time.monotonic() - began
    assert (await running.finish(experiment_id))["state"] == "STATE_COMPLETED"
    return seen, time.monotonic() - began
