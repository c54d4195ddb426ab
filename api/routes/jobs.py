"""The job queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authentication import UserPrincipal
from api.auth.authorization import changeable, changeable_task, visible_pools
from api.deps import PartsDep, UserDep
from api.errors import BadRequest, FailedPrecondition, NotFound, Unavailable
from api.parts import Parts
from api.queries import jobs
from api.queries.paging import WindowDep, chosen
from api.routes.bulk import check_count
from api.routing import Route
from api.schemas import jobs as wire
from api.schemas.base import answer
from api.schemas.parameters import STATES
from api.services import config_policies
from api.services import jobs as service
from api.services import pools as pool_service
from database.models import ResourcePool, Task
from workflows.messages import JobMove, PoolRun

router = APIRouter(route_class=Route, tags=["cluster"])

_STATES = {
    "STATE_UNSPECIFIED": "",
    "STATE_QUEUED": jobs.QUEUED,
    "STATE_SCHEDULED": jobs.SCHEDULED,
    "STATE_SCHEDULED_BACKFILLED": jobs.BACKFILLED,
}
_DEFAULT_LIMIT = 100


@dataclass(frozen=True)
class _Queue:
    """The jobs of the pool that a request asks for, in the states that it asks for."""

    found: list[jobs.Standing]
    state: PoolRun | None


async def _queue(
    parts: PartsDep,
    user: UserDep,
    pool: Annotated[str, Query(alias="resourcePool")] = "",
    states: Annotated[list[str] | None, Query(description=STATES)] = None,
) -> _Queue:
    name = pool or await run_in_threadpool(_default, parts)
    wanted = {chosen("states", state, _STATES) for state in states or ()} - {""}
    state = await _state(parts, name)

    def read() -> list[jobs.Standing]:
        with parts.database.read() as session:
            pool_service.find(session, name, user)
            return jobs.in_pool(session, name, state, user)

    found = await run_in_threadpool(read)
    return _Queue([each for each in found if not wanted or each.state in wanted], state)


QueueDep = Annotated[_Queue, Depends(_queue)]


@router.get("/api/v1/job-queues")
def list_jobs(parts: PartsDep, user: UserDep, window: WindowDep, queue: QueueDep) -> Response:
    """The jobs of a pool that the user may see, in the order of its queue; v1GetJobsResponse."""
    visible = [each for each in queue.found if each.is_visible]
    return _page(parts, window, _Queue(visible, queue.state), jobs.full)


@router.get("/api/v1/job-queues-v2")
def list_jobs_v2(parts: PartsDep, user: UserDep, window: WindowDep, queue: QueueDep) -> Response:
    """The jobs of a pool in the order of its queue; of those that the user may not see, no more than their size."""

    def shown(job: jobs.Job) -> dict[str, Any]:
        is_visible = job.at.is_visible
        return {"full": jobs.full(job) if is_visible else None, "limited": None if is_visible else jobs.limited(job)}

    return _page(parts, window, queue, shown)


def _page(parts: Parts, window: WindowDep, queue: _Queue, shown: Callable[[jobs.Job], dict[str, Any]]) -> Response:
    found = queue.found[::-1] if window.is_descending else queue.found
    if window.limit == 0:
        window.limit = _DEFAULT_LIMIT
    start, end = window.bounds(len(found))
    with parts.database.read() as session:
        page = [shown(job) for job in jobs.read(session, found[start:end], queue.state)]
    return answer({"jobs": page, "pagination": window.pagination(len(found))})


def _default(parts: Parts) -> str:
    with parts.database.read() as session:
        return pool_service.defaults_of(session).compute


async def _state(parts: Parts, pool: str) -> PoolRun | None:
    try:
        return await parts.commands.pool(pool)
    except Unavailable:  # the records answer without it; only the order of those that wait may differ
        return None


@router.get("/api/v1/job-queues/stats")
def stats(
    parts: PartsDep,
    user: UserDep,
    pools: Annotated[list[str] | None, Query(alias="resourcePools")] = None,
) -> Response:
    """How many jobs of each pool run and wait; v1GetJobQueueStatsResponse."""
    with parts.database.read() as session:
        for name in pools or ():
            pool_service.find(session, name, user)
        visible = select(ResourcePool.name).where(visible_pools(user)).order_by(ResourcePool.name)
        names = pools or session.scalars(visible).all()
        counts = jobs.counts(session, names)
    results: list[dict[str, Any]] = []
    for name in names:
        running, queued = counts.get(name, (0, 0))
        each = {"queuedCount": queued, "scheduledCount": running}
        results.append({"resourcePool": name, "stats": each, "aggregates": []})
    return answer({"results": results})


@router.post("/api/v1/job-queues")
async def update(parts: PartsDep, user: UserDep, wanted: wire.UpdateJobQueue) -> Response:
    """Change priority, weight or place of jobs, in order. The error names those that failed; the others change."""
    if not wanted.updates:
        raise BadRequest("updates: expected one or more")
    check_count("updates", len(wanted.updates), "changes")
    problems: list[str] = []
    for control in wanted.updates:
        try:
            if control.ahead_of or control.behind_of:
                await _move(parts, control, user)
            else:
                await run_in_threadpool(_update, parts, control, user)
        except (BadRequest, FailedPrecondition, NotFound) as error:
            if len(wanted.updates) == 1:
                raise
            problems.append(f"{control.job_id}: {error.message}")
    parts.dispatcher.poke()
    if problems:
        raise BadRequest("; ".join(problems))
    return answer()


def _update(parts: Parts, control: wire.QueueControl, user: UserPrincipal) -> None:
    if not control.resource_pool and control.priority is None and control.weight is None:
        raise BadRequest(f"job {control.job_id}: expected one of priority, weight, aheadOf, behindOf, resourcePool")
    changes = wire.PatchResources(priority=control.priority, weight=control.weight)
    with parts.database.write() as session:
        row = _changeable(session, control.job_id, user)
        if not control.resource_pool:
            service.change(session, row, changes)
        elif isinstance(row, Task):
            raise FailedPrecondition(f"job {control.job_id}: only experiments can be moved to another pool")
        else:
            pool_service.move(session, row, control.resource_pool, user)


def _changeable(session: Session, job_id: str, user: UserPrincipal) -> jobs.Claimant:
    """What a job is of, if the user may change it. Raises: NotFound, Forbidden."""
    row = jobs.find(session, job_id, user)
    return changeable_task(session, row.id, user) if isinstance(row, Task) else changeable(session, row.id, user)


async def _move(parts: Parts, control: wire.QueueControl, user: UserPrincipal) -> None:
    """The pool decides where that is, and takes it; the record follows."""
    if control.ahead_of and control.behind_of:
        raise BadRequest(f"job {control.job_id}: expected one of aheadOf and behindOf, not both")

    def read() -> tuple[str, JobMove]:
        with parts.database.read() as session:
            row = _changeable(session, control.job_id, user)
            anchor = jobs.find(session, control.ahead_of or control.behind_of or "", user)
            pool, other = service.pool_of(row), service.pool_of(anchor)
            if other != pool:
                raise BadRequest(f"job {anchor.job_id} is in pool {other}, job {row.job_id} in {pool}")
            config_policies.check_move(session, row, anchor, pool)
            move = JobMove(job=service.claim_of(row), anchor=service.claim_of(anchor), is_ahead=bool(control.ahead_of))
            return pool, move

    pool, move = await run_in_threadpool(read)
    claim = await parts.commands.move_job(pool, move)

    def write() -> None:
        with parts.database.write() as session:
            service.note_move(_changeable(session, control.job_id, user), claim)

    await run_in_threadpool(write)
