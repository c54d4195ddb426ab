"""Requests of agents: what to launch, and which of their containers to keep. Ours; not part of the old wire."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from sqlalchemy import select, update
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.agents import own, own_allocations
from api.auth.authentication import AgentPrincipal
from api.deps import AgentDep, PartsDep
from api.errors import NotFound
from api.routing import Route
from api.schemas import agents as wire
from api.schemas.base import Instant, answer
from api.schemas.parameters import AgentId, AllocationId
from api.services import enrollment
from api.services.checkpoint_files import removal_order
from api.services.launches import launch_order
from database.log_lines import STARTED, note_line
from database.models import Allocation, AllocationContainer, Task
from database.types import utc_now
from workflows import names
from workflows.lifecycle.allocation import AllocationState, before
from workflows.messages import AgentRun, AgentSeen

router = APIRouter(route_class=Route, tags=["agents (internal)"], include_in_schema=False)


@router.post("/api/v1/undeterred/agents/{agent_id}/hello")
async def hello(agent_id: AgentId, parts: PartsDep, agent: AgentDep, report: wire.AgentReport) -> Response:
    """An agent starts. Its workflow starts with it, if it does not run yet."""

    def note() -> AgentRun:
        with parts.database.write() as session:
            return enrollment.note_report(session, agent, agent_id, report)

    run = await run_in_threadpool(note)
    await parts.commands.start_agent(run)
    parts.dispatcher.poke()
    return answer(enrollment.welcome(agent_id, run.pool, parts.settings))


@router.post("/api/v1/undeterred/agents/{agent_id}/present")
async def present(agent_id: AgentId, parts: PartsDep, agent: AgentDep, report: wire.AgentReport) -> Response:
    """An agent has taken up the activity by which its workflow watches it."""

    def look() -> AgentSeen:
        with parts.database.read() as session:
            return enrollment.seen(session, agent, agent_id, report)

    await parts.commands.signal(names.agent_workflow(agent_id), "present", await run_in_threadpool(look))
    return answer()


@router.post("/api/v1/undeterred/allocations/{allocation_id}/containers/{rank}/launch")
async def launch(
    allocation_id: AllocationId,
    rank: int,
    parts: PartsDep,
    agent: AgentDep,
    attempted_at: Annotated[Instant | None, Query(alias="attemptedAt")] = None,
) -> Response:
    """The launch order of a container, with a fresh token; 409 for an attempt that a later one overtook."""

    def order() -> dict[str, object]:
        with parts.database.write() as session:
            _own_container(session, agent, allocation_id, rank)
            settings = parts.settings
            return launch_order(
                session,
                allocation_id,
                rank,
                default_image=settings.trial_image,
                roots=settings.roots,
                attempted_at=attempted_at,
            )

    return answer(await run_in_threadpool(order))


@router.post("/api/v1/undeterred/allocations/{allocation_id}/containers/{rank}/killed")
async def killed(allocation_id: AllocationId, rank: int, parts: PartsDep, agent: AgentDep) -> Response:
    """A cluster is about to end a container by order of its workflow: it need not save anything."""

    def note() -> None:
        with parts.database.write() as session:
            _own_container(session, agent, allocation_id, rank)
            mine = AllocationContainer.allocation_id == allocation_id, AllocationContainer.rank == rank
            session.execute(update(AllocationContainer).where(*mine).values(killed_at=utc_now()))

    await run_in_threadpool(note)
    return answer()


@router.post("/api/v1/undeterred/allocations/{allocation_id}/{progress}")
async def progressed(
    allocation_id: AllocationId,
    progress: Literal["pulling", "starting", "running"],
    parts: PartsDep,
    agent: AgentDep,
    of_container: wire.ContainerProgress | None = None,
) -> Response:
    """How far an allocation is, as one of its hosts sees it. The recorded state only moves forward."""
    state = AllocationState(progress.upper())

    def note() -> None:
        with parts.database.write() as session:
            own_allocations(session, agent, {allocation_id})
            session.execute(
                update(Allocation)
                .where(Allocation.id == allocation_id, Allocation.state.in_(before(state)))
                .values(state=state.value)
            )
            if of_container is not None:
                _note_container(session, allocation_id, of_container)
            if state is AllocationState.RUNNING:
                _note_started(session, allocation_id)

    await run_in_threadpool(note)
    return answer()


@router.post("/api/v1/undeterred/agents/{agent_id}/reconcile")
async def reconcile(agent_id: AgentId, parts: PartsDep, agent: AgentDep, wanted: wire.Allocations) -> Response:
    """Which of these allocations are over: their containers are leftovers, or orphaned copies.

    So are those of another pool: when an agent changed its pool, what it held went elsewhere.
    """
    own(agent, agent_id)
    ids, pool = wanted.allocations, agent.pool or wanted.pool

    def ended() -> list[str]:
        with parts.database.read() as session:
            live = select(Allocation.id).where(Allocation.id.in_(ids), Allocation.ended_at.is_(None))
            if pool:
                live = live.where(Allocation.pool == pool)
            return sorted(set(ids) - set(session.scalars(live)))

    return answer({"ended": await run_in_threadpool(ended)})


@router.post("/api/v1/undeterred/agents/{agent_id}/removals/{removal_id}")
async def removal(agent_id: AgentId, removal_id: str, parts: PartsDep, agent: AgentDep) -> Response:
    """What is to be removed from a checkpoint storage, with its keys: until it is done, for agents of its pool."""
    own(agent, agent_id)

    def order() -> dict[str, object]:
        with parts.database.read() as session:
            return removal_order(session, removal_id, agent, parts.settings.roots)

    return answer(await run_in_threadpool(order))


def _note_container(session: Session, allocation_id: str, said: wire.ContainerProgress) -> None:
    """Where a container is, and what it waits for: the newest report counts."""
    mine = AllocationContainer.allocation_id == allocation_id, AllocationContainer.rank == said.rank
    values = {"waits_for": said.waits_for} | ({"node": said.node, "address": said.address} if said.node else {})
    session.execute(update(AllocationContainer).where(*mine).values(**values))


def _note_started(session: Session, allocation_id: str) -> None:
    """Write into the log of a task that is no trial that its containers run; written already, it stays."""
    of_task = select(Task).join(Allocation, Allocation.task_id == Task.id)
    task = session.scalar(of_task.where(Allocation.id == allocation_id, Task.trial_id.is_(None)))
    if task is not None:
        line = f"Resources for {task.name} have started"
        note_line(session, task.id, line, allocation_id=allocation_id, place=STARTED)


def _own_container(session: Session, agent: AgentPrincipal, allocation_id: str, rank: int) -> None:
    """An agent that joined gets orders, and with them tokens, for its own containers only. Raises: NotFound."""
    if agent.agent_id is None:
        return
    places = session.scalar(select(Allocation.placements).where(Allocation.id == allocation_id)) or []
    if not any(place["agent_id"] == agent.agent_id and place["rank"] == rank for place in places):
        raise NotFound(f"allocation {allocation_id} has no container {rank} on agent {agent.agent_id!r}")
