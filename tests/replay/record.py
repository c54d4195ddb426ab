"""Records the histories that `test_replay.py` replays: `python -m tests.replay.record`, before a release only.

Experiments are run on a real platform: one that finishes, one that is paused and resumed, one whose trial fails and
restarts. Kept are the histories of the experiment, its trials and the pool; of one search of each other method, of a fork
and of a search that continued as new those of the experiment; of a pool that grows and shrinks those of the pool, its nodes and
their agent; of a trial over two agents, of which one is lost, those of the pool and the trial; those of generic tasks; and of
runs of campaigns.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import tempfile
import unittest.mock
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sqlalchemy import select
from temporalio.client import WorkflowHistory

from database.models import Allocation, CampaignRun
from database.types import utc_now
from tests.kit.platform import Platform, platform
from tests.kit.scripts import EPOCHS, ONCE, TRAIN, config
from tests.kit.servers import temporal_server
from tests.kit.simulated import SimulatedTrial, runs
from workers.orchestrator import WORKFLOWS
from workflows.lifecycle.task import TaskKind
from workflows.trial import Trial

FOLDER = Path(__file__).parent / "histories" / version("undeterred")


async def finished(running: Platform) -> int:
    """A search with promotions that completes."""
    searcher = {"name": "adaptive_asha", "max_trials": 4, "max_length": 4, "max_concurrent_trials": 2, "divisor": 2}
    experiment_id = await running.create(config(searcher), {"train.py": TRAIN})
    await running.finish(experiment_id)
    return experiment_id


async def preempted(running: Platform) -> int:
    """Paused while it trains, then activated."""
    experiment_id = await running.create(
        config({"max_length": 20}, hyperparameters={"sleep": 0.1}), {"train.py": TRAIN}
    )
    trial_id = 0

    async def trains() -> bool:
        nonlocal trial_id
        trials = await running.trials(experiment_id)
        trial_id = trials[0]["id"] if trials else 0
        return bool(trials) and len(await running.metrics(trial_id)) > 1

    await running.until(trains)
    await running.command(experiment_id, "pause")
    await running.until_state(experiment_id, "PAUSED")
    await asyncio.sleep(2)  # the container leaves; how long it takes is part of what is recorded
    await running.command(experiment_id, "activate")
    await running.finish(experiment_id)
    return experiment_id


async def shared(running: Platform) -> int:
    """Leaves for another one of a better priority, under settings that changed, and after a move in the queue."""
    path = f"/api/v1/undeterred/resource-pools/{running.pool}/settings"
    slow = config({"max_length": 20}, hyperparameters={"sleep": 0.1}, resources={"priority": 60})
    searcher = {"name": "random", "max_trials": 2, "max_length": 20, "max_concurrent_trials": 2}
    first = await running.create({**slow, "searcher": {**slow["searcher"], **searcher}}, {"train.py": TRAIN})

    async def all_train() -> bool:
        trials = await running.trials(first)
        return len(trials) == 2 and all([await running.metrics(trial["id"]) for trial in trials])

    await running.until(all_train)
    assert (await running.http.patch(path, json={"settings": {"preemption": True}})).status_code == 200
    second, third = [await running.create(config(), {"train.py": TRAIN}) for _ in range(2)]
    jobs = [(await running.experiment(each))["jobId"] for each in (third, second)]
    await running.post("/api/v1/job-queues", {"updates": [{"jobId": jobs[0], "aheadOf": jobs[1]}]})
    await running.post("/api/v1/job-queues", {"updates": [{"jobId": jobs[1], "priority": 10}]})
    for experiment_id in (second, third, first):
        await running.finish(experiment_id)
    assert (await running.http.patch(path, json={"settings": {"preemption": None}})).status_code == 200
    return first


async def moved(running: Platform) -> int:
    """Moved to another pool while one of its trials trains and the other one waits."""
    path = "/api/v1/undeterred/resource-pools"
    [agent] = (await running.get("/api/v1/agents"))["agents"]
    slot = f"/api/v1/agents/{agent['id']}/slots/1"
    await running.post(f"{slot}/disable")
    await running.post(path, {"name": "other"})
    await running.start_agent("other", pool="other")
    slow = config({"max_length": 20}, hyperparameters={"sleep": 0.1})
    searcher = {"name": "random", "max_trials": 2, "max_concurrent_trials": 2}
    experiment_id = await running.create({**slow, "searcher": {**slow["searcher"], **searcher}}, {"train.py": TRAIN})
    await running.until_reported(experiment_id)
    job = (await running.experiment(experiment_id))["jobId"]
    await running.post("/api/v1/job-queues", {"updates": [{"jobId": job, "resourcePool": "other"}]})
    await running.finish(experiment_id)
    await running.post(f"{slot}/enable")
    return experiment_id


async def failed(running: Platform) -> int:
    """Its first run fails, its second resumes and finishes."""
    experiment_id = await running.create(config(max_restarts=2), {"train.py": ONCE})
    await running.finish(experiment_id)
    return experiment_id


_SPACE = {"quality": {"type": "double", "minval": 0.1, "maxval": 1.0, "count": 3}}
_HALVING = {"name": "async_halving", "max_trials": 4, "num_rungs": 2, "divisor": 2, "max_concurrent_trials": 2}
_METHODS: dict[str, dict[str, Any]] = {
    "random": {"name": "random", "max_trials": 3, "max_concurrent_trials": 2},
    "grid": {"name": "grid", "max_concurrent_trials": 2},
    "stop-once": {**_HALVING, "stop_once": True},
    "stopping": {**_HALVING, "max_length": None, "max_time": 4, "time_metric": "epoch"},
    "pbt": {"name": "pbt", "population_size": 3, "num_rounds": 2, "length_per_round": 2, "max_length": None},
    "optuna": {"name": "optuna", "max_trials": 3, "max_concurrent_trials": 2},
    "custom": {"name": "custom", "max_length": None},
}


async def methods(running: Platform, folder: str) -> None:
    """One small search of each method, edited while it runs where that is possible, and a fork of it."""
    for name, searcher in _METHODS.items():
        wanted = config(searcher, hyperparameters=_SPACE)
        wanted["searcher"] = {key: value for key, value in wanted["searcher"].items() if value is not None}
        script = EPOCHS if "max_time" in searcher else TRAIN
        experiment_id = await running.create(wanted, {"train.py": script})
        path = f"/api/v1/experiments/{experiment_id}"
        if name == "custom":
            await _answer(running, path)
        if name == "random":
            await running.post(f"{path}/search/amend", {"maxTrials": 4})
        await running.finish(experiment_id)
        await _keep(running, f"experiment-{experiment_id}", f"{name}_experiment", folder)
    fork = (await running.post(f"{path}/fork", {"config": await _longer(running, experiment_id)}))["experiment"]["id"]
    await running.finish(fork)
    await _keep(running, f"experiment-{fork}", "fork_experiment", folder)


async def _longer(running: Platform, experiment_id: int) -> str:
    text = (await running.experiment(experiment_id))["originalConfig"]
    return text.replace("name: custom", "name: random\n  max_trials: 2\n  max_length: 6")


async def _answer(running: Platform, path: str) -> None:
    """Run one trial of a custom search."""
    request_id = "11111111-2222-4333-8444-555555555555"
    replies: dict[str, list[dict[str, Any]]] = {
        "initialOperations": [
            {"createTrial": {"requestId": request_id, "hyperparams": '{"quality": 0.5}'}},
            {"trialOperation": {"validateAfter": {"requestId": request_id, "length": "3"}}},
        ],
        "validationCompleted": [{"closeTrial": {"requestId": request_id}}],
        "trialClosed": [{"shutDown": {}}],
    }
    while True:
        for event in (await running.http.get(f"{path}/searcher_events", timeout=70)).json()["searcherEvents"]:
            kind = next(key for key in event if key != "id")
            if kind == "experimentInactive":
                return
            body = {"triggeredByEvent": {"id": event["id"]}, "searcherOperations": replies.get(kind, [])}
            await running.post(f"{path}/searcher_operations", body)


async def continued() -> None:
    """A search whose workflow continues as new; its trials are simulated."""
    simulated = [SimulatedTrial if each is Trial else each for each in WORKFLOWS]
    searcher = {"name": "async_halving", "metric": "loss", "smaller_is_better": True, "max_trials": 60, "num_rungs": 3,
                "divisor": 3, "max_time": 9, "time_metric": "epoch", "max_concurrent_trials": 10}  # fmt: skip
    wanted = {"entrypoint": "true", "hyperparameters": _SPACE, "searcher": searcher}
    setting = "limit.historyCount.suggestContinueAsNew=150"
    with tempfile.TemporaryDirectory() as name, temporal_server(Path(name), setting) as address:
        folder = Path(name)
        async with platform(
            temporal_address=address, database_url=f"sqlite:///{folder}/db", folder=folder, pool="default",
            workflows=simulated,
        ) as running:  # fmt: skip
            experiment_id = await running.create(wanted, {"train.py": ""})
            await running.finish(experiment_id, 120)
            workflow_id = f"experiment-{experiment_id}"
            each = await runs(running.temporal, workflow_id)
            assert len(each) > 1, "it was to continue as new"
            for number, run in enumerate(each[:3], 1):
                await _keep(running, workflow_id, f"continued_run-{number}", str(folder), run.run_id)


async def elastic() -> None:
    """A pool whose node is launched for an experiment, and terminated when it is idle; then it has no provider any more."""
    with tempfile.TemporaryDirectory() as name, temporal_server(Path(name)) as address:
        folder = Path(name)
        program = folder / "nothing"  # the agent is started from here
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        async with platform(
            temporal_address=address, database_url=f"sqlite:///{folder}/db", folder=folder, pool="default",
            provider_folder=folder,
        ) as running:  # fmt: skip
            path = "/api/v1/undeterred/resource-pools/default"
            provider = {"launch": "nothing", "terminate": "nothing", "slots_per_node": 2, "idle_timeout": 3}
            await running.http.patch(f"{path}/settings", json={"settings": {"provider": provider}})
            experiment_id = await running.create(config(), {"train.py": TRAIN})
            nodes: list[dict[str, Any]] = []

            async def is_in(state: str) -> bool:
                nodes[:] = (await running.get(path))["nodes"]
                return [node["state"] for node in nodes] == ([state] if state else [])

            await running.until(lambda: is_in("starting"))
            agent_id = await running.start_agent(nodes[0]["id"].removeprefix("default-"))
            await running.finish(experiment_id)
            await running.until(lambda: is_in("terminated"))
            await running.stop_agent(agent_id)
            await running.until(lambda: is_in(""))
            await running.http.patch(f"{path}/settings", json={"settings": {"provider": None}})
            await running.temporal.get_workflow_handle("nodes-default").result()
            for workflow_id in ("nodes-default", "pool-default", f"agent-{agent_id}"):
                await _keep(running, workflow_id, f"elastic_{workflow_id.partition('-')[0]}", str(folder))


#: Over two agents: the first run stays, of the second the chief trains.
_OVER_TWO = """
import sys, time
import determined as det
if det.get_cluster_info().trial._trial_run_id == 1:
    print("stays", flush=True)
    time.sleep(300)
