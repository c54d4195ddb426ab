"""Experiments from creation to end, with real processes, on both databases."""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from tests.kit.platform import Platform
from tests.kit.scripts import ONCE, TRAIN, config
from workflows import names
from workflows.lifecycle.trial import TrialState
from workflows.messages import PoolRun, TrialOrders


async def test_search_completes_when_every_trial_does(cluster: Platform) -> None:
    searcher = {"name": "adaptive_asha", "max_trials": 6, "max_length": 8, "max_concurrent_trials": 3, "divisor": 2}
    experiment_id = await cluster.create(config(searcher), {"train.py": TRAIN})
    ended = await cluster.finish(experiment_id)
    trials = await cluster.trials(experiment_id)
    assert ended["state"] == "STATE_COMPLETED"
    assert ended["progress"] == 1.0
    assert [trial["state"] for trial in trials] == ["STATE_COMPLETED"] * 6
    best = max(trials, key=lambda trial: trial["searcherMetricValue"])
    assert ended["bestTrialId"] == best["id"]
    assert best["totalBatchesProcessed"] == 8
    for trial in trials:
        steps = [report["totalBatches"] for report in await cluster.metrics(trial["id"])]
        assert steps == list(range(1, trial["totalBatchesProcessed"] + 1)), "each validation is counted once"


async def test_nothing_is_trained_twice_when_paused_and_activated(cluster: Platform) -> None:
    experiment_id = await cluster.create(
        config({"max_length": 30}, hyperparameters={"sleep": 0.05}), {"train.py": TRAIN}
    )
    await cluster.until_state(experiment_id, "RUNNING")
    trial_id = (await cluster.trials(experiment_id))[0]["id"]
    await cluster.until(lambda: _steps(cluster, trial_id, 3), what="three steps are reported")
    await cluster.command(experiment_id, "pause")
    assert (await cluster.experiment(experiment_id))["state"] == "STATE_PAUSED"
    await cluster.until(lambda: _no_allocation(cluster, experiment_id), what="the container left")
    await cluster.command(experiment_id, "pause")  # a repeat has no effect
    await cluster.command(experiment_id, "activate")
    ended = await cluster.finish(experiment_id)
    assert ended["state"] == "STATE_COMPLETED"
    lines = await cluster.logs(trial_id)
    stopped = next(int(line.split()[-1]) for line in lines if line.startswith("preempted at"))
    assert f"resumed at {stopped}" in lines
    assert [line for line in lines if line.startswith("step ")] == [f"step {n}" for n in range(1, 31)]
    trial = (await cluster.trials(experiment_id))[0]
    assert (trial["restarts"], trial["runId"]) == (0, 2)


async def test_trial_leaves_and_goes_on_when_activated_as_soon_as_paused(cluster: Platform) -> None:
    """Its harness is asked to leave with the record of the pause: its workflow may never have had the order."""
    wanted = config({"max_length": 20}, hyperparameters={"sleep": 0.05})
    experiment_id = await cluster.create(wanted, {"train.py": TRAIN})
    await cluster.until_state(experiment_id, "RUNNING")
    trial_id = (await cluster.trials(experiment_id))[0]["id"]
    await cluster.until(lambda: _steps(cluster, trial_id, 2), what="two steps are reported")
    await cluster.command(experiment_id, "pause")
    await cluster.command(experiment_id, "activate")
    assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
    lines = await cluster.logs(trial_id)
    assert [line for line in lines if line.startswith("step ")] == [f"step {n}" for n in range(1, 21)]
    trial = (await cluster.trials(experiment_id))[0]
    assert (trial["restarts"], trial["runId"]) == (0, 2)


async def test_experiment_is_paused_from_the_start_when_not_activated(cluster: Platform) -> None:
    experiment_id = await cluster.create(config(), {"train.py": TRAIN}, activate=False)
    await cluster.until(lambda: _trial_states(cluster, experiment_id, ["STATE_PAUSED"]), what="the trial is paused")
    await cluster.command(experiment_id, "activate")
    assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"


