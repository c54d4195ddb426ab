"""Starts the workflows of a restored database anew, on a Temporal that knows none of them.

What a workflow holds follows from the records: a search from its decisions, a trial from its row, and what a search was
sent and had not decided on from the outbox. Containers are not in a backup: what ran in one is over, and trials go on
from their newest checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError
from sqlalchemy import delete, or_, select, text, update
from sqlalchemy.orm import Session

from api.errors import NotFound
from api.services import campaigns, cleanup, experiments, imports, tasks
from api.services.budgets import of_experiment
from api.services.forks import origin_of
from api.services.pools import post_service, run_of
from api.temporal import outbox
from database import budgets
from database import campaigns as campaign_records
from database.engines import on_postgresql
from database.log_lines import FURTHER, note_line
from database.models import (
    Agent,
    Allocation,
    Campaign,
    CampaignRun,
    Checkpoint,
    Experiment,
    HeldStart,
    Outbox,
    ResourcePool,
    SearchDecision,
    StorageRemoval,
    Task,
    TaskDependency,
    Trial,
    User,
    WebhookDelivery,
    Workspace,
)
from database.tasks import end_trial_task, give_further_tasks
from database.types import utc_now
from database.webhooks import DELIVER
from workflows import names
from workflows.config import ExperimentConfig
from workflows.config.tasks import TaskConfig
from workflows.lifecycle.allocation import AllocationState, EndCause, ExitKind
from workflows.lifecycle.experiment import TERMINAL, ExperimentState
from workflows.lifecycle.needs import Need
from workflows.lifecycle.task import TaskState
from workflows.lifecycle.trial import FINAL_STATE, TrialState
from workflows.messages import ExperimentRun, FileRemovalOrder, Timing, TrialEntry, ValidationReport
from workflows.searchers import (
    Create,
    Decision,
    Event,
    ExitReason,
    Inherited,
    OperationCompleted,
    Search,
    SearchError,
    TrialClosed,
    TrialExitedEarly,
    ValidationReported,
)
from workflows.searchers.inheritance import Inheritance
from workflows.searchers.replay import carried_on

#: So many numbers of experiments and trials stay unused: those that were given after the backup, and are lost, may be
#: in notes, links and file names, and are not to mean something else.
SKIPPED = 1000

#: Of experiments that ended so shortly before the backup, checkpoints may not have been looked at yet.
_JUST_ENDED = timedelta(hours=1)

_OVER = [state.value for state in TERMINAL]


@dataclass
class Revived:
    """What a restored cluster goes on with, by number or id."""

    experiments: list[int] = field(default_factory=list[int])
    broken: list[int] = field(default_factory=list[int])  # experiments that end, as their records do not fit together
    trials: int = 0  # that run, or wait for slots
    tasks: list[str] = field(default_factory=list[str])
    lost_tasks: list[str] = field(default_factory=list[str])  # that end: nothing of what they did was kept


def revive(session: Session, timing: Timing, made_at: datetime) -> Revived:
    """Have the workflows of all that is not over started, when an API comes up.

    Args:
        session: Of a transaction on a database that was just restored. No process has used it since.
        timing: Durations that decide, of what is started.
        made_at: When the backup was made, for the logs of what it interrupted.
    """
    revived = Revived()
    because = f"the cluster was restored from a backup of {made_at:%Y-%m-%d %H:%M:%S} UTC"
    unstarted = _unstarted(session)
    _drop_messages(session, unstarted)
    _close_allocations(session, because)
    budgets.release_all(session, made_at)
    _skip_numbers(session)
    for pool in session.scalars(select(ResourcePool)):
        outbox.post(session, names.pool_workflow(pool.name), outbox.START_POOL, run_of(pool).model_dump(mode="json"))
    for agent in session.scalars(select(Agent)):
        agent.is_connected, agent.revision = False, 0  # its workflow counts anew
        if not agent.is_enabled or agent.is_draining or agent.disabled_slots or agent.broken_slots:
            post_service(session, agent)
    session.flush()
    live = select(Experiment).where(
        Experiment.state.not_in(_OVER),
        ~Experiment.is_unmanaged,
        Experiment.id.not_in(select(HeldStart.experiment_id)),
    )
    for row in session.scalars(live.order_by(Experiment.id)).all():
        revived.experiments.append(row.id)
        if names.experiment_workflow(row.id) not in unstarted:
            try:
                with session.begin_nested():
                    run = _experiment(session, row, timing, because)
                    outbox.post_start(session, run)
            except (SearchError, ValidationError) as error:
                _give_up(session, row, f"it can't go on: {because}, and its records do not fit together: {error}")
                revived.broken.append(revived.experiments.pop())
            else:
                revived.trials += sum(entry.is_waiting for entry in run.trials.values())
    alone = select(Task).where(Task.trial_id.is_(None), Task.ended_at.is_(None)).order_by(Task.started_at, Task.id)
    for task in session.scalars(alone).all():
        if names.task_workflow(task.id) in unstarted:
            revived.tasks.append(task.id)
            continue
        is_lost = _post_task(session, task, timing, because)
        (revived.lost_tasks if is_lost else revived.tasks).append(task.id)
    _post_deliveries(session)
    _post_cleanup(session, made_at)
    imports.end_lost(session, f"{because}: run it again")
    _post_campaigns(session)
    return revived


# -- what is left of before ------------------------------------------------------------------------------------------


def _unstarted(session: Session) -> dict[str, int]:
    """Workflows whose start was not sent, each with the number of that message, which says all there is to say.

    One may have been sent, and that was not noted yet: what has come further in the records is no such start.
    """
    found: dict[str, int] = {}
    starts = select(Outbox).where(
        Outbox.sent_at.is_(None), Outbox.kind.in_((outbox.START_EXPERIMENT, outbox.START_TASK))
    )
    for entry in session.scalars(starts.order_by(Outbox.id)):
        if entry.kind == outbox.START_EXPERIMENT:
            row = session.get(Experiment, entry.payload["experiment_id"])
            runs = select(Allocation.id).where(Allocation.experiment_id == entry.payload["experiment_id"])
        else:
            row = session.get(Task, entry.payload["task_id"])
            runs = select(Allocation.id).where(Allocation.task_id == entry.payload["task_id"])
        since = runs.where(Allocation.started_at >= entry.created_at).limit(1)
        if row is not None and row.revision == entry.payload["revision"] and session.scalar(since) is None:
            found[entry.workflow_id] = entry.id
    return found


def _drop_messages(session: Session, unstarted: Mapping[str, int]) -> None:
    """What waits is to workflows that are started with what it says; but for unsent starts, and what follows them."""
    for entry in session.scalars(select(Outbox).where(Outbox.sent_at.is_(None))):
        if entry.id < unstarted.get(entry.workflow_id, entry.id + 1):
            entry.sent_at = utc_now()
    session.flush()


def _close_allocations(session: Session, because: str) -> None:
    """No container is in a backup. Those that still run somewhere are orphans from here on: their tokens are dead."""
    values = {
        "ended_at": utc_now(),
        "state": AllocationState.TERMINATED.value,
        "end_kind": ExitKind.SYSTEM.value,
        "end_cause": EndCause.NODE_LOST.value,
        "end_message": because,
    }
    session.execute(update(Allocation).where(Allocation.ended_at.is_(None)).values(values))


def _skip_numbers(session: Session) -> None:
    for table in (Experiment.__tablename__, Trial.__tablename__):
        if on_postgresql(session):
            sequence = f"pg_get_serial_sequence('{table}', 'id')"
            session.execute(text(f"SELECT setval({sequence}, nextval({sequence}) + {SKIPPED})"))
        else:
            session.execute(text(f"UPDATE sqlite_sequence SET seq = seq + {SKIPPED} WHERE name = '{table}'"))


# -- experiments -----------------------------------------------------------------------------------------------------


def _experiment(session: Session, row: Experiment, timing: Timing, because: str) -> ExperimentRun:
    """The state of an experiment's workflow, from its records."""
    config = ExperimentConfig.model_validate(row.config)
    statement = select(SearchDecision.decision).where(SearchDecision.experiment_id == row.id)
    recorded = session.scalars(statement.order_by(SearchDecision.number))
    decisions = [Decision.model_validate_json(line) for line in recorded]
    inherited = [Inherited(request_id=trial["request_id"], hparams=trial["hparams"]) for trial in row.inherited]
    search = carried_on(Search.new(config, inherited=inherited), decisions)
    trials = session.scalars(select(Trial).where(Trial.experiment_id == row.id).order_by(Trial.id)).all()
    run = experiments.run_of(session, row, config, search, timing, of_experiment(session, row.id))
    run.is_started, run.revision, run.error, run.progress = bool(decisions), row.revision, row.error, row.progress
    run.template.source_checkpoint = row.source_checkpoint
    run.inheritance = _inheritance(session, row, config, decisions, {t.request_id for t in trials if t.run_id})
    run.past = _untold(session, row, decisions)
    closed = {decision.event.request_id for decision in decisions if isinstance(decision.event, TrialClosed)}
    for trial in trials:
        run.trials[trial.request_id] = TrialEntry(
            trial_id=trial.id,
            is_open=trial.request_id not in closed,
            run_id=trial.run_id,
            revision=trial.revision,
            restarts=trial.restarts,
        )
    _take_reports(session, run, decisions)
    heirs = () if run.inheritance is None else run.inheritance.heirs
    interrupted: list[int] = []
    for trial in trials:
        entry = run.trials[trial.request_id]
        if not entry.is_open:
            continue
        if not _ended(session, run, trial, entry):
            entry.is_heir = trial.request_id in heirs or run.past is not None
            entry.is_waiting = not entry.is_heir
            if trial.run_id:
                interrupted.append(trial.id)
    _give_tasks(session, row, run, interrupted, because)
    run.continuation = row.continuations
    return run


