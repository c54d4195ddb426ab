"""A small cluster, of which the orchestrator is a process that dies when told to and is followed by another.

Several run side by side: each has its Temporal and its database.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from sqlalchemy import func, select
from temporalio.client import Client
from temporalio.worker import Worker

from activities.containers import AgentPresence
from database.models import Allocation, Experiment, Metric, SearchDecision, Trial
from tests.chaos import mortal
from tests.chaos.instant import InstantContainers
from tests.kit.platform import AGENT_TOKEN, QUICK, TERMINAL, Platform, platform
from tests.kit.servers import temporal_server
from workers.agent_api import ApiClient
from workers.settings import AgentSettings
from workflows import names
from workflows.converter import CONVERTER
from workflows.messages import PoolRun

_AGENT = "instant"
#: A host that is busy must not look like one that is gone.
_TIMING = QUICK.model_copy(update={"container_heartbeat_s": 60.0})
#: Temporal waits so long for a worker's answer before it asks another (default 10 s).
_SETTINGS = ('history.defaultWorkflowTaskTimeout="2s"',)

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["pytest", "tests.chaos.mortal"])


@dataclass(frozen=True)
class Death:
    """Where an orchestrator was killed."""

    step: int
    kind: str
    at: str


@dataclass(frozen=True)
class Run:
    """An experiment that ran to its end. `result` is all that must not depend on who was killed when."""

    result: dict[str, Any]
    starts: dict[str, int]
    death: Death | None
    seconds_after_death: float


class Lane:
    """The cluster. Experiments run one after the other."""

    def __init__(self, folder: Path, address: str, running: Platform, containers: InstantContainers) -> None:
        self.platform = running
        self._folder = folder
        self._address = address
        self._containers = containers
        self._order = folder / "order.json"
        self._steps = folder / "steps.jsonl"
        self._process: Any = None
        self._died_at = 0.0
        self._deaths = 0
        mortal.write_order(self._order)

    async def watch(self) -> None:
        """Have an orchestrator run, and another after its death, which nobody kills. Runs until cancelled."""
        settings = {"database_url": self.platform.database.url, "temporal_address": self._address}
        output = str(self._folder / "orchestrator.log")
        try:
            while True:
                arguments = (settings, str(self._order), str(self._steps), output)
                self._process = _processes.Process(target=mortal.run, args=arguments, daemon=True)
                self._process.start()
                await _end_of(self._process)
                self._died_at = time.monotonic()
                self._deaths += 1
                mortal.write_order(self._order)
        finally:
            self._process.kill()
            self._process.join()

    async def run(
        self, config: dict[str, Any], victim: str = "", step: int = 0, kinds: tuple[str, ...] = mortal.TELLING
    ) -> Run:
        """Run an experiment, and kill the orchestrator at a step of the `experiment` or of its first `trial`."""
        with self.platform.database.read() as session:
            next_experiment = (session.scalar(select(func.max(Experiment.id))) or 0) + 1
            next_trial = (session.scalar(select(func.max(Trial.id))) or 0) + 1
        workflow = {"experiment": f"experiment-{next_experiment}", "trial": f"trial-{next_trial}", "": ""}[victim]
        mortal.write_order(self._order, workflow, step, kinds)
        deaths = self._deaths
        experiment_id = await self.platform.create(config, {"train.py": ""})
        assert experiment_id == next_experiment
        state = (await self.platform.finish(experiment_id, 180))["state"]
        assert state in TERMINAL
        ended_at = time.monotonic()
        for workflow_id in (names.experiment_workflow(experiment_id), *self._trials(experiment_id)):
            await self.platform.temporal.get_workflow_handle(workflow_id).result()
        await self.platform.until(lambda: self._is_pool_free(), what="no slot is held")
        died = self._deaths > deaths
        mortal.write_order(self._order)
        starts = {
            name.partition(".")[2]: count
            for name, count in self._containers.starts.items()
            if name.startswith(f"{experiment_id}.")
        }
        return Run(self._result(experiment_id), starts, self.last_step() if died else None, ended_at - self._died_at)

    def last_step(self) -> Death:
        """The last step that was noted."""
        line = json.loads(self._steps.read_text().splitlines()[-1])
        return Death(line["step"], line["kind"], line["at"])

    async def _is_pool_free(self) -> bool:
        pool = await self.platform.temporal.get_workflow_handle(names.pool_workflow(self.platform.pool)).query(
            "snapshot", result_type=PoolRun
        )
        return not pool.snapshot.grants and not pool.snapshot.queue

    def _trials(self, experiment_id: int) -> list[str]:
        with self.platform.database.read() as session:
            ids = session.scalars(select(Trial.id).where(Trial.experiment_id == experiment_id)).all()
        return [names.trial_workflow(trial_id) for trial_id in ids]

    def _result(self, experiment_id: int) -> dict[str, Any]:
        with self.platform.database.read() as session:
            experiment = session.get_one(Experiment, experiment_id)
            trials = session.scalars(select(Trial).where(Trial.experiment_id == experiment_id).order_by(Trial.id)).all()
            decisions = session.scalars(
                select(SearchDecision.decision)
                .where(SearchDecision.experiment_id == experiment_id)
                .order_by(SearchDecision.number)
            ).all()
            request_ids = {trial.id: trial.request_id for trial in trials}
            mine = Metric.trial_id.in_(request_ids)
            metrics = session.scalars(select(Metric).where(mine).order_by(Metric.trial_id, Metric.id)).all()
            allocations = session.scalars(
                select(Allocation).where(Allocation.trial_id.in_(request_ids)).order_by(Allocation.task_id)
            ).all()
            return {
                "experiment": (experiment.state, experiment.progress, experiment.error, bool(experiment.ended_at)),
                "decisions": list(decisions),
                "trials": [
                    (trial.request_id, trial.seed, trial.hparams, trial.state, trial.restarts, trial.run_id, trial.rung,
                     trial.is_closed, trial.total_batches, trial.searcher_metric, trial.summary, bool(trial.ended_at))
                    for trial in trials
                ],
                "reports": [
                    (request_ids[row.trial_id], row.group_name, row.total_batches, row.metrics, row.archived)
                    for row in metrics
                ],
                "allocations": sorted(
                    (row.id.partition(".")[2], row.end_cause, bool(row.ended_at)) for row in allocations
                ),
            }  # fmt: skip


async def _end_of(process: Any) -> None:
    """Wait for a process without a thread, of which there may be fewer than lanes."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(process.sentinel, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(process.sentinel)
    process.join()


