"""Projects: groups of experiments within a workspace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authorization import Role, require_role
from api.deps import PartsDep, ReaderDep, UserDep
from api.errors import BadRequest
from api.parts import Parts
from api.queries import columns, workspaces
from api.queries.paging import WindowDep, chosen
from api.routing import Route
from api.schemas import workspaces as wire
from api.schemas.base import answer
from api.schemas.parameters import SORT_BY, USER_IDS, USERS, Archived, ExperimentId, NamePart, ProjectId, WorkspaceId
from api.schemas.workspaces import CompletedResponse
from api.services import workspaces as service
from api.services.idempotency import Once
from database.models import ProjectVisit
from database.types import utc_now
from database.upsert import insert

router = APIRouter(route_class=Route, tags=["projects"])

#: How many of the projects that a user looked at last are listed.
_VISITS = 5
_TABLES = {"": False, "TABLE_TYPE_UNSPECIFIED": False, "TABLE_TYPE_EXPERIMENT": False, "TABLE_TYPE_RUN": True}


@router.get("/api/v1/workspaces/{workspace_id}/projects", response_model=wire.ProjectsResponse)
def list_projects(
    workspace_id: WorkspaceId,
    parts: PartsDep,
    caller: ReaderDep,
    window: WindowDep,
    name: NamePart = "",
    archived: Archived = None,
    users: Annotated[list[str] | None, Query(description=USERS)] = None,
    user_ids: Annotated[list[int] | None, Query(alias="userIds", description=USER_IDS)] = None,
    sort_by: Annotated[str, Query(alias="sortBy", description=SORT_BY)] = "",
) -> Response:
    """Projects of a workspace; of all that the caller may see, if its id is 0. A name is matched as a whole."""
    wanted = workspaces.Filter(name, "", archived, None, users or (), user_ids or ())
    with parts.database.read() as session:
        if workspace_id:
            require_role(session, caller.user, workspace_id, Role.VIEWER)
        found, pagination = workspaces.projects(session, workspace_id, caller.user, wanted, sort_by, window)
    return answer({"projects": found, "pagination": pagination})


@router.post("/api/v1/workspaces/{workspace_id}/projects", response_model=wire.ProjectResponse)
async def create_project(
    workspace_id: WorkspaceId, request: Request, parts: PartsDep, user: UserDep, wanted: wire.PostProject
) -> Response:
    """Make a project in a workspace."""

    once = Once(request, user)

    def create(session: Session) -> dict[str, Any]:
        project_id = service.new_project(session, workspace_id, wanted, user)
        return {"project": workspaces.project(session, user, project_id=project_id)}

    return answer(await run_in_threadpool(_written, parts, lambda session: once(session, lambda: create(session))))


@router.get("/api/v1/projects/key/{key}", response_model=wire.ProjectResponse)
def project_by_key(key: str, parts: PartsDep, user: UserDep) -> Response:
    """One project, by its key in any case."""
    with parts.database.read() as session:
        return answer({"project": workspaces.project(session, user, key=key)})


@router.get("/api/v1/projects/{project_id}", response_model=wire.ProjectResponse)
def get_project(project_id: ProjectId, parts: PartsDep, caller: ReaderDep) -> Response:
    """One project."""
    with parts.database.read() as session:
        return answer({"project": workspaces.project(session, caller.user, project_id=project_id)})


@router.patch("/api/v1/projects/{project_id}", response_model=wire.ProjectResponse)
async def patch_project(project_id: ProjectId, parts: PartsDep, user: UserDep, wanted: wire.PatchProject) -> Response:
    """Change name, description or key."""

    def change() -> wire.Project:
        with parts.database.write() as session:
            service.change_project(session, project_id, wanted, user)
            return workspaces.project(session, user, project_id=project_id)

    return answer({"project": await run_in_threadpool(change)})


@router.delete("/api/v1/projects/{project_id}", response_model=CompletedResponse)
async def delete_project(project_id: ProjectId, parts: PartsDep, user: UserDep) -> Response:
    """Delete a project with its experiments; these in the background."""
    is_done = await run_in_threadpool(
        _written, parts, lambda session: service.delete_project(session, project_id, user)
    )
    parts.dispatcher.poke()
    return answer({"completed": is_done})


@router.post("/api/v1/projects/{project_id}/archive")
def archive_project(project_id: ProjectId, parts: PartsDep, user: UserDep) -> Response:
    """Put a project away: it takes nothing new."""
    _written(parts, lambda session: service.archive_project(session, project_id, user, True))
    return answer()


@router.post("/api/v1/projects/{project_id}/unarchive")
def unarchive_project(project_id: ProjectId, parts: PartsDep, user: UserDep) -> Response:
    """Take a project out again."""
    _written(parts, lambda session: service.archive_project(session, project_id, user, False))
    return answer()


@router.post("/api/v1/projects/{project_id}/move")
async def move_project(project_id: ProjectId, parts: PartsDep, user: UserDep, wanted: wire.MoveProject) -> Response:
    """Move a project to another workspace."""
    target = wanted.destination_workspace_id
    await run_in_threadpool(_written, parts, lambda session: service.move_project(session, project_id, target, user))
    return answer()


@router.put("/api/v1/projects/{project_id}/notes", response_model=wire.NotesResponse)
async def put_notes(project_id: ProjectId, parts: PartsDep, user: UserDep, wanted: wire.Notes) -> Response:
    """Replace the notes."""
    notes = await run_in_threadpool(
        _written, parts, lambda session: service.set_notes(session, project_id, wanted.notes, user)
    )
    return answer({"notes": notes})


@router.post("/api/v1/projects/{project_id}/notes", response_model=wire.NotesResponse)
async def add_note(
    project_id: ProjectId, request: Request, parts: PartsDep, user: UserDep, wanted: wire.Note
) -> Response:
    """Add a note."""
    once = Once(request, user)

    def add(session: Session) -> dict[str, Any]:
        project = service.readable_project(session, project_id, user)
        session.refresh(project, with_for_update=True)  # two at once are both kept
        old = [wire.Note.model_validate(note) for note in project.notes]
        return {"notes": service.set_notes(session, project_id, [*old, wanted], user)}

    return answer(await run_in_threadpool(_written, parts, lambda session: once(session, lambda: add(session))))


@router.post("/api/v1/experiments/{experiment_id}/move")
async def move_experiment(
    experiment_id: ExperimentId, parts: PartsDep, user: UserDep, wanted: wire.MoveExperiment
) -> Response:
    """Move an experiment to another project."""
    target = wanted.destination_project_id
    await run_in_threadpool(
        _written, parts, lambda session: service.move_experiment(session, experiment_id, target, user)
    )
    return answer()


@router.get("/api/v1/projects/{project_id}/columns")
def list_columns(
    project_id: ProjectId,
    parts: PartsDep,
    user: UserDep,
    table: Annotated[str, Query(alias="tableType", description="TABLE_TYPE_EXPERIMENT, TABLE_TYPE_RUN")] = "",
) -> Response:
    """What a table of the project's experiments, or of its runs, can show, and be filtered and sorted by."""
    of_runs = chosen("tableType", table, _TABLES)
    with parts.database.read() as session:
        service.readable_project(session, project_id, user)
        return answer({"columns": columns.columns(session, project_id, of_runs=of_runs)})


