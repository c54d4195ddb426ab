"""Activities that write records beat while they do; the worker goes on with everything else meanwhile."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.heartbeats import Heartbeats


@activity.defn
def slow_record(seconds: float) -> None:
    """A record that waits, as for a lock of the database."""
    time.sleep(seconds)


@workflow.defn(name="SlowRecord")
class SlowRecord:
    """Writes one."""

    @workflow.run
    async def run(self, seconds: float) -> None:
        """Several beats long, and for longer than its silence may last."""
        await workflow.execute_activity(
            slow_record, seconds, start_to_close_timeout=timedelta(seconds=30), heartbeat_timeout=timedelta(seconds=1),
            retry_policy=RetryPolicy(maximum_attempts=1),
        )  # fmt: skip


async def test_record_that_takes_several_beats_keeps_its_attempt_and_holds_nothing_up(temporal_address: str) -> None:
    client = await Client.connect(temporal_address)
    queue = f"heartbeats-{uuid.uuid4()}"
    with ThreadPoolExecutor(2) as threads:
        async with Worker(
            client, task_queue=queue, workflows=[SlowRecord], activities=[slow_record], activity_executor=threads,
            workflow_runner=UnsandboxedWorkflowRunner(), interceptors=[Heartbeats()],
            max_heartbeat_throttle_interval=timedelta(seconds=0.2),
        ):  # fmt: skip
            began = time.monotonic()
            await client.execute_workflow(SlowRecord.run, 2.0, id=queue, task_queue=queue)
            assert time.monotonic() - began < 9, "a beat that waited for its own event loop stopped it for ten seconds"
