"""What a cluster costs and gives: start, create, first line of user code, trials per second, recovery, memory."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import yaml

from bench.measure import Figure, p95
from tests.kit.embedded import PARTS, Embedded
from tests.kit.scripts import TRAIN

_IDLE_S = 30
_EMPTY = 'print("runs", flush=True)\n'
_STAMP = "import time\nprint('began at', time.time(), flush=True)\n"


def figures(launcher: str = "process") -> Iterator[Figure]:
    """Everything on one embedded cluster of the given launcher."""
    where = "Docker" if launcher == "docker" else "process"
    with tempfile.TemporaryDirectory() as folder:
        cluster = Embedded(Path(folder), launcher=launcher)
        try:
            first, again = cluster.up(), list[float]()
            for _ in range(5):
                cluster.run("down")
                again.append(cluster.up())
            if launcher == "process":
                yield Figure("det up until ready, the first time", [first], "s", 2)
                yield Figure("det up until ready, again", again, "s", 1.5)
                time.sleep(5)  # until what came with the start is done
                yield from _idle(cluster)
                yield _create(cluster)
            yield from _first_line(cluster, where)
            yield trials(cluster, where)
            if launcher == "process":
                yield from _memory(cluster)
                yield from _recovery(cluster)
        finally:
            cluster.run("down")


def _idle(cluster: Embedded) -> Iterator[Figure]:
    """What a cluster costs that nobody uses."""
    processes = [psutil.Process(cluster.pid(part)) for part in PARTS]

    def used() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    before = used()
    time.sleep(_IDLE_S)
    share = (used() - before) / _IDLE_S
    yield Figure("processor time of an idle cluster, of one core", [share * 100], "%", 2)
    yield Figure("memory of an idle cluster, all processes", [sum(memory_of(cluster).values())], "MiB", 400)


def _client(cluster: Embedded):
    os.environ["DET_DEBUG_CONFIG_PATH"] = cluster.environment["DET_DEBUG_CONFIG_PATH"]
    from determined.experimental import Determined

    return Determined(master=cluster.environment["DET_MASTER"], user="admin")


def _config(searcher: dict[str, Any] | None = None, **more: object) -> dict[str, Any]:
    base = {"name": "single", "metric": "x", "max_length": 1}
    return {"name": "bench", "entrypoint": "python3 train.py", "searcher": base | (searcher or {}), **more}


def _model(cluster: Embedded, script: str) -> str:
    folder = cluster.folder / "model"
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(script)
    return str(folder)


def _create(cluster: Embedded) -> Figure:
    """The create call alone, over one kept connection, of an experiment that is not activated."""
    import httpx

    token = token_of(cluster)
    body: dict[str, Any] = {"config": yaml.safe_dump(_config()), "modelDefinition": [], "activate": False}
    values: list[float] = []
    with httpx.Client(base_url=cluster.environment["DET_MASTER"], timeout=30) as http:
        http.headers["Authorization"] = f"Bearer {token}"
        for run in range(25):
            began = time.perf_counter()
            answer = http.post("/api/v1/experiments", json=body)
            took = time.perf_counter() - began
            assert answer.status_code == 200, answer.text
            if run >= 5:
                values.append(took * 1000)
            experiment_id = answer.json()["experiment"]["id"]
            http.post(f"/api/v1/experiments/{experiment_id}/kill").raise_for_status()
            time.sleep(0.2)  # let the previous one settle: the call is measured, not its after-effects
    return Figure("create call, server side", values, "ms", 28, "28 ms")


def token_of(cluster: Embedded) -> str:
    """The token of the client that is logged in on this machine."""
    from determined.common.api import authentication

    os.environ["DET_DEBUG_CONFIG_PATH"] = cluster.environment["DET_DEBUG_CONFIG_PATH"]
    token = authentication.TokenStore().token(cluster.environment["DET_MASTER"], "admin")
    assert token is not None
    return token


def _first_line(cluster: Embedded, where: str) -> Iterator[Figure]:
    """From the call to the first line of the user's script."""
    client = _client(cluster)
    model = _model(cluster, _STAMP)
    values: list[float] = []
    for run in range(42):
        began = time.time()
        experiment = client.create_experiment(_config(), model)
        experiment.wait(interval=0.2)
        lines = [line for line in experiment.list_trials()[0].iter_logs() if "began at" in line]
        started = re.search(r"began at ([\d.]+)", lines[0])
        assert started is not None
        if run >= 2:
            values.append(float(started[1]) - began)
    goal, theirs = (1.9, "3.9 s") if where == "Docker" else (1.0, "3.9 s (Docker)")
    yield Figure(f"create until user code runs, {where}", values, "s", goal, theirs)
    yield Figure(f"create until user code runs, {where}, p95", [p95(values)], "s", 2.5 if where == "Docker" else 1.5)


