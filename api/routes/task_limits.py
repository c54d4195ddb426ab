"""The limits of a task's time, which may be changed while it waits or runs. Ours; not part of the old wire."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.deps import PartsDep, UserDep
from api.routing import Route
from api.schemas import tasks as wire
from api.schemas.base import answer
from api.schemas.parameters import TaskId
from api.services import task_limits as service

router = APIRouter(route_class=Route, tags=["tasks"])


@router.patch("/api/v1/undeterred/tasks/{task_id}/limits", response_model=wire.TaskLimitsResponse)
async def change(task_id: TaskId, parts: PartsDep, user: UserDep, wanted: wire.PatchTaskLimits) -> Response:
    """Change after how long without use, or on its slots, a notebook, command or other task ends: those that are given.

    It holds at once, also while the task runs. A new idle timeout counts from now on.
    """

    def write() -> wire.TaskLimitsResponse:
        with parts.database.write() as session:
            return service.change(session, task_id, wanted, user)

    changed = await run_in_threadpool(write)
    parts.dispatcher.poke()
    return answer(changed)
