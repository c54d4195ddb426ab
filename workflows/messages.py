"""Every model that crosses Temporal: workflow inputs and states, signals, updates, activity inputs and results.

New fields need a default: histories of earlier releases are replayed with today's models.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, fields, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidatorFunctionWrapHandler,
    field_serializer,
    field_validator,
    model_serializer,
)

from workflows.campaigns.definition import Definition, Schedule, StepKind
from workflows.campaigns.plan import RunState, StepOutcome
from workflows.config.resources import Closeness
from workflows.lifecycle.allocation import AllocationEnd, ContainerResult
from workflows.lifecycle.budget import Clock, Meter
from workflows.lifecycle.experiment import ExperimentState
from workflows.lifecycle.gates import GateState
from workflows.lifecycle.imports import ImportMode, Kind
from workflows.lifecycle.needs import Need
from workflows.lifecycle.remedies import FailurePolicy
from workflows.lifecycle.task import TaskKind, TaskState
from workflows.lifecycle.trial import TrialState
from workflows.scheduling.autoscaler import Demand, Node
from workflows.scheduling.model import AgentSlots, Claim, Placement, PoolSnapshot, Request
from workflows.scheduling.provider import Provider
from workflows.scheduling.settings import PoolSettings
from workflows.searchers import Decision, Event, Search
from workflows.searchers.base import MANY, by_kind
from workflows.searchers.custom import QueuedEvent
from workflows.searchers.inheritance import Inheritance


class ErrorType(StrEnum):
    """Types of the application errors that workflows, activities and the API exchange."""

    COMMAND_REFUSED = "CommandRefused"
    OPERATION_REFUSED = "OperationRefused"
    AMENDMENT_REFUSED = "AmendmentRefused"
    SAMPLER_UNUSABLE = "SamplerUnusable"
    DETACHED = "Detached"
    BAD_ANSWER = "BadAnswer"
    IMPORT_ENDED = "ImportEnded"


class Timing(BaseModel):
    """Durations that decide, in seconds. They travel with the work, so that tests and sites can set them."""

    restart_backoff_s: float = 1.0
    restart_backoff_cap_s: float = 300.0
    preemption_timeout_s: float = 3600.0
    kill_repeat_s: float = 30.0
    container_heartbeat_s: float = 60.0  # of an agent that is killed, the next one says so itself
    invalid_hp_grace_s: float = 10.0
    removal_pauses_s: tuple[float, ...] = (1.0, 10.0, 60.0, 600.0)  # between tries to remove files
    delivery_pauses_s: tuple[float, ...] = (1.0, 10.0, 60.0, 600.0, 3600.0)  # between tries to reach a webhook
    log_wait_s: float = 600.0  # for output that could not be delivered, where a log policy may act on it


# -- experiment ----------------------------------------------------------------------------------------------------


class TrialTemplate(BaseModel):
    """What all trials of an experiment have in common."""

    pool: str
    slots: int
    max_restarts: int
    claim: Claim = Claim()  # as it was when the experiment began; the pool knows of later changes
    user: str = ""  # whose quota counts
    workspace: str = ""
    is_single_node: bool = False
    closeness: Closeness | None = None
    heeds_logs: bool = False  # a log policy has an action: an end is judged when all output was read
    failure_policies: list[FailurePolicy] = Field(default_factory=list[FailurePolicy])
    source_checkpoint: str | None = None  # every trial starts from it, unless the search says another one
    timing: Timing = Field(default_factory=Timing)


@dataclass(slots=True)
class TrialEntry:
    """What the experiment knows of one of its trials.

    A dataclass, because there are as many as trials and a model takes several times the memory.
    """

    trial_id: int
    is_open: bool = True
    is_waiting: bool = False  # for its workflow to be started
    is_heir: bool = False  # its results are taken from another experiment's trial: it does not run
    last_step: int = -1  # of the newest validation that the search received
    reached: float | None = None  # how far it came, if it asks for no operations
    metric: Any = None  # that it reported there
    run_id: int = 0  # of its last run, when it is started again
    revision: int = 0  # of its last record, when it is started again
    task_id: str = ""  # when it is started again, if it is no longer its first one
    restarts: int = 0  # spent, when it is started again on a restored cluster

    @model_serializer(mode="wrap")
    def _only_changes(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # There is one of these for each trial, and all that is left of most of them is their number.
        return {key: value for key, value in handler(self).items() if key == "trial_id" or value != _NEW_ENTRY[key]}

    def key(self) -> Hashable:
        """The same for all that differ by their number only."""
        return (
            self.is_open, self.is_waiting, self.is_heir, self.last_step, self.reached, repr(self.metric),
            self.run_id, self.revision, self.task_id, self.restarts,
        )  # fmt: skip


_NEW_ENTRY = {each.name: each.default for each in fields(TrialEntry) if each.name != "trial_id"}


class EntryColumns(BaseModel):
    """Many entries. They differ little but for their numbers: one of each kind is there whole."""

    model_config = ConfigDict(ser_json_inf_nan="strings")

    ids: list[str]
    trial_ids: list[int]
    kinds: list[TrialEntry]
    kind_of: list[int]


class ExperimentRun(BaseModel):
    """Input and state of the Experiment workflow: all of it, so that it can continue as new."""

    # a search holds NaN for trials that failed; pydantic takes what is said of that from the outermost model
    model_config = ConfigDict(ser_json_inf_nan="strings")

    experiment_id: int
    name: str
    owner: str
    job_id: str = ""
    by_records: bool = False  # its trials are started by the activity that writes its records, and not as children
    orders_by_records: bool = False  # the same of what it wants of them
    state: ExperimentState
    search: Search
    template: TrialTemplate
    is_started: bool = False
    is_recorded: bool = False  # its row has this state, the first decision and the first trials already
    is_ordered: bool = False  # its trials have heard what is wanted of them, as a run before this one ordered
    moves: int = 0  # between pools, as numbered by the records
    moved_because: str = ""  # the latest time
    trials: dict[str, TrialEntry] = Field(default_factory=dict[str, TrialEntry])
    retired: int = 0  # trials that ran, are over, and are not among `trials` any more
    request_ids: list[str] = Field(default_factory=list[str])  # of a state that was shortened: see `workflows.large`
    inbox: list[Event] = Field(default_factory=list[Event])
    inheritance: Inheritance | None = None  # of a fork
    past: list[Event] | None = None  # of one that resumes after its end: events still to be replayed to its search
    continuation: int = 0  # how often it went on after its end
    error: str = ""
    progress: float = 0.0  # as last recorded
    revision: int = 0  # counts records, see RecordExperiment
    order_count: int = 0  # counts orders to trials, see TrialOrders
    budget: Meter | None = None
    clock: Clock = Field(default_factory=Clock)  # of its budget
    gates: dict[int, GateState | None] = Field(default_factory=dict[int, GateState | None])  # rungs to be approved
    numbers: list[int] = Field(default_factory=list[int])  # reserved for trials that the search will ask for

    @field_serializer("trials", mode="wrap")
    def _write_columns(self, trials: dict[str, TrialEntry], handler: SerializerFunctionWrapHandler) -> Any:
        if len(trials) < MANY:
            return handler(trials)
        kinds, kind_of = by_kind(trials.values(), TrialEntry.key)
        trial_ids = [each.trial_id for each in trials.values()]
        columns = EntryColumns(ids=list(trials), trial_ids=trial_ids, kinds=kinds, kind_of=kind_of)
        return columns.model_dump(mode="json")

    @field_validator("trials", mode="wrap")
    @classmethod
    def _read_columns(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> dict[str, TrialEntry]:
        if not (isinstance(value, dict) and "kind_of" in value):
            return handler(value)
        columns = EntryColumns.model_validate(value)
        found: dict[str, TrialEntry] = {}
        for request_id, trial_id, kind in zip(columns.ids, columns.trial_ids, columns.kind_of, strict=True):
            found[request_id] = replace(columns.kinds[kind], trial_id=trial_id)
        return found


class PoolMove(BaseModel):
    """An experiment goes on in another pool. `number`: counts its moves from 1, so that a repeat moves nothing."""

    number: int
    pool: str
    reason: str  # that its trials are given when they are asked to leave


class Hold(BaseModel):
    """An experiment is to pause, as a budget that bounds it is spent. `at`: one that was activated later goes on."""

    at: datetime


class GateDecided(BaseModel):
    """What was decided about a gate. `rung`: of a promotion; None: the budget may be overrun."""

    rung: int | None = None
    state: GateState


class ValidationReport(BaseModel):
    """A validation that the searcher decides on. Reports at or below the last step of a trial are repeats.

    `reached`: of a trial whose harness asks for no operations, though the search hands out lengths: how far it came, in
    units of max_length.
    """

    request_id: str
    steps_completed: int
    metrics: dict[str, Any]
    reached: float | None = None


class ProgressReport(BaseModel):
    """The coalesced progress of one trial, in the units of its searcher generation."""

    request_id: str
    progress: float


class TrialEnded(BaseModel):
    """A trial tells its experiment that it ended, and the reason when the searcher did not close it itself.

    `recorded`: the revision of the experiment's record by then, which may have come with an answer of its workflow.
    """

    request_id: str
    trial_id: int
    state: TrialState
    exit_reason: str | None = None
    recorded: int = 0


class TrialReport(BaseModel):
    """What a trial reports to its experiment: one of these."""

    validation_reported: ValidationReport | None = None
    progress_reported: ProgressReport | None = None
    trial_ended: TrialEnded | None = None


class TrialReportBatch(BaseModel):
    """What trials report, in this order. `writes`, `recorded`: as of `OperationReports`.

    `starts`: the sender also starts the trials that a record has, and `recorded` is of records whose trials it started.
    `is_busy`: an activity had better start them, as many trials report.
    """

    reports: list[TrialReport]
    writes: bool = False
    starts: bool = False
    is_busy: bool = False
    recorded: int = 0


class ReportAnswer(BaseModel):
    """What follows on reports. `record`: as of `OperationAnswers`."""

    record: RecordExperiment | None = None


class OperationReport(BaseModel):
    """The completion of a searcher operation (older generation)."""

    request_id: str
    length: int
    metric: Any


class OperationReports(BaseModel):
    """Completions that come together: each is decided by itself, in this order.

    Attributes:
        reports: What was completed.
        once_decided: Answer when all are decided and thus in the history; else when they are recorded.
        writes: The sender writes the record of what follows, if the answer has it.
        recorded: The newest revision that this sender has written so.
    """

    reports: list[OperationReport]
    once_decided: bool = False
    writes: bool = False
    recorded: int = 0


class OperationAnswers(BaseModel):
    """What became of each of the reports.

    Attributes:
        refusals: Why it was refused; None if it was not.
        lengths: The length to train to next, where answered `once_decided`. None: there is none, or not yet.
        record: What the sender is to write before it acts on the answer. None: the workflow has it written.
    """

    refusals: list[str | None]
    lengths: list[int | None] = Field(default_factory=list[int | None])
    record: RecordExperiment | None = None


class CommandResult(BaseModel):
    """The experiment's state after a command."""

    state: ExperimentState