@pytest.mark.parametrize(("command", "checkpoints"), [("cancel", 1), ("kill", 0)])
async def test_running_experiment_ends_when_canceled_or_killed(
    cluster: Platform, command: str, checkpoints: int
) -> None:
    experiment_id = await cluster.create(
        config({"max_length": 1000}, hyperparameters={"sleep": 0.05}), {"train.py": TRAIN}
    )
    await cluster.until_state(experiment_id, "RUNNING")
    trial_id = (await cluster.trials(experiment_id))[0]["id"]
    await cluster.until(lambda: _steps(cluster, trial_id, 2), what="two steps are reported")
    await cluster.command(experiment_id, command)
    ended = await cluster.finish(experiment_id)
    assert ended["state"] == "STATE_CANCELED"
    assert ended["checkpointCount"] == checkpoints, "a cancel lets the trial save, a kill does not"
    assert ended["progress"] < 0.5, "it is as far as it came"
    await cluster.command(experiment_id, command)  # on a terminal experiment it has no effect
    response = await cluster.http.post(f"/api/v1/experiments/{experiment_id}/activate")
    assert response.status_code == 400
    assert "terminal state" in response.json()["message"]


async def test_trial_resumes_from_its_checkpoint_when_it_fails(cluster: Platform) -> None:
    experiment_id = await cluster.create(config(max_restarts=2), {"train.py": ONCE})
    assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
    trial = (await cluster.trials(experiment_id))[0]
    assert trial["restarts"] == 1
    reports = await cluster.metrics(trial["id"])
    assert [(report["totalBatches"], report["trialRunId"]) for report in reports] == [(1, 1), (2, 1), (3, 2), (4, 2)]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("import no_such_module", "No module named 'no_such_module'"),
        ("import sys; sys.exit(3)", "exited with code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended by signal 11"),
    ],
)
async def test_trial_ends_in_error_when_its_restarts_are_spent(cluster: Platform, script: str, said: str) -> None:
    experiment_id = await cluster.create(config(max_restarts=1), {"train.py": script})
    ended = await cluster.finish(experiment_id)
    assert ended["state"] == "STATE_ERROR"
    trial = (await cluster.trials(experiment_id))[0]
    assert (trial["state"], trial["restarts"], trial["runId"]) == ("STATE_ERROR", 1, 2)
    assert "exceeded max restarts (1)" in trial["message"]
    assert any(said in line for line in await cluster.logs(trial["id"])), "the log says why"


async def test_trial_whose_memory_does_not_suffice_tries_smaller_batches(cluster: Platform) -> None:
    script = (
        """
import determined as det
hparams = det.get_cluster_info().trial.hparams
print("batch", hparams["batch"], "of", hparams["data"]["steps"], flush=True)
if hparams["batch"] > 8:
    raise MemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
"""
        + TRAIN
    )
    policy = {"failure": "out_of_memory", "multiply": {"batch": 0.5, "data.steps": 2}, "attempts": 2}
    space = {"batch": 32, "data": {"steps": 1}}
    wanted = config({"max_length": 2}, max_restarts=0, failure_policies=[policy])
    wanted["hyperparameters"] |= space
    experiment_id = await cluster.create(wanted, {"train.py": script})
    assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
    [trial] = await cluster.trials(experiment_id)
    assert (trial["restarts"], trial["runId"]) == (0, 3)
    assert trial["hparams"]["batch"] == 32, "what the search chose"
    log = await cluster.logs(trial["id"])
    assert [line for line in log if line.startswith("batch ")] == ["batch 32 of 1", "batch 16 of 2", "batch 8 of 4"]
    assert any("its next run has batch x 0.25, data.steps x 4" in line for line in log)


_HANGS = """
import os, sys, threading
import determined as det
from determined import core

info = det.get_cluster_info()
run = int(os.environ["DET_TRIAL_RUN_ID"])
def stands_still():
    threading.Event().wait()
if run == 1:
    with core.init():
        stands_still()
if run == 2:
    raise MemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
slots = info.trial._config["resources"]["slots_per_trial"]
print(f"run {run} has {len(info.slot_ids)} slots of {slots}", flush=True)
if run == 3:
    raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
"""


