"""Groups, and roles in workspaces: who holds which, who gives them, and what they open."""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass
from typing import Any

import pytest
import yaml
from sqlalchemy import select, update

from api.services.roles import PERMISSIONS
from database.models import Experiment, Project, RoleAssignment, Workspace
from tests.integration.api.served import Caller, Served

GROUPS, ROLES = "/api/v1/groups", "/api/v1/roles"
ADD, REMOVE = f"{ROLES}/add-assignments", f"{ROLES}/remove-assignments"
CLUSTER_ADMIN, WORKSPACE_ADMIN, CREATOR, VIEWER, EDITOR, CONTRIBUTOR = 1, 2, 3, 4, 5, 6
RESTRICTED, PROJECT_RESTRICTED = 7, 9
#: What 0.21 knows; 0.38 knows these and more. Source: the enumeration in the published client, as it lists itself.
KNOWN_TO_BOTH = {
    "ADMINISTRATE_USER", "ASSIGN_ROLES", "CREATE_EXPERIMENT", "CREATE_MODEL_REGISTRY", "CREATE_NSC", "CREATE_PROJECT",
    "CREATE_WORKSPACE", "DELETE_EXPERIMENT", "DELETE_PROJECT", "DELETE_WORKSPACE", "EDIT_MODEL_REGISTRY",
    "EDIT_WEBHOOKS", "SET_WORKSPACE_AGENT_USER_GROUP", "SET_WORKSPACE_CHECKPOINT_STORAGE_CONFIG", "UNSPECIFIED",
    "UPDATE_AGENTS", "UPDATE_EXPERIMENT", "UPDATE_EXPERIMENT_METADATA", "UPDATE_GROUP", "UPDATE_NSC", "UPDATE_PROJECT",
    "UPDATE_ROLES", "UPDATE_WORKSPACE", "VIEW_EXPERIMENT_ARTIFACTS", "VIEW_EXPERIMENT_METADATA", "VIEW_MODEL_REGISTRY",
    "VIEW_NSC", "VIEW_PROJECT", "VIEW_WORKSPACE",
}  # fmt: skip


def given(number: int, workspace_id: int | None) -> dict[str, Any]:
    """v1RoleAssignment."""
    scope = {"scopeCluster": True} if workspace_id is None else {"scopeWorkspaceId": workspace_id}
    return {"role": {"roleId": number}, **scope}


def to_user(user: Caller, number: int, workspace_id: int | None) -> dict[str, Any]:
    return {"userRoleAssignments": [{"userId": user.user_id, "roleAssignment": given(number, workspace_id)}]}


def to_group(group_id: int, number: int, workspace_id: int | None) -> dict[str, Any]:
    return {"groupRoleAssignments": [{"groupId": group_id, "roleAssignment": given(number, workspace_id)}]}


@dataclass
class Place:
    """A private workspace with an experiment of its owner."""

    workspace_id: int
    experiment_id: int
    owner: Caller

    async def is_seen_by(self, user: Caller) -> bool:
        response = await user.ask("GET", f"/api/v1/experiments/{self.experiment_id}")
        listed = (await user.get("/api/v1/experiments", limit=-1))["experiments"]
        is_listed = self.experiment_id in [experiment["id"] for experiment in listed]
        assert is_listed == (response.status_code == 200)
        return is_listed

    async def is_changed_by(self, user: Caller) -> bool:
        response = await user.ask("PATCH", f"/api/v1/experiments/{self.experiment_id}", {"notes": "x"})
        assert response.status_code in (200, 403, 404)
        return response.status_code == 200


@pytest.fixture
async def place(api: Served) -> Place:
    owner = api.user()
    with api.database.write() as session:
        workspace = Workspace(name=f"private {uuid.uuid4()}", owner_id=owner.user_id, everyone=None)
        session.add(workspace)
        session.flush()
        project = Project(workspace_id=workspace.id, name="p", owner_id=owner.user_id)
        session.add(project)
        session.flush()
        workspace_id, project_id = workspace.id, project.id
    experiment_id = await api.experiment(owner)
    with api.database.write() as session:
        session.execute(update(Experiment).where(Experiment.id == experiment_id).values(project_id=project_id))
    return Place(workspace_id, experiment_id, owner)


