"""Access tokens of users, what read-only ones can't, and the tokens of allocations."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from database.models import Allocation, UserToken
from database.types import utc_now
from tests.integration.api.served import PASSWORD, Caller, Run, Served

TOKENS = "/api/v1/tokens"


def bearer(api: Served, token: str) -> Caller:
    return Caller(api.http, {"Authorization": f"Bearer {token}"})


async def made(api: Served, user: Caller, **wanted: Any) -> tuple[Caller, int]:
    """A new access token, as a caller, and its id."""
    answer = await user.post(TOKENS, {"userId": user.user_id, **wanted})
    return bearer(api, answer["token"]), answer["tokenId"]


async def info(user: Caller, token_id: int) -> dict[str, Any]:
    [found] = (await user.get(TOKENS, tokenIds=token_id, showInactive=True))["tokenInfo"]
    return found


async def test_access_token_opens_the_api_and_only_its_hash_is_kept_when_made(api: Served) -> None:
    user = api.user()
    token, token_id = await made(api, user, description="for CI", lifespan="48h")
    assert (await token.get("/api/v1/me"))["user"]["username"] == user.username
    found = await info(user, token_id)
    assert (found["userId"], found["username"]) == (user.user_id, user.username)
    life = datetime.fromisoformat(found["expiry"]) - datetime.fromisoformat(found["createdAt"])
    assert timedelta(hours=47, minutes=59) < life < timedelta(hours=48, minutes=1)
    assert (found["userId"], found["description"], found["revoked"], found["tokenType"], found["scope"]) == (
        user.user_id, "for CI", False, "TOKEN_TYPE_ACCESS_TOKEN", "full"
    )  # fmt: skip
    plain = token.headers["Authorization"].removeprefix("Bearer ")
    assert plain not in str(await user.get(TOKENS))
    with api.database.read() as session:
        assert plain not in session.scalars(select(UserToken.token_hash)).all()


@pytest.mark.parametrize(
    ("lifespan", "days"), [("", 30), ("24h", 1), ("1h30m", 1.5 / 24), ("90s", 90 / 86400), ("-24h", None), ("-1", None)]
)
async def test_access_token_lives_as_long_as_asked_when_made(api: Served, lifespan: str, days: float | None) -> None:
    user = api.user()
    _, token_id = await made(api, user, lifespan=lifespan)
    expiry = datetime.fromisoformat((await info(user, token_id))["expiry"])
    if days is None:
        assert expiry.year == 9999
    else:
        assert abs(expiry - utc_now() - timedelta(days=days)) < timedelta(seconds=30)


@pytest.mark.parametrize(
    "lifespan", ["soon", "0h", "0s", "h", "1x", "1h 2m", "--1h", "9" * 30 + "h", "1e9h", "99999999h"]
)
async def test_lifespan_is_refused_when_it_is_none(api: Served, lifespan: str) -> None:
    user = api.user()
    assert "lifespan" in await user.refused(400, "POST", TOKENS, {"lifespan": lifespan})
    assert (await user.get(TOKENS))["tokenInfo"] == []


async def test_access_token_is_dead_when_revoked_expired_or_of_an_inactive_user(api: Served) -> None:
    admin, user = api.user(is_admin=True), api.user()
    (revoked, revoked_id), (expired, expired_id), (left, _) = [await made(api, user) for _ in range(3)]
    for token in (revoked, expired, left):
        await token.get("/api/v1/me")
    answer = await user.patch(f"{TOKENS}/{revoked_id}", {"tokenId": revoked_id, "setRevoked": True})
    assert answer["tokenInfo"]["revoked"] is True
    await revoked.refused(401, "GET", "/api/v1/me")
    with api.database.write() as session:
        session.execute(update(UserToken).where(UserToken.id == expired_id).values(expires_at=utc_now()))
    api.parts.auth.forget()
    await expired.refused(401, "GET", "/api/v1/me")
    await admin.patch(f"/api/v1/users/{user.user_id}", {"active": False})
    await left.refused(401, "GET", "/api/v1/me")
    assert (await admin.get(TOKENS, username=user.username))["tokenInfo"] == [], "deactivation revokes"


async def test_access_token_ends_when_the_password_changes(api: Served) -> None:
    """Who changes a password may do so because somebody else knew it, who may have made tokens as well."""
    user = api.user()
    token, _ = await made(api, user)
    await user.patch(f"/api/v1/users/{user.user_id}", {"password": "another one"})
    await user.refused(401, "GET", "/api/v1/me")
    await token.refused(401, "GET", "/api/v1/me")


async def test_revoked_token_is_noticed_in_the_middle_of_work_when_it_goes(api: Served) -> None:
    user = api.user()
    token, token_id = await made(api, user)
    results: list[int] = []

    async def work() -> None:
        while not results or results[-1] == 200:
            results.append((await token.ask("GET", "/api/v1/experiments")).status_code)

    task = asyncio.create_task(work())
    while len(results) < 3:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.01)
    await user.patch(f"{TOKENS}/{token_id}", {"setRevoked": True})
    async with asyncio.timeout(3):
        await task
    assert results[-1] == 401


async def test_tokens_are_listed_by_filter_and_sort_when_asked(api: Served) -> None:
    user, other, admin = api.user(), api.user(), api.user(is_admin=True)
    ids = [(await made(api, user, description=letter))[1] for letter in "bca"]
    (_, others) = await made(api, other)
    await user.patch(f"{TOKENS}/{ids[1]}", {"setRevoked": True})

    async def found(caller: Caller, **filters: Any) -> list[int]:
        return [each["id"] for each in (await caller.get(TOKENS, **filters))["tokenInfo"]]

    assert await found(user) == [ids[0], ids[2]]
    assert await found(user, showInactive=True) == ids
    assert await found(user, showInactive=True, sortBy="SORT_BY_DESCRIPTION") == [ids[2], ids[0], ids[1]]
    assert await found(user, showInactive=True, sortBy="SORT_BY_CREATED_AT", orderBy="ORDER_BY_DESC") == ids[::-1]
    assert await found(user, tokenIds=[ids[0], others]) == [ids[0]], "others' are not there"
    assert await found(admin, tokenIds=[ids[0], others]) == [ids[0], others]
    assert await found(admin, username=user.username) == [ids[0], ids[2]]
    page = await user.get(TOKENS, limit=1, showInactive=True)
    assert (page["pagination"]["endIndex"], page["pagination"]["total"]) == (1, 3)
    await user.refused(403, "GET", TOKENS, params={"username": other.username})
    await admin.refused(404, "GET", TOKENS, params={"username": "nobody-here"})
    assert "SORT_BY_EXPIRY" in await user.refused(400, "GET", TOKENS, params={"sortBy": "SORT_BY_LUCK"})


async def test_sessions_are_no_access_tokens_when_listed_or_patched(api: Served) -> None:
    user = api.user()
    with api.database.read() as session:
        session_id = session.scalars(select(UserToken.id).where(UserToken.user_id == user.user_id)).one()
    assert (await user.get(TOKENS, tokenIds=session_id, showInactive=True))["tokenInfo"] == []
    await user.refused(404, "PATCH", f"{TOKENS}/{session_id}", {"setRevoked": True})
    await user.get("/api/v1/me")


async def test_token_for_another_user_is_made_when_an_administrator_asks(api: Served) -> None:
    user, admin = api.user(), api.user(is_admin=True)
    token = bearer(api, (await admin.post(TOKENS, {"userId": user.user_id}))["token"])
    assert (await token.get("/api/v1/me"))["user"]["id"] == user.user_id
    await user.refused(403, "POST", TOKENS, {"userId": admin.user_id})
    await admin.refused(404, "POST", TOKENS, {"userId": 999_999})
    await admin.patch(f"/api/v1/users/{user.user_id}", {"active": False})
    await admin.refused(400, "POST", TOKENS, {"userId": user.user_id})


@pytest.mark.parametrize(
    "body",
    [{"description": "x" * 1001}, {"description": "a\nb"}, {"description": "a\x1b[0m"}, {"description": 5},
     {"scope": "everything"}, {"scope": ""}, {"lifespan": 5}, {"userId": "me"}],
)  # fmt: skip
async def test_token_is_refused_by_field_when_something_is_wrong(api: Served, body: dict[str, Any]) -> None:
    user = api.user()
    assert next(iter(body)) in await user.refused(400, "POST", TOKENS, body)
    assert (await user.get(TOKENS))["tokenInfo"] == []


async def test_description_changes_when_patched_and_revoking_is_for_good(api: Served) -> None:
    user = api.user()
    _, token_id = await made(api, user, description="old")
    assert (await user.patch(f"{TOKENS}/{token_id}", {"description": "new"}))["tokenInfo"]["description"] == "new"
    await user.patch(f"{TOKENS}/{token_id}", {"setRevoked": True})
    assert (await user.patch(f"{TOKENS}/{token_id}", {"setRevoked": False}))["tokenInfo"]["revoked"] is True
    assert (await info(user, token_id))["description"] == "new"


async def test_use_is_noted_without_a_write_for_each_request_when_a_token_is_used(api: Served) -> None:
    user = api.user()
    token, token_id = await made(api, user)
    for _ in range(5):
        await token.get("/api/v1/me")
    assert (await info(user, token_id))["lastUsedAt"] is None, "not yet"
    await asyncio.to_thread(api.parts.auth.note_use)
    noted = (await info(user, token_id))["lastUsedAt"]
    assert abs(datetime.fromisoformat(noted) - utc_now()) < timedelta(seconds=30)
    api.parts.auth.forget()
    await token.get("/api/v1/me")
    await asyncio.to_thread(api.parts.auth.note_use)
    assert (await info(user, token_id))["lastUsedAt"] == noted, "once a minute is enough"


# -- read-only ---------------------------------------------------------------------------------------------------------


async def test_read_only_token_reads_and_changes_nothing_when_used(api: Served) -> None:
    admin = api.user(is_admin=True)
    token, token_id = await made(api, admin, scope="read-only")
    assert (await info(admin, token_id))["scope"] == "read-only"
    for path in ("/api/v1/me", "/api/v1/users", "/api/v1/experiments", "/api/v1/undeterred/audit", TOKENS):
        await token.get(path)
    for path in ("/api/v1/groups/search", "/api/v1/roles/search", "/api/v1/roles/search/by-ids"):
        await token.post(path, {"limit": 1})
    before = (await admin.get("/api/v1/undeterred/audit"))["pagination"]["total"]
    for method, path, body in (
        ("POST", TOKENS, {"scope": "full"}), ("PATCH", f"{TOKENS}/{token_id}", {"setRevoked": True}),
        ("POST", "/api/v1/auth/logout", None), ("PATCH", f"/api/v1/users/{admin.user_id}", {"displayName": "x"}),
        ("POST", "/api/v1/users", {"user": {"username": "sneaky"}}), ("POST", "/api/v1/experiments", {"config": "x"}),
        ("POST", "/api/v1/users/setting/reset", None), ("DELETE", "/api/v1/groups/1", None),
    ):  # fmt: skip
        assert "read-only" in await token.refused(403, method, path, body)
    await token.get("/api/v1/me")
    assert (await admin.get("/api/v1/undeterred/audit"))["pagination"]["total"] == before


async def test_read_only_token_reports_nothing_when_sent_in_the_fast_lane(api: Served) -> None:
    owner = api.user()
    run = await api.trial(owner)
    token, _ = await made(api, owner, scope="read-only")
    told = await token.refused(
        403, "POST", f"/api/v1/trials/{run.trial_id}/metrics", run.message("training", 1, {"loss": 1.0})
    )
    assert "read-only" in told


# -- tokens of allocations ---------------------------------------------------------------------------------------------


async def works(run: Run) -> None:
    await run.report("training", 1, {"x": 1.0})
    await run.container.get("/api/v1/me")
    await run.container.get(f"/api/v1/allocations/{run.allocation_id}/signals/preemption", timeout_seconds=0)


async def test_container_keeps_its_rights_when_it_runs_for_eight_days(api: Served) -> None:
    """Longer than any session: it began eight days ago, its user's sessions have long expired, nobody renewed it."""
    owner = api.user()
    run = await api.trial(owner)
    ago = utc_now() - timedelta(days=8, hours=1)
    with api.database.write() as session:
        session.execute(update(Allocation).where(Allocation.id == run.allocation_id).values(started_at=ago))
        session.execute(
            update(UserToken).where(UserToken.user_id == owner.user_id).values(created_at=ago, expires_at=ago)
        )
    api.parts.auth.forget()
    await owner.refused(401, "GET", "/api/v1/me")
    await works(run)


