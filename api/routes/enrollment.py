"""Enrollment and removal of agents, and their join tokens. Ours; not part of the old wire."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.deps import AdminDep, PartsDep
from api.errors import FailedPrecondition
from api.queries.paging import WindowDep, rows_of
from api.routing import Route
from api.schemas import agents as wire
from api.schemas.base import answer
from api.schemas.parameters import AgentId
from api.services import enrollment
from database.audit import asking
from database.models import AgentJoinToken

router = APIRouter(route_class=Route, tags=["cluster"])
_TOKENS = "/api/v1/undeterred/agent-join-tokens"


@router.post(_TOKENS)
async def create_token(parts: PartsDep, admin: AdminDep, wanted: wire.PostJoinToken) -> Response:
    """Create a token by which hosts enroll in a pool. The response is the only place that shows it."""

    def create() -> tuple[str, int]:
        with parts.database.write() as session:
            return enrollment.create_token(session, wanted, admin)

    token, token_id = await run_in_threadpool(create)
    known_by = (await run_in_threadpool(enrollment.authority, parts.settings)).fingerprint
    return answer({"token": token, "tokenId": token_id, "authorityFingerprint": known_by})


@router.get("/api/v1/undeterred/authority")
def get_authority(parts: PartsDep) -> Response:
    """The authority behind this API's certificate, for hosts that know its fingerprint and join. No login is needed."""
    return answer(enrollment.authority(parts.settings))


@router.get(_TOKENS)
def list_tokens(parts: PartsDep, admin: AdminDep, window: WindowDep) -> Response:
    """The join tokens there are, the newest first."""
    statement = enrollment.tokens().order_by(AgentJoinToken.id.desc())
    with parts.database.read() as session:
        rows, pagination = rows_of(session, statement, window)
        return answer({"tokens": [enrollment.token_info(row, maker) for row, maker in rows], "pagination": pagination})


@router.delete(_TOKENS + "/{token_id}")
def revoke_token(token_id: int, parts: PartsDep, admin: AdminDep) -> Response:
    """Revoke a join token: no host enrolls by it any more. Hosts that did remain enrolled."""
    with parts.database.write() as session:
        enrollment.revoke_token(session, token_id)
    return answer()


@router.post("/api/v1/undeterred/agents/join")
async def join(parts: PartsDep, wanted: wire.JoinAgent) -> Response:
    """A host becomes an agent, by a join token. No login is needed."""
    if not parts.settings.gateway:
        raise FailedPrecondition(
            "this cluster takes no agents of other hosts: its operator starts a gateway for them (`det up --host`, or"
            " `undeterred-gateway` and UNDETERRED_GATEWAY)"
        )

    current = asking.get()
    if current is not None:
        current.actor = f"agent {wanted.agent_id}"

    def make() -> str:
        with parts.database.write() as session:
            return enrollment.join(session, wanted)

    return answer(enrollment.welcome(wanted.agent_id, await run_in_threadpool(make), parts.settings))


@router.delete("/api/v1/undeterred/agents/{agent_id}")
async def remove(
    agent_id: AgentId, parts: PartsDep, admin: AdminDep, force: Annotated[bool, Query()] = False
) -> Response:
    """Forget an agent: its credential is void. One that is connected goes by force only."""

    def forget() -> None:
        with parts.database.write() as session:
            enrollment.remove(session, agent_id, force=force)

    await run_in_threadpool(forget)
    parts.auth.forget()
    parts.dispatcher.poke()
    return answer()