async def test_trial_goes_on_after_a_hang_on_more_slots_and_away_from_a_bad_gpu(cluster: Platform) -> None:
    await cluster.start_agent("agent-b")
    policies = [
        {"failure": "hang", "silent_for": "10s", "attempts": 1},
        {"failure": "out_of_memory", "resources": {"slots_per_trial": 2}, "attempts": 1},
        {"failure": "bad_gpu", "attempts": 1},
    ]
    wanted = config({"max_length": 2}, max_restarts=0, failure_policies=policies)
    experiment_id = await cluster.create(wanted, {"train.py": _HANGS})
    assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
    [trial] = await cluster.trials(experiment_id)
    assert (trial["restarts"], trial["runId"]) == (0, 4)
    log = await cluster.logs(trial["id"])
    assert any(line.endswith(" in stands_still") for line in log), "what its threads did"
    assert [line for line in log if line.startswith("run ")] == ["run 3 has 2 slots of 2", "run 4 has 2 slots of 2"]
    why = await cluster.get(f"/api/v1/undeterred/trials/{trial['id']}/why")
    runs = why["facts"]["runs"]
    assert [run["cause"] for run in runs] == ["hang", "user_code", "bad_gpu", "nothing_reported"]
    assert runs[0]["message"].startswith("it reported and wrote nothing for 10s, and was killed")
    assert runs[3]["agents"] != runs[2]["agents"]
    assert any(
        "the failure policy for `bad_gpu` matched the line `RuntimeError: CUDA" in each for each in why["sentences"]
    )


async def test_trial_fails_with_a_sentence_when_its_entrypoint_is_missing(cluster: Platform) -> None:
    experiment_id = await cluster.create(config(entrypoint=["./no_such_command"]), {"train.py": TRAIN})
    assert (await cluster.finish(experiment_id))["state"] == "STATE_ERROR"
    trial = (await cluster.trials(experiment_id))[0]
    assert any("no_such_command" in line for line in await cluster.logs(trial["id"]))


async def test_search_goes_on_when_a_trial_reports_invalid_hyperparameters(cluster: Platform) -> None:
    script = TRAIN.replace(
        "steps = 0\nwith", "steps = 0\nif hparams['quality'] < 0.5:\n    hparams['bad'] = True\nwith"
    ).replace("    def save", "    if hparams.get('bad'):\n        raise det.InvalidHP('too low')\n    def save")
    searcher = {"name": "random", "max_trials": 4, "max_length": 2, "max_concurrent_trials": 2}
    experiment_id = await cluster.create(config(searcher), {"train.py": script})
    assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
    trials = await cluster.trials(experiment_id)
    good = [trial for trial in trials if trial["hparams"]["quality"] >= 0.5]
    assert len(good) == 4, "each invalid one is replaced"
    assert all(trial["state"] == "STATE_COMPLETED" for trial in trials)
    assert all(trial["restarts"] == 0 for trial in trials)


async def test_search_counts_nan_as_worst(cluster: Platform) -> None:
    script = TRAIN.replace('{"accuracy": hparams.get("quality", 0.5) * steps}', '{"accuracy": float("nan")}').replace(
        'op.report_completed(hparams.get("quality", 0.5) * steps)', "op.report_completed(float('nan'))"
    )
    searcher = {"name": "adaptive_asha", "max_trials": 3, "max_length": 4, "divisor": 2, "max_concurrent_trials": 3}
    experiment_id = await cluster.create(config(searcher), {"train.py": script})
    ended = await cluster.finish(experiment_id)
    assert ended["state"] == "STATE_COMPLETED"
    assert ended["bestTrialSearcherMetric"] is None