# -- trial ---------------------------------------------------------------------------------------------------------


class TrialOrders(BaseModel):
    """What the experiment wants of a trial at present. The latest one counts: signals may overtake each other."""

    sequence: int = 0  # grows from order to order of one experiment

    state: TrialState = TrialState.ACTIVE
    length: int | None = None  # open searcher operation; None: there is none
    needs_length: bool = False  # operations generation: the trial runs only while an operation is open
    is_closed: bool = False  # the searcher wants nothing more of it
    is_stopped: bool = False  # the searcher ended it while it trains: leave gracefully
    pool: str = ""  # where to go on, if the experiment was moved, and why
    pool_reason: str = ""


class TrialRun(BaseModel):
    """Input and state of the Trial workflow."""

    experiment_id: int
    trial_id: int
    request_id: str
    task_id: str
    experiment_name: str = ""
    owner: str = ""
    job_id: str = ""
    template: TrialTemplate
    orders: TrialOrders
    by_records: bool = False  # what it has to say goes with its records, and not by signals of its own
    is_asked: bool = False  # its pool was asked for the slots of its next run before it was started
    placements: tuple[Placement, ...] | None = None  # that the pool granted at once
    state: TrialState = TrialState.ACTIVE
    run_id: int = 0
    restarts: int = 0
    system_failures: int = 0
    done_length: int | None = None  # completed, though the newest orders may not know it yet
    excluded: dict[str, str] = Field(default_factory=dict[str, str])  # agents, and which log policy excluded them
    continued_after: int = 0  # run id: what log policies said of runs up to it is over and done with
    last_failure: str = ""  # a failure that the same code will have again
    same_failures: int = 0  # how often in a row
    attempts: dict[int, int] = Field(default_factory=dict[int, int])  # of failure policies, by their place
    factors: dict[str, float] = Field(default_factory=dict[str, float])  # of hyperparameters, by these
    pool: str = ""  # where these have it go on; empty: its experiment's
    slots: int = 0  # that these have it ask for; 0: its experiment's
    message: str = ""
    revision: int = 0


