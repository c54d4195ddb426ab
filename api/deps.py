"""Dependencies of routes: the caller, and the parts of the application."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyCookie, APIKeyHeader, HTTPBearer
from starlette.concurrency import run_in_threadpool

from api.auth.authentication import (
    FENCED_S,
    AgentPrincipal,
    AllocationPrincipal,
    Principal,
    UserPrincipal,
    presented_token,
)
from api.errors import Forbidden
from api.middleware.audit import admit
from api.parts import Parts
from api.schemas import streaming

_Dependency = TypeVar("_Dependency", bound=Callable[..., Any])


def _read_once(dependency: _Dependency) -> _Dependency:
    """Keep the signature with what hundreds of routes depend on: each would read its annotations again at the start."""
    dependency.__signature__ = inspect.signature(dependency, eval_str=True)  # pyright: ignore[reportFunctionMemberAccess]
    return dependency


def get_parts(request: Request) -> Parts:
    """The application's parts."""
    return request.app.state.parts


@_read_once
async def _parts(request: Request) -> Parts:
    return get_parts(request)  # a dependency that is not async takes a thread, which is longer than most of them last


_bearer = _read_once(
    HTTPBearer(
        scheme_name="bearer",
        auto_error=False,
        description="A session (`POST /api/v1/auth/login`) or an access token (`POST /api/v1/tokens`) of a user.",
    )
)
_cookie = _read_once(
    APIKeyCookie(name="auth", scheme_name="cookie", auto_error=False, description="The same, as browsers keep it.")
)
_allocation = _read_once(
    APIKeyHeader(
        name="Grpc-Metadata-x-allocation-token",
        scheme_name="allocation",
        auto_error=False,
        description="`Bearer ` and the token of a container (`DET_SESSION_TOKEN`), for what it reports and asks.",
    )
)


@_read_once
async def get_caller(request: Request) -> Principal:
    """The caller, looked up once a request: a route that takes a body asks before it reads it (`api.routing`).

    Raises: Unauthenticated; Forbidden if the request changes something and the token is read-only.
    """
    return await _look_up(request)


@_read_once
async def get_fenced_caller(request: Request) -> Principal:
    """As `get_caller`, for routes that fence containers: the token need not be looked up twice."""
    return await _look_up(request, for_s=FENCED_S)


async def _look_up(request: Request, *, for_s: float = 0.0) -> Principal:
    known: Principal | None = getattr(request.state, "caller", None)
    if known is not None:
        return known
    auth = get_parts(request).auth
    token, is_allocation = presented_token(request)
    known = await auth.look_up(token, is_allocation=is_allocation, for_s=for_s)
    admit(request, known)
    request.state.caller = known
    return known


Caller = Annotated[Principal, Depends(get_caller)]


# Which tokens a route takes, for the OpenAPI page: what they say is read by `get_caller`. Requests leave them out.


@_read_once
async def _user_tokens(bearer: Annotated[Any, Security(_bearer)], cookie: Annotated[Any, Security(_cookie)]) -> None:
    pass


@_read_once
async def _any_token(
    users: Annotated[None, Depends(_user_tokens)], allocation: Annotated[Any, Security(_allocation)]
) -> None:
    pass


#: What the OpenAPI page alone is made from.
TOLD = (_bearer, _user_tokens, _any_token)


@_read_once
async def get_principal(principal: Caller, tokens: Annotated[None, Depends(_any_token)] = None) -> Principal:
    """The caller: a user, a container or an agent."""
    return principal


@_read_once
async def get_fenced(
    principal: Annotated[Principal, Depends(get_fenced_caller)], tokens: Annotated[None, Depends(_any_token)] = None
) -> Principal:
    """The caller; the route fences containers before it changes anything (`api.auth.containers`)."""
    return principal


def asked_again(request: Request, check: Callable[[UserPrincipal], object]) -> Callable[[], Awaitable[None]]:
    """A check whether a user is still authorized for a stream; await it at each step while the stream is open.

    Every `RIGHTS_EVERY_S` it looks up the caller again, whose token may have expired, and calls `check`, which may
    block. It raises Unauthenticated, Forbidden, and whatever `check` raises.
    """
    auth = get_parts(request).auth
    token, is_allocation = presented_token(request)
    looked_at = time.monotonic()

    def look() -> None:
        check(_as_user(auth.identify(token, is_allocation=is_allocation)))

    async def still() -> None:
        nonlocal looked_at
        if time.monotonic() - looked_at >= streaming.RIGHTS_EVERY_S:
            await run_in_threadpool(look)
            looked_at = time.monotonic()

    return still


def _as_user(principal: Principal) -> UserPrincipal:
    if not isinstance(principal, UserPrincipal):
        raise Forbidden("this is for users only")
    return principal


@_read_once
async def get_user(principal: Caller, tokens: Annotated[None, Depends(_user_tokens)] = None) -> UserPrincipal:
    """The calling user. Raises: Forbidden for containers and agents."""
    return _as_user(principal)


@_read_once
async def get_admin(user: Annotated[UserPrincipal, Depends(get_user)]) -> UserPrincipal:
    """The calling administrator. Raises: Forbidden."""
    require_admin(user)
    return user


def require_admin(user: UserPrincipal) -> None:
    """Refuse users who are not administrators. Raises: Forbidden."""
    if not user.is_admin:
        raise Forbidden("this is for administrators only")


async def get_agent(principal: Caller, token: Annotated[Any, Security(_bearer)] = None) -> AgentPrincipal:
    """The calling agent. Raises: Forbidden."""
    if not isinstance(principal, AgentPrincipal):
        raise Forbidden("this is for agents only")
    return principal


@_read_once
async def get_reader(principal: Annotated[Principal, Depends(get_principal)]) -> UserPrincipal | AllocationPrincipal:
    """A user or a container, for what both may read."""
    if isinstance(principal, AgentPrincipal):
        raise Forbidden("this is not for agents")
    return principal


@_read_once
async def get_actor(principal: Annotated[Principal, Depends(get_principal)]) -> UserPrincipal:
    """The calling user, or the owner of the experiment that calls from its container. Raises: Forbidden for agents."""
    return (await get_reader(principal)).user


PartsDep = Annotated[Parts, Depends(_parts)]
PrincipalDep = Annotated[Principal, Depends(get_principal)]
UserDep = Annotated[UserPrincipal, Depends(get_user)]
ActorDep = Annotated[UserPrincipal, Depends(get_actor)]
AdminDep = Annotated[UserPrincipal, Depends(get_admin)]
AgentDep = Annotated[AgentPrincipal, Depends(get_agent)]
FencedDep = Annotated[Principal, Depends(get_fenced)]
ReaderDep = Annotated[UserPrincipal | AllocationPrincipal, Depends(get_reader)]
