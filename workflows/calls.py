"""The activities as typed stubs. Workflows call these and never import `activities/`.

A test holds each stub against the activity of the same name that the workers register.
"""

from __future__ import annotations

from temporalio import activity

from workflows.messages import (
    AllocationFacts,
    AllocationRef,
    BeginCampaignRun,
    CampaignRunBegun,
    ClaimedCheckpoints,
    CleanupOrder,
    CloseAllocation,
    ContainerEnd,
    ContainerRef,
    CreatedTrials,
    DeletionFailed,
    DeliveryAttempt,
    DeliveryOutcome,
    ErasedExperiment,
    ImportOrder,
    ImportOutcome,
    ImportPlan,
    ImportStep,
    JobsAsked,
    JobsEnded,
    KillContainer,
    NamespaceOrder,
    NamespaceRemovalOrder,
    NamespaceServed,
    NodeServed,
    NodeService,
    OpenAllocation,
    Presence,
    ProviderCall,
    ProviderOutcome,
    RecordAgent,
    RecordCampaignRun,
    RecordExperiment,
    RecordTask,
    RecordTrial,
    RemovedFiles,
    RemoveFiles,
    RunContainer,
    StepAsked,
    StepEnd,
    StepsFound,
    StepSought,
    TaskNote,
    TaskUse,
)
from workflows.searchers.study import Suggestion, SuggestOrder


@activity.defn
async def record_experiment(record: RecordExperiment) -> CreatedTrials:
    """Write an experiment's state, decisions, new trials and the standings of the others."""
    raise NotImplementedError


@activity.defn
def suggest(order: SuggestOrder) -> Suggestion:
    """Have a sampler outside of the search choose a point."""
    raise NotImplementedError


@activity.defn
async def record_trial(record: RecordTrial) -> None:
    """Write a trial's state."""
    raise NotImplementedError


@activity.defn
def record_task(record: RecordTask) -> None:
    """Write the state of a task that is no trial."""
    raise NotImplementedError


@activity.defn
def task_use(ref: AllocationRef) -> TaskUse:
    """How long the task of an allocation has not been used."""
    raise NotImplementedError


@activity.defn
def note_task(note: TaskNote) -> None:
    """Write a line into a task's log."""
    raise NotImplementedError


@activity.defn
def open_allocation(order: OpenAllocation) -> None:
    """Record an allocation that got its slots."""
    raise NotImplementedError


@activity.defn
def request_preemption(ref: AllocationRef) -> AllocationFacts:
    """Make the preemption visible to the harness; answers whether the harness is there to see it."""
    raise NotImplementedError


@activity.defn
async def close_allocation(order: CloseAllocation) -> AllocationFacts:
    """Record the end of an allocation; answers what the harness said while it lived."""
    raise NotImplementedError


@activity.defn
def ended_jobs(asked: JobsAsked) -> JobsEnded:
    """Which of these jobs have ended."""
    raise NotImplementedError


@activity.defn
def record_agent(record: RecordAgent) -> None:
    """Write what is known of an agent."""
    raise NotImplementedError


@activity.defn
async def run_container(order: RunContainer) -> ContainerEnd:
    """Start or attach to a container and wait for its end. Runs on the agent's own queue."""
    raise NotImplementedError


@activity.defn
async def kill_container(order: KillContainer) -> None:
    """End a container. Runs on the agent's own queue."""
    raise NotImplementedError


@activity.defn
async def drain_container(ref: ContainerRef) -> bool:
    """Wait until an ended container's output is delivered. Runs on the agent's own queue."""
    raise NotImplementedError


@activity.defn
async def serve_node(order: NodeService) -> NodeServed:
    """Put a node of an agent's cluster in or out of service. Runs on the agent's own queue."""
    raise NotImplementedError


@activity.defn
async def serve_namespace(order: NamespaceOrder) -> NamespaceServed:
    """Have a namespace of an agent's cluster for a workspace. Runs on the agent's own queue."""
    raise NotImplementedError


@activity.defn
async def remove_namespace(order: NamespaceRemovalOrder) -> NamespaceServed:
    """Remove a workspace's own namespace of an agent's cluster. Runs on the agent's own queue."""
    raise NotImplementedError


@activity.defn
async def presence(order: Presence) -> None:
    """Heartbeat until the agent leaves. Runs on the agent's own queue."""
    raise NotImplementedError


@activity.defn
def claim_checkpoints(order: CleanupOrder) -> ClaimedCheckpoints:
    """Choose the next checkpoints to remove; none: all is done."""
    raise NotImplementedError


@activity.defn
async def remove_files(order: RemoveFiles) -> RemovedFiles:
    """Remove files from a checkpoint storage. Runs on an agent that reaches it."""
    raise NotImplementedError


@activity.defn
def mark_deleted(removed: RemovedFiles) -> None:
    """Record that the files of checkpoints are gone."""
    raise NotImplementedError


@activity.defn
def erase_experiment(order: CleanupOrder) -> ErasedExperiment:
    """Delete an experiment's records: metrics and logs first, its row last."""
    raise NotImplementedError


@activity.defn
def note_deletion_failed(failed: DeletionFailed) -> None:
    """Record why an experiment could not be deleted."""
    raise NotImplementedError


@activity.defn
async def run_provider(call: ProviderCall) -> ProviderOutcome:
    """Run the command by which a provider launches or terminates a node. Done again, it finds what it did before."""
    raise NotImplementedError


@activity.defn
def forget_agent(agent_id: str) -> None:
    """Remove the record of an agent whose host is gone for good."""
    raise NotImplementedError


@activity.defn
async def deliver_webhook(attempt: DeliveryAttempt) -> DeliveryOutcome:
    """Tell a webhook of an event once, and record how that went."""
    raise NotImplementedError


@activity.defn
def begin_import(order: ImportOrder) -> ImportPlan:
    """Look at the other database, refuse what can't be imported, and say what there is to do."""
    raise NotImplementedError


@activity.defn
def import_records(step: ImportStep) -> None:
    """Bring the records of one kind over, or hold them against their source. Done again, it goes on."""
    raise NotImplementedError


@activity.defn
def end_import(outcome: ImportOutcome) -> None:
    """Record how an import ended, and forget the address of its source."""
    raise NotImplementedError


@activity.defn
def begin_campaign_run(order: BeginCampaignRun) -> CampaignRunBegun:
    """Record a run of a campaign that begins, or find it."""
    raise NotImplementedError


@activity.defn
def record_campaign_run(record: RecordCampaignRun) -> None:
    """Write what a run decided, and order the launches that follow."""
    raise NotImplementedError


@activity.defn
def find_steps(sought: StepSought) -> StepsFound:
    """Look for earlier runs of a campaign that have done what steps do."""
    raise NotImplementedError


@activity.defn
def step_end(asked: StepAsked) -> StepEnd:
    """What the experiment or the task of a step came to."""
    raise NotImplementedError