# -- other tasks ---------------------------------------------------------------------------------------------------


class TaskRun(BaseModel):
    """Input and state of the Task workflow: a command, a notebook and the like."""

    task_id: str
    kind: TaskKind
    name: str
    owner: str
    workspace: str
    job_id: str
    pool: str
    slots: int
    by_records: bool = False  # as in TrialRun
    claim: Claim = Claim()
    goes_on: bool = False  # interrupted, it is started again: it does then what it did before
    max_restarts: int = 0
    timing: Timing = Field(default_factory=Timing)
    state: TaskState = TaskState.ACTIVE
    run_id: int = 0
    restarts: int = 0
    system_failures: int = 0
    message: str = ""
    revision: int = 0
    newest_wish: int = 0  # the number of the latest, see TaskWish
    idle_timeout_s: float | None = None  # after so long without use it is ended
    max_lifetime_s: float | None = None  # after so long on its slots it is ended
    newest_limits: int = 0  # the number of those, see TaskLimits
    needs: list[Need] = Field(default_factory=list[Need])  # what it comes after
    ran_s: float = 0.0  # so long its earlier runs had their slots
    ended_because: str = ""  # it is ended for this, and not because a user wanted it
    lost: str = ""  # why nothing of what it did is left: it is only started to end


class TaskUse(BaseModel):
    """How long a task has not been used. None: it is not ready yet, so that nobody can."""

    idle_s: float | None = None


