"""What a report costs the training loop, with a real API that answers, and with none; what an outage leaves behind."""

from __future__ import annotations

import json
import os
import re
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from bench.measure import Figure
from tests.kit.embedded import Embedded

_CONFIG = {
    "name": "bench",
    "entrypoint": "python3 train.py",
    "max_restarts": 0,
    "searcher": {"name": "single", "metric": "loss", "max_length": 1},
}

_ANSWERED = """
import statistics, time
from determined import core

with core.init() as context:
    costs = []
    x = 1.0
    for step in range(1, 3001):
        for _ in range(2000):  # the work of a small batch
            x = x * 1.0000001
        began = time.perf_counter()
        context.train.report_training_metrics(step, {"loss": 1 / step, "accuracy": 0.5})
        costs.append((time.perf_counter() - began) * 1e6)
    costs = sorted(costs[500:])
    print("median", statistics.median(costs), "p99", costs[int(len(costs) * 0.99)], flush=True)
"""

_REPORTS, _METRICS = 36_000, 10
"""Ten reports a second for an hour, handed over as fast as a loop of small batches can."""

_OUTAGE = f"""
import array, json, os, pathlib, time
import psutil
from determined import core

place = pathlib.Path(PLACE)

def wait_for(name):
    while not (place / name).exists():
        time.sleep(0.05)

with core.init() as context:
    context.train.report_training_metrics(0, {{"loss": 1.0}})
    costs = array.array("d", bytes(8 * {_REPORTS}))
    (place / "ready").touch()
    wait_for("gone")
    for step in range(1, 101):  # the disk has taken over
        context.train.report_training_metrics(step, {{"loss": 1.0}})
        time.sleep(0.01)
    process = psutil.Process()
    before = process.memory_info().rss
    x = 1.0
    for step in range(1, {_REPORTS} + 1):
        for _ in range(2000):
            x = x * 1.0000001
        metrics = {{f"metric_{{n}}": x * n for n in range({_METRICS})}}
        began = time.perf_counter()
        context.train.report_training_metrics(100 + step, metrics)
        costs[step - 1] = (time.perf_counter() - began) * 1e6
    memory = process.memory_info().rss - before
    spool = sum(p.stat().st_size for p in pathlib.Path(os.environ["DET_SPOOL_DIR"]).rglob("*") if p.is_file())
    ordered = sorted(costs)
    told = {{"median": ordered[{_REPORTS} // 2], "p99": ordered[{_REPORTS} * 99 // 100], "memory": memory, "disk": spool}}
    (place / "told.part").write_text(json.dumps(told))
    (place / "told.part").rename(place / "told")
    wait_for("back")
"""


def figures() -> Iterator[Figure]:
    """Three runs of each."""
    with tempfile.TemporaryDirectory() as folder, Embedded(Path(folder)).started() as cluster:
        yield from _answered(cluster)
        yield from _outage(cluster, Path(folder))


def _answered(cluster: Embedded) -> Iterator[Figure]:
    values: list[float] = []
    tails: list[float] = []
    for _ in range(3):
        experiment_id = cluster.create(yaml.safe_dump(_CONFIG), _ANSWERED)
        cluster.det("experiment", "wait", str(experiment_id))
        (trial_id,) = cluster.rows(f"SELECT id FROM trials WHERE experiment_id = {experiment_id}")[0]
        said = re.search(r"median ([\d.]+) p99 ([\d.]+)", cluster.det("trial", "logs", str(trial_id)).stdout)
        assert said is not None
        values.append(float(said[1]))
        tails.append(float(said[2]))
    yield Figure("report_training_metrics in the training loop, median", values, "µs", 50, "2800 µs")
    yield Figure("report_training_metrics in the training loop, 99th percentile", tails, "µs", 1000)


def _outage(cluster: Embedded, folder: Path) -> Iterator[Figure]:
    told: list[dict[str, float]] = []
    for number in range(3):
        place = folder / f"outage-{number}"
        place.mkdir()
        told.append(_one_outage(cluster, place))

    def of(name: str, scale: float = 1.0) -> list[float]:
        return [run[name] / scale for run in told]

    load = f"{_REPORTS:,} reports of {_METRICS} metrics, as of an hour with 10 a second"
    yield Figure("the same while the API is down, median", of("median"), "µs", 50, note=load)
    yield Figure("the same while the API is down, 99th percentile", of("p99"), "µs", 1000)
    yield Figure("memory that this outage takes in the trial's process", of("memory", 2**20), "MiB")
    yield Figure("its reports on disk", of("disk", 2**20), "MiB")
    yield Figure("points per second when the API is back", of("rate"), "/s", more_is_better=True)


def _one_outage(cluster: Embedded, place: Path) -> dict[str, float]:
    experiment_id = cluster.create(yaml.safe_dump(_CONFIG), _OUTAGE.replace("PLACE", repr(str(place))))
    cluster.until((place / "ready").exists, 60, "the trial reports")
    os.kill(cluster.pid("api"), signal.SIGKILL)
    (place / "gone").touch()
    cluster.until((place / "told").exists, 300, "the trial has reported")
    found: dict[str, Any] = json.loads((place / "told").read_text())
    cluster.up()
    began = time.monotonic()
    (trial_id,) = cluster.rows(f"SELECT id FROM trials WHERE experiment_id = {experiment_id}")[0]
    newest = f"SELECT total_batches FROM trials WHERE id = {trial_id}"
    cluster.until(lambda: cluster.rows(newest) == [(100 + _REPORTS,)], 300, "all reports have arrived")
    found["rate"] = _REPORTS * _METRICS / (time.monotonic() - began)
    (place / "back").touch()
    cluster.det("experiment", "wait", str(experiment_id))
    return found
