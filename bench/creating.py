"""What it takes to create experiments: alone, and a hundred in a request. Each is durable when it is answered."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator

import yaml

from bench.data import fill
from bench.measure import Figure
from bench.served import Api, serving
from bench.wire import log_in
from tests.kit.servers import postgres_server

_RUNS, _MANY = 10, 100
_CONFIG = yaml.safe_dump(
    {
        "name": "created",
        "entrypoint": "python3 train.py",
        "checkpoint_storage": {"type": "directory", "container_path": "/checkpoints"},
        "hyperparameters": {"lr": {"type": "log", "minval": -5, "maxval": -1, "base": 10}, "batch": 32},
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 100}},
    }
)


def figures() -> Iterator[Figure]:
    """On both engines. No Temporal takes the starts: they wait in the outbox, as when it is away."""
    with tempfile.TemporaryDirectory() as folder:
        yield from _on(f"sqlite:///{folder}/creating.db", "SQLite")
    with postgres_server() as url:
        yield from _on(url, "PostgreSQL")


def _on(url: str, engine: str) -> Iterator[Figure]:
    fill(url, 0.001, experiments=10)
    with serving(url) as api:
        log_in(api)
        paused = [_timed(api, "/api/v1/experiments", {"config": _CONFIG}) for _ in range(5 * _RUNS)][_RUNS:]
        yield Figure(f"create of an experiment, {engine}", [1000 * took for took in paused], "ms", 15)
        body = {"experiments": [{"config": _CONFIG, "activate": True}] * _MANY}
        rates = [_MANY / _timed(api, "/api/v1/undeterred/experiments", body) for _ in range(_RUNS + 1)][1:]
        note = f"{_MANY} in a request"
        yield Figure(f"experiments created a second, {engine}", rates, "/s", 100, more_is_better=True, note=note)


def _timed(api: Api, path: str, body: object) -> float:
    began = time.perf_counter()
    api.ask("POST", path, body)
    return time.perf_counter() - began
