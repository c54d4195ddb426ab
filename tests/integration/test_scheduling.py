"""Pools share their slots as their settings say, on a running platform, and change while trials run."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.kit.platform import Platform
from tests.kit.scripts import TRAIN, config
from workflows import names
from workflows.messages import MOST_CLAIMS, JobClaim, PoolRun
from workflows.scheduling.model import Claim


async def start(cluster: Platform, length: int = 40, **resources: Any) -> int:
    """An experiment of one slow trial on one slot."""
    wanted = config({"max_length": length}, hyperparameters={"sleep": 0.05}, resources=resources)
    return await cluster.create(wanted, {"train.py": TRAIN})


async def one_slot(cluster: Platform) -> None:
    """Leave one of the platform's slots in service."""
    [agent] = (await cluster.get("/api/v1/agents"))["agents"]
    for slot in sorted(agent["slots"])[1:]:
        await cluster.post(f"/api/v1/agents/{agent['id']}/slots/{slot}/disable")


async def set_pool(cluster: Platform, **settings: Any) -> None:
    """Change the settings of the platform's pool."""
    path = f"/api/v1/undeterred/resource-pools/{cluster.pool}/settings"
    answer = await cluster.http.patch(path, json={"settings": settings})
    assert answer.status_code == 200, answer.text


async def until_waits(cluster: Platform, experiment_id: int, text: str) -> None:
    """Wait until an experiment's trial waits, and `why` says so with these words."""

    async def says() -> bool:
        trials = await cluster.trials(experiment_id)
        if not trials:
            return False
        told = await cluster.get(f"/api/v1/undeterred/trials/{trials[0]['id']}/why")
        return text in told["sentences"][0]

    await cluster.until(says, what=f"a trial of experiment {experiment_id} waits: {text}")


async def job_of(cluster: Platform, experiment_id: int) -> str:
    """The job of an experiment."""
    return (await cluster.get(f"/api/v1/experiments/{experiment_id}"))["experiment"]["jobId"]


def steps_of(lines: list[str]) -> list[int]:
    """The steps that a log shows."""
    return [int(line.rsplit(" ", 1)[1]) for line in lines if " step " in f" {line}"]


async def test_claim_of_a_live_job_stays_whatever_becomes_of_others(cluster: Platform) -> None:
    """A thousand later changes made the pool forget it: the job went back to what it had claimed at its start."""
    wanted = config({"max_length": 9}, resources={"priority": 60})
    experiment_id = await cluster.create(wanted, {"train.py": TRAIN}, activate=False)
    job_id = await job_of(cluster, experiment_id)
    await cluster.post("/api/v1/job-queues", {"updates": [{"jobId": job_id, "priority": 7}]})
    pool = cluster.temporal.get_workflow_handle(names.pool_workflow(cluster.pool))

    async def claims() -> dict[str, Claim]:
        run: PoolRun = await pool.query("snapshot", result_type=PoolRun)
        return run.claims

    async def is_known() -> bool:
        return job_id in await claims()

    await cluster.until(is_known, what="the pool knows of the change")
    for start in range(0, MOST_CLAIMS + 20, 100):  # of jobs that are gone
        changes = [JobClaim(job_id=f"gone-{start + number}", claim=Claim(priority=1)) for number in range(100)]
        await asyncio.gather(*(pool.signal("job_claim", change) for change in changes))

    async def is_forgotten() -> bool:
        return len(await claims()) < 200

    await cluster.until(is_forgotten, what="claims of jobs that ended are forgotten")
    assert (await claims())[job_id].priority == 7


async def test_better_priority_makes_a_trial_leave_and_it_goes_on_where_it_was(cluster: Platform) -> None:
    await one_slot(cluster)
    await set_pool(cluster, preemption=True)
    low = await start(cluster, priority=60)
    trial_id = await cluster.until_reported(low)
    high = await start(cluster, length=10, priority=10)
    assert (await cluster.finish(high))["state"] == "STATE_COMPLETED"
    [trial] = await cluster.trials(low)
    told = await cluster.get(f"/api/v1/undeterred/trials/{trial_id}/why")
    assert told["facts"]["runs"][0]["askedToLeaveBecause"].endswith("comes first: its priority is 10, not 60")
    assert (await cluster.finish(low))["state"] == "STATE_COMPLETED"
    assert trial["restarts"] == 0
    steps = steps_of(await cluster.logs(trial_id))
    assert steps == sorted(set(steps)), "nothing is trained twice"
    assert steps[-1] == 40


async def test_moved_job_starts_before_the_one_that_it_was_behind(cluster: Platform) -> None:
    await one_slot(cluster)
    first = await start(cluster)
    await cluster.until_reported(first)
    second, third = await start(cluster, length=4), await start(cluster, length=4)
    await until_waits(cluster, second, "place 1 of ")
    await until_waits(cluster, third, "place 2 of 2 in the queue")
    move = {"jobId": await job_of(cluster, third), "aheadOf": await job_of(cluster, second)}
    await cluster.post("/api/v1/job-queues", {"updates": [move]})
    await until_waits(cluster, second, "place 2 of 2 in the queue")
    queued = (await cluster.get("/api/v1/job-queues", resourcePool=cluster.pool, states="STATE_QUEUED"))["jobs"]
    assert [job["entityId"] for job in queued] == [str(third), str(second)]
    ended = [await cluster.finish(experiment_id) for experiment_id in (first, second, third)]
    assert {experiment["state"] for experiment in ended} == {"STATE_COMPLETED"}
    assert ended[2]["endTime"] < ended[1]["endTime"]


async def test_fair_share_gives_the_second_job_its_part_when_the_policy_changes_under_way(cluster: Platform) -> None:
    """Both trials of the first experiment run; one of them leaves for the second experiment's."""
    wanted = config(
        {"name": "random", "max_trials": 2, "max_length": 40},
        hyperparameters={"sleep": 0.05, "quality": {"type": "double", "minval": 0, "maxval": 1}},
    )
    first = await cluster.create(wanted, {"train.py": TRAIN})

    async def both_run() -> bool:
        return [trial["state"] for trial in await cluster.trials(first)] == ["STATE_RUNNING"] * 2

    await cluster.until(both_run, what="both trials of the first experiment run")
    second = await start(cluster, length=10)
    await until_waits(cluster, second, "slots are held by")
    await set_pool(cluster, scheduler="fair_share")
    assert (await cluster.finish(second))["state"] == "STATE_COMPLETED"
    assert (await cluster.experiment(first))["state"] != "STATE_COMPLETED", "it gave one slot up, not both"
    assert (await cluster.finish(first))["state"] == "STATE_COMPLETED"
    for trial in await cluster.trials(first):
        assert trial["restarts"] == 0
        assert sorted(set(steps := steps_of(await cluster.logs(trial["id"])))) == steps


async def test_borrowed_slots_come_back_to_whom_they_belong(cluster: Platform) -> None:
    await one_slot(cluster)
    await set_pool(cluster, quotas={"users": {"admin": 0, "*": 1}})
    borrowing = await start(cluster)
    await cluster.until_reported(borrowing)
    second = await start(cluster, length=4)
    await until_waits(cluster, second, "user admin has 0 slots of this pool's, and they are in use: it may borrow")
    await set_pool(cluster, quotas={"users": {"admin": 1}})
    assert (await cluster.finish(borrowing))["state"] == "STATE_COMPLETED"
    assert (await cluster.finish(second))["state"] == "STATE_COMPLETED"
