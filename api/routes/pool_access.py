"""Access to resource pools: whether one is for all, or for those only to whom it is granted. For administrators."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.deps import AdminDep, PartsDep
from api.parts import Parts
from api.routing import Route
from api.schemas import pool_access as wire
from api.schemas.base import answer
from api.schemas.parameters import PoolName
from api.services import pool_access as service

router = APIRouter(route_class=Route, tags=["resource pools"])
_PATH = "/api/v1/resource-pool-access"


@router.get(_PATH, response_model=wire.PoolAccessResponse)
def access(parts: PartsDep, admin: AdminDep) -> Response:
    """Who may use each resource pool (administrators of the cluster only)."""
    with parts.database.read() as session:
        return answer(wire.PoolAccessResponse(resource_pools=service.listed(session)))


@router.put(_PATH + "/{pool}", response_model=wire.ChangedPoolAccess)
async def set_mode(pool: PoolName, parts: PartsDep, admin: AdminDep, wanted: wire.PoolMode) -> Response:
    """Restrict a pool to those to whom it is granted, or have it for all again. What is in it stays."""
    return await _changed(parts, lambda session: service.set_mode(session, pool, wanted, admin))


@router.post(_PATH + "/{pool}/grant", response_model=wire.ChangedPoolAccess)
async def grant(pool: PoolName, parts: PartsDep, admin: AdminDep, wanted: wire.PoolHolders) -> Response:
    """Grant a pool to users, groups or workspaces: they may use it once it is restricted."""
    return await _changed(parts, lambda session: service.grant(session, pool, wanted, admin))


@router.post(_PATH + "/{pool}/revoke", response_model=wire.ChangedPoolAccess)
async def revoke(pool: PoolName, parts: PartsDep, admin: AdminDep, wanted: wire.PoolHolders) -> Response:
    """Take a pool back from users, groups or workspaces. What they have in it stays until it ends."""
    return await _changed(parts, lambda session: service.revoke(session, pool, wanted, admin))


async def _changed(parts: Parts, change: Callable[[Session], wire.ChangedPoolAccess]) -> Response:
    def note() -> wire.ChangedPoolAccess:
        with parts.database.write() as session:
            return change(session)

    return answer(await run_in_threadpool(note))
