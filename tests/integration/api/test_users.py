"""Users as both generations of clients manage them, and what they set for themselves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from database.models import RoleAssignment, User, UserSetting
from database.types import utc_now
from tests.integration.api.served import PASSWORD, Caller, Served

USERS = "/api/v1/users"


async def names_of(caller: Caller, **filters: Any) -> list[str]:
    return [user["username"] for user in (await caller.get(USERS, **filters))["users"]]


@pytest.fixture
def trio(api: Served) -> tuple[str, list[Caller]]:
    """Three users with a name in common, the second an administrator, the third inactive and with a display name."""
    first = api.user()
    mark = f"trio{first.user_id}"
    users = [api.user(f"{mark}-{letter}", is_admin=letter == "b") for letter in "abc"]
    with api.database.write() as session:
        session.execute(
            update(User).where(User.id == users[2].user_id).values(is_active=False, display_name=f"Aa {mark}")
        )
    return mark, users


async def test_users_are_narrowed_by_name_activity_and_rights_when_asked(
    api: Served, trio: tuple[str, list[Caller]]
) -> None:
    mark, [a, b, c] = trio
    user = api.user()
    assert await names_of(user, name=mark.upper()) == [a.username, b.username, c.username]
    assert await names_of(user, name=mark, active=True) == [a.username, b.username]
    assert await names_of(user, name=mark, active=False) == [c.username]
    assert await names_of(user, name=mark, admin=True) == [b.username]
    assert await names_of(user, name=mark, admin=False) == [a.username, c.username]
    assert await names_of(user, name=f"aa {mark}") == [c.username], "by display name"
    assert await names_of(user, name="%") == [], "no wildcard"
    with api.database.write() as session:
        session.add(RoleAssignment(role="editor", workspace_id=1, user_id=a.user_id))
    assert await names_of(user, name=mark, roleIdAssignedDirectlyToUser=5) == [a.username]
    assert await names_of(user, name=mark, roleIdAssignedDirectlyToUser=[1, 5]) == [a.username, b.username]
    told = await user.refused(400, "GET", USERS, params={"roleIdAssignedDirectlyToUser": 8})
    assert "1 (ClusterAdmin)" in told


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("SORT_BY_USER_NAME", "abc"),
        ("SORT_BY_DISPLAY_NAME", "cab"),
        ("SORT_BY_NAME", "cab"),
        ("SORT_BY_ADMIN", "acb"),
        ("SORT_BY_ACTIVE", "cab"),
        ("SORT_BY_MODIFIED_TIME", "abc"),
        ("SORT_BY_REMOTE", "abc"),
        ("SORT_BY_UNSPECIFIED", "abc"),
        ("", "abc"),
    ],
)
async def test_users_are_sorted_both_ways_when_asked(
    api: Served, trio: tuple[str, list[Caller]], sort: str, expected: str
) -> None:
    mark, _ = trio
    user = api.user()
    found = await names_of(user, name=mark, sortBy=sort)
    assert "".join(name[-1] for name in found) == expected
    assert await names_of(user, name=mark, sortBy=sort, orderBy="ORDER_BY_DESC") == found[::-1]


async def test_unknown_sort_is_refused_with_those_that_exist_when_asked(api: Served) -> None:
    user = api.user()
    told = await user.refused(400, "GET", USERS, params={"sortBy": "SORT_BY_SHOE_SIZE"})
    assert "SORT_BY_SHOE_SIZE" in told
    assert "SORT_BY_LAST_AUTH_TIME" in told
    assert "ORDER_BY_DESC" in await user.refused(400, "GET", USERS, params={"orderBy": "sideways"})


async def test_users_come_in_pages_when_there_are_limits(api: Served, trio: tuple[str, list[Caller]]) -> None:
    mark, users = trio
    user = api.user()
    found: list[str] = []
    while True:
        page = await user.get(USERS, name=mark, limit=2, offset=len(found))
        found += [each["username"] for each in page["users"]]
        if page["pagination"]["endIndex"] >= page["pagination"]["total"]:
            break
    assert found == [each.username for each in users]
    assert len(await names_of(user, limit=10**9)) == len(await names_of(user))
    await user.refused(400, "GET", USERS, params={"limit": 10**40})
    assert await names_of(user, name=mark, offset=-1) == [users[2].username]


async def test_users_who_never_logged_in_have_a_place_when_sorted_by_that(
    api: Served, trio: tuple[str, list[Caller]]
) -> None:
    mark, [_, b, _] = trio
    with api.database.write() as session:
        session.execute(update(User).where(User.id == b.user_id).values(last_auth_at=utc_now()))
    found = await names_of(api.user(), name=mark, sortBy="SORT_BY_LAST_AUTH_TIME")
    assert sorted(name[-1] for name in found) == ["a", "b", "c"]


async def test_display_name_is_refused_when_it_is_somebody_elses_name(api: Served) -> None:
    user, other = api.user(), api.user()
    path = f"{USERS}/{user.user_id}"
    await other.patch(f"{USERS}/{other.user_id}", {"displayName": f"Ada {other.username}"})
    for name in ("Admin", other.username.upper(), f"ada {other.username}"):
        assert "already exists" in await user.refused(409, "PATCH", path, {"displayName": name})
    await user.patch(path, {"displayName": user.username.upper()})


async def test_agent_user_is_kept_when_an_administrator_gives_it(api: Served) -> None:
    admin, user = api.user(is_admin=True), api.user()
    path = f"{USERS}/{user.user_id}"
    given = {"agentUid": 1000, "agentUser": "ada", "agentGid": 0, "agentGroup": "staff"}
    assert (await admin.patch(path, {"agentUserGroup": given}))["user"]["agentUserGroup"] == given
    assert (await user.get("/api/v1/me"))["user"]["agentUserGroup"] == given
    for half in ({"agentUid": 7}, {"agentUid": 7, "agentUser": "ada"}, {"agentGid": 7, "agentUser": ""}):
        assert "missing: expected all of" in await admin.refused(400, "PATCH", path, {"agentUserGroup": half})
    await user.refused(403, "PATCH", path, {"agentUserGroup": {"agentUid": 0, "agentUser": "root"}})
    for wrong in ({"agentUid": -1}, {"agentGid": 2**31}, {"agentUser": "a b"}, {"agentGroup": "x\ny"},
                  {"agentUser": "../root"}, {"agentUid": "many"}):  # fmt: skip
        await admin.refused(400, "PATCH", path, {"agentUserGroup": wrong})
    made = {"user": {"username": f"{user.username}-x", "agentUserGroup": given, "remote": True}}
    answer = (await admin.post(USERS, made))["user"]
    assert (answer["agentUserGroup"], answer["remote"]) == (given, True)


async def test_user_logs_in_again_only_when_activated(api: Served) -> None:
    admin, user = api.user(is_admin=True), api.user()
    path = f"{USERS}/{user.user_id}"
    assert (await admin.patch(path, {"active": False}))["user"]["active"] is False
    await user.refused(401, "GET", "/api/v1/me")
    sent = {"username": user.username, "password": PASSWORD}
    await api.nobody.refused(403, "POST", "/api/v1/auth/login", sent)
    assert (await admin.patch(path, {"active": True}))["user"]["active"] is True
    await user.refused(401, "GET", "/api/v1/me")  # what was ended stays so
    await api.nobody.post("/api/v1/auth/login", sent)
    api.http.cookies.clear()


async def test_remote_user_has_no_password_when_logging_in(api: Served) -> None:
    admin, user = api.user(is_admin=True), api.user()
    assert (await admin.patch(f"{USERS}/{user.user_id}", {"remote": True}))["user"]["remote"] is True
    sent = {"username": user.username, "password": PASSWORD}
    assert await api.nobody.refused(401, "POST", "/api/v1/auth/login", sent) == "invalid credentials"


@pytest.mark.parametrize("by", ["ids", "filters"])
async def test_many_users_are_deactivated_at_once_when_named(
    api: Served, trio: tuple[str, list[Caller]], by: str
) -> None:
    mark, [a, b, c] = trio
    admin = api.user(is_admin=True)
    body: dict[str, Any] = {"activate": False}
    body |= {"userIds": [a.user_id, c.user_id, 999_999]} if by == "ids" else {
        "userIds": [], "filters": {"name": mark, "admin": False}
    }  # fmt: skip
    results = {each["id"]: each["error"] for each in (await admin.patch(USERS, body))["results"]}
    assert results[a.user_id] == results[c.user_id] == ""
    assert ("not found" in results[999_999]) if by == "ids" else (b.user_id not in results)
    await a.refused(401, "GET", "/api/v1/me")
    await b.get("/api/v1/me")
    await admin.patch(USERS, body | {"activate": True})
    assert await names_of(admin, name=mark, active=True) == [a.username, b.username, c.username]
    await admin.refused(400, "PATCH", USERS, {"activate": True})
    await admin.refused(400, "PATCH", USERS, {"userIds": [a.user_id]})


async def test_last_administrator_stays_one_whoever_asks(api: Served) -> None:
    """All others are set aside for the length of this test."""
    admin = api.user(is_admin=True)
    with api.database.write() as session:
        others = list(session.scalars(select(User.id).where(User.is_admin, User.id != admin.user_id)))
        session.execute(update(User).where(User.id.in_(others)).values(is_admin=False))
    api.parts.auth.forget()
    try:
        path = f"{USERS}/{admin.user_id}"
        for body in ({"admin": False}, {"active": False}):
            assert "no active administrator" in await admin.refused(400, "PATCH", path, body)
        await admin.refused(400, "PATCH", USERS, {"userIds": [admin.user_id], "activate": False})
        await admin.refused(400, "PATCH", f"/users/{admin.username}", {"admin": False})
        role = {"role": {"roleId": 1}, "scopeCluster": True}
        body = {"userRoleAssignments": [{"userId": admin.user_id, "roleAssignment": role}]}
        await admin.refused(400, "POST", "/api/v1/roles/remove-assignments", body)
        assert (await admin.get("/api/v1/me"))["user"]["admin"] is True
        second = api.user(is_admin=True)
        rivals = await asyncio.gather(
            admin.ask("PATCH", f"{USERS}/{second.user_id}", {"admin": False}),
            second.ask("PATCH", path, {"admin": False}),
        )
        with api.database.read() as session:
            assert session.scalars(select(User.id).where(User.is_admin, User.is_active)).all()
        assert [answer.status_code for answer in rivals].count(200) == 1
    finally:
        with api.database.write() as session:
            session.execute(update(User).where(User.id.in_(others)).values(is_admin=True))
        api.parts.auth.forget()


@pytest.mark.parametrize("name", ["x" * 121, "a\x00b", "a\x1b[31mb", "a\nb", "a\u202eb"])
async def test_display_name_is_refused_when_it_could_fool_a_reader(api: Served, name: str) -> None:
    user = api.user()
    assert "displayName" in await user.refused(400, "PATCH", f"{USERS}/{user.user_id}", {"displayName": name})


async def test_display_name_is_a_text_when_it_looks_like_html(api: Served) -> None:
    user = api.user()
    html = f"<script>alert({user.user_id})</script>"
    response = await user.ask("PATCH", f"{USERS}/{user.user_id}", {"displayName": html})
    assert response.json()["user"]["displayName"] == html
    assert response.headers["content-type"] == "application/json"
    assert (await user.patch(f"{USERS}/{user.user_id}", {"displayName": ""}))["user"]["displayName"] is None


async def test_users_are_put_into_groups_and_out_when_assigned_together(api: Served) -> None:
    admin, users = api.user(is_admin=True), [api.user(), api.user()]
    ids = [user.user_id for user in users]
    groups = [
        (await admin.post("/api/v1/groups", {"name": f"g{number} of {ids[0]}"}))["group"]["groupId"]
        for number in range(2)
    ]
    await admin.patch(f"{USERS}/assignments", {"userIds": ids, "addGroups": groups, "removeGroups": []})
    await admin.patch(f"{USERS}/assignments", {"userIds": ids[:1], "addGroups": [], "removeGroups": groups[:1]})
    members = [
        [user["id"] for user in (await admin.get(f"/api/v1/groups/{group}"))["group"]["users"]] for group in groups
    ]
    assert members == [ids[1:], ids]
    await admin.refused(404, "PATCH", f"{USERS}/assignments", {"userIds": ids, "addGroups": [*groups, 999_999]})
    members = [user["id"] for user in (await admin.get(f"/api/v1/groups/{groups[0]}"))["group"]["users"]]
    assert members == ids[1:], "all or nothing"


# -- the routes of older clients ---------------------------------------------------------------------------------------


async def test_older_clients_find_users_where_they_were_when_they_ask(api: Served) -> None:
    admin, user = api.user(is_admin=True), api.user()
    name = f"{user.username}-old"
    made = await admin.post("/users", {"username": name, "admin": False, "active": True})
    assert (made["username"], made["agent_user_group"]) == (name, None)
    assert {name, user.username} <= {each["username"] for each in await user.get("/users")}
    assert (await user.get("/users/me"))["id"] == user.user_id
    group = {"uid": 5, "gid": 6, "user": "u", "group": "g"}
    assert (await admin.patch(f"/users/{name}", {"agent_user_group": group}))["agent_user_group"] == group
    assert (await admin.patch(f"/users/{name}", {"active": False}))["active"] is False
    assert (await admin.patch(f"/users/{name}", {"active": True, "admin": True}))["admin"] is True
    renamed = await admin.patch(f"/users/{name}/username", {"username": f"{name}2"})
    assert (renamed["username"], renamed["id"]) == (f"{name}2", made["id"])
    await admin.refused(404, "PATCH", f"/users/{name}", {"active": True})
    await user.refused(403, "PATCH", f"/users/{name}2", {"active": False})
    await user.refused(403, "PATCH", f"/users/{user.username}", {"admin": True})


async def test_older_clients_log_in_where_it_was_when_they_have_a_password(api: Served) -> None:
    from api.auth.authentication import client_hash

    user = api.user()
    sent = {"username": user.username, "password": client_hash(PASSWORD)}
    response = await api.nobody.ask("POST", "/login", sent)
    assert "set-cookie" not in response.headers
    caller = Caller(api.http, {"Authorization": f"Bearer {response.json()['token']}"})
    assert (await caller.get("/users/me"))["username"] == user.username
    with_cookie = await api.nobody.ask("POST", "/login", sent, params={"cookie": "true"})
    assert with_cookie.headers["set-cookie"].startswith(f"auth={with_cookie.json()['token']};")
    api.http.cookies.clear()
    await api.nobody.refused(401, "POST", "/login", {"username": user.username, "password": PASSWORD})
    await api.nobody.refused(401, "GET", "/users/me")
    assert await user.patch(f"/users/{user.username}", {"password": client_hash("another")})
    await caller.refused(401, "GET", "/users/me")
    await api.nobody.post("/login", sent | {"password": client_hash("another")})


# -- settings ----------------------------------------------------------------------------------------------------------

SETTING = f"{USERS}/setting"


async def test_settings_are_the_users_own_when_kept(api: Served) -> None:
    user, other = api.user(), api.user()
    assert await user.get(SETTING) == {"settings": []}
    await user.post(
        SETTING, {"settings": [{"key": "theme", "storagePath": "ui", "value": "dark"}, {"key": "x", "value": "1"}]}
    )
    await user.post(SETTING, {"storagePath": "old", "setting": {"key": "theme", "value": "light"}})  # as 0.21 does
    await user.post(SETTING, {"settings": [{"key": "theme", "storagePath": "ui", "value": "blue"}]})
    found = (await user.get(SETTING))["settings"]
    assert sorted((each["storagePath"], each["key"], each["value"]) for each in found) == [
        ("", "x", "1"), ("old", "theme", "light"), ("ui", "theme", "blue")
    ]  # fmt: skip
    assert await other.get(SETTING) == {"settings": []}
    await user.post(SETTING, {"settings": [{"key": "x", "value": ""}]})
    assert len((await user.get(SETTING))["settings"]) == 2
    await other.post(f"{SETTING}/reset")
    assert len((await user.get(SETTING))["settings"]) == 2
    await user.post(f"{SETTING}/reset")
    assert await user.get(SETTING) == {"settings": []}


@pytest.mark.parametrize(
    "setting",
    [{}, {"key": ""}, {"key": "x" * 251, "value": "1"}, {"key": "x", "value": "x" * 100_001}, {"key": "a\x00b", "value": "1"},
     {"key": "x", "storagePath": "x" * 251, "value": "1"}, "x", 5],
)  # fmt: skip
async def test_setting_is_refused_and_none_kept_when_one_is_wrong(api: Served, setting: Any) -> None:
    user = api.user()
    await user.refused(400, "POST", SETTING, {"settings": [{"key": "good", "value": "1"}, setting]})
    assert await user.get(SETTING) == {"settings": []}


async def test_settings_are_bounded_when_somebody_keeps_too_many(api: Served) -> None:
    user = api.user()
    many = [{"key": f"k{number}", "value": "1"} for number in range(1000)]
    await user.post(SETTING, {"settings": many})
    assert "at most 1000" in await user.refused(400, "POST", SETTING, {"settings": [{"key": "more", "value": "1"}]})
    assert len((await user.get(SETTING))["settings"]) == 1000
    with api.database.write() as session:
        session.execute(delete(UserSetting).where(UserSetting.user_id == user.user_id))


@pytest.mark.parametrize("body", [b"5", b"[]", b'"x"', b"{]", b"[" * 100_000, b'{"a":' * 5000, b"\xff", b"\x00"])
async def test_body_is_a_client_error_when_it_is_no_such_message(api: Served, body: bytes) -> None:
    admin = api.user(is_admin=True)
    for method, path in (
        ("POST", USERS), ("PATCH", USERS), ("PATCH", f"{USERS}/{admin.user_id}"), ("PATCH", f"{USERS}/assignments"),
        ("POST", SETTING), ("POST", "/users"), ("PATCH", f"/users/{admin.username}"), ("POST", "/login"),
        ("POST", "/api/v1/groups"), ("POST", "/api/v1/groups/search"), ("PUT", "/api/v1/groups/1"),
        ("POST", "/api/v1/roles/search"), ("POST", "/api/v1/roles/search/by-ids"), ("POST", "/api/v1/tokens"),
        ("POST", "/api/v1/roles/search/by-assignability"), ("POST", "/api/v1/roles/add-assignments"),
        ("POST", "/api/v1/roles/remove-assignments"), ("PATCH", "/api/v1/tokens/1"),
        ("PATCH", "/api/v1/master/config"), ("PUT", "/api/v1/master/cluster_message"),
    ):  # fmt: skip
        assert (await admin.ask(method, path, body)).status_code == 400, path


async def test_body_is_refused_when_it_is_larger_than_such_messages_are(api: Served) -> None:
    admin, large = api.user(is_admin=True), b'{"username": "' + b"x" * (2 * 2**20) + b'"}'
    for method, path in (("POST", "/login"), ("POST", "/api/v1/auth/login"), ("POST", USERS), ("POST", SETTING)):
        assert "over its limit" in await admin.refused(413, method, path, large)
