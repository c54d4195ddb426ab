"""What a report costs the training loop: the call itself, while the background thread sends to a real API."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from bench.measure import Figure
from tests.embedded import Embedded

_SCRIPT = """
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


def figures() -> Iterator[Figure]:
    """Median of each of three runs."""
    values: list[float] = []
    tails: list[float] = []
    config = {"name": "bench", "entrypoint": "python3 train.py", "max_restarts": 0,
              "searcher": {"name": "single", "metric": "loss", "max_length": 1}}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        cluster = Embedded(Path(folder))
        try:
            cluster.up()
            for _ in range(3):
                experiment_id = cluster.create(yaml.safe_dump(config), _SCRIPT)
                cluster.det("experiment", "wait", str(experiment_id))
                (trial_id,) = cluster.rows(f"SELECT id FROM trials WHERE experiment_id = {experiment_id}")[0]
                said = re.search(r"median ([\d.]+) p99 ([\d.]+)", cluster.det("trial", "logs", str(trial_id)).stdout)
                assert said is not None
                values.append(float(said[1]))
                tails.append(float(said[2]))
        finally:
            cluster.run("down")
    yield Figure("report_training_metrics in the training loop, median", values, "µs", 100, "2800 µs")
    yield Figure("report_training_metrics in the training loop, 99th percentile", tails, "µs")