if det.get_cluster_info().container_rank:
    sys.exit()
"""
_ALONE = "core.DistributedContext(rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1)"


async def lost() -> None:
    """A trial over two agents, of which one is lost, and which goes on on the other and a third."""
    with tempfile.TemporaryDirectory() as name, temporal_server(Path(name)) as address:
        folder = Path(name)
        async with platform(
            temporal_address=address, database_url=f"sqlite:///{folder}/db", folder=folder, pool="default"
        ) as running:
            await running.start_agent("stays", slots=1)
            agent_id = await running.start_agent("goes", slots=1)
            wanted = config(resources={"slots_per_trial": 2})
            experiment_id = await running.create(
                wanted, {"train.py": _OVER_TWO + TRAIN.replace("core.init()", f"core.init(distributed={_ALONE})")}
            )

            async def both_run() -> bool:
                trials = await running.trials(experiment_id)
                return bool(trials) and (await running.logs(trials[0]["id"])).count("stays") == 2

            await running.until(both_run)
            await running.start_agent("spare", slots=1)
            await running.stop_agent(agent_id)
            assert (await running.finish(experiment_id))["state"] == "STATE_COMPLETED"
            [trial] = await running.trials(experiment_id)
            for workflow_id in ("pool-default", f"trial-{trial['id']}"):
                await _keep(running, workflow_id, f"lost_{workflow_id.partition('-')[0]}", str(folder))


async def tasks() -> None:
    """Tasks: one fails and starts again, one pauses, one is killed while it waits, one ends unused, one at a limit,
    and two come after others.
    """
    with tempfile.TemporaryDirectory() as name, temporal_server(Path(name)) as address:
        folder = Path(name)
        async with platform(
            temporal_address=address, database_url=f"sqlite:///{folder}/db", folder=folder, pool="default"
        ) as running:
            await running.start_agent(slots=1)
            failing = await _task(running, "exit 3", max_restarts=1)
            await _until_task(running, failing, "ERROR")
            paused = await _task(running, "exec sleep 2")
            await _until_task(running, paused, "ACTIVE", runs=1)
            waiting = await _task(running, "true")
            await running.post(f"/api/v1/tasks/{waiting}/kill", {})
            await running.post(f"/api/v1/tasks/{paused}/pause")
            await _until_task(running, paused, "PAUSED")
            await running.post(f"/api/v1/tasks/{paused}/unpause")
            await _until_task(running, paused, "COMPLETED")
            await _until_task(running, waiting, "CANCELED")
            with unittest.mock.patch("api.services.tasks.ENDS_IDLE", {TaskKind.GENERIC}):
                unused = await _task(running, "exec sleep 300", idle_timeout="1s")
            await _until_task(running, unused, "ACTIVE", runs=1)
            await asyncio.sleep(2)  # it is asked about before it is ready
            with running.database.write() as session:
                session.get_one(Allocation, f"{unused}.1").ready_at = utc_now()
            await _until_task(running, unused, "CANCELED")
            limited = await _task(running, "exec sleep 300", max_lifetime="1h")
            await _until_task(running, limited, "ACTIVE", runs=1)
            path = f"/api/v1/undeterred/tasks/{limited}/limits"
            assert (await running.http.patch(path, json={"maxLifetime": "2s"})).status_code == 200
            await _until_task(running, limited, "CANCELED")
            awaited, broken = await _task(running, "sleep 2"), await _task(running, "sleep 2; exit 3")
            later = await _task(running, "true", after=[awaited], after_any=[broken])
            dropped = await _task(running, "true", after=[broken])
            await running.post(f"/api/v1/tasks/{dropped}/pause")
            await _until_task(running, later, "COMPLETED")
            await _until_task(running, dropped, "CANCELED")
            kept = {
                "later": later,
                "dropped": dropped,
                "failing": failing,
                "paused": paused,
                "waiting": waiting,
                "unused": unused,
                "limited": limited,
            }
            for kind, task_id in kept.items():
                await _keep(running, f"task-{task_id}", f"task_{kind}", str(folder))


_TASK = '{entrypoint: ["python3", "-c", "import sys, time; time.sleep(%s); sys.exit(%s)"], resources: {slots: 0}}'
_CAMPAIGNS = {
    "whole": """
  train: {experiment: {entrypoint: python3 train.py, searcher: {name: single, metric: accuracy, max_length: 2}}}
  publish: {register: {checkpoint: "${steps.train.best_checkpoint}", model: kept}, when: "${steps.train.metric} >= 0"}
  skipped: {task: {entrypoint: "true"}, when: "${steps.train.metric} > 1000"}
