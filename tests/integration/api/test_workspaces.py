"""Workspaces, pins, archives, deletion, and which pools they may use."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
import yaml
from sqlalchemy import select, update

from activities.cleanup import Cleanup
from database import retention
from database.models import Experiment, PoolBinding, Project, ResourcePool, RoleAssignment, Template, Workspace
from tests.integration.api.served import Caller, Served, a_file
from workflows.messages import DeletionFailed

WORKSPACES = "/api/v1/workspaces"


def unique(what: str = "place") -> str:
    return f"{what} {uuid.uuid4().hex[:12]}"


async def workspace(user: Caller, **fields: Any) -> dict[str, Any]:
    return (await user.post(WORKSPACES, {"name": unique(), **fields}))["workspace"]


async def project(user: Caller, workspace_id: int, **fields: Any) -> dict[str, Any]:
    body = {"name": unique("project"), "workspaceId": workspace_id, **fields}
    return (await user.post(f"{WORKSPACES}/{workspace_id}/projects", body))["project"]


def give_role(api: Served, user: Caller, workspace_id: int | None, role: str) -> None:
    with api.database.write() as session:
        session.add(RoleAssignment(role=role, user_id=user.user_id, workspace_id=workspace_id))


async def experiment_in(api: Served, user: Caller, project_id: int, **changes: Any) -> int:
    body = {"config": yaml.safe_dump(api.config(**changes)), "projectId": project_id, "activate": True,
            "modelDefinition": [a_file("train.py", b"1\n")]}  # fmt: skip
    return (await user.post("/api/v1/experiments", body))["experiment"]["id"]


def end(api: Served, *ids: int) -> None:
    with api.database.write() as session:
        session.execute(update(Experiment).where(Experiment.id.in_(ids)).values(state="COMPLETED"))


async def test_workspace_has_every_field_when_it_is_made(api: Served) -> None:
    user = api.user()
    made = await workspace(user, name="  with blanks around " + user.username)
    assert made == {
        "id": made["id"], "name": "with blanks around " + user.username, "archived": False, "immutable": False,
        "userId": user.user_id, "username": user.username, "numProjects": 0, "numExperiments": 0, "pinned": False,
        "pinnedAt": None, "state": "WORKSPACE_STATE_UNSPECIFIED", "errorMessage": "", "agentUserGroup": None,
        "checkpointStorageConfig": None, "defaultComputePool": "", "defaultAuxPool": "", "autoCreatedNamespace": None,
        "everyone": "",
    }  # fmt: skip
    assert (await user.get(f"{WORKSPACES}/{made['id']}/"))["workspace"] == made
    fresh = (await user.get(f"{WORKSPACES}/1"))["workspace"]
    assert (fresh["name"], fresh["immutable"]) == ("Uncategorized", True)


@pytest.mark.parametrize("name", ["", "   ", "x" * 81, "a\x00b", "a\nb"])
async def test_name_is_refused_when_it_is_empty_too_long_or_not_printable(api: Served, name: str) -> None:
    user = api.user()
    told = await user.refused(400, "POST", WORKSPACES, {"name": name})
    assert told.startswith("name: ")
    assert "expected 1 to 80 printable characters" in told
    made = await workspace(user)
    await user.refused(400, "PATCH", f"{WORKSPACES}/{made['id']}", {"name": name})
    await user.refused(400, "POST", f"{WORKSPACES}/{made['id']}/projects", {"name": name})


async def test_name_is_refused_when_another_one_has_it_in_any_case(api: Served) -> None:
    user, other = api.user(), api.user()
    made = await workspace(user, name=unique("Taken"))
    assert "already exists" in await other.refused(409, "POST", WORKSPACES, {"name": made["name"].lower()})
    second = await workspace(user)
    await user.refused(409, "PATCH", f"{WORKSPACES}/{second['id']}", {"name": made["name"]})
    renamed = await user.patch(f"{WORKSPACES}/{made['id']}", {"name": made["name"].upper()})
    assert renamed["workspace"]["name"] == made["name"].upper(), "it does not clash with itself"


async def test_workspace_is_not_there_for_others_when_they_have_no_role(api: Served) -> None:
    owner, other = api.user(), api.user()
    made = await workspace(owner)
    path = f"{WORKSPACES}/{made['id']}"
    for method, where in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/archive"), ("GET", "/projects"),
                          ("POST", "/projects"), ("POST", "/pin"), ("GET", "/available-resource-pools")):  # fmt: skip
        assert "not found" in await other.refused(404, method, path + where, {"name": "x"} if method != "GET" else None)
    assert made["id"] not in [found["id"] for found in (await other.get(WORKSPACES))["workspaces"]]
    give_role(api, other, made["id"], "viewer")
    assert (await other.get(path))["workspace"]["id"] == made["id"]
    assert "needs the role admin" in await other.refused(403, "PATCH", path, {"name": unique()})
    assert "needs the role editor" in await other.refused(403, "POST", path + "/projects", {"name": "x"})


async def test_everybody_sees_a_workspace_when_its_admin_says_so(api: Served) -> None:
    owner, other = api.user(), api.user()
    made = await workspace(owner)
    path = f"{WORKSPACES}/{made['id']}"
    assert (await owner.patch(path, {"everyone": "contributor"}))["workspace"]["everyone"] == "contributor"
    assert (await other.get(path))["workspace"]["id"] == made["id"]
    for wrong in ("admin", "king"):
        assert "everyone" in await owner.refused(400, "PATCH", path, {"everyone": wrong})
    assert (await owner.patch(path, {"everyone": ""}))["workspace"]["everyone"] == ""
    await other.refused(404, "GET", path)


async def test_list_is_filtered_sorted_and_paged_in_the_database(api: Served) -> None:
    user = api.user()
    mark = uuid.uuid4().hex[:8]
    names = [f"{letter} {mark}" for letter in "cAb"]
    ids = [(await workspace(user, name=name))["id"] for name in names]
    mine = {"users": user.username}

    async def shown(**query: Any) -> list[int]:
        return [found["id"] for found in (await user.get(WORKSPACES, **(mine | query)))["workspaces"]]

    assert await shown() == ids
    assert await shown(userIds=[user.user_id, 0], users=[]) == ids
    assert await shown(sortBy="SORT_BY_NAME") == [ids[1], ids[2], ids[0]]
    assert await shown(sortBy="SORT_BY_ID", orderBy="ORDER_BY_DESC") == ids[::-1]
    assert await shown(name=names[1].lower()) == [ids[1]], "older clients look a name up in any case"
    assert await shown(name=mark) == [], "the whole name: clients take the first one that they get"
    assert await shown(nameCaseSensitive=names[1]) == [ids[1]]
    assert await shown(nameCaseSensitive=names[1].lower()) == []
    await user.post(f"{WORKSPACES}/{ids[0]}/archive")
    assert await shown(archived="true") == [ids[0]]
    assert await shown(archived="false") == ids[1:]
    page = await user.get(WORKSPACES, **mine, limit=2)
    assert page["pagination"] == {"offset": 0, "limit": 2, "startIndex": 0, "endIndex": 2, "total": 3}
    last = await user.get(WORKSPACES, **mine, offset=-1, limit=10**9)
    assert ([found["id"] for found in last["workspaces"]], last["pagination"]["endIndex"]) == ([ids[2]], 3)
    assert "beyond" in await user.refused(400, "GET", WORKSPACES, params=mine | {"offset": 4})
    told = await user.refused(400, "GET", WORKSPACES, params={"sortBy": "SORT_BY_COLOR"})
    assert "SORT_BY_COLOR" in told
    assert "SORT_BY_NAME" in told


async def test_pin_is_each_users_own_when_it_is_set_twice(api: Served) -> None:
    owner, other = api.user(), api.user()
    made = await workspace(owner, everyone="viewer")
    path = f"{WORKSPACES}/{made['id']}"
    for _ in range(2):
        await owner.post(f"{path}/pin")
    shown = (await owner.get(path))["workspace"]
    assert shown["pinned"]
    assert shown["pinnedAt"].endswith("Z")
    assert not (await other.get(path))["workspace"]["pinned"]
    assert [found["id"] for found in (await owner.get(WORKSPACES, pinned="true"))["workspaces"]] == [made["id"]]
    for _ in range(2):
        await owner.post(f"{path}/unpin")
    assert not (await owner.get(path))["workspace"]["pinned"]


async def test_nothing_goes_in_when_a_workspace_is_archived(api: Served) -> None:
    user = api.user()
    made = await workspace(user)
    inside = await project(user, made["id"])
    await user.post(f"{WORKSPACES}/{made['id']}/archive")
    assert (await user.get(f"/api/v1/projects/{inside['id']}"))["project"]["archived"]
    assert "archived" in await user.refused(400, "POST", f"{WORKSPACES}/{made['id']}/projects", {"name": "x"})
    body = {"config": yaml.safe_dump(api.config()), "projectId": inside["id"]}
    assert "archived" in await user.refused(400, "POST", "/api/v1/experiments", body)
    assert "archived" in await user.refused(
        400, "POST", "/api/v1/models", {"name": unique(), "workspaceId": made["id"]}
    )
    assert "archived" in await user.refused(400, "POST", f"/api/v1/projects/{inside['id']}/unarchive")
    assert "archived" in await user.refused(400, "PATCH", f"{WORKSPACES}/{made['id']}", {"name": "other"})
    await user.post(f"{WORKSPACES}/{made['id']}/unarchive")
    assert await experiment_in(api, user, inside["id"])


async def test_uncategorized_can_not_be_changed_when_even_an_administrator_asks(api: Served) -> None:
    admin = api.user(is_admin=True)
    for method, path in (("POST", f"{WORKSPACES}/1/archive"), ("DELETE", f"{WORKSPACES}/1"),
                         ("POST", f"{WORKSPACES}/1/projects"), ("DELETE", "/api/v1/projects/1"),
                         ("PATCH", "/api/v1/projects/1"), ("POST", "/api/v1/projects/1/archive")):  # fmt: skip
        assert "immutable" in await admin.refused(400, method, path, {"name": unique()})


async def test_storage_of_the_workspace_is_used_when_the_config_has_none(api: Served) -> None:
    owner, viewer = api.user(), api.user()
    storage = {"type": "shared_fs", "host_path": "/of/the/workspace", "save_trial_latest": 7}
    made = await workspace(owner, checkpointStorageConfig=storage, everyone="contributor")
    inside = await project(owner, made["id"])
    assert made["checkpointStorageConfig"] == storage
    shown = (await viewer.get(f"{WORKSPACES}/{made['id']}"))["workspace"]
    assert shown["checkpointStorageConfig"] is None, "it may hold keys"
    config = api.config()
    del config["checkpoint_storage"]
    body = {"config": yaml.safe_dump(config), "projectId": inside["id"], "validateOnly": True}
    found = (await owner.post("/api/v1/experiments", body))["config"]["checkpoint_storage"]
    assert (found["host_path"], found["save_trial_latest"]) == ("/of/the/workspace", 7)
    body["config"] = yaml.safe_dump(api.config())
    found = (await owner.post("/api/v1/experiments", body))["config"]["checkpoint_storage"]
    assert found["host_path"] == str(api.folder), "what the config says ranks above"
    path = f"{WORKSPACES}/{made['id']}"
    told = await owner.refused(400, "PATCH", path, {"checkpointStorageConfig": {"type": "tape"}})
    assert "checkpointStorageConfig" in told
    relative = {"checkpointStorageConfig": {"type": "shared_fs", "host_path": "ours"}}
    told = await owner.refused(400, "PATCH", path, relative)
    assert told == "checkpointStorageConfig.host_path: 'ours': host_path must be an absolute path"
    cleared = await owner.patch(f"{WORKSPACES}/{made['id']}", {"checkpointStorageConfig": {}})
    assert cleared["workspace"]["checkpointStorageConfig"] is None


async def test_containers_run_as_somebody_only_when_an_administrator_of_the_cluster_says_so(api: Served) -> None:
    owner, admin = api.user(), api.user(is_admin=True)
    made = await workspace(owner)
    group = {"agentUid": 1000, "agentUser": "ml", "agentGid": 1000, "agentGroup": "ml"}
    path = f"{WORKSPACES}/{made['id']}"
    assert "administrators" in await owner.refused(403, "PATCH", path, {"agentUserGroup": group | {"agentUid": 0}})
    assert (await admin.patch(path, {"agentUserGroup": group}))["workspace"]["agentUserGroup"] == group


# -- deletion ------------------------------------------------------------------------------------------------------


async def test_workspace_is_gone_at_once_when_nothing_is_in_it(api: Served) -> None:
    user = api.user()
    made = await workspace(user)
    await project(user, made["id"])
    await user.post(
        f"/api/v1/templates/{uuid.uuid4().hex}x", {"config": {"max_restarts": 1}, "workspaceId": made["id"]}
    )
    assert (await user.ask("DELETE", f"{WORKSPACES}/{made['id']}")).json() == {"completed": True}
    await user.refused(404, "GET", f"{WORKSPACES}/{made['id']}")
    with api.database.read() as session:
        assert session.scalar(select(Template.id).where(Template.workspace_id == made["id"])) is None


async def test_workspace_goes_with_its_last_experiment_when_some_are_in_it(api: Served) -> None:
    user = api.user()
    made = await workspace(user)
    first, second = [await project(user, made["id"]) for _ in range(2)]
    ids = [await experiment_in(api, user, place["id"]) for place in (first, first, second)]
    path = f"{WORKSPACES}/{made['id']}"
    assert "cancel or kill it first" in await user.refused(400, "DELETE", path)
    end(api, *ids)
    assert (await user.ask("DELETE", path)).json() == {"completed": False}
    assert (await user.get(path))["workspace"]["state"] == "WORKSPACE_STATE_DELETING"
    assert "being deleted" in await user.refused(400, "POST", f"{path}/projects", {"name": "late"})
    for number, experiment_id in enumerate(ids):
        assert api.posted(f"delete-experiment-{experiment_id}", "delete_experiment")
        with api.database.write() as session:
            while not retention.erase_some(session, experiment_id, 100):
                pass
        with api.database.read() as session:
            left = len(session.scalars(select(Project.id).where(Project.workspace_id == made["id"])).all())
        assert left == (2, 1, 0)[number]
    await user.refused(404, "GET", path)


async def test_workspace_says_why_when_its_deletion_fails_and_may_be_deleted_again(api: Served) -> None:
    user = api.user()
    made = await workspace(user)
    inside = await project(user, made["id"])
    experiment_id = await experiment_in(api, user, inside["id"])
    end(api, experiment_id)
    path = f"{WORKSPACES}/{made['id']}"
    await user.ask("DELETE", path)
    Cleanup(api.database, []).note_deletion_failed(DeletionFailed(experiment_id=experiment_id, reason="disk on fire"))
    for shown in ((await user.get(path))["workspace"], (await user.get(f"/api/v1/projects/{inside['id']}"))["project"]):
        assert shown["state"] == "WORKSPACE_STATE_DELETE_FAILED"
        assert shown["errorMessage"] == f"experiment {experiment_id}: disk on fire"
    assert (await user.ask("DELETE", path)).json() == {"completed": False}
    assert (await user.get(path))["workspace"]["state"] == "WORKSPACE_STATE_DELETING"


async def test_workspace_stays_when_it_has_registered_models(api: Served) -> None:
    user = api.user()
    made = await workspace(user)
    name = unique("model")
    await user.post("/api/v1/models", {"name": name, "workspaceId": made["id"]})
    assert name in await user.refused(400, "DELETE", f"{WORKSPACES}/{made['id']}")


# -- pools ---------------------------------------------------------------------------------------------------------


def pool(api: Served) -> str:
    name = f"pool-{uuid.uuid4().hex[:8]}"
    with api.database.write() as session:
        session.add(ResourcePool(name=name))
    return name


async def test_pool_is_for_its_workspaces_only_when_it_is_bound(api: Served) -> None:
    user, admin = api.user(), api.user(is_admin=True)
    name = pool(api)
    mine, other = [await workspace(user) for _ in range(2)]
    bindings = f"/api/v1/resource-pools/{name}/workspace-bindings"

    async def available(where: dict[str, Any]) -> bool:
        found = await user.get(f"{WORKSPACES}/{where['id']}/available-resource-pools")
        assert found["pagination"]["total"] == len(found["resourcePools"])
        return name in found["resourcePools"]

    assert [await available(mine), await available(other)] == [True, True]
    assert "administrators" in await user.refused(403, "POST", bindings, {"workspaceIds": [mine["id"]]})
    await admin.post(bindings, {"workspaceNames": [mine["name"]], "resourcePoolName": name})
    await admin.post(bindings, {"workspaceIds": [mine["id"]]})
    assert [await available(mine), await available(other)] == [True, False]
    assert (await user.get(bindings))["workspaceIds"] == [mine["id"]]
    assert (await api.user().get(bindings))["workspaceIds"] == [], "who does not see it is not told of it"
    places = [await project(user, where["id"]) for where in (mine, other)]
    assert await experiment_in(api, user, places[0]["id"], resources={"resource_pool": name})
    body = {"config": yaml.safe_dump(api.config(resources={"resource_pool": name})), "projectId": places[1]["id"]}
    told = await user.refused(400, "POST", "/api/v1/experiments", body)
    assert f"{name} does not exist or is not available to workspace id {other['id']}" in told
    assert (await admin.ask("PUT", bindings, {"workspaceIds": [other["id"]]})).status_code == 200
    assert [await available(mine), await available(other)] == [False, True]
    assert "not bound" in await admin.refused(400, "DELETE", bindings, {"workspaceIds": [mine["id"]]})
    assert (await admin.ask("DELETE", bindings, {"workspaceIds": [other["id"]]})).json() == {}
    assert [await available(mine), await available(other)] == [True, True]


async def test_binding_is_refused_when_pool_or_workspace_is_unknown_or_the_default(api: Served) -> None:
    admin = api.user(is_admin=True)
    made = await workspace(admin)
    path = "/api/v1/resource-pools/{}/workspace-bindings"
    for method in ("POST", "PUT", "DELETE"):
        await admin.refused(404, method, path.format("nowhere"), {"workspaceIds": [made["id"]]})
        told = await admin.refused(
            404, method, path.format(pool(api)), {"workspaceIds": [999_999], "workspaceNames": ["?"]}
        )
        assert "999999" in told
    await admin.refused(404, "GET", path.format("nowhere"))
    assert "default" in await admin.refused(400, "POST", path.format("default"), {"workspaceIds": [made["id"]]})
    await admin.refused(400, "POST", path.format(pool(api)), {})
    with api.database.read() as session:
        assert session.scalar(select(PoolBinding.pool).where(PoolBinding.pool == "default")) is None


async def test_default_pool_of_the_workspace_is_taken_when_the_config_names_none(api: Served) -> None:
    user = api.user()
    compute, aux = pool(api), pool(api)
    made = await workspace(user, defaultComputePool=compute, defaultAuxPool=aux)
    inside = await project(user, made["id"])
    for slots, expected in ((1, compute), (0, aux)):
        body = {"config": yaml.safe_dump(api.config(resources={"slots_per_trial": slots})), "projectId": inside["id"]}
        assert (await user.post("/api/v1/experiments", body))["experiment"]["resourcePool"] == expected
    told = await user.refused(400, "PATCH", f"{WORKSPACES}/{made['id']}", {"defaultComputePool": "nowhere"})
    assert "defaultComputePool" in told
    cleared = await user.patch(f"{WORKSPACES}/{made['id']}", {"defaultComputeResourcePool": "", "defaultAuxPool": ""})
    assert cleared["workspace"]["defaultComputePool"] == ""


# -- Kubernetes ----------------------------------------------------------------------------------------------------


async def test_kubernetes_is_said_to_be_away_when_namespaces_are_asked_for(api: Served) -> None:
    user = api.user()
    made = await workspace(user)
    path = f"{WORKSPACES}/{made['id']}"
    assert await user.get(f"{path}/list-namespace-bindings") == {"namespaceBindings": {}}
    assert await user.get(f"{path}/get-k8s-resource-quotas") == {"resourceQuotas": {}}
    bound = {"clusterNamespaceMeta": {"": {"namespace": "x"}}}
    assert "Kubernetes" in await user.refused(501, "POST", f"{path}/namespace-bindings", bound)
    assert await user.post(f"{path}/namespace-bindings") == {"namespaceBindings": {}}
    assert "Kubernetes" in await user.refused(501, "POST", f"{path}/set-resource-quota", {"clusterQuotaPairs": {"": 1}})
    assert "Kubernetes" in await user.refused(501, "DELETE", f"{path}/namespace-bindings?clusterNames=x")
    assert await user.get("/api/v1/namespace-bindings/workspace-ids-with-default-bindings") == {"workspaceIds": []}
    assert "Kubernetes" in await user.refused(501, "POST", WORKSPACES, {"name": unique(), **bound})
    with api.database.read() as session:
        assert session.get(Workspace, made["id"]) is not None
