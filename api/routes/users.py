"""Login, sessions and users."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Body, Query, Request
from sqlalchemy import or_, select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authentication import UserPrincipal, presented_token
from api.deps import AdminDep, PartsDep, ReaderDep, UserDep
from api.parts import Parts
from api.queries.paging import WindowDep, chosen, few, rows_of
from api.routing import Route
from api.schemas import users as wire
from api.schemas.base import answer
from api.schemas.parameters import SORT_BY, NamePart, UserId
from api.services import users
from api.services.idempotency import Once
from api.services.roles import holders_of
from api.services.users import wire_user
from database.models import User

router = APIRouter(route_class=Route, tags=["users"])
Result = TypeVar("Result")


@router.post("/api/v1/auth/login", response_model=wire.LoginResponse)
async def login(request: Request, parts: PartsDep, wanted: wire.LoginRequest) -> Response:
    """Log in with name and password; answers a token and sets it as a cookie."""
    token, user = await parts.auth.login(wanted.username, wanted.password, is_hashed=wanted.is_hashed)
    response = answer({"token": token, "user": wire_user(user)})
    set_cookie(request, response, token, parts)
    return response


def set_cookie(request: Request, response: Response, token: str, parts: Parts) -> None:
    """The session as a cookie: out of reach for scripts and other sites, and not in clear where there is TLS."""
    response.set_cookie(
        "auth",
        token,
        max_age=parts.settings.session_days * 86400,
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
    )


@router.post("/api/v1/auth/logout")
async def logout(request: Request, parts: PartsDep, user: UserDep) -> Response:
    """End this session."""
    token, _ = presented_token(request)
    await run_in_threadpool(parts.auth.logout, token)
    response = answer()
    response.delete_cookie("auth", httponly=True, samesite="lax")
    return response


@router.get("/api/v1/me", response_model=wire.UserResponse)
@router.get("/api/v1/auth/user", response_model=wire.UserResponse)
def me(parts: PartsDep, caller: ReaderDep) -> Response:
    """The calling user; a container acts for the owner of its experiment."""
    with parts.database.read() as session:
        return answer({"user": wire_user(session.get_one(User, caller.user.user_id))})


@router.get("/api/v1/users", response_model=wire.UsersResponse)
def list_users(
    parts: PartsDep,
    caller: UserDep,
    window: WindowDep,
    name: NamePart = "",
    active: bool | None = None,
    admin: bool | None = None,
    role_ids: Annotated[list[int] | None, Query(alias="roleIdAssignedDirectlyToUser")] = None,
    sort_by: Annotated[str, Query(alias="sortBy", description=SORT_BY)] = "",
) -> Response:
    """List users; `roleIdAssignedDirectlyToUser` ignores roles that a user has by a group only."""
    column = chosen("sortBy", sort_by, users.SORT)
    wanted = users.UserFilter(name=name, active=active, admin=admin)
    if role_ids:
        wanted.role = or_(*(holders_of(role_id) for role_id in few("roleIdAssignedDirectlyToUser", role_ids)))
    order = [column.desc(), User.id.desc()] if window.is_descending else [column.asc(), User.id.asc()]
    with parts.database.read() as session:
        rows, pagination = rows_of(session, select(User).where(*wanted.conditions()).order_by(*order), window)
    return answer({"users": [wire_user(user) for (user,) in rows], "pagination": pagination})


@router.post("/api/v1/users", response_model=wire.UserResponse)
async def create_user(request: Request, parts: PartsDep, admin: AdminDep, wanted: wire.PostUserRequest) -> Response:
    """Create a user (administrators only)."""
    once = Once(request, admin)
    hashed = await run_in_threadpool(users.stored_password, wanted.password, is_hashed=wanted.is_hashed)

    def create(session: Session) -> dict[str, Any]:
        return {"user": wire_user(users.new_user(session, wanted.user, hashed))}

    return answer(await changed(parts, lambda session: once(session, lambda: create(session))))


async def created(parts: Parts, wanted: wire.NewUser, password: str, is_hashed: bool) -> User:
    """A new user. Raises: as `users.new_user`."""
    hashed = await run_in_threadpool(users.stored_password, password, is_hashed=is_hashed)
    return await changed(parts, lambda session: users.new_user(session, wanted, hashed))


async def changed(parts: Parts, change: Callable[[Session], Result]) -> Result:
    """The result of a change of users, roles or permissions. After it, every token is looked up again."""

    def run() -> Result:
        with parts.database.write() as session:
            result = change(session)
        parts.auth.forget()
        return result

    return await run_in_threadpool(run)


@router.patch("/api/v1/users")
async def patch_users(parts: PartsDep, admin: AdminDep, wanted: wire.PatchUsersRequest) -> Response:
    """Activate or deactivate many users (administrators only)."""
    return answer({"results": await changed(parts, lambda session: users.activate_users(session, wanted))})


@router.patch("/api/v1/users/assignments")
async def assign_groups(parts: PartsDep, admin: AdminDep, wanted: wire.AssignMultipleGroupsRequest) -> Response:
    """Put users into groups and take them out of others (administrators only)."""

    def assign(session: Session) -> None:
        for group_id in wanted.add_groups:
            users.add_members(session, users.group_by_id(session, group_id), wanted.user_ids)
        for group_id in wanted.remove_groups:
            users.remove_members(session, users.group_by_id(session, group_id), wanted.user_ids)

    await changed(parts, assign)
    return answer()


@router.get("/api/v1/users/{username}/by-username", response_model=wire.UserResponse)
def user_by_name(username: str, parts: PartsDep, caller: UserDep) -> Response:
    """One user, by name."""
    with parts.database.read() as session:
        return answer({"user": wire_user(users.user_by_name(session, username))})


@router.get("/api/v1/users/{user_id}", response_model=wire.UserResponse)
def one_user(user_id: UserId, parts: PartsDep, caller: UserDep) -> Response:
    """One user, by id."""
    with parts.database.read() as session:
        return answer({"user": wire_user(users.user_by_id(session, user_id))})


@router.post("/api/v1/users/{user_id}/password")
async def set_password(
    user_id: UserId,
    parts: PartsDep,
    caller: UserDep,
    password: Annotated[str, Body(examples=["correct horse battery staple"])] = "",
) -> Response:
    """Set a password: the body is a JSON string, hashed by the client. Ends every session of that user."""
    await patched(parts, caller, user_id, wire.PatchUser(password=password, is_hashed=True))
    return answer()


@router.patch("/api/v1/users/{user_id}", response_model=wire.UserResponse)
async def patch_user(user_id: UserId, parts: PartsDep, caller: UserDep, patch: wire.PatchUser) -> Response:
    """Change a user. Users may change their own display name and password, administrators all."""
    return answer({"user": wire_user(await patched(parts, caller, user_id, patch))})


def _check_knows_password(parts: Parts, caller: UserPrincipal, user_id: int) -> None:
    with parts.database.read() as session:
        users.check_knows_password(session, caller, user_id)


async def patched(parts: Parts, caller: UserPrincipal, user_id: int, patch: wire.PatchUser) -> User:
    """The user after a change. Raises: Forbidden, and as `users.patch_user`."""
    users.check_may_patch(caller, user_id, patch)
    hashed = None
    if patch.password is not None:
        await run_in_threadpool(_check_knows_password, parts, caller, user_id)
        hashed = await run_in_threadpool(users.stored_password, patch.password, is_hashed=patch.is_hashed)
    return await changed(parts, lambda session: users.patch_user(session, user_id, patch, hashed))
