"""Budgets of experiments that train, on a real platform: warned of, reached, raised; also while nothing is there to look."""

from __future__ import annotations

from typing import Any

from tests.kit.platform import Platform
from tests.kit.scripts import TRAIN, config


async def why(cluster: Platform, experiment_id: int) -> list[str]:
    return (await cluster.get(f"/api/v1/undeterred/experiments/{experiment_id}/why"))["sentences"]


async def budget(cluster: Platform, experiment_id: int) -> dict[str, Any]:
    return await cluster.get(f"/api/v1/undeterred/experiments/{experiment_id}/budget")


async def raise_to(cluster: Platform, experiment_id: int, **limits: Any) -> None:
    response = await cluster.http.patch(f"/api/v1/undeterred/experiments/{experiment_id}/budget", json=limits)
    assert response.status_code == 200, response.text


async def until_released(cluster: Platform, experiment_id: int) -> float:
    """Wait until its trials have left; returns the slot-seconds that they used."""
    used = 0.0

    async def is_free() -> bool:
        nonlocal used
        before, used = used, (await budget(cluster, experiment_id))["used"]["slotHours"] * 3600
        return before == used > 0

    await cluster.until(is_free, what="the trials have left")
    return used


async def test_experiment_is_warned_paused_and_goes_on_when_its_budget_is_raised(cluster: Platform) -> None:
    slow = config({"max_length": 40}, hyperparameters={"sleep": 0.1})
    limits = {"slot_hours": 2 / 3600, "soft": 0.25}
    experiment_id = await cluster.create({**slow, "budget": limits}, {"train.py": TRAIN})
    trial_id = await cluster.until_reported(experiment_id)
    assert any("lasts until" in each for each in await why(cluster, experiment_id))
    await cluster.until_state(experiment_id, "PAUSED")
    used = await until_released(cluster, experiment_id)
    assert 2 <= used < 12, "it left at its next checkpoint"
    log = await cluster.logs(trial_id)
    assert any(line.endswith("% of its budget of 0.0005556 slot-hours is used.") for line in log)
    assert any("preempted at" in line for line in log)
    said = await why(cluster, experiment_id)
    assert " is paused by its budget at " in said[0]
    assert said[1] == (
        "its budget of 0.0005556 slot-hours is spent: "
        f"`det experiment budget set {experiment_id} --slot-hours 0.001111` raises it, then "
        f"`det experiment activate {experiment_id}`"
    )
    assert "is spent: `det" in await cluster.refused(f"/api/v1/experiments/{experiment_id}/activate", None)
    history = (await cluster.get(f"/api/v1/undeterred/experiments/{experiment_id}/history"))["events"]
    assert any(each["text"].endswith("is spent: it is paused") for each in history)
    await raise_to(cluster, experiment_id, slotHours=1)
    await cluster.command(experiment_id, "activate")
    assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
    assert any("resumed at" in line for line in await cluster.logs(trial_id))


async def test_search_starts_no_more_trials_than_its_budget_has(cluster: Platform) -> None:
    searcher = {"name": "random", "max_trials": 3, "max_length": 2, "max_concurrent_trials": 3}
    experiment_id = await cluster.create({**config(searcher), "budget": {"trials": 2}}, {"train.py": TRAIN})
    await cluster.until_state(experiment_id, "PAUSED")
    assert (await budget(cluster, experiment_id))["spent"] == "trials"
    assert "budget of 2 trials is spent" in await cluster.refused(f"/api/v1/experiments/{experiment_id}/activate", None)
    await raise_to(cluster, experiment_id, trials=3)
    await cluster.command(experiment_id, "activate")
    assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
    assert (await budget(cluster, experiment_id))["used"]["trials"] == 3


async def test_workspace_pauses_what_trains_in_it_when_its_budget_is_spent(cluster: Platform) -> None:
    workspace = (await cluster.post("/api/v1/workspaces", {"name": cluster.pool}))["workspace"]
    await cluster.post(f"/api/v1/workspaces/{workspace['id']}/projects", {"name": "p", "workspaceId": workspace["id"]})
    path = f"/api/v1/undeterred/workspaces/{workspace['id']}/budget"
    assert (await cluster.http.patch(path, json={"slotHours": 2 / 3600})).status_code == 200
    slow = config({"max_length": 40}, hyperparameters={"sleep": 0.1}, workspace=cluster.pool, project="p")
    experiment_id = await cluster.create(slow, {"train.py": TRAIN})
    await cluster.until_state(experiment_id, "PAUSED")
    assert " is paused by its workspace's budget at " in (await why(cluster, experiment_id))[0]
    activate = f"/api/v1/experiments/{experiment_id}/activate"
    assert "is spent: `det workspace budget set" in await cluster.refused(activate, None)
    assert (await cluster.http.patch(path, json={"slotHours": 1})).status_code == 200
    await cluster.command(experiment_id, "activate")
    assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"


async def test_budget_that_was_spent_while_all_orchestrators_were_away_holds_when_one_is_back(
    unattended: Platform,
) -> None:
    cluster = unattended
    async with cluster.orchestrator():
        await cluster.start_agent("a", pool="a")
        slow = config({"max_length": 1000}, hyperparameters={"sleep": 0.1})
        limits = {"slot_hours": 3 / 3600}
        experiment_id = await cluster.create({**slow, "budget": limits}, {"train.py": TRAIN})
        trial_id = await cluster.until_reported(experiment_id)

    async def is_over() -> bool:
        return (await budget(cluster, experiment_id))["used"]["slotHours"] > 4 / 3600

    await cluster.until(is_over, what="the trial has used more than it may")
    assert (await cluster.experiment(experiment_id))["state"] == "STATE_RUNNING"
    async with cluster.orchestrator():
        await cluster.until_state(experiment_id, "PAUSED")
        used = await until_released(cluster, experiment_id)
    assert used < 20
    assert any("preempted at" in line for line in await cluster.logs(trial_id))
