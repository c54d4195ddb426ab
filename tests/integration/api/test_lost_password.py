"""A lost password is set anew on the machine of the database; the first one is taken at the first start."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import select

from api.auth.authentication import hash_password
from database.models import AuditEntry, User
from tests.integration.api.conftest import serving
from tests.integration.api.served import ADMIN_PASSWORD, PASSWORD, Caller, Served
from tests.integration.api.test_login import attempt, until_dead
from workers.password import CannotReset, reset

LOGIN = "/api/v1/auth/login"


async def test_lost_password_is_replaced_and_what_was_open_with_it_ends(api: Served) -> None:
    user = api.user()
    for _ in range(11):  # somebody guessed meanwhile: the new password does not have to wait
        await attempt(api, user.username)
    password = reset(api.database, user.username)
    await until_dead(user)
    answer = await api.nobody.post(LOGIN, {"username": user.username, "password": password})
    assert await Caller(api.http, {"Authorization": f"Bearer {answer['token']}"}).get("/api/v1/me")
    await api.nobody.refused(401, "POST", LOGIN, {"username": user.username, "password": PASSWORD})
    with api.database.read() as session:
        last = session.scalars(select(AuditEntry).where(AuditEntry.target.contains(user.username))).all()[-1]
        assert (last.actor, last.method) == ("the cluster's machine", "SET")
        assert password not in str(vars(last))


async def test_password_is_not_set_when_there_is_no_such_user_or_it_is_kept_elsewhere(api: Served) -> None:
    user = api.user()
    with api.database.write() as session:
        session.get_one(User, user.user_id).is_remote = True
    with pytest.raises(CannotReset, match="no user 'nobody'"):
        reset(api.database, "nobody")
    with pytest.raises(CannotReset, match="remote"):
        reset(api.database, user.username)


async def test_command_names_the_user_or_says_why_not(api: Served) -> None:
    user = api.user()
    url = api.database.engine.url.render_as_string(hide_password=False)
    environment = {**os.environ, "UNDETERRED_DATABASE_URL": url}
    command = [sys.executable, "-m", "workers.password"]

    def run(name: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, name], env=environment, capture_output=True, text=True, check=False)

    done = await asyncio.to_thread(run, user.username)
    assert done.stdout.startswith(f"The new password of {user.username}, shown once: ")
    failed = await asyncio.to_thread(run, "nobody")
    assert (failed.returncode, failed.stdout, failed.stderr) == (1, "", "there is no user 'nobody'\n")


async def test_determined_is_there_beside_admin_with_the_same_first_password(api: Served) -> None:
    answer = await api.nobody.post(LOGIN, {"username": "determined", "password": ADMIN_PASSWORD})
    assert (answer["user"]["username"], answer["user"]["admin"]) == ("determined", False)


async def test_first_password_is_hashed_at_the_first_start_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To hash takes a fifth of a second of processor time, and most clusters are given the password at each start."""
    hashed: list[str] = []

    def counted(password: str, *, is_hashed: bool) -> str:
        hashed.append(password)
        return hash_password(password, is_hashed=is_hashed)

    monkeypatch.setattr("api.app.hash_password", counted)
    for _ in range(2):
        async with serving(f"sqlite:///{tmp_path / 'undeterred.db'}", tmp_path / "checkpoints") as served:
            assert (await served.nobody.post(LOGIN, {"username": "admin", "password": ADMIN_PASSWORD}))["token"]
    assert hashed == [ADMIN_PASSWORD]
