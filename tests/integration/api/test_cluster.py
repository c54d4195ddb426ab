"""Agents, slots, pools, the job queue, tasks and the use of slots, as both generations of clients read them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update

from database.models import Agent, Allocation, Task
from database.types import utc_now
from tests.integration.api.served import Caller, Served
from workflows.lifecycle.task import TaskKind, TaskState
from workflows.messages import JobMove, PoolRun, RecordAgent
from workflows.scheduling.model import AgentSlots, Claim, Grant, Placement, PoolSnapshot, Request


async def an_agent(api: Served, name: str, slots: int = 2) -> str:
    """A connected agent of a pool of its own, so that tests don't meet."""
    api.an_agent(
        RecordAgent(
            agent_id=name,
            revision=1,
            pool=f"pool-of-{name}",
            slots=AgentSlots(agent_id=name, slot_ids=tuple(range(slots))),
            is_connected=True,
        )
    )
    return name


def told(api: Served, agent: str) -> dict[str, Any]:
    """What the pool was told last of an agent."""
    return api.posted(f"pool-pool-of-{agent}", "agent_service")[-1]


async def test_agent_leaves_service_and_comes_back_when_an_admin_says_so(api: Served) -> None:
    admin, user = api.user(is_admin=True), api.user()
    name = await an_agent(api, "in-service")
    path = f"/api/v1/agents/{name}"
    shown = (await user.get(path))["agent"]
    assert (shown["enabled"], shown["draining"], len(shown["slots"])) == (True, False, 2)
    await user.refused(403, "POST", f"{path}/disable")
    assert (await admin.post(f"{path}/disable"))["agent"]["enabled"] is False
    assert told(api, name) == {
        "agent_id": name, "is_enabled": False, "disabled_slots": [], "is_draining": False, "leave_at": None,
        "broken_slots": [],
    }  # fmt: skip
    drained = (await admin.post(f"{path}/disable", {"agentId": name, "drain": True}))["agent"]
    assert (drained["draining"], drained["slotStats"]["typeStats"]["TYPE_CPU"]["draining"]) == (True, 2)
    assert told(api, name)["is_draining"] is True
    assert (await admin.post(f"{path}/enable"))["agent"]["enabled"] is True
    assert told(api, name)["is_enabled"] is True
    assert "drain" in await admin.refused(400, "POST", f"{path}/disable", {"drain": "yes"})
    assert "not found" in await admin.refused(404, "POST", "/api/v1/agents/nobody/disable")


async def test_slot_leaves_service_and_comes_back_when_an_admin_says_so(api: Served) -> None:
    admin = api.user(is_admin=True)
    name = await an_agent(api, "slots-out")
    path = f"/api/v1/agents/{name}/slots"
    assert (await admin.post(f"{path}/1/disable"))["slot"]["enabled"] is False
    assert told(api, name)["disabled_slots"] == [1]
    assert [slot["enabled"] for slot in (await admin.get(path))["slots"]] == [True, False]
    assert (await admin.get(f"{path}/1"))["slot"]["id"] == "1"
    assert (await admin.post(f"{path}/1/enable"))["slot"]["enabled"] is True
    old = f"/agents/{name}/slots/0"
    assert (await admin.ask("PATCH", old, {"enabled": False})).status_code == 200
    assert (await admin.get("/agents"))[name]["slots"]["0"]["enabled"] is False
    assert "enabled" in await admin.refused(400, "PATCH", old, {"enabled": "no"})
    assert "has no slot '7' (it has: 0, 1)" in await admin.refused(404, "POST", f"{path}/7/disable")


async def test_agents_are_listed_as_asked(api: Served) -> None:
    user = api.user()
    for name in ("list-b", "list-a"):
        await an_agent(api, name)
    found = [agent["id"] for agent in (await user.get("/api/v1/agents", orderBy="ORDER_BY_DESC"))["agents"]]
    assert found.index("list-b") < found.index("list-a")
    [bare] = (await user.get("/api/v1/agents", limit=1, excludeSlots="true", excludeContainers="true"))["agents"]
    assert (bare["slots"], bare["containers"]) == ({}, {})
    assert "sortBy" in await user.refused(400, "GET", "/api/v1/agents", params={"sortBy": "SORT_BY_LUCK"})


