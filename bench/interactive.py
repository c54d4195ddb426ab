"""What a user waits for: from the request until a notebook, a shell, a command or a TensorBoard is usable."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from bench.cluster import token_of
from bench.measure import Figure, p95
from tests.kit.embedded import PARTS, Embedded
from tests.kit.notebooks import Notebook, started
from tests.kit.servers import REPOSITORY, docker_engine, ssh_server_program, trial_image

_RUNS, _KILLS = 10, 5
_LONGEST_S = 60.0
_TRAIN = """
from determined import core

with core.init() as context:
    for op in context.searcher.operations():
        context.train.report_validation_metrics(1, {"x": 1.0})
        op.report_completed(1.0)
"""
_CONFIG = """
name: shown
entrypoint: python3 train.py
searcher: {name: single, metric: x, max_length: 1}
"""


def figures_in_docker() -> Iterator[Figure]:
    """The same in containers, whose image is on the host: JupyterLab, TensorBoard and OpenSSH's server are in it."""
    ssh_server_program()
    with docker_engine(), tempfile.TemporaryDirectory() as folder:
        python = Path(folder, "bin", "python")
        uv = [sys.executable, "-m", "uv"]
        subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, folder], check=True)
        harness = ["-c", "constraints.txt", "-e", "./harness[notebook,tensorboard]"]
        install = [*uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python), *harness]
        subprocess.run(install, cwd=REPOSITORY, check=True)
        trial_image(Path(folder))
        yield from figures("docker")


def figures(launcher: str = "process") -> Iterator[Figure]:
    """Each kind on one cluster, with slots free: what the pool, the container and the program take."""
    ssh_server_program()
    with tempfile.TemporaryDirectory() as folder:
        cluster = Embedded(Path(folder), launcher=launcher, slots=2)
        with cluster.started():
            base = cluster.environment["DET_MASTER"].replace("localhost", "127.0.0.1")
            with httpx.Client(
                base_url=base, timeout=30, headers={"Authorization": f"Bearer {token_of(cluster)}"}
            ) as http:
                experiment_id = cluster.create(_CONFIG, _TRAIN)
                ended = f"SELECT count(*) FROM experiments WHERE id = {experiment_id} AND ended_at IS NOT NULL"
                cluster.until(lambda: cluster.rows(ended) == [(1,)], 60, "the experiment is over")
                yield from _kinds(http, experiment_id, launcher)
            if launcher == "process":
                yield from _reconnects(cluster)


def _kinds(http: httpx.Client, experiment_id: int, launcher: str) -> Iterator[Figure]:
    slots = {"resources": {"slots": 1}}
    command = {"entrypoint": ["true"], **slots}
    kinds: dict[str, tuple[str, dict[str, Any], Callable[[str], bool], float | None]] = {
        "command (until it has ended)": ("command", {"config": command}, lambda task: _has_ended(http, task), None),
        "shell": ("shell", {"config": slots}, lambda task: _is_ready(http, task), None),
        "TensorBoard": ("tensorboard", {"experimentIds": [experiment_id]},
                        lambda task: _answers(http, task, "/data/logdir"), 3.0),
        "notebook": ("notebook", {"config": slots}, lambda task: _answers(http, task, "/api"), 5.0),
    }  # fmt: skip
    for name, (kind, body, is_usable, goal) in kinds.items():
        values = [_until_usable(http, kind, body, is_usable) for _ in range(_RUNS + 1)][1:]
        yield Figure(
            f"{name}: request until usable" + (", Docker" if launcher == "docker" else ""),
            values,
            "s",
            goal,
            note=f"{launcher} launcher, a free slot; p95 {p95(values):.2f} s",
        )


def _reconnects(cluster: Embedded) -> Iterator[Figure]:
    """Each part killed under an open notebook, and started again: then until its kernel answers to its page."""
    notebook = Notebook(cluster, started(cluster))
    notebook.kernel = notebook.call("POST", "/kernels", json={"name": "python3"})["id"]
    socket = notebook.connected()
    notebook.asked(socket, "known = 42; print(known)", "42\n")
    for part in PARTS:
        values: list[float] = []
        for _ in range(_KILLS):
            os.kill(cluster.pid(part), signal.SIGKILL)
            cluster.up()
            began = time.perf_counter()
            if part == "api":  # through the others it stays open
                socket, _ = notebook.reconnected()
            notebook.asked(socket, "print(known)", "42\n")
            values.append(time.perf_counter() - began)
        note = "its variables are still there"
        yield Figure(
            f"{part} killed, from its restart until an open notebook's kernel answers", values, "s", 2, note=note
        )
    socket.close()


def _until_usable(http: httpx.Client, kind: str, body: dict[str, Any], is_usable: Callable[[str], bool]) -> float:
    began = time.perf_counter()
    task = http.post(f"/api/v1/{kind}s", json=body).raise_for_status().json()[kind]["id"]
    while not is_usable(task):
        if time.perf_counter() - began > _LONGEST_S:
            raise TimeoutError(f"{kind} {task} is not usable after {_LONGEST_S:g} s")
        time.sleep(0.02)
    took = time.perf_counter() - began
    http.post(f"/api/v1/{kind}s/{task}/kill").raise_for_status()
    while not _has_ended(http, task):
        time.sleep(0.02)
    return took


def _task(http: httpx.Client, task: str) -> dict[str, Any]:
    return http.get(f"/api/v1/tasks/{task}").raise_for_status().json()["task"]


def _has_ended(http: httpx.Client, task: str) -> bool:
    return _task(http, task)["endTime"] is not None


def _is_ready(http: httpx.Client, task: str) -> bool:
    return any(allocation["isReady"] for allocation in _task(http, task)["allocations"])


def _answers(http: httpx.Client, task: str, path: str) -> bool:
    return _is_ready(http, task) and http.get(f"/proxy/{task}{path}").status_code == 200
