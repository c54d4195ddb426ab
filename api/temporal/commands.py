"""The only module of the API that speaks to Temporal."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator, Sequence
from datetime import timedelta
from typing import Any, cast

from temporalio.client import Client, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.common import RawValue, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from api.errors import FailedPrecondition, Unavailable
from api.temporal import codec_server, schedules
from api.temporal.completions import Completions
from api.temporal.connection import Connection
from workflows import names
from workflows.answers import AnsweredRecords
from workflows.attributes import FIRST, ORDINARY, STEP_LIMIT, search_attributes, task_attributes
from workflows.large import shorten, step_limit
from workflows.lifecycle.experiment import Command
from workflows.lifecycle.trial import TrialState
from workflows.messages import (
    AgentRun,
    AutoscalerRun,
    BackfillOrder,
    CampaignOrder,
    CampaignSchedule,
    CleanupOrder,
    CommandResult,
    DeliveryOrder,
    ExperimentRun,
    FileRemovalOrder,
    ImportOrder,
    JobMove,
    NamespaceOrder,
    NamespaceRemovalOrder,
    NamespaceServed,
    NodeService,
    OperationAnswers,
    OperationReport,
    OperationReports,
    PoolRun,
    ProviderChange,
    RecordExperiment,
    TaskRun,
    Timing,
    TrialReport,
)
from workflows.scheduling.model import Claim
from workflows.searchers import Amended, OperationsPosted, Steered
from workflows.searchers.base import MANY
from workflows.together import Together
from workflows.trial_reports import TrialReports
from workflows.updates import Updates

_DEADLINE = timedelta(seconds=10)
#: A user is waiting, and the response can do without the result.
_QUERY_DEADLINE = timedelta(seconds=3)
_LATE = "experiment {} has not answered in time: what was asked may still be done; look, or try again"


class _NoWorkflow(Unavailable):
    """Temporal has no such workflow that runs: it is closed, or has not begun."""


class StillClosing(Unavailable):
    """The workflow of an experiment that is to go on has not ended yet, though its record has: for milliseconds."""


class Commands:
    """Starts workflows and sends them messages. Connects lazily: the API serves reads while Temporal is away.

    Args:
        connection: To Temporal's server.
        timing: Of what is started.
        write: Writes the record of an experiment that came with its answer; returns when it is committed.
    """

    def __init__(
        self, connection: Connection, timing: Timing, write: Callable[[RecordExperiment], Awaitable[object]]
    ) -> None:
        self._connection = connection
        self._timing = timing
        self._client: Client | None = None
        self._updates: Updates | None = None
        self._reports: TrialReports | None = None
        self._lock = asyncio.Lock()
        self._records = AnsweredRecords(write)
        self._completions = Completions(self._complete_operations, self._records)
        self._pools: Together[str, None, PoolRun] = Together(self._read_pool)
        #: starts an experiment's workflow if its start was held or is on its way: whether it did
        self.start_held: Callable[[int], Awaitable[bool]] | None = None

    async def client(self) -> Client:
        """The connected client. Raises: Unavailable."""
        if self._client is None:
            async with self._lock:
                if self._client is None:
                    try:
                        self._client = await self._connection.client()
                    except RuntimeError as error:
                        raise Unavailable(f"Temporal at {self._connection.address} does not answer: {error}") from None
        return self._client

    async def is_known(self) -> bool:
        """Whether Temporal has answered since this process started: it may be away again, and reads go on meanwhile."""
        try:
            await self.client()
        except Unavailable:
            return False
        return True

    async def decoded(self, payloads: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Payloads of histories as they were before they were encoded. Raises: BadRequest, FailedPrecondition."""
        return await codec_server.decoded(self._connection.converter.payload_codec, payloads)

    async def follow_api_key(self) -> None:
        """Show a new API key to Temporal as soon as it is in its file; never returns."""
        while True:
            with contextlib.suppress(Unavailable):
                await self._connection.follow_api_key(await self.client())
            await asyncio.sleep(1.0)

    async def start_experiment(self, run: ExperimentRun) -> None:
        """Start the workflow of a recorded experiment; nothing if it was started before. A large `run` is shortened.

        Raises: Unavailable; StillClosing if the experiment's record has ended, and its workflow is about to.
        """
        client = await self.client()
        if run.continuation and await self._went_on(client, run):
            return
        reuse = WorkflowIDReusePolicy.ALLOW_DUPLICATE if run.continuation else WorkflowIDReusePolicy.REJECT_DUPLICATE
        if len(run.trials) >= MANY:  # of a restored cluster, or that begin at once; those of few are shown by Temporal
            shorten(run)
        try:
            await client.start_workflow(
                "Experiment",
                run,
                id=names.experiment_workflow(run.experiment_id),
                task_queue=names.ORCHESTRATOR_QUEUE,
                id_reuse_policy=reuse,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                static_summary=f"experiment {run.experiment_id} “{run.name}” of {run.owner}"[:200],
                priority=FIRST,
                task_timeout=step_limit(run),
                search_attributes=search_attributes(
                    run.experiment_id, run.template.pool, run.owner, state=run.state.value
                ),
                memo={"job_id": run.job_id, "continuation": run.continuation},
                rpc_timeout=_DEADLINE,
            )
        except WorkflowAlreadyStartedError:
            if run.continuation and not await self._went_on(client, run):
                raise StillClosing(f"experiment {run.experiment_id} has not closed yet: try again") from None
            await self._check_is_ours(client, run)
        except RPCError as error:
            raise _unavailable(error) from None

    async def start_task(self, run: TaskRun) -> None:
        """Start the workflow of a recorded task; nothing if it was started before. Raises: Unavailable."""
        client = await self.client()
        try:
            await client.start_workflow(
                "Task",
                run,
                id=names.task_workflow(run.task_id),
                task_queue=names.ORCHESTRATOR_QUEUE,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                static_summary=f"{run.name} of {run.owner}"[:200],
                priority=ORDINARY,
                search_attributes=task_attributes(run.pool, run.owner, run.state.value),
                rpc_timeout=_DEADLINE,
            )
        except WorkflowAlreadyStartedError:
            return
        except RPCError as error:
            raise _unavailable(error) from None

    async def _went_on(self, client: Client, run: ExperimentRun) -> bool:
        """Whether the experiment was continued as often as this already."""
        handle = client.get_workflow_handle(names.experiment_workflow(run.experiment_id))
        try:
            memo = await (await handle.describe(rpc_timeout=_DEADLINE)).memo()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:  # its history is older than Temporal keeps them
                return False
            raise _unavailable(error) from None
        return int(memo.get("continuation", 0)) >= run.continuation

    async def _check_is_ours(self, client: Client, run: ExperimentRun) -> None:
        """A namespace that another cluster used before has workflows with our ids: say so, rather than never run."""
        workflow_id = names.experiment_workflow(run.experiment_id)
        memo = await (await client.get_workflow_handle(workflow_id).describe()).memo()
        if memo.get("job_id") != run.job_id:
            raise FailedPrecondition(
                f"Temporal's namespace {self._connection.namespace!r} has a {workflow_id} of another cluster: "
                "give this cluster a namespace of its own"
            )

    async def ensure_pool(self, run: PoolRun) -> None:
        """Start a pool's workflow unless it runs. Raises: Unavailable."""
        await self._ensure(
            "ResourcePool",
            names.pool_workflow(run.name),
            run,
            f"scheduler of resource pool “{run.name}”",
            memo={"created_at": str(run.created_at)},
            priority=FIRST,
            task_timeout=STEP_LIMIT,
        )

    async def start_agent(self, run: AgentRun) -> None:
        """Start an agent's workflow unless it runs. Raises: Unavailable."""
        await self._ensure("Agent", names.agent_workflow(run.agent_id), run, f"agent “{run.agent_id}”")

    async def ensure_autoscaler(self, run: AutoscalerRun) -> None:
        """Have a pool's nodes come from its provider, from now on. Raises: Unavailable."""
        await self._ensure(
            "Nodes",
            names.autoscaler_workflow(run.pool),
            run,
            f"nodes of resource pool “{run.pool}”",
            start_signal="configure",
            start_signal_args=[ProviderChange(provider=run.provider)],
            priority=FIRST,
            task_timeout=STEP_LIMIT,
        )

    async def nodes(self, pool: str) -> AutoscalerRun | None:
        """The nodes that were launched for a pool; None if it has no provider. Raises: Unavailable."""
        handle = (await self.client()).get_workflow_handle(names.autoscaler_workflow(pool))
        late = f"the nodes of pool {pool!r} are not known: does an orchestrator run?"
        with contextlib.suppress(_NoWorkflow), _translated(late):
            return cast(
                "AutoscalerRun",
                await handle.query("snapshot", result_type=AutoscalerRun, rpc_timeout=_QUERY_DEADLINE),  # pyright: ignore[reportUnknownMemberType]
            )
        return None

    async def end_pool(self, run: PoolRun) -> None:
        """End the workflow of a pool that was removed, which nobody uses any more; not that of one made since.

        Raises: Unavailable.
        """
        handle = (await self.client()).get_workflow_handle(names.pool_workflow(run.name))
        try:
            found = await handle.describe(rpc_timeout=_DEADLINE)
            if (await found.memo()).get("created_at") == str(run.created_at):
                await handle.terminate(reason="the resource pool was removed", rpc_timeout=_DEADLINE)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise _unavailable(error) from None

    async def pool(self, name: str) -> PoolRun:
        """Agents, queue and grants of a pool, at this moment; of the caller and others, so not to be changed.

        Raises: Unavailable, also while no orchestrator runs.
        """
        return await self._pools.send(name, None)

    async def _read_pool(self, name: str, asked: Sequence[None]) -> Sequence[PoolRun]:
        """For all who asked meanwhile: a large pool has megabytes, and its page is open at many desks."""
        client = await self.client()
        handle = client.get_workflow_handle(names.pool_workflow(name))
        with _translated(f"pool {name!r} does not answer: do Temporal and an orchestrator run?"):
            raw: RawValue = await handle.query("snapshot", result_type=RawValue, rpc_timeout=_QUERY_DEADLINE)  # pyright: ignore[reportUnknownMemberType]
        # in a thread: all other requests would wait while it is read
        read = client.data_converter.payload_converter.from_payload
        return [await asyncio.to_thread(read, raw.payload, PoolRun)] * len(asked)

    async def move_job(self, pool: str, move: JobMove) -> Claim:
        """Place a job before or behind another one; returns what it claims from then on.

        Raises: FailedPrecondition, Unavailable.
        """
        with _translated(f"pool {pool!r} does not answer: do Temporal and an orchestrator run?"):
            return await self._update(names.pool_workflow(pool), "move_job", move, result_type=Claim)

    async def command(self, experiment_id: int, command: Command) -> CommandResult | None:
        """Pause, activate, cancel or kill an experiment. None if its workflow is closed.

        Raises: FailedPrecondition, Unavailable.
        """
        result = await self._command(experiment_id, command)
        if result is None:
            await self._starts(experiment_id)
            result = await self._command(experiment_id, command)  # one beside this may have started it
        return result

    async def _starts(self, experiment_id: int) -> bool:
        return self.start_held is not None and await self.start_held(experiment_id)

    async def _command(self, experiment_id: int, command: Command) -> CommandResult | None:
        workflow_id = names.experiment_workflow(experiment_id)
        with contextlib.suppress(_NoWorkflow), _translated(_LATE.format(experiment_id)):
            return await self._update(workflow_id, "command", command, result_type=CommandResult)
        return None

    async def kill_trial(self, trial_id: int) -> TrialState | None:
        """End one trial; its state then. None if its workflow is closed, or does not run yet. Raises: Unavailable."""
        late = f"trial {trial_id} does not answer: do Temporal and an orchestrator run?"
        with contextlib.suppress(_NoWorkflow), _translated(late):
            return await self._update(names.trial_workflow(trial_id), "kill", result_type=TrialState)
        return None

    async def serve_node(self, agent_id: str, order: NodeService) -> None:
        """Have a node of an agent's cluster put in or out of service.

        Raises: FailedPrecondition, which says why it could not be done; Unavailable.
        """
        with _translated(f"agent {agent_id!r} does not answer: do Temporal and an orchestrator run?"):
            await self._update(names.agent_workflow(agent_id), "serve_node", order)

    async def serve_namespace(self, agent_id: str, order: NamespaceOrder) -> NamespaceServed:
        """Have a namespace of an agent's cluster for a workspace.

        Raises: FailedPrecondition, which says why it could not be done; Unavailable.
        """
        with _translated(f"agent {agent_id!r} does not answer: do Temporal and an orchestrator run?"):
            workflow_id = names.agent_workflow(agent_id)
            return await self._update(workflow_id, "serve_namespace", order, result_type=NamespaceServed)

    async def remove_namespace(self, workflow_id: str, order: NamespaceRemovalOrder) -> None:
        """Have the namespace of a deleted workspace removed. Raises: Unavailable."""
        await self._ensure("NamespaceRemoval", workflow_id, order, f"namespace {order.namespace}")

    async def complete_operation(self, experiment_id: int, report: OperationReport) -> int | None:
        """Have the search decide what follows on a completed operation; returns when that is decided.

        Returns: the length of the trial's next operation; None: the record will say, or says.

        Raises: FailedPrecondition, Unavailable.
        """
        return await self._completions.complete(experiment_id, report)

    async def _complete_operations(self, experiment_id: int, message: OperationReports) -> OperationAnswers:
        answers = await self._update_search(experiment_id, "complete_operations", message, OperationAnswers)
        return cast("OperationAnswers", answers)

    async def amend(self, experiment_id: int, amendment: Amended) -> None:
        """Change a running search; returns when what follows is recorded. Raises: FailedPrecondition, Unavailable."""
        await self._update_search(experiment_id, "amend", amendment)

    async def steer(self, experiment_id: int, steered: Steered) -> None:
        """Steer one trial of a running search; returns when it is recorded. Raises: FailedPrecondition, Unavailable."""
        await self._update_search(experiment_id, "steer", steered)

    async def post_operations(self, experiment_id: int, posted: OperationsPosted) -> None:
        """Tell a custom search what its program decided. Raises: FailedPrecondition, Unavailable."""
        await self._update_search(experiment_id, "post_operations", posted)

    async def _update_search(
        self, experiment_id: int, update: str, message: Any, answer: type | None = None, *, is_last: bool = False
    ) -> Any:
        workflow_id = names.experiment_workflow(experiment_id)
        try:
            with _translated(_LATE.format(experiment_id)):
                return await self._update(workflow_id, update, message, result_type=answer)
        except _NoWorkflow:
            if not is_last and await self._starts(experiment_id):
                return await self._update_search(experiment_id, update, message, answer, is_last=True)
            raise FailedPrecondition(f"experiment {experiment_id} is over: its search takes nothing more") from None

    async def _update(self, workflow_id: str, update: str, *arguments: Any, result_type: type | None = None) -> Any:
        """To be translated: see `_translated`."""
        updates = self._updates_over(await self.client())
        return await updates.send(workflow_id, update, *arguments, within=_DEADLINE, result_type=result_type)

    def _updates_over(self, client: Client) -> Updates:
        if self._updates is None:
            self._updates = Updates(client)
        return self._updates

    async def pass_reports(self, workflow_id: str, reports: Sequence[TrialReport]) -> None:
        """Send an experiment's workflow what its trials report; nothing if it is closed.

        Raises: Unavailable; what writing the record of the answer raises.
        """
        client = await self.client()
        if self._reports is None:
            self._reports = TrialReports(client, self._updates_over(client), self._records)
        try:
            await self._reports.send_together(workflow_id, reports)
        except RPCError as error:
            raise _unavailable(error) from None

    async def collect_checkpoints(self, order: CleanupOrder) -> None:
        """Have the checkpoints of an experiment collected; one that is under way looks again. Raises: Unavailable."""
        experiment_id = order.experiment_id
        await self._start_cleanup(
            "CheckpointGC", names.gc_workflow(experiment_id), order, f"experiment {experiment_id}", signal="collect"
        )

    async def delete_experiment(self, order: CleanupOrder) -> None:
        """Have an experiment deleted; again, if it fails now. Raises: Unavailable."""
        workflow_id = names.deletion_workflow(order.experiment_id)
        summary = f"experiment {order.experiment_id}"
        await self._start_cleanup("ExperimentDeletion", workflow_id, order, summary, signal="delete")

    async def remove_files(self, workflow_id: str, order: FileRemovalOrder) -> None:
        """Have single files removed from storage. Raises: Unavailable."""
        await self._start_cleanup("FileRemoval", workflow_id, order, "files of checkpoints, or of TensorBoard")

    async def start_import(self, order: ImportOrder) -> None:
        """Have another cluster's database imported; nothing if it was begun before. Raises: Unavailable."""
        workflow_id = names.import_workflow(order.import_id)
        await self._ensure("Import", workflow_id, order, f"import {order.import_id}")

    async def start_campaign_run(self, workflow_id: str, order: CampaignOrder) -> None:
        """Start the workflow of a recorded run of a campaign; nothing if it was started before. Raises: Unavailable."""
        client = await self.client()
        try:
            await client.start_workflow(
                "CampaignRun",
                order,
                id=workflow_id,
                task_queue=names.ORCHESTRATOR_QUEUE,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                static_summary=f"run {order.run_id} of campaign {order.campaign_id}",
                priority=ORDINARY,
                rpc_timeout=_DEADLINE,
            )
        except WorkflowAlreadyStartedError:
            return
        except RPCError as error:
            raise _unavailable(error) from None

    async def put_schedule(self, schedule: CampaignSchedule) -> None:
        """Have Temporal's schedule of a campaign as it is wanted, or none. Raises: Unavailable."""
        try:
            await schedules.put(await self.client(), schedule, _DEADLINE)
        except RPCError as error:
            raise _unavailable(error) from None

    async def backfill(self, order: BackfillOrder) -> None:
        """Have runs of a campaign started for past times of its schedule. Raises: Unavailable."""
        try:
            await schedules.backfill(await self.client(), order, _DEADLINE)
        except RPCError as error:
            raise _unavailable(error) from None

    async def _start_cleanup(
        self,
        workflow: str,
        workflow_id: str,
        order: CleanupOrder | FileRemovalOrder,
        summary: str,
        signal: str | None = None,
    ) -> None:
        order = order.model_copy(update={"timing": self._timing})
        await self._ensure(workflow, workflow_id, order, summary, start_signal=signal)

    async def _ensure(self, workflow: str, workflow_id: str, run: Any, summary: str, **further: Any) -> None:
        """Start a workflow unless it runs. Raises: Unavailable."""
        client = await self.client()
        try:
            await client.start_workflow(
                workflow,
                run,
                id=workflow_id,
                task_queue=names.ORCHESTRATOR_QUEUE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                static_summary=summary,
                rpc_timeout=_DEADLINE,
                **further,
            )
        except RPCError as error:
            raise _unavailable(error) from None

    async def deliver_webhook(self, order: DeliveryOrder) -> None:
        """Have an event delivered; nothing if that was ordered before. Raises: Unavailable."""
        client = await self.client()
        try:
            await client.start_workflow(
                "WebhookDelivery",
                order.model_copy(update={"timing": self._timing}),
                id=names.delivery_workflow(order.delivery_id),
                task_queue=names.ORCHESTRATOR_QUEUE,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                static_summary=f"delivery {order.delivery_id}",
                rpc_timeout=_DEADLINE,
            )
        except WorkflowAlreadyStartedError:
            return  # it was sent before, and that was not noted
        except RPCError as error:
            raise _unavailable(error) from None

    async def signal(self, workflow_id: str, name: str, payload: Any) -> None:
        """Send a signal; nothing if the workflow is closed. Raises: Unavailable."""
        handle = (await self.client()).get_workflow_handle(workflow_id)
        try:
            if payload is None:
                await handle.signal(name, rpc_timeout=_DEADLINE)
            else:
                await handle.signal(name, payload, rpc_timeout=_DEADLINE)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise _unavailable(error) from None