async def a_group(api: Served, *members: Caller) -> int:
    admin = api.user(is_admin=True)
    body = {"name": f"group {uuid.uuid4()}", "addUsers": [member.user_id for member in members]}
    return (await admin.post(GROUPS, body))["group"]["groupId"]


# -- groups ------------------------------------------------------------------------------------------------------------


async def test_group_has_its_members_when_made_changed_and_deleted(api: Served) -> None:
    admin, users = api.user(is_admin=True), [api.user() for _ in range(3)]
    ids, name = [user.user_id for user in users], f"crew {uuid.uuid4()}"
    group = (await admin.post(GROUPS, {"name": f"  {name} ", "addUsers": ids[:2]}))["group"]
    assert (group["name"], [user["id"] for user in group["users"]]) == (name, ids[:2])
    path = f"{GROUPS}/{group['groupId']}"
    changed = await admin.ask(
        "PUT", path, {"groupId": group["groupId"], "name": f"{name}!", "addUsers": ids[1:], "removeUsers": ids[:1]}
    )
    assert changed.json()["group"] == (await users[0].get(path))["group"]
    assert (changed.json()["group"]["name"], [user["id"] for user in changed.json()["group"]["users"]]) == (
        f"{name}!",
        ids[1:],
    )
    assert (await admin.ask("DELETE", path)).json() == {}
    await admin.refused(404, "GET", path)
    await admin.refused(404, "DELETE", path)
    await admin.refused(404, "PUT", path, {"name": "x"})


async def test_group_is_found_by_its_whole_name_and_by_its_members_when_searched(api: Served) -> None:
    """Clients look up the id of a group by its name and take the first answer."""
    admin, user = api.user(is_admin=True), api.user()
    mark = str(uuid.uuid4())
    for name in (f"{mark}", f"{mark} more"):
        await admin.post(GROUPS, {"name": name, "addUsers": [user.user_id]})
    await admin.post(GROUPS, {"name": f"{mark} empty"})
    [found] = (await user.post(f"{GROUPS}/search", {"name": mark, "limit": 100}))["groups"]
    assert (found["group"]["name"], found["numMembers"]) == (mark, 1)
    mine = await user.post(f"{GROUPS}/search", {"userId": user.user_id, "limit": 1, "offset": 1})
    assert [each["group"]["name"] for each in mine["groups"]] == [f"{mark} more"]
    assert (mine["pagination"]["endIndex"], mine["pagination"]["total"]) == (2, 2)
    assert (await user.post(f"{GROUPS}/search", {"name": f"{mark}%", "limit": 1}))["groups"] == []
    await user.refused(400, "POST", f"{GROUPS}/search", {"limit": 10**10})
    await user.refused(400, "POST", f"{GROUPS}/search", {"userId": user.user_id, "offset": 3, "limit": 1})


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ({}, 400, "name"),
        ({"name": " "}, 400, "name"),
        ({"name": "x" * 121}, 400, "1 to 120"),
        ({"name": "a\nb"}, 400, "printable"),
        ({"name": "a\x00"}, 400, "printable"),
        ({"name": "new", "addUsers": [999_999]}, 404, "user 999999"),
        ({"name": "new", "addUsers": list(range(10_001))}, 400, "addUsers"),
        ({"name": "new", "addUsers": "all"}, 400, "addUsers"),
    ],
)
async def test_group_is_refused_and_not_made_when_something_is_wrong(
    api: Served, body: dict[str, Any], status: int, told: str
) -> None:
    admin = api.user(is_admin=True)
    assert told in await admin.refused(status, "POST", GROUPS, body)
    assert (await admin.post(f"{GROUPS}/search", {"name": "new"}))["groups"] == []


async def test_group_name_is_a_conflict_when_it_is_taken(api: Served) -> None:
    admin, name = api.user(is_admin=True), f"<b>{uuid.uuid4()}</b>"
    await admin.post(GROUPS, {"name": name})
    await admin.refused(409, "POST", GROUPS, {"name": name})
    other = await a_group(api)
    await admin.refused(409, "PUT", f"{GROUPS}/{other}", {"name": name})


