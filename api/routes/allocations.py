"""Allocations: what a container reports and requests about its own."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from sqlalchemy import update
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.containers import own_allocation
from api.auth.reporters import reporter_for
from api.deps import PartsDep, PrincipalDep
from api.errors import BadRequest
from api.parts import Parts
from api.routing import Route, hot
from api.schemas.allocations import Gather, PreemptionResponse, Ready, RunId, StartRunResponse
from api.schemas.base import answer
from api.schemas.checkpoints import STORAGE_ID
from api.schemas.parameters import AllocationId
from api.schemas.streaming import while_there
from api.services import rendezvous as meeting
from database.log_lines import HANGS, READY, is_noted, note_line
from database.models import Allocation, AllocationContainer, Task
from database.types import utc_now
from workflows.lifecycle.task import INTERACTIVE
from workflows.messages import AllocationNotice

router = APIRouter(route_class=Route, tags=["allocations"])


@router.get("/api/v1/allocations/{allocation_id}/signals/preemption", response_model=PreemptionResponse)
async def preemption(
    allocation_id: AllocationId,
    request: Request,
    parts: PartsDep,
    caller: PrincipalDep,
    timeout_seconds: Annotated[int | None, Query()] = None,
    timeout: Annotated[int | None, Query(alias="timeoutSeconds")] = None,
) -> Response:
    """Whether to leave: a long poll that answers at once when asked to. The first tells that the harness is there."""
    caller = own_allocation(caller, allocation_id)
    wait = next((value for value in (timeout_seconds, timeout) if value is not None), 60)
    if wait <= 0 and caller.kind not in INTERACTIVE:  # these tell by themselves when they are ready
        await run_in_threadpool(_note, parts, allocation_id, "ready_at")
    poll = parts.preemption.wait(allocation_id, min(wait, 300))
    return answer({"preempt": await while_there(request, poll)})


@router.post("/api/v1/allocations/{allocation_id}/signals/ack_preemption")
@hot
async def ack_preemption(allocation_id: AllocationId, parts: PartsDep, caller: PrincipalDep) -> Response:
    """The harness leaves on our wish, or because it is out of operations: its exit is not the end of the trial."""
    own_allocation(caller, allocation_id)
    await run_in_threadpool(_note, parts, allocation_id, "preempt_acked_at")
    return answer()


@router.post("/api/v1/allocations/{allocation_id}/signals/pending_preemption")
async def pending_preemption(allocation_id: AllocationId, parts: PartsDep, caller: PrincipalDep) -> Response:
    """The container's host notified it that it has to stop soon; it requests to be preempted.

    Answers with `isKilled` if it is its own workflow that ends it: then there is nothing to save, and it is not asked.
    `hangs`: it is killed for that, and is to show before what its threads are doing.
    """
    allocation = own_allocation(caller, allocation_id)

    def killed() -> dict[str, bool] | None:
        with parts.database.read() as session:
            row = session.get(AllocationContainer, (allocation_id, allocation.rank))
            if row is None or row.killed_at is None:
                return None
            return {"isKilled": True, "hangs": is_noted(session, allocation_id, HANGS)}

    if (found := await run_in_threadpool(killed)) is not None:
        return answer(found)
    notice = AllocationNotice(allocation_id=allocation_id, reason="the cluster ends its pod")
    await parts.commands.signal(allocation.workflow_id, "preempted", notice)
    return answer({"isKilled": False})


@router.post("/api/v1/allocations/{allocation_id}/ready")
async def ready(allocation_id: AllocationId, parts: PartsDep, caller: PrincipalDep, told: Ready) -> Response:
    """The task does its work now."""
    caller = own_allocation(caller, allocation_id)

    def note() -> None:
        with parts.database.write() as session:
            _note_in(session, allocation_id, "ready_at")
            if caller.kind in INTERACTIVE:
                task = session.get_one(Task, caller.task_id)
                task.login_user = told.login_user or None
                line = f"Service of {task.name} is available"
                note_line(session, caller.task_id, line, allocation_id=allocation_id, place=READY)

    await run_in_threadpool(note)
    return answer()


def _note(parts: Parts, allocation_id: str, field: str) -> None:
    with parts.database.write() as session:
        _note_in(session, allocation_id, field)


def _note_in(session: Session, allocation_id: str, field: str) -> None:
    column = getattr(Allocation, field)
    session.execute(
        update(Allocation).where(Allocation.id == allocation_id, column.is_(None)).values({field: utc_now()})
    )


@router.get("/api/v1/allocations/{allocation_id}/resources/{resources_id}/rendezvous")
async def rendezvous(
    allocation_id: AllocationId,
    resources_id: str,
    request: Request,
    parts: PartsDep,
    caller: PrincipalDep,
    timeout_s: Annotated[float | None, Query(alias="timeoutSeconds", ge=0, le=300)] = None,
) -> Response:
    """Where the containers of this allocation are: answered when all of them have asked."""
    container = own_allocation(caller, allocation_id)
    found = meeting.rendezvous(parts.database, container, resources_id, timeout_s)
    return answer({"rendezvousInfo": await while_there(request, found)})


@router.post("/api/v1/allocations/{allocation_id}/all_gather")
@router.post("/api/v1/allocations/{allocation_id}/notify_container_running")
async def gather(allocation_id: AllocationId, caller: PrincipalDep, told: Gather) -> Response:
    """What every container of this allocation says, told to each. Where the runtime knows no addresses; ours does."""
    own_allocation(caller, allocation_id)
    if told.num_peers > 1:
        raise BadRequest(
            f"numPeers: {told.num_peers}: expected 1; containers find each other by rendezvous here, not as on"
            " Kubernetes"
        )
    return answer({"data": [told.data]})


@router.post("/api/v1/allocations/{allocation_id}/resources/{resources_id}/daemon")
async def daemon(allocation_id: AllocationId, resources_id: str, caller: PrincipalDep) -> Response:
    """A worker of a distributed trial, which ends with its chief. Accepted: there are none in this release."""
    own_allocation(caller, allocation_id)
    return answer()


@router.post("/api/v1/allocations/{allocation_id}/waiting")
@router.post("/api/v1/allocations/{allocation_id}/proxy_address")
async def noted(allocation_id: AllocationId, caller: PrincipalDep) -> Response:
    """Accepted: newer containers end if this is refused. Nothing depends on it in this release."""
    own_allocation(caller, allocation_id)
    return answer()


@router.post("/api/v1/runs/start", response_model=StartRunResponse)
async def start_run(parts: PartsDep, caller: PrincipalDep, told: RunId) -> Response:
    """A newer harness prepares to report. All its checkpoints go to the experiment's own storage, number 1."""
    await reporter_for(parts.database, parts.auth, caller, told.run_id)
    return answer({"storageId": STORAGE_ID})
