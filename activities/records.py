"""Writes the projection of decisions. Every write is idempotent: an upsert keyed by the decision."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session
from temporalio import activity

from database import budgets, campaigns
from database.engines import in_parts
from database.experiment_records import record_experiment
from database.log_facts import actions_of_log_policies, failure_of, note_bad_gpu
from database.log_lines import ASSIGNED, ENDED, FURTHER, note_line
from database.models import (
    Agent,
    Allocation,
    Experiment,
    Outbox,
    Task,
    TaskContext,
    TaskDependency,
    TaskSecret,
    Trial,
)
from database.notices import notify
from database.organization import drop_workspace_if_empty
from database.pools import price_an_hour
from database.session import Database
from database.tasks import end_trial_task
from database.types import utc_now
from database.upsert import insert
from workflows import names
from workflows.lifecycle.allocation import BAD_GPU, AllocationEnd, AllocationState, ExitKind
from workflows.lifecycle.experiment import TERMINAL
from workflows.lifecycle.needs import NeedEnded
from workflows.lifecycle.task import TaskKind, TaskState
from workflows.messages import (
    AllocationFacts,
    AllocationRef,
    CloseAllocation,
    CreatedTrials,
    JobsAsked,
    JobsEnded,
    OpenAllocation,
    RecordAgent,
    RecordExperiment,
    RecordTask,
    RecordTrial,
    TaskNote,
    TaskUse,
)

#: An API that is away sends what it has when it is back; nobody's end waits for that.
_REPORTS_WAIT_S = 3.0
_OVER = [state.value for state in TERMINAL]


class Records:
    """Activities of the orchestrator, and what those of `AnnouncedRecords` write.

    Time-outs and retries: `workflows/options.py`.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def record_experiment(self, record: RecordExperiment) -> CreatedTrials:
        """Write an experiment's state, decisions, new trials and standings."""
        return record_experiment(self._database, record)

    def record_trial(self, record: RecordTrial) -> int:
        """Write a trial's state, and how its latest allocation ended.

        Returns: of one that has ended, the revision of its experiment's record.
        """
        now = utc_now()
        with self._database.write() as session:
            values: dict[str, Any] = {
                "state": record.state.value,
                "restarts": record.restarts,
                "message": record.message,
                "next_run_at": record.next_run_at,
                "continued_after": record.continued_after,
                "revision": record.revision,
            }
            if record.factors:
                values["factors"] = record.factors
            # an experiment that continues has its trials run again after their end
            values["ended_at"] = func.coalesce(Trial.ended_at, now) if record.is_terminal else None
            session.execute(
                update(Trial).where(Trial.id == record.trial_id, Trial.revision <= record.revision).values(values)
            )
            revision = 0
            if record.is_terminal:
                end_trial_task(session, record.trial_id, record.state.value, now)
                revision = session.scalar(select(Experiment.revision).where(Experiment.id == record.experiment_id)) or 0
            if record.end is None or record.allocation_id is None:
                return revision
            end = record.end
            task_id = session.scalars(select(Trial.task_id).where(Trial.id == record.trial_id)).one()  # its newest
            text = f"{record.allocation_id} ended: {end.message} ({end.cause.value})."
            if record.message and record.message != end.message:
                text += f" {record.message[:1].upper()}{record.message[1:]}."
            is_given_up = record.is_terminal and end.kind is ExitKind.FAILED
            if is_given_up and actions_of_log_policies(session, record.trial_id).get("retries_canceled"):
                text += " (trial failed and matched logs to a don't retry policy)"  # what tools look for
            _note_end(session, task_id, record.allocation_id, end, text)
            return revision

    @activity.defn
    def record_task(self, record: RecordTask) -> None:
        """Write the state of a task that is no trial, and how its latest allocation ended."""
        now = utc_now()
        with self._database.write() as session:
            row = session.get(Task, record.task_id, with_for_update=True)
            if row is None or row.revision > record.revision:
                return
            row.state, row.message = record.state.value, record.message
            row.restarts, row.revision = record.restarts, record.revision
            if record.state.is_terminal:
                if row.ended_at is None:  # a retry finds it ended: it is posted once
                    _post_end(session, row.id, record.state)
                    campaigns.note_end(session, task_id=row.id)
                row.ended_at = row.ended_at or now
                session.flush()
                session.execute(delete(TaskSecret).where(TaskSecret.task_id == row.id))
                if TaskKind(row.kind) is not TaskKind.GENERIC:  # forks and children take those
                    session.execute(delete(TaskContext).where(TaskContext.task_id == row.id))
            if record.end is not None:
                text = f"{row.name} was terminated: {record.end.message}"
                _note_end(session, row.id, record.allocation_id, record.end, text)
            elif record.state.is_terminal:
                note_line(session, row.id, f"{row.name} was terminated: {record.message}", place=ENDED)
            if record.state.is_terminal and row.workspace_id is not None:
                drop_workspace_if_empty(session, row.workspace_id)

    @activity.defn
    def task_use(self, ref: AllocationRef) -> TaskUse:
        """How long the task of an allocation has not been used; it counts from when it was ready."""
        with self._database.read() as session:
            times = (
                select(Allocation.ready_at, Task.last_used_at)
                .join(Task, Task.id == Allocation.task_id)
                .where(Allocation.id == ref.allocation_id)
            )
            found = session.execute(times).tuples().one_or_none()
        if found is None or found[0] is None:
            return TaskUse()
        ready_at, used_at = found[0], found[1] or found[0]
        since = max(ready_at, used_at)
        return TaskUse(idle_s=max(0.0, (utc_now() - since).total_seconds()))

    @activity.defn
    def note_task(self, note: TaskNote) -> None:
        """Write a line into a task's log, about its present run."""
        with self._database.write() as session:
            place = FURTHER + note.place
            note_line(session, note.task_id, note.line, allocation_id=note.allocation_id, place=place, level="WARNING")

    @activity.defn
    def open_allocation(self, order: OpenAllocation) -> None:
        """Record an allocation that got its slots, keyed by its id; the trial's run id moves with it."""
        with self._database.write() as session:
            counted_by = budgets.counting(session, order.task_id, order.trial_id)
            price = price_an_hour(session, order.pool, order.slots)
            opened = session.scalar(
                insert(session, Allocation)
                .values(
                    id=order.allocation_id,
                    task_id=order.task_id,
                    trial_id=order.trial_id,
                    experiment_id=select(Trial.experiment_id).where(Trial.id == order.trial_id).scalar_subquery(),
                    run_id=order.run_id,
                    state=AllocationState.ASSIGNED.value,
                    pool=order.pool,
                    slots=order.slots,
                    placements=[place.model_dump(mode="json") for place in order.placements],
                    price_an_hour=price,
                    budgets=counted_by,
                )
                .on_conflict_do_nothing()
                .returning(Allocation.id)
            )
            if opened is not None:
                is_new = order.trial_id is not None and order.run_id == 1
                budgets.count(session, counted_by, order.slots, price, is_new_trial=is_new)
            if order.trial_id is None:
                name = session.get_one(Task, order.task_id).name
                line = f"{name} was assigned to an agent"
                note_line(session, order.task_id, line, allocation_id=order.allocation_id, place=ASSIGNED)
            else:
                is_later = Trial.id == order.trial_id, Trial.run_id < order.run_id
                session.execute(update(Trial).where(*is_later).values(run_id=order.run_id))

    @activity.defn
    def request_preemption(self, ref: AllocationRef) -> AllocationFacts:
        """Make the preemption visible to the harness. `is_ready`: the harness is there to see it."""
        with self._database.write() as session:
            session.execute(
                update(Allocation)
                .where(Allocation.id == ref.allocation_id, Allocation.preempt_requested_at.is_(None))
                .values(preempt_requested_at=utc_now(), preempt_reason=ref.reason)
            )
            notify(session, ref.allocation_id)
            allocation = session.get_one(Allocation, ref.allocation_id)
            return AllocationFacts(
                preemption_acked=allocation.preempt_acked_at is not None, is_ready=allocation.ready_at is not None
            )

    def close_allocation(self, order: CloseAllocation) -> AllocationFacts:
        """Record the end of an allocation; its token is dead from here on. Answers what harness and log said.

        What it reported to the search goes before its end: that is waited for, as long as the API may take to send it.
        """
        self._await_reports(order.allocation_id)
        with self._database.write() as session:
            closed = session.execute(
                update(Allocation)
                .where(Allocation.id == order.allocation_id, Allocation.ended_at.is_(None))
                .values(ended_at=utc_now(), state=AllocationState.TERMINATED.value)
                .returning(Allocation.budgets, Allocation.slots, Allocation.price_an_hour)
            ).one_or_none()
            notify(session, order.allocation_id)
            if closed is not None:
                budgets.count(session, closed.budgets, -closed.slots, -closed.price_an_hour)
            allocation = session.get_one(Allocation, order.allocation_id)
            failed = next((result for result in order.results if result.code), None)
            failure = failure_of(session, allocation, failed.container_id) if failed else None
            line = failure["last_error"] if failure else None
            if failed is not None and line and allocation.trial_id is not None and BAD_GPU.search(line):
                note_bad_gpu(session, allocation, failed.rank, line)
            return AllocationFacts(
                preemption_acked=allocation.preempt_acked_at is not None,
                preemption_sent=allocation.preempt_requested_at is not None,
                is_ready=allocation.ready_at is not None,
                last_error=line,
                import_failure=failure["import_failure"] if failure else None,
                **(_facts_of_trial(session, allocation.trial_id) if allocation.trial_id is not None else {}),
            )

    def _await_reports(self, allocation_id: str) -> None:
        with self._database.read() as session:
            experiment_id = session.scalar(select(Allocation.experiment_id).where(Allocation.id == allocation_id))
            if experiment_id is None:
                return
            waiting = (
                select(Outbox.id)
                .where(
                    Outbox.workflow_id == names.experiment_workflow(experiment_id),
                    Outbox.kind == "validation_reported",
                    Outbox.sent_at.is_(None),
                )
                .limit(1)
            )
            if session.scalar(waiting) is None:  # as nearly always
                return
        deadline = time.monotonic() + _REPORTS_WAIT_S
        while time.monotonic() < deadline:
            time.sleep(0.02)
            with self._database.read() as session:
                if session.scalar(waiting) is None:
                    return

    @activity.defn
    def ended_jobs(self, asked: JobsAsked) -> JobsEnded:
        """Which of these jobs have ended: what is over may be continued, and then says anew what it claims."""
        live: set[str] = set()
        with self._database.read() as session:
            for some in in_parts(asked.job_ids):
                open_ones = Experiment.job_id.in_(some), Experiment.state.not_in(_OVER)
                live |= set(session.scalars(select(Experiment.job_id).where(*open_ones)))
                alone = Task.job_id.in_(some), Task.trial_id.is_(None)
                live |= set(session.scalars(select(Task.job_id).where(*alone, Task.ended_at.is_(None))))
        return JobsEnded(job_ids=[job_id for job_id in asked.job_ids if job_id not in live])

    @activity.defn
    def record_agent(self, record: RecordAgent) -> None:
        """Write what is known of an agent; nothing of one that an operator removed."""
        values = {
            "pool": record.pool,
            "slot_ids": list(record.slots.slot_ids),
            "address": record.address,
            "is_connected": record.is_connected,
            "revision": record.revision,
        }
        with self._database.write() as session:
            mine = Agent.id == record.agent_id, Agent.revision <= record.revision
            session.execute(update(Agent).where(*mine).values(**values))

    @activity.defn
    def forget_agent(self, agent_id: str) -> None:
        """Remove the record of an agent whose host is gone for good."""
        with self._database.write() as session:
            session.execute(delete(Agent).where(Agent.id == agent_id, ~Agent.is_connected))


