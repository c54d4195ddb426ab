"""Projects: names and keys, notes, moves, and experiments that are put into them."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
import yaml

from tests.integration.api.served import Served
from tests.integration.api.test_workspaces import end, experiment_in, give_role, project, unique, workspace

PROJECTS = "/api/v1/projects"


async def test_project_has_every_field_when_it_is_made(api: Served) -> None:
    user = api.user()
    place = await workspace(user)
    name = unique("Speech")
    made = await project(user, place["id"], name=name, description="what we say")
    assert made == {
        "id": made["id"], "name": name, "key": made["key"], "description": "what we say", "notes": [],
        "workspaceId": place["id"], "workspaceName": place["name"], "archived": False, "immutable": False,
        "userId": user.user_id, "username": user.username, "numExperiments": 0, "numActiveExperiments": 0,
        "numRuns": 0, "lastExperimentStartedAt": None, "state": "WORKSPACE_STATE_UNSPECIFIED", "errorMessage": "",
    }  # fmt: skip
    assert made["key"].startswith("SPE")
    await experiment_in(api, user, made["id"])
    over = await experiment_in(api, user, made["id"])
    end(api, over)
    shown = (await user.get(f"{PROJECTS}/{made['id']}"))["project"]
    assert (shown["numExperiments"], shown["numActiveExperiments"], shown["numRuns"]) == (2, 1, 2)
    assert shown["lastExperimentStartedAt"].endswith("Z")
    counted = (await user.get(f"/api/v1/workspaces/{place['id']}"))["workspace"]
    assert (counted["numProjects"], counted["numExperiments"]) == (1, 2)


async def test_key_names_one_project_when_it_is_looked_up_in_any_case(api: Served) -> None:
    user, other = api.user(), api.user()
    place = await workspace(user)
    key = uuid.uuid4().hex[:5].upper()
    made = await project(user, place["id"], key=key.lower())
    assert made["key"] == key
    assert (await user.get(f"{PROJECTS}/key/{key.lower()}"))["project"]["id"] == made["id"]
    await other.refused(404, "GET", f"{PROJECTS}/key/{key}")
    assert key in await user.refused(
        409, "POST", f"/api/v1/workspaces/{place['id']}/projects", {"name": "x", "key": key}
    )
    for wrong in ("ABCDEF", "Ä", "A B", "A-1"):
        assert "key" in await user.refused(400, "PATCH", f"{PROJECTS}/{made['id']}", {"key": wrong})
    keys = {(await project(user, place["id"], name=f"same name {number}"))["key"] for number in range(3)}
    assert len(keys) == 3


async def test_names_are_of_their_own_within_a_workspace_only(api: Served) -> None:
    user = api.user()
    first, second = [await workspace(user) for _ in range(2)]
    made = await project(user, first["id"], name="Twins")
    path = f"/api/v1/workspaces/{first['id']}/projects"
    assert "already exists" in await user.refused(409, "POST", path, {"name": "twins"})
    other = await project(user, second["id"], name="Twins")
    assert "already exists" in await user.refused(
        409, "POST", f"{PROJECTS}/{other['id']}/move", {"destinationWorkspaceId": first["id"]}
    )
    await user.patch(f"{PROJECTS}/{other['id']}", {"name": "Cousins"})
    await user.post(f"{PROJECTS}/{other['id']}/move", {"destination_workspace_id": first["id"]})
    found = (await user.get(path, sortBy="SORT_BY_NAME"))["projects"]
    assert [(p["name"], p["workspaceId"]) for p in found] == [("Cousins", first["id"]), ("Twins", first["id"])]
    assert (await user.get(path, name="twins"))["projects"][0]["id"] == made["id"]
    assert (await user.get(path, name="win"))["projects"] == []


async def test_list_is_sorted_filtered_and_paged_when_asked(api: Served) -> None:
    user = api.user()
    place = await workspace(user)
    path = f"/api/v1/workspaces/{place['id']}/projects"
    made = [await project(user, place["id"], name=name, description=name[::-1]) for name in ("za", "yb", "xc")]
    ids = [p["id"] for p in made]
    await experiment_in(api, user, ids[1])

    async def shown(**query: Any) -> list[int]:
        return [p["id"] for p in (await user.get(path, **query))["projects"]]

    for sort, expected in (
        ("SORT_BY_ID", ids), ("SORT_BY_CREATION_TIME", ids), ("SORT_BY_NAME", ids[::-1]), ("SORT_BY_DESCRIPTION", ids),
        ("SORT_BY_UNSPECIFIED", ids),
    ):  # fmt: skip
        assert await shown(sortBy=sort) == expected
        assert await shown(sortBy=sort, orderBy="ORDER_BY_DESC") == expected[::-1]
    assert ids[1] in (await shown(sortBy="SORT_BY_LAST_EXPERIMENT_START_TIME"))[::2], "first or last, as engines do"
    await user.post(f"{PROJECTS}/{ids[0]}/archive")
    assert await shown(archived="true") == ids[:1]
    assert await shown(archived="false", limit=1, offset=1) == ids[2:]
    assert await shown(users="nobody at all") == []
    everywhere = await user.get("/api/v1/workspaces/0/projects", userIds=user.user_id)
    assert [p["id"] for p in everywhere["projects"]] == ids
    assert "SORT_BY_NAME" in await user.refused(400, "GET", path, params={"sortBy": "x"})


async def test_notes_are_kept_when_added_or_replaced(api: Served) -> None:
    user, viewer = api.user(), api.user()
    place = await workspace(user, everyone="viewer")
    path = f"{PROJECTS}/{(await project(user, place['id']))['id']}"
    first, second = ({"name": name, "contents": f"# {name}"} for name in "ab")
    assert (await user.post(f"{path}/notes", first))["notes"] == [first]
    assert (await user.post(f"{path}/notes", second))["notes"] == [first, second]
    put = await user.ask("PUT", f"{path}/notes", {"notes": [second], "projectId": 0})
    assert put.json() == {"notes": [second]}
    assert (await user.get(path))["project"]["notes"] == [second]
    await viewer.refused(403, "PUT", f"{path}/notes", {"notes": []})
    assert (await user.ask("PUT", f"{path}/notes")).json() == {"notes": []}
    await user.refused(400, "POST", f"{path}/notes", {"name": "a\x00b"})


async def test_archived_project_takes_nothing_when_experiments_are_made_or_moved(api: Served) -> None:
    user = api.user()
    place = await workspace(user)
    shut, open_ = [await project(user, place["id"]) for _ in range(2)]
    experiment_id = await experiment_in(api, user, shut["id"])
    await user.post(f"{PROJECTS}/{shut['id']}/archive")
    body = {"config": yaml.safe_dump(api.config()), "projectId": shut["id"]}
    assert "archived" in await user.refused(400, "POST", "/api/v1/experiments", body)
    move = f"/api/v1/experiments/{experiment_id}/move"
    assert "archived" in await user.refused(400, "POST", move, {"destinationProjectId": open_["id"]})
    await user.post(f"{PROJECTS}/{shut['id']}/unarchive")
    await user.post(move, {"destinationProjectId": open_["id"], "experimentId": experiment_id})
    assert (await user.get(f"/api/v1/experiments/{experiment_id}"))["experiment"]["projectId"] == open_["id"]
    await user.post(f"{PROJECTS}/{shut['id']}/archive")
    assert "archived" in await user.refused(400, "POST", move, {"destinationProjectId": shut["id"]})


async def test_experiment_moves_only_when_the_user_may_change_it_and_the_target(api: Served) -> None:
    owner, other = api.user(), api.user()
    theirs = await project(owner, (await workspace(owner))["id"])
    secret = await project(other, (await workspace(other))["id"])
    experiment_id = await experiment_in(api, owner, theirs["id"])
    move = f"/api/v1/experiments/{experiment_id}/move"
    await other.refused(404, "POST", move, {"destinationProjectId": secret["id"]})
    await owner.refused(404, "POST", move, {"destinationProjectId": secret["id"]})
    give_role(api, owner, secret["workspaceId"], "viewer")
    assert "contributor" in await owner.refused(403, "POST", move, {"destinationProjectId": secret["id"]})
    give_role(api, owner, secret["workspaceId"], "contributor")
    await owner.post(move, {"destinationProjectId": secret["id"]})
    shown = (await other.get(f"/api/v1/experiments/{experiment_id}"))["experiment"]
    assert (shown["workspaceName"], shown["projectName"]) == (secret["workspaceName"], secret["name"])
    assert "belongs to another user" not in str(await other.ask("POST", move, {"destinationProjectId": 1})), "an admin"
    await owner.refused(404, "POST", "/api/v1/experiments/999999/move", {"destinationProjectId": 1})
    await owner.refused(400, "POST", move, {})


async def test_experiment_goes_where_its_config_says_when_it_names_workspace_and_project(api: Served) -> None:
    owner, other = api.user(), api.user()
    place = await workspace(owner, everyone="viewer")
    inside = await project(owner, place["id"])
    config = api.config(workspace=place["name"], project=inside["name"])

    def body(config: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"config": yaml.safe_dump(config), **more}

    made = (await owner.post("/api/v1/experiments", body(config)))["experiment"]
    assert (made["workspaceId"], made["projectId"]) == (place["id"], inside["id"])
    elsewhere = await project(owner, place["id"])
    by_id = (await owner.post("/api/v1/experiments", body(config, projectId=elsewhere["id"])))["experiment"]
    assert by_id["projectId"] == elsewhere["id"], "the id wins"
    assert "contributor" in await other.refused(403, "POST", "/api/v1/experiments", body(config))
    told = await owner.refused(404, "POST", "/api/v1/experiments", body(config | {"project": "nothing"}))
    assert "project 'nothing'" in told
    for name in ("workspace", "project"):
        half = {key: value for key, value in config.items() if key != name}
        assert "both or neither" in await owner.refused(400, "POST", "/api/v1/experiments", body(half))
    secret = await project(other, (await workspace(other))["id"])
    told = await owner.refused(404, "POST", "/api/v1/experiments", body(api.config(), projectId=secret["id"]))
    assert "not found" in told


async def test_project_is_deleted_with_its_experiments_when_all_are_over(api: Served) -> None:
    owner, contributor = api.user(), api.user()
    place = await workspace(owner, everyone="contributor")
    inside = await project(owner, place["id"])
    path = f"{PROJECTS}/{inside['id']}"
    mine, theirs = await experiment_in(api, owner, inside["id"]), await experiment_in(api, contributor, inside["id"])
    end(api, mine)
    assert "editor" in await contributor.refused(403, "DELETE", path)
    assert "cannot delete experiment in ACTIVE state" in await owner.refused(400, "DELETE", path)
    shown = (await owner.get(f"/api/v1/experiments/{mine}"))["experiment"]
    assert shown["state"] == "STATE_COMPLETED", "all of them or none"
    end(api, theirs)
    assert (await owner.ask("DELETE", path)).json() == {"completed": False}
    assert (await owner.get(path))["project"]["state"] == "WORKSPACE_STATE_DELETING"
    body = {"config": yaml.safe_dump(api.config()), "projectId": inside["id"]}
    assert "being deleted" in await owner.refused(400, "POST", "/api/v1/experiments", body)
    empty = await project(owner, place["id"])
    assert (await owner.ask("DELETE", f"{PROJECTS}/{empty['id']}")).json() == {"completed": True}
    await owner.refused(404, "GET", f"{PROJECTS}/{empty['id']}")


async def test_visits_are_told_latest_first_when_noted(api: Served) -> None:
    user = api.user()
    place = await workspace(user)
    first, second = [(await project(user, place["id"]))["id"] for _ in range(2)]

    async def visit(project_id: int) -> None:
        body = {"activityType": "ACTIVITY_TYPE_GET", "entityType": "ENTITY_TYPE_PROJECT", "entityId": project_id}
        await user.post("/api/v1/users/activity", body)

    for project_id in (first, second, first):
        await visit(project_id)
    found = (await user.get("/api/v1/user/projects/activity"))["projects"]
    assert [p["id"] for p in found] == [first, second]
    assert (await api.user().get("/api/v1/user/projects/activity"))["projects"] == []
    await user.refused(
        404, "POST", "/api/v1/users/activity", {"entityType": "ENTITY_TYPE_PROJECT", "entityId": 999_999}
    )
    await user.refused(400, "POST", "/api/v1/users/activity", {"entityType": "ENTITY_TYPE_CAT", "entityId": first})


@pytest.mark.parametrize("number", [2**31, 2**63, 10**30, -1])
async def test_number_is_no_server_error_when_it_is_out_of_range(api: Served, number: int) -> None:
    user = api.user()
    for path in (
        f"{PROJECTS}/{number}", f"/api/v1/workspaces/{number}", f"/api/v1/workspaces/{number}/projects",
        f"/api/v1/workspaces?offset={number}", f"/api/v1/workspaces?userIds={number}",
        f"/api/v1/models?workspaceIds={number}", f"/api/v1/models/{number}", f"/api/v1/models?id={number}",
    ):  # fmt: skip
        response = await user.ask("GET", path)
        assert response.status_code in (200, 400, 404), f"{path}: {response.text}"


async def test_table_is_described_by_what_trials_reported_when_asked(api: Served) -> None:
    user = api.user()
    place = await project(user, (await workspace(user))["id"])
    path = f"{PROJECTS}/{place['id']}"
    assert (await user.get(f"{path}/experiments/metric-ranges"))["ranges"] == []
    for value in (1.0, 3.0):
        run = await api.another_trial(await experiment_in(api, user, place["id"]))
        await run.report("validation", 1, {"loss": value, "worst": "NaN"})
        body = {"metadata": {"data": {"set": f"v{value:g}"}}}
        await run.container.post(f"/api/v1/runs/{run.trial_id}/metadata", body)
    ranges = {entry["metricsName"]: entry for entry in (await user.get(f"{path}/experiments/metric-ranges"))["ranges"]}
    assert ranges["validation.loss.max"] == {"metricsName": "validation.loss.max", "min": 1.0, "max": 3.0}
    assert "validation.worst.max" not in ranges
    columns = {entry["column"]: entry for entry in (await user.get(f"{path}/columns"))["columns"]}
    assert columns["hp.lr"]["location"] == "LOCATION_TYPE_HYPERPARAMETERS"
    assert columns["validation.loss.last"] == {
        "column": "validation.loss.last", "location": "LOCATION_TYPE_VALIDATIONS", "type": "COLUMN_TYPE_NUMBER",
        "displayName": "",
    }  # fmt: skip
    assert columns["id"]["location"] == "LOCATION_TYPE_EXPERIMENT"
    assert (await user.get(f"{path}/metadata/data.set"))["values"] == ["v1", "v3"]
    assert (await user.get(f"{path}/metadata/nothing"))["values"] == []
    await api.user().refused(404, "GET", f"{path}/columns")