def _give_up(session: Session, row: Experiment, reason: str) -> None:
    """One that nobody could go on with must not keep all others from it."""
    now = utc_now()
    row.state, row.error, row.ended_at = ExperimentState.ERROR.value, reason[:2000], now
    for trial in session.scalars(select(Trial).where(Trial.experiment_id == row.id, Trial.ended_at.is_(None))):
        trial.state, trial.ended_at = TrialState.ERROR.value, now
        end_trial_task(session, trial.id, TaskState.ERROR.value, now)
    campaign_records.note_end(session, experiment_id=row.id)


def _inheritance(
    session: Session, row: Experiment, config: ExperimentConfig, decisions: Sequence[Decision], ran: set[str]
) -> Inheritance | None:
    """The book of a fork, as far as it was written. Trials that ran have nothing to take over any more."""
    if row.parent_id is None or row.forked_at is None:
        return None
    try:
        inheritance = origin_of(session, row.parent_id, row.forked_at).inheritance(config)
    except NotFound:
        return None
    for decision in decisions:
        inheritance.note(decision.event)
        for action in decision.actions:
            if isinstance(action, Create) and action.request_id not in ran and action.inherits in inheritance.trials:
                inheritance.take(action)
    return inheritance


def _untold(session: Session, row: Experiment, decisions: Sequence[Decision]) -> list[Event] | None:
    """Of one that had just gone on after its end: what its search was not told again yet. None: it knows all."""
    if not row.continuations:
        return None
    starts = select(Outbox.payload).where(
        Outbox.workflow_id == names.experiment_workflow(row.id), Outbox.kind == outbox.START_EXPERIMENT
    )
    payload = session.scalar(starts.order_by(Outbox.id.desc()).limit(1))
    past = ExperimentRun.model_validate(payload).past if payload is not None else None
    if past is None:
        return None
    told = 0
    for place, event in enumerate(past):
        if told == len(decisions):
            return past[place:]
        told += decisions[told].event == event  # those that are not were left out when they were told
    return None


