"""Scheduling settings of a resource pool, which administrators change while it runs. Ours; not part of the old wire."""

from __future__ import annotations

from typing import Any, cast

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.deps import AdminDep, PartsDep, UserDep
from api.routing import Route
from api.schemas.base import answer
from api.schemas.body import parse_as
from api.schemas.jobs import PatchPoolSettings, PoolSettingsResponse
from api.schemas.parameters import PoolName
from api.services.pools import configure, find
from database.models import ResourcePool
from workflows.scheduling.settings import PoolSettings

router = APIRouter(route_class=Route, tags=["resource pools"])
_PATH = "/api/v1/undeterred/resource-pools/{pool}/settings"


@router.get(_PATH, response_model=PoolSettingsResponse)
def settings(pool: PoolName, parts: PartsDep, user: UserDep) -> Response:
    """How the pool shares its slots: all settings, as documents spell them."""
    with parts.database.read() as session:
        return answer({"settings": _plain(_of(find(session, pool, user)))})


@router.patch(_PATH, response_model=PoolSettingsResponse)
async def change(pool: PoolName, parts: PartsDep, admin: AdminDep, wanted: PatchPoolSettings) -> Response:
    """Change settings: those that are given, by JSON merge patch (`null` takes one back to its default).

    The pool decides by them from its next decision on; what is held stays until it wants it back.
    """

    def note() -> PoolSettings:
        with parts.database.write() as session:
            row = find(session, pool, admin, is_locked=True)
            changed = parse_as(PoolSettings, _merged(_plain(_of(row)), wanted.settings))
            configure(session, row, changed)
            return changed

    changed = await run_in_threadpool(note)
    parts.dispatcher.poke()
    return answer({"settings": _plain(changed)})


def _of(row: ResourcePool) -> PoolSettings:
    return PoolSettings.model_validate(row.settings)


def _plain(settings: PoolSettings) -> dict[str, Any]:
    return settings.model_dump(mode="json")


def _merged(target: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    merged: dict[str, Any] = dict(cast("dict[str, Any]", target)) if isinstance(target, dict) else {}
    for key, value in cast("dict[str, Any]", patch).items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged
