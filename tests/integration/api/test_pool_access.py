"""A restricted pool is there for administrators and for those to whom it is granted, and does not exist for others."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import yaml

from database.models import Agent, Experiment, GroupMember, PoolGrant
from tests.integration.api.served import Caller, Served
from workflows.config.failures import FailurePolicy

OURS, ACCESS = "/api/v1/undeterred/resource-pools", "/api/v1/resource-pool-access"


async def pool(api: Served, *, is_restricted: bool) -> str:
    """A pool with one agent."""
    name = f"pool-{uuid.uuid4().hex[:8]}"
    await api.user(is_admin=True).post(OURS, {"name": name, "restricted": is_restricted})
    with api.database.write() as session:
        session.add(Agent(id=f"at-{name}", pool=name, slot_ids=[0, 1], is_connected=True))
    return name


async def restricted(api: Served, **holders: Any) -> str:
    """A pool with one agent, granted to these only."""
    name = await pool(api, is_restricted=True)
    if holders:
        await api.user(is_admin=True).post(f"{ACCESS}/{name}/grant", holders)
    return name


async def access_of(api: Served, name: str) -> dict[str, Any]:
    """As administrators see it."""
    found = (await api.user(is_admin=True).get(ACCESS))["resource_pools"]
    return next(each for each in found if each["pool_name"] == name)


async def pools_of(user: Caller) -> set[str]:
    """The names of the pools that a user sees."""
    return {each["name"] for each in (await user.get("/api/v1/resource-pools"))["resourcePools"]}


async def test_pool_does_not_exist_for_whom_it_is_not_granted(api: Served) -> None:
    ann, bob = api.user(), api.user()
    name = await restricted(api, usernames=[ann.username])
    assert name in await pools_of(ann)
    assert name not in await pools_of(bob)
    for path in (f"{OURS}/{name}", f"{OURS}/{name}/settings", f"/api/v1/resource-pools/{name}/workspace-bindings",
                 f"/api/v1/job-queues?resourcePool={name}", f"/api/v1/job-queues/stats?resourcePools={name}",
                 f"/api/v1/agents/at-{name}"):  # fmt: skip
        told = await bob.refused(404, "GET", path)
        assert told == (await bob.refused(404, "GET", path.replace(name, "nowhere"))).replace("nowhere", name), path
    january = {"timestampAfter": "2026-01-01T00:00:00Z", "timestampBefore": "2026-02-01T00:00:00Z"}
    path = "/api/v1/undeterred/cluster/slots-over-time"
    assert await bob.get(path, **january, pool=name) == await bob.get(path, **january, pool="nowhere")
    await ann.get(f"{OURS}/{name}")
    await ann.get(f"/api/v1/agents/at-{name}")
    for path in ("/api/v1/agents", "/agents", "/api/v1/job-queues/stats", "/api/v1/resource-pools"):
        assert name in (await ann.ask("GET", path)).text, path
        assert name not in (await bob.ask("GET", path)).text, path
    available = "/api/v1/workspaces/1/available-resource-pools"
    assert name in (await ann.get(available))["resourcePools"]
    assert name not in (await bob.get(available))["resourcePools"]


Entry = Callable[[Served, Caller, str], Awaitable[tuple[str, str, Any]]]


async def _experiment(api: Served, user: Caller, pool: str) -> tuple[str, str, Any]:
    return "POST", "/api/v1/experiments", {"config": yaml.safe_dump(api.config(resources={"resource_pool": pool}))}


async def _fork(api: Served, user: Caller, pool: str) -> tuple[str, str, Any]:
    parent = await api.created(user)
    config = yaml.safe_dump(api.config(resources={"resource_pool": pool}))
    return "POST", "/api/v1/experiments", {"config": config, "parentId": parent}


async def _default_of_workspace(api: Served, user: Caller, pool: str) -> tuple[str, str, Any]:
    admin = api.user(is_admin=True)
    made = await admin.post(
        "/api/v1/workspaces", {"name": str(uuid.uuid4()), "defaultComputePool": pool, "everyone": "editor"}
    )
    project = await admin.post(f"/api/v1/workspaces/{made['workspace']['id']}/projects", {"name": "p"})
    return (
        "POST",
        "/api/v1/experiments",
        {"config": yaml.safe_dump(api.config()), "projectId": project["project"]["id"]},
    )


async def _command(api: Served, user: Caller, pool: str) -> tuple[str, str, Any]:
    return "POST", "/api/v1/commands", {"config": {"entrypoint": ["true"], "resources": {"resource_pool": pool}}}


async def _notebook(api: Served, user: Caller, pool: str) -> tuple[str, str, Any]:
    return "POST", "/api/v1/notebooks", {"config": {"resources": {"resource_pool": pool}}}


async def _generic(api: Served, user: Caller, pool: str) -> tuple[str, str, Any]:
    config = f"entrypoint: [a]\nresources: {{resource_pool: {pool}}}"
    return "POST", "/api/v1/generic-tasks", {"config": config, "projectId": 1}


async def _move(api: Served, user: Caller, pool: str) -> tuple[str, str, Any]:
    job = (await user.get(f"/api/v1/experiments/{await api.created(user)}"))["experiment"]["jobId"]
    return "POST", "/api/v1/job-queues", {"updates": [{"jobId": job, "resourcePool": pool}]}


async def _continue(api: Served, user: Caller, pool: str) -> tuple[str, str, Any]:
    experiment_id = await api.created(user)
    with api.database.write() as session:
        row = session.get_one(Experiment, experiment_id)
        row.state, row.resource_pool = "CANCELED", pool
    return "POST", "/api/v1/experiments/continue", {"id": experiment_id}


def _going_on_in(pool: str) -> dict[str, Any]:
    return {"failure_policies": [{"failure": "crash", "resources": {"resource_pool": pool}}]}


async def _after_a_failure(api: Served, user: Caller, pool: str) -> tuple[str, str, Any]:
    config = yaml.safe_dump(api.config(**_going_on_in(pool)))
    return "POST", "/api/v1/experiments", {"config": config, "activate": True, "modelDefinition": []}


async def _continue_after_a_failure(api: Served, user: Caller, pool: str) -> tuple[str, str, Any]:
    experiment_id = await api.created(user)
    with api.database.write() as session:
        row = session.get_one(Experiment, experiment_id)
        policy = FailurePolicy.model_validate(_going_on_in(pool)["failure_policies"][0]).model_dump(mode="json")
        row.state, row.config = "CANCELED", row.config | {"failure_policies": [policy]}
    return "POST", "/api/v1/experiments/continue", {"id": experiment_id}


@pytest.mark.parametrize(
    "entry",
    [
        _experiment, _fork, _default_of_workspace, _command, _notebook, _generic, _move, _continue, _after_a_failure,
        _continue_after_a_failure,
    ],
)  # fmt: skip
async def test_access_is_asked_for_at_every_way_into_a_pool(api: Served, entry: Entry) -> None:
    user, admin = api.user(), api.user(is_admin=True)
    name = await restricted(api)
    method, path, body = await entry(api, user, name)
    told = await user.refused(400, method, path, body)
    assert name in told
    assert "available to" in told
    await admin.post(f"{ACCESS}/{name}/grant", {"usernames": [user.username]})
    await user.post(path, body)


async def test_pool_is_granted_to_users_groups_and_workspaces(api: Served) -> None:
    admin, by_name, by_group, by_place, none = (api.user(is_admin=each == 0) for each in range(5))
    group = (await admin.post("/api/v1/groups", {"name": str(uuid.uuid4()), "addUsers": [by_group.user_id]}))["group"]
    place = (await admin.post("/api/v1/workspaces", {"name": str(uuid.uuid4()), "everyone": "editor"}))["workspace"]
    holders = {"usernames": [by_name.username], "groups": [group["name"]], "workspaces": [place["name"]]}
    name = await restricted(api, **holders)

    async def may(user: Caller, workspace_id: int) -> bool:
        body = {"config": {"entrypoint": ["true"], "resources": {"resource_pool": name}}, "workspaceId": workspace_id}
        return (await user.ask("POST", "/api/v1/commands", body)).status_code == 200

    assert [await may(user, 1) for user in (admin, by_name, by_group, by_place, none)] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert [await may(user, place["id"]) for user in (by_name, by_place, none)] == [True, True, True]
    shown = await access_of(api, name)
    assert (shown["mode"], shown["restricted_by"] != "", shown["exists"]) == ("restricted", True, True)
    assert [each["username"] for each in shown["users"]] == [by_name.username]
    assert (shown["groups"], shown["workspaces"]) == (
        [{"id": group["groupId"], "name": group["name"]}], [{"id": place["id"], "name": place["name"]}],
    )  # fmt: skip
    again = await admin.post(f"{ACCESS}/{name}/grant", holders)
    assert [again[key] for key in ("users", "groups", "workspaces")] == [
        shown[key] for key in ("users", "groups", "workspaces")
    ]
    with api.database.write() as session:
        session.query(GroupMember).filter_by(group_id=group["groupId"]).delete()
    assert not await may(by_group, 1), "who leaves the group loses the pool"
    await admin.ask("DELETE", f"/api/v1/groups/{group['groupId']}")
    await admin.post(f"{ACCESS}/{name}/revoke", {"usernames": [by_name.username], "workspaces": [place["name"]]})
    assert [await may(user, place["id"]) for user in (admin, by_name, by_place)] == [True, False, False]
    await admin.ask("PUT", f"{ACCESS}/{name}", {"mode": "public"})
    assert await may(none, 1)
    with api.database.read() as session:
        assert session.query(PoolGrant).filter_by(pool=name).count() == 0, "with a group its grants go"


async def test_what_is_in_a_pool_stays_when_access_is_taken(api: Served) -> None:
    admin, ann = api.user(is_admin=True), api.user()
    name = await restricted(api, usernames=[ann.username])
    experiment_id = await api.created(ann, resources={"resource_pool": name})
    answer = await admin.post(f"{ACCESS}/{name}/revoke", {"usernames": [ann.username]})
    assert answer["warnings"] == [
        f"stays in the pool until it ends, is moved or killed: experiment {experiment_id} of {ann.username}"
    ]
    shown = (await ann.get(f"/api/v1/experiments/{experiment_id}"))["experiment"]
    assert (shown["state"], shown["resourcePool"]) == ("STATE_QUEUED", name)
    job = shown["jobId"]
    elsewhere = await pool(api, is_restricted=False)
    await ann.post("/api/v1/job-queues", {"updates": [{"jobId": job, "resourcePool": elsewhere}]})
    back = {"updates": [{"jobId": job, "resourcePool": name}]}
    assert "does not exist or is not available" in await ann.refused(400, "POST", "/api/v1/job-queues", back)


async def test_bindings_and_defaults_hold_beside_access(api: Served) -> None:
    admin, ann = api.user(is_admin=True), api.user()
    name = await restricted(api, usernames=[ann.username])
    assert "restricted" in await admin.refused(400, "PATCH", f"{OURS}/{name}", {"defaultAuxPool": True})
    told = await admin.refused(400, "PUT", f"{ACCESS}/default", {"mode": "restricted"})
    assert "one of the cluster's defaults" in told
    place = (await admin.post("/api/v1/workspaces", {"name": str(uuid.uuid4()), "everyone": "editor"}))["workspace"]
    await admin.post(f"/api/v1/resource-pools/{name}/workspace-bindings", {"workspaceIds": [place["id"]]})
    body = {"config": {"entrypoint": ["true"], "resources": {"resource_pool": name}}}
    assert "not available to workspace id 1" in await ann.refused(400, "POST", "/api/v1/commands", body)
    await ann.post("/api/v1/commands", body | {"workspaceId": place["id"]})
    await admin.patch(f"/api/v1/workspaces/{place['id']}", {"defaultAuxPool": name})
    warned = (await admin.post(f"{ACCESS}/{name}/grant", {"usernames": [ann.username]}))["warnings"]
    assert any(f"the default of workspaces {place['name']}" in warning for warning in warned)
    assert (await access_of(api, name))["workspace_defaults"] == [place["name"]]


async def test_wrong_names_are_refused_and_nothing_changes(api: Served) -> None:
    admin, ann = api.user(is_admin=True), api.user()
    name = await restricted(api)
    grant = f"{ACCESS}/{name}/grant"
    assert "expected one name" in await admin.refused(400, "POST", grant, {})
    told = await admin.refused(404, "POST", grant, {"usernames": [ann.username, "no one"]})
    assert told == "users not found: 'no one'"
    assert "groups not found: 'x'" in await admin.refused(404, "POST", grant, {"groups": ["x"]})
    assert "workspaces not found: 'x'" in await admin.refused(404, "POST", grant, {"workspaces": ["x"]})
    assert "usernames" in await admin.refused(400, "POST", grant, {"usernames": ["u"] * 101})
    told = await admin.refused(400, "POST", f"{ACCESS}/{name}/revoke", {"usernames": [ann.username]})
    assert told == f"pool {name!r} is not granted to user {ann.username!r}: nothing to revoke"
    assert "mode" in await admin.refused(400, "PUT", f"{ACCESS}/{name}", {"mode": "open"})
    await admin.refused(404, "PUT", f"{ACCESS}/nowhere", {"mode": "public"})
    assert (await access_of(api, name))["users"] == []
