"""What more cores give: trials started a second while each part of the control plane has cores of its own.

Temporal is a server of four services on PostgreSQL. The parts get their cores from the system (`taskset` would do the
same), so that none takes what another lacks. A plan that needs more cores than the machine has is left out, and said.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import psutil
from pydantic import SecretStr
from sqlalchemy import create_engine, text

from bench.hosts import config_of, create
from bench.measure import Figure, processor_time
from bench.simulated import SimulatedLauncher
from tests.kit.platform import ADMIN_PASSWORD, AGENT_TOKEN
from tests.kit.replicas import Replica
from tests.kit.servers import environment_of_a_part, restartable_postgres
from tests.kit.temporal_cluster import TemporalCluster, temporal_cluster
from workers import agent
from workers.settings import AgentSettings

#: Trials that start, over so many experiments: a search decides one step after the other, and is one of many.
_TRIALS, _EXPERIMENTS = int(os.environ.get("BENCH_TRIALS", "600")), 10
_WITHIN_S = 300


@dataclass(frozen=True)
class _Plan:
    """Which cores each part may use. An API and an orchestrator are a process each; two lists are two processes."""

    name: str
    apis: Sequence[list[int]]
    orchestrators: Sequence[list[int]]
    temporal: list[int]
    postgres: list[int]
    agents: list[int]

    @property
    def cores(self) -> int:
        """How many the machine must have."""
        return 1 + max(chain(*self.apis, *self.orchestrators, self.temporal, self.postgres, self.agents))


_PLANS = (
    _Plan("all on two cores", [[0, 1]], [[0, 1]], [0, 1], [0, 1], [0, 1]),
    _Plan("API, orchestrator and Temporal on a core each", [[0]], [[1]], [2], [3], [4]),
    _Plan("the same with two cores for Temporal", [[0]], [[1]], [2, 3], [4], [5]),
    _Plan("the same with two orchestrators", [[0]], [[1], [2]], [3, 4], [5, 6], [7]),
    _Plan("two APIs, two orchestrators, two cores for Temporal", [[0], [1]], [[2], [3]], [4, 5], [6, 7], [8]),
    _Plan(
        "two APIs, four orchestrators, four cores for Temporal",
        [[0], [1]], [[2], [3], [4], [5]], [6, 7, 8, 9], [10, 11, 12], [13, 14],
    ),
)  # fmt: skip


def figures() -> Iterator[Figure]:
    """One row a plan, with the processor time of each part a trial."""
    has = len(os.sched_getaffinity(0))
    for plan in _PLANS:
        if plan.cores <= has:
            yield asyncio.run(_measured(plan))
        else:
            print(f"{plan.name}: needs {plan.cores} cores, this machine has {has}", file=sys.stderr)


@contextlib.contextmanager
def _pinned(cores: list[int]) -> Generator[None]:
    """What is started in the block runs on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


async def _measured(plan: _Plan) -> Figure:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        with _pinned(plan.postgres):
            # Temporal's services take up to 120 connections, each API and orchestrator its pool's
            postgres = stack.enter_context(restartable_postgres("max_connections=500")).url
        async with contextlib.AsyncExitStack() as later:
            with _pinned(plan.temporal):
                temporal = await later.enter_async_context(temporal_cluster(folder, postgres, "undeterred"))
            return await asyncio.to_thread(_starts, plan, folder, postgres, temporal)


def _starts(plan: _Plan, folder: Path, postgres: str, temporal: TemporalCluster) -> Figure:
    settings = {
        "UNDETERRED_DATABASE_URL": postgres,
        "UNDETERRED_ADMIN_PASSWORD": ADMIN_PASSWORD,
        "UNDETERRED_AGENT_TOKEN": AGENT_TOKEN,
        "UNDETERRED_STORAGE_ROOTS": str(folder),
        **{f"UNDETERRED_{name.upper()}": str(value) for name, value in temporal.settings.items()},
    }
    engine = create_engine(postgres)
    with contextlib.ExitStack() as stack:
        apis = [Replica(folder, settings) for _ in plan.apis]
        for api, cores in zip(apis, plan.apis, strict=True):
            stack.callback(api.kill)
            with _pinned(cores):
                api.start()
        orchestrators = [stack.enter_context(_orchestrator(folder, settings, cores)) for cores in plan.orchestrators]
        for number, api in enumerate(apis):
            stack.enter_context(_agent(number, len(apis), folder, api.url, temporal, plan.agents))
        http = stack.enter_context(httpx.Client(base_url=apis[0].url, timeout=60))
        token = http.post("/api/v1/auth/login", json={"username": "admin", "password": ADMIN_PASSWORD}).json()["token"]
        http.headers["Authorization"] = f"Bearer {token}"
        while sum(each["enabled"] for each in http.get("/api/v1/agents").json()["agents"]) < len(apis):
            time.sleep(0.1)
        parts = {
            "Temporal": [psutil.Process(process.pid) for process in temporal.services.values()],
            "orchestrator": [psutil.Process(each.pid) for each in orchestrators],
            "API": [psutil.Process(each.pid) for each in apis],
        }
        storage = {"checkpoint_storage": {"type": "shared_fs", "host_path": str(folder)}}
        each = _TRIALS // _EXPERIMENTS
        spent, began = _spent(parts), time.monotonic()
        for _ in range(_EXPERIMENTS):
            create(http, config_of(each, each, "true") | storage)
        while (running := _running(engine)) < _TRIALS:
            assert time.monotonic() - began < _WITHIN_S, f"{plan.name}: {running} of {_TRIALS} run in time"
            time.sleep(0.1)
        seconds, of_each = time.monotonic() - began, _spent(parts) - spent
        engine.dispose()
    note = ", ".join(f"{part} {used / _TRIALS * 1000:.3g}" for part, used in of_each.most_common())
    return Figure(
        f"trials started a second, {plan.name}", [_TRIALS / seconds], "/s", more_is_better=True,
        note=f"{note} ms of processor time a trial; {_EXPERIMENTS} searches, no processes",
    )  # fmt: skip


def _spent(parts: dict[str, list[psutil.Process]]) -> Counter[str]:
    """Processor seconds by part, and of every PostgreSQL of this machine."""
    spent = {part: sum(sum(process.cpu_times()[:2]) for process in processes) for part, processes in parts.items()}
    return Counter(spent | {"PostgreSQL": processor_time()})


def _running(engine: Any) -> int:
    with engine.connect() as connection:
        return connection.scalar(text("SELECT count(*) FROM allocations WHERE state = 'RUNNING'"))


@contextlib.contextmanager
def _orchestrator(folder: Path, settings: dict[str, str], cores: list[int]) -> Generator[subprocess.Popen[bytes]]:
    environment = environment_of_a_part(settings)
    with _pinned(cores), (folder / "orchestrator.log").open("ab") as log:
        process = subprocess.Popen([sys.executable, "-m", "workers.orchestrator"], env=environment, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _agent(
    number: int, of: int, folder: Path, api_url: str, temporal: TemporalCluster, cores: list[int]
) -> Generator[None]:
    """A process with an agent whose containers are none, but report once a second."""
    settings = AgentSettings(
        **temporal.settings,
        agent_id=f"simulated-{number}",
        slots=_TRIALS // of,
        api_url=api_url,
        agent_token=SecretStr(AGENT_TOKEN),
        folder=str(folder / f"agent-{number}"),
    )
    with _pinned(cores):
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=_serve_agent, args=(settings,), daemon=True)
        process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _serve_agent(settings: AgentSettings) -> None:
    asyncio.run(agent.main(settings, asyncio.Event(), launcher=SimulatedLauncher(settings.api_url)))
