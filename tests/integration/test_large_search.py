"""A search of many trials: its workflow stays small, and its user sees one search."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner

from tests.kit.platform import platform
from tests.kit.servers import temporal_server
from tests.kit.simulated import EndingTrial, Run, SimulatedTrial, runs
from workers.orchestrator import WORKFLOWS
from workflows import bursts, names
from workflows.attributes import STEP_LIMIT
from workflows.large import step_limit
from workflows.messages import ExperimentRun, TrialOrders, TrialRun
from workflows.searchers.replay import parse_lines, replay
from workflows.trial import Trial

TRIALS = 300
#: More than one record sends orders to.
MANY = 230


async def test_search_continues_as_new_unseen(tmp_path: Path) -> None:
    simulated = [SimulatedTrial if workflow is Trial else workflow for workflow in WORKFLOWS]
    with temporal_server(tmp_path, "limit.historyCount.suggestContinueAsNew=500") as address:
        async with platform(
            temporal_address=address,
            database_url=f"sqlite:///{tmp_path}/db",
            folder=tmp_path,
            pool="default",
            workflows=simulated,
        ) as running:
            searcher = {
                "name": "async_halving", "metric": "loss", "smaller_is_better": True, "max_trials": TRIALS,
                "num_rungs": 3, "divisor": 3, "max_time": 9, "time_metric": "epoch", "max_concurrent_trials": 50,
            }  # fmt: skip
            space = {"lr": {"type": "log", "base": 10, "minval": -4, "maxval": -1}}
            wanted = {"entrypoint": "true", "hyperparameters": space, "searcher": searcher}
            experiment_id = await running.create(wanted, {"train.py": ""})
            assert (await running.finish(experiment_id, 240))["state"] == "STATE_COMPLETED"
            assert len(await running.trials(experiment_id)) == TRIALS
            response = await running.http.get(f"/api/v1/experiments/{experiment_id}/search/history")
            header, decisions = parse_lines(response.text.splitlines())
            assert replay(header.new_search(), decisions) is None
            each = await runs(running.temporal, f"experiment-{experiment_id}")
            assert len(each) > 1, "the history was cut"
            assert max(run.size_bytes for run in each) < 10 * 2**20
            last, limit = await _started_with(running.temporal, experiment_id, each[-1])
            assert limit == step_limit(last) > STEP_LIMIT
            assert last.retired > 100, "what is over is not carried on"
            assert last.retired + len(last.trials) <= TRIALS
            ids = [trial["id"] for trial in await running.trials(experiment_id)]
            heard = [await _orders_of(running.temporal, trial_id) for trial_id in ids]
            assert any(len(orders) > 1 for orders in heard), "some were stopped"
            assert [each for each in heard if any(one == next_ for one, next_ in pairwise(each))] == []


@workflow.defn
class Computing:
    """Computes longer than the SDK lets a workflow do, as a search that reads a large state on a busy machine."""

    @workflow.run
    async def run(self) -> None:
        """Compute."""
        time.sleep(2.5)  # noqa: ASYNC251


async def test_step_that_takes_seconds_is_no_deadlock(tmp_path: Path) -> None:
    with temporal_server(tmp_path) as address:
        async with platform(
            temporal_address=address, database_url=f"sqlite:///{tmp_path}/db", folder=tmp_path, pool="default",
            workflows=[*WORKFLOWS, Computing], runner=UnsandboxedWorkflowRunner(),
        ) as running:  # fmt: skip
            handle = await running.temporal.start_workflow("Computing", id="c", task_queue=names.ORCHESTRATOR_QUEUE)
            await asyncio.wait_for(handle.result(), 30)
            failed = EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
            assert not [event async for event in handle.fetch_history_events() if event.event_type == failed]


async def _started_with(client: Client, experiment_id: int, run: Run) -> tuple[ExperimentRun, timedelta]:
    """What a run of an experiment's workflow was started with, and how long each of its tasks may take."""
    handle = client.get_workflow_handle(f"experiment-{experiment_id}", run_id=run.run_id)
    async for first in handle.fetch_history_events():
        started = first.workflow_execution_started_event_attributes
        [found] = await client.data_converter.decode(started.input.payloads, [ExperimentRun])
        return found, started.workflow_task_timeout.ToTimedelta()
    raise AssertionError("it has no history")


async def _orders_of(client: Client, trial_id: int) -> list[TrialOrders]:
    """What a trial heard, from what it began with on. An order that an activity sent twice counts once."""
    heard: dict[int, TrialOrders] = {}
    async for event in client.get_workflow_handle(f"trial-{trial_id}").fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
            given = event.workflow_execution_started_event_attributes.input.payloads
            [run] = await client.data_converter.decode(given, [TrialRun])
            heard[0] = run.orders
        elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
            [orders] = await client.data_converter.decode(
                event.workflow_execution_signaled_event_attributes.input.payloads, [TrialOrders]
            )
            heard[orders.sequence] = orders
    return [heard[sequence].model_copy(update={"sequence": 0}) for sequence in sorted(heard)]


async def test_all_of_many_trials_hear_of_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporal takes 2,000 signals on their way from a workflow: activities send them, a part at a time.

    And all end at once. Each keeps one of the worker's tasks until pool and experiment have heard of it, which need one
    as well: if none is left to them, this takes as long as the patience that is set here.
    """
    monkeypatch.setattr(bursts, "_TAKEN_WITHIN", timedelta(seconds=100))
    idle = [EndingTrial if workflow is Trial else workflow for workflow in WORKFLOWS]
    with temporal_server(tmp_path) as address:
        async with platform(
            temporal_address=address, database_url=f"sqlite:///{tmp_path}/db", folder=tmp_path, pool="default",
            workflows=idle, runner=UnsandboxedWorkflowRunner(),
        ) as running:  # fmt: skip
            searcher = {"name": "random", "metric": "x", "max_trials": MANY, "max_concurrent_trials": MANY}
            experiment_id = await running.create({"entrypoint": "true", "searcher": searcher}, {})
            for command, state in (("pause", "PAUSED"), ("cancel", "CANCELED")):
                await running.command(experiment_id, command)
                await running.until_state(experiment_id, state)
            sent = EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED
            history = running.temporal.get_workflow_handle(f"experiment-{experiment_id}").fetch_history_events()
            assert not [event async for event in history if event.event_type == sent]