async def test_record_of_an_agent_keeps_what_operators_said(api: Served) -> None:
    admin = api.user(is_admin=True)
    name = await an_agent(api, "kept-out")
    await admin.post(f"/api/v1/agents/{name}/disable")
    await an_agent(api, name, slots=3)
    shown = (await admin.get(f"/api/v1/agents/{name}"))["agent"]
    assert (shown["enabled"], len(shown["slots"])) == (False, 3)


async def jobs(user: Caller, path: str = "/api/v1/job-queues", **query: Any) -> list[dict[str, Any]]:
    return (await user.get(path, limit=10**6, **query))["jobs"]


async def test_jobs_show_who_runs_and_who_waits(api: Served) -> None:
    user = api.user()
    waiting = await api.experiment(user, name="waits")
    run = await api.trial(user, name="runs", resources={"priority": 7, "weight": 2})
    mine = {job["name"]: job for job in await jobs(user) if job["username"] == user.username}
    assert mine["runs"]["summary"]["state"] == "STATE_SCHEDULED"
    assert (mine["runs"]["allocatedSlots"], mine["runs"]["requestedSlots"], mine["runs"]["priority"]) == (1, 1, 7)
    assert (mine["runs"]["entityId"], mine["runs"]["type"]) == (str(run.experiment_id), "TYPE_EXPERIMENT")
    assert mine["waits"]["summary"]["state"] == "STATE_QUEUED"
    assert mine["waits"]["entityId"] == str(waiting)
    queued = await jobs(user, states="STATE_QUEUED")
    assert "runs" not in [job["name"] for job in queued if job["username"] == user.username]
    ahead = [job["summary"]["jobsAhead"] for job in queued]
    assert ahead == sorted(set(ahead)), "the order of the queue, others' jobs counted too"
    both = await jobs(user, "/api/v1/job-queues-v2")
    assert {"runs", "waits"} <= {job["full"]["name"] for job in both if job["full"]}
    reverse = [job["jobId"] for job in await jobs(user, orderBy="ORDER_BY_DESC")]
    assert reverse == [job["jobId"] for job in await jobs(user)][::-1]
    [stats] = (await user.get("/api/v1/job-queues/stats", resourcePools="default"))["results"]
    assert stats["stats"]["queuedCount"] >= 1
    assert stats["stats"]["scheduledCount"] >= 1
    assert "not found" in await user.refused(404, "GET", "/api/v1/job-queues", params={"resourcePool": "ocean"})
    assert "states" in await user.refused(400, "GET", "/api/v1/job-queues", params={"states": "STATE_HAPPY"})


