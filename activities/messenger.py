"""Messages of activities to workflows, sent as soon as the record that they go with is written, from the event loop.

A workflow that sends them itself pays with five events of its history for each: the command, its result, and the task
in which it sees that. Here they cost none. An activity may be done twice, and so may its messages arrive twice:
receivers ignore repeats.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import structlog
from temporalio.client import (
    Client,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import (
    PinnedVersioningOverride,
    VersioningOverride,
    WorkerDeploymentVersion,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from workflows import names
from workflows.answers import AnsweredRecords
from workflows.bursts import Bursts
from workflows.messages import (
    AllocationNotice,
    AllocationNotices,
    Assignment,
    RecordExperiment,
    SlotGrants,
    SlotRequests,
    TrialEnded,
    TrialOrder,
    TrialReport,
    TrialRun,
    TrialStarts,
)
from workflows.new_trials import slot_request, start_options, trial_run, wants_slots
from workflows.trial_reports import TrialReports
from workflows.updates import Updates

log = structlog.get_logger()

#: A pool that does not answer so soon does not hold the decisions of a search up: its trials ask it themselves.
_POOL_ANSWERS = timedelta(seconds=3)
_DEADLINE = timedelta(seconds=10)


class Messenger:
    """Sends over the connection of a worker.

    Args:
        client: Of the worker.
        write: Writes a record that comes with an answer; returns when it is committed.
        pinned: The version that decides for what is started here; None: the current one.
        waiting: How many local activities may wait for a pool's next task, and how many for an experiment's.
    """

    def __init__(
        self,
        client: Client,
        write: Callable[[RecordExperiment], Awaitable[object]],
        pinned: WorkerDeploymentVersion | None = None,
        waiting: int = 0,
    ) -> None:
        self._client = client
        self._write = write
        self.records = AnsweredRecords(self._carry_out, starts=True)
        self._updates = Updates(client)
        self._override: VersioningOverride | None = None if pinned is None else PinnedVersioningOverride(pinned)
        self._releases: Bursts[AllocationNotice] = Bursts(
            self._updates, "take_back", lambda _, notices: AllocationNotices(notices=notices), self._release, waiting
        )
        self._reports = TrialReports(client, self._updates, self.records, waiting)

    async def release(self, pool: str, allocation_id: str) -> None:
        """Give the slots of an allocation back to its pool; returns when the pool has them. Raises: RPCError."""
        await self._releases.send(names.pool_workflow(pool), AllocationNotice(allocation_id=allocation_id))

    async def trial_ended(self, experiment_id: int, ended: TrialEnded) -> None:
        """Tell an experiment that a trial is over; returns when it has heard, and what it answered is done.

        Raises: RPCError; what writing raises.
        """
        await self._reports.send(names.experiment_workflow(experiment_id), TrialReport(trial_ended=ended))

    async def orders(self, orders: Sequence[TrialOrder]) -> None:
        """Tell trials what is wanted of them; returns when all is sent. Raises: RPCError."""
        await asyncio.gather(
            *[self._signal(names.trial_workflow(each.trial_id), "orders", each.orders) for each in orders]
        )

    async def _carry_out(self, record: RecordExperiment) -> None:
        await self._write(record)
        if record.starts is not None:
            await self.start_trials(record.starts, {})

    async def _release(self, pool: str, notice: AllocationNotice) -> None:
        await self._signal(pool, "release", notice)

    async def _signal(self, workflow_id: str, signal: str, message: Any) -> bool:
        """False if there is no such workflow, or it is closed."""
        try:
            await self._client.get_workflow_handle(workflow_id).signal(signal, message, rpc_timeout=_DEADLINE)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return False
        return True

    async def start_trials(self, starts: TrialStarts, ids: dict[str, int]) -> None:
        """Ask the pool for slots, and start the workflows of trials; returns when they are started.

        Args:
            starts: The trials.
            ids: Of those that were just created, by request id.

        Raises: RPCError.
        """
        runs: list[TrialRun] = []
        wanted: dict[str, TrialRun] = {}
        for each in starts.trials:
            numbered = each.model_copy(update={"trial_id": each.trial_id or ids[each.request_id]})
            runs.append(run := trial_run(starts, numbered, by_records=True))
            if wants_slots(run) and not each.is_repeat:
                wanted[_next_allocation(run)] = run
        granted = await self._ask(starts.template.pool, wanted)
        if granted is not None:
            for id_, run in wanted.items():
                run.is_asked = True
                run.placements = granted[id_].placements if id_ in granted else None
        await asyncio.gather(*[self._start_trial(starts, run) for run in runs])

    async def _ask(self, pool: str, wanted: dict[str, TrialRun]) -> dict[str, Assignment] | None:
        """The slots that were granted at once. None: the pool does not run, or does not answer in time."""
        if not wanted:
            return {}
        asked = SlotRequests(requests=[slot_request(run, id_) for id_, run in wanted.items()])
        try:
            answer: SlotGrants = await self._updates.send(
                names.pool_workflow(pool), "ask", asked, within=_POOL_ANSWERS, result_type=SlotGrants
            )
        except (WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError) as error:
            log.info("a pool does not answer: trials ask it themselves", pool=pool, error=str(error.cause or error))
            return None
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise
        return {each.allocation_id: each for each in answer.granted}

    async def _start_trial(self, starts: TrialStarts, run: TrialRun) -> None:
        options = start_options(starts, run.trial_id)
        try:
            await self._client.start_workflow(
                "Trial",
                run,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                versioning_override=self._override,
                rpc_timeout=_DEADLINE,
                **options,
            )
        except WorkflowAlreadyStartedError:
            # By an earlier attempt. What was granted now is its present allocation, or else it gives that back; one
            # that has ended can't.
            if run.placements is not None:
                pool, id_ = starts.template.pool, _next_allocation(run)
                assignment = Assignment(allocation_id=id_, placements=run.placements, pool=pool)
                if not await self._signal(names.trial_workflow(run.trial_id), "assigned", assignment):
                    await self._release(names.pool_workflow(pool), AllocationNotice(allocation_id=id_))


def _next_allocation(run: TrialRun) -> str:
    return names.allocation_id(run.task_id, run.run_id + 1)
