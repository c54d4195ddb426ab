"""Gates of searches that train, on a real platform: trials are held back, go on when approved, and end when denied."""

from __future__ import annotations

from typing import Any

from tests.kit.platform import Platform
from tests.kit.scripts import EPOCHS, TRAIN, config
from workers.versioning import build_id

_GATE = {"what": "promotion", "rung": 1}
_SPACE = {"quality": {"type": "double", "minval": 0.1, "maxval": 1.0}}


async def until_gate(cluster: Platform, experiment_id: int) -> dict[str, Any]:
    """Wait until something waits for approval."""
    gates: list[dict[str, Any]] = []

    async def is_there() -> bool:
        path = "/api/v1/undeterred/gates"
        gates[:] = (await cluster.get(path, experimentId=experiment_id, state="WAITING"))["gates"]
        return bool(gates)

    await cluster.until(is_there, what="a gate waits")
    return gates[0]


async def until_all_wait(cluster: Platform, experiment_id: int) -> None:
    """Wait until no trial of an experiment holds slots."""

    async def is_so() -> bool:
        why = await cluster.get(f"/api/v1/undeterred/experiments/{experiment_id}/why")
        return all(run["endedAt"] for trial in why["facts"]["open"] for run in trial["runs"])

    await cluster.until(is_so, what="no trial holds slots")


async def test_promotion_waits_for_approval_across_an_upgrade(unattended: Platform) -> None:
    cluster = unattended
    searcher = {"name": "async_halving", "max_trials": 4, "num_rungs": 2, "divisor": 2, "max_length": 4,
                "max_concurrent_trials": 2}  # fmt: skip
    async with cluster.orchestrator():
        await cluster.start_agent("a", pool="a")
        experiment_id = await cluster.create({**config(searcher), "approve_before": [_GATE]}, {"train.py": TRAIN})
        gate = await until_gate(cluster, experiment_id)
        await until_all_wait(cluster, experiment_id)
    for trial in await cluster.trials(experiment_id):
        assert len(await cluster.metrics(trial["id"])) <= 2, "none trains for rung 1"
    said = (await cluster.get(f"/api/v1/undeterred/experiments/{experiment_id}/why"))["sentences"]
    assert any(f"`det gate approve {gate['id']}`" in sentence for sentence in said)
    held = [trial["id"] for trial in await cluster.trials(experiment_id) if trial["state"] == "STATE_PAUSED"]
    said = (await cluster.get(f"/api/v1/undeterred/trials/{held[0]}/why"))["sentences"]
    assert f"waits at gate {gate['id']} for approval" in said[0]
    async with cluster.orchestrator("newer"):
        assert (await until_gate(cluster, experiment_id))["id"] == gate["id"], "it still waits, and once"
        await cluster.post(f"/api/v1/undeterred/gates/{gate['id']}/approve")
        assert (await cluster.finish(experiment_id))["state"] == "STATE_COMPLETED"
    steps = [len(await cluster.metrics(trial["id"])) for trial in await cluster.trials(experiment_id)]
    assert sorted(steps) == [2, 2, 4, 4], "those that were promoted trained on, once"
    history = await cluster.temporal.get_workflow_handle(f"experiment-{experiment_id}").fetch_history()
    tasks = [event.workflow_task_completed_event_attributes for event in history.events]
    builds = [task.deployment_version.build_id for task in tasks if task.deployment_version.build_id]
    assert list(dict.fromkeys(builds)) == [build_id(), "newer"]


async def test_trials_end_at_a_gate_that_is_denied_and_the_search_goes_on_without_them(cluster: Platform) -> None:
    searcher = {"name": "async_halving", "max_trials": 3, "num_rungs": 2, "divisor": 2, "max_time": 60,
                "time_metric": "epoch", "max_concurrent_trials": 3}  # fmt: skip
    space = {**_SPACE, "sleep": 0.1, "epochs": 90}
    wanted = config(searcher, hyperparameters=space, approve_before=[{**_GATE, "deadline": "2s", "default": "deny"}])
    wanted["searcher"] = {key: value for key, value in wanted["searcher"].items() if key != "max_length"}
    experiment_id = await cluster.create(wanted, {"train.py": EPOCHS})
    ended = await cluster.finish(experiment_id)
    [gate] = (await cluster.get("/api/v1/undeterred/gates", experimentId=experiment_id))["gates"]
    assert (gate["state"], gate["decidedBy"]) == ("DENIED", "its deadline")
    states = [trial["state"] for trial in await cluster.trials(experiment_id)]
    assert "STATE_CANCELED" in states, states
    assert ended["state"] in ("STATE_COMPLETED", "STATE_CANCELED")


async def test_budget_is_doubled_when_its_overrun_is_approved(cluster: Platform) -> None:
    slow = config({"max_length": 40}, hyperparameters={"sleep": 0.1})
    limits = {"budget": {"slot_hours": 2 / 3600}, "approve_before": [{"what": "budget_overrun"}]}
    experiment_id = await cluster.create({**slow, **limits}, {"train.py": TRAIN})
    gate = await until_gate(cluster, experiment_id)
    await until_all_wait(cluster, experiment_id)
    await cluster.post(f"/api/v1/undeterred/gates/{gate['id']}/approve")
    path = f"/api/v1/undeterred/experiments/{experiment_id}/budget"
    assert round((await cluster.get(path))["limits"]["slotHours"] * 3600, 3) == 4

    async def has_gone_on() -> bool:
        trial = (await cluster.trials(experiment_id))[0]
        return any("resumed at" in line for line in await cluster.logs(trial["id"])) or await is_asked_again()

    async def is_asked_again() -> bool:
        return (await cluster.get("/api/v1/undeterred/gates", experimentId=experiment_id))["gates"][0]["id"] > gate[
            "id"
        ]

    await cluster.until(has_gone_on, what="it goes on")
    await cluster.command(experiment_id, "kill")
    await cluster.finish(experiment_id)