async def test_priority_and_weight_change_when_updated(api: Served) -> None:
    user, other = api.user(), api.user()
    experiment = await api.experiment(user)
    job = (await user.get(f"/api/v1/experiments/{experiment}"))["experiment"]["jobId"]
    await user.post("/api/v1/job-queues", {"updates": [{"jobId": job, "priority": 3}, {"jobId": job, "weight": 1.5}]})
    resources = (await user.get(f"/api/v1/experiments/{experiment}"))["config"]["resources"]
    assert (resources["priority"], resources["weight"]) == (3, 1.5)
    for update_, message in (
        ({"priority": 100}, "priority must be between 1 and 99"),
        ({"weight": 0}, "weight must be greater than 0"),
        ({}, "expected one of priority, weight"),
    ):
        body = {"updates": [{"jobId": job} | update_]}
        assert message in await user.refused(400, "POST", "/api/v1/job-queues", body)
    unchanged = {"updates": [{"jobId": job, "resourcePool": "default"}]}
    assert "resource pool is unchanged" in await user.refused(400, "POST", "/api/v1/job-queues", unchanged)
    both = {"updates": [{"jobId": job, "aheadOf": job, "behindOf": job}]}
    assert "not both" in await user.refused(400, "POST", "/api/v1/job-queues", both)
    nobody = {"updates": [{"jobId": job, "aheadOf": "nobody"}]}
    assert "job nobody not found" in await user.refused(404, "POST", "/api/v1/job-queues", nobody)
    mixed = {"updates": [{"jobId": job, "priority": 9}, {"jobId": "nothing", "priority": 9}]}
    assert "nothing: job nothing not found" in await user.refused(400, "POST", "/api/v1/job-queues", mixed)
    assert (await user.get(f"/api/v1/experiments/{experiment}"))["config"]["resources"]["priority"] == 9
    foreign = {"updates": [{"jobId": job, "priority": 1}]}
    await other.refused(403, "POST", "/api/v1/job-queues", foreign)
    assert "expected one or more" in await user.refused(400, "POST", "/api/v1/job-queues", {})
    many = {"updates": [{"jobId": job, "priority": 4}] * 1001}
    told = await user.refused(400, "POST", "/api/v1/job-queues", many)
    assert told == "updates: 1001 changes: expected at most 1000 at once"


