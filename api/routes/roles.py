"""Roles and their assignments."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authorization import Role, require_role
from api.deps import AdminDep, PartsDep, UserDep
from api.errors import Forbidden
from api.queries.paging import Window, WindowDep, rows_of
from api.routes.users import changed
from api.routing import Route
from api.schemas import access as wire
from api.schemas.base import answer
from api.schemas.parameters import GroupId, UserId, WorkspaceId
from api.services import roles
from api.services import users as service
from api.services.users import wire_user
from database.models import Group, GroupMember, User

router = APIRouter(route_class=Route, tags=["groups and roles"])


@router.get("/api/v1/permissions/summary")
def permissions_summary(parts: PartsDep, user: UserDep) -> Response:
    """The roles and permissions of the caller, and where they hold."""
    with parts.database.read() as session:
        held = roles.summary_of(session, user)
    return answer({"assignments": held, "roles": [roles.wire_role(summary["roleId"]) for summary in held]})


@router.post("/api/v1/roles/search")
async def list_roles(parts: PartsDep, user: UserDep, wanted: wire.Search) -> Response:
    """Every role."""
    return answer(_page(list(roles.NAMES), wanted))


def _page(numbers: list[int], wanted: wire.Search) -> dict[str, Any]:
    window = Window(offset=wanted.offset, limit=wanted.limit)
    start, end = window.bounds(len(numbers))
    shown = [roles.wire_role(number) for number in numbers[start:end]]
    return {"roles": shown, "pagination": window.pagination(len(numbers))}


@router.post("/api/v1/roles/search/by-assignability")
async def assignable_roles(parts: PartsDep, user: UserDep, wanted: wire.AssignableRolesRequest) -> Response:
    """Roles that can be given in a workspace, or in the whole cluster."""

    def find() -> list[int]:
        if not wanted.workspace_id:
            return list(roles.NAMES)
        with parts.database.read() as session:
            require_role(session, user, wanted.workspace_id, Role.VIEWER)
        return list(roles.IN_WORKSPACES)

    return answer(_page(await run_in_threadpool(find), wanted))


@router.post("/api/v1/roles/search/by-ids")
async def roles_by_ids(parts: PartsDep, user: UserDep, wanted: wire.GetRolesByIdRequest) -> Response:
    """Roles with their holders, in workspaces that the caller can see."""

    def find() -> list[dict[str, Any]]:
        with parts.database.read() as session:
            return roles.by_numbers(session, wanted.role_ids, user) if wanted.role_ids else []

    return answer({"roles": await run_in_threadpool(find)})


@router.get("/api/v1/undeterred/roles/{role_id}/holders", response_model=wire.RoleHolders)
def role_holders(
    role_id: Annotated[int, Path(description="The number of a role.")],
    parts: PartsDep,
    admin: AdminDep,
    window: WindowDep,
    name: Annotated[str, Query(max_length=200, description="What is in the name, in any case.")] = "",
) -> Response:
    """Who has a role, with names, in which workspaces or in all (administrators only)."""
    with parts.database.read() as session:
        rows, pagination = rows_of(session, roles.holders(role_id, name), window)
    shown = [
        wire.RoleHolder(user_id=user_id, group_id=group_id, name=of, workspace_id=place_id, workspace_name=place or "")
        for user_id, group_id, of, place_id, place in rows
    ]
    return answer(wire.RoleHolders(holders=shown, pagination=pagination))


@router.get("/api/v1/roles/search/by-user/{user_id}")
def roles_of_user(user_id: UserId, parts: PartsDep, user: UserDep) -> Response:
    """The roles of a user, assigned directly or by a group; only administrators see those of other users."""
    if user.user_id != user_id and not user.is_admin:
        raise Forbidden("only administrators may see the roles of other users")
    with parts.database.read() as session:
        return answer({"roles": roles.of_user(session, user_id)})


@router.get("/api/v1/roles/search/by-group/{group_id}")
def roles_of_group(group_id: GroupId, parts: PartsDep, user: UserDep) -> Response:
    """The roles of a group; for its members and for administrators."""
    with parts.database.read() as session:
        held = roles.summaries(roles.of_group(session, group_id))
        if not user.is_admin and session.get(GroupMember, (group_id, user.user_id)) is None:
            raise Forbidden("only administrators may see the roles of groups that they are not in")
    return answer({"assignments": held, "roles": [roles.wire_role(summary["roleId"]) for summary in held]})


@router.post("/api/v1/roles/add-assignments")
async def assign_roles(parts: PartsDep, user: UserDep, wanted: wire.RoleAssignments) -> Response:
    """Give roles: in a workspace for its administrators, elsewhere for those of the cluster."""
    await changed(parts, lambda session: roles.assign(session, wanted, user))
    return answer()


@router.post("/api/v1/roles/remove-assignments")
async def remove_assignments(parts: PartsDep, user: UserDep, wanted: wire.RoleAssignments) -> Response:
    """Take roles back, as they are given."""
    await changed(parts, lambda session: roles.remove(session, wanted, user))
    return answer()


@router.get("/api/v1/roles/workspace/{workspace_id}")
def workspace_roles(workspace_id: WorkspaceId, parts: PartsDep, user: UserDep, name: str = "") -> Response:
    """The role assignments of a workspace, for users who can see it."""
    with parts.database.read() as session:
        require_role(session, user, workspace_id, Role.VIEWER)
        rows = roles.in_workspace(session, workspace_id, name)
        group_ids = sorted({row.group_id for row in rows if row.group_id is not None})
        user_ids = sorted({row.user_id for row in rows if row.user_id is not None})
        members = service.members_of(session, group_ids)
        groups = session.scalars(select(Group).where(Group.id.in_(group_ids)).order_by(Group.name)).all()
        users = session.scalars(select(User).where(User.id.in_(user_ids)).order_by(User.username)).all()
    details = [
        {"groupId": group.id, "name": group.name, "users": [wire_user(member) for member in members[group.id]]}
        for group in groups
    ]
    return answer(
        {
            "groups": details,
            "usersAssignedDirectly": [wire_user(each) for each in users],
            "assignments": roles.with_assignments(rows),
        }
    )