class TaskWish(BaseModel):
    """What a user wants of a task. `number` grows from wish to wish of one task: an earlier one is out of date."""

    number: int
    state: TaskState  # ACTIVE, STOPPING_PAUSED or STOPPING_CANCELED


class TaskLimits(BaseModel):
    """The limits of a task's time, changed while it waits or runs. Numbered as wishes are; None: without this limit."""

    number: int
    idle_timeout_s: float | None = None
    max_lifetime_s: float | None = None


class TaskNote(BaseModel):
    """A line for a task's log about its present run. `place` tells the lines about one run apart."""

    task_id: str
    allocation_id: str
    place: int
    line: str


class Assignment(BaseModel):
    """The pool grants an allocation its slots. A holder that has no such allocation any more gives them back."""

    allocation_id: str
    placements: tuple[Placement, ...]
    pool: str = ""


class SlotRequests(BaseModel):
    """Requests that come together, for holders that may be about to be started."""

    requests: list[Request]


class SlotGrants(BaseModel):
    """Those that got their slots at once. The others are queued: their holders receive a signal."""

    granted: list[Assignment] = Field(default_factory=list[Assignment])


class AllocationNotice(BaseModel):
    """The pool notifies a holder of a change of its allocation."""

    allocation_id: str
    agent_id: str = ""
    reason: str = ""  # of a refusal, why it has to leave, or for how long it has been silent


class AllocationNotices(BaseModel):
    """Several of them."""

    notices: list[AllocationNotice]


class LateMessage(BaseModel):
    """A message of a pool to a holder that is about to be started: it is sent until the holder is there."""

    signal: str
    holder: str
    allocation_id: str
    agent_id: str = ""
    reason: str = ""


# -- pool and agent ------------------------------------------------------------------------------------------------


class AgentService(BaseModel):
    """What of an agent is to be in service. Complete: it replaces all that an operator set before."""

    agent_id: str
    is_enabled: bool = True
    disabled_slots: tuple[int, ...] = ()
    is_draining: bool = False  # what runs on the rest may stay until it ends
    leave_at: datetime | None = None  # or until then, if it is draining with a grace
    broken_slots: tuple[int, ...] = ()  # whose devices are in error, as the agent says


class JobClaim(BaseModel):
    """What a job may ask of its pool. Complete: it replaces all that its owner, or an operator, set before."""

    job_id: str
    claim: Claim


class JobMove(BaseModel):
    """A job is to be placed just before or behind another one. Both as the records know them."""

    job: JobClaim
    anchor: JobClaim
    is_ahead: bool


#: How many claims a pool keeps before it looks which of their jobs have ended.
MOST_CLAIMS = 1000


