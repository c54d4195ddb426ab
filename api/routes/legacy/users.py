"""Login and users at the addresses and in the spelling of clients up to 0.21 (spec rest-api.md §3)."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.deps import AdminDep, PartsDep, UserDep
from api.parts import Parts
from api.routes.users import created, patched, set_cookie
from api.routing import Route
from api.schemas import users as wire
from api.schemas.base import answer
from api.schemas.legacy import OldLogin, OldUser
from api.services import users
from database.models import User

router = APIRouter(route_class=Route, tags=["users (older clients)"])


def _shown(user: User) -> dict[str, Any]:
    parts = {"uid": user.agent_uid, "user": user.agent_user, "gid": user.agent_gid, "group": user.agent_group}
    return {
        "id": user.id,
        "username": user.username,
        "display_name": user.display_name,
        "admin": user.is_admin,
        "active": user.is_active,
        "agent_user_group": parts if any(part is not None for part in parts.values()) else None,
        "modified_at": users.wire_user(user).model_dump()["modified_at"],
    }


@router.post("/login", response_model=wire.TokenResponse)
async def login(request: Request, parts: PartsDep, wanted: OldLogin, cookie: bool = False) -> Response:
    """Log in; `?cookie=true` sets the token as a cookie as well."""
    token, _ = await parts.auth.login(wanted.username, wanted.password, is_hashed=True)
    response = answer({"token": token})
    if cookie:
        set_cookie(request, response, token, parts)
    return response


@router.get("/users")
def list_users(parts: PartsDep, caller: UserDep) -> Response:
    """All users."""
    with parts.database.read() as session:
        return answer([_shown(user) for user in session.scalars(select(User).order_by(User.id))])


@router.get("/users/me")
def me(parts: PartsDep, caller: UserDep) -> Response:
    """The calling user."""
    with parts.database.read() as session:
        return answer(_shown(users.user_by_id(session, caller.user_id)))


@router.post("/users")
async def create_user(parts: PartsDep, admin: AdminDep, sent: OldUser) -> Response:
    """Create a user (administrators only)."""
    wanted = wire.NewUser(
        username=sent.username or "",
        display_name=sent.display_name,
        admin=bool(sent.admin),
        active=sent.active is not False,
        agent_user_group=sent.agent_user_group.today() if sent.agent_user_group else None,
    )
    return answer(_shown(await created(parts, wanted, sent.password or "", is_hashed=True)))


@router.patch("/users/{username}")
async def patch_user(username: str, parts: PartsDep, caller: UserDep, sent: OldUser) -> Response:
    """Change a user."""
    patch = wire.PatchUser(
        display_name=sent.display_name,
        admin=sent.admin,
        active=sent.active,
        password=sent.password,
        is_hashed=True,
        agent_user_group=sent.agent_user_group.today() if sent.agent_user_group else None,
    )
    return answer(_shown(await patched(parts, caller, await _id_of(parts, username), patch)))


@router.patch("/users/{username}/username")
@router.put("/users/{username}/username")
async def rename_user(username: str, parts: PartsDep, caller: UserDep, sent: OldUser) -> Response:
    """Give a user another name."""
    user_id = await _id_of(parts, username)
    return answer(_shown(await patched(parts, caller, user_id, wire.PatchUser(username=sent.username or ""))))


async def _id_of(parts: Parts, username: str) -> int:
    return await run_in_threadpool(_look_up, parts, username)


def _look_up(parts: Parts, username: str) -> int:
    with parts.database.read() as session:
        return users.user_by_name(session, username).id
