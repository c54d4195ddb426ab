"""What a user would pick instead, beside ours, in one run: for decisions, reports, curves, starts of trials.

Optuna, MLflow, trackio, TensorBoard and Ray are installed into `.venv-peers` the first time: 2 GB, some minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import httpx

from bench import cluster, reports
from bench.data import fill, until_sealed
from bench.measure import Figure
from bench.raw_http import post
from bench.search import simulated
from bench.served import serving
from bench.wire import log_in
from database.session import Database
from tests.kit.embedded import Embedded
from tests.kit.servers import free_port

_ROOT = Path(__file__).resolve().parent.parent
_PYTHON = _ROOT / ".venv-peers" / "bin" / "python"
_WANTED = ("mlflow", "trackio", "ray[tune]", "optuna", "tensorboard")
_POINTS, _SECONDS, _ASKED = 1_000_000, 4.0, 20


def figures() -> Iterator[Figure]:
    """Ours first in each group."""
    if not _PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", str(_PYTHON.parent.parent)], check=True)
        subprocess.run([str(_PYTHON), "-m", "pip", "install", "--quiet", *_WANTED], check=True)
    yield from _decisions()
    yield from _reports()
    yield from _curves()
    yield from _starts()
    yield from _two_ranks()


def _tool(name: str, *arguments: str, **environment: str) -> dict[str, float]:
    command = [str(_PYTHON), str(_ROOT / "bench" / "peer_tools.py"), name, *arguments]
    offline = {"HF_HUB_OFFLINE": "1", "GRADIO_ANALYTICS_ENABLED": "False", "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        command, env={**os.environ, **offline, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _decisions() -> Iterator[Figure]:
    what = "a trial of three reports, each decided about and on disk before its answer"
    took = asyncio.run(simulated(500, 50)).seconds / 500 * 1000
    yield Figure(
        f"peers: {what}", [took], "ms", note="a search of 500 simulated trials in Temporal; workflows included"
    )
    for storage, each in _tool("optuna").items():
        yield Figure(
            f"peers: {what}, Optuna's {storage} storage", [each], "ms", note="in one process, nothing survives it"
        )


def _reports() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/bench.db"
        database = Database(url)
        reports.prepare(database)
        database.close()
        with serving(url) as api:
            for connections in (1, 8):
                yield _rate("", api.port, connections, _our_report)
        with _mlflow(folder) as (port, runs):
            for connections in (1, 8):
                yield _rate(", MLflow's server", port, connections, _mlflow_report(runs))
        stored = _tool("trackio", TRACKIO_DIR=f"{folder}/trackio")["reports"]
        yield Figure(
            "peers: reports of two metrics a second, trackio", [stored], "/s", more_is_better=True,
            note="`log` does not wait: from the first until all are stored",
        )  # fmt: skip


Request = Callable[[int, int], tuple[str, str, dict[str, Any]]]


def _our_report(number: int, step: int) -> tuple[str, str, dict[str, Any]]:
    path, report = reports.report_of(number, step)
    return path, reports.container_header(number), report


def _mlflow_report(runs: list[str]) -> Request:
    def request(number: int, step: int) -> tuple[str, str, dict[str, Any]]:
        at = int(time.time() * 1000)
        metrics = [{"key": key, "value": 0.5, "timestamp": at, "step": step} for key in ("loss", "accuracy")]
        head = "Content-Type: application/json\r\n"
        return "/api/2.0/mlflow/runs/log-batch", head, {"run_id": runs[number], "metrics": metrics}

    return request


def _rate(whose: str, port: int, connections: int, request: Request) -> Figure:
    steps = iter(range(1, 10_000_000))
    rates = [asyncio.run(_drive(port, connections, request, steps)) for _ in range(4)][1:]
    what = f"peers: reports of two metrics a second, {connections} connection{'s' * (connections > 1)}{whose}"
    return Figure(what, rates, "/s", more_is_better=True, note="SQLite")


async def _drive(port: int, connections: int, request: Request, steps: Iterator[int]) -> float:
    deadline = time.perf_counter() + _SECONDS

    async def one(number: int) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        count = 0
        while time.perf_counter() < deadline:
            status = await post(reader, writer, *request(number, next(steps)))
            assert b" 200 " in status, status
            count += 1
        writer.close()
        return count

    began = time.perf_counter()
    counts = await asyncio.gather(*(one(number) for number in range(connections)))
    return sum(counts) / (time.perf_counter() - began)


@contextlib.contextmanager
def _mlflow(folder: str) -> Generator[tuple[int, list[str]]]:
    """Its server as it is by default, with 8 runs."""
    port = free_port()
    program, store = str(_PYTHON.parent / "mlflow"), f"sqlite:///{folder}/mlflow.db"
    command = [program, "server", "--host", "127.0.0.1", "--port", str(port), "--backend-store-uri", store]
    server = subprocess.Popen(
        [*command, "--default-artifact-root", f"{folder}/artifacts"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            _wait(lambda: http.get("/health").status_code == 200, 120)
            made = [http.post("/api/2.0/mlflow/runs/create", json={"experiment_id": "0"}) for _ in range(8)]
            yield port, [each.json()["run"]["info"]["run_id"] for each in made]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, 15)
        server.wait()


def _wait(is_so: Callable[[], bool], seconds: float) -> float:
    """Seconds until it is so."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        try:
            if is_so():
                return time.monotonic() - began
        except httpx.HTTPError:
            pass
        time.sleep(0.02)
    raise TimeoutError(f"not within {seconds} s")