# -- what roles open ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "sees", "changes"), [
    (VIEWER, True, False), (CONTRIBUTOR, True, False), (EDITOR, True, True), (WORKSPACE_ADMIN, True, True),
    (RESTRICTED, True, True), (PROJECT_RESTRICTED, True, True),
])  # fmt: skip
@pytest.mark.parametrize("holder", ["user", "group"])
@pytest.mark.parametrize("scope", ["workspace", "cluster"])
async def test_role_opens_what_it_is_for_while_it_is_held(
    api: Served, place: Place, number: int, sees: bool, changes: bool, holder: str, scope: str
) -> None:
    admin, user = api.user(is_admin=True), api.user()
    workspace_id = place.workspace_id if scope == "workspace" else None
    body = (
        to_user(user, number, workspace_id)
        if holder == "user"
        else to_group(await a_group(api, user), number, workspace_id)
    )
    assert not await place.is_seen_by(user)
    assert await admin.post(ADD, body) == {}
    assert "already exists" in await admin.refused(409, "POST", ADD, body)
    assert (await place.is_seen_by(user), await place.is_changed_by(user)) == (sees, changes)
    assert await admin.post(REMOVE, body) == {}
    assert not await place.is_seen_by(user)
    assert not await place.is_changed_by(user)
    await admin.refused(404, "POST", REMOVE, body)


async def test_restricted_editor_makes_no_projects_and_creator_sees_nothing(api: Served, place: Place) -> None:
    """A role that is held in the whole cluster is none in its workspaces."""
    admin, restricted, editor, creator = api.user(is_admin=True), api.user(), api.user(), api.user()
    await admin.post(ADD, to_user(restricted, PROJECT_RESTRICTED, place.workspace_id))
    await admin.post(ADD, to_user(editor, RESTRICTED, place.workspace_id))
    await admin.post(ADD, to_user(creator, CREATOR, None))
    projects = f"/api/v1/workspaces/{place.workspace_id}/projects"
    assert "needs the role editor" in await restricted.refused(403, "POST", projects, {"name": "mine"})
    made = (await editor.post(projects, {"name": "mine"}))["project"]["id"]
    await restricted.refused(403, "PATCH", f"/api/v1/projects/{made}", {"name": "yours"})
    assert (await restricted.ask("DELETE", f"/api/v1/projects/{made}")).status_code == 200
    assert not await place.is_seen_by(creator)
    held = (await creator.get("/api/v1/permissions/summary"))["assignments"]
    assert {"roleId": CREATOR, "scopeWorkspaceIds": [], "scopeCluster": True} in held


async def test_nothing_is_private_and_assignments_do_not_count_in_the_mode_basic(basic_api: Served) -> None:
    api = basic_api
    admin, owner, user = api.user(is_admin=True), api.user(), api.user()
    assert (await api.nobody.get("/api/v1/master"))["rbacEnabled"] is False
    workspace = (await owner.post("/api/v1/workspaces", {"name": f"of {owner.username}"}))["workspace"]["id"]
    with api.database.write() as session:
        session.add(RoleAssignment(role="admin", user_id=user.user_id, workspace_id=workspace))
    assert workspace in [each["id"] for each in (await user.get("/api/v1/workspaces"))["workspaces"]]
    await user.refused(403, "PATCH", f"/api/v1/workspaces/{workspace}", {"name": "mine"})
    await owner.patch(f"/api/v1/workspaces/{workspace}", {"name": f"still of {owner.username}"})
    project = (await owner.post(f"/api/v1/workspaces/{workspace}/projects", {"name": "p"}))["project"]["id"]
    request = {"config": yaml.safe_dump(api.config()), "projectId": project, "activate": True}
    experiment = (await user.post("/api/v1/experiments", request))["experiment"]["id"]
    await api.user().refused(403, "PATCH", f"/api/v1/experiments/{experiment}", {"notes": "x"})
    assert "UNDETERRED_ACCESS" in await admin.refused(400, "POST", ADD, to_user(user, VIEWER, workspace))
    [held] = (await api.user().get("/api/v1/permissions/summary"))["assignments"][:1]
    assert held == {"roleId": CONTRIBUTOR, "scopeWorkspaceIds": [1], "scopeCluster": True}