async def test_container_goes_on_when_its_owner_logs_out_or_changes_the_password(api: Served) -> None:
    owner = api.user()
    run = await api.trial(owner)
    await owner.patch(f"/api/v1/users/{owner.user_id}", {"password": "another one"})
    await works(run)


async def test_container_speaks_for_its_own_allocation_only_when_it_knows_another(api: Served) -> None:
    owner = api.user()
    run, other = await api.trial(owner), await api.trial(owner)
    path = f"/api/v1/allocations/{other.allocation_id}/signals/ack_preemption"
    await run.container.refused(404, "POST", path)
    body = other.message("training", 1, {"x": 1.0})
    await run.container.refused(404, "POST", f"/api/v1/trials/{other.trial_id}/metrics", body)
    later = await api.next_run(run)
    await later.container.refused(404, "POST", f"/api/v1/allocations/{run.allocation_id}/signals/ack_preemption")


async def test_container_has_no_rights_of_its_user_but_reading_when_it_asks(api: Served) -> None:
    admin = api.user(is_admin=True)
    run = await api.trial(admin)
    for method, path, body in (
        ("POST", TOKENS, None), ("GET", TOKENS, None), ("POST", "/api/v1/users", {"user": {"username": "sneaky"}}),
        ("PATCH", f"/api/v1/users/{admin.user_id}", {"password": PASSWORD}), ("GET", "/api/v1/undeterred/audit", None),
        ("GET", "/api/v1/master/config", None), ("POST", "/api/v1/auth/logout", None),
    ):  # fmt: skip
        await run.container.refused(403, method, path, body)


