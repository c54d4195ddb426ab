"""The workflows that follow an experiment's end: checkpoints outside the policy are removed, and it can be deleted."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, WorkflowAlreadyStartedError

from workflows import calls, names
from workflows.attributes import ORDINARY
from workflows.messages import (
    ClaimedCheckpoints,
    CleanupOrder,
    DeletionFailed,
    ErasedExperiment,
    FileRemovalOrder,
    NamespaceRemovalOrder,
    NamespaceServed,
    RemovedFiles,
    RemoveFiles,
    Timing,
)
from workflows.options import on_agent, record_once, tell

#: How long an agent may take to pick the work up before the user learns that there is none.
_AGENT_WAIT = timedelta(minutes=10)


#: How long a deleted workspace's namespace is tried to be removed, whose cluster or agent is away.
_NAMESPACE_WAIT = timedelta(days=7)


class _StorageFailed(Exception):
    """The files can't be removed; the text says why."""


@workflow.defn(name="CheckpointGC")
class CheckpointGC:
    """Id `checkpoint-gc-<experiment>`. Removes the checkpoints that the policy does not keep and nobody needs.

    Messages: `collect` (signal) when the policy or a need changed meanwhile. What is claimed and not removed when it
    fails is taken up by the next one. The experiment's state never depends on it.
    """

    @workflow.init
    def __init__(self, order: CleanupOrder) -> None:
        self._is_wanted = True

    @workflow.run
    async def run(self, order: CleanupOrder) -> int:
        """Collect until nothing is left to collect. Returns how many checkpoints were removed."""
        removed = 0
        while self._is_wanted:
            self._is_wanted = False
            try:
                removed += await _collect(order)
            except _StorageFailed as error:
                if not self._is_wanted:
                    raise ApplicationError(str(error), type="StorageFailed", non_retryable=True) from None
        workflow.set_current_details(f"Removed {removed} checkpoints of experiment {order.experiment_id}.")
        return removed

    @workflow.signal
    def collect(self) -> None:
        """Look again."""
        self._is_wanted = True


@workflow.defn(name="ExperimentDeletion")
class ExperimentDeletion:
    """Id `delete-experiment-<id>`. Removes checkpoints, TensorBoard files, logs and records of an experiment.

    What fails leaves it DELETE_FAILED with the reason; it may be tried again. Messages: `delete` (signal) with each
    try, as one may come when the failure is recorded, and this workflow about to close.
    """

    @workflow.init
    def __init__(self, order: CleanupOrder) -> None:
        self._is_wanted = True

    @workflow.run
    async def run(self, order: CleanupOrder) -> bool:
        """Delete it. Returns whether it is gone."""
        while self._is_wanted:
            self._is_wanted = False
            try:
                removed = await _collect(order)
            except _StorageFailed as error:
                await record_once(
                    calls.note_deletion_failed, DeletionFailed(experiment_id=order.experiment_id, reason=str(error))
                )
                workflow.set_current_details(f"Failed: {error}")
            else:
                await self._erase(order, removed)
                return True
        return False

    @workflow.signal
    def delete(self) -> None:
        """Try again, if it fails or has failed."""
        self._is_wanted = True

    async def _erase(self, order: CleanupOrder, removed: int) -> None:
        erased: ErasedExperiment = await workflow.execute_activity(
            calls.erase_experiment,
            order,
            task_queue=names.ORCHESTRATOR_QUEUE,
            start_to_close_timeout=timedelta(days=1),
            heartbeat_timeout=timedelta(minutes=1),
            retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),
            summary="records",
        )
        for other in erased.others:
            await start_gc(other, order.timing)
        workflow.set_current_details(f"Deleted experiment {order.experiment_id} with {removed} checkpoints.")


@workflow.defn(name="FileRemoval")
class FileRemoval:
    """Id `remove-files-<uuid>`. Removes single files of checkpoints, or TensorBoard files of an experiment."""

    @workflow.run
    async def run(self, order: FileRemovalOrder) -> None:
        """Remove them, with pauses as for whole checkpoints."""
        try:
            await _remove(order.pool, order.removal_id, [], order.timing)
        except _StorageFailed as error:
            raise ApplicationError(str(error), type="StorageFailed", non_retryable=True) from None