async def test_role_is_gone_when_its_group_is_or_its_member_leaves(api: Served, place: Place) -> None:
    admin, users = api.user(is_admin=True), [api.user(), api.user()]
    group = await a_group(api, *users)
    await admin.post(ADD, to_group(group, VIEWER, place.workspace_id))
    await admin.ask("PUT", f"{GROUPS}/{group}", {"removeUsers": [users[0].user_id]})
    assert [await place.is_seen_by(user) for user in users] == [False, True]
    await admin.ask("DELETE", f"{GROUPS}/{group}")
    assert [await place.is_seen_by(user) for user in users] == [False, False]
    with api.database.read() as session:
        assert session.scalars(select(RoleAssignment).where(RoleAssignment.group_id == group)).all() == []


async def test_administrator_of_the_cluster_is_made_and_unmade_when_given_role_1(api: Served) -> None:
    admin, user = api.user(is_admin=True), api.user()
    await admin.post(ADD, to_user(user, CLUSTER_ADMIN, None))
    assert (await user.get("/api/v1/me"))["user"]["admin"] is True
    await user.get("/api/v1/master/config")
    assert "already exists" in await admin.refused(409, "POST", ADD, to_user(user, CLUSTER_ADMIN, None))
    await admin.post(REMOVE, to_user(user, CLUSTER_ADMIN, None))
    await user.refused(403, "GET", "/api/v1/master/config")
    await admin.refused(404, "POST", REMOVE, to_user(user, CLUSTER_ADMIN, None))


# -- who gives them ----------------------------------------------------------------------------------------------------


async def test_roles_in_a_workspace_are_given_by_its_administrators_only(api: Served, place: Place) -> None:
    admin, helper, editor, user = api.user(is_admin=True), api.user(), api.user(), api.user()
    where = place.workspace_id
    await place.owner.post(ADD, to_user(editor, EDITOR, where))
    await admin.post(ADD, to_user(helper, WORKSPACE_ADMIN, where))
    await helper.post(ADD, to_user(user, VIEWER, where))
    assert "admin" in await editor.refused(403, "POST", ADD, to_user(user, EDITOR, where))
    await editor.refused(403, "POST", REMOVE, to_user(user, VIEWER, where))
    await user.refused(403, "POST", ADD, to_user(user, WORKSPACE_ADMIN, where))
    await api.user().refused(404, "POST", ADD, to_user(user, VIEWER, where))
    for caller in (place.owner, helper):
        assert "administrators" in await caller.refused(403, "POST", ADD, to_user(user, EDITOR, None))
        await caller.refused(403, "POST", ADD, to_user(caller, CLUSTER_ADMIN, None))
    await helper.post(REMOVE, to_user(helper, WORKSPACE_ADMIN, where))
    await place.owner.post(ADD, to_user(helper, VIEWER, where))  # who owns it still administers it


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"role": {"roleId": 8}}, "expected one of 1 (ClusterAdmin)"),
        ({"role": {"roleId": 3}}, "not in a workspace"),
        ({"role": {"roleId": -1}}, "expected one of"),
        ({"role": {"roleId": "x"}}, "roleId"),
        ({"role": {}}, "roleId"),
        ({"role": None}, "role"),
        ({"role": {"roleId": 1}}, "not in a workspace"),
        ({"scopeCluster": True}, "either"),
    ],
)
async def test_assignment_is_refused_by_field_when_it_makes_no_sense(
    api: Served, place: Place, changes: dict[str, Any], told: str
) -> None:
    admin, user = api.user(is_admin=True), api.user()
    good = given(VIEWER, place.workspace_id)
    body = {
        "userRoleAssignments": [
            {"userId": user.user_id, "roleAssignment": good},
            {"userId": user.user_id, "roleAssignment": good | changes},
        ]
    }
    assert told in await admin.refused(400, "POST", ADD, body)
    assert not await place.is_seen_by(user), "all or nothing"


async def test_assignment_is_refused_when_nobody_or_no_such_thing_is_named(api: Served, place: Place) -> None:
    admin, user = api.user(is_admin=True), api.user()
    await admin.refused(400, "POST", ADD, {})
    group = await a_group(api, user)
    assert "users only" in await admin.refused(400, "POST", ADD, to_group(group, CLUSTER_ADMIN, None))
    await admin.refused(404, "POST", ADD, to_group(999_999, VIEWER, place.workspace_id))
    await admin.refused(404, "POST", ADD, to_user(user, VIEWER, 999_999))
    missing = {"userRoleAssignments": [{"userId": 999_999, "roleAssignment": given(VIEWER, place.workspace_id)}]}
    await admin.refused(404, "POST", ADD, missing)


