"""Workspaces: groups of projects, with their own storage, default pools and members."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from sqlalchemy import delete
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authentication import UserPrincipal
from api.auth.authorization import Role, require_role
from api.deps import PartsDep, ReaderDep, UserDep
from api.errors import Unsupported
from api.parts import Parts
from api.queries import workspaces
from api.queries.paging import WindowDep
from api.routing import Route
from api.schemas import workspaces as wire
from api.schemas.base import answer
from api.schemas.parameters import SORT_BY, USER_IDS, USERS, Archived, NamePart, WorkspaceId
from api.schemas.workspaces import CompletedResponse
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

    def create(session: Session) -> dict[str, Any]:
        made = workspaces.workspace(session, service.new_workspace(session, wanted, user), user)
        return {"workspace": made, "namespaceBindings": {}}

    def write() -> Any:
        with parts.database.write() as session:
            return once(session, lambda: create(session))

    return answer(await run_in_threadpool(write))


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

    def change() -> wire.Workspace:
        with parts.database.write() as session:
            service.change_workspace(session, workspace_id, wanted, user)
            return workspaces.workspace(session, workspace_id, user)

    return answer({"workspace": await run_in_threadpool(change), "namespaceBindings": {}})


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


# -- Kubernetes, of which there is none ----------------------------------------------------------------------------


@router.get("/api/v1/workspaces/{workspace_id}/list-namespace-bindings")
def list_namespaces(workspace_id: WorkspaceId, parts: PartsDep, user: UserDep) -> Response:
    """Namespaces of Kubernetes that the workspace is bound to: none."""
    _check_role(parts, user, workspace_id, Role.VIEWER)
    return answer({"namespaceBindings": {}})


@router.get("/api/v1/workspaces/{workspace_id}/get-k8s-resource-quotas")
def list_quotas(workspace_id: WorkspaceId, parts: PartsDep, user: UserDep) -> Response:
    """Quotas of the workspace in Kubernetes: none."""
    _check_role(parts, user, workspace_id, Role.VIEWER)
    return answer({"resourceQuotas": {}})


@router.post("/api/v1/workspaces/{workspace_id}/namespace-bindings")
async def set_namespaces(
    workspace_id: WorkspaceId, parts: PartsDep, user: UserDep, wanted: wire.NamespaceBindings
) -> Response:
    """Bind namespaces: not supported, unless there are none to bind."""
    await run_in_threadpool(_check_role, parts, user, workspace_id, Role.ADMIN)
    if wanted.cluster_namespace_meta:
        raise Unsupported(service.NO_KUBERNETES)
    return answer({"namespaceBindings": {}})


@router.delete("/api/v1/workspaces/{workspace_id}/namespace-bindings")
def delete_namespaces(
    workspace_id: WorkspaceId,
    parts: PartsDep,
    user: UserDep,
    cluster_names: Annotated[list[str] | None, Query(alias="clusterNames")] = None,
) -> Response:
    """Unbind namespaces: not supported, unless there are none to unbind."""
    _check_role(parts, user, workspace_id, Role.ADMIN)
    if cluster_names:
        raise Unsupported(service.NO_KUBERNETES)
    return answer()


@router.post("/api/v1/workspaces/{workspace_id}/set-resource-quota")
async def set_quota(workspace_id: WorkspaceId, parts: PartsDep, user: UserDep, wanted: wire.ResourceQuotas) -> Response:
    """Set quotas: not supported, unless there are none to set."""
    await run_in_threadpool(_check_role, parts, user, workspace_id, Role.ADMIN)
    if wanted.cluster_quota_pairs:
        raise Unsupported(service.NO_KUBERNETES)
    return answer()


@router.get("/api/v1/namespace-bindings/workspace-ids-with-default-bindings")
def default_namespaces(parts: PartsDep, user: UserDep) -> Response:
    """Workspaces in the default namespace of Kubernetes: none."""
    return answer({"workspaceIds": []})


@router.post("/api/v1/namespace-bindings/bulk-auto-create")
def create_namespaces(parts: PartsDep, user: UserDep) -> Response:
    """Make namespaces for workspaces: not supported."""
    raise Unsupported(service.NO_KUBERNETES)


def _check_role(parts: Parts, user: UserPrincipal, workspace_id: int, least: Role) -> None:
    with parts.database.read() as session:
        require_role(session, user, workspace_id, least)
