"""A folder of a GiB on its way to the API and back: how long it takes, and how much memory both ends need.

`UNDETERRED_BENCH_CONTEXT_MIB` is its size, 1024 if it is not set. The client is a process of its
own; the memory is the most that each had at once beyond what it has for a folder of 9 MiB.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import yaml

from bench.data import fill
from bench.measure import Figure
from bench.served import Api, serving
from bench.wire import log_in
from tests.kit.servers import postgres_server

_MIB = int(os.environ.get("UNDETERRED_BENCH_CONTEXT_MIB", "1024"))
_SMALL_MIB = 9
_CONFIG = yaml.safe_dump(
    {
        "name": "large",
        "entrypoint": "python3 train.py",
        "checkpoint_storage": {"type": "directory", "container_path": "/checkpoints"},
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 100}},
    }
)
_CLIENT = """
import json, resource, sys, time
from determined.common.api._session import Session
from determined.common.context import Folder
from determined.common.experimental._contexts import code_of
url, token, folder = sys.argv[1:]
began = time.perf_counter()
code = code_of(Session(url, token=token), Folder(folder))
took = time.perf_counter() - began
print(json.dumps([code["context"], took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""


def figures() -> Iterator[Figure]:
    """On both engines."""
    with tempfile.TemporaryDirectory() as folder:
        small, large = (_made(Path(folder) / str(mib), mib) for mib in (_SMALL_MIB, _MIB))
        yield from _on(f"sqlite:///{folder}/contexts.db", "SQLite", small, large)
        with postgres_server() as url:
            yield from _on(url, "PostgreSQL", small, large)


def _made(folder: Path, mib: int) -> Path:
    """A folder with a file of nearly all of it, and 200 small ones."""
    generator = random.Random(mib)
    (folder / "pkg").mkdir(parents=True)
    with open(folder / "weights.bin", "wb") as file:
        for _ in range(mib - 1):
            file.write(generator.randbytes(2**20))
    for number in range(200):
        (folder / "pkg" / f"{number}.py").write_bytes(generator.randbytes(5000))
    return folder


def _on(url: str, engine: str, small: Path, large: Path) -> Iterator[Figure]:
    fill(url, 0.001, experiments=10)
    with serving(url) as api:
        log_in(api)
        _, _, least = _sent(api, small)
        before = _peak_mib(api)
        context, took, most = _sent(api, large)
        grown = _peak_mib(api) - before
        _, again, _ = _sent(api, large)
        note = f"{_MIB} MiB"
        yield Figure(f"upload of a context, {engine}", [_MIB / took], "MiB/s", more_is_better=True, note=note)
        yield Figure(f"memory of the client for it, {engine}", [most - least], "MiB", 64, note=note)
        yield Figure(f"memory of the API for it, {engine}", [grown], "MiB", 64, note=note)
        yield Figure(f"the same folder once more, {engine}", [again], "s", note=f"{note}, nothing is sent")
        began = time.perf_counter()
        made = json.loads(api.ask("POST", "/api/v1/experiments", {"config": _CONFIG, "context": context}))
        yield Figure(f"create with it, {engine}", [1000 * (time.perf_counter() - began)], "ms", 100, note=note)
        before = _peak_mib(api)
        began = time.perf_counter()
        size = _downloaded(api, int(made["experiment"]["id"]))
        took = time.perf_counter() - began
        rate = size / 2**20 / took
        yield Figure(f"download of it as a tar.gz, {engine}", [rate], "MiB/s", more_is_better=True, note=note)
        yield Figure(f"memory of the API for that, {engine}", [_peak_mib(api) - before], "MiB", 64, note=note)


def _sent(api: Api, folder: Path) -> tuple[str, float, float]:
    """The context's id, seconds, and the most MiB that the client had."""
    token = api.headers["Authorization"].removeprefix("Bearer ")
    line = [sys.executable, "-c", _CLIENT, f"http://127.0.0.1:{api.port}", token, str(folder)]
    context, took, most = json.loads(subprocess.run(line, check=True, capture_output=True, text=True).stdout)
    return context, took, most


def _downloaded(api: Api, experiment_id: int) -> int:
    """The bytes of the packed folder, as they come."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{api.port}/experiments/{experiment_id}/model_def", headers=api.headers
    )
    size = 0
    with urllib.request.urlopen(request) as answer:
        while piece := answer.read(2**20):
            size += len(piece)
    return size


def _peak_mib(api: Api) -> float:
    """The most memory that the API's process ever had."""
    status = Path(f"/proc/{api.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024
