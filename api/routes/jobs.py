"""The job queue."""

from __future__ import annotations

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


async def _jobs(
    parts: PartsDep,
    user: UserDep,
    pool: Annotated[str, Query(alias="resourcePool")] = "",
    states: Annotated[list[str] | None, Query(description=STATES)] = None,
) -> list[tuple[jobs.Job, bool]]:
    name = pool or await run_in_threadpool(_default, parts)
    wanted = {chosen("states", state, _STATES) for state in states or ()} - {""}
    state = await _state(parts, name)

    def read() -> list[tuple[jobs.Job, bool]]:
        with parts.database.read() as session:
            pool_service.find(session, name, user)
            found = jobs.in_pool(session, name, state)
            visible = jobs.visible(session, found, user)
        if wanted:
            found = [job for job in found if job.state in wanted]
        return [(job, job.of.job_id in visible) for job in found]

    return await run_in_threadpool(read)


JobsDep = Annotated[list[tuple[jobs.Job, bool]], Depends(_jobs)]


@router.get("/api/v1/job-queues")
async def list_jobs(parts: PartsDep, user: UserDep, window: WindowDep, found: JobsDep) -> Response:
    """The jobs of a pool that the user may see, in the order of its queue; v1GetJobsResponse."""
    shown = [jobs.full(job) for job, is_visible in found if is_visible]
    return _page(shown, window)


@router.get("/api/v1/job-queues-v2")
async def list_jobs_v2(parts: PartsDep, user: UserDep, window: WindowDep, found: JobsDep) -> Response:
    """The jobs of a pool in the order of its queue; of those that the user may not see, no more than their size."""
    shown = [
        {"full": jobs.full(job), "limited": None} if is_visible else {"full": None, "limited": jobs.limited(job)}
        for job, is_visible in found
    ]
    return _page(shown, window)


def _page(shown: list[dict[str, Any]], window: WindowDep) -> Response:
    if window.is_descending:
        shown.reverse()
    if window.limit == 0:
        window.limit = _DEFAULT_LIMIT
    start, end = window.bounds(len(shown))
    return answer({"jobs": shown[start:end], "pagination": window.pagination(len(shown))})


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
    results: list[dict[str, Any]] = []
    with parts.database.read() as session:
        visible = select(ResourcePool.name).where(visible_pools(user)).order_by(ResourcePool.name)
        for name in pools or session.scalars(visible).all():
            pool_service.find(session, name, user)
            found = jobs.in_pool(session, name, None)
            running = sum(job.state != jobs.QUEUED for job in found)
            counts = {"queuedCount": len(found) - running, "scheduledCount": running}
            results.append({"resourcePool": name, "stats": counts, "aggregates": []})
    return answer({"results": results})


@router.post("/api/v1/job-queues")
async def update(parts: PartsDep, user: UserDep, wanted: wire.UpdateJobQueue) -> Response:
    """Change priority, weight or place of jobs, in order. The error names those that failed; the others change."""
    if not wanted.updates:
        raise BadRequest("updates: expected one or more")
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