async def test_container_is_gone_when_it_ignores_the_kill_signal(cluster: Platform) -> None:
    script = (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\ntime.sleep(600)"
    )
    experiment_id = await cluster.create(config(), {"train.py": script})
    await cluster.until_state(experiment_id, "RUNNING")
    trial_id = (await cluster.trials(experiment_id))[0]["id"]
    await cluster.until(lambda: _says(cluster, trial_id, "deaf"), what="the script runs")
    await cluster.command(experiment_id, "kill")
    assert (await cluster.finish(experiment_id, 30))["state"] == "STATE_CANCELED"
    assert not _processes_with(f"DET_EXPERIMENT_ID={experiment_id}", str(cluster.folder))


async def test_pause_is_a_kill_after_the_preemption_timeout(cluster: Platform) -> None:
    script = TRAIN.replace("if context.preempt.should_preempt():", "if context.preempt.should_preempt() and False:")
    experiment_id = await cluster.create(
        config({"max_length": 10_000}, hyperparameters={"sleep": 0.05}, preemption_timeout=1), {"train.py": script}
    )
    await cluster.until_state(experiment_id, "RUNNING")
    trial_id = (await cluster.trials(experiment_id))[0]["id"]
    await cluster.until(lambda: _steps(cluster, trial_id, 1), what="a step is reported")
    await cluster.command(experiment_id, "pause")
    await cluster.until(lambda: _no_allocation(cluster, experiment_id), what="the container was killed")
    # the trial's own record follows that of its allocation
    await cluster.until(lambda: _trial_states(cluster, experiment_id, ["STATE_PAUSED"]), what="the trial is paused")
    assert (await cluster.trials(experiment_id))[0]["restarts"] == 0
    await cluster.command(experiment_id, "kill")
    await cluster.finish(experiment_id)


async def test_requests_wait_their_turn_when_the_pool_is_full(cluster: Platform) -> None:
    long = await cluster.create(
        config({"max_length": 1000}, hyperparameters={"sleep": 0.05}, resources={"slots_per_trial": 2}),
        {"train.py": TRAIN},
    )
    await cluster.until_state(long, "RUNNING")
    short = await cluster.create(config(), {"train.py": TRAIN})
    await cluster.until_state(short, "QUEUED")
    await cluster.command(long, "kill")
    assert (await cluster.finish(short))["state"] == "STATE_COMPLETED"
    assert (await cluster.finish(long))["state"] == "STATE_CANCELED"


async def test_training_goes_on_when_its_agent_is_away(cluster: Platform) -> None:
    experiment_id = await cluster.create(
        config({"max_length": 60}, hyperparameters={"sleep": 0.05}), {"train.py": TRAIN}
    )
    await cluster.until_state(experiment_id, "RUNNING")
    trial_id = (await cluster.trials(experiment_id))[0]["id"]
    await cluster.until(lambda: _steps(cluster, trial_id, 1), what="a step is reported")
    agent_id = next(iter(cluster.agents))
    await cluster.stop_agent(agent_id)
    await cluster.start_agent()
    assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
    trial = (await cluster.trials(experiment_id))[0]
    assert (trial["restarts"], trial["runId"]) == (0, 1), "the same process, the same run"
    lines = await cluster.logs(trial_id)
    assert [line for line in lines if line.startswith("step ")] == [f"step {n}" for n in range(1, 61)]


async def test_trial_moves_on_without_cost_when_its_agent_is_lost(cluster: Platform) -> None:
    # Training outlasts by far the 3 s after which the first host counts as lost:
    # a copy that ends its work before that is not lost, it is done.
    lost = next(iter(cluster.agents))
    experiment_id = await cluster.create(
        config({"max_length": 40}, hyperparameters={"sleep": 0.4}), {"train.py": TRAIN}
    )
    await cluster.until_state(experiment_id, "RUNNING")
    await cluster.start_agent("agent-b")
    trial_id = (await cluster.trials(experiment_id))[0]["id"]
    await cluster.until(lambda: _steps(cluster, trial_id, 1), what="a step is reported")
    await cluster.stop_agent(lost)
    assert (await cluster.finish(experiment_id, 90))["state"] == "STATE_COMPLETED"
    trial = (await cluster.trials(experiment_id))[0]
    assert trial["restarts"] == 0, "a lost host costs the user nothing"
    assert trial["runId"] == 2
    steps = [report["totalBatches"] for report in await cluster.metrics(trial_id)]
    assert steps == list(range(1, 41)), "the late copy's reports are refused"
    await cluster.start_agent()  # it comes back, and ends the copy that was given up
    await cluster.until(
        lambda: not _processes_with(f"DET_EXPERIMENT_ID={experiment_id}", str(cluster.folder)), what="the copy is gone"
    )


