"""Submissions as their clients see them: what was recorded, and how its work stands."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.auth.authorization import may_see, readable, readable_task
from api.errors import NotFound
from api.queries.jobs import slots_per_second
from api.queries.waiting import POOL, SLOTS, waiting
from api.schemas import submissions as wire
from database.models import Agent, Allocation, Experiment, ResourcePool, Submission, Task, User
from workflows.lifecycle.allocation import EndCause, ExitKind
from workflows.scheduling.settings import PoolSettings

#: Tasks of one submission that are shown: an experiment may have thousands.
_MOST_TASKS = 100
_ENDED = {"COMPLETED": "COMPLETED", "CANCELED": "CANCELED", "ERROR": "FAILED", "DELETE_FAILED": "FAILED"}
_GONE = ("DELETING", "DELETED")
#: Ends that the code of a task is not to blame for.
_INFRASTRUCTURE = (
    EndCause.LAUNCH,
    EndCause.NODE_LOST,
    EndCause.NODE_SHUTDOWN,
    EndCause.EVICTED,
    EndCause.BAD_GPU,
    EndCause.NEVER_STARTED,
)


def evaluation(session: Session, pool: str, slots: int, code: str) -> wire.Evaluation:
    """What a dry run says of the work: where it would go, when it would begin, and its price.

    Args:
        session: To read with.
        pool: That the work would go to.
        slots: Of the task, or of each trial.
        code: Digest of the files beside the configuration.
    """
    serving = select(Agent).where(Agent.pool == pool, Agent.is_connected, Agent.is_enabled)
    hosts = [
        sum(slot not in agent.disabled_slots and str(slot) not in agent.broken_slots for slot in agent.slot_ids)
        for agent in session.scalars(serving)
    ]
    offered = sum(hosts)
    held = select(func.coalesce(func.sum(Allocation.slots), 0))
    taken = int(session.scalar(held.where(Allocation.pool == pool, Allocation.ended_at.is_(None))) or 0)
    free = max(0, offered - taken)
    jobs, wanted = session.execute(waiting(func.count(), func.sum(SLOTS)).where(POOL.in_([pool]))).tuples().one()
    queued, ahead = int(jobs), int(wanted or 0)
    missing = slots + ahead - free
    pace = slots_per_second(session, pool)
    wait_s = 0.0 if missing <= 0 and hosts else missing / pace if pace and slots <= offered else None
    row = session.get(ResourcePool, pool)
    price = 0.0 if row is None else PoolSettings.model_validate(row.settings).slot_hour_price
    return wire.Evaluation(
        code_digest=code,
        resource_pool=pool,
        slots=slots,
        slots_offered=offered,
        slots_free=free,
        largest_host=max(hosts, default=0),
        fits=slots <= offered and bool(hosts),
        queued_ahead=queued,
        slots_ahead=ahead,
        estimated_wait_seconds=wait_s,
        price_per_hour=slots * price,
    )


def find(session: Session, job_id: str, user: UserPrincipal) -> Submission:
    """A submission of the user, or of work that they may see. Raises: NotFound."""
    row = session.get(Submission, job_id)
    if row is None or not (row.owner_id == user.user_id or user.is_admin or _may_see(session, row, user)):
        raise NotFound(f"submission '{job_id[:80]}' not found")
    return row


def _may_see(session: Session, row: Submission, user: UserPrincipal) -> bool:
    if row.kind == "EXPERIMENT":
        return may_see(readable, session, int(row.entity_id), user)
    return may_see(readable_task, session, row.entity_id, user)


def mine(
    session: Session,
    user: UserPrincipal,
    kind: str,
    submitted_after: datetime | None,
    before: tuple[datetime, str] | None,
    *,
    most: int,
) -> Sequence[Submission]:
    """The user's own, the newest first, from behind `before` on."""
    statement = select(Submission).where(Submission.owner_id == user.user_id)
    if kind:
        statement = statement.where(Submission.kind == kind)
    if submitted_after is not None:
        statement = statement.where(Submission.submitted_at > submitted_after)
    if before is not None:
        statement = statement.where(tuple_(Submission.submitted_at, Submission.job_id) < before)
    order = Submission.submitted_at.desc(), Submission.job_id.desc()
    return session.scalars(statement.order_by(*order).limit(most)).all()


