"""Imports of another cluster's database. Ours; for administrators only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.deps import AdminDep, PartsDep
from api.parts import Parts
from api.routing import Route
from api.schemas import imports as wire
from api.schemas.base import answer
from api.services import imports
from api.services.idempotency import Once
from database.models import Import

router = APIRouter(route_class=Route, tags=["cluster"])
_IMPORTS = "/api/v1/undeterred/imports"
_MOST_LISTED = 100


@router.get(_IMPORTS, response_model=wire.ImportsResponse)
def list_imports(parts: PartsDep, admin: AdminDep) -> Response:
    """The newest imports, plans and verifications."""
    with parts.database.read() as session:
        rows = session.scalars(select(Import).order_by(Import.id.desc()).limit(_MOST_LISTED))
        return answer({"imports": [imports.shown(session, row) for row in rows]})


@router.post(_IMPORTS, response_model=wire.ImportResponse)
async def start_import(request: Request, parts: PartsDep, admin: AdminDep, wanted: wire.NewImport) -> Response:
    """Plan, run or verify an import, in the background. The address is stored until the end, and never shown."""
    return await _written(parts, lambda session: imports.create(session, wanted, admin), Once(request, admin))


@router.get(_IMPORTS + "/{import_id}", response_model=wire.ImportResponse)
def get_import(import_id: int, parts: PartsDep, admin: AdminDep) -> Response:
    """How far an import came: each kind of record, and what could not come and why."""
    with parts.database.read() as session:
        return answer({"import": imports.shown(session, imports.find(session, import_id))})


@router.post(_IMPORTS + "/{import_id}/cancel", response_model=wire.ImportResponse)
async def cancel_import(import_id: int, parts: PartsDep, admin: AdminDep) -> Response:
    """End an import after the rows that it is at. What came stays; another run goes on from there."""
    return await _written(parts, lambda session: imports.cancel(session, import_id))


async def _written(parts: Parts, change: Callable[[Session], Import], once: Once | None = None) -> Response:
    def changed(session: Session) -> wire.Import:
        row = change(session)
        session.flush()
        return imports.shown(session, row)

    def write() -> Any:
        with parts.database.write() as session:
            return changed(session) if once is None else once(session, lambda: changed(session))

    shown = await run_in_threadpool(write)
    parts.dispatcher.poke()
    return answer({"import": shown})