class PoolRun(BaseModel):
    """Input and state of the ResourcePool workflow. Name and time of creation are the pool's identity."""

    name: str
    created_at: datetime | None = None
    snapshot: PoolSnapshot = Field(default_factory=PoolSnapshot)
    lost: dict[str, AgentSlots] = Field(default_factory=dict[str, AgentSlots])  # agents that may come back, latest last
    services: dict[str, AgentService] = Field(default_factory=dict[str, AgentService])  # what operators said of agents
    claims: dict[str, Claim] = Field(default_factory=dict[str, Claim])  # of jobs where they changed
    most_claims: int = MOST_CLAIMS  # beyond this many, those of jobs that ended are forgotten
    silent: list[str] = Field(default_factory=list[str])  # agents given up but for what could run nowhere else
    settings: PoolSettings = Field(default_factory=PoolSettings)
    former_provider: Provider | None = None  # that it has no more; its nodes are not gone yet
    early: dict[str, datetime] = Field(default_factory=dict[str, datetime])  # allocations asked for by `ask`, and when
    late: list[LateMessage] = Field(default_factory=list[LateMessage])


class ProviderChange(BaseModel):
    """Where the nodes of a pool come from, from now on; None: from nowhere, and those that are there go when idle."""

    provider: Provider | None = None


class AutoscalerRun(BaseModel):
    """Input and state of the Autoscaler workflow."""

    pool: str
    provider: Provider
    is_retiring: bool = False  # the pool has no provider any more
    nodes: dict[str, Node] = Field(default_factory=dict[str, Node])
    demand: Demand = Demand()
    is_told: bool = False  # of the pool's demand, since the provider is known


class ProviderCall(BaseModel):
    """Run a provider's command for one node."""

    pool: str
    node_id: str
    command: str
    slots: int


class ProviderOutcome(BaseModel):
    """How a provider's command went; `problem` is empty if it did what it was to do."""

    problem: str = ""


class AgentRun(BaseModel):
    """Input and state of the Agent workflow."""

    agent_id: str
    pool: str
    slots: AgentSlots
    address: str = ""
    heartbeat_s: float = 5.0
    reconnect_wait_s: float = 25.0
    is_connected: bool = False
    is_lost: bool = False
    revision: int = 0


NodeState = Literal["in", "drain", "out"]
"""Of a node of an agent's cluster: `drain` keeps new containers of the agent away; with `out` the others leave, too."""


class NodeService(BaseModel):
    """What operators want of a node."""

    node: str
    state: NodeState


class NodeServed(BaseModel):
    """Why that could not be done; empty: it is."""

    problem: str = ""


class NamespaceOrder(BaseModel):
    """A namespace of an agent's cluster that a workspace is to have.

    Attributes:
        workspace_id: Whose it is.
        workspace: Its name, of which the name of a namespace of its own is made.
        cluster_id: Of ours; the same.
        namespace: One that is there already; empty: the workspace's own one, which is made if it lacks.
        quota: Slots that all of its pods have together; None: what is there stays.
    """

    workspace_id: int
    workspace: str = ""
    cluster_id: str = ""
    namespace: str = ""
    quota: int | None = None


class NamespaceServed(BaseModel):
    """The namespace as it is now; or why that could not be done. `quota`: the smallest that holds there, in slots."""

    namespace: str = ""
    quota: int | None = None
    problem: str = ""


class NamespaceRemovalOrder(BaseModel):
    """A namespace of a workspace's own that goes with it."""

    agent_id: str
    workspace_id: int
    namespace: str


class AgentSeen(BaseModel):
    """An agent (re)joined: what it offers now."""

    agent_id: str
    pool: str
    slots: AgentSlots
    address: str = ""  # where containers of other hosts reach its own
    is_gone: bool = False  # for good: removed by an operator, or now in another pool


# -- activities ----------------------------------------------------------------------------------------------------


class NewTrial(BaseModel):
    """A trial to be recorded. `request_id` is its identity within the experiment; `number`: one reserved for it.

    `checkpoint` (a uuid) or the newest checkpoint of `parent` (a request id) is where it starts from. A trial that
    `inherits` another experiment's trial (its number) takes its metrics and its newest checkpoint over.
    """

    request_id: str
    seed: int
    hparams: dict[str, Any]
    length: int | None = None
    rung: int | None = None
    bracket: int | None = None
    checkpoint: str | None = None
    parent: str | None = None
    inherits: int | None = None
    is_paused: bool = False  # its experiment is
    number: int | None = None


class TrialPast(BaseModel):
    """What a trial was before its experiment continued: last run, last record, and the step of its last validation."""

    run_id: int
    revision: int
    last_step: int = -1
    task_id: str = ""  # that it goes on in; empty: in its first one


class CreatedTrials(BaseModel):
    """Ids of the recorded trials, in the order of :attr:`RecordExperiment.trials`.

    `pasts`: of those that existed before, by id. `has_checkpoints` (with a terminal state only): there is something
    that the retention policy may not keep. `numbers`: that were reserved.
    """

    trial_ids: list[int]
    numbers: list[int] = Field(default_factory=list[int])
    pasts: dict[int, TrialPast] = Field(default_factory=dict[int, TrialPast])
    has_checkpoints: bool = False