""",
    "failed": f"""
  flaky: {{task: {_TASK % (0, 3)}, retries: 1, if_failed: continue}}
  refused: {{experiment: {{entrypoint: "true", searcher: {{name: single, metric: x, source_trial_id: "${{run.number}}000"}}}}}}
""",
    "canceled": f"""
  slow: {{task: {_TASK % (300, 0)}}}
  after: {{task: {_TASK % (0, 0)}, after: [slow]}}
""",
}


async def campaigns() -> None:
    """Runs of campaigns: one that completes, one that takes all from it, one whose steps fail, one that is paused and
    killed, and one of a schedule that Temporal cancels.
    """
    with tempfile.TemporaryDirectory() as name, temporal_server(Path(name)) as address:
        folder = Path(name)
        async with platform(
            temporal_address=address, database_url=f"sqlite:///{folder}/db", folder=folder, pool="default"
        ) as running:
            await running.start_agent()
            whole, failed, canceled = [await _campaign(running, name) for name in _CAMPAIGNS]
            await _campaign_run(running, whole, 1, "COMPLETED", "whole")
            await _campaign_run(running, whole, 2, "COMPLETED", "reused")
            await _campaign_run(running, failed, 1, "ERROR", "failed")
            await _campaign_run(running, canceled, 1, "CANCELED", "canceled", "pause", "activate", "kill")
            body = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-01T00:00:30Z"}
            await running.post(f"{_CAMPAIGN_PATH}/{canceled}/backfill", body)
            workflow_id = f"campaign-{canceled}-2026-01-01T00:00:00Z"
            await _until_step(running, canceled, 2)
            await running.temporal.get_workflow_handle(workflow_id).cancel()
            await running.until(lambda: _campaign_is(running, canceled, 2, "CANCELED"))
            await _keep(running, workflow_id, "campaign_replaced", str(folder))


_CAMPAIGN_PATH = "/api/v1/undeterred/campaigns"


async def _campaign(running: Platform, name: str) -> int:
    text = f"name: {name}\nschedule: {{cron: '@daily'}}\nsteps:{_CAMPAIGNS[name]}"
    files = [{"path": "train.py", "content": base64.b64encode(TRAIN.encode()).decode()}]
    campaign_id = (await running.post(_CAMPAIGN_PATH, {"definition": text, "files": files}))["campaign"]["id"]
    await running.post(f"{_CAMPAIGN_PATH}/{campaign_id}/pause")
    return campaign_id


async def _campaign_run(
    running: Platform, campaign_id: int, number: int, state: str, name: str, *commands: str
) -> None:
    await running.post(f"{_CAMPAIGN_PATH}/{campaign_id}/runs", {})
    for command in commands:
        await _until_step(running, campaign_id, number)
        await running.post(f"{_CAMPAIGN_PATH}/{campaign_id}/runs/{number}/{command}")
        await asyncio.sleep(2)
    await running.until(lambda: _campaign_is(running, campaign_id, number, state), 60)
    with running.database.read() as session:
        mine = CampaignRun.campaign_id == campaign_id, CampaignRun.number == number
        workflow_id = session.scalars(select(CampaignRun.workflow_id).where(*mine)).one()
    await _keep(running, workflow_id, f"campaign_{name}", str(running.folder))


async def _campaign_is(running: Platform, campaign_id: int, number: int, state: str) -> bool:
    runs = (await running.get(f"{_CAMPAIGN_PATH}/{campaign_id}/runs"))["runs"]
    return (number, state) in [(run["number"], run["state"]) for run in runs]


async def _until_step(running: Platform, campaign_id: int, number: int) -> None:
    async def runs() -> bool:
        response = await running.http.get(f"{_CAMPAIGN_PATH}/{campaign_id}/runs/{number}")
        return response.status_code == 200 and response.json()["run"]["steps"][0]["state"] == "RUNNING"

    await running.until(runs)


async def _task(running: Platform, line: str, **config: Any) -> str:
    body = {"config": json.dumps({"entrypoint": [line], **config})}
    return (await running.post("/api/v1/generic-tasks", body))["taskId"]


async def _until_task(running: Platform, task_id: str, state: str, *, runs: int = 0) -> None:
    async def is_there() -> bool:
        task = (await running.get(f"/api/v1/tasks/{task_id}"))["task"]
        has_run = [each for each in task["allocations"] if each["state"] == "STATE_RUNNING" or each["endTime"]]
        return task["taskState"] == f"GENERIC_TASK_STATE_{state}" and len(has_run) >= runs

    await running.until(is_there)


async def main() -> None:
    """Run the scenarios and write their histories. What was there before was recorded of code that is gone."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    await continued()
    await elastic()
    await lost()
    await tasks()
    await campaigns()
    with tempfile.TemporaryDirectory() as name, temporal_server(Path(name)) as address:
        folder = Path(name)
        async with platform(
            temporal_address=address, database_url=f"sqlite:///{folder}/db", folder=folder, pool="default"
        ) as running:
            agent_id = await running.start_agent()
            for scenario in (finished, preempted, shared, failed, moved):
                experiment_id = await scenario(running)
                ids = [f"experiment-{experiment_id}"]
                ids += [f"trial-{trial['id']}" for trial in await running.trials(experiment_id)]
                for workflow_id in ids:
                    await _keep(running, workflow_id, f"{scenario.__name__}_{workflow_id}", str(folder))
            await methods(running, str(folder))
            await _keep(running, "pool-default", "pool", str(folder))
            await _keep(running, f"agent-{agent_id}", "agent", str(folder))


async def _keep(running: Platform, workflow_id: str, name: str, folder: str, run_id: str | None = None) -> None:
    handle = running.temporal.get_workflow_handle(workflow_id, run_id=run_id)
    history: WorkflowHistory = await handle.fetch_history()
    content = json.loads(history.to_json())
    text = json.dumps(content, separators=(",", ":"))
    assert folder not in text, "a history must not name a path of the machine that recorded it"
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    asyncio.run(main())
