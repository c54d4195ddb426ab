"""Every change leaves an entry, committed with it; nobody can change the entries unseen."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete, select, update
from sqlalchemy.exc import IntegrityError, OperationalError

from database import audit
from database.audit import Asking, append
from database.models import AuditEntry, User
from database.session import Database
from database.types import utc_now
from tests.integration.api.served import ADMIN_PASSWORD, PASSWORD, Caller, Served
from workflows.lifecycle.trial import TrialState

AUDIT = "/api/v1/undeterred/audit"


@pytest.fixture
def admin(api: Served) -> Caller:
    return api.user(is_admin=True)


async def entries(admin: Caller, actor: Caller | str, **filters: Any) -> list[dict[str, Any]]:
    """Oldest first."""
    name = actor if isinstance(actor, str) else actor.username
    return (await admin.get(AUDIT, actor=name, orderBy="ORDER_BY_ASC", **filters))["entries"]


async def test_entry_says_who_did_what_to_which_when_something_changed(api: Served, admin: Caller) -> None:
    user = api.user()
    await user.patch(f"/api/v1/users/{user.user_id}/", {"displayName": "Ada", "password": "a new secret"})
    [entry] = await entries(admin, user)
    assert (entry["actorId"], entry["method"], entry["route"], entry["target"]) == (
        user.user_id, "PATCH", "/api/v1/users/{user_id}", f"/api/v1/users/{user.user_id}"
    )  # fmt: skip
    assert entry["fields"] == ["display_name", "password"]
    assert f"~ users {user.user_id}" in entry["rows"]
    assert entry["address"] == "127.0.0.1"
    assert entry["tokenId"] > 0
    assert "secret" not in str(entry)


async def test_login_and_logout_are_noted_without_the_password_when_they_succeed(api: Served, admin: Caller) -> None:
    user = api.user()
    sent = {"username": user.username, "password": PASSWORD}
    token = (await api.nobody.post("/api/v1/auth/login", sent))["token"]
    api.http.cookies.clear()
    await api.nobody.refused(401, "POST", "/api/v1/auth/login", sent | {"password": "wrong"})
    await Caller(api.http, {"Authorization": f"Bearer {token}"}).post("/api/v1/auth/logout")
    found = await entries(admin, user)
    assert [entry["route"] for entry in found] == ["/api/v1/auth/login", "/api/v1/auth/logout"]
    assert PASSWORD not in str(found)
    assert token not in str(found)


async def test_nothing_is_noted_when_nothing_changed(api: Served, admin: Caller) -> None:
    user = api.user()
    await user.get("/api/v1/users")
    await user.post("/api/v1/roles/search", {"limit": 1})
    await user.post("/searcher/preview", {"searcher": {"name": "single", "metric": "loss"}})
    await user.refused(403, "POST", "/api/v1/groups", {"name": "x"})
    await user.refused(400, "PATCH", f"/api/v1/users/{user.user_id}", {"displayName": "a\nb"})
    await user.refused(404, "PATCH", "/api/v1/tokens/999999", {"setRevoked": True})
    assert await entries(admin, user) == []


async def test_entry_is_there_only_with_its_change_when_the_transaction_fails(
    api: Served, admin: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"half {uuid.uuid4()}"
    with monkeypatch.context() as patch:
        patch.setattr(audit, "entry_hash", lambda _: 1 / 0)
        assert (await admin.ask("POST", "/api/v1/groups", {"name": name})).status_code == 500
    assert (await admin.post("/api/v1/groups/search", {"name": name}))["groups"] == [], "no change without an entry"
    assert [entry for entry in await entries(admin, admin) if entry["route"] == "/api/v1/groups"] == []


async def test_command_is_noted_when_it_only_went_to_temporal(
    api: Served, admin: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = api.user()
    run = await api.trial(owner)

    async def taken(*_: Any) -> Any:
        return TrialState.STOPPING_KILLED

    path = f"/api/v1/trials/{run.trial_id}/kill"
    await owner.refused(503, "POST", path)
    assert "/api/v1/trials/{trial_id}/kill" not in [entry["route"] for entry in await entries(admin, owner)]
    monkeypatch.setattr(api.commands, "kill_trial", taken)
    assert (await owner.ask("POST", path)).status_code == 200
    [entry] = [entry for entry in await entries(admin, owner) if entry["target"] == path]
    assert (entry["route"], entry["rows"]) == ("/api/v1/trials/{trial_id}/kill", [])


async def test_client_is_told_to_try_again_when_a_command_can_not_be_noted(
    api: Served, admin: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = api.user()
    run = await api.trial(owner)

    async def taken(*_: Any) -> Any:
        return None

    def away(*_: Any) -> None:
        raise OperationalError("INSERT", {}, Exception("connection refused"))

    monkeypatch.setattr(api.commands, "signal", taken)
    monkeypatch.setattr("api.middleware.audit.append", away)
    response = await owner.ask("POST", f"/api/v1/trials/{run.trial_id}/kill")
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert response.json()["error"]["reason"] == "Unavailable"


async def test_reports_of_containers_are_not_noted_but_what_they_decide_is(api: Served, admin: Caller) -> None:
    import yaml

    owner = api.user()
    run = await api.trial(owner)
    before = (await admin.get(AUDIT))["pagination"]["total"]
    await run.report("training", 1, {"loss": 1.0})
    trial = f"/api/v1/trials/{run.trial_id}"
    await run.container.post(f"{trial}/progress", 0.5)
    await run.container.post(f"{trial}/runner/metadata", {"state": "busy"})
    await run.container.post("/api/v1/checkpoints", {"uuid": str(uuid.uuid4()), "metadata": {"steps_completed": 1}})
    await run.container.post("/api/v1/task/logs", {"logs": [{"taskId": run.task_id, "log": "x"}]})
    await run.container.post(f"/api/v1/allocations/{run.allocation_id}/ready")
    await api.launch(run.allocation_id)
    assert (await admin.get(AUDIT))["pagination"]["total"] == before
    again = await api.next_run(run)
    body = {"config": yaml.safe_dump(api.config()), "activate": False}
    await again.container.post("/api/v1/experiments", body)
    [entry] = await entries(admin, f"{owner.username} by {again.allocation_id}")
    assert (entry["actorId"], entry["route"]) == (owner.user_id, "/api/v1/experiments")


async def test_log_is_narrowed_and_paged_when_asked(api: Served, admin: Caller) -> None:
    user, start = api.user(), utc_now()
    for number in range(3):
        await user.patch(f"/api/v1/users/{user.user_id}", {"displayName": f"{user.username} the {number}"})
    await user.post("/api/v1/tokens")
    assert len(await entries(admin, user)) == 4
    assert len(await entries(admin, user, route="/api/v1/tokens")) == 1
    assert len(await entries(admin, user, target=f"/api/v1/users/{user.user_id}")) == 3
    assert len(await entries(admin, user, since=start.isoformat())) == 4
    assert await entries(admin, user, since=(start + timedelta(hours=1)).isoformat()) == []
    assert await entries(admin, user, until=start.isoformat()) == []
    page = await admin.get(AUDIT, actor=user.username, limit=3)
    assert page["entries"][0]["route"] == "/api/v1/tokens", "the newest first"
    assert (page["pagination"]["endIndex"], page["pagination"]["total"]) == (3, 4)
    await admin.refused(400, "GET", AUDIT, params={"since": "yesterday"})
    await admin.refused(400, "GET", AUDIT, params={"offset": 10**8})
    await user.refused(403, "GET", AUDIT)


async def test_chain_is_whole_when_many_change_at_once(api: Served, admin: Caller) -> None:
    users = [api.user() for _ in range(8)]

    async def work(user: Caller) -> None:
        for number in range(5):
            await user.patch(f"/api/v1/users/{user.user_id}", {"displayName": f"{user.username} the {number}"})

    await asyncio.gather(*map(work, users))
    chain = (await admin.get(AUDIT, verify=True, limit=1))["chain"]
    assert chain["isIntact"] is True, chain
    assert chain == await admin.get(f"{AUDIT}/verify")
    assert chain["checked"] == (await admin.get(AUDIT))["pagination"]["total"]
    assert chain["head"] == (await admin.get(AUDIT, limit=1))["entries"][0]["hash"]


# -- the chain itself, on a database of its own -----------------------------------------------------------------------


@pytest.fixture
def chain(database_url: str) -> Any:
    from database.migrate import migrate

    database = Database(database_url)
    migrate(database)
    for number in range(5):
        with database.write() as session:
            append(
                session, Asking("POST", f"/thing/{number}", actor="ada", actor_id=1, fields=("a",)), [f"+ x {number}"]
            )
    yield database
    database.close()


def test_chain_is_intact_when_nobody_touched_it(chain: Database) -> None:
    with chain.read() as session:
        found = audit.verify(session)
    assert (found.is_intact, found.checked, found.problem) == (True, 5, "")


@pytest.mark.parametrize(
    ("tamper", "told"),
    [
        (update(AuditEntry).where(AuditEntry.number == 3).values(actor="eve"), "entry 3 was changed"),
        (update(AuditEntry).where(AuditEntry.number == 3).values(rows=[]), "entry 3 was changed"),
        (update(AuditEntry).where(AuditEntry.number == 3).values(at=utc_now()), "entry 3 was changed"),
        (update(AuditEntry).where(AuditEntry.number == 2).values(previous="0" * 64), "entry 2 does not follow"),
        (delete(AuditEntry).where(AuditEntry.number == 4), "entry 4 is missing"),
        (delete(AuditEntry).where(AuditEntry.number == 1), "entry 1 is missing"),
        (update(AuditEntry).where(AuditEntry.number == 5).values(hash="f" * 64), "entry 5 was changed"),
    ],
    ids=["actor", "rows", "time", "link", "middle", "first", "hash"],
)
def test_chain_is_broken_where_somebody_tampered_with_it(chain: Database, tamper: Any, told: str) -> None:
    with chain.write() as session:
        session.execute(tamper)
    with chain.read() as session:
        found = audit.verify(session)
    assert not found.is_intact
    assert told in found.problem


def test_end_shows_as_another_head_when_the_last_entries_are_gone(chain: Database) -> None:
    with chain.read() as session:
        head = audit.verify(session).head
    with chain.write() as session:
        session.execute(delete(AuditEntry).where(AuditEntry.number == 5))
    with chain.read() as session:
        assert audit.verify(session).head != head


def test_transaction_without_a_request_leaves_nothing_when_it_writes(chain: Database) -> None:
    with chain.write() as session:
        session.add(User(username="made by an activity"))
    with chain.read() as session:
        assert len(session.scalars(select(AuditEntry.number)).all()) == 5


def test_request_leaves_one_entry_when_it_writes_twice_and_none_when_it_fails(chain: Database) -> None:
    request = Asking("POST", "/things", actor="ada")
    token = audit.asking.set(request)
    try:
        with pytest.raises(IntegrityError), chain.write() as session:
            session.add_all([User(username="lost"), User(username="lost")])
        assert not request.is_recorded
        with chain.write() as session:
            session.scalars(select(User)).all()  # reads only
        assert not request.is_recorded
        for name in ("first", "second"):
            with chain.write() as session:
                session.add(User(username=name))
    finally:
        audit.asking.reset(token)
    with chain.read() as session:
        [entry] = session.scalars(select(AuditEntry).where(AuditEntry.target == "/things")).all()
        assert [row.split()[:2] for row in entry.rows] == [["+", "users"]]
        assert sorted(session.scalars(select(User.username))) == ["first", "second"]


async def test_admin_password_is_nowhere_when_all_entries_are_read(api: Served, admin: Caller) -> None:
    with api.database.read() as session:
        told = str([(entry.target, entry.fields, entry.rows) for entry in session.scalars(select(AuditEntry))])
    assert ADMIN_PASSWORD not in told
    assert PASSWORD not in told
