"""Trials whose harness is the published one, as plain processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.compat.published import GENERATIONS, MODEL, PASSWORD, Published, experiment_config
from tests.compat.record import WORKS


def test_trial_is_paused_and_resumes_from_its_checkpoint(client: Published) -> None:
    searcher = {"name": "single", "metric": "accuracy", "smaller_is_better": False, "max_length": 20}
    experiment = client.create(hyperparameters={"sleep": 0.1}, searcher=searcher)
    pause_and_resume(client, experiment)
    client.record.program(client.generation, "Core API: pause, resume from the checkpoint, complete", WORKS)


def pause_and_resume(client: Published, experiment: int) -> None:
    """Pause an experiment of 20 steps in its middle, activate it again, and look whether every step was done once."""
    trials = f"SELECT id FROM trials WHERE experiment_id = {experiment}"
    allocations = f"SELECT end_cause FROM allocations WHERE trial_id IN ({trials}) ORDER BY run_id"
    steps = f"SELECT DISTINCT total_batches FROM metrics WHERE group_name = 'validation' AND trial_id IN ({trials})"
    client.cluster.until(lambda: len(client.rows(steps)) >= 3, 60, "three steps are reported")
    client.det("experiment", "pause", str(experiment))
    client.cluster.until(lambda: client.rows(allocations) == [("preempted",)], 30, "the trial has left")
    client.det("experiment", "activate", str(experiment))
    client.wait_for(experiment)
    log = client.det("experiment", "logs", str(experiment))
    (left,) = [line.split()[-1] for line in log.splitlines() if "preempted at" in line]
    (back,) = [line.split()[-1] for line in log.splitlines() if "resumed at" in line]
    assert left == back
    assert log.count("the hook ran") == 2
    seen = [int(line.split()[-1]) for line in log.splitlines() if "|| step" in line]
    assert seen == list(range(1, 21)), "in order, and each once"
    assert client.rows(f"SELECT state, restarts, run_id FROM trials WHERE experiment_id = {experiment}") == [
        ("COMPLETED", 0, 2)
    ]
    # 0.38 makes up its operation and reports no completion; the end of its process is the end of the trial
    assert client.rows(allocations)[-1] == ("exit_zero" if client.is_new else "out_of_operations",)


def test_failed_trial_restarts_from_its_checkpoint(client: Published) -> None:
    experiment = client.create(entrypoint="python3 fails_once.py", max_restarts=1)
    client.wait_for(experiment)
    assert "resumed at 2" in client.det("experiment", "logs", str(experiment))
    assert client.rows(f"SELECT state, restarts FROM trials WHERE experiment_id = {experiment}") == [("COMPLETED", 1)]
    client.record.program(client.generation, "Core API: restart after a failure", WORKS)


def test_trial_with_invalid_hyperparameters_is_not_restarted(client: Published) -> None:
    experiment = client.create(entrypoint="python3 invalid.py", max_restarts=3)
    client.cluster.until(lambda: _ended(client, experiment), 60, "the experiment ended")
    trial = "SELECT early_exit, restarts, run_id FROM trials"
    assert client.rows(f"{trial} WHERE experiment_id = {experiment}") == [("invalid_hp", 0, 1)]
    client.record.program(client.generation, "Core API: det.InvalidHP", WORKS)


def test_every_call(client: Published) -> None:
    experiment = client.create("--follow-first-trial", entrypoint=["python3", "every_call.py"])
    log = client.det("experiment", "logs", str(experiment))
    client.wait_for(experiment)
    steps = dict(line.partition("STEP ")[2].split(": ", 1) for line in log.splitlines() if "STEP " in line)
    assert steps["best validation before"] == "None"
    assert steps["best validation after"] == "0.5"
    assert steps["metadata of the checkpoint"] == "uploaded"
    assert steps["downloaded"] == "['deep/two.txt', 'one.txt']"
    assert steps["preempted"] == "False"
    assert steps["experiment"] == str(experiment)
    assert steps["operation"] == "6"
    assert "end" in steps
    if client.is_new:
        assert "everything" in steps["metadata of the run"]
    states = "SELECT checkpoints.state, count(*) FROM checkpoints JOIN trials ON trials.id = trial_id WHERE trials.experiment_id = "
    kept = [("COMPLETED", 1), ("DELETED", 1)] if client.is_new else [("COMPLETED", 2)]  # 0.21 tells nobody
    assert client.rows(f"{states}{experiment} GROUP BY 1 ORDER BY 1") == kept
    client.record.program(client.generation, "Core API: every call", WORKS)


def test_calls_of_helpers_in_a_container(client: Published) -> None:
    experiment = client.create(entrypoint="python3 container_calls.py", max_restarts=0)
    client.wait_for(experiment)
    log = client.det("experiment", "logs", str(experiment))
    steps = [line.partition("STEP ")[2].partition(": ") for line in log.splitlines() if "STEP " in line]
    assert len(steps) == (10 if client.is_new else 11), log
    assert [name for name, _, answer in steps[:-1] if not answer.startswith("200 ")] == []
    assert steps[-1][0] == "back"
    assert log.count("INFO: shipped") == 2
    client.record.program(client.generation, "Core API: preempted because its host said so", WORKS)


def test_search_with_lengths(client: Published) -> None:
    searcher = {"name": "async_halving", "metric": "accuracy", "smaller_is_better": False, "max_length": 8}
    searcher |= {"max_trials": 4, "num_rungs": 2, "divisor": 4, "max_concurrent_trials": 2}
    experiment = client.create(searcher=searcher)
    client.wait_for(experiment)
    trials = f"SELECT state FROM trials WHERE experiment_id = {experiment}"
    assert client.rows(trials) == [("COMPLETED",)] * 4
    reached = "SELECT max(metrics.total_batches) FROM metrics JOIN trials ON trials.id = trial_id WHERE trials.experiment_id = "
    lengths = sorted(
        n for (n,) in client.rows(f"{reached}{experiment} AND group_name = 'validation' GROUP BY trial_id")
    )
    assert lengths[-1] == 8
    if not client.is_new:  # operations: those that are not promoted train as long as the first rung
        assert lengths[:3] == [2, 2, 2]
    client.record.program(client.generation, "Core API: ASHA with max_length", WORKS)


@pytest.mark.parametrize("client", GENERATIONS[:1], indirect=True)
def test_search_with_a_time_metric(client: Published) -> None:
    searcher: dict[str, Any] = {"name": "adaptive_asha", "metric": "accuracy", "smaller_is_better": False}
    searcher |= {"max_trials": 4, "max_time": 8, "time_metric": "epoch", "max_concurrent_trials": 2}
    experiment = client.create(
        entrypoint="python3 epochs.py",
        searcher=searcher,
        hyperparameters={"quality": {"type": "double", "minval": 0, "maxval": 1}},
    )
    client.wait_for(experiment)
    trials = f"SELECT state FROM trials WHERE experiment_id = {experiment}"
    assert client.rows(trials) == [("COMPLETED",)] * 4
    client.record.program(client.generation, "Core API: adaptive ASHA with max_time", WORKS)


@pytest.mark.parametrize("client", GENERATIONS[:1], indirect=True)
def test_unmanaged_trial_runs_where_it_likes(client: Published) -> None:
    program = Path(__file__).with_name("programs") / "unmanaged.py"
    done = client.run("python", str(program), str(client.folder / "unmanaged"), DET_USER="admin", DET_PASS=PASSWORD)
    assert done.returncode == 0, done.stdout + done.stderr
    experiment = int(done.stdout.split()[-1])
    client.wait_for(experiment)
    reported = "SELECT count(*) FROM metrics JOIN trials ON trials.id = trial_id WHERE trials.experiment_id = "
    assert client.rows(f"{reported}{experiment} AND group_name = 'validation'") == [(3,)]
    assert client.rows(f"SELECT state FROM trials WHERE experiment_id = {experiment}") == [("COMPLETED",)]
    client.record.program(client.generation, "Core API v2: an unmanaged trial", WORKS)


@pytest.mark.parametrize("client", GENERATIONS[1:], indirect=True)
def test_search_of_ones_own(client: Published) -> None:
    searcher = {"name": "custom", "metric": "accuracy", "smaller_is_better": False, "unit": "batches"}
    config = client.write("custom.json", experiment_config(client.generation, searcher=searcher))
    program = Path(__file__).with_name("programs") / "custom_search.py"
    done = client.run("python", str(program), config, str(MODEL), str(client.folder / "search"), timeout_s=90)
    assert done.returncode == 0, done.stdout + done.stderr
    experiment = int(done.stdout.split()[-1])
    client.wait_for(experiment)
    reached = "SELECT max(metrics.total_batches) FROM metrics JOIN trials ON trials.id = trial_id"
    found = client.rows(f"{reached} WHERE trials.experiment_id = {experiment} GROUP BY trials.id")
    assert sorted(found) == [(2,), (4,)]
    client.record.program(client.generation, "Custom search: LocalSearchRunner", WORKS)


def _ended(client: Published, experiment: int) -> bool:
    return client.rows(f"SELECT ended_at IS NOT NULL FROM experiments WHERE id = {experiment}") == [(1,)]