async def test_program_in_a_container_can_not_keep_its_rights_when_it_acts_for_its_owner(api: Served) -> None:
    """The CLI and the SDK in a container send its token as a user's. It opens what the owner may, and nothing lasting."""
    import yaml

    admin = api.user(is_admin=True)
    run = await api.trial(admin)
    program = Caller(api.http, {"Authorization": run.container.headers["Grpc-Metadata-x-allocation-token"]})
    made_by_it = await program.post("/api/v1/experiments", {"config": yaml.safe_dump(api.config()), "activate": False})
    assert made_by_it["experiment"]["userId"] == admin.user_id
    for method, path, body in (
        ("POST", TOKENS, None), ("PATCH", f"/api/v1/users/{admin.user_id}", {"password": "mine now"}),
        ("POST", f"/api/v1/users/{admin.user_id}/password", "mine now"), ("POST", "/users", {"username": "sneaky"}),
        ("POST", "/api/v1/users", {"user": {"username": "sneaky"}}), ("POST", "/api/v1/auth/logout", None),
        ("POST", "/api/v1/roles/add-assignments", {}), ("POST", "/api/v1/groups", {"name": "sneaky"}),
        ("GET", "/api/v1/undeterred/audit", None), ("GET", "/api/v1/master/config", None),
        ("PATCH", "/api/v1/master/config", {}),
    ):  # fmt: skip
        await program.refused(403, method, path, body)
    [entry] = (await admin.get("/api/v1/undeterred/audit", actor=f"{admin.username} by {run.allocation_id}"))["entries"]
    assert entry["route"] == "/api/v1/experiments"
    await api.end(run)
    api.parts.auth.forget()
    await program.refused(401, "GET", "/api/v1/me")


async def test_container_has_nothing_left_when_its_allocation_ended(api: Served) -> None:
    run = await api.trial(api.user())
    await works(run)
    await api.end(run)
    api.parts.auth.forget()
    await run.container.refused(401, "GET", "/api/v1/me")
    body = run.message("training", 9, {"x": 1.0})
    await run.container.refused(401, "POST", f"/api/v1/trials/{run.trial_id}/metrics", body)