class TrialStanding(BaseModel):
    """Where a trial stands in the search, for the record. `ended_as`: it has ended without ever running."""

    trial_id: int
    ended_as: TrialState | None = None
    length: int | None = None
    is_closed: bool = False
    rung: int | None = None
    bracket: int | None = None


class TrialStart(BaseModel):
    """A trial whose workflow is to be started. `trial_id` 0: the record that it comes with creates it.

    `is_repeat`: another was to start it, and perhaps did. So it asks its pool itself, if it is started now.
    """

    trial_id: int = 0
    request_id: str
    task_id: str
    orders: TrialOrders
    run_id: int = 0
    restarts: int = 0
    revision: int = 0
    is_repeat: bool = False


class TrialStarts(BaseModel):
    """Trials of one experiment that are to be started, and what they have in common."""

    experiment_id: int
    name: str
    owner: str
    job_id: str
    template: TrialTemplate
    trials: list[TrialStart]


class TrialOrder(BaseModel):
    """What is sent to a trial once the record is written that says the same."""

    trial_id: int
    orders: TrialOrders


class RecordExperiment(BaseModel):
    """The experiment's state, its latest decisions and what they changed. Answers the numbers of the new trials.

    Keys are the experiment's id, the decisions' numbers and the trials' request ids: written twice is written once.
    `revision` grows from record to record of one workflow. A workflow task that is done again writes its records again;
    by then a later one may be written, which an earlier one must not undo.
    """

    experiment_id: int
    revision: int
    state: ExperimentState
    progress: float
    is_terminal: bool = False
    error: str = ""
    decisions: list[Decision] = Field(default_factory=list[Decision])
    trials: list[NewTrial] = Field(default_factory=list[NewTrial])
    standings: list[TrialStanding] = Field(default_factory=list[TrialStanding])
    queued: list[QueuedEvent] | None = None  # of a custom search: all that wait for its program; None: no change
    clock: Clock | None = None  # of its budget, if it has one
    notices: list[str] = Field(default_factory=list[str])  # of its budget, to be read behind the experiment's name
    asked: list[int] = Field(default_factory=list[int])  # rungs whose gates trials have come to
    starts: TrialStarts | None = None  # trials to be started once this is recorded
    orders: list[TrialOrder] = Field(default_factory=list[TrialOrder])  # to be sent once this is recorded
    reserves: int = 0  # numbers, for trials that follow


class RecordTrial(BaseModel):
    """A trial's state. An upsert keyed by the trial's id; `revision` as for experiments."""

    trial_id: int
    revision: int
    state: TrialState
    restarts: int
    is_terminal: bool = False
    message: str = ""
    allocation_id: str | None = None
    end: AllocationEnd | None = None
    next_run_at: datetime | None = None  # end of the back-off that it is in
    continued_after: int = 0  # as in TrialRun
    factors: dict[str, float] = Field(default_factory=dict[str, float])  # as in TrialRun
    experiment_id: int = 0  # of whom it is, if it is to learn of the end
    ended: TrialEnded | None = None


class RecordTask(BaseModel):
    """The state of a task that is no trial. An upsert keyed by its id; `revision` as for experiments."""

    task_id: str
    revision: int
    state: TaskState
    restarts: int = 0
    message: str = ""
    allocation_id: str = ""  # the latest one
    end: AllocationEnd | None = None  # of that


class OpenAllocation(BaseModel):
    """Record that an allocation got its slots, before its containers start."""

    allocation_id: str
    trial_id: int | None = None  # of a task that is a trial
    task_id: str
    run_id: int
    pool: str
    slots: int
    placements: tuple[Placement, ...]


class CloseAllocation(BaseModel):
    """Record that every container of an allocation ended; its token dies with it. Answers what the harness said."""

    allocation_id: str
    results: list[ContainerResult] = Field(default_factory=list[ContainerResult])
    releases_to: str = ""  # the pool that gets its slots back; empty: it was notified already


