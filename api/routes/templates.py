"""Templates of configurations, in two generations: the older one has paths of its own, and configs as base64."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from sqlalchemy import func, select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.deps import PartsDep, UserDep
from api.parts import Parts
from api.queries.paging import WindowDep, chosen, rows_of
from api.routing import Route
from api.schemas import templates as wire
from api.schemas.base import ObjectBody, answer, encode
from api.schemas.parameters import SORT_BY, WORKSPACE_IDS, NamePart
from api.services import templates
from api.services.idempotency import Once
from database.models import Template

router = APIRouter(route_class=Route, tags=["templates"])

_SORT: dict[str, Any] = {name: func.lower(Template.name) for name in ("", "SORT_BY_UNSPECIFIED", "SORT_BY_NAME")}


@router.get("/api/v1/templates", response_model=wire.TemplatesResponse)
def list_templates(
    parts: PartsDep,
    user: UserDep,
    window: WindowDep,
    name: NamePart = "",
    workspace_ids: Annotated[list[int] | None, Query(alias="workspaceIds", description=WORKSPACE_IDS)] = None,
    sort_by: Annotated[str, Query(alias="sortBy", description=SORT_BY)] = "",
) -> Response:
    """Templates that the caller may see, by name."""
    column = chosen("sortBy", sort_by, _SORT)
    statement = select(Template).where(templates.readable_templates(user))
    if name:
        statement = statement.where(Template.name.icontains(name, autoescape=True))
    if workspace_ids:
        statement = statement.where(Template.workspace_id.in_(workspace_ids))
    statement = statement.order_by(column.desc() if window.is_descending else column.asc(), Template.id)
    with parts.database.read() as session:
        rows, pagination = rows_of(session, statement, window)
    return answer({"templates": [_wire(row[0]) for row in rows], "pagination": pagination})


@router.get("/api/v1/templates/{name}", response_model=wire.TemplateResponse)
def get_template(name: str, parts: PartsDep, user: UserDep) -> Response:
    """One template."""
    with parts.database.read() as session:
        return answer({"template": _wire(templates.readable_template(session, name, user))})


@router.post("/api/v1/templates/{name}", response_model=wire.TemplateResponse)
async def create_template(
    request: Request, name: str, parts: PartsDep, user: UserDep, wanted: wire.PostTemplate
) -> Response:
    """Make a template."""
    once = Once(request, user)

    def create(session: Session) -> wire.Template:
        return _wire(templates.new_template(session, name, wanted.config, wanted.workspace_id or 1, user))

    return answer({"template": await _written(parts, lambda session: once(session, lambda: create(session)))})


@router.put("/api/v1/templates/{name}", response_model=wire.TemplateResponse)
async def put_template(name: str, parts: PartsDep, user: UserDep, wanted: wire.PostTemplate) -> Response:
    """Make a template, or replace its configuration."""
    row = await _written(
        parts, lambda session: templates.put_template(session, name, wanted.config, wanted.workspace_id, user)
    )
    return answer({"template": _wire(row)})


@router.patch("/api/v1/templates/{name}", response_model=wire.TemplateResponse)
async def patch_template(name: str, parts: PartsDep, user: UserDep, config: ObjectBody) -> Response:
    """Replace a template's configuration: the body is the new one."""
    row = await _written(parts, lambda session: templates.change_template(session, name, config, user))
    return answer({"template": _wire(row)})


@router.patch("/api/v1/template/rename", response_model=wire.TemplateResponse)
async def rename_template(parts: PartsDep, user: UserDep, wanted: wire.RenameTemplate) -> Response:
    """Give a template another name."""
    row = await _written(
        parts, lambda session: templates.rename_template(session, wanted.old_name, wanted.new_name, user)
    )
    return answer({"template": _wire(row)})


@router.delete("/api/v1/templates/{name}")
async def delete_template(name: str, parts: PartsDep, user: UserDep) -> Response:
    """Delete a template. Experiments that were made with it keep what they took from it."""
    await _written(parts, lambda session: session.delete(templates.changeable_template(session, name, user)))
    return answer()


# -- the older generation ------------------------------------------------------------------------------------------


@router.get("/templates")
def list_raw(parts: PartsDep, user: UserDep) -> Response:
    """All templates that the caller may see, for older clients."""
    statement = select(Template).where(templates.readable_templates(user)).order_by(Template.name)
    with parts.database.read() as session:
        return answer([_raw(row) for row in session.scalars(statement)])


@router.get("/templates/{name}")
def get_raw(name: str, parts: PartsDep, user: UserDep) -> Response:
    """One template, for older clients."""
    with parts.database.read() as session:
        return answer(_raw(templates.readable_template(session, name, user)))


@router.put("/templates/{name}")
async def put_raw(name: str, parts: PartsDep, user: UserDep, config: ObjectBody) -> Response:
    """Make or replace a template, for older clients: the body is its configuration."""
    row = await _written(parts, lambda session: templates.put_template(session, name, config, None, user))
    return answer(_raw(row))


@router.delete("/templates/{name}")
async def delete_raw(name: str, parts: PartsDep, user: UserDep) -> Response:
    """Delete a template, for older clients."""
    return await delete_template(name, parts, user)


def _wire(row: Template) -> wire.Template:
    return wire.Template(name=row.name, config=row.config, workspace_id=row.workspace_id, user_id=row.owner_id)


def _raw(row: Template) -> dict[str, Any]:
    return {"name": row.name, "config": base64.b64encode(encode(row.config)).decode()}


async def _written(parts: Parts, change: Callable[[Session], Any]) -> Any:
    def write() -> Any:
        with parts.database.write() as session:
            return change(session)

    return await run_in_threadpool(write)
