"""Searches from outside: their record, forks, changes while they run, warm starts."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from sqlalchemy import select

from database.models import Experiment, SearchDecision, Trial
from tests.kit.platform import Platform
from tests.kit.scripts import EPOCHS, TRAIN, config
from workflows.searchers import OperationCompleted, Steered
from workflows.searchers.replay import parse_lines, replay

ASHA = {"name": "adaptive_asha", "max_trials": 6, "max_length": 16, "max_rungs": 3, "max_concurrent_trials": 4}
SPACE = {"quality": {"type": "double", "minval": 0.1, "maxval": 1.0}}


async def _history(cluster: Platform, experiment_id: int) -> tuple[Any, list[Any]]:
    response = await cluster.http.get(f"/api/v1/experiments/{experiment_id}/search/history")
    assert response.status_code == 200, response.text
    return parse_lines(response.text.splitlines())


async def _fork(cluster: Platform, experiment_id: int, **body: Any) -> int:
    return (await cluster.post(f"/api/v1/experiments/{experiment_id}/fork", body))["experiment"]["id"]


async def _ran(cluster: Platform, experiment_id: int) -> list[int]:
    """Runs of each trial: 0 for one that was taken over and never ran."""
    return [trial["runId"] for trial in await cluster.trials(experiment_id)]


async def test_record_of_a_search_replays_byte_for_byte(cluster: Platform) -> None:
    experiment_id = await cluster.create(config(ASHA, hyperparameters=SPACE), {"train.py": TRAIN})
    assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
    header, decisions = await _history(cluster, experiment_id)
    assert [decision.number for decision in decisions] == list(range(1, len(decisions) + 1))
    search = header.new_search()
    assert replay(search, decisions) is None
    assert search.shutdown is not None
    with cluster.database.read() as session:
        texts = session.scalars(
            select(SearchDecision.decision)
            .where(SearchDecision.experiment_id == experiment_id)
            .order_by(SearchDecision.number)
        ).all()
    assert [text.encode() for text in texts] == [decision.canonical() for decision in decisions]
    outcomes = {verdict.outcome for decision in decisions for verdict in decision.verdicts}
    assert {"promoted", "waits", "finished"} <= outcomes


async def test_fork_trains_nothing_again_when_nothing_is_different(cluster: Platform) -> None:
    parent = await cluster.create(config(ASHA, hyperparameters=SPACE), {"train.py": TRAIN})
    await cluster.finish(parent)
    fork = await _fork(cluster, parent)
    assert (await cluster.finish(fork))["state"] == "STATE_COMPLETED"
    assert set(await _ran(cluster, fork)) == {0}
    before, after = await cluster.trials(parent), await cluster.trials(fork)
    same = ("hparams", "state", "totalBatchesProcessed", "searcherMetricValue", "summaryMetrics")
    assert [[t[key] for key in same] for t in after] == [[t[key] for key in same] for t in before]
    for old, new in zip(before, after, strict=True):
        assert await _values(cluster, new["id"]) == await _values(cluster, old["id"])
    assert (await cluster.experiment(fork))["forkedFrom"] == parent
    ours = (await cluster.get(f"/api/v1/experiments/{fork}/checkpoints"))["checkpoints"]
    theirs = (await cluster.get(f"/api/v1/experiments/{parent}/checkpoints"))["checkpoints"]
    assert {checkpoint["uuid"] for checkpoint in ours} <= {checkpoint["uuid"] for checkpoint in theirs}
    assert len(ours) == len(after), "the newest of each trial is the fork's too"
    best = max(after, key=lambda trial: trial["searcherMetricValue"])
    warm = await cluster.create(config({"max_length": 20, "source_trial_id": best["id"]}), {"train.py": TRAIN})
    assert (await cluster.finish(warm))["state"] == "STATE_COMPLETED"
    assert "resumed at 16" in await cluster.logs((await cluster.trials(warm))[0]["id"])
    old, new = (await _history(cluster, parent))[1], (await _history(cluster, fork))[1]
    told = [[a for d in record for a in d.actions] for record in (old, new)]
    assert [a.model_copy(update={"inherits": None}) if a.kind == "create" else a for a in told[1]] == told[0]


async def _values(cluster: Platform, trial_id: int) -> list[Any]:
    return [(r["totalBatches"], r["metrics"]) for r in await cluster.metrics(trial_id)]


async def test_fork_goes_on_from_the_checkpoints_when_it_has_a_larger_budget(cluster: Platform) -> None:
    searcher = {"name": "random", "max_trials": 2, "max_length": 5}
    parent = await cluster.create(config(searcher, hyperparameters=SPACE), {"train.py": TRAIN})
    await cluster.finish(parent)
    text = (await cluster.experiment(parent))["originalConfig"]
    longer = text.replace("max_length: 5", "max_length: 8").replace("max_trials: 2", "max_trials: 3")
    assert longer != text
    fork = await _fork(cluster, parent, config=longer)
    assert (await cluster.finish(fork))["state"] == "STATE_COMPLETED"
    trials = await cluster.trials(fork)
    assert [trial["hparams"] for trial in trials[:2]] == [t["hparams"] for t in await cluster.trials(parent)]
    for trial in trials[:2]:
        lines = await cluster.logs(trial["id"])
        assert "resumed at 5" in lines
        assert [line for line in lines if line.startswith("step ")] == ["step 6", "step 7", "step 8"]
        assert [step for step, _ in await _values(cluster, trial["id"])] == list(range(1, 9))
    assert next(line for line in await cluster.logs(trials[2]["id"]) if line.startswith("step ")) == "step 1"


async def test_fork_in_the_middle_shares_the_history_up_to_there(cluster: Platform) -> None:
    searcher = {"name": "random", "max_trials": 3, "max_length": 3, "max_concurrent_trials": 1}
    parent = await cluster.create(config(searcher, hyperparameters=SPACE), {"train.py": TRAIN})
    await cluster.finish(parent)
    decisions = (await _history(cluster, parent))[1]
    second = [d.number for d in decisions if any(a.kind == "create" for a in d.actions)][1]
    fork = await _fork(cluster, parent, at=second)
    await cluster.finish(fork)
    assert await _ran(cluster, fork) == [0, 1, 1], "what was not known then is trained"
    with cluster.database.read() as session:
        sources = session.scalars(select(Trial.inherits_id).where(Trial.experiment_id == fork).order_by(Trial.id)).all()
    assert sources[0] is not None
    assert sources[2] is None


async def test_fork_is_refused_and_leaves_nothing(cluster: Platform) -> None:
    parent = await cluster.create(config(), {"train.py": TRAIN})
    await cluster.finish(parent)
    expected = f"expected the number of a decision of experiment {parent}, 1 to "
    for body, said in (
        ({"at": 0}, f"at: 0: {expected}"),
        ({"at": 10**6}, f"at: 1000000: {expected}"),
        ({"config": "searcher: {name: nonsense}"}, "invalid experiment configuration"),
    ):
        response = await cluster.http.post(f"/api/v1/experiments/{parent}/fork", json=body)
        assert response.status_code == 400
        assert said in response.json()["message"]
    listed = await cluster.get("/api/v1/experiments")
    assert [e["id"] for e in listed["experiments"]] == [parent]


async def test_trials_start_from_another_trials_checkpoint(cluster: Platform) -> None:
    source = await cluster.create(config({"max_length": 4}), {"train.py": TRAIN})
    await cluster.finish(source)
    [trial] = await cluster.trials(source)
    warm = await cluster.create(config({"max_length": 6, "source_trial_id": trial["id"]}), {"train.py": TRAIN})
    assert (await cluster.finish(warm))["state"] == "STATE_COMPLETED"
    lines = await cluster.logs((await cluster.trials(warm))[0]["id"])
    assert "resumed at 4" in lines


@pytest.mark.parametrize(
    ("searcher", "said"),
    [
        ({"source_trial_id": 999}, "searcher.source_trial_id: 999: there is no such trial"),
        (
            {"source_checkpoint_uuid": "nothing"},
            "searcher.source_checkpoint_uuid: 'nothing': there is no such checkpoint",
        ),
    ],
)
async def test_warm_start_from_nothing_is_refused(cluster: Platform, searcher: dict[str, Any], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        await cluster.create(config({"max_length": 4, **searcher}), {"train.py": TRAIN})


async def test_preview_answers_both_generations_of_clients(cluster: Platform) -> None:
    wanted = {
        "name": "p",
        "hyperparameters": SPACE,
        "searcher": {"metric": "loss", **ASHA, "max_length": {"batches": 16}},
    }
    new = await cluster.post("/api/v1/preview-hp-search", {"config": wanted, "seed": 1})
    assert sum(entry["count"] for entry in new["summary"]["trials"]) == 6
    assert {entry["unit"]["name"] for entry in new["summary"]["trials"]} == {"batches"}
    old = await cluster.post("/searcher/preview", wanted)
    assert sum(old["results"].values()) == 6
    assert {operations.split()[0][-1] for operations in old["results"]} == {"B"}, "batches, as its printer spells them"
    refused = await cluster.http.post("/api/v1/preview-hp-search", json={"config": {"searcher": {"name": "random"}}})
    assert refused.status_code == 400
    assert "max_trials" in refused.json()["message"]


async def test_population_goes_on_from_the_checkpoints_of_the_best(cluster: Platform) -> None:
    searcher = {
        "name": "pbt", "population_size": 4, "num_rounds": 2, "length_per_round": 3,
        "replace_function": {"truncate_fraction": 0.25},
    }  # fmt: skip
    wanted = config(searcher, hyperparameters=SPACE)
    del wanted["searcher"]["max_length"]
    experiment_id = await cluster.create(wanted, {"train.py": TRAIN})
    assert (await cluster.finish(experiment_id, 120))["state"] == "STATE_COMPLETED"
    trials = await cluster.trials(experiment_id)
    assert len(trials) == 5, "the worst one was replaced after the first round"
    worst = min(trials[:4], key=lambda trial: trial["hparams"]["quality"])
    assert worst["totalBatchesProcessed"] == 3
    assert sorted(t["totalBatchesProcessed"] for t in trials if t["id"] != worst["id"]) == [6, 6, 6, 6]
    assert "resumed at 3" in await cluster.logs(trials[4]["id"])
    header, decisions = await _history(cluster, experiment_id)
    assert replay(header.new_search(), decisions) is None


async def test_sampler_of_optuna_chooses_points_and_the_record_replays_without_it(cluster: Platform) -> None:
    searcher = {"name": "optuna", "sampler": "tpe", "max_trials": 5, "max_concurrent_trials": 2, "max_length": 2}
    experiment_id = await cluster.create(config(searcher, hyperparameters=SPACE), {"train.py": TRAIN})
    assert (await cluster.finish(experiment_id, 120))["state"] == "STATE_COMPLETED"
    trials = await cluster.trials(experiment_id)
    assert len({trial["hparams"]["quality"] for trial in trials}) == 5
    header, decisions = await _history(cluster, experiment_id)
    assert replay(header.new_search(), decisions) is None


async def test_search_ends_with_a_sentence_when_the_sampler_cannot_work(cluster: Platform) -> None:
    searcher = {"name": "optuna", "sampler_options": {"n_startup_trails": 3}, "max_trials": 2, "max_length": 2}
    experiment_id = await cluster.create(config(searcher, hyperparameters=SPACE), {"train.py": TRAIN})
    ended = await cluster.finish(experiment_id)
    assert ended["state"] == "STATE_ERROR"
    with cluster.database.read() as session:
        error = session.get_one(Experiment, experiment_id).error
    assert "takes no option 'n_startup_trails'" in error


async def test_running_search_takes_more_trials_and_a_narrower_space(cluster: Platform) -> None:
    searcher = {"name": "random", "max_trials": 2, "max_length": 20, "max_concurrent_trials": 1}
    experiment_id = await cluster.create(config(searcher, hyperparameters={**SPACE, "sleep": 0.1}), {"train.py": TRAIN})
    await cluster.until_state(experiment_id, "RUNNING")
    space = {"quality": {"type": "double", "minval": 0.4, "maxval": 0.5}, "sleep": 0}
    wider = {**space, "quality": {"type": "double", "minval": 0, "maxval": 2}}
    for body, said in (
        ({"maxTrials": 1}, "max_trials"),
        ({"hyperparameters": wider}, "quality"),
        ({}, "nothing to change"),
    ):
        refused = await cluster.http.post(f"/api/v1/experiments/{experiment_id}/search/amend", json=body)
        assert refused.status_code == 400, refused.text
        assert said in refused.json()["message"]
    await cluster.post(
        f"/api/v1/experiments/{experiment_id}/search/amend", {"maxTrials": 3, "hyperparameters": space | {"sleep": 0.1}}
    )
    assert (await cluster.finish(experiment_id, 120))["state"] == "STATE_COMPLETED"
    trials = await cluster.trials(experiment_id)
    assert len(trials) == 3
    assert all(0.4 <= trial["hparams"]["quality"] <= 0.5 for trial in trials[1:])
    header, decisions = await _history(cluster, experiment_id)
    assert replay(header.new_search(), decisions) is None
    refused = await cluster.http.post(f"/api/v1/experiments/{experiment_id}/search/amend", json={"maxTrials": 9})
    assert refused.status_code == 400
    assert "is over" in refused.json()["message"]


async def test_running_search_is_steered_by_hand_and_its_record_replays(cluster: Platform) -> None:
    searcher = {"name": "async_halving", "num_rungs": 2, "divisor": 2, "max_trials": 2, "max_length": 200,
                "max_concurrent_trials": 1}  # fmt: skip
    space = {**SPACE, "sleep": 0.05}
    experiment_id = await cluster.create(config(searcher, hyperparameters=space), {"train.py": TRAIN})
    path = f"/api/v1/undeterred/experiments/{experiment_id}/search/steer"
    await cluster.until_state(experiment_id, "RUNNING")
    [first] = [trial["id"] for trial in await cluster.trials(experiment_id)]
    for body, said in (
        ({"action": "add", "hparams": {"quality": 0.5}}, "sleep is missing"),
        ({"action": "add", "trialId": first}, "expected hparams with the action add"),
        ({"action": "promote", "trialId": 0}, "expected hparams"),
        ({"action": "push", "trialId": first}, "action"),
    ):
        refused = await cluster.http.post(path, json=body)
        assert refused.status_code == 400, refused.text
        assert said in refused.json()["message"]
    assert (await cluster.http.post(path, json={"action": "stop", "trialId": 9999})).status_code == 404
    body = {"action": "add", "hparams": {"quality": 7, "sleep": 0}}  # a point out of the space
    answers = [await cluster.http.post(path, json=body, headers={"Idempotency-Key": "mine"}) for _ in range(2)]
    added = {answer.json()["trialId"] for answer in answers}
    assert (len(added), {answer.status_code for answer in answers}) == (1, {200})
    assert (await cluster.post(path, {"action": "stop", "trialId": first}))["trialId"] == first
    assert (await cluster.finish(experiment_id, 120))["state"] == "STATE_COMPLETED"
    trials = {trial["id"]: trial for trial in await cluster.trials(experiment_id)}
    assert len(trials) == 3
    [mine] = added
    assert trials[mine]["hparams"] == {"quality": 7, "sleep": 0}
    assert trials[mine]["totalBatchesProcessed"] == 200, "it trains to the full length"
    assert trials[first]["state"] == "STATE_COMPLETED"
    assert trials[first]["totalBatchesProcessed"] < 100, "it ended before its first rung"
    header, decisions = await _history(cluster, experiment_id)
    assert [event.action for event in (each.event for each in decisions) if isinstance(event, Steered)] == [
        "add",
        "stop",
    ]
    assert replay(header.new_search(), decisions) is None
    told = await cluster.http.get(f"/api/v1/undeterred/trials/{mine}/decisions")
    assert any(f"a user added trial {mine} by hand" in each for each in told.json()["sentences"]), told.text


async def test_program_outside_runs_a_custom_search(cluster: Platform) -> None:
    searcher = {"name": "custom", "max_length": None}
    experiment_id = await cluster.create(config(searcher, hyperparameters=SPACE), {"train.py": TRAIN})
    path = f"/api/v1/experiments/{experiment_id}"
    request_id = "11111111-2222-4333-8444-555555555555"

    async def post(trigger: int, *operations: dict[str, Any]) -> httpx.Response:
        body = {"triggeredByEvent": {"id": trigger}, "searcherOperations": list(operations)}
        return await cluster.http.post(f"{path}/searcher_operations", json=body)

    seen: list[str] = []
    while "experimentInactive" not in seen:
        for event in (await cluster.http.get(f"{path}/searcher_events", timeout=70)).json()["searcherEvents"]:
            kind = next(key for key in event if key != "id")
            seen.append(kind)
            if kind == "experimentInactive":
                break
            operations: list[dict[str, Any]] = [{"setSearcherProgress": {"progress": 0.5}}]
            if kind == "initialOperations":
                hparams = '{"quality": 0.5, "sleep": 0}'
                operations.append({"createTrial": {"requestId": request_id, "hyperparams": hparams}})
                operations.append({"trialOperation": {"validateAfter": {"requestId": request_id, "length": "2"}}})
            elif kind == "validationCompleted":
                done = event["validationCompleted"]
                assert done == {"requestId": request_id, "metric": 0.5 * int(done["validateAfterLength"]),
                                "validateAfterLength": done["validateAfterLength"]}  # fmt: skip
                if done["validateAfterLength"] == "2":
                    operations.append({"trialOperation": {"validateAfter": {"requestId": request_id, "length": 5}}})
                else:
                    operations.append({"closeTrial": {"requestId": request_id}})
            elif kind == "trialClosed":
                operations.append({"shutDown": {}})
            assert (await post(event["id"], *operations)).status_code == 200
            refused = await post(event["id"], *operations)
            assert refused.status_code == 400, "an event is answered once"
    assert [kind for kind in seen if kind != "trialProgress"] == [
        "initialOperations", "trialCreated", "validationCompleted", "validationCompleted", "trialClosed",
        "experimentInactive",
    ]  # fmt: skip
    assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
    [trial] = await cluster.trials(experiment_id)
    assert trial["totalBatchesProcessed"] == 5
    other = await cluster.create(config(), {"train.py": TRAIN}, activate=False)
    refused = await cluster.http.get(f"/api/v1/experiments/{other}/searcher_events")
    assert refused.status_code == 400
    assert "only 'custom' has events" in refused.json()["message"]


@pytest.mark.parametrize("unit", ["batches", "epochs", None])
@pytest.mark.parametrize("kind", ["async_halving", "adaptive_asha"])
async def test_search_by_lengths_takes_the_validations_of_code_that_knows_no_operations(
    cluster: Platform, unit: str | None, kind: str
) -> None:
    """Harnesses from 0.38 on only report: each of their trials counted as failed, with NaN in every rung."""
    length: Any = 9 if unit is None else {unit: 9}
    shape = {"num_rungs": 2, "stop_once": True} if kind == "async_halving" else {"max_rungs": 2, "mode": "aggressive"}
    searcher = {"name": kind, "max_trials": 4, "divisor": 3, "max_length": length, **shape}
    space = {"quality": {"type": "double", "minval": 0.1, "maxval": 1.0}, "epochs": 9}
    experiment_id = await cluster.create(config(searcher, hyperparameters=space), {"train.py": EPOCHS})
    assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
    trials = await cluster.trials(experiment_id)
    assert [trial["state"] for trial in trials] == ["STATE_COMPLETED"] * 4
    _, decisions = await _history(cluster, experiment_id)
    results = [d.event for d in decisions if isinstance(d.event, OperationCompleted)]
    assert sorted(r.metric for r in results if r.length == 3) == pytest.approx(
        sorted(3 * trial["hparams"]["quality"] for trial in trials)
    )
    if kind == "async_halving":  # where the first one in a rung always goes on
        assert any(r.length == 9 for r in results)


async def test_trial_that_the_search_stops_leaves_at_once(cluster: Platform) -> None:
    searcher = {
        "name": "async_halving", "max_trials": 3, "num_rungs": 2, "divisor": 3, "max_time": 60, "time_metric": "epoch",
        "max_concurrent_trials": 1,
    }  # fmt: skip
    space = {"quality": {"type": "double", "minval": 0.1, "maxval": 1.0}, "epochs": 60, "sleep": 0.05}
    wanted = config(searcher, hyperparameters=space)
    del wanted["searcher"]["max_length"]
    experiment_id = await cluster.create(wanted, {"train.py": EPOCHS})
    assert (await cluster.finish(experiment_id, 120))["state"] == "STATE_COMPLETED"
    trials = await cluster.trials(experiment_id)
    assert [trial["state"] for trial in trials] == ["STATE_COMPLETED"] * 3
    best = trials[0]["hparams"]["quality"]
    for trial in trials[1:]:
        if trial["hparams"]["quality"] < best:
            assert 20 <= trial["totalBatchesProcessed"] < 60, "compared at epoch 20, and told to leave"
        best = max(best, trial["hparams"]["quality"])
    assert trials[0]["totalBatchesProcessed"] == 60, "the first one in a rung always goes on"


async def test_search_ends_with_a_sentence_when_its_metric_never_comes(cluster: Platform) -> None:
    searcher = {"name": "async_halving", "metric": "precision", "max_trials": 2, "num_rungs": 2, "max_time": 4,
                "time_metric": "epoch"}  # fmt: skip
    wanted = config(searcher, hyperparameters=SPACE)
    del wanted["searcher"]["max_length"]
    experiment_id = await cluster.create(wanted, {"train.py": EPOCHS})
    assert (await cluster.finish(experiment_id))["state"] == "STATE_ERROR"
    header, decisions = await _history(cluster, experiment_id)
    assert any("the search needs the metric 'precision'" in decision.error for decision in decisions)
    assert replay(header.new_search(), decisions) is None