# -- looking -----------------------------------------------------------------------------------------------------------


async def test_roles_are_those_that_clients_know_when_listed(api: Served) -> None:
    user = api.user()
    listed = await user.post(f"{ROLES}/search", {"limit": 0})
    assert {role["roleId"]: role["name"] for role in listed["roles"]} == {
        1: "ClusterAdmin", 2: "WorkspaceAdmin", 3: "WorkspaceCreator", 4: "Viewer", 5: "Editor", 6: "Contributor",
        7: "EditorRestricted", 9: "EditorProjectRestricted",
    }  # fmt: skip
    for role in listed["roles"]:
        assert role["scopeTypeMask"] == {"cluster": True, "workspace": role["roleId"] not in (1, 3)}
        for permission in role["permissions"]:
            assert permission["id"].removeprefix("PERMISSION_TYPE_") in KNOWN_TO_BOTH
            assert permission["name"]
    page = await user.post(f"{ROLES}/search", {"limit": 2, "offset": 1})
    assert [role["roleId"] for role in page["roles"]] == [2, 3]
    assert (page["pagination"]["endIndex"], page["pagination"]["total"]) == (3, 8)


def test_higher_roles_may_what_lower_ones_may_when_compared() -> None:
    ladder = [set(PERMISSIONS[number]) for number in (VIEWER, CONTRIBUTOR, EDITOR, WORKSPACE_ADMIN, CLUSTER_ADMIN)]
    assert all(lower < higher for lower, higher in itertools.pairwise(ladder))


async def test_assignable_roles_are_those_of_the_scope_when_asked(api: Served, place: Place) -> None:
    path = f"{ROLES}/search/by-assignability"
    in_it = await place.owner.post(path, {"workspaceId": place.workspace_id, "limit": 100})
    assert [role["roleId"] for role in in_it["roles"]] == [2, 4, 5, 6, 7, 9]
    assert 1 in [role["roleId"] for role in (await place.owner.post(path, {"limit": 0}))["roles"]]
    await api.user().refused(404, "POST", path, {"workspaceId": place.workspace_id})


async def test_summary_says_what_i_may_where_when_i_have_roles_in_several_ways(api: Served, place: Place) -> None:
    admin, user = api.user(is_admin=True), api.user()
    await admin.post(ADD, to_user(user, EDITOR, place.workspace_id))
    await admin.post(ADD, to_group(await a_group(api, user), VIEWER, None))
    summary = await user.get("/api/v1/permissions/summary")
    held = {each["roleId"]: each for each in summary["assignments"]}
    assert held[EDITOR]["scopeWorkspaceIds"] == [place.workspace_id]
    assert (held[VIEWER]["scopeCluster"], held[EDITOR]["scopeCluster"]) == (True, False)
    assert 1 in held[CONTRIBUTOR]["scopeWorkspaceIds"], "everybody contributes to the first workspace"
    assert {role["roleId"] for role in summary["roles"]} == set(held)
    owned = await place.owner.get("/api/v1/permissions/summary")
    assert (
        place.workspace_id
        in {each["roleId"]: each for each in owned["assignments"]}[WORKSPACE_ADMIN]["scopeWorkspaceIds"]
    )
    of_admin = {each["roleId"]: each for each in (await admin.get("/api/v1/permissions/summary"))["assignments"]}
    assert of_admin[CLUSTER_ADMIN]["scopeCluster"] is True


async def test_roles_of_a_user_and_of_a_group_are_told_when_asked_by_who_may(api: Served, place: Place) -> None:
    admin, user, stranger = api.user(is_admin=True), api.user(), api.user()
    group = await a_group(api, user)
    await admin.post(ADD, to_user(user, EDITOR, place.workspace_id))
    await admin.post(ADD, to_group(group, VIEWER, place.workspace_id))
    for caller in (admin, user):
        found = {
            each["role"]["roleId"]: each
            for each in (await caller.get(f"{ROLES}/search/by-user/{user.user_id}"))["roles"]
        }
        [by_himself] = found[EDITOR]["userRoleAssignments"]
        assert by_himself["userId"] == user.user_id
        assert by_himself["roleAssignment"]["scopeWorkspaceId"] == place.workspace_id
        assert [each["groupId"] for each in found[VIEWER]["groupRoleAssignments"]] == [group]
        of_group = await caller.get(f"{ROLES}/search/by-group/{group}")
        assert of_group["assignments"] == [
            {"roleId": VIEWER, "scopeWorkspaceIds": [place.workspace_id], "scopeCluster": False}
        ]
    await stranger.refused(403, "GET", f"{ROLES}/search/by-user/{user.user_id}")
    await stranger.refused(403, "GET", f"{ROLES}/search/by-group/{group}")
    await admin.refused(404, "GET", f"{ROLES}/search/by-user/999999")
    await admin.refused(404, "GET", f"{ROLES}/search/by-group/999999")


