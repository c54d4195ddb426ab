"""Login, tokens and users (spec rest-api.md §2)."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import select, update

from api.auth.authentication import client_hash
from database.models import User, UserToken
from database.types import utc_now
from tests.integration.api.served import ADMIN_PASSWORD, PASSWORD, Caller, Served

LOGIN = "/api/v1/auth/login"


async def log_in(api: Served, username: str, password: str, **more: Any) -> Caller:
    answer = await api.nobody.post(LOGIN, {"username": username, "password": password, **more})
    return Caller(api.http, {"Authorization": f"Bearer {answer['token']}"}, answer["user"]["id"], username)


@pytest.mark.parametrize("spelling", ["isHashed", "is_hashed"])
async def test_token_opens_the_api_when_logged_in_with_a_hashed_password(api: Served, spelling: str) -> None:
    response = await api.nobody.ask(
        "POST", LOGIN, {"username": "admin", "password": client_hash(ADMIN_PASSWORD), spelling: True}
    )
    assert response.status_code == 200
    token, user = response.json()["token"], response.json()["user"]
    assert (user["username"], user["admin"], user["active"], user["agentUserGroup"]) == ("admin", True, True, None)
    cookie = response.headers["set-cookie"]
    assert cookie.startswith(f"auth={token};")
    assert {"httponly", "path=/", "samesite=lax", "max-age=604800"} <= {
        part.strip().lower() for part in cookie.split(";")
    }
    for headers in (
        {"Authorization": f"Bearer {token}"},
        {"Cookie": f"auth={token}"},
        {"Grpc-Metadata-x-user-token": f"Bearer {token}"},
    ):
        assert (await Caller(api.http, headers).get("/api/v1/me"))["user"]["username"] == "admin"
    api.http.cookies.clear()


async def test_token_opens_the_api_when_logged_in_with_a_plain_password(api: Served) -> None:
    for more in ({}, {"isHashed": False}, {"isHashed": None}):
        caller = await log_in(api, "admin", ADMIN_PASSWORD, **more)
        api.http.cookies.clear()
        assert (await caller.get("/api/v1/me"))["user"]["username"] == "admin"


async def test_login_is_noted_when_it_succeeds(api: Served) -> None:
    user = api.user()
    assert (await user.get("/api/v1/me"))["user"]["lastAuthAt"] is None
    await log_in(api, user.username, PASSWORD)
    api.http.cookies.clear()
    assert (await user.get("/api/v1/me"))["user"]["lastAuthAt"].endswith("Z")


@pytest.mark.parametrize(
    "sent",
    [
        {"username": "admin", "password": "wrong"},
        {"username": "admin", "password": ""},
        {"username": "admin"},
        {"username": "admin", "password": ADMIN_PASSWORD, "isHashed": True},
        {"username": "ADMIN", "password": ADMIN_PASSWORD},
        {"username": "nobody", "password": ADMIN_PASSWORD},
        {"username": "", "password": ""},
        {"username": "' OR 1=1 --", "password": "x"},
        {"username": "admin", "password": "x" * 2**20},
    ],
    ids=["wrong", "empty", "none", "hashed-twice", "case", "unknown", "blank", "sql", "1-MB"],
)
async def test_login_is_refused_with_the_same_words_when_credentials_are_wrong(
    api: Served, sent: dict[str, Any]
) -> None:
    assert await api.nobody.refused(401, "POST", LOGIN, sent) == "invalid credentials"


async def test_login_answers_soon_when_the_password_is_huge(api: Served) -> None:
    started = time.monotonic()
    await api.nobody.refused(401, "POST", LOGIN, {"username": "admin", "password": "x" * 2**20})
    assert time.monotonic() - started < 10


async def test_login_is_refused_when_the_user_is_inactive(api: Served) -> None:
    user = api.user()
    with api.database.write() as session:
        session.execute(update(User).where(User.id == user.user_id).values(is_active=False))
    sent = {"username": user.username, "password": PASSWORD}
    assert await api.nobody.refused(403, "POST", LOGIN, sent) == "user is not active"
    sent["password"] = "wrong"
    assert await api.nobody.refused(401, "POST", LOGIN, sent) == "invalid credentials"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "username: Field required"),
        (b"{}", "username: Field required"),
        (b'{"username": null}', "username: Field required"),
        (b'{"username": 5}', "username: Input should be a valid string, got 5"),
        (b"[]", "the body: Input should be"),
        (b"{", "Invalid JSON"),
        (b"\xff\xfe", "Invalid JSON"),
        (b"[" * 100_000, "Invalid JSON"),
    ],
)  # fmt: skip
async def test_login_is_refused_with_the_field_when_the_body_is_wrong(api: Served, body: bytes, told: str) -> None:
    assert told in await api.nobody.refused(400, "POST", LOGIN, body)


@pytest.mark.parametrize(
    "token", ["", "x", "Bearer", "Bearer x", "Bearer é\xff", "Basic eA==", "Bearer " + "x" * 5000, "'; DROP TABLE users"]
)  # fmt: skip
@pytest.mark.parametrize("header", ["Authorization", "Grpc-Metadata-x-allocation-token", "Grpc-Metadata-x-user-token"])
async def test_request_is_unauthenticated_when_its_token_is_bad(api: Served, header: str, token: str) -> None:
    response = await api.http.get("/api/v1/me", headers=[(header.encode(), token.encode("latin-1"))])
    assert response.status_code == 401
    assert response.json()["error"]["reason"] == "Unauthenticated"


async def test_token_of_one_kind_is_refused_when_used_as_another(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    as_container = Caller(api.http, {"Grpc-Metadata-x-allocation-token": user.headers["Authorization"]})
    as_user = Caller(api.http, {"Authorization": run.container.headers["Grpc-Metadata-x-allocation-token"]})
    await as_container.refused(401, "GET", "/api/v1/me")
    # containers have their token where a user's is looked for, too: see test_tokens
    assert (await as_user.get("/api/v1/me"))["user"]["username"] == user.username


async def test_token_is_dead_at_once_when_logged_out(api: Served) -> None:
    user = api.user()
    other_session = api.session_of(user.user_id)
    await user.get("/api/v1/me")
    assert await user.post("/api/v1/auth/logout") == {}
    assert "please log in" in await user.refused(401, "GET", "/api/v1/me")
    await user.refused(401, "POST", "/api/v1/auth/logout")
    await other_session.get("/api/v1/me")


async def test_token_is_dead_when_it_expired(api: Served) -> None:
    user = api.user()
    await api.session_of(user.user_id, expires_at=utc_now() + timedelta(minutes=1)).get("/api/v1/me")
    await api.session_of(user.user_id, expires_at=utc_now() - timedelta(seconds=1)).refused(401, "GET", "/api/v1/me")


async def test_tokens_are_kept_hashed_when_handed_out(api: Served) -> None:
    user = await log_in(api, "admin", ADMIN_PASSWORD)
    api.http.cookies.clear()
    token = user.headers["Authorization"].removeprefix("Bearer ")
    with api.database.read() as session:
        assert all(token not in stored for stored in session.scalars(select(UserToken.token_hash)))


@pytest.mark.parametrize("way", ["password-route", "patch", "deactivated"])
async def test_every_session_ends_when_the_password_changes_or_the_user_goes(api: Served, way: str) -> None:
    user, admin = api.user(), api.user(is_admin=True)
    sessions = [user, api.session_of(user.user_id), api.session_of(user.user_id, scope="read-only")]
    for session in sessions:
        await session.get("/api/v1/me")
    if way == "password-route":
        assert await user.post(f"/api/v1/users/{user.user_id}/password", client_hash("new one")) == {}
    elif way == "patch":
        await user.patch(f"/api/v1/users/{user.user_id}", {"password": client_hash("new one"), "isHashed": True})
    else:
        await admin.patch(f"/api/v1/users/{user.user_id}", {"active": False})
    for session in sessions:
        await session.refused(401, "GET", "/api/v1/me")
    if way != "deactivated":
        await log_in(api, user.username, "new one")
        await api.nobody.refused(401, "POST", LOGIN, {"username": user.username, "password": PASSWORD})
    api.http.cookies.clear()


async def test_own_password_is_changed_by_who_said_the_current_one(api: Served) -> None:
    """An open session that somebody finds, and an access token, are not enough; administrators set others' at any time."""
    user, admin = api.user(), api.user(is_admin=True)
    token = (await user.post("/api/v1/tokens", {"userId": user.user_id}))["token"]
    access = Caller(api.http, {"Authorization": f"Bearer {token}"})
    patch = {"password": client_hash("new one"), "isHashed": True}
    with api.database.write() as session:
        old = utc_now() - timedelta(minutes=16)
        session.execute(
            update(UserToken).where(UserToken.user_id.in_([user.user_id, admin.user_id])).values(created_at=old)
        )
    for caller in (user, access):
        path = f"/api/v1/users/{user.user_id}"
        for method, where, body in (
            ("PATCH", path, patch), ("POST", f"{path}/password", client_hash("new one")),
            ("PATCH", f"/users/{user.username}", {"password": client_hash("new one")}),
        ):  # fmt: skip
            assert "say the current one: log in again" in await caller.refused(403, method, where, body)
    await admin.refused(403, "PATCH", f"/api/v1/users/{admin.user_id}", patch)
    await user.patch(f"/api/v1/users/{user.user_id}", {"displayName": "of an old session"})
    fresh = await log_in(api, user.username, PASSWORD)
    assert (await fresh.ask("PATCH", f"/api/v1/users/{user.user_id}", patch)).status_code == 200
    await access.refused(401, "GET", "/api/v1/me")
    await admin.patch(f"/api/v1/users/{user.user_id}", {"password": client_hash("newer"), "isHashed": True})
    api.http.cookies.clear()