def shown(session: Session, row: Submission, user: UserPrincipal) -> wire.Submission:
    """One of them."""
    tasks = session.scalars(
        select(Task).where(Task.job_id == row.job_id).order_by(Task.started_at, Task.id).limit(_MOST_TASKS)
    ).all()
    runs = select(Allocation).where(Allocation.task_id.in_([task.id for task in tasks])).order_by(Allocation.run_id)
    allocations = session.scalars(runs).all()
    state, reason, ended_at = _standing(session, row, allocations)
    is_open = row.owner_id == user.user_id or user.is_admin
    return wire.Submission(
        job_id=row.job_id,
        kind=f"SUBMISSION_KIND_{row.kind}",
        entity_id=row.entity_id,
        owner_id=row.owner_id,
        owner=session.get_one(User, row.owner_id).username,
        workspace_id=row.workspace_id,
        project_id=row.project_id,
        name=row.name,
        idempotency_key=row.idempotency_key if is_open else None,
        request_digest=row.request_digest if is_open else None,
        submitted_at=row.submitted_at,
        ended_at=ended_at,
        state=f"SUBMISSION_STATE_{state}",
        exit_class=_exit_class(state, allocations),
        exit_reason=reason,
        tasks=[
            wire.SubmissionTask(
                task_id=task.id,
                trial_id=task.trial_id,
                allocations=[_allocation(each) for each in allocations if each.task_id == task.id],
            )
            for task in tasks
        ],
    )


def _standing(session: Session, row: Submission, allocations: Sequence[Allocation]) -> tuple[str, str, datetime | None]:
    """State, why it ended, and when."""
    work = session.get(Experiment, int(row.entity_id)) if row.kind == "EXPERIMENT" else session.get(Task, row.entity_id)
    if work is None or work.state in _GONE:
        return "DELETED", "", None if work is None else work.ended_at
    reason = (work.error if isinstance(work, Experiment) else work.message) or ""
    if work.state in _ENDED:
        return _ENDED[work.state], reason, work.ended_at
    if work.state == "PAUSED":
        return "PAUSED", reason, None
    is_running = any(each.ended_at is None and each.state == "RUNNING" for each in allocations)
    return "RUNNING" if is_running or work.state.startswith("STOPPING") else "QUEUED", "", None


def _exit_class(state: str, allocations: Sequence[Allocation]) -> str:
    """How the work ended: as its last allocation did, if it failed."""
    if state == "FAILED":
        return f"EXIT_CLASS_{_failure(allocations[-1] if allocations else None)}"
    return f"EXIT_CLASS_{'NONE' if state in ('COMPLETED', 'CANCELED') else 'UNSPECIFIED'}"


def _failure(row: Allocation | None) -> str:
    is_ours = row is not None and (row.end_kind == ExitKind.SYSTEM or row.end_cause in _INFRASTRUCTURE)
    return "INFRASTRUCTURE_FAILED" if is_ours else "WORKLOAD_FAILED"


def _allocation(row: Allocation) -> wire.SubmissionAllocation:
    ended_well = row.end_kind in (ExitKind.CLEAN, ExitKind.FINISHED)
    uuids: list[str] = row.accelerators.get("acceleratorUuids") or []
    return wire.SubmissionAllocation(
        task_id=row.task_id,
        allocation_id=row.id,
        state=f"STATE_{'TERMINATED' if row.ended_at else 'STARTING' if row.state == 'ASSIGNED' else row.state}",
        slots=row.slots,
        resource_pool=row.pool,
        placements=[
            # a container says which ones it found, not on which of several hosts
            wire.Placement(node=str(host["agent_id"]), accelerator_uuids=uuids if len(row.placements) == 1 else [])
            for host in row.placements
        ],
        exit_class=f"EXIT_CLASS_{'UNSPECIFIED' if row.end_kind is None else 'NONE' if ended_well else _failure(row)}",
        exit_reason=row.end_message,
        status_code=row.exit_code,
        is_ready=row.ready_at is not None,
        start_time=row.started_at,
        end_time=row.ended_at,
    )