class AllocationFacts(BaseModel):
    """What the harness and the log said during an allocation, and what log policies made of the trial's whole log."""

    preemption_acked: bool = False
    preemption_sent: bool = False  # with the record of a pause, maybe, before the trial's workflow had its order
    early_exit: str | None = None
    is_ready: bool = False
    open_length: int | None = None  # of the searcher operation that the records show as open
    is_closed: bool = False  # the records show that the search wants nothing more of the trial
    has_reported: bool = True  # metrics, in any run
    last_error: str | None = None  # the last line of the exception that ended it, or of the last error in its output
    import_failure: str | None = None  # the same, if it tells of a failed import
    retries_canceled: str | None = None  # which log policy makes a failure final, and because of which line
    excluded: dict[str, str] = Field(default_factory=dict[str, str])  # agents, and which log policy excludes them


class AllocationRef(BaseModel):
    """Which allocation."""

    allocation_id: str
    reason: str = ""  # why it is to leave, if its pool wants it to


class RunContainer(BaseModel):
    """Start a container or attach to it, and wait for its end. No secrets: the agent fetches its order itself."""

    container_id: str
    allocation_id: str
    agent_id: str
    rank: int = 0


class KillContainer(BaseModel):
    """End a container: SIGTERM, then SIGKILL after `grace_s` seconds."""

    container_id: str
    grace_s: float = 5.0
    shows_stacks: bool = False  # first, what its threads are doing goes into its log


class ContainerRef(BaseModel):
    """Which container."""

    container_id: str


class ContainerEnd(BaseModel):
    """The end of a container, as `run_container` reports it."""

    result: ContainerResult
    ended_at: datetime
    is_drained: bool = True  # its output was delivered


class Presence(BaseModel):
    """Of an agent: to heartbeat as long as it lives; or to be waited for no more."""

    agent_id: str


class JobsAsked(BaseModel):
    """Which of these jobs have ended?"""

    job_ids: list[str]


class JobsEnded(BaseModel):
    """Those that have ended, or are gone."""

    job_ids: list[str]


class RecordAgent(BaseModel):
    """What the API shows of an agent. An upsert keyed by its id; `revision` as for experiments."""

    agent_id: str
    revision: int
    pool: str
    slots: AgentSlots
    address: str = ""
    is_connected: bool


# -- what is left of an experiment -----------------------------------------------------------------------------------


class CleanupOrder(BaseModel):
    """Whose checkpoints are to be collected. `everything`: the experiment is to be deleted."""

    experiment_id: int
    everything: bool = False
    timing: Timing = Field(default_factory=Timing)


class ClaimedCheckpoints(BaseModel):
    """Files that are to be removed now: `uuids` are of checkpoints, none if only TensorBoard files are left.

    `removal_id`: of the record that says where they are; empty if nothing is to be removed.
    """

    uuids: list[str] = Field(default_factory=list[str])
    pool: str = ""  # whose agents reach the storage
    removal_id: str = ""


class RemoveFiles(BaseModel):
    """Remove what a recorded removal names; of its checkpoints, those of `uuids`.

    What and where, with the keys of the storage, the agent that does it fetches from the API: histories hold no secret.
    """

    removal_id: str
    uuids: list[str] = Field(default_factory=list[str])


class FileRemovalOrder(BaseModel):
    """Which recorded removal agents of a pool are to carry out."""

    pool: str
    removal_id: str
    timing: Timing = Field(default_factory=Timing)


class RemovedFiles(BaseModel):
    """Which checkpoints have no files any more, and what held the others up."""

    removal_id: str
    uuids: list[str]
    problems: list[str] = Field(default_factory=list[str])


class ErasedExperiment(BaseModel):
    """`others`: experiments whose checkpoints nobody but the erased one may have needed."""

    others: list[int] = Field(default_factory=list[int])


class DeletionFailed(BaseModel):
    """An experiment could not be deleted, and why; it may be tried again."""

    experiment_id: int
    reason: str


# -- webhooks --------------------------------------------------------------------------------------------------------


class DeliveryOrder(BaseModel):
    """An event that a webhook is to receive, by its record."""

    delivery_id: str
    timing: Timing = Field(default_factory=Timing)


class DeliveryAttempt(BaseModel):
    """Try to deliver once. `number`: counted from 1; `is_last`: nobody tries again if it fails."""

    delivery_id: str
    number: int
    is_last: bool = False


class DeliveryOutcome(BaseModel):
    """How a try went. `is_over`: it was delivered, or another try could not do better; `told`: for operators."""

    is_delivered: bool
    is_over: bool
    told: str = ""


# -- imports ---------------------------------------------------------------------------------------------------------


class ImportOrder(BaseModel):
    """An import from another cluster's database. Its address is in the record, as it has a password."""

    import_id: int
    mode: ImportMode = ImportMode.PLAN