async def test_token_is_good_as_what_it_is_and_as_nothing_else(api: Served) -> None:
    """Of a login, a container and the agents: shown where another kind belongs, it opens nothing more."""
    user, admin = api.user(), api.user(is_admin=True)
    run = await api.trial(admin)
    bearer = user.headers["Authorization"]
    as_container = Caller(api.http, {"Grpc-Metadata-x-allocation-token": bearer})
    for method, path in (("GET", "/api/v1/me"), ("POST", f"/api/v1/trials/{run.trial_id}/metrics")):
        await as_container.refused(401, method, path)
    agent = Caller(api.http, {"Grpc-Metadata-x-allocation-token": api.agent.headers["Authorization"]})
    await agent.refused(401, "POST", "/api/v1/task/logs", {"logs": [{"log": "x", "allocationId": run.allocation_id}]})
    token = next(iter(run.container.headers.values()))
    as_login = Caller(api.http, {"Authorization": token})
    for method, path, body in (
        ("POST", "/api/v1/users", {"user": {"username": "mine", "admin": True}}), ("POST", "/api/v1/tokens", {}),
        ("PATCH", f"/api/v1/users/{admin.user_id}", {"password": client_hash("x"), "isHashed": True}),
        ("POST", "/api/v1/undeterred/agents/a/hello", {"devices": [], "pool": ""}),
    ):  # fmt: skip
        await as_login.refused(403, method, path, body)