async def _silent(cluster: Platform) -> list[str]:
    """Agents that did not come back in time, whose work could run nowhere else."""
    handle = cluster.temporal.get_workflow_handle(names.pool_workflow(cluster.pool))
    run: PoolRun = await handle.query("snapshot", result_type=PoolRun)
    return run.silent


async def _running_on_a_silent_host(cluster: Platform, length: int = 100) -> int:
    """An experiment whose trial trains on the only host, whose agent is given up by the clock."""
    experiment_id = await cluster.create(
        config({"max_length": length}, hyperparameters={"sleep": 0.1}), {"train.py": TRAIN}
    )
    await cluster.until_reported(experiment_id)
    await cluster.stop_agent(next(iter(cluster.agents)))

    async def is_silent() -> bool:
        return bool(await _silent(cluster))

    await cluster.until(is_silent, what="the agent is given up by the clock")
    return experiment_id


async def test_trial_stays_on_a_host_that_stood_still_when_no_other_could_run_it(cluster: Platform) -> None:
    experiment_id = await _running_on_a_silent_host(cluster)
    await cluster.start_agent()
    assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
    trial = (await cluster.trials(experiment_id))[0]
    assert (trial["restarts"], trial["runId"]) == (0, 1), "the same process, the same run"
    assert await _silent(cluster) == []


async def test_trial_of_a_silent_host_ends_when_it_is_killed(cluster: Platform) -> None:
    experiment_id = await _running_on_a_silent_host(cluster, 600)
    await cluster.command(experiment_id, "kill")
    assert (await cluster.finish(experiment_id, 10))["state"] == "STATE_CANCELED"
    await cluster.start_agent()  # it comes back, and ends what nobody wants any more
    await cluster.until(
        lambda: not _processes_with(f"DET_EXPERIMENT_ID={experiment_id}", str(cluster.folder)), what="the copy is gone"
    )


async def test_trial_of_a_silent_host_moves_when_another_one_joins(cluster: Platform) -> None:
    experiment_id = await _running_on_a_silent_host(cluster, 60)
    await cluster.start_agent("agent-b")
    assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
    trial = (await cluster.trials(experiment_id))[0]
    assert (trial["restarts"], trial["runId"]) == (0, 2)
    assert await _silent(cluster) == []


async def test_trial_is_not_started_twice_when_killed_before_it_is_ready(cluster: Platform) -> None:
    experiment_id = await cluster.create(config(), {"train.py": "import time; time.sleep(600)"})
    await cluster.until_state(experiment_id, "STARTING", "RUNNING")
    await cluster.command(experiment_id, "pause")
    await cluster.until(lambda: _no_allocation(cluster, experiment_id), what="the container was killed")
    assert (await cluster.trials(experiment_id))[0]["restarts"] == 0
    await cluster.command(experiment_id, "kill")
    assert (await cluster.finish(experiment_id))["state"] == "STATE_CANCELED"


async def test_one_trial_ends_when_it_is_killed_alone(cluster: Platform) -> None:
    searcher = {"name": "random", "max_trials": 2, "max_length": 20, "max_concurrent_trials": 2}
    experiment_id = await cluster.create(config(searcher, hyperparameters={"sleep": 0.05}), {"train.py": TRAIN})
    await cluster.until_state(experiment_id, "RUNNING")
    await cluster.until(lambda: _trial_states(cluster, experiment_id, ["STATE_RUNNING"] * 2), what="both run")
    first, _ = await cluster.trials(experiment_id)
    assert await cluster.post(f"/api/v1/trials/{first['id']}/kill") == {"state": "STATE_STOPPING_KILLED"}
    assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
    assert await cluster.post(f"/api/v1/trials/{first['id']}/kill") == {"state": "STATE_CANCELED"}, "asked again"
    states = [trial["state"] for trial in await cluster.trials(experiment_id)]
    assert states == ["STATE_CANCELED", "STATE_COMPLETED"]


