"""Generic tasks that come after others, on a real platform: they wait, run, are canceled, paused and killed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson

from database.models import Outbox
from tests.integration.test_task_limits import NONE
from tests.integration.test_tasks import (
    command,
    det,
    end,
    generic,
    output,
    running,
    state,
    task,
    until_state,
    until_task_state,
    why,
)
from tests.kit.platform import Platform, platform
from workflows import names
from workflows.lifecycle.needs import NeedEnded
from workflows.lifecycle.task import TaskState

__all__ = ["running"]


async def after(running: Platform, *task_ids: str, line: str = "echo runs", **more: Any) -> str:
    """A task that comes after these."""
    return await generic(running, line, config=NONE, after=list(task_ids), **more)


async def how(running: Platform, task_id: str) -> tuple[str, str]:
    """In which state a task ended, and the last line about that in its log."""
    ended = (await end(running, task_id))["taskState"].removeprefix("GENERIC_TASK_STATE_")
    response = await running.http.get(f"/api/v1/tasks/{task_id}/logs", params={"sources": "master"})
    return ended, orjson.loads(response.text.splitlines()[-1])["result"]["log"]


async def test_task_waits_without_slots_until_all_have_completed(running: Platform) -> None:
    first = await command(running, "sleep 2; echo first", **NONE)
    second = await generic(running, "sleep 1", config=NONE)
    late = await generic(running, "echo runs", config={"after": [first]}, after=[second])  # wants the only slot
    beside = await command(running, "echo beside it")
    await end(running, beside)
    assert (await task(running, late))["allocations"] == []
    said = await why(running, late)
    assert f"task {late} waits for task {first} (ACTIVE) to complete" in said
    jobs = (await running.get("/api/v1/job-queues", resourcePool="default"))["jobs"]
    assert [job["summary"]["state"] for job in jobs if job["entityId"] == late] == ["STATE_QUEUED"]
    ended = await end(running, late)
    assert (ended["taskState"], await output(running, late)) == ("GENERIC_TASK_STATE_COMPLETED", ["runs"])
    for each in (first, second):
        assert (await end(running, each))["endTime"] < ended["allocations"][0]["startTime"]
    config = orjson.loads((await running.get(f"/api/v1/tasks/{late}/config"))["config"])
    assert config["after"] == [first, second]
    response = await running.http.get(f"/api/v1/tasks/{late}/logs", params={"sources": "master"})
    assert f"Generic Task {late} waits for the end of {first}, {second}" in response.text


async def test_one_that_fails_or_is_killed_cancels_what_comes_after_it_and_so_on(running: Platform) -> None:
    failing = await command(running, "sleep 1; exit 3", **NONE)
    killed = await generic(running, "sleep 300", config=NONE)
    first = await after(running, failing, killed)
    second = await after(running, first)
    in_any_case = await generic(running, "echo cleans up", config=NONE, afterAny=[failing, second, killed])
    name = f"Generic Task {first} was terminated: task {failing}, which it comes after, ended as ERROR"
    assert await how(running, first) == ("CANCELED", name)
    assert f"task {failing}, which it comes after" in await why(running, first)
    assert (await how(running, second))[1].endswith(f"task {first}, which it comes after, ended as CANCELED")
    assert (await task(running, in_any_case))["endTime"] is None
    await running.post(f"/api/v1/tasks/{killed}/kill")
    assert (await how(running, in_any_case))[0] == "COMPLETED"
    # what has ended counts at once, and is told once more without harm
    assert (await how(running, await after(running, in_any_case)))[0] == "COMPLETED"
    assert (await how(running, await after(running, in_any_case, failing)))[0] == "CANCELED"


async def test_what_waits_is_paused_goes_on_waiting_and_is_killed(running: Platform) -> None:
    first = await generic(running, "sleep 300", config=NONE)
    paused, killed, canceled = [await after(running, first) for _ in range(3)]
    for each in (paused, canceled):
        await running.post(f"/api/v1/tasks/{each}/pause")
        await until_task_state(running, each, "PAUSED")
    await running.post(f"/api/v1/tasks/{killed}/kill")
    assert (await how(running, killed))[1].endswith("was terminated: killed on request")
    await running.post(f"/api/v1/tasks/{paused}/unpause")
    await until_task_state(running, paused, "ACTIVE")
    assert f"waits for task {first}" in await why(running, paused)
    stale = NeedEnded(task_id=first, state=TaskState.COMPLETED)
    handle = running.temporal.get_workflow_handle(names.task_workflow(paused))
    await handle.signal("need_ended", stale)
    await handle.signal("need_ended", stale.model_copy(update={"state": TaskState.ERROR}))
    assert (await how(running, paused))[0] == "COMPLETED", "the first word counts"
    await running.post(f"/api/v1/tasks/{first}/kill")
    assert (await how(running, canceled))[0] == "CANCELED", "also while it is paused"
    with running.database.read() as session:
        sent = session.query(Outbox).where(Outbox.kind == "need_ended").all()
    assert sorted(each.workflow_id for each in sent) == sorted(map(names.task_workflow, (paused, killed, canceled)))


async def test_no_end_is_missed_that_comes_while_a_task_is_created(
    temporal_address: str, postgres_database: str, tmp_path: Path
) -> None:
    async with platform(
        temporal_address=temporal_address, database_url=postgres_database, folder=tmp_path, pool="default"
    ) as running:  # fmt: skip
        await running.start_agent(slots=1)
        quick = await asyncio.gather(*(command(running, "true", **NONE) for _ in range(8)))
        late: list[str] = []
        while not all([await state(running, each) == "TERMINATED" for each in quick]):
            late += await asyncio.gather(*(after(running, each) for each in quick))
        assert len(late) >= 8
        assert [(await how(running, each))[0] for each in late] == ["COMPLETED"] * len(late)


async def test_det_takes_what_a_task_comes_after_and_a_fork_keeps_none(running: Platform, tmp_path: Path) -> None:
    first = await generic(running, "sleep 300", config=NONE)
    file = tmp_path / "task.yaml"
    file.write_text("entrypoint: [echo runs]\nresources: {slots: 0}\n")
    made = await det(running, "task", "create", str(file), "--after", first, "--after-any", first)
    task_id = made.stdout.split()[-1]
    assert "to complete" in await why(running, task_id), made.stderr
    fork = (await det(running, "task", "fork", task_id)).stdout.split()[-1]
    assert (await how(running, fork))[0] == "COMPLETED", "it waits for nothing"
    asked = (await det(running, "task", "fork", task_id, "--after-any", first)).stdout.split()[-1]
    assert "to end" in await why(running, asked)
    await running.post(f"/api/v1/tasks/{first}/kill")
    assert ((await how(running, task_id))[0], (await how(running, asked))[0]) == ("CANCELED", "COMPLETED")


async def test_what_can_not_be_awaited_is_refused(running: Platform) -> None:
    shell = (await running.post("/api/v1/shells", {"config": NONE}))["shell"]["id"]
    config = orjson.dumps({"entrypoint": ["true"], **NONE}).decode()
    for body, told in (
        ({"after": ["no-such"]}, "after: 'no-such': expected the id of a generic task or command that you can see"),
        ({"afterAny": [shell]}, f"after: '{shell}': expected the id of a generic task or command"),
        ({"after": ["x"] * 51}, "after"),
        ({"after": ["x"] * 30, "afterAny": ["y"] * 30}, "60 tasks to come after: the limit is 50"),
        ({"after": ["x\0"]}, "NUL"),
    ):
        response = await running.http.post("/api/v1/generic-tasks", json={"config": config, **body})
        assert (response.status_code, told in response.text) == (400, True), response.text
    waiting = await command(running, "sleep 300", **NONE)
    await until_state(running, waiting, "RUNNING")
    refused = await running.http.post("/api/v1/commands", json={"config": {"entrypoint": ["a"], "after": [waiting]}})
    assert (refused.status_code, "only generic tasks wait for the end of others" in refused.text) == (400, True)
    assert (await running.get("/api/v1/generic-tasks"))["tasks"] == []
    assert await state(running, waiting) == "RUNNING"
    for kind, task_id in (("shell", shell), ("command", waiting)):
        await running.post(f"/api/v1/{kind}s/{task_id}/kill")
