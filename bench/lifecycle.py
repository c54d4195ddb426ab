"""What commands, preemption and recovery take, and how many events a trial's life leaves in Temporal."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import yaml
from temporalio.client import Client

from bench.cluster import token_of
from bench.measure import Figure, p95
from tests.kit.embedded import Embedded

_LIVE = 200

_WATCHES = '''
"""Says when it learns that it is to leave."""
import time
import determined as det
from determined import core

with core.init() as context:
    for op in context.searcher.operations():
        while not context.preempt.should_preempt():
            time.sleep(0.005)
        print("told at", time.time(), flush=True)
        break
'''

_SHORT = """
from determined import core

with core.init() as context:
    for op in context.searcher.operations():
        context.train.report_validation_metrics(op.length, {"x": 1.0})
        op.report_completed(1.0)
"""


def figures() -> Iterator[Figure]:
    """Each on a cluster of its own."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = Embedded(Path(folder), slots=4)
        try:
            cluster.up()
            with httpx.Client(base_url=cluster.environment["DET_MASTER"], timeout=30) as http:
                http.headers["Authorization"] = f"Bearer {token_of(cluster)}"
                yield _events(cluster)
                yield from _commands(cluster, http)
        finally:
            cluster.run("down")
    with tempfile.TemporaryDirectory() as folder:
        yield _recovery(Path(folder))


def _config(**more: Any) -> str:
    searcher = {"name": "single", "metric": "x", "max_length": 1}
    return yaml.safe_dump({"name": "bench", "entrypoint": "python3 train.py", "searcher": searcher, **more})


def _events(cluster: Embedded) -> Figure:
    """Of a search of trials that report, complete an operation and leave: trials' and experiment's, for each trial."""
    trials = 20
    searcher = {"name": "random", "metric": "x", "max_length": 1, "max_trials": trials}
    experiment_id = cluster.create(_config(searcher=searcher), _SHORT)
    cluster.until(lambda: _is_over(cluster, experiment_id), 120, "the search is over")
    ids = [f"trial-{n}" for (n,) in cluster.rows(f"SELECT id FROM trials WHERE experiment_id = {experiment_id}")]

    async def count() -> int:
        client = await Client.connect(_temporal(cluster))
        handles = [client.get_workflow_handle(workflow) for workflow in (f"experiment-{experiment_id}", *ids)]
        return sum([(await handle.describe()).history_length for handle in handles])

    total = asyncio.run(count())
    return Figure("history events a trial, the experiment's share included", [total / trials], "events", 31)


def _commands(cluster: Embedded, http: httpx.Client) -> Iterator[Figure]:
    """Pause, activate and cancel of an experiment that trains, and the moment at which its script knows."""
    calls: dict[str, list[float]] = {"pause": [], "activate": [], "cancel": []}
    told: list[float] = []

    def command(experiment_id: int, name: str) -> float:
        at, began = time.time(), time.perf_counter()
        http.post(f"/api/v1/experiments/{experiment_id}/{name}").raise_for_status()
        calls[name].append((time.perf_counter() - began) * 1000)
        return at

    for _ in range(5):
        experiment_id = cluster.create(_config(), _WATCHES)
        for name in ("pause", "pause", "pause", "cancel"):
            cluster.until(lambda: _is_ready(cluster), 60, "the harness is there")
            seen = len(_told(cluster))
            at = command(experiment_id, name)
            cluster.until(lambda seen=seen: len(_told(cluster)) > seen, 60, "the script was told")
            told.append((_told(cluster)[-1] - at) * 1000)
            cluster.until(lambda: not _is_ready(cluster), 60, "it has left")
            if name == "pause":
                command(experiment_id, "activate")
    for name, values in calls.items():
        yield Figure(f"{name} call, p95", [p95(values)], "ms", 300, note=f"{len(values)} calls")
    yield Figure("pause or cancel until the harness knows, p95", [p95(told)], "ms", 50, note=f"{len(told)} times")


def _is_ready(cluster: Embedded) -> bool:
    return bool(cluster.rows("SELECT 1 FROM allocations WHERE ready_at IS NOT NULL AND ended_at IS NULL"))


def _told(cluster: Embedded) -> list[float]:
    lines = cluster.rows("SELECT log FROM task_logs WHERE log LIKE 'told at %' ORDER BY id")
    return [float(match[1]) for (line,) in lines if (match := re.search(r"told at ([\d.]+)", line))]


def _is_over(cluster: Embedded, experiment_id: int) -> bool:
    return bool(cluster.rows(f"SELECT 1 FROM experiments WHERE id = {experiment_id} AND ended_at IS NOT NULL"))


def _temporal(cluster: Embedded) -> str:
    state = json.loads((cluster.folder / "cluster.json").read_text())
    return state["temporal_address"] or f"127.0.0.1:{state['temporal_port']}"


def _recovery(folder: Path) -> Figure:
    """kill -9 of an orchestrator with simulated live trials, and its start, until the next decision is recorded."""
    cluster = Embedded(folder)
    values: list[float] = []
    orchestrator: subprocess.Popen[bytes] | None = None

    def start() -> subprocess.Popen[bytes]:
        environment = {
            **cluster.environment,
            "UNDETERRED_DATABASE_URL": f"sqlite:///{cluster.folder / 'undeterred.db'}",
            "UNDETERRED_TEMPORAL_ADDRESS": _temporal(cluster),
        }
        log = (folder / "orchestrator.log").open("a")
        return subprocess.Popen(
            [sys.executable, "-m", "tests.kit.simulated_orchestrator"], env=environment, stdout=log, stderr=log
        )

    def decisions() -> int:
        return cluster.rows("SELECT count(*) FROM search_decisions")[0][0]

    try:
        cluster.up()
        os.kill(cluster.pid("orchestrator"), signal.SIGKILL)
        orchestrator = start()
        searcher = {"name": "async_halving", "metric": "loss", "time_metric": "epoch", "max_time": 100_000, "divisor": 4,
                    "num_rungs": 2, "max_trials": _LIVE, "max_concurrent_trials": _LIVE}  # fmt: skip
        cluster.create(_config(searcher=searcher), "")
        alive = f"SELECT count(*) >= {_LIVE} FROM trials"
        cluster.until(lambda: cluster.rows(alive)[0][0], 120, "all trials live")
        for run in range(6):
            seen = decisions()
            cluster.until(lambda seen=seen: decisions() > seen + 50, 120, "decisions flow")
            orchestrator.kill()
            orchestrator.wait()
            began = time.perf_counter()
            seen = decisions()
            orchestrator = start()
            cluster.until(lambda seen=seen: decisions() > seen, 60, "decisions flow again")
            if run:
                values.append(time.perf_counter() - began)
    finally:
        if orchestrator is not None:
            orchestrator.kill()
            orchestrator.wait()
        cluster.run("down")
    return Figure(f"orchestrator killed with {_LIVE} simulated live trials, until decisions flow again", values, "s", 5)
