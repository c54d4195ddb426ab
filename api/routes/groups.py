"""Groups of users."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.deps import AdminDep, PartsDep, UserDep
from api.queries.paging import Window, rows_of
from api.routes.users import changed
from api.routing import Route
from api.schemas import access as wire
from api.schemas.base import answer
from api.schemas.parameters import GroupId
from api.services import users
from api.services.idempotency import Once

router = APIRouter(route_class=Route, tags=["groups and roles"])


@router.post("/api/v1/groups")
async def create_group(request: Request, parts: PartsDep, admin: AdminDep, wanted: wire.CreateGroupRequest) -> Response:
    """Create a group (administrators only)."""
    once = Once(request, admin)

    def create(session: Session) -> dict[str, Any]:
        return users.group_details(session, users.new_group(session, wanted.name, wanted.add_users))

    return answer({"group": await changed(parts, lambda session: once(session, lambda: create(session)))})


@router.post("/api/v1/groups/search")
async def search_groups(parts: PartsDep, user: UserDep, wanted: wire.GetGroupsRequest) -> Response:
    """Groups with the number of their members, by name; of one name, or of one user."""

    def find() -> dict[str, Any]:
        with parts.database.read() as session:
            found = users.groups_found(wanted.name, wanted.user_id)
            rows, pagination = rows_of(session, found, Window(offset=wanted.offset, limit=wanted.limit))
        groups = [
            {"group": {"groupId": group.id, "name": group.name}, "numMembers": members} for group, members in rows
        ]
        return {"groups": groups, "pagination": pagination}

    return answer(await run_in_threadpool(find))


@router.get("/api/v1/groups/{group_id}")
def get_group(group_id: GroupId, parts: PartsDep, user: UserDep) -> Response:
    """One group with its members."""
    with parts.database.read() as session:
        return answer({"group": users.group_details(session, users.group_by_id(session, group_id))})


@router.put("/api/v1/groups/{group_id}")
async def update_group(
    group_id: GroupId, parts: PartsDep, admin: AdminDep, wanted: wire.UpdateGroupRequest
) -> Response:
    """Rename a group, add and remove members (administrators only)."""

    def update(session: Session) -> dict[str, Any]:
        group = users.group_by_id(session, group_id)
        if wanted.name:
            users.rename_group(session, group, wanted.name)
        users.add_members(session, group, wanted.add_users)
        users.remove_members(session, group, wanted.remove_users)
        return users.group_details(session, group)

    return answer({"group": await changed(parts, update)})


@router.delete("/api/v1/groups/{group_id}")
async def delete_group(group_id: GroupId, parts: PartsDep, admin: AdminDep) -> Response:
    """Delete a group, and with it what its members may by it (administrators only)."""
    await changed(parts, lambda session: session.delete(users.group_by_id(session, group_id)))
    return answer()
