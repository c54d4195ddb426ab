"""Trials are started when the pool has answered, or does not run; else their record is written again."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.messenger import Messenger
from workflows.messages import (
    AllocationNotice,
    AllocationNotices,
    SlotGrants,
    TrialOrders,
    TrialStart,
    TrialStarts,
    TrialTemplate,
)
from workflows.updates import Updates

_DENIED = RPCError("who are you", RPCStatusCode.PERMISSION_DENIED, b"")
_UNKNOWN = RPCError("no such workflow", RPCStatusCode.NOT_FOUND, b"")


class _Temporal:
    """Answers one update, and counts what is started."""

    def __init__(self, answer: SlotGrants | RPCError) -> None:
        self.answer = answer
        self.started = 0

    async def send(self, *_: Any, **__: Any) -> SlotGrants:
        if isinstance(self.answer, RPCError):
            raise self.answer
        return self.answer

    async def start_workflow(self, *_: Any, **__: Any) -> None:
        self.started += 1


async def _start(temporal: _Temporal) -> None:
    template = TrialTemplate(pool="p", slots=1, max_restarts=0)
    trial = TrialStart(trial_id=1, request_id="r", task_id="1.r", orders=TrialOrders())
    starts = TrialStarts(experiment_id=1, name="e", owner="o", job_id="j", template=template, trials=[trial])
    messenger = Messenger(cast("Client", temporal), AsyncMock())
    messenger._updates = cast("Updates", temporal)
    await messenger.start_trials(starts, {})


@pytest.mark.parametrize("answer", [SlotGrants(granted=[]), _UNKNOWN])
async def test_trial_is_started_once_the_pool_has_answered(answer: SlotGrants | RPCError) -> None:
    temporal = _Temporal(answer)
    await _start(temporal)
    assert temporal.started == 1


async def test_record_is_written_again_when_the_pool_can_not_be_asked() -> None:
    temporal = _Temporal(_DENIED)
    with pytest.raises(RPCError):
        await _start(temporal)
    assert temporal.started == 0


class _Pool:
    """Notes what it is sent: as client, as handle and as `Updates`. Takes updates once it is `taking`."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.taking = asyncio.Event()

    def get_workflow_handle(self, _: str) -> _Pool:
        return self

    async def signal(self, name: str, notice: AllocationNotice, **_: Any) -> None:
        self.sent.append((name, notice.allocation_id))

    async def send(self, _: str, name: str, notices: AllocationNotices, **__: Any) -> None:
        await self.taking.wait()
        self.sent.append((name, [notice.allocation_id for notice in notices.notices]))

    def messenger(self, waiting: int) -> Messenger:
        messenger = Messenger(cast("Client", self), AsyncMock(), waiting=waiting)
        messenger._releases._updates = cast("Updates", self)
        return messenger


async def test_slots_that_come_back_together_go_together_and_one_alone_as_a_signal() -> None:
    pool = _Pool()
    pool.taking.set()
    messenger = pool.messenger(waiting=3)
    await messenger.release("p", "a.1")
    await asyncio.gather(*[messenger.release("p", id_) for id_ in ("b.1", "c.1")])
    assert pool.sent == [("release", "a.1"), ("take_back", ["b.1", "c.1"])]


async def test_slots_come_back_as_signals_while_enough_wait_for_the_pool() -> None:
    pool = _Pool()
    messenger = pool.messenger(waiting=2)
    await messenger.release("p", "a.1")  # now the pool is not quiet
    waiting = [asyncio.create_task(messenger.release("p", id_)) for id_ in ("b.1", "c.1")]
    await asyncio.sleep(0)
    await messenger.release("p", "d.1")
    assert pool.sent == [("release", "a.1"), ("release", "d.1")]
    pool.taking.set()
    await asyncio.gather(*waiting)