@contextlib.asynccontextmanager
async def lane(folder: Path) -> AsyncIterator[Lane]:
    """Start one. All ends with the block."""
    folder.mkdir()
    with temporal_server(folder, *_SETTINGS) as address:
        async with platform(
            temporal_address=address, database_url=f"sqlite:///{folder}/db", folder=folder, pool="default",
            timing=_TIMING, has_orchestrator=False,
        ) as running:  # fmt: skip
            containers = InstantContainers(running)
            client = await Client.connect(address, data_converter=CONVERTER)
            api = ApiClient(
                AgentSettings(
                    agent_id=_AGENT,
                    slots=2,
                    api_url=running.url,
                    agent_token=SecretStr(AGENT_TOKEN),
                    folder=str(folder),
                    heartbeat_s=60.0,
                )
            )
            presence = AgentPresence(api)
            agent = Worker(
                client,
                task_queue=names.agent_queue(_AGENT),
                activities=[containers.run_container, containers.kill_container, presence.presence],
            )
            async with agent:
                await api.hello()
                started = Lane(folder, address, running, containers)
                watching = asyncio.create_task(started.watch())
                try:
                    yield started
                finally:
                    watching.cancel()
                    await api.close()
                    with contextlib.suppress(asyncio.CancelledError):
                        await watching
                    await containers.close()
