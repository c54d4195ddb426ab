"""Logs: each line once, in order, filtered, and formatted as clients print them (spec rest-api.md §5.3)."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import httpx
import orjson
import pytest

from api.auth.authentication import AGENT_CREDENTIAL, token_hash
from api.routes import tasks
from database.models import Agent, Allocation
from tests.integration.api.served import Caller, Run, Served

TIME = "2024-05-01T10:00:0{}.123456+00:00"


def entry(run: Run, offset: int | None, text: str = "", **more: Any) -> dict[str, Any]:
    """A line as our agents send it."""
    return {
        "allocationId": run.allocation_id, "agentId": "agent-a", "containerId": f"{run.allocation_id}-0", "lineOffset": offset,
        "rankId": None, "level": None, "timestamp": TIME.format(1), "source": "task", "stdtype": "stdout",
        "log": text or f"line {offset}",
    } | more  # fmt: skip


async def send(api: Served, *entries: dict[str, Any]) -> None:
    assert await api.agent.post("/api/v1/task/logs", {"logs": list(entries)}) == {}


async def texts(user: Caller, run: Run, **parameters: Any) -> list[str]:
    return [line["log"] for line in await user.lines(f"/api/v1/trials/{run.trial_id}/logs", **parameters)]


async def test_lines_come_in_the_order_of_arrival_when_read(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    await send(api, *(entry(run, number, timestamp=TIME.format(9 - number)) for number in range(5)))
    await send(api, *(entry(run, number) for number in range(5, 8)))
    wanted = [f"line {number}" for number in range(8)]
    assert await texts(user, run) == wanted
    assert [line["log"] for line in await user.lines(f"/api/v1/tasks/{run.task_id}/logs")] == wanted
    assert await texts(user, run, orderBy="ORDER_BY_DESC", limit=3) == wanted[:4:-1], (
        "a tail, which the client reverses"
    )
    assert await texts(user, run, limit=3) == wanted[:3]
    assert await texts(user, run, limit=3, offset=2) == wanted[:3], "unknown parameters are ignored"


async def test_lines_are_read_in_pieces_when_there_are_thousands(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    for start in range(0, 2500, 500):
        await send(api, *(entry(run, number) for number in range(start, start + 500)))
    wanted = [f"line {number}" for number in range(2500)]
    assert await texts(user, run) == wanted
    assert await texts(user, run, limit=1500) == wanted[:1500]
    assert await texts(user, run, limit=1500, orderBy="ORDER_BY_DESC") == wanted[:999:-1]


async def test_line_is_kept_once_when_delivered_twice(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    lines = [entry(run, number) for number in range(3)]
    await send(api, *lines[:2])
    await send(api, *lines)
    await send(api, lines[0], lines[0])
    other = entry(run, 0, "of another container", containerId="other")
    await send(api, other, other)
    assert await texts(user, run) == ["line 0", "line 1", "line 2", "of another container"]


async def test_only_agents_say_where_a_line_is_in_the_output(api: Served) -> None:
    """Ids of containers can be guessed: who claims another's offsets first would keep its lines out of the log."""
    user, other = api.user(), api.user()
    run, foreign = await api.trial(user), await api.trial(other)
    claimed = {"containerId": f"{run.allocation_id}-0", "taskId": foreign.task_id, "log": "mine"}
    claims = [claimed | {"lineOffset": offset} for offset in range(5)]
    await foreign.container.post("/api/v1/task/logs", {"logs": claims})
    note = {"containerId": f"log policies {run.allocation_id}", "lineOffset": 0}
    await foreign.container.post("/api/v1/task/logs", {"logs": [claimed | note]})
    await send(api, *(entry(run, number) for number in range(3)), entry(run, 0, "the cluster's own", **note))
    assert await texts(user, run) == ["line 0", "line 1", "line 2", "the cluster's own"]
    assert await texts(other, foreign) == ["mine"] * 6


