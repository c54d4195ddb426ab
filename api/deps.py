"""What routes depend on: who calls, and the parts of the application."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool

from api.auth.authentication import (
    AgentPrincipal,
    AllocationPrincipal,
    Principal,
    UserPrincipal,
    presented_token,
)
from api.errors import Forbidden
from api.middleware.audit import admit
from api.parts import Parts


def get_parts(request: Request) -> Parts:
    """The application's parts."""
    return request.app.state.parts


async def get_principal(request: Request) -> Principal:
    """Who calls. Raises: Unauthenticated, Forbidden if it is a change and the token read-only."""
    auth = get_parts(request).auth
    token, is_allocation = presented_token(request)
    known = auth.remembered(token, is_allocation=is_allocation)
    if known is None:
        known = await run_in_threadpool(auth.identify, token, is_allocation=is_allocation)
    admit(request, known)
    return known


async def get_user(principal: Annotated[Principal, Depends(get_principal)]) -> UserPrincipal:
    """The calling user. Raises: Forbidden for containers and agents."""
    if not isinstance(principal, UserPrincipal):
        raise Forbidden("this is for users only")
    return principal


async def get_admin(user: Annotated[UserPrincipal, Depends(get_user)]) -> UserPrincipal:
    """The calling administrator. Raises: Forbidden."""
    if not user.is_admin:
        raise Forbidden("this is for administrators only")
    return user


async def get_agent(principal: Annotated[Principal, Depends(get_principal)]) -> AgentPrincipal:
    """The calling agent. Raises: Forbidden."""
    if not isinstance(principal, AgentPrincipal):
        raise Forbidden("this is for agents only")
    return principal


async def get_reader(principal: Annotated[Principal, Depends(get_principal)]) -> UserPrincipal | AllocationPrincipal:
    """A user or a container, for what both may read."""
    if isinstance(principal, AgentPrincipal):
        raise Forbidden("this is not for agents")
    return principal


async def get_actor(principal: Annotated[Principal, Depends(get_principal)]) -> UserPrincipal:
    """The calling user, or the owner of the experiment that calls from its container. Raises: Forbidden for agents."""
    return (await get_reader(principal)).user


PartsDep = Annotated[Parts, Depends(get_parts)]
PrincipalDep = Annotated[Principal, Depends(get_principal)]
UserDep = Annotated[UserPrincipal, Depends(get_user)]
ActorDep = Annotated[UserPrincipal, Depends(get_actor)]
AdminDep = Annotated[UserPrincipal, Depends(get_admin)]
AgentDep = Annotated[AgentPrincipal, Depends(get_agent)]
ReaderDep = Annotated[UserPrincipal | AllocationPrincipal, Depends(get_reader)]
