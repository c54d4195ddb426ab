"""Limits of a task's time on a real platform: they end it and warn before, and may be changed while it waits or runs."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from database.models import Allocation, Task
from database.types import utc_now
from tests.integration.test_tasks import (
    command,
    det,
    end,
    generic,
    running,
    state,
    task,
    until_state,
    until_task_state,
    why,
)
from tests.kit.patience import PATIENCE
from tests.kit.platform import Platform
from workflows import names
from workflows.lifecycle.task import TaskKind
from workflows.messages import TaskLimits

__all__ = ["running"]
NONE: dict[str, Any] = {"resources": {"slots": 0}}


async def lines(running: Platform, task_id: str) -> list[str]:
    """What the log says of the end that a limit leads to."""
    response = await running.http.get(f"/api/v1/tasks/{task_id}/logs", params={"levels": "LOG_LEVEL_WARNING"})
    return [orjson.loads(line)["result"]["log"] for line in response.text.splitlines()]


async def limit(running: Platform, task_id: str, **limits: Any) -> Any:
    """Change limits; the answer, or the status with the message of a refusal."""
    response = await running.http.patch(f"/api/v1/undeterred/tasks/{task_id}/limits", json=limits)
    return response.json() if response.status_code == 200 else (response.status_code, response.text)


async def test_lifetime_counts_from_the_slots_on_and_its_end_is_announced(running: Platform) -> None:
    blocker = await command(running, "sleep", "300")
    await until_state(running, blocker, "RUNNING")
    waiting = await command(running, "sleep", "300", max_lifetime="2s")
    await asyncio.sleep(2.5)
    assert await state(running, waiting) == "QUEUED", "waiting does not count"
    await running.post(f"/api/v1/commands/{blocker}/kill")
    await until_state(running, waiting, "RUNNING")
    shown = await running.get(f"/api/v1/commands/{waiting}")
    assert shown["config"]["max_lifetime"] == "2s"
    assert (
        "it ends when it has run for 2s" in (await running.get(f"/api/v1/undeterred/tasks/{waiting}/why"))["sentences"]
    )
    reason = "it has run for 2s, its max_lifetime"
    assert (await end(running, waiting))["allocations"][0]["exitReason"] == reason
    name = shown["command"]["description"]
    told = f"{name} will end in 2s, since its max_lifetime is 2s: `det command set lifetime {waiting} 4s` lets it run longer"
    assert await lines(running, waiting) == [told]
    assert "ended as CANCELED at " in await why(running, waiting)


async def test_all_runs_of_a_task_count_together_and_its_pauses_do_not(running: Platform) -> None:
    again = await generic(running, "sleep 0.5; exit 1", config={**NONE, "max_restarts": 100, "max_lifetime": "3s"})
    paused = await generic(running, "sleep 300", config={**NONE, "max_lifetime": "4s"})
    await until_task_state(running, paused, "ACTIVE")
    await asyncio.sleep(1)
    await running.post(f"/api/v1/tasks/{paused}/pause")
    await until_task_state(running, paused, "PAUSED")
    ended = await end(running, again)
    assert (ended["taskState"], 2 <= len(ended["allocations"]) <= 6) == ("GENERIC_TASK_STATE_CANCELED", True)
    assert (await task(running, paused))["endTime"] is None, "it holds nothing"
    await running.post(f"/api/v1/tasks/{paused}/unpause")
    ended = await end(running, paused)
    second = ended["allocations"][0]
    assert (second["allocationId"], second["exitReason"]) == (f"{paused}.2", "it has run for 4s, its max_lifetime")


async def test_lifetime_is_changed_while_a_task_waits_runs_and_is_paused(running: Platform) -> None:
    longer = await command(running, "sleep", "300", **NONE, max_lifetime=f"{3 * PATIENCE}s")
    shorter = await command(running, "sleep", "300", **NONE)
    assert await limit(running, longer, maxLifetime="0s") == {"idleTimeout": None, "maxLifetime": "0s"}
    await until_state(running, shorter, "RUNNING")
    said = await det(running, "command", "set", "lifetime", shorter[:8], "2s")
    assert said.stdout.strip() == f"Task {shorter} will end when it has run for 2s", said.stderr
    assert (await end(running, shorter))["allocations"][0]["exitReason"] == "it has run for 2s, its max_lifetime"
    status, text = await limit(running, shorter, maxLifetime="1h")
    assert (status, f"task {shorter} has ended" in text) == (400, True)

    paused = await generic(running, "sleep 300", config=NONE)
    await running.post(f"/api/v1/tasks/{paused}/pause")
    await until_task_state(running, paused, "PAUSED")
    said = await det(running, "task", "set", "lifetime", paused, "1s")
    assert said.returncode == 0, said.stderr
    await running.post(f"/api/v1/tasks/{paused}/unpause")
    await end(running, paused)

    await asyncio.sleep(1)
    assert await state(running, longer) == "RUNNING", "its limit was taken back"
    stale = TaskLimits(number=1, max_lifetime_s=0.1)  # delivered once more, and overtaken
    await limit(running, longer, maxLifetime="1h")
    await running.temporal.get_workflow_handle(names.task_workflow(longer)).signal("limit", stale)
    await asyncio.sleep(1)
    assert await state(running, longer) == "RUNNING"
    assert not [line for line in await lines(running, longer) if "1h" in line], "an hour is long"
    said = await det(running, "task", "set", "lifetime", longer, "0s")
    assert said.stdout.strip() == f"Task {longer} will not end for that"
    await running.post(f"/api/v1/commands/{longer}/kill")


async def test_what_no_limit_can_be_is_refused_in_a_sentence(running: Platform) -> None:
    task_id = await command(running, "sleep", "300", **NONE)
    for body, told in (
        ({}, "expected idleTimeout, maxLifetime or both"),
        ({"maxLifetime": "soon"}, "max_lifetime: invalid duration: soon: expected 1s to 365d"),
        ({"maxLifetime": "366d"}, "invalid duration: 366d"),
        ({"maxLifetime": 5}, "maxLifetime"),
        ({"idleTimeout": "2h"}, "idle_timeout: a command does not end when it is idle"),
    ):
        status, text = await limit(running, task_id, **body)
        assert (status, told in text) == (400, True), text
    policy = {"configPolicies": "invariant_config: {max_lifetime: 9h}"}
    assert (await running.http.put("/api/v1/config-policies/global/ntsc", json=policy)).status_code == 200
    status, text = await limit(running, task_id, maxLifetime="10h")
    assert (status, "max_lifetime: 10h: a config policy sets it to 9h" in text) == (400, True)
    assert (await limit(running, task_id, maxLifetime="9h"))["maxLifetime"] == "9h"
    assert (await running.get(f"/api/v1/commands/{task_id}"))["config"]["max_lifetime"] == "9h"
    await running.post(f"/api/v1/commands/{task_id}/kill")


async def test_idle_timeout_is_changed_while_it_runs_and_counts_from_then(
    running: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_idle = {TaskKind.COMMAND}  # as notebooks, without one's packages
    for module in ("api.services.tasks", "api.services.task_limits"):
        monkeypatch.setattr(f"{module}.ENDS_IDLE", ends_idle)
    task_id = await command(running, "sleep", "300", **NONE, idle_timeout="2s")
    status, text = await limit(running, task_id, idleTimeout="59s")
    assert (status, "idle_timeout: 59s: expected 1m or more" in text) == (400, True)
    await limit(running, task_id, idleTimeout="1h")
    await until_state(running, task_id, "RUNNING")
    with running.database.write() as session:
        session.get_one(Allocation, f"{task_id}.1").ready_at = utc_now()
    await asyncio.sleep(2.5)
    assert await state(running, task_id) == "RUNNING"
    monkeypatch.setattr("api.services.task_limits._SHORTEST_IDLE_S", 1.0)
    await limit(running, task_id, idleTimeout="4s")

    async def warns() -> int:
        return len(await lines(running, task_id))

    await running.until(warns, what="its log warns")
    with running.database.write() as session:
        session.get_one(Task, task_id).last_used_at = utc_now()
    ended = await end(running, task_id)
    assert ended["allocations"][0]["exitReason"] == "idle for more than 4s: service is inactive"
    warned = await lines(running, task_id)
    assert len(warned) == 2, "it was used after the first one"
    assert "since it has not been used for " in warned[0]
    assert warned[0].endswith(f": use it, or `det command set idle-timeout {task_id} 8s`")
