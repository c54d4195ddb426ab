"""A late copy of a trial that was given up: whatever it writes is refused, and it is told to stop.

Its token is dead, but an API process remembers for a second whose a token is: what is written is fenced in its own
transaction, too. Here that second lasts as long as the test.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import event, func, select, update

from api.auth import authentication
from api.auth.authentication import token_hash
from database.models import Allocation, AllocationContainer, Checkpoint, Metric, Outbox, Trial
from tests.integration.api.served import Run, Served
from workflows.messages import CloseAllocation


@pytest.fixture(params=["remembered", "forgotten"])
def memory(request: pytest.FixtureRequest, api: Served) -> Iterator[str]:
    """Whether the API still takes the late copy's token for valid."""
    api.parts.auth._known.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(authentication, "_CACHE_S", 3600.0 if request.param == "remembered" else -1.0)
        yield request.param
    api.parts.auth._known.clear()


def writes(run: Run) -> dict[str, tuple[str, Any]]:
    """Every way in which a container writes."""
    trial, allocation = f"/api/v1/trials/{run.trial_id}", f"/api/v1/allocations/{run.allocation_id}"
    metrics = {"trialRunId": run.run_id, "stepsCompleted": 5, "metrics": {"avgMetrics": {"loss": 0.1}}}
    return {
        "metrics": (f"{trial}/metrics", {"group": "validation", "metrics": metrics}),
        "batch": (f"{trial}/metrics/batch", {"reports": [{"group": "training", **metrics}]}),
        "validation": (f"{trial}/validation_metrics", metrics),
        "checkpoint": ("/api/v1/checkpoints", {"uuid": str(uuid.uuid4()), "metadata": {"steps_completed": 5}}),
        "progress": (f"{trial}/progress", 50),
        "operation": (f"{trial}/searcher/completed_operation", {"op": {"length": 100}, "searcherMetric": 0.1}),
        "early exit": (f"{trial}/early_exit", {"reason": "EXITED_REASON_INVALID_HP"}),
        "status": (f"{trial}/runner/metadata", {"state": "late"}),
        "ack": (f"{allocation}/signals/ack_preemption", None),
    }


def recorded(api: Served, run: Run) -> list[Any]:
    """All that a container's writes change, but for the time of an acknowledgement."""
    with api.database.read() as session:
        trial = session.get_one(Trial, run.trial_id)
        return [
            session.scalar(select(func.count()).where(Metric.trial_id == run.trial_id)),
            session.scalar(select(func.count()).where(Checkpoint.trial_id == run.trial_id)),
            session.scalar(select(func.count()).where(Outbox.workflow_id.like(f"%-{run.experiment_id}"))),
            session.scalar(select(func.count()).where(Outbox.workflow_id == f"trial-{run.trial_id}")),
            (trial.progress, trial.early_exit, trial.runner_state, trial.total_batches, trial.run_id),
        ]


async def known(run: Run) -> None:
    """The API has just learned whose this token is."""
    assert (await run.container.ask("GET", "/api/v1/me")).status_code == 200


_WAYS = list(writes(Run(1, 1, "1.a", "a", "1.a.1", None)))  # type: ignore[arg-type]


@pytest.mark.parametrize("what", _WAYS)
async def test_late_write_is_refused_when_a_newer_run_exists(api: Served, memory: str, what: str) -> None:
    late = await api.trial(api.user())
    await known(late)
    current = await api.next_run(late)
    before = recorded(api, late)
    path, body = writes(late)[what]
    response = await late.container.ask("POST", path, body)
    if memory == "remembered" and what == "ack":
        assert response.status_code == 200, (
            "it says something of the old allocation only, of which nobody asks any more"
        )
    else:
        assert response.status_code == 401, response.text
        assert "has ended" in response.json()["message"]
    assert recorded(api, late) == before
    with api.database.read() as session:
        assert session.get_one(Allocation, current.allocation_id).preempt_acked_at is None