async def test_container_is_its_owner_when_it_asks_who_it_is(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    assert (await run.container.get("/api/v1/me"))["user"]["username"] == user.username


async def is_dead(caller: Caller) -> None:
    """Within a second or so: for that long an API process remembers who a token belongs to."""
    async with asyncio.timeout(3):
        while (await caller.ask("GET", "/api/v1/me")).status_code != 401:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.05)


async def test_container_token_is_dead_when_its_allocation_ended_or_was_launched_again(api: Served) -> None:
    run = await api.trial(api.user())
    again = await api.launch(run.allocation_id)
    await again.get("/api/v1/me")
    await is_dead(run.container)
    await api.end(run)
    await is_dead(again)
    path = f"/api/v1/undeterred/allocations/{run.allocation_id}/containers/0/launch"
    assert "has ended" in await api.agent.refused(400, "POST", path)


async def test_late_request_of_an_earlier_attempt_leaves_the_containers_token(api: Served) -> None:
    """A host that was cut off sends what it had to say before when it is back; that may overtake what it says then."""
    run = await api.trial(api.user())
    path = f"/api/v1/undeterred/allocations/{run.allocation_id}/containers/0/launch?attemptedAt="
    now = utc_now()
    earlier, later = [quote((now + timedelta(hours=hours)).isoformat()) for hours in (-1, 1)]
    assert "a later attempt" in await api.agent.refused(409, "POST", f"{path}{earlier}")
    await run.container.get("/api/v1/me")
    await api.agent.post(f"{path}{later}")
    await is_dead(run.container)
    assert "attemptedAt" in await api.agent.refused(400, "POST", f"{path}noon")


# -- users -------------------------------------------------------------------------------------------------------------