def _asked(whose: str, call: Callable[[], object], note: str = "") -> Figure:
    call()
    values: list[float] = []
    for _ in range(_ASKED):
        began = time.perf_counter()
        call()
        values.append((time.perf_counter() - began) * 1000)
    return Figure(f"peers: curve of {_POINTS:,} points for a screen{whose}", values, "ms", note=note)


def _curves() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/bench.db"
        filled = fill(url, 0.1, experiments=100)
        assert filled.curve_points == _POINTS, filled
        path = f"/api/v1/trials/time-series?trialIds={filled.curve_trial}&metricIds=curve.loss&maxDatapoints=1000"
        with serving(url) as api:
            log_in(api)
            api.ask("GET", path)
            until_sealed(url, filled)
            api.close()  # the server has closed it by now
            yield _asked("", lambda: api.ask("GET", path), note="1,000 points with the extremes kept")
        with _mlflow(folder) as (port, runs), httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300) as http:
            _fill_mlflow(f"{folder}/mlflow.db", runs[0])
            where = "/ajax-api/2.0/mlflow/metrics/get-history-bulk-interval"
            wanted = {"run_ids": runs[0], "metric_key": "loss", "max_results": "1000"}
            yield _asked(
                ", MLflow", lambda: http.get(where, params=wanted).raise_for_status(), note="every thousandth point"
            )
        written = _tool("tensorboard", f"{folder}/events", str(_POINTS))["written"]
        yield from _tensorboard(f"{folder}/events", written)


def _fill_mlflow(path: str, run: str) -> None:
    with contextlib.closing(sqlite3.connect(path, timeout=60)) as database:
        rows = (("loss", 1 / (step + 1), 1_700_000_000_000 + step, run, step, 0) for step in range(_POINTS))
        names = "key, value, timestamp, run_uuid, step, is_nan"
        database.executemany(f"INSERT INTO metrics ({names}) VALUES (?, ?, ?, ?, ?, ?)", rows)
        database.commit()


def _tensorboard(folder: str, written: float) -> Iterator[Figure]:
    port = free_port()
    command = [str(_PYTHON.parent / "tensorboard"), "--logdir", folder, "--port", str(port), "--host", "127.0.0.1"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:

            def ask() -> httpx.Response:
                return http.get("/data/plugin/scalars/scalars", params={"run": ".", "tag": "loss"})

            def is_read() -> bool:
                answer = ask()
                return answer.status_code == 200 and answer.json()[-1][1] == _POINTS - 1

            took = _wait(is_read, 600)
            note = f"1,000 points by chance; once it has read the file, which takes {took:.0f} s (to write it {written:.0f} s)"
            yield _asked(", TensorBoard", lambda: ask().json(), note)
    finally:
        server.terminate()
        server.wait()


def _starts() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder, Embedded(Path(folder), slots=2).started() as up:
        ours = cluster.trials(up, "process")
        yield Figure("peers: a trial of a search of 64 that do nothing, two at once", ours.values, "s")
    note = "workers that are started anew for each, without a record of a decision"
    yield Figure("peers: the same, Ray Tune", [_tool("ray")["trial"]], "s", note=note)


_RANKS = """
import os, sys, time
with open(os.path.join(sys.argv[1], os.environ["RANK"]), "w") as file:
    file.write(str(time.time()))
"""


def _two_ranks() -> Iterator[Figure]:
    """Until both have begun, the later one counts."""
    torch = _ROOT / ".venv-torch" / "bin"
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "ranks.py"
        script.write_text(_RANKS)

        def began(where: Path) -> float:
            _wait(lambda: all((where / rank).exists() and (where / rank).read_text() for rank in "01"), 60)
            return max(float((where / rank).read_text()) for rank in "01")

        def alone() -> float:
            with tempfile.TemporaryDirectory() as where:
                start = time.time()
                command = [str(torch / "torchrun"), "--nproc-per-node", "2", str(script), where]
                subprocess.run(command, check=True, capture_output=True)
                return began(Path(where)) - start

        plain = [alone() for _ in range(6)][1:]
        environment = {"UNDETERRED_TRIAL_PYTHON": str(torch / "python")}
        with Embedded(Path(folder), slots=2, environment=environment).started() as up:

            def ours(run: int) -> float:
                where = Path(folder) / f"ranks{run}"
                where.mkdir()
                start = time.time()
                cluster.create_on_two_slots(up, f"python3 -m determined.launch.torch_distributed -- {script} {where}")
                return began(where) - start

            values = [ours(run) for run in range(6)][1:]
    yield Figure("peers: create until both ranks of a trial on two slots run", values, "s", note="by torch_distributed")
    yield Figure(
        "peers: the same, plain torchrun",
        plain,
        "s",
        note=f"{statistics.median(values) - statistics.median(plain):.2f} s less",
    )
