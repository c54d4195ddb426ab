"""Bindings of resource pools to workspaces. A pool without bindings is available to all workspaces."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authentication import UserPrincipal
from api.auth.authorization import Role, require_role
from api.deps import AdminDep, PartsDep, ReaderDep, UserDep
from api.parts import Parts
from api.queries.paging import WindowDep, rows_of
from api.queries.workspaces import available_pools, bound_workspaces
from api.routing import Route
from api.schemas import jobs
from api.schemas import workspaces as wire
from api.schemas.base import answer
from api.schemas.parameters import PoolName, WorkspaceId
from api.services import workspaces
from api.services.pools import find
from database.models import ResourcePool

router = APIRouter(route_class=Route, tags=["resource pools"])
_PATH = "/api/v1/resource-pools/{pool}/workspace-bindings"


@router.get("/api/v1/workspaces/{workspace_id}/available-resource-pools")
def pools_of_workspace(workspace_id: WorkspaceId, parts: PartsDep, caller: ReaderDep, window: WindowDep) -> Response:
    """Names of the pools that the caller may use in a workspace: bound to it or to none, public or granted."""
    with parts.database.read() as session:
        require_role(session, caller.user, workspace_id, Role.VIEWER)
        found = available_pools(workspace_id, caller.user)
        rows, pagination = rows_of(session, found.order_by(ResourcePool.name), window)
    return answer({"resourcePools": [row[0] for row in rows], "pagination": pagination})


@router.get(_PATH, response_model=jobs.WorkspaceIdsResponse)
def list_bindings(pool: PoolName, parts: PartsDep, user: UserDep, window: WindowDep) -> Response:
    """Ids of the workspaces that a pool is bound to, as far as the caller may see them."""
    with parts.database.read() as session:
        find(session, pool, user)
        rows, pagination = rows_of(session, bound_workspaces(pool, user), window)
    return answer({"workspaceIds": [row[0] for row in rows], "pagination": pagination})


@router.post(_PATH)
async def bind(pool: PoolName, parts: PartsDep, admin: AdminDep, wanted: wire.PoolBindings) -> Response:
    """Bind a pool to further workspaces (administrators of the cluster only)."""
    await run_in_threadpool(_bind, parts, pool, wanted, admin, False)
    return answer()


@router.put(_PATH)
async def overwrite(pool: PoolName, parts: PartsDep, admin: AdminDep, wanted: wire.PoolBindings) -> Response:
    """Bind a pool to these workspaces and to no others."""
    await run_in_threadpool(_bind, parts, pool, wanted, admin, True)
    return answer()


@router.delete(_PATH)
async def unbind(pool: PoolName, parts: PartsDep, admin: AdminDep, wanted: wire.PoolBindings) -> Response:
    """Unbind a pool from workspaces."""

    def remove() -> None:
        with parts.database.write() as session:
            workspaces.unbind_pool(session, pool, wanted, admin)

    await run_in_threadpool(remove)
    return answer()


def _bind(parts: Parts, pool: str, wanted: wire.PoolBindings, admin: UserPrincipal, replaces: bool) -> None:
    with parts.database.write() as session:
        workspaces.bind_pool(session, pool, wanted, admin, replaces=replaces)
