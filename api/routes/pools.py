"""Resource pools and how full they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query
from sqlalchemy import func, select
from starlette.responses import Response

from api.deps import PartsDep, UserDep
from api.paging import WindowDep, rows_of
from api.wire.base import answer
from database.models import Agent, Allocation, Experiment, PoolBinding, ResourcePool, Trial
from workflows.scheduling.settings import Policy, PoolSettings

router = APIRouter(tags=["cluster"])

_MAX_AUX = 100


@router.get("/api/v1/resource-pools")
def pools(
    parts: PartsDep,
    user: UserDep,
    window: WindowDep,
    unbound: Annotated[bool, Query(description="only pools that are open to every workspace")] = False,
) -> Response:
    """Resource pools and how full they are."""
    statement = select(ResourcePool).order_by(ResourcePool.name)
    if unbound:
        bound = select(PoolBinding.pool).where(PoolBinding.pool == ResourcePool.name)
        statement = statement.where(~bound.exists())
    with parts.database.read() as session:
        rows, pagination = rows_of(session, statement, window)
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
    default = parts.settings.default_pool
    found = [_pool(pool, agents, live, waiting.get(pool.name, 0), is_default=pool.name == default) for (pool,) in rows]
    return answer({"resourcePools": found, "pagination": pagination})


def _is_placed() -> Any:
    return select(Allocation.id).where(Allocation.trial_id == Trial.id, Allocation.ended_at.is_(None)).exists()


def _pool(
    pool: ResourcePool, agents: Sequence[Agent], live: Sequence[Allocation], waiting: int, *, is_default: bool
) -> dict[str, Any]:
    mine = [agent for agent in agents if agent.pool == pool.name]
    running = [allocation for allocation in live if allocation.pool == pool.name]
    serving = [
        slot for agent in mine if agent.is_enabled for slot in agent.slot_ids if slot not in agent.disabled_slots
    ]
    settings = PoolSettings.model_validate(pool.settings)
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
        "auxContainerCapacity": _MAX_AUX * len(mine),
        "auxContainersRunning": sum(1 for allocation in running if allocation.slots == 0),
        "defaultComputePool": is_default,
        "defaultAuxPool": is_default,
        "preemptible": False,
        "minAgents": 0,
        "maxAgents": 0,
        "slotsPerAgent": max((len(agent.slot_ids) for agent in mine), default=0),
        "auxContainerCapacityPerAgent": _MAX_AUX,
        "schedulerType": f"SCHEDULER_TYPE_{settings.scheduler.upper()}",
        "schedulerFittingPolicy": f"FITTING_POLICY_{settings.fitting_policy.upper()}",
        "maxIdleAgentPeriod": 0.0,
        "maxAgentStartingPeriod": 0.0,
        "details": {"aws": None, "gcp": None, "priorityScheduler": priority},
        "stats": {"queuedCount": waiting, "scheduledCount": len(running)},
        "resourceManagerMetadata": {},
        "accelerator": "",
    }