async def test_asha_of_the_newer_generation_stops_trials_on_their_reports(cluster: Platform) -> None:
    script = TRAIN.replace("for op in context.searcher.operations():", "for op in [None]:").replace(
        "while steps < op.length and", "while steps < 16 and"
    )
    script = script.replace("        op.report_completed", "        0 and op.report_completed")
    searcher = {
        "name": "adaptive_asha",
        "mode": "aggressive",
        "max_trials": 4,
        "max_time": 16,
        "time_metric": "steps",
        "divisor": 4,
        "max_concurrent_trials": 2,
    }
    script = script.replace('{"accuracy": hparams', '{"steps": steps, "accuracy": hparams')
    wanted = config(searcher, hyperparameters={"sleep": 0.25, "quality": {"type": "double", "minval": 0, "maxval": 1}})
    del wanted["searcher"]["max_length"]
    experiment_id = await cluster.create(wanted, {"train.py": script})
    assert (await cluster.finish(experiment_id, 90))["state"] == "STATE_COMPLETED"
    trials = await cluster.trials(experiment_id)
    assert len(trials) == 4
    assert all(trial["state"] == "STATE_COMPLETED" for trial in trials)
    assert any(trial["totalBatchesProcessed"] < 16 for trial in trials), "worse ones are stopped early"


async def _steps(cluster: Platform, trial_id: int, count: int) -> bool:
    return len(await cluster.metrics(trial_id)) >= count


async def _says(cluster: Platform, trial_id: int, text: str) -> bool:
    return text in await cluster.logs(trial_id)


async def _trial_states(cluster: Platform, experiment_id: int, states: list[str]) -> bool:
    return [trial["state"] for trial in await cluster.trials(experiment_id)] == states


async def _no_allocation(cluster: Platform, experiment_id: int) -> bool:
    trials = await cluster.trials(experiment_id)
    tasks = [await cluster.get(f"/api/v1/tasks/{trial['taskId']}") for trial in trials]
    return all(allocation["endTime"] for task in tasks for allocation in task["task"]["allocations"])


def _processes_with(*marks: str) -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if all(mark in environment for mark in marks):
            found.append(int(entry.name))
    return found


async def test_trial_follows_its_latest_orders_when_signals_overtake_each_other(cluster: Platform) -> None:
    experiment_id = await cluster.create(config(), {"train.py": TRAIN}, activate=False)
    await cluster.until(lambda: _trial_states(cluster, experiment_id, ["STATE_PAUSED"]), what="the trial is paused")
    await cluster.command(experiment_id, "pause")  # starts the workflows: until now nobody needed them
    trial = (await cluster.trials(experiment_id))[0]
    handle = cluster.temporal.get_workflow_handle(f"trial-{trial['id']}")

    async def is_there() -> bool:
        try:
            return (await handle.describe()).status is WorkflowExecutionStatus.RUNNING
        except RPCError:
            return False

    await cluster.until(is_there, what="the trial's workflow was started")
    paused = TrialOrders(sequence=10, state=TrialState.PAUSED, length=4, needs_length=True)
    await handle.signal("orders", paused)
    await handle.signal("orders", paused.model_copy(update={"sequence": 9, "state": TrialState.ACTIVE}))
    await handle.signal("orders", paused.model_copy(update={"sequence": 11, "length": None, "is_closed": True}))
    await handle.signal("orders", paused.model_copy(update={"sequence": 8}))
    await cluster.until(lambda: _trial_states(cluster, experiment_id, ["STATE_COMPLETED"]), what="the trial ended")
    assert (await cluster.trials(experiment_id))[0]["runId"] == 0, "the overtaken order to run was not followed"