def _post_end(session: Session, task_id: str, state: TaskState) -> None:
    """Tell the tasks that come after this one."""
    ended = NeedEnded(task_id=task_id, state=state).model_dump(mode="json")
    for later in session.scalars(select(TaskDependency.task_id).where(TaskDependency.needs_id == task_id)):
        session.add(Outbox(workflow_id=names.task_workflow(later), kind="need_ended", payload=ended))


def _note_end(session: Session, task_id: str, allocation_id: str, end: AllocationEnd, text: str) -> None:
    """Write how an allocation ended, and a line of it into the task's log."""
    session.execute(
        update(Allocation)
        .where(Allocation.id == allocation_id)
        .values(end_kind=end.kind.value, end_cause=end.cause.value, end_message=end.message, exit_code=end.code)
    )
    is_good = end.kind in (ExitKind.CLEAN, ExitKind.FINISHED)
    note_line(session, task_id, text, allocation_id=allocation_id, level="INFO" if is_good else "ERROR")


def _facts_of_trial(session: Session, trial_id: int) -> dict[str, Any]:
    """What of the facts about an allocation only a trial has."""
    said = (Trial.early_exit, Trial.operation_length, Trial.is_closed, Trial.metrics_run_id)
    early_exit, open_length, is_closed, reported = session.execute(select(*said).where(Trial.id == trial_id)).one()
    return {
        "early_exit": early_exit,
        "open_length": open_length,
        "is_closed": is_closed and open_length is None,
        "has_reported": reported > 0,
        **actions_of_log_policies(session, trial_id),
    }
