"""Bounds on bodies: how large, of how many values, how slow, and how much one sender may have on the way."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from api import lane
from api.ingest import log_writer
from api.middleware import bodies
from api.middleware.bodies import LARGE, MIB, TABLE, Bodies
from api.schemas.logs import MOST_LINES
from database.models import Trial
from tests.integration.api.served import AGENT_TOKEN, Caller, Run, Served
from tests.integration.api.test_bad_input import Raw
from tests.integration.api.test_logs import entry, texts
from tests.integration.api.test_permissions import generic, routes
from workers.agent_api import ApiClient
from workers.settings import AgentSettings

LOGS = "/api/v1/task/logs"


def test_row_of_the_table_is_a_route() -> None:
    known = {f"{method} {path}" for method, path in routes()}
    assert [row for row in TABLE if generic(row) not in known] == []


@pytest.mark.parametrize("row", TABLE)
def test_row_of_the_table_is_found_by_its_address(row: str) -> None:
    method, _, path = row.partition(" ")
    filled = "/".join("1" if part.startswith("{") else part for part in path.replace("{kind}", "a").split("/"))
    assert bodies.bound_of(method, filled) is bodies.bound_of(method, filled + "/") is TABLE[row]


@contextlib.asynccontextmanager
async def half_sent(api: Served, caller: Caller, path: str, size: int = 2 * LARGE) -> AsyncIterator[Raw]:
    """A large request whose sender takes his time."""
    async with Raw(api, caller) as raw:
        await raw.begin("POST", path, f"Content-Length: {size + 1}")
        raw.writer.write(b'{"logs": [], "x": "' + b"x" * (size - 20))
        await raw.writer.drain()
        for _ in range(500):  # until all of it has come
            if api.app.bodies._held >= size - 1:
                break
            await asyncio.sleep(0.02)
        yield raw


async def test_body_is_refused_when_it_is_larger_than_its_route_takes(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    many = [entry(run, number) for number in range(MOST_LINES + 1)]
    assert "at most 10000 items" in await api.agent.refused(400, "POST", LOGS, {"logs": many})
    assert "at most 10000 items" in await api.agent.refused(400, "POST", "/task-logs", many)
    wide = {"logs": [entry(run, number, "x" * 60_000) for number in range(80)]}
    assert "over its limit of 4194304 bytes" in await api.agent.refused(413, "POST", LOGS, wide)
    assert await texts(user, run) == []


@pytest.mark.parametrize("path", ["/api/v1/experiments", "/api/v1/trials/1/metrics", "/api/v1/templates/x"])
async def test_body_is_refused_when_it_has_millions_of_values(api: Served, path: str) -> None:
    user = api.user()
    started = time.monotonic()
    for body in (b"[" + b"{}," * 2_000_000 + b"{}]", b"[" * 2_000_000):
        response = await user.ask("POST", path, body)
        assert response.status_code in (400, 413), response.text
        assert "more than 1000000 values" in response.text
    assert time.monotonic() - started < 10


async def test_body_is_refused_when_it_comes_too_slowly(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api.app, "bodies", Bodies(patience_s=0.3))
    async with half_sent(api, api.user(), "/api/v1/experiments", 1000) as raw:
        assert await raw.status() == 408


async def test_sender_waits_his_turn_when_his_large_requests_are_on_the_way(api: Served) -> None:
    user, other = api.user(), api.user()
    run, others = await api.trial(user), await api.trial(other)
    large = {"logs": [entry(run, number, "x" * 1000) for number in range(500)]}
    async with half_sent(api, run.container, LOGS) as raw:
        for number in range(100):  # what was sent may still be on its way
            response = await run.container.ask("POST", LOGS, large, headers={"Cookie": f"another=sender{number}"})
            if response.status_code == 429:
                break
            await asyncio.sleep(0.02)
        assert (response.status_code, response.headers["Retry-After"]) == (429, "1")
        await run.container.post(LOGS, {"logs": [entry(run, 1000)]})  # small ones always pass
        await others.container.post(LOGS, {"logs": [entry(others, at, "x" * 1000) for at in range(500)]})
        raw.writer.write(b'"}')
        assert await raw.status() == 400
    await run.container.post(LOGS, large)
    assert len(await texts(user, run)) == 501


async def test_request_is_put_off_when_all_bodies_together_are_too_much(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api.app, "bodies", Bodies(total=MIB, share=MIB))
    user, run = api.user(), await api.trial(api.user())
    async with half_sent(api, user, "/api/v1/experiments", MIB - 1000):
        for _ in range(500):
            response = await run.container.ask("POST", LOGS, {"logs": [entry(run, 1, "x" * 5000)]})
            if response.status_code == 503:
                break
            await asyncio.sleep(0.02)
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")

    for _ in range(500):
        response = await run.container.ask("POST", LOGS, {"logs": [entry(run, 2)]})
        if response.status_code == 200:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"still refused after the large request has ended: {response.text}")


@pytest.mark.parametrize(("tasks", "slices"), [(1, [2000, 400]), (2, [500, 500, 500, 500, 400])])
async def test_lines_are_stored_in_slices_when_there_are_many(
    api: Served, monkeypatch: pytest.MonkeyPatch, tasks: int, slices: list[int]
) -> None:
    """Those of one task become blocks of that size."""
    sizes: list[int] = []

    def store(session: Any, entries: Sequence[Any], *more: Any) -> None:
        sizes.append(len(entries))
        stored(session, entries, *more)

    stored = log_writer.store_lines
    monkeypatch.setattr(log_writer, "store_lines", store)
    user = api.user()
    runs = [await api.trial(user) for _ in range(tasks)]
    await api.agent.post(LOGS, {"logs": [entry(runs[number % tasks], number) for number in range(2400)]})
    assert sizes == slices
    for run in runs:
        assert len(await texts(user, run)) == 2400 // tasks


def client(api: Served) -> ApiClient:
    return ApiClient(
        AgentSettings(agent_id="a", slots=1, api_url=str(api.http.base_url), folder="/nowhere", agent_token=AGENT_TOKEN)  # pyright: ignore[reportArgumentType]
    )


async def test_shipper_loses_nothing_when_its_lines_are_too_much_at_once(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    shipper = client(api)
    await shipper.send_logs([entry(run, number, f"{number} " + "x" * 8000) for number in range(1000)])
    assert [line.split()[0] for line in await texts(user, run)] == [str(number) for number in range(1000)]
    bad: list[dict[str, Any]] = [entry(run, number) for number in range(1000, 1010)]
    bad[3]["timestamp"] = "no time"
    await shipper.send_logs(bad)
    assert len(await texts(user, run)) == 1009, "a bad line does not take its neighbours with it"
    await shipper.close()


async def test_shipper_waits_when_the_api_asks_for_it(api: Served) -> None:
    user = api.user()
    run: Run = await api.trial(user)
    shipper = client(api)
    async with half_sent(api, api.agent, LOGS) as raw:
        await asyncio.sleep(0.3)
        sending = asyncio.create_task(shipper.send_logs([entry(run, at, "x" * 1000) for at in range(500)]))
        await asyncio.sleep(0.5)
        assert not sending.done()
        assert await texts(user, run) == []
        raw.writer.write(b'"}')
        assert await raw.status() == 400
        await asyncio.wait_for(sending, 10)
    assert len(await texts(user, run)) == 500
    await shipper.close()


async def test_large_reports_wait_for_others_and_small_ones_for_none(api: Served) -> None:
    """After an outage each trial sends thousands at once."""
    run = await api.trial(api.user())
    path = f"/api/v1/trials/{run.trial_id}/metrics/batch"
    reports = [
        {"group": "training", **run.message("", step, {f"metric{n}": step / 7 for n in range(10)})["metrics"]}
        for step in range(1, 2001)
    ]
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(lane._LARGE_AT_ONCE):
            await stack.enter_async_context(api.app._large)
        sending = asyncio.create_task(run.container.post(path, {"reports": reports}))
        await run.report("validation", 1, {"loss": 0.5})
        junk = {"op": {"validateAfter": {"length": 1}}, "junk": "x" * 2 * LARGE}
        await run.container.ask("POST", f"/api/v1/trials/{run.trial_id}/searcher/completed_operation", junk)
        assert not sending.done()
    await sending
    with api.database.read() as session:
        assert session.get_one(Trial, run.trial_id).total_batches == 2000
