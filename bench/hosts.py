"""What hosts cost and how they go: trials started, processor time of a trial, a thousand at once, a host that dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml
from pydantic import SecretStr

from bench.cluster import memory_of, token_of
from bench.measure import Figure, p95
from bench.simulated import SimulatedLauncher
from tests.kit.embedded import PARTS, Embedded
from tests.kit.scripts import TRAIN
from workers import agent
from workers.embedded import ClusterState
from workers.settings import AgentSettings

_STARTED, _LIVE, _WATCHED_S = 300, 1000, 30.0


def figures() -> Iterator[Figure]:
    """Each part on a cluster of its own."""
    with up(slots=32) as cluster:
        yield from _starts(cluster)
    with up(slots=2) as cluster:
        yield from _dead(cluster)
    with up(slots=0) as cluster:
        yield from asyncio.run(_live(cluster))


@contextlib.contextmanager
def up(slots: int) -> Generator[Embedded]:
    """A started cluster in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder, Embedded(Path(folder), slots=slots).started() as cluster:
        yield cluster


def config_of(trials: int, at_once: int, entrypoint: str) -> dict[str, Any]:
    """A random search of trials without hyperparameters."""
    return {
        "name": "bench",
        "entrypoint": entrypoint,
        "searcher": {"name": "random", "metric": "x", "max_trials": trials, "max_concurrent_trials": at_once,
                     "max_length": 1},
        "hyperparameters": {},
        "max_restarts": 0,
    }  # fmt: skip


def client(cluster: Embedded) -> httpx.Client:
    """Requests to its API, as admin."""
    http = httpx.Client(base_url=cluster.environment["DET_MASTER"], timeout=30)
    http.headers["Authorization"] = f"Bearer {token_of(cluster)}"
    return http


def create(http: httpx.Client, config: dict[str, Any]) -> int:
    """Create an experiment without files; returns its id."""
    body: dict[str, Any] = {"config": yaml.safe_dump(config), "modelDefinition": [], "activate": True}
    answer = http.post("/api/v1/experiments", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["experiment"]["id"]


def state_of(http: httpx.Client, experiment_id: int) -> str:
    """An experiment's state, such as STATE_COMPLETED."""
    return http.get(f"/api/v1/experiments/{experiment_id}").json()["experiment"]["state"]


def spent_by(cluster: Embedded) -> Counter[str]:
    """Processor seconds of each part of the control plane, without the trials' own."""
    times = {part: psutil.Process(cluster.pid(part)).cpu_times() for part in PARTS}
    return Counter({part: each.user + each.system for part, each in times.items()})


def _shares(spent: Counter[str], by: float, unit: str) -> str:
    return ", ".join(f"{part} {seconds / by:.3g}" for part, seconds in spent.most_common()) + f" {unit}"


def _starts(cluster: Embedded) -> Iterator[Figure]:
    rates: list[float] = []
    costs: list[float] = []
    shares = ""
    with client(cluster) as http:
        for run in range(3):
            spent, began = spent_by(cluster), time.monotonic()
            experiment_id = create(http, config_of(_STARTED, 32, "true"))
            # asked more often, the API would have more to do with this than with the trials
            cluster.until(
                lambda id_=experiment_id: state_of(http, id_) == "STATE_COMPLETED", 300, "all have run", every_s=0.5
            )
            if run:
                rates.append(_STARTED / (time.monotonic() - began))
                of_each = spent_by(cluster) - spent
                costs.append(of_each.total() / _STARTED * 1000)
                shares = _shares(of_each, _STARTED / 1000, "ms")
    yield Figure("trials of an empty process per second, 32 slots", rates, "/s", 12, more_is_better=True)
    yield Figure("processor time of the control plane a trial", costs, "ms", 100, note=shares)


def _dead(cluster: Embedded) -> Iterator[Figure]:
    known: list[float] = []
    cluster.create(
        yaml.safe_dump(
            config_of(1, 1, "python3 train.py")
            | {"hyperparameters": {"sleep": 0.05}, "searcher": {"name": "single", "metric": "x", "max_length": 100_000}}
        ),
        TRAIN,
    )
    with client(cluster) as http:

        def is_there() -> bool:
            [agent] = http.get("/api/v1/agents").json()["agents"]
            return agent["enabled"]

        for _ in range(4):
            cluster.until(is_there, 60, "the agent is there")
            time.sleep(2)
            began = time.monotonic()
            os.kill(cluster.pid("agent"), signal.SIGKILL)
            cluster.until(lambda: not is_there(), 60, "it is known to be away")
            known.append(time.monotonic() - began)
            cluster.up()
    yield Figure("agent killed, until the cluster knows", known[1:], "s", 15)


async def _live(cluster: Embedded) -> list[Figure]:
    """A thousand trials that report each second, by an agent of this process."""
    state = ClusterState.model_validate_json((cluster.folder / "cluster.json").read_text())
    launcher = SimulatedLauncher(cluster.environment["DET_MASTER"])
    settings = AgentSettings(
        agent_id="simulated",
        slots=_LIVE,
        temporal_address=state.temporal_address,
        api_url=cluster.environment["DET_MASTER"],
        agent_token=SecretStr(state.agent_token),
        folder=str(cluster.folder / "simulated"),
    )
    stop = asyncio.Event()
    running = asyncio.create_task(agent.main(settings, stop, launcher=launcher))
    try:
        with client(cluster) as http:
            began = time.monotonic()
            await asyncio.to_thread(create, http, config_of(_LIVE, _LIVE, "true"))
            while len(await launcher.list()) < _LIVE:
                await asyncio.sleep(0.1)
                assert not running.done(), running.exception()
                assert time.monotonic() - began < 300, "a thousand did not start in time"
            ramp = time.monotonic() - began
            await asyncio.sleep(20)  # what was late while they started is caught up with
            launcher.took.clear()
            launcher.late.clear()
            launcher.refused = 0
            spent, since = await asyncio.to_thread(spent_by, cluster), time.monotonic()
            await asyncio.sleep(_WATCHED_S)
            of_each, seconds = await asyncio.to_thread(spent_by, cluster) - spent, time.monotonic() - since
            memory = sum(memory_of(cluster).values())
            took, late = list(launcher.took), list(launcher.late)
    finally:
        stop.set()
        await running
        await launcher.close()
    assert launcher.refused == 0, f"{launcher.refused} of {len(took)} reports were refused"
    what = f"{_LIVE} live trials that report each second"
    return [
        Figure(f"{what}: until all run", [ramp], "s", note=f"{_LIVE / ramp:.1f} starts a second, no processes"),
        Figure(f"{what}: reports taken per second", [len(took) / _WATCHED_S], "/s", 0.97 * _LIVE, more_is_better=True),
        Figure(f"{what}: a report, p50", [statistics.median(took) * 1000], "ms"),
        Figure(f"{what}: a report, p95", [p95(took) * 1000], "ms"),
        Figure(
            f"{what}: sent late by, p95",
            [p95(late) * 1000],
            "ms",
            note="client and server share two cores",
        ),
        Figure(
            f"{what}: control plane's cores",
            [of_each.total() / seconds],
            "cores",
            note=_shares(of_each, seconds, "cores"),
        ),
        Figure(f"{what}: control plane's memory", [memory], "MiB", note="shared pages count once"),
    ]