def _take_reports(session: Session, run: ExperimentRun, decisions: Sequence[Decision]) -> None:
    """Put what the search was sent and did not decide on into its inbox, in the order in which it was sent."""
    decided: dict[str, dict[str, Any]] = {}
    for decision in decisions:
        if isinstance(decision.event, ValidationReported):
            decided[decision.event.request_id] = decision.event.metrics
    sent = select(Outbox.payload).where(
        Outbox.workflow_id == names.experiment_workflow(run.experiment_id), Outbox.kind == "validation_reported"
    )
    reports = [ValidationReport.model_validate(payload) for payload in session.scalars(sent.order_by(Outbox.id))]
    reports = [report for report in reports if report.request_id in run.trials]
    for report in reports:
        entry = run.trials[report.request_id]
        if report.metrics == decided.get(report.request_id):
            entry.last_step = max(entry.last_step, report.steps_completed)
    for report in reports:
        entry = run.trials[report.request_id]
        if not entry.is_open or report.steps_completed <= entry.last_step:
            continue
        entry.last_step = report.steps_completed
        if report.reached is None:
            run.inbox.append(ValidationReported(request_id=report.request_id, metrics=report.metrics))
        else:
            entry.reached, entry.metric = report.reached, next(iter(report.metrics.values()), None)
    for request_id, entry in run.trials.items():
        view = run.search.trial(request_id)
        is_asked = entry.is_open and view.length is not None and not view.completed
        if is_asked and entry.reached is not None and entry.reached >= (view.length or 0):
            event = OperationCompleted(request_id=request_id, length=view.length or 0, metric=entry.metric)
            run.inbox.append(event)