async def test_agent_that_joined_sends_the_lines_of_its_own_containers_only(api: Served) -> None:
    credential = f"{AGENT_CREDENTIAL}{uuid.uuid4().hex * 2}"
    agent_id = f"joined-{uuid.uuid4().hex[:8]}"
    user = api.user()
    run, foreign = await api.trial(user), await api.trial(api.user())
    with api.database.write() as session:
        session.add(Agent(id=agent_id, pool="default", slot_ids=[], credential_hash=token_hash(credential)))
        allocation = session.get_one(Allocation, run.allocation_id)
        allocation.placements = [place | {"agent_id": agent_id} for place in allocation.placements]
    agent = Caller(api.http, {"Authorization": f"Bearer {credential}"})
    own = entry(run, 0, agentId=agent_id)
    forged = [
        ({"taskId": foreign.task_id}, 403, "is not the task of allocation"),
        ({"containerId": f"{foreign.allocation_id}-0"}, 403, "is not of allocation"),
        ({"containerId": f"log policies {foreign.allocation_id}"}, 403, "is not of allocation"),
        ({"agentId": "another"}, 403, "which sends this"),
        ({"allocationId": foreign.allocation_id}, 404, "not found"),
        ({"allocationId": None, "taskId": foreign.task_id}, 404, "not found"),
    ]  # fmt: skip
    for change, status, why in forged:
        for path, wrap in (("/api/v1/task/logs", True), ("/task-logs", False)):
            lines = [own, own | change]
            assert why in await agent.refused(status, "POST", path, {"logs": lines} if wrap else lines)
    assert await texts(user, run) == []
    await agent.post("/api/v1/task/logs", {"logs": [own, own | {"taskId": run.task_id, "lineOffset": 1}]})
    assert await texts(user, run) == ["line 0", "line 0"]


async def test_lines_are_all_kept_when_they_have_no_offset(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    for _ in range(2):
        await send(api, entry(run, None, "same"))
    assert await texts(user, run) == ["same", "same"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "[2024-05-01T10:00:01.123456Z] abcdefgh || hello\n"),
        ({"containerId": "abc"}, "[2024-05-01T10:00:01.123456Z] abc      || hello\n"),
        ({"containerId": None, "lineOffset": None}, "[2024-05-01T10:00:01.123456Z]          || hello\n"),
        ({"rankId": 3}, "[2024-05-01T10:00:01.123456Z] abcdefgh [rank=3] || hello\n"),
        ({"rankId": 0, "level": "LOG_LEVEL_ERROR"}, "[2024-05-01T10:00:01.123456Z] abcdefgh [rank=0] || ERROR: hello\n"),
        ({"level": "INFO"}, "[2024-05-01T10:00:01.123456Z] abcdefgh || INFO: hello\n"),
        ({"level": "LOUD"}, "[2024-05-01T10:00:01.123456Z] abcdefgh || hello\n"),
        ({"timestamp": "2024-05-01T12:00:00+02:00"}, "[2024-05-01T10:00:00.000000Z] abcdefgh || hello\n"),
        ({"timestamp": "2024-05-01T10:00:00"}, "[2024-05-01T10:00:00.000000Z] abcdefgh || hello\n"),
        ({"log": "hello\n"}, "[2024-05-01T10:00:01.123456Z] abcdefgh || hello\n"),
        ({"log": "a\x00b"}, "[2024-05-01T10:00:01.123456Z] abcdefgh || ab\n"),
        ({"log": "  <b>ü \x1b[31m\r  "}, "[2024-05-01T10:00:01.123456Z] abcdefgh ||   <b>ü \x1b[31m\r  \n"),
        ({"log": "\n"}, "[2024-05-01T10:00:01.123456Z] abcdefgh || \n"),
    ],
)  # fmt: skip
async def test_message_is_as_clients_print_it_to_the_letter_when_read(
    api: Served, change: dict[str, Any], expected: str
) -> None:
    user = api.user()
    run = await api.trial(user)
    container = f"abcdefgh-{run.trial_id}"
    await send(api, entry(run, 0, **{"log": "hello", "containerId": container} | change))
    [line] = await user.lines(f"/api/v1/trials/{run.trial_id}/logs")
    if change.get("containerId") == "abc":
        expected = expected.replace("abcdefgh", "abc     ")
    assert line["message"] == expected
    assert isinstance(line["id"], str)
    assert line["trialId"] == run.trial_id
    assert line["taskId"] == run.task_id
    assert line["timestamp"].endswith("Z")
    level = (change.get("level") or "").removeprefix("LOG_LEVEL_")
    assert line["level"] == (f"LOG_LEVEL_{level}" if level in ("INFO", "ERROR") else "LOG_LEVEL_UNSPECIFIED")


