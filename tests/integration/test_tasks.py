"""Commands and generic tasks on a real platform: they run, end as they should, wait, pause, and survive what happens."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from sqlalchemy import select

from api.services.log_retention import LogRetention
from database.models import Task, TaskContext, TaskLog
from database.types import utc_now
from tests.kit.platform import ADMIN_PASSWORD, Platform, platform
from workflows.lifecycle.task import TaskKind


@pytest.fixture
async def running(temporal_address: str, tmp_path: Path) -> AsyncIterator[Platform]:
    """A platform with one agent of one slot."""
    async with platform(
        temporal_address=temporal_address, database_url=f"sqlite:///{tmp_path}/db", folder=tmp_path, pool="default",
    ) as running:  # fmt: skip
        await running.start_agent(slots=1)
        yield running


async def command(running: Platform, *words: str, files: dict[str, str] | None = None, **config: Any) -> str:
    """Run a command; its id."""
    body = {"config": {"entrypoint": list(words), **config}, "files": members(files or {})}
    return (await running.post("/api/v1/commands", body))["command"]["id"]


async def generic(running: Platform, *words: str, config: dict[str, Any] | None = None, **more: Any) -> str:
    """Run a generic task; its id."""
    body = {"config": orjson.dumps({"entrypoint": list(words), **(config or {})}).decode(), **more}
    return (await running.post("/api/v1/generic-tasks", body))["taskId"]


def members(files: dict[str, str]) -> list[dict[str, Any]]:
    """Files as v1File."""
    return [
        {"path": path, "type": 48, "content": base64.b64encode(text.encode()).decode(), "mode": 0o100644, "mtime": "0",
         "uid": 0, "gid": 0}
        for path, text in files.items()
    ]  # fmt: skip


async def task(running: Platform, task_id: str) -> dict[str, Any]:
    """v1Task."""
    return (await running.get(f"/api/v1/tasks/{task_id}"))["task"]


async def end(running: Platform, task_id: str) -> dict[str, Any]:
    """v1Task, once it has ended."""

    async def has_ended() -> bool:
        return (await task(running, task_id))["endTime"] is not None

    await running.until(has_ended, what=f"task {task_id} has ended")
    return await task(running, task_id)


async def output(running: Platform, task_id: str) -> list[str]:
    """What its program wrote."""
    response = await running.http.get(f"/api/v1/tasks/{task_id}/logs", params={"sources": "task"})
    return [orjson.loads(line)["result"]["log"] for line in response.text.splitlines()]


async def state(running: Platform, command_id: str) -> str:
    """Of a command."""
    return (await running.get(f"/api/v1/commands/{command_id}"))["command"]["state"].removeprefix("STATE_")


async def until_state(running: Platform, command_id: str, wanted: str) -> None:
    async def is_there() -> bool:
        return await state(running, command_id) == wanted

    await running.until(is_there, what=f"command {command_id} is {wanted}")


async def until_task_state(running: Platform, task_id: str, wanted: str) -> None:
    async def is_there() -> bool:
        return (await task(running, task_id))["taskState"] == f"GENERIC_TASK_STATE_{wanted}"

    await running.until(is_there, what=f"task {task_id} is {wanted}")


async def test_a_command_runs_with_its_files_and_gives_its_slot_back(running: Platform) -> None:
    script = "import os, sys; print(open('data').read(), os.environ['DET_TASK_TYPE'], *sys.argv[1:])"
    first = await command(running, "python3", "main.py", "a b", files={"main.py": script, "data": "from the context"})
    second = await command(running, "echo $((6 * 7)); exit 3")
    ended = await end(running, first)
    assert [(run["statusCode"], run["exitReason"]) for run in ended["allocations"]] == [(0, "exited with 0")]
    assert await output(running, first) == ["from the context COMMAND a b"]
    failed = await end(running, second)
    assert failed["allocations"][0]["statusCode"] == 3
    assert await output(running, second) == ["42"]
    shown = (await running.get(f"/api/v1/commands/{second}"))["command"]
    assert (shown["state"], shown["exitStatus"]) == ("STATE_TERMINATED", "exited with code 3")


async def test_one_waits_for_slots_and_is_killed_there_and_while_it_runs(running: Platform) -> None:
    first = await command(running, "sleep", "300")
    await until_state(running, first, "RUNNING")
    second = await command(running, "true")
    aside = await command(running, "echo beside it", resources={"slots": 0})
    await end(running, aside)
    assert await state(running, second) == "QUEUED"
    assert f"task {first} runs on " in await why(running, first)
    assert f"task {second} waits for 1 slot of pool `default`: place 1 of 1 in the queue" in await why(running, second)
    assert f"task {aside} ended as COMPLETED at " in await why(running, aside)
    await running.post(f"/api/v1/commands/{second}/kill")
    assert (await end(running, second))["allocations"] == []
    await running.post(f"/api/v1/commands/{first}/kill")
    await end(running, first)
    for command_id in (first, second):
        shown = (await running.get(f"/api/v1/commands/{command_id}"))["command"]
        assert shown["exitStatus"] == "killed on request"
    await running.post(f"/api/v1/commands/{first}/kill")  # of one that has ended: nothing


async def test_its_container_speaks_for_its_task_and_for_no_trial(running: Platform, tmp_path: Path) -> None:
    out = tmp_path / "environment"
    task_id = await generic(running, f"env | grep ^DET_ > {out}.new; mv {out}.new {out}; exec sleep 300")
    await running.until(out.exists, what="its container runs")
    told = dict(line.split("=", 1) for line in out.read_text().splitlines())
    assert (told["DET_TASK_ID"], told["DET_TASK_TYPE"], told["DET_USER"]) == (task_id, "GENERIC", "admin")
    assert told["DET_ALLOCATION_ID"] == f"{task_id}.1"
    assert not [name for name in told if name.startswith(("DET_TRIAL", "DET_EXPERIMENT"))]
    me = {"Grpc-Metadata-x-allocation-token": f"Bearer {told['DET_SESSION_TOKEN']}"}
    async with httpx.AsyncClient(base_url=running.url, headers=me) as http:
        asked = await http.get(f"/api/v1/allocations/{task_id}.1/signals/preemption?timeoutSeconds=0")
        assert asked.json() == {"preempt": False}
        context = await http.get(f"/api/v1/tasks/{task_id}/context_directory")
        assert context.json() == {"b64Tgz": "", "streamBytes": "0"}
        refused = await http.post("/api/v1/trials/1/progress", json={"progress": 0.5})
        assert refused.status_code == 403, refused.text
    listed = (await running.get("/api/v1/tasks"))["allocationIdToSummary"][f"{task_id}.1"]
    assert (listed["taskId"], listed["name"]) == (task_id, f"Generic Task {task_id}")
    await running.post(f"/api/v1/tasks/{task_id}/kill")


async def queued(running: Platform, *task_ids: str) -> list[dict[str, Any]]:
    """The jobs of the pool, once they are those of these tasks, in this order."""
    found: list[dict[str, Any]] = []

    async def is_so() -> bool:
        found[:] = (await running.get("/api/v1/job-queues", resourcePool="default"))["jobs"]
        return [job["entityId"] for job in found] == list(task_ids)

    await running.until(is_so, what="the queue is as it should be")
    return found


async def test_what_waits_goes_by_its_priority_also_when_that_changes(running: Platform) -> None:
    blocker = await command(running, "sleep", "300")
    await until_state(running, blocker, "RUNNING")
    early = await command(running, "echo early")
    late = await command(running, "echo late")
    await running.post(f"/api/v1/commands/{late}/set_priority", {"priority": 7})
    shown = await running.get(f"/api/v1/commands/{late}")
    assert shown["config"]["resources"]["priority"] == 7
    queue = await queued(running, blocker, late, early)
    assert [(job["type"], job["isPreemptible"], job["summary"]["state"], job["priority"]) for job in queue] == [
        ("TYPE_COMMAND", False, "STATE_SCHEDULED", 42), ("TYPE_COMMAND", False, "STATE_QUEUED", 7),
        ("TYPE_COMMAND", False, "STATE_QUEUED", 42)]  # fmt: skip
    job_id = queue[2]["jobId"]
    await running.post("/api/v1/job-queues", {"updates": [{"jobId": job_id, "aheadOf": queue[1]["jobId"]}]})
    await queued(running, blocker, early, late)
    await running.post("/api/v1/job-queues", {"updates": [{"jobId": job_id, "priority": 50}]})
    moved = {"updates": [{"jobId": job_id, "resourcePool": "elsewhere"}]}
    refused = await running.http.post("/api/v1/job-queues", json=moved)
    assert (refused.status_code, "only experiments" in refused.text) == (400, True)
    await queued(running, blocker, late, early)
    await running.post(f"/api/v1/commands/{blocker}/kill")
    first, second = await end(running, late), await end(running, early)
    assert first["endTime"] < second["endTime"]


async def test_a_failure_is_started_again_as_often_as_its_user_said(running: Platform, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    line = f"echo x >> {counter}; test $(wc -l < {counter}) -eq 3"
    task_id = await generic(running, line, config={"max_restarts": 5})
    ended = await end(running, task_id)
    assert ended["taskState"] == "GENERIC_TASK_STATE_COMPLETED"
    assert [run["statusCode"] for run in sorted(ended["allocations"], key=lambda run: run["startTime"])] == [1, 1, 0]
    given_up = await end(running, await generic(running, "exit 4", config={"max_restarts": 1}))
    assert given_up["taskState"] == "GENERIC_TASK_STATE_ERROR"
    assert len(given_up["allocations"]) == 2


async def test_a_tree_is_paused_goes_on_and_is_killed(running: Platform) -> None:
    none = {"resources": {"slots": 0}}
    parent = await generic(running, "echo begins; sleep 300", config=none)
    child = await generic(running, "sleep 300", config=none, parentId=parent)
    once = await generic(running, "sleep 300", config=none, parentId=parent, noPause=True)

    async def has_begun() -> bool:
        runs = [(await task(running, each))["allocations"] for each in (parent, child, once)]
        return all(run and run[0]["state"] == "STATE_RUNNING" for run in runs) and await output(running, parent) != []

    await running.until(has_begun, what="all three run")
    await running.post(f"/api/v1/tasks/{parent}/pause")
    for each in (parent, child):
        await until_task_state(running, each, "PAUSED")
    assert (await task(running, once))["taskState"] == "GENERIC_TASK_STATE_ACTIVE"
    refused = await running.http.post(f"/api/v1/tasks/{once}/pause")
    assert (refused.status_code, "can't be paused" in refused.text) == (400, True)
    await running.post(f"/api/v1/tasks/{parent}/unpause")

    async def runs_again() -> bool:
        return await output(running, parent) == ["begins", "begins"]

    await running.until(runs_again, what="it runs from its start again")
    runs = (await task(running, parent))["allocations"]
    assert [run["allocationId"] for run in runs] == [f"{parent}.2", f"{parent}.1"]
    await running.post(f"/api/v1/tasks/{child}/kill", {"killFromRoot": True})
    for each in (parent, child, once):
        assert (await end(running, each))["taskState"] == "GENERIC_TASK_STATE_CANCELED"


async def test_one_is_forked_with_its_files_and_takes_those_of_its_parent(running: Platform) -> None:
    none = {"resources": {"slots": 0}}
    model = await generic(running, "cat", "data", config=none, contextDirectory=members({"data": "mine"}))
    fork = (await running.post("/api/v1/generic-tasks", {"forkedFrom": model}))["taskId"]
    child = await generic(running, "cat data; true", config=none, parentId=model, inheritContext=True)
    for each in (model, fork, child):
        await end(running, each)
        assert await output(running, each) == ["mine"]
    shown = await task(running, fork)
    assert (shown["forkedFrom"], shown["parentId"], shown["noPause"]) == (model, None, False)
    config = orjson.loads((await running.get(f"/api/v1/tasks/{fork}/config"))["config"])
    assert config == {"entrypoint": ["cat", "data"], **none}
    listed = (await running.get("/api/v1/generic-tasks"))["tasks"]
    assert [each["taskId"] for each in listed] == [child, fork, model]
    assert {each["state"] for each in listed} == {"GENERIC_TASK_STATE_COMPLETED"}


async def test_logs_go_by_the_setting_of_the_cluster_and_files_with_what_can_not_be_forked(running: Platform) -> None:
    none, files = {"resources": {"slots": 0}}, {"data": "x"}
    ended = [
        await command(running, "echo ended", files=files, **none),
        await generic(running, "echo ended", config=none, contextDirectory=members(files)),
    ]
    open_ = await command(running, "echo open; sleep 300", **none)
    for each in ended:
        await end(running, each)
    await running.until(lambda: _lines_of(running, open_) > 2, what="the other one has lines")
    with running.database.read() as session:
        assert list(session.scalars(select(TaskContext.task_id))) == [ended[1]], "a fork takes them"
    for days, left in ((None, 2), (1, 2), (0, 0)):
        LogRetention(running.database, days).remove_expired()
        assert sum(_lines_of(running, each) > 0 for each in ended) == left
    assert _lines_of(running, open_) > 2
    with running.database.write() as session:
        session.get_one(Task, open_).ended_at = utc_now() - timedelta(days=3)
    LogRetention(running.database, 4).remove_expired()
    assert _lines_of(running, open_) > 2
    LogRetention(running.database, 2).remove_expired()
    assert _lines_of(running, open_) == 0
    fork = await running.post("/api/v1/generic-tasks", {"forkedFrom": ended[1], "config": "entrypoint: [cat, data]"})
    await end(running, fork["taskId"])
    assert await output(running, fork["taskId"]) == ["x"]


def _lines_of(running: Platform, task_id: str) -> int:
    with running.database.read() as session:
        return len(session.scalars(select(TaskLog.id).where(TaskLog.task_id == task_id)).all())


async def test_a_container_outlives_its_agent_and_its_output_is_complete(running: Platform) -> None:
    [agent_id] = running.agents
    command_id = await command(running, "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.25; done; exit 5")
    await until_state(running, command_id, "RUNNING")
    await running.stop_agent(agent_id)
    await asyncio.sleep(0.5)
    await running.start_agent(slots=1)
    ended = await end(running, command_id)
    assert [run["statusCode"] for run in ended["allocations"]] == [5]
    assert await output(running, command_id) == [str(number) for number in range(1, 9)]


async def why(running: Platform, task_id: str) -> str:
    found = await running.get(f"/api/v1/undeterred/tasks/{task_id}/why")
    assert found["facts"]["taskId"] == task_id
    return found["sentences"][0]


async def det(running: Platform, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `det` as the user admin."""
    environment = os.environ | {
        "DET_MASTER": running.url, "DET_USER": "admin", "DET_PASS": ADMIN_PASSWORD,
        "DET_DEBUG_CONFIG_PATH": str(running.folder / "det"),
    }  # fmt: skip
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "cli", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