async def test_user_can_log_in_when_created(api: Served) -> None:
    admin = api.user(is_admin=True)
    name = f"new-{admin.user_id}"
    for body in (
        {"user": {"username": f" {name} ", "displayName": f"One {name}", "admin": False, "active": True},
         "password": client_hash("secret"), "isHashed": True},
        {"user": {"username": f"{name}2", "display_name": f"Two {name}"}, "password": "secret"},
    ):  # fmt: skip
        made = (await admin.post("/api/v1/users", body))["user"]
        assert made["username"] == body["user"]["username"].strip()
        assert (made["displayName"][4:], made["admin"], made["active"]) == (name, False, True)
        await log_in(api, made["username"], "secret")
        api.http.cookies.clear()
        assert (await admin.get(f"/api/v1/users/{made['id']}"))["user"]["username"] == made["username"]
        assert (await admin.get(f"/api/v1/users/{made['username']}/by-username"))["user"]["id"] == made["id"]
    assert {made["username"], name} <= {user["username"] for user in (await admin.get("/api/v1/users"))["users"]}


@pytest.mark.parametrize(
    ("user", "status", "told"),
    [
        (None, 400, "username ''"),
        ({}, 400, "username ''"),
        ({"username": "x"}, 400, "username 'x'"),
        ({"username": "  x  "}, 400, "username 'x'"),
        ({"username": "ünal"}, 400, "username 'ünal'"),
        ({"username": "a\nb"}, 400, "username 'a\\nb'"),
        ({"username": "a\x00b"}, 400, "username 'a\\x00b'"),
        ({"username": "x" * 121}, 400, "expected 2 to 120"),
        ({"username": 12}, 400, "user.username"),
        ({"username": "good", "displayName": {"a": 1}}, 400, "user.displayName"),
        ({"username": "good", "admin": "perhaps"}, 400, "user.admin"),
        ("good", 400, "user"),
        ({"username": "admin"}, 409, "user 'admin' already exists"),
        ({"username": " admin "}, 409, "user 'admin' already exists"),
    ],
)  # fmt: skip
async def test_user_is_refused_by_field_when_created_wrongly(api: Served, user: Any, status: int, told: str) -> None:
    admin = api.user(is_admin=True)
    assert told in await admin.refused(status, "POST", "/api/v1/users", {"user": user, "password": "x"})


async def test_user_is_refused_when_the_password_could_not_be_used(api: Served) -> None:
    admin, long = api.user(is_admin=True), "x" * 1025
    body = {"user": {"username": "long-password"}, "password": long}
    assert "at most 1024" in await admin.refused(400, "POST", "/api/v1/users", body)
    assert "at most 1024" in await admin.refused(400, "POST", f"/api/v1/users/{admin.user_id}/password", long)
    for odd in (b"5", b"0", b"{}", b"[]", b"false", b"'x'"):
        await admin.refused(400, "POST", f"/api/v1/users/{admin.user_id}/password", odd)


async def test_only_given_fields_change_when_a_user_is_patched(api: Served) -> None:
    user, admin = api.user(), api.user(is_admin=True)
    path = f"/api/v1/users/{user.user_id}"
    assert (await user.patch(path, {"displayName": "Me"}))["user"]["displayName"] == "Me"
    changed = (await admin.patch(path, {"admin": True, "displayName": None}))["user"]
    assert (changed["displayName"], changed["admin"], changed["username"]) == ("Me", True, user.username)
    assert (await admin.patch(path, {"username": f"{user.username}x"}))["user"]["username"] == f"{user.username}x"
    assert (await admin.patch(path, b""))["user"]["displayName"] == "Me"


@pytest.mark.parametrize(
    ("name", "status"), [("admin", 409), (" admin ", 409), ("", 400), (" ", 400), ("x", 400), ("é" * 3, 400)]
)
async def test_user_keeps_the_name_when_the_new_one_is_taken_or_bad(api: Served, name: str, status: int) -> None:
    admin = api.user(is_admin=True)
    await admin.refused(status, "PATCH", f"/api/v1/users/{admin.user_id}", {"username": name})
    assert (await admin.get("/api/v1/me"))["user"]["username"] == admin.username


@pytest.mark.parametrize("field", ["admin", "active", "username"])
async def test_user_can_not_raise_itself_when_not_an_administrator(api: Served, field: str) -> None:
    user = api.user()
    value = "root-too" if field == "username" else True
    told = await user.refused(403, "PATCH", f"/api/v1/users/{user.user_id}", {field: value})
    assert "only administrators" in told


async def test_user_is_not_found_when_it_does_not_exist(api: Served) -> None:
    admin = api.user(is_admin=True)
    for path in ("/api/v1/users/999999", "/api/v1/users/nobody-here/by-username"):
        await admin.refused(404, "GET", path)
    await admin.refused(404, "PATCH", "/api/v1/users/999999", {"displayName": "x"})
    await admin.refused(400, "GET", "/api/v1/users/abc")