async def test_line_of_a_megabyte_is_cut_off_with_a_mark_when_sent(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    await send(api, entry(run, 0, "x" * 2**20), entry(run, 1))
    long, short = await texts(user, run)
    assert long == "x" * 2**16 + " … [cut off: the line had 1048576 characters]"
    assert short == "line 1"


async def test_lines_are_narrowed_when_filtered(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    await send(
        api,
        entry(run, 0, "plain"),
        entry(run, 1, "50% WARNED", level="WARNING", rankId=1, stdtype="stderr", timestamp=TIME.format(3)),
        entry(run, 2, "error", level="ERROR", rankId=0, source="master", timestamp=TIME.format(5)),
        entry(run, 3, "elsewhere", agentId="agent-b", containerId=f"c{run.trial_id}", timestamp=TIME.format(7)),
    )
    for parameters, expected in (
        ({"levels": ["LOG_LEVEL_WARNING", "LOG_LEVEL_ERROR"]}, ["50% WARNED", "error"]),
        ({"levels": "LOG_LEVEL_UNSPECIFIED"}, ["plain", "elsewhere"]),
        ({"rankIds": [0, 1]}, ["50% WARNED", "error"]),
        ({"rank_ids": 1}, ["50% WARNED"]),
        ({"agentIds": "agent-b"}, ["elsewhere"]),
        ({"containerIds": [f"c{run.trial_id}", "x"]}, ["elsewhere"]),
        ({"allocationIds": run.allocation_id}, ["plain", "50% WARNED", "error", "elsewhere"]),
        ({"allocationIds": "other"}, []),
        ({"sources": "master"}, ["error"]),
        ({"stdtypes": "stderr"}, ["50% WARNED"]),
        ({"searchText": "0% warn"}, ["50% WARNED"]),
        ({"searchText": "%"}, ["50% WARNED"]),
        ({"timestampAfter": TIME.format(3)}, ["error", "elsewhere"]),
        ({"timestampBefore": "2024-05-01T10:00:05.123456Z"}, ["plain", "50% WARNED"]),
        ({"timestampBefore": "2024-05-01T10:00:02"}, ["plain"]),
        ({"timestampAfter": TIME.format(2), "timestampBefore": TIME.format(6), "levels": "LOG_LEVEL_ERROR"}, ["error"]),
    ):
        assert await texts(user, run, **parameters) == expected, parameters
    for name, value in (("timestampAfter", "yesterday"), ("rankIds", "first"), ("limit", "all"), ("follow", "perhaps")):
        await user.refused(400, "GET", f"/api/v1/trials/{run.trial_id}/logs", params={name: value})


async def test_reader_goes_on_behind_its_last_line_whatever_the_clocks_say(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    await send(api, entry(run, 0, timestamp=TIME.format(9)), entry(run, 1, timestamp=TIME.format(1)), entry(run, 2))
    lines = await user.lines(f"/api/v1/trials/{run.trial_id}/logs")
    assert await texts(user, run, afterId=lines[0]["id"]) == ["line 1", "line 2"]
    assert await texts(user, run, afterId=lines[0]["id"], orderBy="ORDER_BY_DESC") == ["line 2", "line 1"]
    assert await texts(user, run, afterId=lines[2]["id"]) == []
    for wrong in (-1, 2**63, "last"):
        await user.refused(400, "GET", f"/api/v1/trials/{run.trial_id}/logs", params={"afterId": wrong})


async def test_lines_are_not_found_when_their_trial_or_task_is_not(api: Served) -> None:
    user = api.user()
    assert "trial 999999 not found" in await user.refused(404, "GET", "/api/v1/trials/999999/logs")
    assert "task nothing not found" in await user.refused(404, "GET", "/api/v1/tasks/nothing/logs")


# -- following ---------------------------------------------------------------------------------------------------------


async def test_stream_stays_open_until_the_trial_has_ended_when_followed(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "_GRACE_S", 1.0)  # enough for the last line on a machine that is busy
    user = api.user()
    run = await api.trial(user)
    await send(api, entry(run, 0))
    path = f"/api/v1/trials/{run.trial_id}/logs"
    async with asyncio.timeout(15):
        async with api.http.stream("GET", path, params={"follow": "true"}, headers=user.headers) as response:
            received = response.aiter_lines()

            async def next_text() -> str:
                return orjson.loads(await anext(received))["result"]["log"]

            assert await next_text() == "line 0"
            for number in (1, 2):
                await send(api, entry(run, number))
                assert await next_text() == f"line {number}"
            await api.end(run)
            await send(api, entry(run, 3))
            rest = [orjson.loads(line)["result"]["log"] async for line in received]
    assert rest == ["line 3"], "a line that was on its way still arrives, and no blank one"


@pytest.mark.parametrize(
    "parameters", [{}, {"limit": 2}, {"orderBy": "ORDER_BY_DESC"}, {"searchText": "nothing like it"}]
)
async def test_stream_ends_by_itself_when_the_trial_is_over_or_all_was_sent(
    api: Served, parameters: dict[str, Any]
) -> None:
    user = api.user()
    run = await api.trial(user)
    await send(api, *(entry(run, number) for number in range(3)))
    if "limit" not in parameters and "orderBy" not in parameters:
        await api.end(run)
    async with asyncio.timeout(10):
        found = await texts(user, run, follow="true", **parameters)
    assert len(found) == {"limit": 2, "searchText": 0}.get(next(iter(parameters), ""), 3)


async def test_stream_ends_with_an_error_that_clients_read_when_the_database_goes(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = api.user()
    run = await api.trial(user)
    await send(api, entry(run, 0))

    def broken(*_: Any, **__: Any) -> Any:
        raise ConnectionError("gone")

    monkeypatch.setattr("api.queries.logs.read", broken)
    response = await user.ask("GET", f"/api/v1/trials/{run.trial_id}/logs")
    [line] = response.text.splitlines()
    assert orjson.loads(line)["error"].keys() == {"grpcCode", "httpCode", "httpStatus", "message", "details"}


# -- writing -----------------------------------------------------------------------------------------------------------


async def test_container_writes_for_its_own_task_when_it_sends_lines(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    newer = {
        "logs": [{"task_id": run.task_id, "level": "LOG_LEVEL_INFO", "log": "a", "container_id": None}, {"log": "b"}]
    }
    assert await run.container.post("/api/v1/task/logs", newer) == {}
    older = [{"task_id": run.task_id, "level": "INFO", "log": "c\n", "source": "task", "stdtype": "stdout", "rank_id": 0,
              "timestamp": "2024-05-01T10:00:00.5Z", "agent_id": "x", "container_id": "y"}]  # fmt: skip
    assert await run.container.post("/task-logs", older) == ""
    assert await texts(user, run) == ["a", "b", "c"]
    foreign = [{"task_id": "another", "log": "x"}]
    assert "not lines of task" in await run.container.refused(403, "POST", "/task-logs", foreign)
    assert await texts(user, run) == ["a", "b", "c"]


@pytest.mark.parametrize("body", [{}, {"logs": []}, {"logs": None}, {"logs": [1]}, {"logs": [{"log": 5}]},
                                  {"logs": [{"timestamp": "now"}]}])  # fmt: skip
async def test_lines_are_refused_when_there_are_none_or_wrong_ones(api: Served, body: dict[str, Any]) -> None:
    run = await api.trial(api.user())
    await run.container.refused(400, "POST", "/api/v1/task/logs", body)


async def test_empty_array_is_taken_when_an_older_shipper_has_nothing_to_say(api: Served) -> None:
    run = await api.trial(api.user())
    assert await run.container.post("/task-logs", []) == ""


async def test_one_user_follows_so_many_things_and_no_more(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api.parts.followers, "_most", 3)
    user, other = api.user(), api.user()
    run, foreign = await api.trial(user), await api.trial(other)
    path = f"/api/v1/trials/{run.trial_id}/logs"

    async def follow() -> httpx.Response:
        request = api.http.build_request("GET", path, params={"follow": "true"}, headers=user.headers)
        return await api.http.send(request, stream=True)

    opened = [await follow() for _ in range(3)]
    assert [response.status_code for response in opened] == [200] * 3
    refused = await user.ask("GET", f"/api/v1/tasks/{run.task_id}/logs", params={"follow": "true"})
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
    assert "you follow 3 things already" in refused.json()["message"]
    assert await user.lines(path) == [], "who does not follow is answered"
    await api.end(foreign)
    assert await other.lines(f"/api/v1/trials/{foreign.trial_id}/logs", follow="true") == []
    for response in opened:
        await response.aclose()
    again = await follow()
    for _ in range(100):  # that they left is noticed
        await again.aclose()
        if again.status_code == 200:
            break
        await asyncio.sleep(0.05)
        again = await follow()
    await again.aclose()
    assert again.status_code == 200


@pytest.mark.parametrize("loses", ["token", "account", "role"])
async def test_who_may_no_more_follows_no_more(api: Served, monkeypatch: pytest.MonkeyPatch, loses: str) -> None:
    monkeypatch.setattr("api.schemas.streaming.RIGHTS_EVERY_S", 0.2)
    user, admin = api.user(), api.user(is_admin=True)
    reader = user if loses == "token" else api.user()
    run = await api.trial(user)
    path = f"/api/v1/tasks/{run.task_id}/logs"
    async with asyncio.timeout(15):
        async with api.http.stream("GET", path, params={"follow": "true"}, headers=reader.headers) as response:
            received = response.aiter_lines()
            await send(api, entry(run, 0))
            assert "result" in orjson.loads(await anext(received))
            if loses == "token":
                await reader.post("/api/v1/auth/logout")
            elif loses == "account":
                await admin.ask("PATCH", f"/api/v1/users/{reader.user_id}", {"active": False})
            else:
                workspace = (await user.post("/api/v1/workspaces", {"name": f"own {user.username}"}))["workspace"]["id"]
                project = (await user.post(f"/api/v1/workspaces/{workspace}/projects", {"name": "p"}))["project"]["id"]
                moved = {"destinationProjectId": project}
                await user.post(f"/api/v1/experiments/{run.experiment_id}/move", moved)
            [last] = [orjson.loads(line) async for line in received]
    assert last["error"]["httpCode"] == (404 if loses == "role" else 401)
