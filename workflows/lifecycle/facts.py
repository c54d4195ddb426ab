"""The facts that explain the state of a trial, an experiment or a task: gathered by the API, put into words by others.

`explain.py` has those of trials and experiments, `explain_task.py` those of all other tasks.
"""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from workflows.lifecycle.budget import Limits, What
from workflows.lifecycle.experiment import ExperimentState
from workflows.lifecycle.task import TaskState
from workflows.lifecycle.trial import TrialState


class Facts(BaseModel):
    """Base: on the wire, keys are in camelCase, as everywhere in the REST API."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class QueueFacts(Facts):
    """How a trial's request for slots stands in its pool."""

    pool: str
    is_queued: bool = True
    is_granted: bool = False  # and not recorded yet; neither: the pool does not know it
    policy: str = "priority"  # by which the pool decides
    priority: int = 0  # 1 to 99; 1 goes first
    place: int = 0  # in the queue, from 1
    waiting: int = 0  # requests in the queue
    slots: int = 0  # asked for
    free: int = 0  # slots that nobody holds, on agents that are in reach and not excluded
    total: int = 0  # slots of all agents
    agents: int = 0
    free_aux: int = 0  # trials without slots for which there is room
    most_aux: int = 0  # of them that an agent takes
    leaving: int = 0  # slots whose holders were asked to leave
    job_slots: int = 0  # that its experiment holds
    behind: str = ""  # who comes first, if it is another request
    behind_slots: int = 0  # asked for by that one
    behind_priority: int = 0  # of that one
    holders: dict[str, int] = Field(default_factory=dict[str, int])  # who holds how many slots, the most first
    fits_ever: bool = True  # on the agents of now, if they were idle and in reach
    is_provided: bool = False  # nodes that hold it may be launched
    fits_lost: bool = False  # if the agents were back that are lost
    is_borrowing: bool = False  # it is beyond the quota of its user or workspace
    quota: str = ""  # which is that
    lends: bool = True  # whether slots that nobody claims are lent
    is_apart: bool = False  # it fits, but its GPUs would be further apart than they have to be, and it wants none such
    is_capped: bool = False  # its experiment holds as many slots as `max_slots` lets it


class RunFacts(Facts):
    """One run of a trial: an allocation, open or ended."""

    run_id: int
    allocation_id: str
    state: str  # ASSIGNED, PULLING, STARTING, RUNNING, TERMINATED
    slots: int
    agents: list[str]
    away: list[str] = Field(default_factory=list[str])  # those of them that are out of reach
    missing: list[str] = Field(default_factory=list[str])  # containers for which the others wait
    nodes: list[str] = Field(default_factory=list[str])  # of a cluster, where its containers run
    joined_by: str = ""  # its GPUs, if they are of one host and more than one
    waits_for: str = ""  # what a container of a cluster waits for before it starts, in the cluster's words
    started_at: datetime
    ready_at: datetime | None = None
    asked_to_leave_at: datetime | None = None
    asked_to_leave_because: str = ""  # if its pool wanted it to
    acknowledged_at: datetime | None = None
    killed_at: datetime | None = None  # if it has not left by then
    ended_at: datetime | None = None
    kind: str | None = None  # ExitKind
    cause: str | None = None  # EndCause
    message: str = ""
    code: int | None = None
    matches: list[str] = Field(default_factory=list[str])  # log policies, and the lines that they matched


class Commanded(Facts):
    """The latest command to an experiment that was taken."""

    command: str
    by: str
    at: datetime


class BudgetFacts(Facts):
    """A budget, and what was used of it.

    `whose`: "its", or "its workspace's"; `command`: what follows `det` to change it.
    """

    whose: str
    command: str
    limits: Limits
    used: dict[What, float]  # in the units of the limits
    spent: What | None = None  # the limit that is reached
    lasts_until: datetime | None = None  # when time uses it up, if nothing changes


class GateFacts(Facts):
    """Something of an experiment that waits for approval."""

    id: int
    text: str
    by: str  # the role that decides
    due_at: datetime | None = None
    default: str = "deny"


class TrialFacts(Facts):
    """Everything about one trial. Runs in order, the oldest first."""

    trial_id: int
    experiment_id: int
    state: TrialState
    message: str = ""
    restarts: int = 0
    max_restarts: int = 0
    backoff_s: float = 0.0  # after the next failure
    next_run_at: datetime | None = None
    needs_search: bool = False  # it runs only while the search has an operation for it, and there is none
    is_closed: bool = False  # the search wants nothing more of it
    early_exit: str | None = None
    retries_canceled: str | None = None  # by which log policy
    excluded: dict[str, str] = Field(default_factory=dict[str, str])  # agents, and by which log policy
    last_report_at: datetime | None = None  # metrics; None also where nobody looked, as the next two
    has_stored: bool = False  # a checkpoint, in this run
    last_line_at: datetime | None = None  # of its log
    silent_for: str = ""  # after so long a silence a failure policy has it killed and started again
    ended_at: datetime | None = None
    runs: list[RunFacts] = Field(default_factory=list[RunFacts])
    queue: QueueFacts | None = None
    queue_error: str = ""  # why the queue is not known
    commanded: Commanded | None = None
    gate: int | None = None  # that it waits at for approval


class NeedFacts(Facts):
    """A task that another one comes after, and that has not ended."""

    task_id: str
    state: TaskState
    any_end: bool = False  # it need not complete


class TaskFacts(Facts):
    """Everything about a task that is no trial. Runs in order, the oldest first."""

    task_id: str
    kind: str  # TaskKind
    state: TaskState
    message: str = ""
    restarts: int = 0
    max_restarts: int = 0
    goes_on: bool = False  # it does its work again when it is interrupted
    idle_timeout: str = ""  # not used for so long, it ends; empty: it does not end for that, as the next one
    max_lifetime: str = ""  # on its slots for so long, it ends
    needs: list[NeedFacts] = Field(default_factory=list[NeedFacts])  # what it waits for before it asks for slots
    ended_at: datetime | None = None
    runs: list[RunFacts] = Field(default_factory=list[RunFacts])
    queue: QueueFacts | None = None
    queue_error: str = ""  # why the queue is not known


class ExperimentFacts(Facts):
    """Everything about an experiment. `open` trials in the order of their ids, the first ones if there are many."""

    experiment_id: int
    state: ExperimentState
    error: str = ""
    ended_at: datetime | None = None
    commanded: Commanded | None = None
    gates: list[GateFacts] = Field(default_factory=list[GateFacts])
    budgets: list[BudgetFacts] = Field(default_factory=list[BudgetFacts])
    ended: dict[str, int] = Field(default_factory=dict[str, int])  # how many trials, by terminal state
    open_count: int = 0
    open: list[TrialFacts] = Field(default_factory=list[TrialFacts])
