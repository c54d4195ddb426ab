"""What routes share: the parts of the application, who calls, and the body as clients send it."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, cast

from fastapi import Depends, Request
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from api.auth import (
    AgentPrincipal,
    AllocationPrincipal,
    Authenticator,
    Principal,
    UserPrincipal,
    allocation_ended,
    presented_token,
)
from api.changes import admit
from api.commands import Commands
from api.continuation import Continuer
from api.create import Creator
from api.errors import BadRequest, Forbidden, NotFound
from api.log_hooks import LogHooks
from api.log_policies import LogPolicies
from api.log_retention import LogRetention
from api.log_ring import LogRing
from api.metrics_writer import MetricsWriter
from api.outbox import Dispatcher
from api.redact import Redactor
from api.settings import ApiSettings
from api.watch import PreemptionWatch
from database.audit import asking
from database.models import Allocation
from database.session import Database

Model = TypeVar("Model", bound=BaseModel)


@dataclass
class Parts:
    """Everything that lives as long as the application."""

    settings: ApiSettings
    database: Database
    auth: Authenticator
    commands: Commands
    dispatcher: Dispatcher
    metrics: MetricsWriter
    preemption: PreemptionWatch
    creator: Creator
    continuer: Continuer
    log_policies: LogPolicies
    log_hooks: LogHooks
    log_retention: LogRetention
    redactor: Redactor
    log_ring: LogRing
    cluster_id: str
    version: str


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


def own_trial(principal: Principal, trial_id: int) -> AllocationPrincipal:
    """A container may speak for its own trial only. Raises: Forbidden, NotFound."""
    if not isinstance(principal, AllocationPrincipal):
        raise Forbidden("reports come from the containers of a trial only")
    if principal.trial_id != trial_id:
        raise NotFound(f"trial {trial_id} not found")
    return principal


def own_allocation(principal: Principal, allocation_id: str) -> AllocationPrincipal:
    """A container may speak for its own allocation only. Raises: Forbidden, NotFound."""
    if not isinstance(principal, AllocationPrincipal):
        raise Forbidden("this is for the containers of an allocation only")
    if principal.allocation_id != allocation_id:
        raise NotFound(f"allocation {allocation_id} not found")
    return principal


def fence(session: Session, caller: AllocationPrincipal) -> None:
    """Refuse a copy of a trial that was given up, within the transaction that writes for it. Raises: Unauthenticated.

    Who a token belongs to is remembered for a moment; this is not. On PostgreSQL the allocation can't end before this
    transaction does; on SQLite there is one writer at a time.
    """
    statement = select(Allocation.id).where(Allocation.id == caller.allocation_id, Allocation.ended_at.is_(None))
    if session.scalar(statement.with_for_update(read=True)) is None:
        raise allocation_ended()


async def body_as(request: Request, model: type[Model]) -> Model:
    """The body as a message. Clients send no content type, and no body at all for an empty message.

    How large it may be: `api.bodies`.

    Raises: BadRequest, which names field, value and expectation; TooLarge.
    """
    raw = await request.body()
    try:
        message = model.model_validate_json(raw or b"{}")
    except ValidationError as error:
        raise BadRequest(refusal(error)) from None
    _note_fields(message.model_fields_set)
    return message


def _note_fields(names: set[str]) -> None:
    """For the audit log: what was sent, by name."""
    current = asking.get()
    if current is not None:
        current.fields = tuple(sorted(names))


async def json_body(request: Request) -> Any:
    """The body as plain JSON; None if there is none. Nested at most 200 deep, since what is stored must be sent again.

    Raises: BadRequest, TooLarge.
    """
    raw = await request.body()
    if not raw:
        return None
    try:
        return from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise BadRequest(f"the body is no JSON: {error}") from None


async def json_object(request: Request) -> dict[str, Any]:
    """The body as a JSON object; empty if there is none. Raises: BadRequest."""
    body = await json_body(request)
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise BadRequest(f"the body: expected an object, got {str(body)[:80]!r}")
    return cast("dict[str, Any]", body)


def parse_as(kind: Any, value: Any) -> Any:
    """Plain JSON as `kind`. Raises: BadRequest."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise BadRequest(refusal(error)) from None


#: Writes no more than is shown of what may have 100 MB.
_shorter = reprlib.Repr()
_shorter.maxstring = _shorter.maxother = _shorter.maxlong = 80


def refusal(error: ValidationError) -> str:
    """What is wrong with a message, field by field."""
    problems: list[str] = []
    for problem in error.errors(include_url=False)[:20]:
        where = ".".join(str(part)[:80] for part in problem["loc"]) or "the body"
        problems.append(f"{where}: {problem['msg']}, got {_shorter.repr(problem.get('input'))[:80]}")
    return "; ".join(problems)


PartsDep = Annotated[Parts, Depends(get_parts)]
PrincipalDep = Annotated[Principal, Depends(get_principal)]
UserDep = Annotated[UserPrincipal, Depends(get_user)]
ActorDep = Annotated[UserPrincipal, Depends(get_actor)]
AdminDep = Annotated[UserPrincipal, Depends(get_admin)]
AgentDep = Annotated[AgentPrincipal, Depends(get_agent)]
ReaderDep = Annotated[UserPrincipal | AllocationPrincipal, Depends(get_reader)]
