"""Resource pools: list, create, change and remove them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from sqlalchemy import func, select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authorization import visible_pools
from api.deps import AdminDep, PartsDep, UserDep
from api.errors import Unavailable
from api.parts import Parts
from api.queries.paging import WindowDep, rows_of
from api.routing import Route
from api.schemas import jobs as wire
from api.schemas.base import answer
from api.schemas.body import parse_as
from api.schemas.parameters import PoolName
from api.services import pools as service
from api.services.idempotency import Once
from api.services.pools import Defaults
from database.models import Agent, Allocation, Experiment, PoolBinding, ResourcePool, Trial
from workflows.scheduling.autoscaler import Node
from workflows.scheduling.settings import Policy, PoolSettings

router = APIRouter(route_class=Route, tags=["cluster"])

_MAX_AUX = 100


@router.get("/api/v1/resource-pools")
def pools(
    parts: PartsDep,
    user: UserDep,
    window: WindowDep,
    unbound: Annotated[bool, Query(description="only pools that are open to every workspace")] = False,
) -> Response:
    """Resource pools that the caller may see, and how full they are."""
    statement = select(ResourcePool).where(visible_pools(user)).order_by(ResourcePool.name)
    if unbound:
        bound = select(PoolBinding.pool).where(PoolBinding.pool == ResourcePool.name)
        statement = statement.where(~bound.exists())
    with parts.database.read() as session:
        rows, pagination = rows_of(session, statement, window)
        found = _shown(session, [row[0] for row in rows])
    return answer({"resourcePools": found, "pagination": pagination})


_OURS = "/api/v1/undeterred/resource-pools"


@router.post(_OURS)
async def create(request: Request, parts: PartsDep, admin: AdminDep, wanted: wire.PostPool) -> Response:
    """Make a resource pool; it schedules from the moment on."""
    settings = parse_as(PoolSettings, wanted.settings or {})
    once = Once(request, admin)

    def make() -> dict[str, Any]:
        with parts.database.write() as session:
            return once(session, lambda: _one(session, service.create(session, wanted, settings, admin)))

    return await _changed(parts, make)


@router.get(_OURS + "/{pool}")
async def describe(pool: PoolName, parts: PartsDep, user: UserDep) -> Response:
    """One resource pool, how full it is, and the nodes that its provider was asked for, with what went wrong."""

    def read() -> dict[str, Any]:
        with parts.database.read() as session:
            row = service.find(session, pool, user)
            return _one(session, row) | {"access": "public" if row.restricted_at is None else "restricted"}

    shown = await run_in_threadpool(read)
    try:
        known = await parts.commands.nodes(pool)
    except Unavailable as error:
        return answer(shown | {"nodes": [], "nodesError": error.message})
    found: list[Node] = [] if known is None else list(known.nodes.values())
    return answer(shown | {"nodes": [_node(node) for node in found], "nodesError": ""})


@router.patch(_OURS + "/{pool}")
async def change(pool: PoolName, parts: PartsDep, admin: AdminDep, wanted: wire.PatchPool) -> Response:
    """Change the description of a resource pool, or make it a default of the cluster."""

    def note() -> dict[str, Any]:
        with parts.database.write() as session:
            return _one(session, service.change(session, pool, wanted))

    return await _changed(parts, note)


@router.delete(_OURS + "/{pool}")
async def remove(pool: PoolName, parts: PartsDep, admin: AdminDep) -> Response:
    """Remove a resource pool that no agent is in and no experiment needs."""

    def forget() -> dict[str, Any]:
        with parts.database.write() as session:
            service.remove(session, pool, permanent=parts.settings.default_pool)
            return {}

    return await _changed(parts, forget)


async def _changed(parts: Parts, change: Callable[[], dict[str, Any]]) -> Response:
    shown = await run_in_threadpool(change)
    parts.dispatcher.poke()
    return answer(shown)


def _one(session: Session, row: ResourcePool) -> dict[str, Any]:
    session.flush()
    return {"resourcePool": _shown(session, [row])[0]}


def _shown(session: Session, rows: Sequence[ResourcePool]) -> list[dict[str, Any]]:
    agents = session.scalars(select(Agent).where(Agent.is_connected)).all()
    live = session.scalars(select(Allocation).where(Allocation.ended_at.is_(None))).all()
    waiting: dict[str, int] = dict(
        session.execute(
            select(Experiment.resource_pool, func.count())
            .join(Trial, Trial.experiment_id == Experiment.id)
            .where(Trial.state == "ACTIVE", Experiment.state == "ACTIVE", ~_is_placed())
            .group_by(Experiment.resource_pool)
        )
        .tuples()
        .all()
    )
    defaults = service.defaults_of(session)
    return [_pool(row, agents, live, waiting.get(row.name, 0), defaults) for row in rows]


def _node(node: Node) -> dict[str, Any]:
    return {
        "id": node.node_id,
        "state": node.state.value,
        "since": datetime.fromtimestamp(node.since, UTC),
        "failures": node.tries,
        "problem": node.problem,
    }


def _is_placed() -> Any:
    return select(Allocation.id).where(Allocation.trial_id == Trial.id, Allocation.ended_at.is_(None)).exists()


def _pool(
    pool: ResourcePool, agents: Sequence[Agent], live: Sequence[Allocation], waiting: int, defaults: Defaults
) -> dict[str, Any]:
    mine = [agent for agent in agents if agent.pool == pool.name]
    running = [allocation for allocation in live if allocation.pool == pool.name]
    serving = [
        slot
        for agent in mine
        if agent.is_enabled
        for slot in agent.slot_ids
        if slot not in agent.disabled_slots and str(slot) not in agent.broken_slots
    ]
    settings = PoolSettings.model_validate(pool.settings)
    provider = settings.provider
    priority = None
    if settings.scheduler is Policy.PRIORITY:
        priority = {"preemption": settings.preemption, "defaultPriority": settings.default_priority}
    empty = dict.fromkeys(
        ("location", "imageId", "instanceType", "containerStartupScript", "agentDockerNetwork", "agentDockerRuntime",
         "agentDockerImage", "agentFluentImage", "startupScript", "masterUrl", "masterCertName", "clusterName"),
        "",
    )  # fmt: skip
    return empty | {
        "name": pool.name,
        "description": pool.description,
        "type": "RESOURCE_POOL_TYPE_STATIC",
        "numAgents": len(mine),
        "slotsAvailable": len(serving),
        "slotsUsed": sum(allocation.slots for allocation in running),
        "slotType": "TYPE_CPU",
        "auxContainerCapacity": settings.max_aux_containers_per_agent * len(mine),
        "auxContainersRunning": sum(1 for allocation in running if allocation.slots == 0),
        "defaultComputePool": pool.name == defaults.compute,
        "defaultAuxPool": pool.name == defaults.aux,
        "preemptible": False,
        "minAgents": provider.min_nodes if provider else 0,
        "maxAgents": provider.max_nodes if provider else 0,
        "slotsPerAgent": provider.slots_per_node if provider else max((len(each.slot_ids) for each in mine), default=0),
        "auxContainerCapacityPerAgent": settings.max_aux_containers_per_agent,
        "schedulerType": f"SCHEDULER_TYPE_{settings.scheduler.upper()}",
        "schedulerFittingPolicy": f"FITTING_POLICY_{settings.fitting_policy.upper()}",
        "maxIdleAgentPeriod": provider.idle_timeout if provider else 0.0,
        "maxAgentStartingPeriod": provider.starting_timeout if provider else 0.0,
        "details": {"aws": None, "gcp": None, "priorityScheduler": priority},
        "stats": {"queuedCount": waiting, "scheduledCount": len(running)},
        "resourceManagerMetadata": {},
        "accelerator": "",
    }