def _ended(session: Session, run: ExperimentRun, trial: Trial, entry: TrialEntry) -> bool:
    """Have the search hear of the end of a trial that had ended, or was only waited for. False: it goes on."""
    view = run.search.trial(trial.request_id)
    state = TrialState(trial.state)
    if not state.is_terminal:
        if view.stopped and not state.is_stopping:
            state = TrialState.STOPPING_COMPLETED  # it had not heard of it yet
        if not state.is_stopping:
            return False
        state = FINAL_STATE[state]
        trial.state, trial.ended_at, trial.next_run_at = state.value, utc_now(), None
        end_trial_task(session, trial.id, state.value, utc_now())
    reason: ExitReason | None = None
    if state is TrialState.CANCELED:
        reason = ExitReason.USER_CANCELED
    elif state is TrialState.ERROR:
        reason = ExitReason.ERRORED
    elif not (view.closed or view.stopped):
        reason = ExitReason(trial.early_exit) if trial.early_exit else ExitReason.USER_REQUESTED_STOP
    if reason is not None:
        run.inbox.append(TrialExitedEarly(request_id=trial.request_id, reason=reason))
    run.inbox.append(TrialClosed(request_id=trial.request_id))
    entry.is_open = False
    return True


def _give_tasks(session: Session, row: Experiment, run: ExperimentRun, trial_ids: list[int], because: str) -> None:
    """Trials whose container is lost go on in a further task: its containers are none that a host may still have."""
    if not trial_ids:
        return
    row.continuations += 1
    for trial_id in trial_ids:
        trial = session.get_one(Trial, trial_id)
        trial.next_run_at = None
        end_trial_task(session, trial_id, TaskState.CANCELED.value, utc_now())
    give_further_tasks(session, trial_ids, row.continuations)
    for trial_id in trial_ids:
        trial = session.get_one(Trial, trial_id)
        run.trials[trial.request_id].task_id = trial.task_id
        note_line(session, trial.task_id, f"It goes on from its newest checkpoint, as {because}.", level="WARNING")


# -- other tasks -----------------------------------------------------------------------------------------------------


