"""Agents and slots: list, enable and disable them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authentication import UserPrincipal
from api.deps import AdminDep, PartsDep, UserDep
from api.errors import BadRequest, FailedPrecondition, NotFound
from api.parts import Parts
from api.queries import agents
from api.queries.paging import WindowDep, chosen
from api.routing import Route
from api.schemas import agents as wire
from api.schemas.base import answer
from api.schemas.parameters import SORT_BY, AgentId, SlotId
from api.services.pools import post_service
from database.models import Agent
from database.types import utc_now
from workflows.messages import NodeService, NodeState

router = APIRouter(route_class=Route, tags=["cluster"])


_SORT: dict[str, Any] = {
    "": Agent.id,
    "SORT_BY_UNSPECIFIED": Agent.id,
    "SORT_BY_ID": Agent.id,
    "SORT_BY_TIME": Agent.registered_at,
}


@router.get("/api/v1/agents")
def list_agents(
    parts: PartsDep,
    user: UserDep,
    window: WindowDep,
    sort_by: Annotated[str, Query(alias="sortBy", description=SORT_BY)] = "",
    exclude_slots: Annotated[bool, Query(alias="excludeSlots")] = False,
    exclude_containers: Annotated[bool, Query(alias="excludeContainers")] = False,
) -> Response:
    """Agents with their slots, and which allocation holds each."""
    column = chosen("sortBy", sort_by, _SORT)
    order = column.desc() if window.is_descending else column.asc()
    with parts.database.read() as session:
        rows = agents.listed(session.scalars(select(Agent).where(agents.visible(user)).order_by(order, Agent.id)))
        start, end = window.bounds(len(rows))
        held = agents.holders(session, user)
        shown = [
            agents.agent(row, held, parts.version, with_slots=not exclude_slots, with_containers=not exclude_containers)
            for row in rows[start:end]
        ]
    return answer({"agents": shown, "pagination": window.pagination(len(rows))})


@router.get("/agents")
def list_agents_of_old(parts: PartsDep, user: UserDep) -> Response:
    """Agents by id, as older clients read them."""
    with parts.database.read() as session:
        held = agents.holders(session, user)
        rows = agents.listed(session.scalars(select(Agent).where(agents.visible(user)).order_by(Agent.id)))
        return answer({row.id: agents.agent_of_old(row, held, parts.version) for row in rows})


@router.get("/api/v1/agents/{agent_id}")
def get_agent(agent_id: AgentId, parts: PartsDep, user: UserDep) -> Response:
    """One agent."""
    with parts.database.read() as session:
        row = agents.shown(session, agent_id, user)
        return answer({"agent": agents.agent(row, agents.holders(session, user), parts.version)})


@router.get("/api/v1/agents/{agent_id}/slots")
def list_slots(agent_id: AgentId, parts: PartsDep, user: UserDep) -> Response:
    """The slots of an agent."""
    with parts.database.read() as session:
        row, held = agents.shown(session, agent_id, user), agents.holders(session, user)
        return answer({"slots": [agents.slot(row, slot_id, held) for slot_id in row.slot_ids]})


@router.get("/api/v1/agents/{agent_id}/slots/{slot_id}")
def get_slot(agent_id: AgentId, slot_id: SlotId, parts: PartsDep, user: UserDep) -> Response:
    """One slot of an agent."""
    with parts.database.read() as session:
        row = agents.shown(session, agent_id, user)
        return answer({"slot": agents.slot(row, agents.slot_of(row, slot_id), agents.holders(session, user))})


@router.post("/api/v1/agents/{agent_id}/disable")
async def disable_agent(agent_id: AgentId, parts: PartsDep, admin: AdminDep, wanted: wire.Drain) -> Response:
    """Take an agent out of service. What runs there is asked to leave; with `drain` it may stay until it ends.

    With `graceSeconds` as well it may stay that long, and is asked to leave then.
    """
    grace = _grace(wanted)
    if await _is_node(parts, agent_id):
        if grace is not None:
            raise BadRequest(f"graceSeconds: {grace.total_seconds():g}: expected none, as {agent_id!r} is a node")
        return await _node_changed(parts, admin, agent_id, "drain" if wanted.drain else "out")

    def change(row: Agent) -> None:
        row.is_enabled, row.is_draining = False, wanted.drain
        row.leave_at = None if grace is None else utc_now() + grace

    return await _changed(parts, admin, agent_id, change)


@router.post("/api/v1/agents/{agent_id}/enable")
async def enable_agent(agent_id: AgentId, parts: PartsDep, admin: AdminDep) -> Response:
    """Put an agent back into service, with all of its slots."""
    if await _is_node(parts, agent_id):
        return await _node_changed(parts, admin, agent_id, "in")

    def change(row: Agent) -> None:
        row.is_enabled, row.is_draining, row.leave_at, row.disabled_slots = True, False, None, []

    return await _changed(parts, admin, agent_id, change)


@router.post("/api/v1/agents/{agent_id}/slots/{slot_id}/disable")
async def disable_slot(
    agent_id: AgentId, slot_id: SlotId, parts: PartsDep, admin: AdminDep, wanted: wire.Drain
) -> Response:
    """Take a slot out of service. What runs there is asked to leave; with `drain` it may stay until it ends."""
    return await _slot_changed(parts, admin, agent_id, slot_id, enabled=False, is_draining=wanted.drain)


@router.post("/api/v1/agents/{agent_id}/slots/{slot_id}/enable")
async def enable_slot(agent_id: AgentId, slot_id: SlotId, parts: PartsDep, admin: AdminDep) -> Response:
    """Put a slot back into service."""
    return await _slot_changed(parts, admin, agent_id, slot_id, enabled=True, is_draining=False)


@router.patch("/agents/{agent_id}/slots/{slot_id}")
async def patch_slot_of_old(
    agent_id: AgentId, slot_id: SlotId, parts: PartsDep, admin: AdminDep, wanted: wire.Enabled
) -> Response:
    """Take a slot out of service or put it back, as the oldest clients say it."""
    return await _slot_changed(parts, admin, agent_id, slot_id, enabled=wanted.enabled, is_draining=False)


def _grace(wanted: wire.Drain) -> timedelta | None:
    if wanted.grace_seconds is None:
        return None
    if not wanted.drain:
        raise BadRequest("graceSeconds: expected only with drain: what is not drained is asked to leave at once")
    return timedelta(seconds=wanted.grace_seconds)


async def _slot_changed(
    parts: Parts, user: UserPrincipal, agent_id: str, slot_id: str, *, enabled: bool, is_draining: bool
) -> Response:
    def change(row: Agent) -> None:
        slot = agents.slot_of(row, slot_id)
        others = [each for each in row.disabled_slots if each != slot]
        row.disabled_slots = others if enabled else sorted([*others, slot])
        row.is_draining = is_draining or (row.is_draining and bool(row.disabled_slots or not row.is_enabled))

    return await _changed(parts, user, agent_id, change, slot_id)


async def _changed(
    parts: Parts, user: UserPrincipal, agent_id: str, change: Callable[[Agent], None], slot_id: str = ""
) -> Response:
    """Record what operators want of an agent, and tell its pool; answers with the agent, or with its slot."""

    def record() -> dict[str, Any]:
        with parts.database.write() as session:
            row = agents.find(session, agent_id)
            session.refresh(row, with_for_update=True)
            change(row)
            post_service(session, row)
            session.flush()
            held = agents.holders(session, user)
            if slot_id:
                return {"slot": agents.slot(row, agents.slot_of(row, slot_id), held)}
            return {"agent": agents.agent(row, held, parts.version)}

    shown = await run_in_threadpool(record)
    parts.dispatcher.poke()
    return answer(shown)


async def _is_node(parts: Parts, agent_id: str) -> bool:
    def look() -> bool:
        with parts.database.read() as session:
            return agents.node_of(session, agent_id) is not None

    return await run_in_threadpool(look)


async def _node_changed(parts: Parts, user: UserPrincipal, name: str, state: NodeState) -> Response:
    """Have the agent of its cluster put a node in or out of service; answers with the node, as it is from then on."""

    def cluster() -> str:
        with parts.database.read() as session:
            row, node = _node(session, name)
            if state == "in" and node["is_cordoned"]:
                raise FailedPrecondition(
                    f"node {name!r} is out of service for all pods of its cluster: `kubectl uncordon {name}` ends that"
                )
            return row.id

    def record() -> dict[str, Any]:
        with parts.database.write() as session:
            row, _ = _node(session, name)
            session.refresh(row, with_for_update=True)
            # the agent reports the same within seconds
            row.nodes = [
                each | {"service": state, "is_open": state == "in"} if each["name"] == name else each
                for each in row.nodes
            ]
            session.flush()
            return agents.agent(agents.shown(session, name, user), agents.holders(session, user), parts.version)

    await parts.commands.serve_node(await run_in_threadpool(cluster), NodeService(node=name, state=state))
    return answer({"agent": await run_in_threadpool(record)})


def _node(session: Session, name: str) -> tuple[Agent, dict[str, Any]]:
    found = agents.node_of(session, name)
    if found is None:
        raise NotFound(f"agent {name!r} not found")
    return found
