"""Running tasks, by allocation, and the details of one allocation."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authentication import UserPrincipal
from api.auth.authorization import readable_experiments, readable_task
from api.auth.containers import own_allocation
from api.deps import PartsDep, PrincipalDep, ReaderDep, UserDep
from api.errors import NotFound
from api.queries import agents
from api.routing import Route
from api.schemas.allocations import Accelerators
from api.schemas.base import answer, plain, rfc3339
from api.schemas.parameters import AllocationId, TaskId
from database.models import Agent, Allocation, Experiment, Project, Trial
from workflows.scheduling.settings import DEFAULT_PRIORITY

router = APIRouter(route_class=Route, tags=["tasks"])


def _running(session: Session, user: UserPrincipal) -> list[tuple[Allocation, Experiment]]:
    """The allocations of trials that the user may see and that have not ended, by id."""
    statement = (
        select(Allocation, Experiment)
        .join(Trial, Trial.id == Allocation.trial_id)
        .join(Experiment, Experiment.id == Trial.experiment_id)
        .join(Project, Project.id == Experiment.project_id)
        .where(Allocation.ended_at.is_(None), readable_experiments(user))
        .order_by(Allocation.id)
    )
    return [(allocation, experiment) for allocation, experiment in session.execute(statement).tuples()]


@router.get("/api/v1/tasks")
def list_tasks(parts: PartsDep, user: UserDep) -> Response:
    """What runs, by allocation; v1GetTasksResponse."""
    with parts.database.read() as session:
        hosts = {row.id: row for row in session.scalars(select(Agent))}
        found = {
            allocation.id: {
                "taskId": allocation.task_id,
                "allocationId": allocation.id,
                "name": _name(experiment, allocation),
                "slotsNeeded": allocation.slots,
                "registeredTime": allocation.started_at,
                "priority": _priority(experiment),
                "schedulerType": "priority",
                "resourcePool": allocation.pool,
                "proxyPorts": [],
                "resources": [
                    {
                        "resourcesId": f"{allocation.id}-{place['rank']}",
                        "resourcesType": "docker-container",
                        "allocationId": allocation.id,
                        "containerId": f"{allocation.id}-{place['rank']}",
                        "agentDevices": {place["agent_id"]: {"devices": _devices(hosts, place)}},
                        "started": None,
                        "exited": None,
                    }
                    for place in allocation.placements
                ],
            }
            for allocation, experiment in _running(session, user)
        }
    return answer({"allocationIdToSummary": found})


@router.get("/tasks")
def list_tasks_of_old(parts: PartsDep, user: UserDep) -> Response:
    """What runs, by allocation, as clients up to 0.21 read it."""
    with parts.database.read() as session:
        hosts = {row.id: row for row in session.scalars(select(Agent))}
        found = {
            allocation.id: {
                "task_id": allocation.task_id,
                "allocation_id": allocation.id,
                "name": _name(experiment, allocation),
                "slots_needed": allocation.slots,
                "registered_time": rfc3339(allocation.started_at),
                "priority": _priority(experiment),
                "scheduler_type": "priority",
                "resource_pool": allocation.pool,
                "proxy_ports": [],
                "resources": [
                    {
                        "container_id": f"{allocation.id}-{place['rank']}",
                        "agent_devices": {place["agent_id"]: _devices(hosts, place)},
                    }
                    for place in allocation.placements
                ],
            }
            for allocation, experiment in _running(session, user)
        }
    return answer(found)


def _name(experiment: Experiment, allocation: Allocation) -> str:
    return f"Trial {allocation.trial_id} (Experiment {experiment.id})"


def _priority(experiment: Experiment) -> int:
    resources: dict[str, Any] = experiment.config.get("resources") or {}
    return resources.get("priority") or DEFAULT_PRIORITY


def _devices(hosts: dict[str, Agent], place: dict[str, Any]) -> list[dict[str, Any]]:
    host = hosts.get(place["agent_id"])
    return [] if host is None else [agents.device(host, slot_id) for slot_id in place["slot_ids"]]


@router.get("/api/v1/tasks/count")
def count_tasks(user: UserDep) -> Response:
    """How many interactive tasks run: none, this release has no such tasks."""
    return answer({"commands": 0, "notebooks": 0, "shells": 0, "tensorboards": 0})


@router.get("/api/v1/allocations/{allocation_id}")
def get_allocation(allocation_id: AllocationId, parts: PartsDep, caller: ReaderDep) -> Response:
    """One allocation."""
    with parts.database.read() as session:
        row = session.get(Allocation, allocation_id)
        if row is None:
            raise NotFound(f"allocation {allocation_id} not found")
        readable_task(session, row.task_id, caller)
    return answer({"allocation": allocation(row)})


def allocation(row: Allocation) -> dict[str, Any]:
    """v1Allocation."""
    return {
        "taskId": row.task_id,
        "allocationId": row.id,
        "state": f"STATE_{'STARTING' if row.state == 'ASSIGNED' else row.state}",
        "isReady": row.ready_at is not None,
        "startTime": rfc3339(row.started_at),
        "endTime": rfc3339(row.ended_at) if row.ended_at else None,
        "slots": row.slots,
        "exitReason": row.end_message or None,
        "statusCode": row.exit_code,
    }


@router.post("/api/v1/allocations/{allocation_id}/acceleratorData")
async def post_accelerators(
    allocation_id: AllocationId, parts: PartsDep, caller: PrincipalDep, told: Accelerators
) -> Response:
    """Which accelerators a container found. Newer containers end if this is refused."""
    own_allocation(caller, allocation_id)

    def note() -> None:
        with parts.database.write() as session:
            session.get_one(Allocation, allocation_id).accelerators = plain(told.accelerator_data)

    await run_in_threadpool(note)
    return answer()


@router.get("/api/v1/tasks/{task_id}/acceleratorData")
def get_accelerators(task_id: TaskId, parts: PartsDep, user: UserDep) -> Response:
    """Which accelerators the containers of a task found."""
    with parts.database.read() as session:
        readable_task(session, task_id, user)
        rows = session.scalars(
            select(Allocation).where(Allocation.task_id == task_id).order_by(Allocation.run_id)
        ).all()
    found: list[dict[str, Any]] = [
        {
            "containerId": "",
            "nodeName": "",
            "acceleratorType": "",
            "acceleratorUuids": [],
            "resourcePool": row.pool,
            **row.accelerators,
            "allocationId": row.id,
            "taskId": task_id,
        }
        for row in rows
        if row.accelerators
    ]
    return answer({"acceleratorData": found})