@router.get("/api/v1/projects/{project_id}/experiments/metric-ranges")
def list_ranges(project_id: ProjectId, parts: PartsDep, user: UserDep) -> Response:
    """Least and greatest values of the project's metrics."""
    with parts.database.read() as session:
        service.readable_project(session, project_id, user)
        return answer({"ranges": columns.metric_ranges(session, project_id)})


@router.get("/api/v1/projects/{project_id}/metadata/{key}")
def list_metadata(project_id: ProjectId, key: str, parts: PartsDep, user: UserDep) -> Response:
    """Texts that the project's runs have under a key of their metadata."""
    with parts.database.read() as session:
        service.readable_project(session, project_id, user)
        return answer({"values": columns.metadata_values(session, project_id, key)})


@router.get("/api/v1/user/projects/activity")
def activity(parts: PartsDep, user: UserDep, limit: int = _VISITS) -> Response:
    """The projects that the user looked at, the latest first."""
    with parts.database.read() as session:
        found = workspaces.visited_projects(session, user, min(limit, 100) if limit > 0 else _VISITS)
    return answer({"projects": found})


@router.post("/api/v1/users/activity")
async def note_activity(parts: PartsDep, user: UserDep, wanted: wire.Activity) -> Response:
    """Note that the user looks at a project."""
    if wanted.entity_type not in ("", "ENTITY_TYPE_UNSPECIFIED", "ENTITY_TYPE_PROJECT"):
        raise BadRequest(f"entityType: {wanted.entity_type[:60]!r}: expected ENTITY_TYPE_PROJECT")

    def visit(session: Session) -> None:
        service.readable_project(session, wanted.entity_id, user)
        now = utc_now()
        seen = insert(session, ProjectVisit).values(user_id=user.user_id, project_id=wanted.entity_id, visited_at=now)
        session.execute(seen.on_conflict_do_update(index_elements=["user_id", "project_id"], set_={"visited_at": now}))

    await run_in_threadpool(_written, parts, visit)
    return answer()


def _written(parts: Parts, change: Callable[[Session], Any]) -> Any:
    with parts.database.write() as session:
        return change(session)
