"""Workspaces: groups of projects, with their own storage, default pools and members."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from sqlalchemy import delete
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authorization import Role, require_role
from api.deps import PartsDep, ReaderDep, UserDep
from api.errors import FailedPrecondition, Unavailable
from api.queries import workspaces
from api.queries.paging import WindowDep
from api.routes.namespaces import bind
from api.routing import Route
from api.schemas import workspaces as wire
from api.schemas.base import answer
from api.schemas.parameters import SORT_BY, USER_IDS, USERS, Archived, NamePart, WorkspaceId
from api.schemas.workspaces import CompletedResponse
from api.services import namespaces
from api.services import workspaces as service
from api.services.idempotency import Once
from database.models import WorkspacePin
from database.upsert import insert

router = APIRouter(route_class=Route, tags=["workspaces"])


@router.get("/api/v1/workspaces", response_model=wire.WorkspacesResponse)
def list_workspaces(
    parts: PartsDep,
    caller: ReaderDep,
    window: WindowDep,
    name: NamePart = "",
    name_case_sensitive: Annotated[str, Query(alias="nameCaseSensitive")] = "",
    archived: Archived = None,
    pinned: bool | None = None,
    users: Annotated[list[str] | None, Query(description=USERS)] = None,
    user_ids: Annotated[list[int] | None, Query(alias="userIds", description=USER_IDS)] = None,
    sort_by: Annotated[str, Query(alias="sortBy", description=SORT_BY)] = "",
) -> Response:
    """Workspaces that the caller may see and that match every filter. A name is matched as a whole, in any case."""
    wanted = workspaces.Filter(name, name_case_sensitive, archived, pinned, users or (), user_ids or ())
    with parts.database.read() as session:
        found, pagination = workspaces.workspaces(session, caller.user, wanted, sort_by, window)
    return answer({"workspaces": found, "pagination": pagination})


@router.post("/api/v1/workspaces", response_model=wire.WorkspaceResponse)
async def create_workspace(request: Request, parts: PartsDep, user: UserDep, wanted: wire.PostWorkspace) -> Response:
    """Make a workspace. Its maker is its administrator; others see it once they have a role in it."""

    once = Once(request, user)
    in_clusters = wanted.cluster_namespace_meta or {}, wanted.cluster_quota_pairs or {}
    made: list[wire.Workspace] = []

    def create(session: Session) -> dict[str, Any]:
        workspace_id = service.new_workspace(session, wanted, user)
        namespaces.orders(session, workspace_id, user, *in_clusters)  # or nothing is made
        made.append(workspaces.workspace(session, workspace_id, user))
        return {"workspace": made[0], "namespaceBindings": {}}

    def write() -> Any:
        with parts.database.write() as session:
            return once(session, lambda: create(session))

    shown = await run_in_threadpool(write)
    if made and any(in_clusters):
        try:
            bound = await bind(parts, made[0].id, user, *in_clusters)
        except (FailedPrecondition, Unavailable) as error:
            error.message = f"workspace {made[0].name!r} is made, and not bound to a namespace: {error.message}"
            raise
        shown = {"workspace": made[0], "namespaceBindings": bound}
    return answer(shown)


@router.get("/api/v1/workspaces/{workspace_id}", response_model=wire.WorkspaceResponse)
def get_workspace(workspace_id: WorkspaceId, parts: PartsDep, caller: ReaderDep) -> Response:
    """One workspace."""
    with parts.database.read() as session:
        return answer({"workspace": workspaces.workspace(session, workspace_id, caller.user)})


@router.patch("/api/v1/workspaces/{workspace_id}", response_model=wire.WorkspaceResponse)
async def patch_workspace(
    workspace_id: WorkspaceId, parts: PartsDep, user: UserDep, wanted: wire.PatchWorkspace
) -> Response:
    """Change name, storage, default pools, or the role that all users have in the workspace."""

    in_clusters = wanted.cluster_namespace_meta or {}, wanted.cluster_quota_pairs or {}

    def change() -> wire.Workspace:
        with parts.database.write() as session:
            service.change_workspace(session, workspace_id, wanted, user)
            namespaces.orders(session, workspace_id, user, *in_clusters)  # or nothing is changed
            return workspaces.workspace(session, workspace_id, user)

    shown = await run_in_threadpool(change)
    bound = await bind(parts, workspace_id, user, *in_clusters) if any(in_clusters) else {}
    return answer({"workspace": shown, "namespaceBindings": bound})


@router.delete("/api/v1/workspaces/{workspace_id}", response_model=CompletedResponse)
async def delete_workspace(workspace_id: WorkspaceId, parts: PartsDep, user: UserDep) -> Response:
    """Delete a workspace with its projects and their experiments; these in the background."""

    def remove() -> bool:
        with parts.database.write() as session:
            return service.delete_workspace(session, workspace_id, user)

    is_done = await run_in_threadpool(remove)
    parts.dispatcher.poke()
    return answer({"completed": is_done})


@router.post("/api/v1/workspaces/{workspace_id}/archive")
def archive_workspace(workspace_id: WorkspaceId, parts: PartsDep, user: UserDep) -> Response:
    """Put a workspace away: it takes nothing new."""
    with parts.database.write() as session:
        service.archive_workspace(session, workspace_id, user, True)
    return answer()


@router.post("/api/v1/workspaces/{workspace_id}/unarchive")
def unarchive_workspace(workspace_id: WorkspaceId, parts: PartsDep, user: UserDep) -> Response:
    """Take a workspace out again."""
    with parts.database.write() as session:
        service.archive_workspace(session, workspace_id, user, False)
    return answer()


@router.post("/api/v1/workspaces/{workspace_id}/pin")
def pin(workspace_id: WorkspaceId, parts: PartsDep, user: UserDep) -> Response:
    """Have a workspace among one's pinned ones."""
    with parts.database.write() as session:
        require_role(session, user, workspace_id, Role.VIEWER)
        mine = insert(session, WorkspacePin).values(user_id=user.user_id, workspace_id=workspace_id)
        session.execute(mine.on_conflict_do_nothing())
    return answer()


@router.post("/api/v1/workspaces/{workspace_id}/unpin")
def unpin(workspace_id: WorkspaceId, parts: PartsDep, user: UserDep) -> Response:
    """Have it there no more."""
    with parts.database.write() as session:
        require_role(session, user, workspace_id, Role.VIEWER)
        is_mine = (WorkspacePin.user_id == user.user_id, WorkspacePin.workspace_id == workspace_id)
        session.execute(delete(WorkspacePin).where(*is_mine))
    return answer()
