"""The live stream of the pages: versions, points as they are reported, and who may follow what."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from api.schemas.live import MOST_TOPICS
from database.models import Experiment, Import, Task, UserToken
from database.types import utc_now
from tests.integration.api.served import Caller, Run, Served, until
from tests.kit.patience import PATIENCE

PATH = "/api/v1/undeterred/live"


class Stream:
    """The events of one stream as they come."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines

    async def next(self, *kinds: str) -> tuple[str, Any]:
        """The next event of one of these kinds; others are passed over."""
        async with asyncio.timeout(20 * PATIENCE):
            kind = ""
            async for line in self._lines:
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ")
                elif line.startswith("data: ") and kind in kinds:
                    return kind, json.loads(line.removeprefix("data: "))
        raise AssertionError("the stream has ended")


@contextlib.asynccontextmanager
async def following(api: Served, caller: Caller, *topics: str) -> AsyncIterator[Stream]:
    """A stream that was opened."""
    timeout = httpx.Timeout(30 * PATIENCE)
    async with (
        httpx.AsyncClient(base_url=api.http.base_url, timeout=timeout) as http,
        http.stream("GET", PATH, params={"topic": topics}, headers=caller.headers) as response,
    ):
        assert (response.status_code, response.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert response.headers["cache-control"] == "no-store"
        yield Stream(response.aiter_lines())


async def in_a_workspace_of(api: Served, user: Caller, run: Run) -> None:
    """Move the experiment to where this user is alone."""
    workspace = (await user.post("/api/v1/workspaces", {"name": f"of {user.username} {run.trial_id}"}))["workspace"]
    path = f"/api/v1/workspaces/{workspace['id']}/projects"
    project = (await user.post(path, {"name": "p", "workspaceId": workspace["id"]}))["project"]
    with api.database.write() as session:
        moved = update(Experiment).where(Experiment.id == run.experiment_id)
        session.execute(moved.values(project_id=project["id"], owner_id=user.user_id))
        session.execute(update(Task).where(Task.id == run.task_id).values(workspace_id=workspace["id"]))


async def test_page_gets_points_as_they_are_reported_and_a_new_version(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    await run.report("validation", 1, {"loss": 3.0})
    topics = (f"curve:{run.experiment_id}", f"experiment:{run.experiment_id}", f"trial:{run.trial_id}")
    async with following(api, user, *topics) as stream:
        assert (await stream.next("hello"))[1]["digest"]
        first = {(await stream.next("version"))[1]["topic"] for _ in topics}
        assert first == set(topics)
        await run.report("validation", 2, {"loss": 2.0, "odd": float("inf"), "text": "no number"})
        seen: set[str] = set()
        points: list[Any] = []
        while not (seen == set(topics) - {topics[0]} and points):
            kind, data = await stream.next("version", "points")
            if kind == "points":
                points += data["points"]
            else:
                seen.add(data["topic"])
        ((trial_id, group, batches, time, values),) = points
        assert (trial_id, group, batches) == (run.trial_id, "validation", 2)
        assert values == {"loss": 2.0, "odd": "Infinity", "text": None}
        assert abs(time - utc_now().timestamp()) < 60 * PATIENCE


async def test_version_says_that_something_changed_and_not_what(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    async with following(api, user, f"experiment:{run.experiment_id}", "experiments", "jobs", "tasks", "agents") as it:
        versions = [(await it.next("version"))[1]["version"] for _ in range(5)]
    assert all(len(version) == 16 and int(version, 16) >= 0 for version in versions)


async def test_imports_are_followed_by_administrators(api: Served) -> None:
    admin = api.user(is_admin=True)
    message = await api.user().refused(403, "GET", PATH, params={"topic": "imports"})
    assert message == "topic imports: for administrators of the cluster only"
    with api.database.write() as session:
        row = Import(mode="PLAN", source="", shown_source="old", owner_id=admin.user_id)
        session.add(row)
        session.flush()
        number = row.id
    async with following(api, admin, "imports") as stream:
        seen = {(await stream.next("version"))[1]["version"]}
        for change in ({"error": "tried again"}, {"state": "RUNNING"}, {"ended_at": utc_now(), "state": "CANCELED"}):
            with api.database.write() as session:
                session.execute(update(Import).where(Import.id == number).values(**change))
            seen.add((await stream.next("version"))[1]["version"])
    assert len(seen) == 4


async def test_log_of_a_task_has_a_new_version_with_each_line(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    async with following(api, user, f"log:{run.task_id}", f"task:{run.task_id}") as stream:
        before = {data["topic"]: data["version"] for _, data in [await stream.next("version") for _ in range(2)]}
        line = {"taskId": run.task_id, "allocationId": run.allocation_id, "containerId": "c", "log": "hello"}
        await run.container.post("/api/v1/task/logs", {"logs": [line]})
        _, after = await stream.next("version")
        assert after["topic"] == f"log:{run.task_id}"
        assert after["version"] != before[after["topic"]]


@pytest.mark.parametrize(
    "topic", ["", "nothing", "experiment", "experiment:", "experiment:0", "experiment:-1", "experiment:1 or 1", "trial:x",
              "curve:99999999999999", "log:../x", "task:" + "a" * 81, "experiments:1"],
)  # fmt: skip
async def test_topic_that_is_none_is_refused_by_name(api: Served, topic: str) -> None:
    message = await api.user().refused(400, "GET", PATH, params={"topic": topic})
    assert message.startswith(f"topic: {topic[:80]!r}: expected one of experiments, jobs")


async def test_number_of_topics_is_bounded(api: Served) -> None:
    user = api.user()
    assert "0 topics" in await user.refused(400, "GET", PATH)
    many = [f"experiment:{number}" for number in range(1, MOST_TOPICS + 2)]
    assert f"expected 1 to {MOST_TOPICS}" in await user.refused(400, "GET", PATH, params={"topic": many})


async def test_what_one_does_not_see_can_not_be_followed(api: Served) -> None:
    owner, other = api.user(), api.user()
    run = await api.trial(owner)
    await in_a_workspace_of(api, owner, run)
    for topic in (f"experiment:{run.experiment_id}", f"curve:{run.experiment_id}", f"trial:{run.trial_id}",
                  f"system:{run.trial_id}", f"log:{run.task_id}", f"task:{run.task_id}"):  # fmt: skip
        await other.refused(404, "GET", PATH, params={"topic": topic})
        async with following(api, other, "jobs", topic) as stream:
            assert await stream.next("gone", "points") == ("gone", {"topic": topic})
            assert (await stream.next("version"))[1]["topic"] == "jobs"
    await api.nobody.refused(401, "GET", PATH, params={"topic": "jobs"})
    await run.container.refused(403, "GET", PATH, params={"topic": "jobs"})


async def test_stream_ends_soon_after_its_reader_may_no_longer_see_it(api: Served) -> None:
    owner, admin = api.user(), api.user(is_admin=True)
    run = await api.trial(owner)
    async with following(api, owner, f"experiment:{run.experiment_id}") as stream:
        await stream.next("version")
        await in_a_workspace_of(api, admin, run)
        assert (await stream.next("ended"))[1]["status"] == 404


async def test_others_of_a_stream_go_on_when_one_may_no_longer_be_seen(api: Served) -> None:
    """All tabs of a browser share a stream: one that shows a deleted experiment must not silence the others."""
    owner, admin = api.user(), api.user(is_admin=True)
    hidden, open_ = await api.trial(owner), await api.trial(owner)
    async with following(api, owner, f"curve:{hidden.experiment_id}", f"curve:{open_.experiment_id}") as stream:
        for _ in range(2):
            await stream.next("version")
        await in_a_workspace_of(api, admin, hidden)
        assert await stream.next("gone", "ended") == ("gone", {"topic": f"curve:{hidden.experiment_id}"})
        for step, run in enumerate((hidden, open_, hidden, open_)):
            await run.report("validation", step, {"loss": 1.0})
        trials = [row[0] for row in (await stream.next("points"))[1]["points"]]
        assert set(trials) == {open_.trial_id}


async def test_stream_ends_soon_after_its_session(api: Served) -> None:
    user = api.user()
    async with following(api, user, "jobs") as stream:
        await stream.next("version")
        with api.database.write() as session:
            ended = update(UserToken).where(UserToken.user_id == user.user_id).values(revoked_at=utc_now())
            session.execute(ended)
        api.parts.auth.forget()
        assert (await stream.next("ended"))[1]["status"] == 401


async def test_nothing_is_looked_at_when_no_page_is_open(api: Served) -> None:
    user = api.user()
    async with following(api, user, "jobs") as stream:
        await stream.next("version")
        assert api.parts.live.is_running
    await until(lambda: not api.parts.live.is_running)