@workflow.defn(name="NamespaceRemoval")
class NamespaceRemoval:
    """Id `remove-namespace-<agent>-<namespace>`. Removes the own namespace of a workspace that was deleted."""

    @workflow.run
    async def run(self, order: NamespaceRemovalOrder) -> None:
        """Have the agent of its cluster remove it, with pauses; a namespace is given up after `_NAMESPACE_WAIT`."""
        try:
            served: NamespaceServed = await on_agent(
                calls.remove_namespace,
                order,
                task_queue=names.agent_queue(order.agent_id),
                schedule_to_close_timeout=_NAMESPACE_WAIT,
                start_to_close_timeout=timedelta(minutes=1),
                retry_policy=RetryPolicy(maximum_interval=timedelta(minutes=5)),
                summary=f"namespace {order.namespace}",
            )
        except ActivityError as error:
            raise ApplicationError(
                f"namespace {order.namespace} of cluster {order.agent_id!r} is left: {error.cause or error}",
                type="NamespaceLeft",
                non_retryable=True,
            ) from None
        if served.problem:
            raise ApplicationError(served.problem, type="NamespaceLeft", non_retryable=True)


async def start_gc(experiment_id: int, timing: Timing) -> None:
    """Have an experiment's checkpoints collected, from another workflow."""
    workflow_id = names.gc_workflow(experiment_id)
    while True:
        try:
            await workflow.start_child_workflow(
                "CheckpointGC",
                CleanupOrder(experiment_id=experiment_id, timing=timing),
                id=workflow_id,
                task_queue=names.ORCHESTRATOR_QUEUE,
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                static_summary=f"checkpoints of experiment {experiment_id}",
                priority=ORDINARY,
            )
        except WorkflowAlreadyStartedError:
            if not await tell(workflow_id, "collect", None):
                continue  # it has closed meanwhile
        return


async def _collect(order: CleanupOrder) -> int:
    """Remove what may go, piece by piece; returns how many. Raises: _StorageFailed."""
    total = 0
    while True:
        claimed: ClaimedCheckpoints = await record_once(calls.claim_checkpoints, order)
        if not claimed.uuids:
            break
        workflow.set_current_details(
            f"Experiment {order.experiment_id}: {total} checkpoints removed, {len(claimed.uuids)} more claimed; "
            f"waits for an agent of `{claimed.pool}`."
        )
        await _remove(claimed.pool, claimed.removal_id, claimed.uuids, order.timing)
        total += len(claimed.uuids)
    if claimed.removal_id:
        await _remove(claimed.pool, claimed.removal_id, [], order.timing)
    return total


async def _remove(pool: str, removal_id: str, uuids: Sequence[str], timing: Timing) -> None:
    left = list(uuids)
    for pause in (*timing.removal_pauses_s, None):  # then it is given up, until it is requested again
        answer = await _remove_on_agent(pool, RemoveFiles(removal_id=removal_id, uuids=left))
        # an agent may say what it likes, and of others' checkpoints too
        removed = RemovedFiles(
            removal_id=removal_id, uuids=[uuid for uuid in answer.uuids if uuid in left], problems=answer.problems
        )
        if removed.uuids or not removed.problems:
            await record_once(calls.mark_deleted, removed)
        left = [uuid for uuid in left if uuid not in set(removed.uuids)]
        if not removed.problems:
            return
        if pause is None:
            raise _StorageFailed(f"{len(removed.problems)} of the files can't be removed: {removed.problems[0][:1000]}")
        await workflow.sleep(pause, summary=f"{len(left)} could not be removed")


async def _remove_on_agent(pool: str, order: RemoveFiles) -> RemovedFiles:
    try:
        return await on_agent(
            calls.remove_files,
            order,
            task_queue=names.storage_queue(pool),
            schedule_to_start_timeout=_AGENT_WAIT,
            start_to_close_timeout=timedelta(hours=1),
            heartbeat_timeout=timedelta(seconds=30),
            retry_policy=RetryPolicy(maximum_attempts=5),
            summary=f"{len(order.uuids)} checkpoints",
        )
    except ActivityError as error:
        minutes = _AGENT_WAIT.total_seconds() / 60
        reason = f"no agent of pool {pool!r} took it up or brought it to an end ({error.cause or error})"
        raise _StorageFailed(f"{reason}; waited up to {minutes:.0f} minutes") from None
