"""The job queue: experiments and other tasks that request slots, in the order in which they receive them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Select, case, func, select
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.auth.authorization import Statement, readable_experiments, readable_tasks, with_trials
from api.errors import NotFound
from database.engines import in_parts
from database.models import Allocation, Experiment, Project, Task, Trial, User
from database.types import utc_now
from workflows.lifecycle.explain import why_queued
from workflows.messages import PoolRun
from workflows.scheduling.explain import standings
from workflows.scheduling.pool import Pool
from workflows.scheduling.settings import DEFAULT_PRIORITY

#: The states of a job; what passed one that waits is backfilled.
QUEUED, SCHEDULED, BACKFILLED = "queued", "scheduled", "backfilled"
_WIRE_STATES = {QUEUED: "STATE_QUEUED", SCHEDULED: "STATE_SCHEDULED", BACKFILLED: "STATE_SCHEDULED_BACKFILLED"}
#: From how long back the pace of a pool is taken.
_PACE = timedelta(hours=1)


#: What a job is of: an experiment with all its trials, or a task that is no trial.
Claimant = Experiment | Task


@dataclass(frozen=True)
class Standing:
    """Where a job stands among those of its pool: all that is read of jobs that no page shows.

    Attributes:
        of: The id of its experiment, a number, or of its task, a text.
        is_visible: Whether who asks may see more than its size.
        allocated: The slots that it has.
        ahead: Queued jobs before it; -1 if it does not queue.
        waits: Why it does, if it has a request in the queue.
        wait_s: How long still, if slots come free as they did lately.
    """

    of: int | str
    job_id: str
    started_at: datetime
    is_visible: bool
    state: str
    allocated: int
    ahead: int
    waits: str
    wait_s: float | None


@dataclass(frozen=True)
class Job:
    """What asks its pool for slots."""

    of: Claimant
    at: Standing
    username: str
    workspace_id: int
    requested: int
    priority: int


def in_pool(session: Session, pool: str, state: PoolRun | None, user: UserPrincipal) -> list[Standing]:
    """The jobs of a pool: those that have slots first, then those that wait, in the order of the pool's queue.

    Args:
        session: to read with.
        pool: its name.
        state: of its workflow; None while it does not answer: then the jobs wait in the order of their submission.
        user: who asks.
    """
    experiments = _active_experiments(
        select(Experiment.id, Experiment.job_id, Experiment.started_at, readable_experiments(user))
        .join(Project, Project.id == Experiment.project_id)
        .where(Experiment.resource_pool == pool)
    )
    tasks = _active_tasks(with_trials(select(Task.id, Task.job_id, Task.started_at, readable_tasks(user))))
    rows = [*session.execute(experiments), *session.execute(tasks.where(Task.pool == pool))]
    live: dict[str, int] = dict(session.execute(_live()).tuples().all())
    places = {} if state is None else _places(session, state)
    passed: set[str] = set() if state is None else _backfilled(state)
    nowhere = _Place(len(places))
    rows.sort(key=lambda row: (row.job_id not in live, places.get(row.job_id, nowhere).place, row.started_at))
    found: list[Standing] = []
    queued = 0
    for of, job_id, started_at, is_visible in rows:
        place = places.get(job_id, nowhere)
        runs = BACKFILLED if job_id in passed else SCHEDULED
        found.append(
            Standing(
                of=of,
                job_id=job_id,
                started_at=started_at,
                is_visible=bool(is_visible),
                state=runs if job_id in live else QUEUED,
                allocated=live.get(job_id, 0),
                ahead=-1 if job_id in live else queued,
                waits=place.reason,
                wait_s=place.wait_s,
            )
        )
        queued += job_id not in live
    return found


def read(session: Session, jobs: Sequence[Standing], state: PoolRun | None) -> list[Job]:
    """What a page shows of these jobs of a pool, in their order; those that were deleted meanwhile are left out."""
    usual = DEFAULT_PRIORITY if state is None else state.settings.default_priority
    found: dict[int | str, Job] = {}
    for part in in_parts(jobs):
        some = {each.of: each for each in part}
        experiments, tasks = [of for of in some if isinstance(of, int)], [of for of in some if isinstance(of, str)]
        rows = [*(_experiments(session, experiments) if experiments else ())]
        rows += _tasks(session, tasks) if tasks else ()
        for row, username, workspace_id, requested in rows:
            priority = _resources(row).get("priority") or usual
            found[row.id] = Job(row, some[row.id], username, workspace_id, requested, priority)
    return [found[each.of] for each in jobs if each.of in found]


def counts(session: Session, pools: Sequence[str]) -> dict[str, tuple[int, int]]:
    """By pool, how many jobs have slots, and how many wait. Of a pool that has none: nothing."""
    found: dict[str, tuple[int, int]] = {}
    live = _live().with_only_columns(Task.job_id)
    for of, name, statement in (
        (Experiment.job_id, Experiment.resource_pool, _active_experiments),
        (Task.job_id, Task.pool, _active_tasks),
    ):
        runs = func.coalesce(func.sum(case((of.in_(live), 1), else_=0)), 0)
        each = statement(select(name, runs, func.count())).where(name.in_(pools)).group_by(name)
        for pool, running, count in session.execute(each).tuples():
            has = found.get(pool, (0, 0))
            found[pool] = (has[0] + running, has[1] + count - running)
    return found


def _active_experiments(statement: Statement) -> Statement:
    return statement.where(Experiment.state == "ACTIVE", ~Experiment.is_unmanaged)


def _active_tasks(statement: Statement) -> Statement:
    """Those that wait or run and are no trials: a trial's names no pool."""
    return statement.where(Task.state == "ACTIVE", Task.ended_at.is_(None), Task.pool.is_not(None))


