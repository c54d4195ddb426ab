"""Gates: what waits for approval, and who decides. Ours; not part of the old wire."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Header, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authentication import UserPrincipal
from api.deps import PartsDep, UserDep
from api.parts import Parts
from api.routing import Route, as_sent
from api.schemas import gates as wire
from api.schemas.base import answer
from api.services import gates as service

router = APIRouter(route_class=Route, tags=["gates"])

GateId = Annotated[int, Path(description="The number of a gate.")]


@router.get("/api/v1/undeterred/gates", response_model=wire.GatesResponse)
def list_gates(
    parts: PartsDep,
    user: UserDep,
    experiment_id: Annotated[int | None, Query(alias="experimentId")] = None,
    state: Literal["WAITING", "APPROVED", "DENIED"] | None = None,
) -> Response:
    """Gates of experiments that the caller may see, the newest first: at most 200."""
    with parts.database.read() as session:
        return answer(wire.GatesResponse(gates=service.many(session, user, experiment_id, state)))


@router.post("/api/v1/undeterred/gates/{gate_id}/approve", response_model=wire.GateResponse)
async def approve_gate(gate_id: GateId, parts: PartsDep, user: UserDep) -> Response:
    """Have what waits done: trials go on, or the request may be sent again."""
    return await _decided(parts, gate_id, user, approve=True)


@router.post("/api/v1/undeterred/gates/{gate_id}/deny", response_model=wire.GateResponse)
async def deny_gate(gate_id: GateId, parts: PartsDep, user: UserDep) -> Response:
    """Refuse what waits: trials that came to the gate end."""
    return await _decided(parts, gate_id, user, approve=False)


async def _decided(parts: Parts, gate_id: int, user: UserPrincipal, *, approve: bool) -> Response:
    def write() -> wire.Gate:
        with parts.database.write() as session:
            return service.decide(session, gate_id, user, approve=approve)

    decided = await run_in_threadpool(write)
    parts.dispatcher.poke()
    return answer(wire.GateResponse(gate=decided))


@router.post("/api/v1/undeterred/gates/{gate_id}/answer")
async def answer_gate(
    gate_id: GateId,
    request: Request,
    parts: PartsDep,
    wanted: wire.WebhookAnswer,
    signed_at: Annotated[str, Header(alias="X-Determined-AI-Signature-Timestamp")] = "",
    signature: Annotated[str, Header(alias="X-Determined-AI-Signature")] = "",
) -> Response:
    """Decide by a signed request of a system that a webhook notified: its secret signs, as it signs the events.

    The body is `{"webhook": NAME, "approve": true}`. The signature is HMAC-SHA256 over `<seconds since 1970>,<body>`,
    in hexadecimal digits, at most five minutes old.
    """
    body = as_sent(request)

    def write() -> None:
        with parts.database.write() as session:
            service.answer_signed(session, gate_id, wanted, body, signed_at, signature)

    await run_in_threadpool(write)
    parts.dispatcher.poke()
    return answer()