async def test_det_runs_commands_and_tasks_and_ends_with_their_exit_codes(running: Platform, tmp_path: Path) -> None:
    none = ("--config", "resources.slots=0")
    done = await det(running, "cmd", "run", *none, "echo from det; exit 7")
    assert (done.returncode, "from det" in done.stdout) == (7, True), done.stderr
    assert "exited with code 7" in done.stderr
    launched = await det(running, "cmd", "run", "-d", *none, "--", "sleep", "300")
    command_id = launched.stdout.strip()
    assert f"task {command_id} " in (await det(running, "task", "why", command_id)).stdout
    listed = await det(running, "cmd", "list", "--json")
    assert orjson.loads(listed.stdout)[0]["id"] == command_id
    assert (await det(running, "cmd", "set", "priority", command_id, "7")).returncode == 0
    assert "priority: 7" in (await det(running, "cmd", "config", command_id)).stdout
    killed = await det(running, "cmd", "kill", "no-such", command_id)
    assert (killed.returncode, command_id in killed.stderr) == (4, True), "told what was not killed"
    assert f"Killed command {command_id}" in (await det(running, "cmd", "kill", "-f", "no-such", command_id)).stdout
    (tmp_path / "main.py").write_text("print('from the folder')")
    (tmp_path / "task.yaml").write_text("entrypoint: [python3, main.py]\nresources: {slots: 0}\n")
    done = await det(running, "task", "create", str(tmp_path / "task.yaml"), "-i", str(tmp_path / "main.py"), "-f")
    assert (done.returncode, "from the folder" in done.stdout) == (0, True), done.stderr
    wrong = await det(running, "cmd", "run", "--config", "resources.slotz=1", "true")
    assert (wrong.returncode, "did you mean slots?" in wrong.stderr) == (1, True), wrong.stderr