async def test_moved_job_keeps_its_place_until_its_priority_changes(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = api.user()
    experiment, other = await api.experiment(user), await api.experiment(user, resources={"priority": 7})
    job, anchor = [
        (await user.get(f"/api/v1/experiments/{each}"))["experiment"]["jobId"] for each in (experiment, other)
    ]
    moves: list[JobMove] = []

    async def move_job(pool: str, move: JobMove) -> Claim:
        moves.append(move)
        return move.job.claim.model_copy(update={"priority": 7, "position": 123})

    monkeypatch.setattr(api.commands, "move_job", move_job)
    await user.post("/api/v1/job-queues", {"updates": [{"jobId": job, "behindOf": anchor}]})
    [move] = moves
    assert (move.job.job_id, move.anchor.job_id, move.is_ahead) == (job, anchor, False)
    assert move.anchor.claim.priority == 7
    assert move.job.claim.position < move.anchor.claim.position
    shown = await user.get(f"/api/v1/experiments/{experiment}")
    assert shown["config"]["resources"]["priority"] == 7
    await user.patch(f"/api/v1/experiments/{experiment}", {"id": experiment, "resources": {"weight": 2}})
    await user.post("/api/v1/job-queues", {"updates": [{"jobId": job, "priority": 8}]})
    claims = [told["claim"] for told in api.posted("pool-default", "job_claim") if told["job_id"] == job]
    assert [(claim["priority"], claim["position"]) for claim in claims] == [(7, 123), (8, move.job.claim.position)]


_SETTINGS = "/api/v1/undeterred/resource-pools/default/settings"


async def test_settings_of_a_pool_change_one_by_one(api: Served) -> None:
    user, admin = api.user(), api.user(is_admin=True)
    usual = (await user.get(_SETTINGS))["settings"]
    assert (usual["scheduler"], usual["preemption"], usual["default_priority"]) == ("priority", False, 42)
    try:
        await admin.patch(_SETTINGS, {"settings": {"scheduler": "fair_share", "quotas": {"users": {"ann.b": 4}}}})
        changed = await admin.patch(_SETTINGS, {"settings": {"quotas": {"users": {"*": 1}, "borrowing": False}}})
        assert changed["settings"]["quotas"] == {"users": {"ann.b": 4, "*": 1}, "workspaces": {}, "borrowing": False}
        assert api.posted("pool-default", "configure")[-1] == changed["settings"]
        [shown] = [
            pool for pool in (await user.get("/api/v1/resource-pools"))["resourcePools"] if pool["name"] == "default"
        ]
        assert (shown["schedulerType"], shown["details"]["priorityScheduler"]) == ("SCHEDULER_TYPE_FAIR_SHARE", None)
        for wrong, message in (
            ({"scheduler": "lottery"}, "scheduler: "),
            ({"default_priority": 100}, "default_priority: "),
            ({"quotas": {"users": {"ann": -1}}}, "quotas.users.ann: "),
            ({"quota": {}}, "quota: "),
        ):
            said = await admin.refused(400, "PATCH", _SETTINGS, {"settings": wrong})
            assert message in said
        assert (await user.get(_SETTINGS)) == changed, "what is refused changes nothing"
        await user.refused(403, "PATCH", _SETTINGS, {"settings": {"preemption": True}})
        nowhere = _SETTINGS.replace("default", "ocean")
        assert "'ocean' not found" in await admin.refused(404, "PATCH", nowhere, {"settings": {}})
        back = await admin.patch(_SETTINGS, {"settings": {"scheduler": None, "quotas": None}})
        assert back["settings"] == usual
    finally:
        await admin.patch(_SETTINGS, {"settings": dict.fromkeys(usual)})


async def test_jobs_tell_why_and_about_how_long_they_wait(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    user = api.user()
    run, waiting = await api.trial(user), await api.experiment(user, name="waits")
    await api.end(run)
    job = (await user.get(f"/api/v1/experiments/{waiting}"))["experiment"]["jobId"]
    held = Request(allocation_id="held", holder="w", name="trial 1 of experiment 1", slots=2, job_id="held")
    mine = Request(allocation_id="mine", holder="v", slots=2, job_id=job)
    snapshot = PoolSnapshot(
        agents={"a": AgentSlots(agent_id="a", slot_ids=(0, 1))},
        grants={"held": Grant(request=held, placements=(Placement(agent_id="a", slot_ids=(0, 1)),))},
        queue={mine.allocation_id: mine},
    )

    async def answer(name: str) -> PoolRun:
        return PoolRun(name=name, snapshot=snapshot)

    monkeypatch.setattr(api.commands, "pool", answer)
    [shown] = [each for each in await jobs(user) if each["jobId"] == job]
    assert shown["waits"] == (
        "waits for 2 slots of pool `default`: place 1 of 1 in the queue, 0 of 2 slots free; slots are held by trial 1 "
        "of experiment 1 (2)"
    )
    assert 0 < shown["estimatedWaitSeconds"] <= 7200, "a slot came free in this hour"


async def test_claims_to_slots_change_by_either_patch(api: Served) -> None:
    user = api.user()
    experiment = await api.experiment(user)
    job = (await user.get(f"/api/v1/experiments/{experiment}"))["experiment"]["jobId"]
    await user.patch(
        f"/api/v1/experiments/{experiment}", {"id": experiment, "resources": {"maxSlots": 4, "priority": 5}}
    )
    old = await user.ask("PATCH", f"/experiments/{experiment}", {"resources": {"max_slots": 2, "weight": 3}},
                         headers={"Content-Type": "application/merge-patch+json"})  # fmt: skip
    assert old.status_code == 200
    resources = (await user.get(f"/api/v1/experiments/{experiment}"))["config"]["resources"]
    assert (resources["max_slots"], resources["priority"], resources["weight"]) == (2, 5, 3)
    claims = [told["claim"] for told in api.posted("pool-default", "job_claim") if told["job_id"] == job]
    assert [(claim["max_slots"], claim["priority"], claim["weight"]) for claim in claims] == [(4, 5, 1), (2, 5, 3)]
    assert len({claim["position"] for claim in claims}) == 1
    wrong = {"resources": {"maxSlots": -1}}
    assert "maxSlots: -1" in await user.refused(400, "PATCH", f"/api/v1/experiments/{experiment}", wrong)


async def test_running_tasks_are_listed_for_both_generations(api: Served) -> None:
    user = api.user()
    counted = await user.get("/api/v1/tasks/count")
    run = await api.trial(user)
    new = (await user.get("/api/v1/tasks"))["allocationIdToSummary"][run.allocation_id]
    assert (new["taskId"], new["slotsNeeded"], new["name"]) == (
        run.task_id, 1, f"Trial {run.trial_id} (Experiment {run.experiment_id})")  # fmt: skip
    old = (await user.get("/tasks"))[run.allocation_id]
    assert (old["task_id"], old["slots_needed"], list(old["resources"][0]["agent_devices"])) == (
        run.task_id, 1, ["agent-a"])  # fmt: skip
    shown = (await user.get(f"/api/v1/allocations/{run.allocation_id}"))["allocation"]
    assert (shown["taskId"], shown["slots"]) == (run.task_id, 1)
    assert counted.keys() == {"commands", "notebooks", "shells", "tensorboards"}
    assert await user.get("/api/v1/tasks/count") == counted  # trials are none of these
    data = {"containerId": "c", "acceleratorType": "cuda", "acceleratorUuids": ["GPU-1"], "nodeName": "n"}
    path = f"/api/v1/allocations/{run.allocation_id}/acceleratorData"
    await run.container.post(path, {"allocationId": run.allocation_id, "acceleratorData": data})
    [noted] = (await user.get(f"/api/v1/tasks/{run.task_id}/acceleratorData"))["acceleratorData"]
    assert (noted["acceleratorUuids"], noted["allocationId"]) == (["GPU-1"], run.allocation_id)
    await api.end(run)
    assert run.allocation_id not in await user.get("/tasks")


async def test_task_that_is_no_trial_is_listed_to_those_who_see_its_workspace(api: Served) -> None:
    owner, other = api.user(), api.user()
    workspace = (await owner.post("/api/v1/workspaces", {"name": "of-errands", "everyone": None}))["workspace"]["id"]
    task = Task(id="errand", kind=TaskKind.GENERIC, owner_id=owner.user_id, workspace_id=workspace, job_id="errand",
                config={"resources": {"priority": 7}}, state=TaskState.ACTIVE)  # fmt: skip
    run = Allocation(id="errand.1", task_id="errand", run_id=1, state="RUNNING", pool="of-errands", slots=2,
                     placements=[{"agent_id": "a", "rank": 0, "slot_ids": [0, 1]}])  # fmt: skip
    with api.database.write() as session:
        session.add(task)
        session.flush()
        session.add(run)
    listed = (await owner.get("/api/v1/tasks"))["allocationIdToSummary"]["errand.1"]
    assert (listed["taskId"], listed["name"], listed["priority"]) == ("errand", "Generic errand", 7)
    assert (await owner.get("/tasks"))["errand.1"]["slots_needed"] == 2
    shown = (await owner.get("/api/v1/tasks/errand"))["task"]
    assert (shown["taskType"], [each["slots"] for each in shown["allocations"]]) == ("TASK_TYPE_GENERIC", [2])
    assert (await owner.get("/api/v1/allocations/errand.1"))["allocation"]["taskId"] == "errand"
    assert await owner.lines("/api/v1/tasks/errand/logs") == []
    span = {"timestampAfter": (utc_now() - timedelta(hours=1)).isoformat(), "timestampBefore": utc_now().isoformat()}

    async def uses(user: Caller) -> list[tuple[Any, ...]]:
        found = (await user.get("/api/v1/resources/allocation/raw", **span))["resourceEntries"]
        return [(use["userId"], use["slots"]) for use in found if use["kind"] == "generic"]

    assert await uses(owner) == [(owner.user_id, 2)]
    assert "errand.1" not in (await other.get("/api/v1/tasks"))["allocationIdToSummary"]
    assert "not found" in await other.refused(404, "GET", "/api/v1/tasks/errand")
    assert await uses(other) == []
    lines = {"logs": [{"taskId": "errand", "log": "mine"}]}
    assert "managed by the cluster" in await owner.refused(403, "POST", "/api/v1/task/logs", lines)


async def test_use_of_slots_is_told_by_run_and_by_day(api: Served) -> None:
    user = api.user()
    run = await api.trial(user, labels=["paid"])
    long_ago = utc_now().replace(year=2020, month=3, day=1, hour=12, minute=0, second=0, microsecond=0)
    with api.database.write() as session:
        session.execute(
            update(Allocation)
            .where(Allocation.id == run.allocation_id)
            .values(started_at=long_ago, ended_at=long_ago + timedelta(hours=24), slots=2)
        )
    span = {"timestampAfter": "2020-03-01T00:00:00Z", "timestampBefore": "2020-03-02T00:00:00Z"}
    [entry] = (await user.get("/api/v1/resources/allocation/raw", **span))["resourceEntries"]
    assert (entry["seconds"], entry["slots"], entry["username"], entry["labels"]) == (
        86400.0, 2, user.username, ["paid"])  # fmt: skip
    days = {"startDate": "2020-03-01", "endDate": "2020-03-02"}
    entries = (await user.get("/api/v1/resources/allocation/aggregated", **days))["resourceEntries"]
    assert [(day["periodStart"], day["seconds"]) for day in entries] == [
        ("2020-03-01", 86400.0),
        ("2020-03-02", 86400.0),
    ]
    assert entries[0]["byExperimentLabel"] == {"paid": 86400.0}
    monthly = {"startDate": "2020-02", "endDate": "2020-03",
               "period": "RESOURCE_ALLOCATION_AGGREGATION_PERIOD_MONTHLY"}  # fmt: skip
    months = (await user.get("/api/v1/resources/allocation/aggregated", **monthly))["resourceEntries"]
    assert [(month["periodStart"], month["seconds"]) for month in months] == [("2020-02", 0.0), ("2020-03", 172800.0)]
    old = await user.ask("GET", "/resources/allocation/raw", params={
        "timestamp_after": span["timestampAfter"], "timestamp_before": span["timestampBefore"]})  # fmt: skip
    assert old.headers["content-type"].startswith("text/csv")
    assert len(old.text.splitlines()) == 2
    old = await user.ask("GET", "/resources/allocation/aggregated", params={
        "start_date": "2020-03-01", "end_date": "2020-03-01",
        "period": "RESOURCE_ALLOCATION_AGGREGATION_PERIOD_DAILY"})  # fmt: skip
    assert old.text.splitlines()[:2] == [
        "aggregation_type,aggregation_key,date,seconds",
        "total,total,2020-03-01,86400.0",
    ]
    for wrong in ({"startDate": "soon", "endDate": "later"}, {"startDate": "2020-03-02", "endDate": "2020-03-01"},
                  {"startDate": "1000-01-01", "endDate": "2020-01-01"}):  # fmt: skip
        await user.refused(400, "GET", "/api/v1/resources/allocation/aggregated", params=wrong)
    backwards = {"timestampAfter": span["timestampBefore"], "timestampBefore": span["timestampAfter"]}
    assert "after timestampAfter" in await user.refused(
        400, "GET", "/api/v1/resources/allocation/raw", params=backwards
    )


async def test_pool_shows_what_waits_and_what_is_in_service(api: Served) -> None:
    user, admin = api.user(), api.user(is_admin=True)
    with api.database.write() as session:
        session.merge(Agent(id="pooled", pool="default", slot_ids=[0, 1], is_connected=True))
    pool = next(p for p in (await user.get("/api/v1/resource-pools"))["resourcePools"] if p["name"] == "default")
    await api.another_trial(await api.experiment(user))
    await admin.post("/api/v1/agents/pooled/slots/0/disable")
    after = next(p for p in (await user.get("/api/v1/resource-pools"))["resourcePools"] if p["name"] == "default")
    assert after["slotsAvailable"] == pool["slotsAvailable"] - 1
    assert after["stats"]["scheduledCount"] == pool["stats"]["scheduledCount"] + 1
    with api.database.write() as session:
        session.delete(session.get_one(Agent, "pooled"))
