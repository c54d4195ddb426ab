"""The job queue: experiments that request slots, in the order in which they receive them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.auth.authorization import readable_experiments
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


@dataclass(frozen=True)
class Job:
    """An experiment in the queue of its pool. `ahead`: queued jobs before it; -1 if it does not queue."""

    experiment: Experiment
    username: str
    workspace_id: int
    requested: int
    allocated: int
    state: str
    priority: int = DEFAULT_PRIORITY
    ahead: int = -1
    waits: str = ""  # why it does, if it has a request in the queue
    wait_s: float | None = None  # how long still, if slots come free as they did lately


def _active() -> Select[Experiment, str, int]:
    return (
        select(Experiment, User.username, Project.workspace_id)
        .join(User, User.id == Experiment.owner_id)
        .join(Project, Project.id == Experiment.project_id)
        .where(Experiment.state == "ACTIVE", ~Experiment.is_unmanaged)
    )


def in_pool(session: Session, pool: str, state: PoolRun | None) -> list[Job]:
    """The jobs of a pool: those that have slots first, then those that wait, in the order of the pool's queue.

    Args:
        session: to read with.
        pool: its name.
        state: of its workflow; None while it does not answer: then the jobs wait in the order of their submission.
    """
    rows = session.execute(_active().where(Experiment.resource_pool == pool).order_by(Experiment.id)).tuples().all()
    ids = [row[0].id for row in rows]
    live = _counts(
        session,
        select(Task.job_id, func.count(Allocation.id), func.coalesce(func.sum(Allocation.slots), 0))
        .join(Allocation, Allocation.task_id == Task.id)
        .where(Task.job_id.in_([row[0].job_id for row in rows]), Allocation.ended_at.is_(None))
        .group_by(Task.job_id),
    )
    open_trials = _counts(
        session,
        select(Trial.experiment_id, func.count(), func.count())
        .where(Trial.experiment_id.in_(ids), Trial.state == "ACTIVE")
        .group_by(Trial.experiment_id),
    )
    places = {} if state is None else _places(session, state)
    usual = DEFAULT_PRIORITY if state is None else state.settings.default_priority
    passed: set[str] = set() if state is None else _backfilled(state)
    jobs = [
        Job(
            experiment=experiment,
            username=username,
            workspace_id=workspace_id,
            requested=open_trials.get(experiment.id, (0, 0))[0] * experiment.slots_per_trial,
            allocated=live.get(experiment.job_id, (0, 0))[1],
            state=(BACKFILLED if experiment.job_id in passed else SCHEDULED) if experiment.job_id in live else QUEUED,
            priority=experiment.config["resources"].get("priority") or usual,
        )
        for experiment, username, workspace_id in rows
    ]
    nowhere = _Place(len(places))
    jobs.sort(
        key=lambda job: (
            job.state == QUEUED,
            places.get(job.experiment.job_id, nowhere).place,
            job.experiment.started_at,
        )
    )
    ahead = {job.experiment.id: index for index, job in enumerate(job for job in jobs if job.state == QUEUED)}
    found: list[Job] = []
    for job in jobs:
        place = places.get(job.experiment.job_id, nowhere)
        found.append(replace(job, ahead=ahead.get(job.experiment.id, -1), waits=place.reason, wait_s=place.wait_s))
    return found


@dataclass(frozen=True)
class _Place:
    """Where the first request of a job stands."""

    place: int
    reason: str = ""
    wait_s: float | None = None


def _places(session: Session, state: PoolRun) -> dict[str, _Place]:
    pace = _slots_per_second(session, state.name)
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


def _slots_per_second(session: Session, pool: str) -> float:
    """How quickly slots of the pool came free lately; 0 if none did."""
    since = utc_now() - _PACE
    ended = select(func.sum(Allocation.slots)).where(Allocation.pool == pool, Allocation.ended_at > since)
    return float(session.scalar(ended) or 0) / _PACE.total_seconds()


def _counts(session: Session, statement: Select[Key, int, Any]) -> Mapping[Key, tuple[int, int]]:
    return {row[0]: (int(row[1]), int(row[2])) for row in session.execute(statement)}


def find(session: Session, job_id: str, user: UserPrincipal) -> Experiment:
    """The experiment of a job that the user may see. Raises: NotFound."""
    statement = select(Experiment).join(Project, Project.id == Experiment.project_id)
    row = session.scalar(statement.where(Experiment.job_id == job_id, readable_experiments(user)))
    if row is None:
        raise NotFound(f"job {job_id} not found")
    return row


def visible(session: Session, jobs: Sequence[Job], user: UserPrincipal) -> set[int]:
    """Ids of those of the experiments that the user may see."""
    statement = select(Experiment.id).join(Project, Project.id == Experiment.project_id)
    ids = [job.experiment.id for job in jobs]
    return set(session.scalars(statement.where(Experiment.id.in_(ids), readable_experiments(user))))


def limited(job: Job) -> dict[str, Any]:
    """v1LimitedJob: visible to all users, since it explains how long they wait."""
    experiment = job.experiment
    resources: dict[str, Any] = experiment.config.get("resources") or {}
    return {
        "jobId": experiment.job_id,
        "type": "TYPE_EXPERIMENT",
        "resourcePool": experiment.resource_pool,
        "isPreemptible": True,
        "priority": job.priority,
        "weight": resources.get("weight") or 1.0,
        "requestedSlots": job.requested,
        "allocatedSlots": job.allocated,
        "progress": experiment.progress,
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
    experiment = job.experiment
    return limited(job) | {
        "entityId": str(experiment.id),
        "name": experiment.name,
        "username": job.username,
        "userId": experiment.owner_id,
        "submissionTime": experiment.started_at,
    }
