"""What agents ask: what to launch, and which of their containers are still wanted. Ours; not part of the old wire."""

from __future__ import annotations

from fastapi import APIRouter, Request
from sqlalchemy import select, update
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.deps import AgentDep, PartsDep, json_object, parse_as
from api.launch import launch_order
from api.wire.base import answer
from database.models import Allocation
from workflows.lifecycle.allocation import AllocationState, before

router = APIRouter(tags=["agents (internal)"], include_in_schema=False)


@router.post("/api/v1/undeterred/allocations/{allocation_id}/containers/{rank}/launch")
async def launch(allocation_id: str, rank: int, parts: PartsDep, agent: AgentDep) -> Response:
    """The launch order of a container, with a fresh token."""

    def order() -> dict[str, object]:
        with parts.database.write() as session:
            return launch_order(session, allocation_id, rank, default_image=parts.settings.trial_image)

    return answer(await run_in_threadpool(order))


@router.post("/api/v1/undeterred/allocations/{allocation_id}/running")
async def running(allocation_id: str, parts: PartsDep, agent: AgentDep) -> Response:
    """The containers of an allocation run. The recorded state only moves forward."""

    def note() -> None:
        with parts.database.write() as session:
            session.execute(
                update(Allocation)
                .where(Allocation.id == allocation_id, Allocation.state.in_(before(AllocationState.RUNNING)))
                .values(state=AllocationState.RUNNING.value)
            )

    await run_in_threadpool(note)
    return answer()


@router.post("/api/v1/undeterred/agents/{agent_id}/reconcile")
async def reconcile(agent_id: str, request: Request, parts: PartsDep, agent: AgentDep) -> Response:
    """Which of these allocations are over: their containers are leftovers, or copies that were given up."""
    ids: list[str] = parse_as(list[str], (await json_object(request)).get("allocations"))

    def ended() -> list[str]:
        with parts.database.read() as session:
            live = session.scalars(select(Allocation.id).where(Allocation.id.in_(ids), Allocation.ended_at.is_(None)))
            return sorted(set(ids) - set(live))

    return answer({"ended": await run_in_threadpool(ended)})