@pytest.mark.parametrize("what", [way for way in _WAYS if way != "ack"])
async def test_late_write_is_refused_when_the_allocation_has_just_ended(api: Served, memory: str, what: str) -> None:
    late = await api.trial(api.user())
    await known(late)
    for step in (1, 2, 3):  # the writer knows the trial, too
        await late.report("training", step, {"loss": 1.0})
    await asyncio.to_thread(api.records.close_allocation, CloseAllocation(allocation_id=late.allocation_id))
    before = recorded(api, late)
    path, body = writes(late)[what]
    assert "has ended" in await late.container.refused(401, "POST", path, body)
    assert recorded(api, late) == before


@pytest.mark.parametrize("what", ["checkpoint", "operation"])
async def test_late_write_is_refused_when_its_container_was_given_another_token(
    api: Served, memory: str, what: str
) -> None:
    """An agent that asks for the launch order again starts the container anew."""
    late = await api.trial(api.user())
    await known(late)
    with api.database.write() as session:
        mine = AllocationContainer.allocation_id == late.allocation_id
        session.execute(update(AllocationContainer).where(mine).values(token_hash=token_hash(f"new{late.trial_id}")))
    before = recorded(api, late)
    path, body = writes(late)[what]
    assert "has ended" in await late.container.refused(401, "POST", path, body)
    assert recorded(api, late) == before


async def test_token_is_asked_for_once_when_a_container_writes(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await api.trial(api.user())
    await known(run)
    monkeypatch.setattr(authentication, "_CACHE_S", -1.0)
    asked: list[str] = []

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        asked.extend([statement] if "allocation_containers.token_hash" in statement else [])

    engines = {api.database._reader, api.database._writer}
    for engine in engines:
        event.listen(engine, "before_cursor_execute", note)
    path, body = writes(run)["checkpoint"]
    await run.container.post(path, body)
    for engine in engines:
        event.remove(engine, "before_cursor_execute", note)
    assert len(asked) == 1, asked


async def test_copy_in_the_name_of_another_run_is_refused_when_its_own_lives(api: Served) -> None:
    """It can't borrow the number of the newer run, nor write for an allocation that is not its own."""
    first = await api.trial(api.user())
    second = await api.next_run(first)
    body = first.message("validation", 1, {"loss": 0.1}, run_id=2)
    path = f"/api/v1/trials/{first.trial_id}/metrics"
    await asyncio.sleep(authentication._CACHE_S)
    await first.container.refused(401, "POST", path, body)
    assert "invalid run id" in await second.report_refused("validation", 1, {"loss": 0.1}, run_id=1)
    await second.container.refused(404, "POST", f"/api/v1/allocations/{first.allocation_id}/signals/ack_preemption")
    await second.report("validation", 1, {"loss": 0.1})


async def test_late_copy_is_told_to_stop_when_it_asks(api: Served) -> None:
    """By its poll, which is open, and by the next one; and its agent, by reconciliation."""
    late = await api.trial(api.user())
    path = f"/api/v1/allocations/{late.allocation_id}/signals/preemption"
    poll = asyncio.create_task(late.container.get(path, timeout_seconds=60))
    await asyncio.sleep(0.2)
    current = await api.next_run(late)
    assert await asyncio.wait_for(poll, 10) == {"preempt": True}
    deadline = time.monotonic() + 5
    while (await late.container.ask("GET", f"{path}?timeout_seconds=0")).status_code != 401:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    asked = {"allocations": [late.allocation_id, current.allocation_id]}
    answer = await api.agent.post("/api/v1/undeterred/agents/agent-a/reconcile", asked)
    assert answer == {"ended": [late.allocation_id]}


async def test_reports_of_before_the_end_are_kept_when_delivered_after_the_container_ended(api: Served) -> None:
    """What an agent delivers for a container that is gone: the allocation is open until then."""
    run = await api.trial(api.user())
    reports = [
        {"group": "validation", "trialRunId": 1, "stepsCompleted": step, "metrics": {"avgMetrics": {"loss": 1 / step}}}
        for step in range(1, 4)
    ]
    for _ in range(2):  # twice, as the first answer may be lost
        await run.container.post(f"/api/v1/trials/{run.trial_id}/metrics/batch", {"reports": reports})
    await api.end(run)
    with api.database.read() as session:
        steps = session.scalars(select(Metric.total_batches).where(Metric.trial_id == run.trial_id).order_by(Metric.id))
        assert list(steps) == [1, 2, 3]
