"""Notebooks: JupyterLab on slots of the cluster, opened in a browser through the server."""

from __future__ import annotations

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth import config_secrets
from api.auth.authentication import AllocationPrincipal, Principal, UserPrincipal
from api.deps import PartsDep, PrincipalDep, UserDep
from api.errors import NotFound
from api.queries import tasks as query
from api.routes.task_kinds import Asking, Resource, router_of, wanted_of
from api.schemas import tasks as wire
from api.schemas.base import answer
from api.schemas.parameters import TaskId
from api.services import service_access
from api.services import tasks as service
from database.models import Task
from database.types import utc_now
from workflows.lifecycle.task import TaskKind

router = router_of()


def _shown(asking: Asking, row: query.Row) -> wire.Notebook:
    return query.notebook(row, service_access.token_for(asking.parts.service_tokens, row[0], asking.user))


NOTEBOOKS = Resource(
    kind=TaskKind.NOTEBOOK,
    name="notebook",
    listed=query.notebook,
    shown=_shown,
    one=wire.NotebookResponse,
    many=wire.NotebooksResponse,
    changed=wire.ChangedNotebookResponse,
    launched=wire.LaunchNotebookResponse,
)


@router.post("/api/v1/notebooks", response_model=wire.LaunchNotebookResponse)
async def launch_notebook(
    request: Request, parts: PartsDep, user: UserDep, wanted: wire.LaunchNotebookRequest
) -> Response:
    """Start a notebook. With `preview` nothing is made: the answer has the configuration that it would have."""
    what = wanted_of(TaskKind.NOTEBOOK, wanted)
    if not wanted.preview:
        return await NOTEBOOKS.launch(request, parts, user, lambda session: what)

    def look() -> dict[str, object]:
        with parts.database.read() as session:
            return service.preview(session, what, user, parts.settings)

    config = await run_in_threadpool(look)
    nothing = query.nothing(wire.Notebook)
    return answer(wire.LaunchNotebookResponse(notebook=nothing, config=config_secrets.shown(config), warnings=[]))


NOTEBOOKS.add_routes(router)


@router.put("/api/v1/notebooks/{task_id}/report_idle")
async def report_idle(task_id: TaskId, parts: PartsDep, caller: PrincipalDep, told: wire.IdleReport) -> Response:
    """A notebook reports whether it is in use: its own container, or a user who may change it."""

    def note() -> None:
        with parts.database.write() as session:
            row = _of_caller(session, task_id, caller)
            if not told.idle:
                row.last_used_at = utc_now()

    await run_in_threadpool(note)
    return answer()


def _of_caller(session: Session, task_id: str, caller: Principal) -> Task:
    """The notebook that a caller may speak for. Raises: NotFound, Forbidden."""
    if isinstance(caller, UserPrincipal):
        return service.find_changeable(session, task_id, caller, TaskKind.NOTEBOOK)
    if not isinstance(caller, AllocationPrincipal) or caller.task_id != task_id:
        raise NotFound(f"notebook {task_id!r} not found")
    return service.find(session, task_id, caller.user, TaskKind.NOTEBOOK)
