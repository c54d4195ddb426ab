"""What a decision takes on its way: from a report to the harness that acts on it, and a search of thousands of trials."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import yaml
from temporalio.worker import UnsandboxedWorkflowRunner

from bench.measure import Figure, p95
from tests.kit.embedded import Embedded
from tests.kit.platform import platform
from tests.kit.servers import temporal_server
from tests.kit.simulated import Run, SimulatedTrial, runs
from workers.orchestrator import WORKFLOWS
from workflows.trial import Trial

#: How many trials report at once, and how long the time from a report until the search's answer may be, in ms.
_CONCURRENT = {20: 50.0, 100: 50.0}
#: Of the search of simulated trials: how many there are, and how many live at once.
_SIMULATED = int(os.environ.get("BENCH_TRIALS", "2000"))
_AT_ONCE = int(os.environ.get("BENCH_AT_ONCE", "50"))

SCRIPT = '''
"""Measures what an operation takes: from its completion to the next one, twenty trials at once."""
import random, time
import determined as det
from determined import core

hparams = det.get_cluster_info().trial.hparams
with core.init() as context:
    completed = None
    for op in context.searcher.operations():
        if completed is not None:
            print("took", time.monotonic() - completed, flush=True)
        time.sleep(max(0.0, hparams["start"] - time.time()) + random.uniform(0.5, 1.5))
        completed = time.monotonic()
        op.report_completed(1.0)
        print("reported", flush=True)
    print("ended after", time.monotonic() - completed, flush=True)
    time.sleep(max(0.0, hparams["leave"] - time.time()))
'''
#: Of each trial: its reports that the search does not end; the seconds in which all of them are made and answered.
_RUNGS, _ALL_WITHIN_S = 10, 30


def figures() -> Iterator[Figure]:
    """Each on a cluster of its own."""
    for trials, goal in _CONCURRENT.items():
        yield from _latency(trials, goal)
    yield from asyncio.run(_large())


def reporting(trials: int, rungs: int, start: float, leave: float = 0.0) -> dict[str, Any]:
    """The configuration of a search whose trials report about once a second each, at a moment of their own.

    Args:
        trials: All run at once. `SCRIPT` is what they run.
        rungs: The reports of each that the search does not end; at each of them nearly all go on.
        start: The Unix time at which they begin: after the last of their processes is up.
        leave: Before it none exits, however early the search ends it: the end of a process is dearer than a decision.
    """
    searcher = {
        "name": "async_halving", "metric": "x", "smaller_is_better": True, "stop_once": True, "num_rungs": rungs,
        "divisor": 1.2, "max_length": 10 * rungs, "max_trials": trials, "max_concurrent_trials": trials,
    }  # fmt: skip
    return {
        "name": "bench",
        "entrypoint": "python3 train.py",
        "searcher": searcher,
        "hyperparameters": {"start": start, "leave": leave},
    }


def took(cluster: Embedded) -> list[float]:
    """The seconds from each report of such a trial until the search's answer reached it."""
    lines = cluster.rows("SELECT log FROM task_logs WHERE log LIKE 'took %'")
    return [float(match[1]) for (line,) in lines if (match := re.search(r"took ([\d.]+)", line))]


def _latency(trials: int, goal: float) -> Iterator[Figure]:
    """Those that the search ends wait for no answer, and stay until all have theirs."""
    start = time.time() + 60
    leave = start + _ALL_WITHIN_S
    config = reporting(trials, _RUNGS, start, leave)
    with tempfile.TemporaryDirectory() as folder, Embedded(Path(folder), slots=trials).started() as cluster:
        experiment_id = cluster.create(yaml.safe_dump(config), SCRIPT)
        cluster.until(lambda: is_over(cluster, experiment_id), 300, "the search is over")
        values = [1000 * seconds for seconds in took(cluster)]
        answered = _instant(cluster, "SELECT max(timestamp) FROM task_logs WHERE log LIKE 'took %'")
        ended = _instant(cluster, f"SELECT ended_at FROM experiments WHERE id = {experiment_id}")
    assert answered < leave, "reports were still being answered when trials began to exit"
    what = f"a trial's report until the search's answer reaches it, {trials} trials at once"
    note = f"{len(values)} decisions"
    yield Figure(f"{what}, p50", [statistics.median(values)], "ms", note=note)
    yield Figure(f"{what}, p95", [p95(values)], "ms", goal, note=note)
    yield Figure(f"{trials} trials exit at once, until their search is over", [ended - leave], "s")


