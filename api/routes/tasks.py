"""Tasks: their context and their logs."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Query, Request
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authentication import AllocationPrincipal, UserPrincipal
from api.auth.authorization import readable_task, readable_trial
from api.deps import PartsDep, PrincipalDep, UserDep, asked_again
from api.errors import BadRequest, NotFound
from api.parts import Parts
from api.queries import logs
from api.queries.contexts import of_task
from api.queries.paging import Window
from api.queries.tasks import of_generic
from api.routes.task_lists import allocation
from api.routing import Route, hot
from api.schemas import logs as wire
from api.schemas.base import Instant, answer, encode
from api.schemas.contexts import TaskContextResponse
from api.schemas.parameters import ORDER_BY, Follow, TaskId, TrialId
from api.schemas.streaming import LINES, stream
from api.services.context_contents import Contents, Stored, stored, tar_size
from database.models import Allocation, LogPolicyMatch, Task
from database.tasks import tasks_of_trials
from workflows.config.patterns import PatternRefused, PatternSet
from workflows.lifecycle.task import TaskKind

router = APIRouter(route_class=Route, tags=["tasks"])

#: A follower stays this long after the end, so that lines on their way still arrive.
_GRACE_S = 1.0
_TICK_S = 0.25
#: Who is quiet for long is looked after less often: most followers wait for trials that say nothing.
_QUIET_AFTER_S, _QUIET_TICK_S = 5.0, 1.0


@router.get("/api/v1/tasks/{task_id}")
def get_task(task_id: TaskId, parts: PartsDep, user: UserDep) -> Response:
    """A task with its allocations."""
    with parts.database.read() as session:
        task = readable_task(session, task_id, user)
        rows = session.scalars(
            select(Allocation).where(Allocation.task_id == task_id).order_by(Allocation.run_id.desc())
        ).all()
        labels = dict(
            session.execute(
                select(LogPolicyMatch.allocation_id, LogPolicyMatch.name)
                .join(Allocation, Allocation.id == LogPolicyMatch.allocation_id)
                .where(Allocation.task_id == task_id, LogPolicyMatch.name.is_not(None))
                .order_by(LogPolicyMatch.matched_at, LogPolicyMatch.policy)
            )
            .tuples()
            .all()
        )
    allocations = [allocation(row) | {"logPolicyMatched": labels.get(row.id)} for row in rows]
    found = {
        "taskId": task_id,
        "taskType": TaskKind(task.kind).on_the_wire,
        "startTime": task.started_at,
        "endTime": task.ended_at,
        "allocations": allocations,
    } | of_generic(task)
    return answer({"task": found})


@router.get("/api/v1/tasks/{task_id}/context_directory", response_model=TaskContextResponse)
def context_directory(
    task_id: TaskId,
    parts: PartsDep,
    caller: PrincipalDep,
    by_stream: Annotated[
        bool, Query(alias="byStream", description="Do not pack files in chunks: say how long the stream of them is.")
    ] = False,
) -> Response:
    """The packed context of a task, for its own containers."""
    if not isinstance(caller, AllocationPrincipal) or caller.task_id != task_id:
        raise NotFound(f"task {task_id} not found")
    with parts.database.read() as session:
        what = stored(session, of_task(task_id, caller.kind)) or Stored()
    contents = Contents(parts.database, what)
    if by_stream and contents.is_chunked:
        return answer({"b64Tgz": "", "streamBytes": str(tar_size(contents.entries()))})
    return answer({"b64Tgz": base64.b64encode(contents.tgz()).decode(), "streamBytes": "0"})


# -- writing -------------------------------------------------------------------------------------------------------


@router.post("/api/v1/task/logs")
@hot
async def post_logs(parts: PartsDep, caller: PrincipalDep, batch: wire.LogBatch) -> Response:
    """Lines of one task, from a shipper in its container or from the agent."""
    if not batch.logs:
        raise BadRequest("logs: the list is empty, expected at least one line")
    await run_in_threadpool(parts.logs.store, caller, batch.logs)
    return answer()


@router.post("/task-logs")
async def post_task_logs(
    parts: PartsDep, caller: PrincipalDep, entries: Annotated[wire.SentLines, Body(default_factory=wire.SentLines.none)]
) -> Response:
    """The same as a bare array, as older shippers send it."""
    await run_in_threadpool(parts.logs.store, caller, entries)
    return Response(b'""', 200, media_type="application/json")


# -- reading -------------------------------------------------------------------------------------------------------


async def _filter(
    allocation_ids: Annotated[list[str] | None, Query(alias="allocationIds")] = None,
    agent_ids: Annotated[list[str] | None, Query(alias="agentIds")] = None,
    container_ids: Annotated[list[str] | None, Query(alias="containerIds")] = None,
    rank_ids: Annotated[list[int] | None, Query(alias="rankIds")] = None,
    levels: Annotated[list[str] | None, Query()] = None,
    sources: Annotated[list[str] | None, Query()] = None,
    stdtypes: Annotated[list[str] | None, Query()] = None,
    search_text: Annotated[str, Query(alias="searchText", max_length=10_000)] = "",
    is_pattern: Annotated[bool, Query(alias="enableRegex")] = False,
    before: Annotated[Instant | None, Query(alias="timestampBefore")] = None,
    after: Annotated[Instant | None, Query(alias="timestampAfter")] = None,
    after_id: Annotated[int | None, Query(alias="afterId", ge=0, lt=2**63)] = None,
) -> logs.LogFilter:
    return logs.LogFilter(
        allocation_ids=allocation_ids or (),
        agent_ids=agent_ids or (),
        container_ids=container_ids or (),
        rank_ids=rank_ids or (),
        levels=logs.stored_levels(levels or ()),
        sources=sources or (),
        stdtypes=stdtypes or (),
        search_text="" if is_pattern else search_text,
        pattern=_pattern(search_text) if is_pattern and search_text else None,
        before=before,
        after=after,
        after_id=after_id,
    )


def _pattern(text: str) -> PatternSet:
    try:
        return PatternSet([text])
    except PatternRefused as error:
        raise BadRequest(f"searchText: {text[:80]!r}: {error}") from None


FilterDep = Annotated[logs.LogFilter, Depends(_filter)]


@router.get("/api/v1/trials/{trial_id}/logs", response_class=Response, responses=LINES)
async def trial_logs(
    trial_id: TrialId,
    request: Request,
    parts: PartsDep,
    user: UserDep,
    wanted: FilterDep,
    limit: int = 0,
    follow: Follow = False,
    order_by: Annotated[str, Query(alias="orderBy", description=ORDER_BY)] = "",
) -> Response:
    """Lines of a trial as a stream; with `follow` it stays open until the trial has ended."""

    def find(reader: UserPrincipal) -> list[str]:
        with parts.database.read() as session:
            return tasks_of_trials(session, [readable_trial(session, trial_id, reader)])[trial_id]

    return await _stream(parts, request, user, find, _Wanted(wanted, limit, follow, order_by, {"trialId": trial_id}))


@router.get("/api/v1/trials/{trial_id}/logs/fields", response_class=Response, responses=LINES)
def trial_log_fields(trial_id: TrialId, parts: PartsDep, user: UserDep) -> Response:
    """What the lines of a trial can be filtered by, as one line of a stream."""
    with parts.database.read() as session:
        task_ids = tasks_of_trials(session, [readable_trial(session, trial_id, user)])[trial_id]
        found = logs.fields(session, task_ids)
    return Response(encode({"result": found}) + b"\n", media_type="application/json")


@router.get("/api/v1/tasks/{task_id}/logs/fields", response_class=Response, responses=LINES)
def task_log_fields(task_id: TaskId, parts: PartsDep, user: UserDep) -> Response:
    """What the lines of a task can be filtered by, as one line of a stream."""
    with parts.database.read() as session:
        readable_task(session, task_id, user)
        found = logs.fields(session, [task_id])
    return Response(encode({"result": found}) + b"\n", media_type="application/json")


@router.get("/api/v1/tasks/{task_id}/logs", response_class=Response, responses=LINES)
async def task_logs(
    task_id: TaskId,
    request: Request,
    parts: PartsDep,
    user: UserDep,
    wanted: FilterDep,
    limit: int = 0,
    follow: Follow = False,
    order_by: Annotated[str, Query(alias="orderBy", description=ORDER_BY)] = "",
) -> Response:
    """Lines of a task as a stream; with `follow` it stays open until the task has ended."""

    def find(reader: UserPrincipal) -> list[str]:
        with parts.database.read() as session:
            readable_task(session, task_id, reader)
        return [task_id]

    return await _stream(parts, request, user, find, _Wanted(wanted, limit, follow, order_by))


@dataclass(frozen=True)
class _Wanted:
    """Which lines of a log a client wants. `extra`: fields that each line has besides its own."""

    filter: logs.LogFilter
    limit: int
    follow: bool
    order_by: str
    extra: dict[str, Any] = field(default_factory=dict[str, Any])


async def _stream(
    parts: Parts, request: Request, user: UserPrincipal, find: Callable[[UserPrincipal], list[str]], wanted: _Wanted
) -> Response:
    """The lines of the tasks that `find` returns for a reader who may see them; it is asked again while they follow."""
    task_ids = await run_in_threadpool(find, user)
    is_descending = bool(Window(order_by=wanted.order_by).is_descending)
    lines = _lines(parts, task_ids, wanted, is_descending, asked_again(request, find))
    return stream(lines, parts.followers.one_more(user.user_id) if wanted.follow else None)


async def _lines(
    parts: Parts, task_ids: Sequence[str], wanted: _Wanted, descending: bool, still: Callable[[], Awaitable[None]]
) -> AsyncIterator[bytes]:
    """Never an empty line: clients crash on one. `still` raises when the reader is no longer authorized."""
    limit, follow = wanted.limit, wanted.follow

    def read(from_id: int | None, most: int) -> logs.Lines:
        with parts.database.read() as session:
            return logs.read(session, task_ids, wanted.filter, from_id=from_id, most=most, descending=descending)

    def is_over() -> bool:
        with parts.database.read() as session:
            is_open = select(Task.id).where(Task.id.in_(task_ids), Task.ended_at.is_(None)).limit(1)
            return session.scalar(is_open) is None

    seen: int | None = None
    sent, quiet_s = 0, 0.0
    while True:
        if follow:
            await still()
        over = follow and await run_in_threadpool(is_over)  # before reading: what comes later is read next time
        found = await run_in_threadpool(read, seen, limit - sent)
        rows = found.rows[: limit - sent] if limit > 0 else found.rows
        if rows:
            sent, quiet_s = sent + len(rows), 0.0
            yield b"".join(encode({"result": logs.wire(row) | wanted.extra}) + b"\n" for row in rows)
            if 0 < limit <= sent:
                return
        seen = found.last_id if found.last_id is not None else seen
        if found.is_full:
            continue
        if descending or not follow or (over and quiet_s >= _GRACE_S):  # descending: a tail, which clients reverse
            return
        tick_s = _TICK_S if quiet_s < _QUIET_AFTER_S else _QUIET_TICK_S
        await asyncio.sleep(tick_s)
        quiet_s += tick_s
