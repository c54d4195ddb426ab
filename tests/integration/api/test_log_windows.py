"""Windows onto a log: any part of it by ids, times and shares."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import insert

from api.queries import logs
from database.models import TaskLog
from database.types import utc_now
from tests.integration.api.served import Caller, Run, Served

COUNT = 3000
START = utc_now().replace(microsecond=0) - timedelta(hours=2)


async def written(api: Served, user: Caller) -> Run:
    """A trial with a log of a line a second; another task writes in between."""
    run, other = await api.trial(user), await api.trial(user)
    rows = [
        {"task_id": run.task_id if i % 3 else other.task_id, "timestamp": START + timedelta(seconds=i), "log": f"line {i}",
         "level": "ERROR" if i % 100 == 1 else "INFO", "container_id": "c", "line_offset": i + run.trial_id * COUNT,
         "rank_id": 1, "source": "task", "stdtype": "stdout"}
        for i in range(COUNT)
    ]  # fmt: skip
    with api.database.write() as session:
        session.execute(insert(TaskLog), rows)
    return run


def texts(window: dict[str, Any]) -> list[str]:
    return [line["text"] for line in window["lines"]]


async def test_any_part_of_a_log_is_read(api: Served) -> None:
    user = api.user()
    run = await written(api, user)
    own = [f"line {i}" for i in range(COUNT) if i % 3]
    for path in (
        f"/api/v1/undeterred/tasks/{run.task_id}/log-window",
        f"/api/v1/undeterred/trials/{run.trial_id}/log-window",
    ):
        last = await user.get(path, limit=5)
        assert texts(last) == own[-5:]
        assert last["lines"][-1]["id"] == last["lastId"]
        before = await user.get(path, limit=5, before=last["lines"][0]["id"])
        assert texts(before) == own[-10:-5]
        after = await user.get(path, limit=3, after=before["lines"][1]["id"])
        assert texts(after) == own[-8:-5]
        assert texts(await user.get(path, limit=2, after=0)) == own[:2]
        assert texts(await user.get(path, limit=2, share=0)) == own[:2]
        assert texts(await user.get(path, limit=2, share=1)) == own[-1:]
        [middle] = texts(await user.get(path, limit=1, share=0.5))
        assert abs(int(middle.split()[1]) - COUNT / 2) < 5
        at = START + timedelta(seconds=1000.5)
        assert texts(await user.get(path, limit=2, time=at.isoformat())) == ["line 1001", "line 1003"]
        assert texts(await user.get(path, limit=2, time="1999-01-01T00:00:00Z")) == own[:2]
        assert texts(await user.get(path, limit=2, time="2999-01-01T00:00:00Z")) == []
        assert texts(await user.get(path, limit=1000, search="LINE 299", after=0))[-1] == "line 2999"
        errors = await user.get(path, limit=3, levels="ERROR", after=0)
        assert texts(errors) == ["line 1", "line 101", "line 301"]
        assert errors["lines"][0] | {"id": 0, "time": ""} == {
            "id": 0, "time": "", "level": "ERROR", "source": "task", "stdtype": "stdout", "container": "c", "rank": 1,
            "text": "line 1"}  # fmt: skip


async def test_log_without_lines_has_no_ids(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    window = await user.get(f"/api/v1/undeterred/tasks/{run.task_id}/log-window")
    assert window == {"firstId": None, "lastId": None, "lines": [], "isFull": False, "lookedTo": None}


@pytest.mark.parametrize(
    ("parameters", "why"),
    [({"limit": 0}, "limit"), ({"limit": 1001}, "limit"), ({"share": 1.5}, "share"), ({"after": -1}, "after"),
     ({"before": 2**63}, "before"), ({"time": "yesterday"}, "time"), ({"levels": "LOUD"}, "levels"),
     ({"after": 1, "before": 2}, "at most one of"), ({"search": "x" * 1001}, "search")],
)  # fmt: skip
async def test_window_is_refused_by_name_when_it_is_none(api: Served, parameters: dict[str, Any], why: str) -> None:
    user = api.user()
    run = await api.trial(user)
    path = f"/api/v1/undeterred/tasks/{run.task_id}/log-window"
    assert why in await user.refused(400, "GET", path, params=parameters)


@pytest.mark.parametrize("way", ["before", "after"])
async def test_search_stops_when_its_time_is_up_and_goes_on_from_there(
    api: Served, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    user = api.user()
    run = await written(api, user)
    monkeypatch.setattr(logs, "_SEARCH_S", 0.0)
    monkeypatch.setattr(logs, "_RANGE", 700)
    path = f"/api/v1/undeterred/trials/{run.trial_id}/log-window"
    wanted = [f"line {i}" for i in range(COUNT) if i % 3 and "7" in str(i)]
    found: list[str] = []
    asked, place = 0, {} if way == "before" else {"after": 0}
    while True:
        window = await user.get(path, search="7", limit=1000, **place)
        found = [*texts(window), *found] if way == "before" else [*found, *texts(window)]
        asked += 1
        if window["lookedTo"] is None:
            break
        place = {way: window["lookedTo"]}
    assert found == wanted
    assert asked == 5, "3,000 lines in pieces of 700"
    some = await user.get(path, search="7", limit=3)
    assert (texts(some), some["isFull"], some["lookedTo"]) == (wanted[-3:], True, None)
    nothing = await user.get(path, search="7", before=0)
    assert (texts(nothing), nothing["lookedTo"]) == ([], None)
    assert (await user.get(path, limit=3))["lookedTo"] is None