def _instant(cluster: Embedded, query: str) -> float:
    """A time of the records, as a Unix time."""
    return datetime.fromisoformat(cluster.rows(query)[0][0]).replace(tzinfo=UTC).timestamp()


def is_over(cluster: Embedded, experiment_id: int) -> bool:
    """Whether an experiment has ended. Raises: AssertionError, if it failed."""
    ((state,),) = cluster.rows(f"SELECT state FROM experiments WHERE id = {experiment_id}")
    assert state != "ERROR", "the search failed"
    return state == "COMPLETED"


@dataclass(frozen=True)
class Searched:
    """A search of simulated trials: what it took, and what was held meanwhile, at most."""

    seconds: float
    processor_s: dict[str, float]  # of each process
    memory: dict[str, float]  # of each process, in MiB
    runs: list[Run]


async def simulated(count: int, at_once: int) -> Searched:
    """A search of trials that report at once and end: what the search itself costs.

    API and orchestrator are this process. As an orchestrator does, it runs workflows without the sandbox.
    """
    workflows = [SimulatedTrial if workflow is Trial else workflow for workflow in WORKFLOWS]
    searcher: dict[str, Any] = {
        "name": "adaptive_asha", "metric": "loss", "smaller_is_better": True, "max_trials": count, "max_time": 9,
        "divisor": 3, "time_metric": "epoch", "max_concurrent_trials": at_once,
    }  # fmt: skip
    space = {"lr": {"type": "log", "base": 10, "minval": -4, "maxval": -1}}
    wanted = {"entrypoint": "true", "hyperparameters": space, "searcher": searcher}
    with tempfile.TemporaryDirectory() as name, temporal_server(Path(name)) as address:
        folder = Path(name)
        own = psutil.Process()
        processes = {"API and orchestrator": own, "Temporal": own.children()[-1]}
        async with platform(
            temporal_address=address, database_url=f"sqlite:///{folder}/db", folder=folder, pool="default",
            workflows=workflows, runner=UnsandboxedWorkflowRunner(),
        ) as running:  # fmt: skip
            memory = dict.fromkeys(processes, 0.0)
            began, spent = time.perf_counter(), {what: _spent(each) for what, each in processes.items()}
            experiment_id = await running.create(wanted, {"train.py": ""})
            watching = asyncio.create_task(_watch(processes, memory))
            ended = await running.finish(experiment_id, max(3000, count / 5))
            took = time.perf_counter() - began
            spent = {what: _spent(each) - spent[what] for what, each in processes.items()}
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
            assert ended["state"] == "STATE_COMPLETED", ended
            return Searched(took, spent, memory, await runs(running.temporal, f"experiment-{experiment_id}"))


async def _watch(processes: Mapping[str, psutil.Process], memory: dict[str, float]) -> None:
    """Note the most that each holds; never returns."""
    while True:
        for what, process in processes.items():
            memory[what] = max(memory[what], process.memory_info().rss / 2**20)
        await asyncio.sleep(1)


def _spent(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


async def _large() -> list[Figure]:
    """What it costs a trial, and how long its histories are."""
    found = await simulated(_SIMULATED, _AT_ONCE)
    what = f"search of {_SIMULATED:,} simulated trials, {_AT_ONCE:,} at once"
    each = found.runs
    processor = [
        Figure(f"{what}, processor time a trial: {name}", [seconds / _SIMULATED * 1000], "ms")
        for name, seconds in found.processor_s.items()
    ]
    memory = [Figure(f"{what}, memory at most: {name}", [held], "MiB") for name, held in found.memory.items()]
    return [
        Figure(f"{what}, wall a trial", [found.seconds / _SIMULATED * 1000], "ms"),
        *processor,
        *memory,
        Figure(f"{what}, largest history of a run", [max(r.size_bytes for r in each) / 2**20], "MiB", 10,
               note=f"{len(each)} runs"),
        Figure(f"{what}, events of its workflow a trial", [sum(r.events for r in each) / _SIMULATED], "events"),
    ]  # fmt: skip
