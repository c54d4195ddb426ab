"""Records that others hear of: written in a thread, and told from the event loop, so that no thread waits meanwhile."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from temporalio import activity

from activities.messenger import Messenger
from activities.records import Records
from workflows.messages import AllocationFacts, CloseAllocation, CreatedTrials, RecordExperiment, RecordTrial

In = TypeVar("In")
Out = TypeVar("Out")


async def written(threads: Executor, write: Callable[[In], Out], record: In) -> Out:
    """Write a record in one of these threads; raises what writing raises."""
    context = contextvars.copy_context()  # the thread knows which activity it is for
    return await asyncio.get_running_loop().run_in_executor(threads, lambda: context.run(write, record))


class AnnouncedRecords:
    """Activities of the orchestrator. Messages that fail fail the activity, and its next attempt sends them again.

    Args:
        records: Writes them.
        messenger: Sends what goes with them.
        threads: In which they are written.
    """

    def __init__(self, records: Records, messenger: Messenger, threads: Executor) -> None:
        self._records = records
        self._messenger = messenger
        self._threads = threads

    @activity.defn
    async def record_experiment(self, record: RecordExperiment) -> CreatedTrials:
        """Write an experiment's state, decisions, new trials and standings; then start trials, and send orders."""
        created = await self._written(self._records.record_experiment, record)
        if record.starts is not None:
            ids = dict(zip((trial.request_id for trial in record.trials), created.trial_ids, strict=True))
            await self._messenger.start_trials(record.starts, ids)
        await self._messenger.orders(record.orders)
        return created

    @activity.defn
    async def record_trial(self, record: RecordTrial) -> None:
        """Write a trial's state, and how its latest allocation ended; then tell its experiment if that was its end."""
        revision = await self._written(self._records.record_trial, record)
        if record.ended is not None:
            ended = record.ended.model_copy(update={"recorded": revision})
            await self._messenger.trial_ended(record.experiment_id, ended)

    @activity.defn
    async def close_allocation(self, order: CloseAllocation) -> AllocationFacts:
        """Record the end of an allocation. Its slots go back meanwhile: they wait for nothing that it reported."""
        closing = self._written(self._records.close_allocation, order)
        if not order.releases_to:
            return await closing
        facts, _ = await asyncio.gather(closing, self._messenger.release(order.releases_to, order.allocation_id))
        return facts

    async def _written(self, write: Callable[[In], Out], record: In) -> Out:
        return await written(self._threads, write, record)