def _live() -> Select[str, int]:
    """The jobs that have slots, and how many."""
    return (
        select(Task.job_id, func.coalesce(func.sum(Allocation.slots), 0))
        .join(Allocation, Allocation.task_id == Task.id)
        .where(Allocation.ended_at.is_(None))
        .group_by(Task.job_id)
    )


def _experiments(session: Session, ids: Sequence[int]) -> Iterator[tuple[Claimant, str, int, int]]:
    """Those of the ids, each with its owner, its workspace, and the slots that it could use."""
    rows = session.execute(
        select(Experiment, User.username, Project.workspace_id)
        .join(User, User.id == Experiment.owner_id)
        .join(Project, Project.id == Experiment.project_id)
        .where(Experiment.id.in_(ids))
    ).tuples()
    found = rows.all()
    open_trials = dict(
        session.execute(
            select(Trial.experiment_id, func.count())
            .where(Trial.experiment_id.in_(ids), Trial.state == "ACTIVE")
            .group_by(Trial.experiment_id)
        ).tuples().all()
    )  # fmt: skip
    for row, owner, workspace_id in found:
        yield row, owner, workspace_id, open_trials.get(row.id, 0) * row.slots_per_trial


def _tasks(session: Session, ids: Sequence[str]) -> Iterator[tuple[Claimant, str, int, int]]:
    """Likewise."""
    found = select(Task, User.username).join(User, User.id == Task.owner_id).where(Task.id.in_(ids))
    for row, owner in session.execute(found).tuples():
        yield row, owner, row.workspace_id or 0, row.slots or 0


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
    pool, lost = Pool(state.snapshot, state.settings), state.lost.values()
    for request, facts in standings(state.name, pool, lost, lambda each: each.job_id not in found):
        wanted += request.slots
        if facts is not None:  # it is the first one of its job
            can_start = facts.fits_ever and not facts.is_capped and (facts.lends or not facts.is_borrowing)
            wait_s = max(0, wanted - facts.free) / pace if pace and can_start else None
            found[request.job_id] = _Place(len(found), why_queued(facts), wait_s)
    return found


def _backfilled(state: PoolRun) -> set[str]:
    return {grant.request.job_id for grant in state.snapshot.grants.values() if grant.is_backfilled}


def slots_per_second(session: Session, pool: str) -> float:
    """How quickly slots of the pool came free lately; 0 if none did."""
    since = utc_now() - _PACE
    ended = select(func.sum(Allocation.slots)).where(Allocation.pool == pool, Allocation.ended_at > since)
    return float(session.scalar(ended) or 0) / _PACE.total_seconds()


def find(session: Session, job_id: str, user: UserPrincipal) -> Claimant:
    """The experiment or the task of a job that the user may see. Raises: NotFound."""
    experiments = select(Experiment).join(Project, Project.id == Experiment.project_id)
    tasks = with_trials(select(Task)).where(Task.trial_id.is_(None))
    row = session.scalar(experiments.where(Experiment.job_id == job_id, readable_experiments(user)))
    row = row or session.scalar(tasks.where(Task.job_id == job_id, readable_tasks(user)))
    if row is None:
        raise NotFound(f"job {job_id} not found")
    return row


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
        "allocatedSlots": job.at.allocated,
        "progress": 0.0 if is_task else row.progress,
        "workspaceId": job.workspace_id,
        "summary": {
            "state": _WIRE_STATES[job.at.state],
            "jobsAhead": max(0, job.at.ahead),
        },
        "waits": job.at.waits,
        "estimatedWaitSeconds": job.at.wait_s,
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
