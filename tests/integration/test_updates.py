"""Updates of a workflow that continues as new again and again: none waits for long, and none is lost."""

from __future__ import annotations

import asyncio
import time
import uuid
from datetime import timedelta

import pytest
from temporalio import workflow
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from workflows.updates import Updates

_WITHIN = timedelta(seconds=20)
_SENDERS, _EACH = 2, 40


@workflow.defn
class Renewed:
    """Continues as new after each five updates."""

    def __init__(self) -> None:
        self._taken = 0

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: self._taken >= 5)
        await workflow.sleep(0.001)
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new()

    @workflow.update
    async def take(self) -> None:
        self._taken += 1

    @workflow.update
    async def refuse(self) -> None:
        raise ApplicationError("no")


async def test_update_that_meets_the_end_of_a_run_is_taken_by_the_next_at_once(temporal_address: str) -> None:
    client = await Client.connect(temporal_address)
    queue = id_ = f"renewed-{uuid.uuid4()}"
    updates = Updates(client)
    took: list[float] = []

    async def send() -> None:
        for _ in range(_EACH):
            began = time.monotonic()
            await updates.send(id_, "take", within=_WITHIN)
            took.append(time.monotonic() - began)

    async with Worker(client, task_queue=queue, workflows=[Renewed], workflow_runner=UnsandboxedWorkflowRunner()):
        await client.start_workflow(Renewed.run, id=id_, task_queue=queue)
        await asyncio.gather(*[send() for _ in range(_SENDERS)])
        with pytest.raises(WorkflowUpdateFailedError):
            await updates.send(id_, "refuse", within=_WITHIN)
        await client.get_workflow_handle(id_).terminate()
    # By Temporal's own client one in six waits for a second here, before it tries again.
    assert sum(seconds > 0.7 for seconds in took) <= len(took) // 20, sorted(took)[-10:]
    with pytest.raises(RPCError) as unknown:
        await updates.send(id_, "take", within=_WITHIN)
    assert unknown.value.status is RPCStatusCode.NOT_FOUND
