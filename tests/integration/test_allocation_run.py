"""An allocation of a task that is no trial: it gets slots, runs, is steered and closed as a trial's is."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from temporalio.client import WorkflowHandle

from api.services import launches
from database.models import Allocation, Task
from tests.kit.errand import Errand, ErrandRun
from tests.kit.platform import QUICK, Platform, platform
from workers.orchestrator import WORKFLOWS
from workflows import names
from workflows.allocation import Wish
from workflows.lifecycle.allocation import AllocationEnd, EndCause, ExitKind
from workflows.lifecycle.task import TaskKind, TaskState

SHOWS = "#!/bin/sh\nenv | grep ^DET_ | sort\n"
WAITS = "#!/bin/sh\necho waits\nexec sleep 300\n"


@pytest.fixture
async def running(temporal_address: str, tmp_path: Path) -> AsyncIterator[Platform]:
    """A platform whose orchestrator knows errands, with one agent of one slot."""
    async with platform(
        temporal_address=temporal_address, database_url=f"sqlite:///{tmp_path}/db", folder=tmp_path, pool="default",
        workflows=[*WORKFLOWS, Errand],
    ) as running:  # fmt: skip
        await running.start_agent(slots=1)
        yield running


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What containers of generic tasks execute; no kind of task but trials has launch orders of its own yet."""
    path = tmp_path / "program"

    def work(session: Any, task: Task, allocation: Allocation, rank: int) -> launches.Work:
        storage = {"type": "directory", "container_path": "/tmp"}
        return launches.Work(
            config={"checkpoint_storage": storage, "resources": {}}, workspace_id=1,
            env={"DET_PYTHON_EXECUTABLE": str(path)}, log_fields={}, labels={},
        )  # fmt: skip

    monkeypatch.setitem(launches.WORK, TaskKind.GENERIC, work)
    return path


async def begin(running: Platform, program: Path, text: str) -> tuple[str, WorkflowHandle[Any, AllocationEnd]]:
    """A recorded task, and the workflow that runs it."""
    program.write_text(text)
    program.chmod(0o755)
    task_id = str(uuid.uuid4())
    with running.database.write() as session:
        session.add(
            Task(id=task_id, kind=TaskKind.GENERIC.value, owner_id=1, workspace_id=1, job_id=task_id,
                 config={}, state=TaskState.ACTIVE.value)
        )  # fmt: skip
    run = ErrandRun(task_id=task_id, pool=running.pool, timing=QUICK)
    handle = await running.temporal.start_workflow(
        Errand.run, run, id=names.task_workflow(task_id), task_queue=names.ORCHESTRATOR_QUEUE
    )
    return task_id, handle


def allocation(running: Platform, task_id: str) -> Allocation | None:
    with running.database.read() as session:
        return session.get(Allocation, names.allocation_id(task_id, 1))


def has_begun(running: Platform, task_id: str) -> bool:
    """Whether its container runs: from then on the program may become another one."""
    row = allocation(running, task_id)
    return row is not None and row.state == "RUNNING"


async def test_it_runs_on_slots_of_its_pool_and_gives_them_back(running: Platform, program: Path) -> None:
    ends: list[AllocationEnd] = []
    for _ in range(2):  # the only slot: the second one needs it back
        task_id, handle = await begin(running, program, SHOWS)
        ends.append(await handle.result())
        row = allocation(running, task_id)
        assert row is not None
        assert (row.trial_id, row.slots, row.state, row.ended_at is None) == (None, 1, "TERMINATED", False)
    assert [(end.kind, end.cause) for end in ends] == [(ExitKind.FINISHED, EndCause.EXIT_ZERO)] * 2


async def test_its_container_speaks_for_its_task_and_for_no_trial(running: Platform, program: Path) -> None:
    out = program.with_name("environment")
    text = f"#!/bin/sh\nenv | grep ^DET_ > {out}.new; mv {out}.new {out}\nexec sleep 300\n"
    task_id, handle = await begin(running, program, text)
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
        assert context.json() == {"b64Tgz": ""}
        refused = await http.post("/api/v1/trials/1/progress", json={"progress": 0.5})
        assert refused.status_code == 403, refused.text
    listed = (await running.get("/api/v1/tasks"))["allocationIdToSummary"][f"{task_id}.1"]
    assert (listed["taskId"], listed["name"]) == (task_id, f"Generic {task_id}")
    await handle.signal(Errand.want, Wish.KILL)
    await handle.result()


@pytest.mark.parametrize("wish", [Wish.KILL, Wish.LEAVE])
async def test_it_is_killed_when_its_workload_wants_that_or_wants_it_to_leave_before_it_is_ready(
    running: Platform, program: Path, wish: Wish
) -> None:
    task_id, handle = await begin(running, program, WAITS)
    await running.until(lambda: has_begun(running, task_id), what="its container runs")
    await handle.signal(Errand.want, wish)
    assert (await handle.result()).cause is EndCause.KILLED


async def test_it_stops_waiting_for_slots_when_its_workload_needs_none_any_more(
    running: Platform, program: Path
) -> None:
    first_id, first = await begin(running, program, WAITS)
    await running.until(lambda: has_begun(running, first_id), what="the only slot is taken, by what waits")
    second_id, second = await begin(running, program, SHOWS)

    async def is_queued() -> bool:
        pool = await running.temporal.get_workflow_handle(names.pool_workflow(running.pool)).query("snapshot")
        return names.allocation_id(second_id, 1) in str(pool)

    await running.until(is_queued, what="it is in the queue")
    await second.signal(Errand.want, Wish.LEAVE)
    assert (await second.result()).cause is EndCause.NEVER_STARTED
    assert allocation(running, second_id) is None
    await first.signal(Errand.want, Wish.KILL)
    await first.result()
