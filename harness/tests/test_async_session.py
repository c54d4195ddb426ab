"""The asynchronous session: what differs from the synchronous one, which `test_api_session` tests in full."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from determined import errors
from determined.common.api._async import _io, _login
from determined.common.api._async._session import AsyncSession
from determined.experimental import aio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from conftest import Call, Master


@pytest.fixture
async def session(master: Master) -> AsyncIterator[AsyncSession]:
    session = AsyncSession(master.url, token="tok")
    yield session
    await session.close()


async def test_requests_go_out_together_and_are_retried(master: Master, session: AsyncSession) -> None:
    together = threading.Barrier(3, timeout=20)
    master.answer("GET /a", lambda call: {"n": together.wait()})
    answers = await asyncio.gather(*(session.get("/a") for _ in range(3)))
    assert sorted(answer.json()["n"] for answer in answers) == [0, 1, 2]
    master.answer("GET /x", lambda call: {"n": 3} if len(master.of("GET /x")) >= 3 else (503, {"message": "later"}))
    assert (await session.get("/x")).json() == {"n": 3}
    master.answer("POST /y", (409, {"message": "taken"}))
    with pytest.raises(errors.ConflictException, match="taken"):
        await session.post("/y", {})


async def test_a_stream_is_read_as_it_arrives(master: Master, session: AsyncSession) -> None:
    gate = threading.Event()

    def lines() -> Iterator[bytes]:
        yield b'{"result": {"n": 1}}\n{"resul'
        gate.wait(20)
        yield b't": {"n": 2}}\n' + json.dumps({"error": {"httpCode": 404, "message": "gone"}}).encode()

    master.answer("GET /s", lambda call: lines())
    found: list[Any] = []
    with pytest.raises(errors.NotFoundException, match="gone"):
        async for message in session.stream("/s"):
            found.append(message)
            gate.set()
    assert found == [{"n": 1}, {"n": 2}]


async def test_closing_ends_what_is_under_way(master: Master) -> None:
    gate = threading.Event()
    master.answer("GET /x", lambda call: {"n": gate.wait(20)})
    session = AsyncSession(master.url)
    running = asyncio.create_task(session.get("/x", max_tries=1))
    await asyncio.to_thread(master.wait_for, lambda: master.calls)
    await session.close()
    with pytest.raises(errors.MasterNotFoundException):
        await asyncio.wait_for(running, 15)
    gate.set()
    with pytest.raises(errors.MasterNotFoundException, match="session is closed"):
        await session.get("/x", max_tries=1)


async def test_a_cancelled_request_leaves_the_session_usable(master: Master, session: AsyncSession) -> None:
    gate = threading.Event()
    master.answer("GET /slow", lambda call: {"n": gate.wait(20)})
    master.answer("GET /quick", {"n": 1})
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(session.get("/slow"), 0.1)
    gate.set()
    assert (await session.get("/quick")).json() == {"n": 1}


def test_another_event_loop_has_connections_of_its_own(master: Master) -> None:
    master.answer("GET /x", {"n": 1})
    session = AsyncSession(master.url)

    async def get() -> Any:
        answer = (await session.get("/x")).json()
        await session.close()
        return answer

    assert asyncio.run(get()) == asyncio.run(get()) == {"n": 1}


async def test_logging_in_is_the_same(master: Master, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def login(call: Call) -> Any:
        right = call.body["username"] == "ann" and call.body["isHashed"]
        return {"token": "t", "user": {"username": "ann"}} if right else (401, {"message": "invalid credentials"})

    master.answer("POST /api/v1/auth/login", login)
    master.answer("POST /api/v1/auth/logout", {})
    master.answer("GET /api/v1/me", {"user": {"id": 1, "username": "ann"}})
    async with await aio.AsyncDetermined.login(master.url, "ann", "pw") as det:
        assert await det.get_session_username() == "ann"
    again = await _login.login(master.url, "ann")
    assert len(master.of("POST /api/v1/auth/login")) == 1
    await _login.logout(again)
    await again.close()
    with pytest.raises(errors.UnauthenticatedException, match="can't log in"):
        await aio.AsyncDetermined.login(master.url, "bob", "pw")


async def test_the_first_error_ends_what_is_done_for_each() -> None:
    done: list[int] = []
    under_way = most = 0

    async def work(n: int) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            await asyncio.sleep(0)
        finally:
            under_way -= 1
        if n == 7:
            raise ValueError("seven")
        if n < 50:
            done.append(n)

    await _io.each(work, range(7), 3)
    assert (done, most) == ([0, 1, 2, 3, 4, 5, 6], 3)
    with pytest.raises(ValueError, match="seven"):
        await _io.each(work, range(60), 3)
    assert 49 not in done
    assert under_way == 0, "something was left at work"


async def test_nothing_works_on_in_a_thread_after_its_caller_was_cancelled() -> None:
    began, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def block() -> None:
        began.set()
        go_on.wait(20)
        ended.set()

    caller = asyncio.create_task(_io.run(block))
    assert await _io.run(began.wait, 20)
    caller.cancel()
    await asyncio.sleep(0.01)
    assert not caller.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended.is_set()
