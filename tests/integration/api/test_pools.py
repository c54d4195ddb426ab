"""Resource pools are made, made a default, and removed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from database.models import Agent, Experiment, ResourcePool, Workspace
from tests.integration.api.served import Caller, Served

OURS = "/api/v1/undeterred/resource-pools"


def unique() -> str:
    return f"pool-{uuid.uuid4().hex[:8]}"


async def new_pool(api: Served, **more: Any) -> str:
    name = unique()
    await api.user(is_admin=True).post(OURS, {"name": name, **more})
    return name


async def experiment_of(api: Served, user: Caller, slots: int, **resources: Any) -> dict[str, Any]:
    """A new experiment with trials of so many slots."""
    config = yaml.safe_dump(api.config(resources={"slots_per_trial": slots, **resources}))
    return (await user.post("/api/v1/experiments", {"config": config}))["experiment"]


@pytest.fixture
def default_again(api: Served) -> Iterator[None]:
    """The cluster's defaults are what they were."""
    yield
    from database.models import Cluster

    with api.database.write() as session:
        row = session.get_one(Cluster, 1)
        row.compute_pool = row.aux_pool = "default"


async def test_pool_is_shown_and_its_workflow_is_started_when_it_is_made(api: Served) -> None:
    admin, name = api.user(is_admin=True), unique()
    wanted = {"name": name, "description": "new", "settings": {"max_aux_containers_per_agent": 7, "preemption": True}}
    made = (await admin.post(OURS, wanted))["resourcePool"]
    assert (made["name"], made["description"], made["auxContainerCapacityPerAgent"]) == (name, "new", 7)
    assert made["details"]["priorityScheduler"]["preemption"] is True
    assert (made["defaultComputePool"], made["defaultAuxPool"]) == (False, False)
    assert (await api.user().get(f"{OURS}/{name}"))["resourcePool"] == made
    [start] = api.posted(f"pool-{name}", "start_pool")
    assert (start["name"], start["settings"]["max_aux_containers_per_agent"]) == (name, 7)
    assert "already exists" in await admin.refused(409, "POST", OURS, wanted)
    assert (await admin.patch(f"{OURS}/{name}", {"description": "old"}))["resourcePool"]["description"] == "old"
    for wrong in ("", "a b", "a/b", "-a", "a" * 101):
        assert "expected 1 to 100 letters" in await admin.refused(400, "POST", OURS, {"name": wrong})
    told = await admin.refused(400, "POST", OURS, {"name": unique(), "settings": {"scheduler": "chance"}})
    assert "scheduler" in told
    assert "there is: " in await admin.refused(404, "GET", f"{OURS}/nowhere")


@pytest.mark.usefixtures("default_again")
async def test_experiment_without_a_pool_goes_to_the_default_of_its_kind(api: Served) -> None:
    admin, user = api.user(is_admin=True), api.user()
    compute, aux = await new_pool(api), await new_pool(api)
    assert (await experiment_of(api, user, 0))["resourcePool"] == "default"
    await admin.patch(f"{OURS}/{aux}", {"defaultAuxPool": True})
    shown = (await admin.patch(f"{OURS}/{compute}", {"defaultComputePool": True}))["resourcePool"]
    assert (shown["defaultComputePool"], shown["defaultAuxPool"]) == (True, False)
    assert (await experiment_of(api, user, 0))["resourcePool"] == aux
    assert (await experiment_of(api, user, 2))["resourcePool"] == compute
    assert (await experiment_of(api, user, 0, resource_pool=compute))["resourcePool"] == compute
    told = await admin.refused(400, "PATCH", f"{OURS}/{aux}", {"defaultAuxPool": False})
    assert "until another one is made that" in told
    bindings = f"/api/v1/resource-pools/{aux}/workspace-bindings"
    assert "default" in await admin.refused(400, "POST", bindings, {"workspaceIds": [1]})
    assert "as a default" in await admin.refused(400, "DELETE", f"{OURS}/{aux}")


async def test_pool_that_is_bound_can_be_no_default(api: Served) -> None:
    admin, name = api.user(is_admin=True), await new_pool(api)
    await admin.post(f"/api/v1/resource-pools/{name}/workspace-bindings", {"workspaceIds": [1]})
    assert "bound" in await admin.refused(400, "PATCH", f"{OURS}/{name}", {"defaultComputePool": True})