def _post_task(session: Session, row: Task, timing: Timing, because: str) -> bool:
    """Have the workflow of a task started. True: only to end it, as what it did is lost with its container."""
    config = TaskConfig.model_validate(row.config)
    owner = session.get_one(User, row.owner_id).username
    workspace = session.get_one(Workspace, row.workspace_id)
    run = tasks.run_of(row, config, owner, workspace, timing)
    runs = session.scalars(select(Allocation).where(Allocation.task_id == row.id)).all()
    run.state, run.restarts = TaskState(row.state), row.restarts
    run.message, run.revision = row.message or "", row.revision
    run.newest_wish = run.newest_limits = row.wishes
    run.needs = [
        Need(task_id=needed.id, any_end=any_end, state=TaskState(needed.state) if needed.ended_at else None)
        for needed, any_end in session.execute(
            select(Task, TaskDependency.any_end)
            .join(TaskDependency, TaskDependency.needs_id == Task.id)
            .where(TaskDependency.task_id == row.id)
        )
    ]
    if runs:
        run.run_id = max(each.run_id for each in runs) + SKIPPED
        run.ran_s = sum(((each.ended_at or utc_now()) - each.started_at).total_seconds() for each in runs)
        if run.state is TaskState.STOPPING_PAUSED:
            run.state = TaskState.PAUSED
            row.state = run.state.value
        elif run.state is TaskState.ACTIVE and not run.goes_on:
            run.lost = f"{because}; it may have done part of its work, so it is not started again"
        note_line(session, row.id, f"{because[:1].upper()}{because[1:]}.", place=FURTHER, level="WARNING")
    outbox.post(session, names.task_workflow(row.id), outbox.START_TASK, run.model_dump(mode="json"))
    return bool(run.lost)


# -- campaigns ---------------------------------------------------------------------------------------------------------


def _post_campaigns(session: Session) -> None:
    """Runs that have not ended go on from their records, and schedules start again."""
    for run in session.scalars(select(CampaignRun).where(CampaignRun.ended_at.is_(None)).order_by(CampaignRun.id)):
        campaigns.post_start(session, run)
        session.flush()
        campaign_records.post_again(session, run)
    campaign_records.post_schedules(session, session.scalars(select(Campaign.id).order_by(Campaign.id)).all())


# -- what is on its way ----------------------------------------------------------------------------------------------


def _post_deliveries(session: Session) -> None:
    for delivery_id in session.scalars(select(WebhookDelivery.id).where(WebhookDelivery.state == "WAITING")):
        workflow_id = names.delivery_workflow(delivery_id)
        outbox.post(session, workflow_id, DELIVER, {"delivery_id": delivery_id})


def _post_cleanup(session: Session, made_at: datetime) -> None:
    """Experiments that are being deleted, checkpoints that retention had begun or was to collect, and single files."""
    deleting = session.scalars(select(Experiment.id).where(Experiment.state == ExperimentState.DELETING.value)).all()
    for experiment_id in deleting:
        workflow_id = names.deletion_workflow(experiment_id)
        outbox.post(session, workflow_id, outbox.DELETE_EXPERIMENT, {"experiment_id": experiment_id})
    begun = (
        select(Checkpoint.experiment_id)
        .join(Experiment, Experiment.id == Checkpoint.experiment_id)
        .where(or_(Checkpoint.state == "DELETING", Experiment.ended_at >= made_at - _JUST_ENDED))
        .distinct()
    )
    for experiment_id in session.scalars(begun.order_by(Checkpoint.experiment_id)).all():
        if experiment_id not in deleting:
            cleanup.collect(session, experiment_id)
    for removal in session.scalars(select(StorageRemoval).where(StorageRemoval.finished_at.is_(None))).all():
        if removal.uuids:  # of a collection, which records another one
            session.execute(delete(StorageRemoval).where(StorageRemoval.id == removal.id))
            continue
        order = FileRemovalOrder(pool=removal.pool, removal_id=removal.id)
        workflow_id = names.file_removal_workflow(removal.id)
        outbox.post(session, workflow_id, outbox.REMOVE_FILES, order.model_dump(mode="json"))
