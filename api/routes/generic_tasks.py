"""Generic tasks: any container or script, in trees of parents and children that are paused and killed together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth import config_secrets
from api.auth.authentication import UserPrincipal
from api.deps import PartsDep, UserDep
from api.errors import BadRequest
from api.parts import Parts
from api.queries import tasks as query
from api.queries.contexts import of_task
from api.queries.paging import WindowDep
from api.routing import Route
from api.schemas import tasks as wire
from api.schemas.base import answer
from api.schemas.parameters import TaskId
from api.schemas.submissions import Submit
from api.services import submissions
from api.services import tasks as service
from api.services.context_contents import Stored, stored
from api.services.idempotency import Once
from api.services.workspaces import target_project
from database.models import Task
from workflows.config import ConfigError, read_config
from workflows.lifecycle.task import TaskKind

router = APIRouter(route_class=Route, tags=["tasks"])


@router.post("/api/v1/generic-tasks", response_model=wire.GenericTaskResponse)
async def create_task(request: Request, parts: PartsDep, user: UserDep, wanted: wire.GenericTaskRequest) -> Response:
    """Run a task. The header `Idempotency-Key` makes a repeat answer with the first one."""
    once = Once(request, user)

    def created(session: Session) -> wire.GenericTaskResponse:
        made = service.launch(session, _wanted(session, wanted, user), user, parts.settings)
        return wire.GenericTaskResponse(task_id=made.task.id, warnings=made.warnings)

    def make(session: Session) -> object:
        if wanted.submit is None:
            return once(session, lambda: created(session))
        return _submitted(session, parts, wanted, wanted.submit, user)

    response = await run_in_threadpool(submissions.recorded, parts.database, make)
    parts.dispatcher.poke()
    return answer(response)


def _submitted(
    session: Session, parts: Parts, wanted: wire.GenericTaskRequest, submit: Submit, user: UserPrincipal
) -> wire.GenericTaskResponse:
    facts = wanted.model_dump(exclude={"config", "context_directory", "submit", "context"}) | {
        "config": _read(wanted.config)
    }
    plan = submissions.plan("GENERIC", submit, user, facts, wanted.context_directory, wanted.context)
    if (earlier := plan.earlier(session)) is not None:
        replayed = plan.replayed(earlier)
        return wire.GenericTaskResponse(task_id=earlier.entity_id, warnings=[], submission=replayed)
    if submit.dry_run:
        config = service.preview(session, _wanted(session, wanted, user), user, parts.settings)
        return wire.GenericTaskResponse(task_id="", warnings=[], submission=plan.tried(session, config))
    made = service.launch(session, _wanted(session, wanted, user), user, parts.settings)
    row, project_id = made.task, wanted.project_id or None
    name, workspace_id = row.name or row.id, row.workspace_id or 0
    plan.record(session, row.job_id, row.id, name=name, workspace_id=workspace_id, project_id=project_id)
    return wire.GenericTaskResponse(task_id=row.id, warnings=made.warnings, submission=plan.submitted(row.job_id))


def _wanted(session: Session, wanted: wire.GenericTaskRequest, user: UserPrincipal) -> service.Wanted:
    """Raises: BadRequest, NotFound, Forbidden."""
    if not wanted.config.strip() and not wanted.forked_from:
        raise BadRequest("config: it is empty: expected a configuration, or forkedFrom with a task to take it from")
    if wanted.inherit_context and not wanted.parent_id:
        raise BadRequest("inheritContext: expected parentId with it, the task whose files are taken")
    config, content = _read(wanted.config), None
    workspace_id = target_project(session, wanted.project_id, user).workspace_id if wanted.project_id else 0
    if wanted.forked_from:
        model = service.find(session, wanted.forked_from, user, TaskKind.GENERIC)
        config = _without_needs(_read(model.written or "")) | config
        content, workspace_id = _content(session, model), workspace_id or model.workspace_id or 0
    for name, ids in (("after", wanted.after), ("after_any", wanted.after_any)):
        given: Any = config.get(name) or []
        if ids and isinstance(given, list):  # what is no list is refused with all that is wrong
            config[name] = [*given, *ids]
    parent = None
    if wanted.parent_id:
        parent = service.find_changeable(session, wanted.parent_id, user, TaskKind.GENERIC)
        service.check_depth(session, parent)
        workspace_id = workspace_id or parent.workspace_id or 0
        content = _content(session, parent) if wanted.inherit_context else content
    return service.Wanted(
        kind=TaskKind.GENERIC,
        config=config,
        files=wanted.context_directory,
        workspace_id=workspace_id,
        written=orjson.dumps(config).decode(),
        parent=parent,
        content=content,
        context=wanted.context,
        forked_from=wanted.forked_from or None,
        is_pausable=not wanted.no_pause,
    )


def _read(text: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        value: Any = read_config(text).value
    except ConfigError as error:
        raise BadRequest(f"config: {'; '.join(str(problem) for problem in error.problems)}") from None
    if not isinstance(value, dict):
        raise BadRequest("config: expected names with values, such as `entrypoint: [python3, main.py]`")
    return value  # pyright: ignore[reportUnknownVariableType]


def _without_needs(config: dict[str, Any]) -> dict[str, Any]:
    """Of another task: what that one came after was for its run only."""
    return {key: value for key, value in config.items() if key not in ("after", "after_any")}


def _content(session: Session, task: Task) -> Stored | None:
    return stored(session, of_task(task.id, TaskKind(task.kind)))


@router.get("/api/v1/generic-tasks", response_model=wire.GenericTasksResponse)
def list_generic_tasks(
    parts: PartsDep,
    user: UserDep,
    window: WindowDep,
    wanted: query.FilterDep,
    task_ids: Annotated[list[str] | None, Query(alias="taskIds", description="Only these.")] = None,
) -> Response:
    """Generic tasks that the caller may see, the newest first."""
    wanted.ids = task_ids
    with parts.database.read() as session:
        rows, pagination = query.many(session, TaskKind.GENERIC, wanted, "", window, user)
        found = [query.generic(*row) for row in rows]
    return answer(wire.GenericTasksResponse(tasks=found, pagination=pagination))


@router.get("/api/v1/tasks/{task_id}/config", response_model=wire.TaskConfigResponse)
def get_config(task_id: TaskId, parts: PartsDep, user: UserDep) -> Response:
    """The configuration of a generic task as it was given, as JSON text."""
    with parts.database.read() as session:
        row = service.find(session, task_id, user, TaskKind.GENERIC)
        config = config_secrets.shown(orjson.loads(row.written or "{}"))
    return answer(wire.TaskConfigResponse(config=orjson.dumps(config).decode()))


@router.post("/api/v1/tasks/{task_id}/kill")
async def kill_task(task_id: TaskId, parts: PartsDep, user: UserDep, wanted: wire.KillGenericTask) -> Response:
    """End a task and those below it. Those that have ended stay as they are."""

    def kill(session: Session, row: Task) -> None:
        if wanted.kill_from_root:
            row = service.find_changeable(session, service.root_of(session, row).id, user, TaskKind.GENERIC)
        service.kill(session, row)

    return await _changed(parts, task_id, user, kill)


@router.post("/api/v1/tasks/{task_id}/pause")
async def pause_task(task_id: TaskId, parts: PartsDep, user: UserDep) -> Response:
    """Have a task give its slots back, and those below it that may be paused."""
    return await _changed(parts, task_id, user, service.pause)


@router.post("/api/v1/tasks/{task_id}/unpause")
async def unpause_task(task_id: TaskId, parts: PartsDep, user: UserDep) -> Response:
    """Have a paused task go on, and those below it: each is started again."""
    return await _changed(parts, task_id, user, service.unpause)


async def _changed(
    parts: Parts, task_id: str, user: UserPrincipal, change: Callable[[Session, Task], None]
) -> Response:
    def write() -> None:
        with parts.database.write() as session:
            change(session, service.find_changeable(session, task_id, user, TaskKind.GENERIC))

    await run_in_threadpool(write)
    parts.dispatcher.poke()
    return answer()