async def test_pool_goes_when_nobody_uses_it(api: Served) -> None:
    admin, user, name = api.user(is_admin=True), api.user(), await new_pool(api)
    agent_id = f"agent-{name}"
    experiment_id = (await experiment_of(api, user, 1, resource_pool=name))["id"]
    with api.database.write() as session:
        session.add(Agent(id=agent_id, pool=name, slot_ids=[0], is_connected=True))
        owner = session.get_one(Experiment, experiment_id).owner_id
        session.add(Workspace(name=f"of {name}", owner_id=owner, default_aux_pool=name))
    await admin.post(f"/api/v1/resource-pools/{name}/workspace-bindings", {"workspaceIds": [1]})
    told = await admin.refused(400, "DELETE", f"{OURS}/{name}")
    assert f"by agent {agent_id}; by experiment {experiment_id}; by workspace of {name}" in told
    assert api.posted(f"pool-{name}", "stop_pool") == []
    with api.database.write() as session:
        session.delete(session.get_one(Agent, agent_id))
        session.get_one(Experiment, experiment_id).state = "CANCELED"
        session.query(Workspace).filter_by(name=f"of {name}").one().default_aux_pool = None
    assert (await admin.ask("DELETE", f"{OURS}/{name}")).json() == {}
    [stop] = api.posted(f"pool-{name}", "stop_pool")
    assert stop == api.posted(f"pool-{name}", "start_pool")[0], "it ends this one, and none made later"
    await admin.refused(404, "GET", f"{OURS}/{name}")
    told = await user.refused(400, "POST", "/api/v1/experiments/continue", {"id": experiment_id})
    assert "was removed" in told
    await admin.post(OURS, {"name": name})
    assert api.posted(f"pool-{name}", "start_pool")[1]["created_at"] != stop["created_at"]
    with api.database.read() as session:
        assert session.get_one(ResourcePool, name).description == ""


async def test_pool_that_every_cluster_has_stays(api: Served) -> None:
    admin = api.user(is_admin=True)
    assert "always has" in await admin.refused(400, "DELETE", f"{OURS}/default")


async def test_job_moves_to_a_pool_that_it_may_use_and_that_can_hold_it(api: Served) -> None:
    admin, user = api.user(is_admin=True), api.user()
    home, target = await new_pool(api), await new_pool(api)
    with api.database.write() as session:
        session.add(Agent(id=f"at-{home}", pool=home, slot_ids=[0, 1], is_connected=True))
    experiment = await experiment_of(api, user, 2, resource_pool=home)
    path, job = f"/api/v1/experiments/{experiment['id']}", experiment["jobId"]

    async def refused(pool: str, who: Caller = user, status: int = 400) -> str:
        body = {"updates": [{"jobId": job, "resourcePool": pool}]}
        return await who.refused(status, "POST", "/api/v1/job-queues", body)

    assert "there is: " in await refused("nowhere")
    assert "resource pool is unchanged" in await refused(home)
    assert "it has no agents" in await refused(target)
    with api.database.write() as session:
        session.add(Agent(id=f"small-{target}", pool=target, slot_ids=[0], is_connected=True))
    assert "could never hold a trial of 2 slots: its agents have 1" in await refused(target)
    with api.database.write() as session:
        session.add(Agent(id=f"large-{target}", pool=target, slot_ids=[0, 1], is_connected=False))
    await refused(target, api.user(), 403)
    bindings = f"/api/v1/resource-pools/{target}/workspace-bindings"
    other = (await admin.post("/api/v1/workspaces", {"name": f"of {target}"}))["workspace"]["id"]
    await admin.post(bindings, {"workspaceIds": [other]})
    assert "not available to workspace id 1" in await refused(target)
    await admin.ask("DELETE", bindings, {"workspaceIds": [other]})
    assert (await user.get(path))["experiment"]["resourcePool"] == home, "nothing was changed by all this"
    assert api.posted(f"experiment-{experiment['id']}", "move") == []
    await user.post("/api/v1/job-queues", {"updates": [{"jobId": job, "priority": 7}]})
    await user.post("/api/v1/job-queues", {"updates": [{"jobId": job, "resourcePool": target}]})
    shown = await user.get(path)
    assert (shown["experiment"]["resourcePool"], shown["config"]["resources"]["resource_pool"]) == (target, target)
    await user.post("/api/v1/job-queues", {"updates": [{"jobId": job, "resourcePool": home}]})
    moves = api.posted(f"experiment-{experiment['id']}", "move")
    assert [(move["number"], move["pool"]) for move in moves] == [(1, target), (2, home)]
    assert moves[0]["reason"] == f"{user.username} moved its experiment to pool {target}"
    [claim] = [told["claim"] for told in api.posted(f"pool-{target}", "job_claim")]
    assert claim["priority"] == 7, "what its owner said of it goes with it"
    with api.database.write() as session:
        session.get_one(Experiment, experiment["id"]).state = "CANCELED"
    assert "has ended" in await refused(target)
