"""Going on with experiments that have ended: any searcher, any terminal state."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from database.models import DecidedTrial
from tests.kit.platform import Platform
from tests.kit.scripts import EPOCHS, TRAIN, config
from workflows.searchers.replay import parse_lines, replay

#: Fails once it has saved step 2, as long as the file that its hyperparameter names is missing.
BREAKS = """
import json, pathlib, sys
import determined as det
from determined import core

info = det.get_cluster_info()
hparams = info.trial.hparams
with core.init() as context:
    steps = 0
    if info.latest_checkpoint:
        steps = context.checkpoint.get_metadata(info.latest_checkpoint)["steps_completed"]
        print(f"resumed at {steps}", flush=True)
    for op in context.searcher.operations():
        while steps < op.length:
            steps += 1
            context.train.report_validation_metrics(steps, {"accuracy": float(steps)})
            with context.checkpoint.store_path({"steps_completed": steps}) as (path, _):
                (path / "state.json").write_text("{}")
            if steps == 2 and hparams["number"] != 1 and not pathlib.Path(hparams["mended"]).exists():
                sys.exit("broken")
        op.report_completed(float(steps))
"""


async def go_on(cluster: Platform, experiment_id: int, override: str = "") -> None:
    body = {"id": experiment_id, "overrideConfig": override}
    answer = await cluster.post("/api/v1/experiments/continue", body)
    assert answer["experiment"]["id"] == experiment_id


async def verified(cluster: Platform, experiment_id: int) -> int:
    """The number of decisions, after all of them were derived again; each is found by its trials, and no other."""
    text = (await cluster.http.get(f"/api/v1/experiments/{experiment_id}/search/history")).text
    header, decisions = parse_lines(text.splitlines())
    assert replay(header.new_search(), decisions) is None
    about = {(request_id, decision.number) for decision in decisions for request_id in decision.trials}
    with cluster.database.read() as session:
        columns = select(DecidedTrial.request_id, DecidedTrial.number)
        found = session.execute(columns.where(DecidedTrial.experiment_id == experiment_id)).tuples().all()
    assert set(found) == about
    return len(decisions)


async def test_failed_trials_run_again_and_the_others_do_not(cluster: Platform) -> None:
    mended = cluster.folder / "mended"
    space = {"number": {"type": "categorical", "vals": [0, 1, 2]}, "mended": str(mended)}
    experiment_id = await cluster.create(
        config({"name": "grid", "max_length": 4, "max_concurrent_trials": 2}, hyperparameters=space),
        {"train.py": BREAKS},
    )
    ended = await cluster.finish(experiment_id)
    before = {trial["id"]: trial for trial in await cluster.trials(experiment_id)}
    assert sorted(trial["state"] for trial in before.values()) == ["STATE_COMPLETED", "STATE_ERROR", "STATE_ERROR"]
    mended.touch()
    await go_on(cluster, experiment_id)
    assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
    after = {trial["id"]: trial for trial in await cluster.trials(experiment_id)}
    assert after.keys() == before.keys(), "the same trials"
    for trial_id, trial in after.items():
        was_failed = before[trial_id]["state"] == "STATE_ERROR"
        assert trial["state"] == "STATE_COMPLETED"
        assert (trial["runId"], trial["restarts"]) == (2 if was_failed else 1, 0)
        steps = [report["totalBatches"] for report in await cluster.metrics(trial_id)]
        assert steps == [1, 2, 3, 4], "no step that a checkpoint covers is trained again"
        lines = await cluster.logs(trial_id)
        assert ("resumed at 2" in lines, "broken" in lines) == (was_failed, was_failed), "the lines of all its tasks"
        assert (trial["endTime"] == before[trial_id]["endTime"]) is not was_failed
        first = before[trial_id]["taskId"]
        assert trial["taskIds"] == ([first, f"{first}-1"] if was_failed else [first])
        assert trial["taskId"] == trial["taskIds"][-1]
        for task_id in trial["taskIds"]:
            task = (await cluster.get(f"/api/v1/tasks/{task_id}"))["task"]
            assert (len(task["allocations"]), task["endTime"] is None) == (1, False), "each ended with its run"
            fields = (await cluster.get(f"/api/v1/tasks/{task_id}/logs/fields"))["result"]
            assert fields["allocationIds"] == [task["allocations"][0]["allocationId"]]
    assert ended["jobId"] == (await cluster.experiment(experiment_id))["jobId"]
    assert await verified(cluster, experiment_id) > 0
    refused = await cluster.http.post("/api/v1/experiments/continue", json={"id": experiment_id})
    assert refused.status_code == 400
    assert "experiment has been completed" in refused.json()["message"]


async def test_canceled_search_goes_on_where_it_was(cluster: Platform) -> None:
    searcher = {"name": "async_halving", "num_rungs": 2, "max_trials": 6, "max_length": 8, "divisor": 2,
                "max_concurrent_trials": 2}  # fmt: skip
    space = {"quality": {"type": "double", "minval": 0, "maxval": 1}, "sleep": 0.05}
    experiment_id = await cluster.create(config(searcher, hyperparameters=space), {"train.py": TRAIN})
    await cluster.until(lambda: _ended(cluster, experiment_id, 1), what="one trial is over")
    await cluster.command(experiment_id, "cancel")
    assert (await cluster.finish(experiment_id))["state"] == "STATE_CANCELED"
    trials = await cluster.trials(experiment_id)
    canceled = [trial["id"] for trial in trials if trial["state"] == "STATE_CANCELED"]
    assert canceled
    running = await cluster.http.post("/api/v1/experiments/continue", json={"id": experiment_id})
    assert running.status_code == 200
    again = await cluster.http.post("/api/v1/experiments/continue", json={"id": experiment_id})
    assert again.status_code == 400
    assert "non terminal state" in again.json()["message"]
    assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
    trials = await cluster.trials(experiment_id)
    assert len(trials) == 6
    assert {trial["state"] for trial in trials} == {"STATE_COMPLETED"}
    for trial in trials:
        steps = [report["totalBatches"] for report in await cluster.metrics(trial["id"])]
        assert steps == list(range(1, trial["totalBatchesProcessed"] + 1))
        lines = [line for line in await cluster.logs(trial["id"]) if line.startswith("step ")]
        assert len(lines) == len(set(lines)), "nothing is trained twice: a cancel lets trials save"
    assert await verified(cluster, experiment_id) > 6


async def test_single_trial_trains_longer_when_its_length_is_raised(cluster: Platform) -> None:
    experiment_id = await cluster.create(config({"max_length": 3}), {"train.py": TRAIN})
    await cluster.finish(experiment_id)
    await go_on(cluster, experiment_id, "searcher: {max_length: 5}")
    assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
    (trial,) = await cluster.trials(experiment_id)
    assert "resumed at 3" in await cluster.logs(trial["id"])
    assert [report["totalBatches"] for report in await cluster.metrics(trial["id"])] == [1, 2, 3, 4, 5]
    experiment = await cluster.experiment(experiment_id)
    assert experiment["config"]["searcher"]["max_length"] == 5
    await go_on(cluster, experiment_id)  # the only trial always runs again
    assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
    assert (await cluster.trials(experiment_id))[0]["runId"] == 3


async def test_search_of_reports_goes_on_after_a_kill(cluster: Platform) -> None:
    searcher = {"name": "adaptive_asha", "max_length": None, "max_time": 9, "time_metric": "epoch", "max_trials": 4,
                "max_concurrent_trials": 2, "max_rungs": 2}  # fmt: skip
    space = {"quality": {"type": "double", "minval": 0, "maxval": 1}, "sleep": 0.1}
    experiment_id = await cluster.create(config(searcher, hyperparameters=space), {"train.py": EPOCHS})
    await cluster.until_state(experiment_id, "RUNNING")
    await cluster.until(lambda: _validated(cluster, experiment_id), what="something was reported")
    await cluster.command(experiment_id, "kill")
    assert (await cluster.finish(experiment_id))["state"] == "STATE_CANCELED"
    await go_on(cluster, experiment_id)
    assert (await cluster.finish(experiment_id, 90))["state"] == "STATE_COMPLETED"
    trials = await cluster.trials(experiment_id)
    assert len(trials) == 4
    assert {trial["state"] for trial in trials} == {"STATE_COMPLETED"}
    await verified(cluster, experiment_id)


async def test_what_cannot_change_is_refused_and_nothing_happens(cluster: Platform) -> None:
    experiment_id = await cluster.create(
        config({"name": "random", "max_trials": 1, "max_length": 1}), {"train.py": TRAIN}
    )
    await cluster.finish(experiment_id)
    overrides = {
        "searcher: {name: single}": "searcher.name",
        "hyperparameters: {other: 1}": "hyperparameters",
        "project: there": "project",
        "max_restarts: -1": "max_restarts",
        "- 1": "name: value",
    }
    for override, named in overrides.items():
        body: dict[str, Any] = {"id": experiment_id, "overrideConfig": override}
        refused = await cluster.http.post("/api/v1/experiments/continue", json=body)
        assert refused.status_code == 400, override
        assert named in refused.json()["message"]
    assert (await cluster.experiment(experiment_id))["state"] == "STATE_COMPLETED"
    # more trials than before: the search goes on with the next one
    await go_on(cluster, experiment_id, "searcher: {max_trials: 2}")
    assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
    assert len(await cluster.trials(experiment_id)) == 2


async def _ended(cluster: Platform, experiment_id: int, count: int) -> bool:
    trials = await cluster.trials(experiment_id)
    return sum(trial["state"] == "STATE_COMPLETED" for trial in trials) >= count


async def _validated(cluster: Platform, experiment_id: int) -> bool:
    return any(trial["latestValidation"] for trial in await cluster.trials(experiment_id))