def _refused(error: WorkflowUpdateFailedError) -> FailedPrecondition:
    cause = error.cause
    return FailedPrecondition(cause.message if isinstance(cause, ApplicationError) else str(cause))


def _unavailable(error: RPCError) -> Unavailable:
    kind = _NoWorkflow if error.status is RPCStatusCode.NOT_FOUND else Unavailable
    if error.status is RPCStatusCode.INVALID_ARGUMENT:
        how = ": `python -m workers.search_attributes` registers what is missing"
        is_attribute = "search attribute" in error.message.lower()
        return Unavailable(f"Temporal refuses this: {error.message}{how if is_attribute else ''}")
    return kind(f"Temporal does not answer ({error.status.name}): try again")


@contextlib.contextmanager
def _translated(late: str) -> Generator[None]:
    """Around an update or a query of a workflow. `late`: what the caller reads when no answer comes in time.

    Raises: FailedPrecondition, as the workflow refused an update; _NoWorkflow; Unavailable.
    """
    try:
        yield
    except WorkflowUpdateFailedError as error:
        raise _refused(error) from None
    except WorkflowUpdateRPCTimeoutOrCancelledError:
        raise Unavailable(late) from None
    except RPCError as error:
        if error.status in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED):
            raise Unavailable(late) from None
        raise _unavailable(error) from None