async def test_tasks_end_with_their_workspace(running: Platform) -> None:
    body = {"name": "short-lived"}
    workspace = (await running.post("/api/v1/workspaces", body))["workspace"]["id"]
    config = {"entrypoint": ["sleep 300"], "resources": {"slots": 0}}
    ended = {"config": config | {"entrypoint": ["true"]}, "workspaceId": workspace}
    await end(running, (await running.post("/api/v1/commands", ended))["command"]["id"])
    launched = await running.post("/api/v1/commands", {"config": config, "workspaceId": workspace})
    await until_state(running, launched["command"]["id"], "RUNNING")
    assert (await running.http.delete(f"/api/v1/workspaces/{workspace}")).json() == {"completed": False}

    async def is_gone() -> bool:
        return (await running.http.get(f"/api/v1/workspaces/{workspace}")).status_code == 404

    await running.until(is_gone, what="the workspace is gone")
    assert (await running.get("/api/v1/commands"))["commands"] == []
    with running.database.read() as session:
        assert session.scalars(select(TaskLog)).all() == []


async def test_a_command_without_a_program_says_so(running: Platform) -> None:
    command_id = await command(running, "no-such-program", "x", resources={"slots": 0})
    ended = await end(running, command_id)
    assert ended["allocations"][0]["statusCode"] == 127
    assert "'no-such-program' was not found" in ended["allocations"][0]["exitReason"]
    lost = await command(running, "pwd", work_dir="/no/such/folder", resources={"slots": 0})
    [run] = (await end(running, lost))["allocations"]
    assert "work_dir in the task's configuration is '/no/such/folder'" in run["exitReason"]


