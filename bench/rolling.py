"""Rolling restarts: of two APIs behind a load balancer while trials report, of two orchestrators, and of an agent, under a search."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil
import yaml

from bench.measure import Figure
from bench.reports import TRIALS, prepare
from bench.search import SCRIPT, is_over, reporting, took
from database.session import Database
from tests.kit.embedded import Embedded
from tests.kit.replicas import Replicas, replicas
from tests.kit.servers import postgres_server, temporal_server

RATE = 200
_CONNECTIONS = 50
_TRIALS, _RUNGS, _ROUNDS = 20, 60, 2
#: Between two restarts, so that each of the two works when the other one goes.
_PAUSE_S = 5.0


@dataclass
class Load:
    """Reports that were sent, and what became of them."""

    answers: Counter[str] = field(default_factory=Counter[str])
    seconds: list[float] = field(default_factory=list[float])
    lasted_s: float = 0.0

    @property
    def failed(self) -> int:
        """Of all, those that had another answer than 200, or none. Nothing is sent again."""
        return self.answers.total() - self.answers["200"]


def figures() -> Iterator[Figure]:
    """Three rolling restarts of both."""
    with tempfile.TemporaryDirectory() as name, postgres_server() as url:
        folder = Path(name)
        (folder / "temporal").mkdir()
        (folder / "api").mkdir()
        with temporal_server(folder / "temporal") as address, restartable(folder / "api", url, address) as api:
            loads = [asyncio.run(restarted(api)) for _ in range(3)]
    what = f"rolling restart of two APIs, {RATE} reports a second"
    sent = sum(load.answers.total() for load in loads)
    yield Figure(f"{what}: failed", [float(load.failed) for load in loads], "", 0, note=f"of {sent}")
    yield Figure(f"{what}: a report, p99", [_p99(load.seconds) * 1000 for load in loads], "ms")
    yield Figure(f"{what}: reports a second", [load.answers.total() / load.lasted_s for load in loads], "/s")

    yield from _decisions()


def _decisions() -> Iterator[Figure]:
    """One orchestrator after the other, then the agent, while twenty trials wait for the search about once a second each."""
    stops: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        cluster = Embedded(Path(name), slots=_TRIALS)
        with cluster.started():
            second = _second(cluster, 0)
            try:
                config = reporting(_TRIALS, _RUNGS, time.time() + 60)
                experiment_id = cluster.create(yaml.safe_dump(config), SCRIPT)
                cluster.until(lambda: took(cluster), 120, "the trials report")
                for number in range(1, 1 + _ROUNDS):  # always one of them works
                    stops.append(_restarted(cluster, "orchestrator"))
                    stops.append(_stopped(second))
                    second = _second(cluster, number)
                _restarted(cluster, "agent")
                cluster.until(lambda: is_over(cluster, experiment_id), 300, "the search is over")
            finally:
                second.kill()
                second.wait()
            waits = [1000 * seconds for seconds in took(cluster)]
            told = "SELECT count(*) FROM task_logs WHERE log LIKE 'reported%'"
            ((reported,),) = cluster.rows(told)
            ((restarts, runs),) = cluster.rows("SELECT sum(restarts), max(run_id) FROM trials")
            ((answers,),) = cluster.rows("SELECT count(*) FROM task_logs WHERE log LIKE 'ended after %'")
    what = f"rolling restart of two orchestrators, and of the agent, under {_TRIALS} trials"
    lost = reported - len(waits) - answers  # each report had the next operation for an answer, or the search's end
    yield Figure(f"{what}: decisions lost", [float(lost)], "", 0, note=f"of {reported}")
    yield Figure(f"{what}: restarts of trials", [float(restarts + runs - 1)], "", 0)
    yield Figure(f"{what}: a report until its answer, p99", [_p99(waits)], "ms")
    yield Figure(f"{what}: the longest", [max(waits)], "ms")
    yield Figure(f"{what}: SIGTERM until an orchestrator has left", [seconds * 1000 for seconds in stops], "ms")


def _second(cluster: Embedded, number: int) -> subprocess.Popen[bytes]:
    """Another orchestrator, once it is ready."""
    ready = cluster.folder / f"second-{number}.ready"
    process = cluster.another("orchestrator", UNDETERRED_READY_FILE=str(ready))
    cluster.until(ready.exists, 60, "the second orchestrator is ready")
    time.sleep(_PAUSE_S)
    return process


def _stopped(process: subprocess.Popen[bytes]) -> float:
    """SIGTERM; the seconds until it has gone."""
    began = time.perf_counter()
    process.terminate()
    process.wait(60)
    return time.perf_counter() - began


def _restarted(cluster: Embedded, part: str) -> float:
    """End a process of the embedded cluster as its operator would, and start it anew; the seconds until it has gone."""
    pid, began = psutil.Process(cluster.pid(part)), time.perf_counter()
    pid.terminate()
    pid.wait(60)
    gone = time.perf_counter() - began
    cluster.up()
    time.sleep(_PAUSE_S)
    return gone


def restartable(folder: Path, database_url: str, temporal_address: str):
    """Two processes of the API with trials that run, which drain for a second; HAProxy looks five times a second."""
    database = Database(database_url)
    prepare(database)
    database.close()
    return replicas(folder, database_url, temporal_address, UNDETERRED_DRAIN_S="1")


async def restarted(api: Replicas, pause_s: float = 3.0) -> Load:
    """Stop and start one process after the other, while reports come at a steady rate through the load balancer."""
    load, stop = Load(), asyncio.Event()
    connector = aiohttp.TCPConnector(limit=_CONNECTIONS)
    async with aiohttp.ClientSession(connector=connector) as session:
        began = time.perf_counter()
        reporting = [
            asyncio.create_task(_report(api.url, number, session, load, stop)) for number in range(_CONNECTIONS)
        ]
        await asyncio.sleep(pause_s)
        for member in api.members:
            await asyncio.to_thread(member.stop)
            await asyncio.to_thread(member.start)
            await asyncio.sleep(pause_s)
        stop.set()
        await asyncio.gather(*reporting)
        load.lasted_s = time.perf_counter() - began
    return load


async def _report(url: str, number: int, session: aiohttp.ClientSession, load: Load, stop: asyncio.Event) -> None:
    trial = number % TRIALS
    headers = {"Grpc-Metadata-x-allocation-token": f"Bearer token{trial}"}
    pause = _CONNECTIONS / RATE
    due = time.perf_counter() + pause * number / _CONNECTIONS
    step = int(time.time() * 1000)
    while not stop.is_set():
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        due += pause
        step += 1
        report = {"metrics": {"trialId": trial + 1, "trialRunId": 1, "stepsCompleted": step,
                              "metrics": {"avgMetrics": {"loss": 0.5}}}, "group": "training"}  # fmt: skip
        began = time.perf_counter()
        try:
            async with session.post(
                f"{url}/api/v1/trials/{trial + 1}/metrics", json=report, headers=headers
            ) as response:
                body = await response.text()
                answer = "200" if response.status == 200 else f"{response.status} {body[:200]}"
        except aiohttp.ClientError as error:
            answer = f"{type(error).__name__}: {error}"
        load.answers[answer] += 1
        load.seconds.append(time.perf_counter() - began)


def _p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.99)]