async def test_roles_by_id_hide_workspaces_when_the_caller_does_not_see_them(api: Served, place: Place) -> None:
    admin, user, stranger = api.user(is_admin=True), api.user(), api.user()
    await admin.post(ADD, to_user(user, EDITOR, place.workspace_id))

    async def holders(caller: Caller) -> set[int]:
        [editor, _] = (await caller.post(f"{ROLES}/search/by-ids", {"roleIds": [EDITOR, CLUSTER_ADMIN]}))["roles"]
        return {each["userId"] for each in editor["userRoleAssignments"]
                if each["roleAssignment"].get("scopeWorkspaceId") == place.workspace_id}  # fmt: skip

    assert await holders(admin) == await holders(user) == await holders(place.owner) == {user.user_id}
    assert await holders(stranger) == set()
    assert (await user.post(f"{ROLES}/search/by-ids", {"roleIds": []}))["roles"] == []
    await user.refused(400, "POST", f"{ROLES}/search/by-ids", {"roleIds": [99]})


async def test_administrators_see_who_has_a_role_by_name(api: Served, place: Place) -> None:
    admin, user = api.user(is_admin=True), api.user(f"holder {uuid.uuid4()}")
    group = await a_group(api, user)
    path = f"/api/v1/undeterred/roles/{EDITOR}/holders"
    await admin.post(ADD, to_user(user, EDITOR, place.workspace_id))
    await admin.post(ADD, to_user(user, EDITOR, None))
    await admin.post(ADD, to_group(group, EDITOR, place.workspace_id))
    found = (await admin.get(path, name=user.username[:30].upper()))["holders"]
    assert sorted((each["userId"], each["name"], each["workspaceId"] or 0) for each in found) == [
        (user.user_id, user.username, 0), (user.user_id, user.username, place.workspace_id)]  # fmt: skip
    every = await admin.get(path)
    [of_group] = [each for each in every["holders"] if each["groupId"] == group]
    assert (of_group["userId"], of_group["workspaceId"], bool(of_group["workspaceName"])) == (
        None,
        place.workspace_id,
        True,
    )
    page = await admin.get(path, limit=2, offset=1)
    assert page["holders"] == every["holders"][1:3]
    assert page["pagination"]["total"] == every["pagination"]["total"] == len(every["holders"])
    administrators = await admin.get(f"/api/v1/undeterred/roles/{CLUSTER_ADMIN}/holders", name=admin.username)
    assert admin.user_id in [each["userId"] for each in administrators["holders"]]
    assert "roleId: 99" in await admin.refused(400, "GET", "/api/v1/undeterred/roles/99/holders")
    await admin.refused(400, "GET", path, params={"name": "x" * 201})


async def test_members_of_a_workspace_are_shown_with_their_roles_when_it_is_seen(api: Served, place: Place) -> None:
    admin, user, member = api.user(is_admin=True), api.user(), api.user()
    group = await a_group(api, member)
    await admin.post(ADD, to_user(user, EDITOR, place.workspace_id))
    await admin.post(ADD, to_group(group, VIEWER, place.workspace_id))
    path = f"{ROLES}/workspace/{place.workspace_id}"
    found = await member.get(path)
    assert [each["id"] for each in found["usersAssignedDirectly"]] == [user.user_id]
    assert [(each["groupId"], [u["id"] for u in each["users"]]) for each in found["groups"]] == [
        (group, [member.user_id])
    ]
    assert [each["role"]["roleId"] for each in found["assignments"]] == [VIEWER, EDITOR]
    narrowed = await member.get(path, name=user.username)
    assert ([each["id"] for each in narrowed["usersAssignedDirectly"]], narrowed["groups"]) == ([user.user_id], [])
    await api.user().refused(404, "GET", path)