class ImportPlan(BaseModel):
    """The kinds of records that an import goes through, in order."""

    kinds: list[Kind] = []


class ImportStep(BaseModel):
    """One kind of record of an import."""

    import_id: int
    mode: ImportMode
    kind: Kind


class ImportOutcome(BaseModel):
    """How an import ended. `error` is for the user who asked for it; empty: all is done."""

    import_id: int
    error: str = ""


# -- campaigns -------------------------------------------------------------------------------------------------------


class CampaignState(BaseModel):
    """The state of a run of a campaign, when its workflow continues as new or is started again.

    Attributes:
        run_id: Of its record.
        number: Within its campaign.
        definition: In the version that it runs.
        context: Digest of the files that its steps run with.
        params: Its parameters.
        time: That it is for: of the schedule, otherwise when it began.
        is_fresh: Nothing is taken from earlier runs.
        state: What users want of it.
        newest_wish: The number of the wish that said so.
        revision: Of its newest record.
        outcomes: By step.
    """

    run_id: int
    number: int
    definition: Definition
    context: str = ""
    params: dict[str, Any] = Field(default_factory=dict[str, Any])
    time: datetime
    is_fresh: bool = False
    state: RunState = RunState.ACTIVE
    newest_wish: int = 0
    revision: int = 0
    outcomes: dict[str, StepOutcome]


class CampaignOrder(BaseModel):
    """A run of a campaign. `run_id`: of its record; 0: a schedule starts it, and it has none yet."""

    campaign_id: int
    run_id: int = 0
    state: CampaignState | None = None  # of one that goes on


class BeginCampaignRun(BaseModel):
    """Record a run that begins, or find it. `scheduled_at`: the time of the schedule that it is for."""

    campaign_id: int
    run_id: int = 0
    workflow_id: str
    scheduled_at: datetime | None = None


class CampaignRunBegun(BaseModel):
    """None: there is nothing to run, as the campaign is gone, or that time has had its run."""

    state: CampaignState | None = None


class StepLaunch(BaseModel):
    """A step to launch, by the API: an experiment, a task, or a version of a model."""

    step: str
    attempt: int
    kind: StepKind
    config: dict[str, Any]


class RecordCampaignRun(BaseModel):
    """What a run decided. `state`: None while it goes on; `is_canceling`: Temporal wants it to end, and no user."""

    run_id: int
    revision: int
    state: RunState | None = None
    message: str = ""
    is_canceling: bool = False
    outcomes: dict[str, StepOutcome] = Field(default_factory=dict[str, StepOutcome])
    launches: list[StepLaunch] = Field(default_factory=list[StepLaunch])


class StepSought(BaseModel):
    """Which earlier run of the campaign has done what these steps do, by the digests of their inputs?"""

    run_id: int
    digests: dict[str, str]


class StepsFound(BaseModel):
    """What of it can be taken, by step."""

    outcomes: dict[str, StepOutcome] = Field(default_factory=dict[str, StepOutcome])


class StepLaunched(BaseModel):
    """What became of an order to launch a step. `refused`: why nothing was launched."""

    step: str
    attempt: int
    experiment_id: int | None = None
    task_id: str | None = None
    outputs: dict[str, Any] | None = None  # of a registration, which is over then
    refused: str = ""


class StepEnded(BaseModel):
    """What a step had launched has ended."""

    step: str
    attempt: int


class StepAsked(BaseModel):
    """What did the experiment or the task come to that a step launched?"""

    run_id: int
    step: str
    attempt: int
    experiment_id: int | None = None
    task_id: str | None = None


class StepEnd(BaseModel):
    """It completed, or why it did not; and what it leaves for the steps after it."""

    is_completed: bool
    is_canceled: bool = False
    message: str = ""
    outputs: dict[str, Any] = Field(default_factory=dict[str, Any])


class CampaignWish(BaseModel):
    """What a user wants of a run. `number` grows from wish to wish: an earlier one is out of date."""

    number: int
    state: RunState


class CampaignSchedule(BaseModel):
    """The schedule of a campaign as Temporal is to have it; `schedule`: None: it is to have none.

    `revision` grows from change to change: an earlier one is out of date.
    """

    campaign_id: int
    name: str = ""
    revision: int = 0
    schedule: Schedule | None = None
    is_paused: bool = False


class BackfillOrder(BaseModel):
    """Times of a schedule to start runs for: those between `start` and `end`."""

    campaign_id: int
    start: datetime
    end: datetime
    is_all_at_once: bool = False