def trials(cluster: Embedded, where: str) -> Figure:
    """64 trials of an empty script on 2 slots, wall time a trial."""
    client = _client(cluster)
    model = _model(cluster, _EMPTY)
    searcher = {"name": "random", "max_trials": 64, "max_concurrent_trials": 16, "max_length": 1}
    values: list[float] = []
    for run in range(3):
        began = time.time()
        experiment = client.create_experiment(_config(searcher), model)
        state = experiment.wait(interval=0.5)
        assert state.name == "COMPLETED", state
        if run:
            values.append((time.time() - began) / 64)
    goal, theirs = (1.0, "3.2 s") if where == "Docker" else (0.5, "3.2 s (Docker)")
    return Figure(
        f"64-trial random search of empty scripts on 2 slots, wall per trial, {where}", values, "s", goal, theirs
    )


def create_on_two_slots(cluster: Embedded, entrypoint: str) -> None:
    """Create an experiment of one trial on two slots, by the SDK as all here; returns at once."""
    config = _config(resources={"slots_per_trial": 2}) | {"entrypoint": entrypoint}
    _client(cluster).create_experiment(config, _model(cluster, ""))


def _memory(cluster: Embedded) -> Iterator[Figure]:
    """Resident memory after what was measured so far."""
    held = memory_of(cluster)
    for part, used in held.items():
        yield Figure(f"resident memory, {part}", [used], "MiB")
    total = sum(held.values())
    yield Figure("resident memory, all processes", [total], "MiB", 600, "230-300 MiB", note="shared pages count once")


def memory_of(cluster: Embedded) -> dict[str, float]:
    """MiB by process. Pages that processes share are divided among them."""
    return {part: psutil.Process(cluster.pid(part)).memory_full_info().pss / 2**20 for part in PARTS}


def _recovery(cluster: Embedded) -> Iterator[Figure]:
    """Everything but the training killed: how long until the trial reports again; and 20 s without a control plane."""
    model = TRAIN
    config = yaml.safe_dump(
        _config({"metric": "accuracy", "max_length": 100_000}, hyperparameters={"sleep": 0.05}, max_restarts=0)
    )
    cluster.create(config, model)
    cluster.until(lambda: cluster.training(), 60, "the trial trains")
    before = cluster.training()
    values: list[float] = []
    for run in range(4):
        cluster.until(lambda: _newest(cluster), 60, "reports arrive")
        for part in PARTS:
            os.kill(cluster.pid(part), signal.SIGKILL)
        seen = _newest(cluster)
        began = time.perf_counter()
        cluster.up()
        cluster.until(lambda seen=seen: _newest(cluster) > seen, 60, "new reports arrive")
        if run:
            values.append(time.perf_counter() - began)
    same = cluster.training() == before
    yield Figure(
        "control plane killed, until the running trial's reports arrive again", values, "s", 3, "2.5-3.3 s",
        note="same process, same run" if same else "**another process**",
    )  # fmt: skip
    for part in PARTS:
        os.kill(cluster.pid(part), signal.SIGKILL)
    time.sleep(20)  # the outage that is measured
    cluster.up()
    seen = _newest(cluster)
    cluster.until(lambda: _newest(cluster) > seen + 200, 60, "what was reported meanwhile arrives")
    steps = [step for (step,) in cluster.rows("SELECT total_batches FROM metrics WHERE group_name = 'validation' "
                                              "AND trial_id = (SELECT max(id) FROM trials) ORDER BY total_batches")]  # fmt: skip
    lost = len(range(1, steps[-1] + 1)) - len(steps)
    note = f"{len(steps)} reports, {'same process' if cluster.training() == before else '**another process**'}"
    yield Figure("reports lost when the control plane is down for 20 s", [lost], "reports", 0, "trial lost", note=note)


def _newest(cluster: Embedded) -> int:
    (newest,) = cluster.rows("SELECT total_batches FROM trials ORDER BY id DESC LIMIT 1")[0]
    return newest
