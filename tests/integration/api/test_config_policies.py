"""Config policies: what an administrator sets or limits, and that nobody gets around it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml

from tests.integration.api.served import Caller, Served
from tests.integration.api.test_workspaces import give_role, workspace
from workflows.lifecycle.experiment import ExperimentState
from workflows.messages import RecordExperiment

GLOBAL = "/api/v1/config-policies/global"
EXPERIMENTS, COMMANDS = "/api/v1/experiments", "/api/v1/commands"
LIMITS = {"constraints": {"resources": {"max_slots": 4}, "priority_limit": 20}}


class Place:
    """A workspace, its administrator, and an ordinary user who may launch things in it."""

    def __init__(self, api: Served, owner: Caller, user: Caller, found: dict[str, Any], project_id: int) -> None:
        self._api = api
        self.owner, self.user = owner, user
        self.workspace_id, self.project_id = found["id"], project_id
        self.path = f"/api/v1/config-policies/workspaces/{found['id']}"

    async def govern(self, workload: str, policy: dict[str, Any]) -> Any:
        response = await self.owner.ask("PUT", f"{self.path}/{workload}", {"configPolicies": yaml.safe_dump(policy)})
        assert response.status_code == 200, response.text
        return response.json()["configPolicies"]

    def body(self, **changes: Any) -> dict[str, Any]:
        config = yaml.safe_dump(self._api.config(**changes))
        return {"config": config, "projectId": self.project_id, "activate": True}

    async def experiment(self, **changes: Any) -> dict[str, Any]:
        return await self.user.post(EXPERIMENTS, self.body(**changes))

    async def refused(self, **changes: Any) -> str:
        return await self.user.refused(400, "POST", EXPERIMENTS, self.body(**changes))

    def command(self, **resources: Any) -> dict[str, Any]:
        config = {"entrypoint": ["true"], "resources": resources}
        return {"config": config, "workspaceId": self.workspace_id}


@pytest.fixture
async def place(api: Served) -> Place:
    owner, user = api.user(), api.user()
    found = await workspace(owner)
    give_role(api, user, found["id"], "editor")
    made = await owner.post(f"/api/v1/workspaces/{found['id']}/projects", {"name": "p"})
    return Place(api, owner, user, found, made["project"]["id"])


@pytest.fixture
async def admin(api: Served) -> AsyncIterator[Caller]:
    """Of the cluster; what he sets for it is gone after the test."""
    caller = api.user(is_admin=True)
    yield caller
    for workload in ("EXPERIMENT", "NTSC"):
        await caller.ask("DELETE", f"{GLOBAL}/{workload}")


async def test_policy_is_shown_as_written_until_it_is_removed(place: Place, admin: Caller) -> None:
    for caller, path in ((place.owner, place.path), (admin, GLOBAL)):
        assert await place.user.get(f"{path}/EXPERIMENT") == {"configPolicies": {}}
        for policy in (LIMITS, {"invariant_config": {"max_restarts": 1}}):
            put = await caller.ask("PUT", f"{path}/EXPERIMENT", {"configPolicies": yaml.safe_dump(policy)})
            assert put.json() == await place.user.get(f"{path}/EXPERIMENT") == {"configPolicies": policy}
        assert await place.user.get(f"{path}/NTSC") == {"configPolicies": {}}, "that is another one"
        assert (await caller.ask("DELETE", f"{path}/EXPERIMENT")).json() == {}
        assert await place.user.get(f"{path}/EXPERIMENT") == {"configPolicies": {}}
    await place.user.refused(403, "PUT", f"{place.path}/NTSC", {"configPolicies": yaml.safe_dump(LIMITS)})
    await place.owner.refused(403, "PUT", f"{GLOBAL}/NTSC", {"configPolicies": yaml.safe_dump(LIMITS)})


async def test_passwords_of_a_registry_are_not_shown(place: Place) -> None:
    auth = {"username": "u", "password": "s3cret"}
    shown = await place.govern("EXPERIMENT", {"invariant_config": {"environment": {"registry_auth": auth}}})
    assert shown["invariant_config"]["environment"]["registry_auth"]["username"] == "u"
    assert "s3cret" not in str(shown)
    assert "s3cret" not in str(await place.user.get(f"{place.path}/EXPERIMENT"))


@pytest.mark.parametrize(
    ("workload", "policy", "told"),
    [
        ("EXPERIMENT", "", "expected a map with invariant_config, constraints, or both"),
        ("EXPERIMENT", "[1]", "expected a map"),
        ("EXPERIMENT", "a: [", "configPolicies: "),
        ("EXPERIMENT", "limits: {}", "limits: there is no such key in a config policy"),
        ("EXPERIMENT", "constraints: {max_slots: 1}", "constraints.max_slots: there is no such key"),
        ("EXPERIMENT", "constraints: {priority_limit: 100}", "constraints.priority_limit: "),
        ("EXPERIMENT", "constraints: {resources: {max_slots: '4'}}", "constraints.resources.max_slots: "),
        ("EXPERIMENT", "constraints: {resources: {max_slots: -1}}", "constraints.resources.max_slots: "),
        ("EXPERIMENT", "invariant_config: {max_restartz: 1}", "max_restartz"),
        ("EXPERIMENT", "invariant_config: {max_restarts: -1}", "invariant_config.max_restarts"),
        ("EXPERIMENT", "invariant_config: {workspace: x}", "invariant_config.workspace: "),
        ("NTSC", "invariant_config: {searcher: {}}", "searcher"),
        ("NTSC", "invariant_config: {resources: {slots: -1}}", "resources.slots"),
        (
            "NTSC",
            "{invariant_config: {resources: {slots: 8}}, constraints: {resources: {max_slots: 4}}}",
            "invariant_config.resources.slots: 8: a config policy allows 4 slots",
        ),
    ],
)
async def test_policy_that_can_not_hold_is_refused(place: Place, workload: str, policy: str, told: str) -> None:
    path = f"{place.path}/{workload}"
    assert told in await place.owner.refused(400, "PUT", path, {"configPolicies": policy})
    assert await place.owner.get(path) == {"configPolicies": {}}
    assert "EXPERIMENT, NTSC" in await place.owner.refused(400, "GET", f"{place.path}/DREAMS")


async def test_invariant_goes_over_what_users_and_templates_say(place: Place) -> None:
    variables = {"environment_variables": ["A=policy"]}
    await place.govern("EXPERIMENT", {"invariant_config": {"max_restarts": 1, "environment": variables}})
    config = (await place.experiment(max_restarts=9, environment={"environment_variables": ["A=user", "B=1"]}))[
        "config"
    ]
    assert config["max_restarts"] == 1
    assert config["environment"]["environment_variables"]["cpu"] == ["A=user", "B=1", "A=policy"], "the last one holds"
    name = f"of-{place.workspace_id}"
    await place.user.post(f"/api/v1/templates/{name}", {"config": {"max_restarts": 5}})
    made = await place.user.post(EXPERIMENTS, place.body() | {"template": name})
    assert made["config"]["max_restarts"] == 1


async def test_cluster_goes_before_the_workspace(place: Place, admin: Caller) -> None:
    await place.govern("EXPERIMENT", {"invariant_config": {"max_restarts": 1, "description": "w"}, **LIMITS})
    policy = {"invariant_config": {"max_restarts": 2}, "constraints": {"resources": {"max_slots": 8}}}
    await admin.ask("PUT", f"{GLOBAL}/EXPERIMENT", {"configPolicies": policy})
    config = (await place.experiment(resources={"slots_per_trial": 8}))["config"]
    assert (config["max_restarts"], config["description"]) == (2, "w")
    assert "allows 8 slots" in await place.refused(resources={"slots_per_trial": 9})
    assert "allows 20 to 99" in await place.refused(resources={"priority": 19})


async def test_experiment_stays_within_the_limits(place: Place) -> None:
    await place.govern("EXPERIMENT", LIMITS)
    for resources, told in (
        ({"slots_per_trial": 5}, "failed constraint check: resources.slots_per_trial: 5: a config policy allows 4"),
        ({"max_slots": 5}, "resources.max_slots: 5"),
        ({"priority": 19}, "resources.priority: 19: a config policy allows 20 to 99 (priority_limit)"),
    ):
        assert told in await place.refused(resources=resources)
    config = (await place.experiment(resources={"slots_per_trial": 2}))["config"]
    assert config["resources"]["max_slots"] == 4, "its trials together stay below the limit, too"
    assert config["resources"]["priority"] is None, "the pool's usual one is allowed"
    made = await place.experiment(resources={"slots_per_trial": 2, "max_slots": 3, "priority": 20})
    assert (made["config"]["resources"]["max_slots"], made["config"]["resources"]["priority"]) == (3, 20)
    dry = place.body(resources={"slots_per_trial": 5}) | {"validateOnly": True}
    assert "allows 4 slots" in await place.user.refused(400, "POST", EXPERIMENTS, dry)


async def test_usual_priority_of_a_pool_gives_way_to_the_limit(place: Place) -> None:
    await place.govern("EXPERIMENT", {"constraints": {"priority_limit": 60}})
    await place.govern("NTSC", {"constraints": {"priority_limit": 70}})
    assert (await place.experiment())["config"]["resources"]["priority"] == 60
    launched = await place.user.post(COMMANDS, place.command(slots=1))
    assert launched["config"]["resources"]["priority"] == 70


async def test_command_stays_within_the_limits(place: Place) -> None:
    await place.govern("NTSC", LIMITS | {"invariant_config": {"description": "watched"}})
    assert "allows 4 slots" in await place.user.refused(400, "POST", COMMANDS, place.command(slots=5))
    assert "allows 20 to 99" in await place.user.refused(400, "POST", COMMANDS, place.command(priority=1))
    launched = await place.user.post(COMMANDS, place.command(slots=4))
    assert launched["command"]["description"] == "watched"
    path = f"{COMMANDS}/{launched['command']['id']}/set_priority"
    assert "allows 20 to 99" in await place.user.refused(400, "POST", path, {"priority": 19})
    await place.user.post(path, {"priority": 20})
    tree = {"config": "entrypoint: ['true']\nresources: {slots: 5}", "projectId": place.project_id}
    assert "allows 4 slots" in await place.user.refused(400, "POST", "/api/v1/generic-tasks", tree)
    assert (await place.experiment(resources={"slots_per_trial": 8}))["experiment"]["id"], "that is no task of these"


async def test_limits_hold_for_what_is_changed_later(place: Place) -> None:
    before = (await place.experiment(resources={"slots_per_trial": 8, "priority": 3}))["experiment"]
    other = (await place.experiment(resources={"priority": 5}))["experiment"]
    await place.govern("EXPERIMENT", LIMITS | {"invariant_config": {"resources": {"weight": 2}}})
    kept = (await place.user.get(f"{EXPERIMENTS}/{before['id']}"))["config"]["resources"]
    assert (kept["slots_per_trial"], kept["priority"]) == (8, 3), "what was there stays"
    path = f"{EXPERIMENTS}/{before['id']}"
    for resources, told in (
        ({"maxSlots": 5}, "allows 4 slots"),
        ({"priority": 2}, "allows 20 to 99"),
        ({"weight": 9}, "a config policy sets it to 2"),
    ):
        assert told in await place.user.refused(400, "PATCH", path, {"resources": resources})
    await place.user.patch(path, {"resources": {"maxSlots": 4, "priority": 30, "weight": 2}})
    update = {"jobId": before["jobId"], "priority": 1}
    assert "allows 20 to 99" in await place.user.refused(400, "POST", "/api/v1/job-queues", {"updates": [update]})
    ahead = {"jobId": before["jobId"], "aheadOf": other["jobId"]}
    assert "allows 20 to 99" in await place.user.refused(400, "POST", "/api/v1/job-queues", {"updates": [ahead]})


@pytest.mark.parametrize(
    ("resources", "told"),
    [
        (
            {"slots_per_trial": 8},
            "failed constraint check: resources.slots_per_trial: 8: a config policy allows 4 slots",
        ),
        ({"resource_pool": "nowhere"}, "resource_pool: resource pool nowhere does not exist or is not available"),
        ({"resource_pool": "other"}, "resources.resource_pool: other: a config policy sets it to default"),
    ],
)
async def test_next_run_of_a_failure_policy_stays_within_the_limits(
    place: Place, resources: dict[str, Any], told: str
) -> None:
    fixed = {"invariant_config": {"resources": {"resource_pool": "default"}}} if "sets it" in told else {}
    await place.govern("EXPERIMENT", LIMITS | fixed)
    policies = [{"failure": "out_of_memory", "resources": resources}]
    message = await place.refused(failure_policies=policies)
    assert message.startswith("invalid experiment configuration: <config>.failure_policies[0].resources")
    assert told in message


async def test_experiment_that_goes_on_stays_within_the_limits(api: Served, place: Place) -> None:
    made = (await place.experiment())["experiment"]
    ended = RecordExperiment(experiment_id=made["id"], revision=9, state=ExperimentState.CANCELED, progress=0,
                             is_terminal=True)  # fmt: skip
    await asyncio.to_thread(api.records.record_experiment, ended)
    await place.govern("EXPERIMENT", LIMITS)
    policy = {"failure": "out_of_memory", "resources": {"slots_per_trial": 8}}
    for override in ({"resources": {"slots_per_trial": 8}}, {"failure_policies": [policy]}):
        body = {"id": made["id"], "overrideConfig": yaml.safe_dump(override)}
        message = await place.user.refused(400, "POST", "/api/v1/experiments/continue", body)
        assert "a config policy allows 4 slots (max_slots)" in message
