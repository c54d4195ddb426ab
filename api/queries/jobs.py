"""The job queue: experiments and other tasks that request slots, in the order in which they receive them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.auth.authorization import readable_experiments, readable_tasks, with_trials
from api.errors import NotFound
from database.models import Allocation, Experiment, Project, Task, Trial, User
from database.types import utc_now
from workflows.lifecycle.explain import why_queued
from workflows.messages import PoolRun
from workflows.scheduling.explain import standings
from workflows.scheduling.pool import Pool
from workflows.scheduling.settings import DEFAULT_PRIORITY

Key = TypeVar("Key", int, str)

#: The states of a job; what passed one that waits is backfilled.
QUEUED, SCHEDULED, BACKFILLED = "queued", "scheduled", "backfilled"
_WIRE_STATES = {QUEUED: "STATE_QUEUED", SCHEDULED: "STATE_SCHEDULED", BACKFILLED: "STATE_SCHEDULED_BACKFILLED"}
#: From how long back the pace of a pool is taken.
_PACE = timedelta(hours=1)


#: What a job is of: an experiment with all its trials, or a task that is no trial.
Claimant = Experiment | Task


@dataclass(frozen=True)
class Job:
    """What asks its pool for slots. `ahead`: queued jobs before it; -1 if it does not queue."""

    of: Claimant
    username: str
    workspace_id: int
    requested: int
    allocated: int
    state: str
    priority: int = DEFAULT_PRIORITY
    ahead: int = -1
    waits: str = ""  # why it does, if it has a request in the queue
    wait_s: float | None = None  # how long still, if slots come free as they did lately


def _experiments(session: Session, pool: str) -> list[tuple[Claimant, str, int, int]]:
    """Those of a pool that are active, each with its owner, its workspace, and the slots that it could use."""
    rows = session.execute(
        select(Experiment, User.username, Project.workspace_id)
        .join(User, User.id == Experiment.owner_id)
        .join(Project, Project.id == Experiment.project_id)
        .where(Experiment.state == "ACTIVE", ~Experiment.is_unmanaged, Experiment.resource_pool == pool)
    ).tuples()
    found = rows.all()
    open_trials = _counts(
        session,
        select(Trial.experiment_id, func.count(), func.count())
        .where(Trial.experiment_id.in_([row[0].id for row in found]), Trial.state == "ACTIVE")
        .group_by(Trial.experiment_id),
    )
    return [
        (row, owner, workspace_id, open_trials.get(row.id, (0, 0))[0] * row.slots_per_trial)
        for row, owner, workspace_id in found
    ]


def _tasks(session: Session, pool: str) -> list[tuple[Claimant, str, int, int]]:
    """Those of a pool that wait or run and are no trials, likewise."""
    rows = session.execute(
        select(Task, User.username)
        .join(User, User.id == Task.owner_id)
        .where(Task.pool == pool, Task.state == "ACTIVE", Task.ended_at.is_(None))
    ).tuples()
    return [(row, owner, row.workspace_id or 0, row.slots or 0) for row, owner in rows]


def in_pool(session: Session, pool: str, state: PoolRun | None) -> list[Job]:
    """The jobs of a pool: those that have slots first, then those that wait, in the order of the pool's queue.

    Args:
        session: to read with.
        pool: its name.
        state: of its workflow; None while it does not answer: then the jobs wait in the order of their submission.
    """
    rows = [*_experiments(session, pool), *_tasks(session, pool)]
    live = _counts(
        session,
        select(Task.job_id, func.count(Allocation.id), func.coalesce(func.sum(Allocation.slots), 0))
        .join(Allocation, Allocation.task_id == Task.id)
        .where(Task.job_id.in_([row[0].job_id for row in rows]), Allocation.ended_at.is_(None))
        .group_by(Task.job_id),
    )
    places = {} if state is None else _places(session, state)
    usual = DEFAULT_PRIORITY if state is None else state.settings.default_priority
    passed: set[str] = set() if state is None else _backfilled(state)
    jobs = [
        Job(
            of=row,
            username=username,
            workspace_id=workspace_id,
            requested=requested,
            allocated=live.get(row.job_id, (0, 0))[1],
            state=(BACKFILLED if row.job_id in passed else SCHEDULED) if row.job_id in live else QUEUED,
            priority=_resources(row).get("priority") or usual,
        )
        for row, username, workspace_id, requested in rows
    ]
    nowhere = _Place(len(places))
    jobs.sort(
        key=lambda job: (
            job.state == QUEUED,
            places.get(job.of.job_id, nowhere).place,
            job.of.started_at,
        )
    )
    ahead = {job.of.job_id: index for index, job in enumerate(job for job in jobs if job.state == QUEUED)}
    found: list[Job] = []
    for job in jobs:
        place = places.get(job.of.job_id, nowhere)
        found.append(replace(job, ahead=ahead.get(job.of.job_id, -1), waits=place.reason, wait_s=place.wait_s))
    return found


def _resources(row: Claimant) -> dict[str, Any]:
    return (row.config or {}).get("resources") or {}


@dataclass(frozen=True)
class _Place:
    """Where the first request of a job stands."""

    place: int
    reason: str = ""
    wait_s: float | None = None


def _places(session: Session, state: PoolRun) -> dict[str, _Place]:
    pace = slots_per_second(session, state.name)
    found: dict[str, _Place] = {}
    wanted = 0
    for request, facts in standings(state.name, Pool(state.snapshot, state.settings), state.lost.values()):
        wanted += request.slots
        can_start = facts.fits_ever and not facts.is_capped and (facts.lends or not facts.is_borrowing)
        wait_s = max(0, wanted - facts.free) / pace if pace and can_start else None
        found.setdefault(request.job_id, _Place(len(found), why_queued(facts), wait_s))
    return found


def _backfilled(state: PoolRun) -> set[str]:
    return {grant.request.job_id for grant in state.snapshot.grants.values() if grant.is_backfilled}


def slots_per_second(session: Session, pool: str) -> float:
    """How quickly slots of the pool came free lately; 0 if none did."""
    since = utc_now() - _PACE
    ended = select(func.sum(Allocation.slots)).where(Allocation.pool == pool, Allocation.ended_at > since)
    return float(session.scalar(ended) or 0) / _PACE.total_seconds()


def _counts(session: Session, statement: Select[Key, int, Any]) -> Mapping[Key, tuple[int, int]]:
    return {row[0]: (int(row[1]), int(row[2])) for row in session.execute(statement)}


def find(session: Session, job_id: str, user: UserPrincipal) -> Claimant:
    """The experiment or the task of a job that the user may see. Raises: NotFound."""
    experiments = select(Experiment).join(Project, Project.id == Experiment.project_id)
    tasks = with_trials(select(Task)).where(Task.trial_id.is_(None))
    row = session.scalar(experiments.where(Experiment.job_id == job_id, readable_experiments(user)))
    row = row or session.scalar(tasks.where(Task.job_id == job_id, readable_tasks(user)))
    if row is None:
        raise NotFound(f"job {job_id} not found")
    return row


def visible(session: Session, jobs: Sequence[Job], user: UserPrincipal) -> set[str]:
    """The ids of those of the jobs that the user may see."""
    ids = [job.of.job_id for job in jobs]
    experiments = select(Experiment.job_id).join(Project, Project.id == Experiment.project_id)
    tasks = with_trials(select(Task.job_id)).where(Task.trial_id.is_(None))
    return {
        *session.scalars(experiments.where(Experiment.job_id.in_(ids), readable_experiments(user))),
        *session.scalars(tasks.where(Task.job_id.in_(ids), readable_tasks(user))),
    }


def limited(job: Job) -> dict[str, Any]:
    """v1LimitedJob: visible to all users, since it explains how long they wait."""
    row = job.of
    is_task = isinstance(row, Task)
    return {
        "jobId": row.job_id,
        "type": f"TYPE_{row.kind}" if is_task else "TYPE_EXPERIMENT",
        "resourcePool": row.pool if is_task else row.resource_pool,
        "isPreemptible": bool(row.is_pausable) if is_task else True,
        "priority": job.priority,
        "weight": _resources(row).get("weight") or 1.0,
        "requestedSlots": job.requested,
        "allocatedSlots": job.allocated,
        "progress": 0.0 if is_task else row.progress,
        "workspaceId": job.workspace_id,
        "summary": {
            "state": _WIRE_STATES[job.state],
            "jobsAhead": max(0, job.ahead),
        },
        "waits": job.waits,
        "estimatedWaitSeconds": job.wait_s,
    }


def full(job: Job) -> dict[str, Any]:
    """v1Job."""
    row = job.of
    return limited(job) | {
        "entityId": str(row.id),
        "name": row.name or "",
        "username": job.username,
        "userId": row.owner_id,
        "submissionTime": row.started_at,
    }
