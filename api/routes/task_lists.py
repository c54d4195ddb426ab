"""Running tasks, by allocation, and the details of one allocation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.auth.authentication import UserPrincipal
from api.auth.authorization import readable_task, readable_tasks, with_trials
from api.auth.containers import own_allocation
from api.deps import PartsDep, PrincipalDep, ReaderDep, UserDep
from api.errors import NotFound
from api.queries import agents
from api.routing import Route
from api.schemas.allocations import Accelerators
from api.schemas.base import answer, plain, rfc3339
from api.schemas.parameters import AllocationId, TaskId
from database.models import Agent, Allocation, Experiment, Task
from workflows.lifecycle.services import Protocol, Service, services_of
from workflows.lifecycle.task import TaskKind
from workflows.scheduling.settings import DEFAULT_PRIORITY

router = APIRouter(route_class=Route, tags=["tasks"])


@dataclass(frozen=True)
class _Running:
    """An allocation that has not ended, of a task; `experiment` if that is a trial."""

    allocation: Allocation
    task: Task
    experiment: Experiment | None

    @property
    def name(self) -> str:
        """What people read."""
        if self.experiment is None:
            return self.task.name or f"{self.task.kind.capitalize()} {self.task.id}"
        return f"Trial {self.task.trial_id} (Experiment {self.experiment.id})"

    @property
    def config(self) -> dict[str, Any]:
        """Its own, or its experiment's."""
        return (self.task.config if self.experiment is None else self.experiment.config) or {}

    @property
    def services(self) -> list[Service]:
        """What of it is reached through the server; port 0: a free one, which its container chooses."""
        return services_of(TaskKind(self.task.kind), self.task.id, self.config)

    @property
    def priority(self) -> int:
        """In its pool's queue."""
        resources: dict[str, Any] = self.config.get("resources") or {}
        return resources.get("priority") or DEFAULT_PRIORITY


def _running(session: Session, user: UserPrincipal) -> list[_Running]:
    """The allocations of tasks that the user may see and that have not ended, by id."""
    statement = (
        with_trials(select(Allocation, Task, Experiment).join(Task, Task.id == Allocation.task_id))
        .where(Allocation.ended_at.is_(None), readable_tasks(user))
        .order_by(Allocation.id)
    )
    return [_Running(*row) for row in session.execute(statement).tuples()]


@router.get("/api/v1/tasks")
def list_tasks(parts: PartsDep, user: UserDep) -> Response:
    """What runs, by allocation; v1GetTasksResponse."""
    with parts.database.read_list() as session:
        hosts = {row.id: row for row in session.scalars(select(Agent))}
        found = {each.allocation.id: _listed(each, hosts) for each in _running(session, user)}
    return answer({"allocationIdToSummary": found})


@router.get("/tasks")
def list_tasks_of_old(parts: PartsDep, user: UserDep) -> Response:
    """What runs, by allocation, as clients up to 0.21 read it."""
    with parts.database.read_list() as session:
        hosts = {row.id: row for row in session.scalars(select(Agent))}
        found = {each.allocation.id: _listed_of_old(each, hosts) for each in _running(session, user)}
    return answer(found)


def _listed(each: _Running, hosts: dict[str, Agent]) -> dict[str, Any]:
    """v1AllocationSummary."""
    allocation = each.allocation
    return {
        "taskId": allocation.task_id,
        "allocationId": allocation.id,
        "name": each.name,
        "slotsNeeded": allocation.slots,
        "registeredTime": allocation.started_at,
        "priority": each.priority,
        "schedulerType": "priority",
        "resourcePool": allocation.pool,
        "proxyPorts": [
            {
                "serviceId": service.name,
                "port": service.port,
                "proxyTcp": service.protocol is Protocol.TCP,
                "unauthenticated": service.is_open,
            }
            for service in each.services
        ],
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


def _listed_of_old(each: _Running, hosts: dict[str, Agent]) -> dict[str, Any]:
    """The same as clients up to 0.21 read it."""
    allocation = each.allocation
    return {
        "task_id": allocation.task_id,
        "allocation_id": allocation.id,
        "name": each.name,
        "slots_needed": allocation.slots,
        "registered_time": rfc3339(allocation.started_at),
        "priority": each.priority,
        "scheduler_type": "priority",
        "resource_pool": allocation.pool,
        "proxy_ports": [
            {
                "service_id": service.name,
                "port": service.port,
                "proxy_tcp": service.protocol is Protocol.TCP,
                "unauthenticated": service.is_open,
            }
            for service in each.services
        ],
        "resources": [
            {
                "container_id": f"{allocation.id}-{place['rank']}",
                "agent_devices": {place["agent_id"]: _devices(hosts, place)},
            }
            for place in allocation.placements
        ],
    }


def _devices(hosts: dict[str, Agent], place: dict[str, Any]) -> list[dict[str, Any]]:
    host = hosts.get(place["agent_id"])
    return [] if host is None else [agents.device(host, slot_id) for slot_id in place["slot_ids"]]


@router.get("/api/v1/tasks/count")
def count_tasks(parts: PartsDep, user: UserDep) -> Response:
    """How many tasks of each kind run that the caller may see."""
    with parts.database.read_list() as session:
        kinds = [each.task.kind for each in _running(session, user)]
    return answer({f"{kind.lower()}s": kinds.count(kind) for kind in ("COMMAND", "NOTEBOOK", "SHELL", "TENSORBOARD")})


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
