"""Who guesses passwords waits; who is shut out is so everywhere and in the middle of work."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update

from api.auth import authentication, throttle
from api.auth.authentication import Authenticator
from api.errors import Unauthenticated
from database.models import LoginFailure, User, UserToken
from database.types import utc_now
from tests.integration.api.served import AGENT_TOKEN, PASSWORD, Caller, Served

LOGIN = "/api/v1/auth/login"


@pytest.fixture(autouse=True)
def strangers(api: Served) -> None:
    """Nobody has failed before."""
    with api.database.write() as session:
        session.query(LoginFailure).delete()


async def attempt(api: Served, username: str, password: str = "wrong") -> Any:
    response = await api.nobody.ask("POST", LOGIN, {"username": username, "password": password})
    api.http.cookies.clear()
    return response


def let_pass(api: Served, seconds: float) -> None:
    """Time goes by, as far as failures are concerned."""
    with api.database.write() as session:
        for row in session.scalars(select(LoginFailure)):
            row.last_at -= timedelta(seconds=seconds)


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
async def test_further_tries_wait_longer_and_longer_when_passwords_are_wrong(api: Served, is_known: bool) -> None:
    """Word for word the same, whether somebody has the name or not."""
    name = api.user().username if is_known else f"nobody-{time.monotonic_ns()}"
    for _ in range(throttle.FREE):
        assert (await attempt(api, name)).status_code == 401
    for expected in (1, 2, 4, 8, 16, 32, 60, 60):
        response = await attempt(api, name)
        assert response.status_code == 429, response.text
        wait_s = int(response.headers["retry-after"])
        assert expected - 1 <= wait_s <= expected
        assert response.json()["message"] == f"too many wrong passwords for this name: try again in {wait_s} s"
        assert response.json()["error"]["reason"] == "ResourceExhausted"
        let_pass(api, expected)
        assert (await attempt(api, name)).status_code == 401


async def test_right_password_waits_too_but_then_begins_anew_when_others_were_wrong(api: Served) -> None:
    user = api.user()
    for _ in range(throttle.FREE):
        await attempt(api, user.username)
    assert (await attempt(api, user.username, PASSWORD)).status_code == 429
    await user.get("/api/v1/me")  # who is logged in works on
    let_pass(api, 1)
    assert (await attempt(api, user.username, PASSWORD)).status_code == 200
    assert (await attempt(api, user.username)).status_code == 401
    with api.database.read() as session:
        assert session.scalars(select(LoginFailure.failures)).all() == [1]


async def test_other_names_are_not_held_up_when_one_is(api: Served) -> None:
    user, other = api.user(), api.user()
    for _ in range(throttle.FREE):
        await attempt(api, user.username)
    assert (await attempt(api, user.username)).status_code == 429
    assert (await attempt(api, other.username, PASSWORD)).status_code == 200


async def test_failures_are_forgotten_when_an_hour_has_passed(api: Served) -> None:
    user = api.user()
    for _ in range(throttle.FREE - 1):
        await attempt(api, user.username)
    let_pass(api, 3601)
    assert (await attempt(api, user.username)).status_code == 401
    with api.database.read() as session:
        assert session.scalars(select(LoginFailure.failures)).all() == [1]


async def test_processes_count_together_when_there_are_several(api: Served) -> None:
    name = api.user().username
    other = Authenticator(api.database, agent_token=AGENT_TOKEN, session_days=1)
    for _ in range(throttle.FREE):
        with pytest.raises(Unauthenticated):
            await other.login(name, "wrong", is_hashed=False)
    assert (await attempt(api, name)).status_code == 429


async def test_failures_are_bounded_when_thousands_of_names_are_tried(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttle, "MOST_NAMES", 5)
    watched = api.user().username
    for _ in range(3):
        await attempt(api, watched)
    for number in range(8):
        await attempt(api, f"flood-{number}")
    with api.database.read() as session:
        assert session.scalar(select(func.count()).select_from(LoginFailure)) == 5
        assert session.get(LoginFailure, throttle._key(watched)), "the most tried one is forgotten last"


async def test_names_are_not_kept_readable_when_they_failed(api: Served) -> None:
    await attempt(api, "my-password-typed-as-a-name")
    with api.database.read() as session:
        [row] = session.scalars(select(LoginFailure)).all()
    assert "my-password" not in row.name_hash
    assert len(row.name_hash) == 64


@pytest.mark.parametrize("name", ["a\x00b", "", "x" * 100_000, "\ud800", "<b>", "a\nb"])
async def test_login_is_refused_like_any_other_when_nobody_could_have_the_name(api: Served, name: str) -> None:
    response = await attempt(api, name)
    assert response.status_code in (400, 401), response.text


async def test_unknown_and_known_names_take_as_long_when_the_password_is_wrong(api: Served) -> None:
    """Both verify one hash: counted, because times of a busy machine tell little."""
    counted: list[bytes] = []
    real = authentication._hasher.verify

    def verify(stored: str, sent: bytes) -> Any:
        counted.append(sent)
        return real(stored, sent)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(authentication._hasher.__class__, "verify", lambda _, stored, sent: verify(stored, sent))
        for name in (api.user().username, "nobody-at-all", "no\x07printable"):
            counted.clear()
            await attempt(api, name)
            assert len(counted) == 1, name


@pytest.mark.usefixtures("costly_passwords")
async def test_others_are_served_when_many_log_in_at_once(api: Served) -> None:
    users = [api.user() for _ in range(30)]
    logins = [asyncio.create_task(attempt(api, user.username, PASSWORD)) for user in users]
    async with asyncio.timeout(2):
        await users[0].get("/api/v1/me")
    assert {answer.status_code for answer in await asyncio.gather(*logins)} == {200}


async def test_login_is_put_off_when_too_many_wait(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "_WAITING_AT_MOST", 0)
    response = await attempt(api, "admin")
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")


# -- the ends of sessions ----------------------------------------------------------------------------------------------


async def until_dead(caller: Caller) -> None:
    async with asyncio.timeout(3):
        while (await caller.ask("GET", "/api/v1/me")).status_code != 401:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("way", ["revoked", "expired", "deactivated"])
async def test_session_dies_within_a_second_when_another_process_ends_it(api: Served, way: str) -> None:
    user = api.user()
    await user.get("/api/v1/me")
    with api.database.write() as session:
        of_user = update(UserToken).where(UserToken.user_id == user.user_id)
        if way == "revoked":
            session.execute(of_user.values(revoked_at=utc_now()))
        elif way == "expired":
            session.execute(of_user.values(expires_at=utc_now() - timedelta(seconds=1)))
        else:
            session.execute(update(User).where(User.id == user.user_id).values(is_active=False))
    await until_dead(user)


async def test_rights_are_those_of_now_when_somebody_becomes_an_administrator_or_no_longer_is_one(
    api: Served,
) -> None:
    admin, user = api.user(is_admin=True), api.user()
    await user.refused(403, "GET", "/api/v1/master/config")
    await admin.patch(f"/api/v1/users/{user.user_id}", {"admin": True})
    await user.get("/api/v1/master/config")
    await admin.patch(f"/api/v1/users/{user.user_id}", {"admin": False})
    await user.refused(403, "GET", "/api/v1/master/config")


async def test_nothing_has_changed_when_the_change_of_a_password_fails_half_way(api: Served) -> None:
    """The sessions end in the same transaction as the password changes."""
    user = api.user()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("api.services.users.utc_now", lambda: 1 / 0)
        assert (await user.ask("PATCH", f"/api/v1/users/{user.user_id}", {"password": "x"})).status_code == 500
    await user.get("/api/v1/me")
    assert (await attempt(api, user.username, PASSWORD)).status_code == 200


async def test_long_dead_sessions_go_when_their_user_logs_in_again(api: Served) -> None:
    user = api.user()
    dead, recent = (api.session_of(user.user_id, expires_at=utc_now() - timedelta(days=days)) for days in (30, 1))
    api.session_of(user.user_id, expires_at=utc_now() - timedelta(days=30), scope="read-only")
    assert (await attempt(api, user.username, PASSWORD)).status_code == 200
    with api.database.read() as session:
        kept = session.scalars(select(UserToken).where(UserToken.user_id == user.user_id)).all()
    hashes = {row.token_hash for row in kept}
    assert authentication.token_hash(dead.headers["Authorization"].removeprefix("Bearer ")) not in hashes
    assert authentication.token_hash(recent.headers["Authorization"].removeprefix("Bearer ")) in hashes
    assert len(kept) == 4, "the first session, the recent one, the new one, and the access token"


async def test_cookie_is_taken_back_when_logged_out(api: Served) -> None:
    user = api.user()
    response = await user.ask("POST", "/api/v1/auth/logout")
    cookie = response.headers["set-cookie"].lower()
    assert 'auth="";' in cookie
    assert "max-age=0" in cookie


async def test_cookie_is_only_for_tls_when_the_client_came_by_it(api: Served) -> None:
    import httpx

    user = api.user()
    transport = httpx.ASGITransport(api.app)
    for scheme, is_secure in (("https", True), ("http", False)):
        async with httpx.AsyncClient(base_url=f"{scheme}://cluster", transport=transport) as http:
            response = await http.post(LOGIN, json={"username": user.username, "password": PASSWORD})
        assert response.status_code == 200
        assert ("secure" in response.headers["set-cookie"].lower()) is is_secure


@pytest.mark.usefixtures("costly_passwords")
async def test_wrong_password_takes_as_long_for_names_that_nobody_has(api: Served) -> None:
    """In processor time, of the hash and all around it; five of each in turn, and the median of each."""
    known, remote = api.user(), api.user()
    with api.database.write() as session:
        session.execute(update(User).where(User.id == remote.user_id).values(is_remote=True, password_hash=None))
    names = {"known": known.username, "unknown": "nobody-has-this", "without": remote.username, "odd": "a\x00b"}
    times: dict[str, list[float]] = {name: [] for name in names}
    look: Any = api.parts.auth._user_with  # pyright: ignore[reportPrivateUsage]
    vars(api.parts.auth).pop("_decoy", None)  # an earlier test's cost little

    def measure() -> None:
        look("first", "x", False)  # makes what the others are checked against
        for _ in range(5):
            for kind, name in names.items():
                began = time.thread_time()
                assert look(name, "wrong", False) is None
                times[kind].append(time.thread_time() - began)

    await asyncio.to_thread(measure)
    medians = {kind: sorted(taken)[2] for kind, taken in times.items()}
    assert max(medians.values()) < 1.5 * min(medians.values()), medians
