"""The job queue: experiments that want slots, in the order in which they get them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from api.access import readable_experiments
from api.auth import UserPrincipal
from api.errors import NotFound
from database.models import Allocation, Experiment, Project, Trial, User
from workflows.scheduling.model import PoolSnapshot

#: What the wire calls a job's priority when its config says none.
DEFAULT_PRIORITY = 42


@dataclass(frozen=True)
class Job:
    """An experiment in the queue of its pool. `ahead`: queued jobs before it; -1 if it does not queue."""

    experiment: Experiment
    username: str
    workspace_id: int
    requested: int
    allocated: int
    is_scheduled: bool
    ahead: int = -1


def _active() -> Select[Experiment, str, int]:
    return (
        select(Experiment, User.username, Project.workspace_id)
        .join(User, User.id == Experiment.owner_id)
        .join(Project, Project.id == Experiment.project_id)
        .where(Experiment.state == "ACTIVE", ~Experiment.is_unmanaged)
    )


def in_pool(session: Session, pool: str, snapshot: PoolSnapshot | None) -> list[Job]:
    """The jobs of a pool: those that have slots first, then those that wait, in the order of the pool's queue.

    Args:
        session: to read with.
        pool: its name.
        snapshot: the pool's queue; None while it does not answer: then the jobs wait in the order of their submission.
    """
    rows = session.execute(_active().where(Experiment.resource_pool == pool).order_by(Experiment.id)).tuples().all()
    ids = [row[0].id for row in rows]
    live = _counts(
        session,
        select(Trial.experiment_id, func.count(Allocation.id), func.coalesce(func.sum(Allocation.slots), 0))
        .join(Allocation, Allocation.trial_id == Trial.id)
        .where(Trial.experiment_id.in_(ids), Allocation.ended_at.is_(None))
        .group_by(Trial.experiment_id),
    )
    open_trials = _counts(
        session,
        select(Trial.experiment_id, func.count(), func.count())
        .where(Trial.experiment_id.in_(ids), Trial.state == "ACTIVE")
        .group_by(Trial.experiment_id),
    )
    place = {} if snapshot is None else _places(snapshot)
    jobs = [
        Job(
            experiment=experiment,
            username=username,
            workspace_id=workspace_id,
            requested=open_trials.get(experiment.id, (0, 0))[0] * experiment.slots_per_trial,
            allocated=live.get(experiment.id, (0, 0))[1],
            is_scheduled=live.get(experiment.id, (0, 0))[0] > 0,
        )
        for experiment, username, workspace_id in rows
    ]
    last = len(place)
    jobs.sort(key=lambda job: (not job.is_scheduled, place.get(job.experiment.job_id, last), job.experiment.started_at))
    queued = [job for job in jobs if not job.is_scheduled]
    ahead = {job.experiment.id: index for index, job in enumerate(queued)}
    return [replace(job, ahead=ahead.get(job.experiment.id, -1)) for job in jobs]


def _places(snapshot: PoolSnapshot) -> dict[str, int]:
    place: dict[str, int] = {}
    for request in snapshot.queue:
        place.setdefault(request.job_id, len(place))
    return place


def _counts(session: Session, statement: Select[Any, Any, Any]) -> Mapping[int, tuple[int, int]]:
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
    """v1LimitedJob: what everybody may know, since it explains how long he waits."""
    experiment = job.experiment
    resources: dict[str, Any] = experiment.config.get("resources") or {}
    return {
        "jobId": experiment.job_id,
        "type": "TYPE_EXPERIMENT",
        "resourcePool": experiment.resource_pool,
        "isPreemptible": True,
        "priority": resources.get("priority") or DEFAULT_PRIORITY,
        "weight": resources.get("weight") or 1.0,
        "requestedSlots": job.requested,
        "allocatedSlots": job.allocated,
        "progress": experiment.progress,
        "workspaceId": job.workspace_id,
        "summary": {
            "state": "STATE_SCHEDULED" if job.is_scheduled else "STATE_QUEUED",
            "jobsAhead": max(0, job.ahead),
        },
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