READY = """
import os, time, urllib.request
path = f"{os.environ['DET_MASTER']}/api/v1/allocations/{os.environ['DET_ALLOCATION_ID']}/ready"
headers = {"Grpc-Metadata-x-allocation-token": f"Bearer {os.environ['DET_SESSION_TOKEN']}"}
urllib.request.urlopen(urllib.request.Request(path, data=b"", headers=headers, method="POST")).read()
print("ready", flush=True)
time.sleep(300)
"""


async def test_what_is_not_used_ends_and_what_is_used_or_not_ready_goes_on(
    running: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.services.tasks.ENDS_IDLE", {TaskKind.COMMAND})  # as notebooks, without one's packages
    none = {"resources": {"slots": 0}, "idle_timeout": "2s"}
    unused, used = [await command(running, "python3", "-c", READY, **none) for _ in range(2)]
    starting = await command(running, "sleep", "300", **none)

    async def is_ready() -> bool:
        with running.database.write() as session:
            session.get_one(Task, used).last_used_at = utc_now()
        return await output(running, unused) == ["ready"] == await output(running, used)

    await running.until(is_ready, what="both are ready")
    ended = asyncio.create_task(end(running, unused))
    while not ended.done():
        with running.database.write() as session:
            session.get_one(Task, used).last_used_at = utc_now()
        await asyncio.sleep(0.2)
    told = "idle for more than 2s: service is inactive"
    assert (await ended)["allocations"][0]["exitReason"] == told
    shown = (await running.get(f"/api/v1/commands/{unused}"))["command"]
    assert (shown["state"], shown["exitStatus"]) == ("STATE_TERMINATED", told)
    told_of = {"sources": "master", "levels": "LOG_LEVEL_INFO"}  # its log has warned as well
    response = await running.http.get(f"/api/v1/tasks/{unused}/logs", params=told_of)
    lines, name = [orjson.loads(line)["result"]["log"] for line in response.text.splitlines()], shown["description"]
    assert lines == [f"Scheduling {name} (id: {unused}.1)", f"{name} was assigned to an agent",
                     f"Resources for {name} have started", f"{name} was terminated: {told}"]  # fmt: skip
    assert await state(running, used) == "RUNNING"
    assert await state(running, starting) == "RUNNING"
    await end(running, used)
    await running.post(f"/api/v1/commands/{starting}/kill")
    assert (await end(running, starting))["allocations"][0]["exitReason"] != told
