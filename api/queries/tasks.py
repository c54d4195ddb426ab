"""Tasks that are no trials, as clients receive them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Query
from sqlalchemy import ColumnElement, Select, and_, func, or_, select
from sqlalchemy.orm import Session, aliased

from api.auth.authentication import UserPrincipal
from api.auth.authorization import readable_tasks, with_trials
from api.queries.paging import Window, chosen, few, in_loop, rows_of
from api.schemas import tasks as wire
from api.schemas.base import Pagination
from api.schemas.parameters import SORT_BY, USER_IDS, USERS
from database.models import Allocation, Task, User
from database.types import utc_now
from workflows.lifecycle.services import TERMINAL
from workflows.lifecycle.task import TaskKind, TaskState

_SORT: dict[str, Any] = {
    "": Task.started_at,
    "SORT_BY_UNSPECIFIED": Task.started_at,
    "SORT_BY_ID": Task.id,
    "SORT_BY_DESCRIPTION": func.lower(Task.name),
    "SORT_BY_START_TIME": Task.started_at,
    "SORT_BY_WORKSPACE_ID": Task.workspace_id,
}
#: What an open allocation says of its task. ASSIGNED is shown as the step that follows.
_RUNNING = {"PULLING": "STATE_PULLING", "RUNNING": "STATE_RUNNING", "TERMINATED": "STATE_TERMINATING"}


@dataclass
class TaskFilter:
    """Which tasks are wanted, of those that the caller may see."""

    users: Annotated[list[str] | None, Query(description=USERS)] = None
    user_ids: Annotated[list[int] | None, Query(alias="userIds", description=USER_IDS)] = None
    workspace_id: Annotated[int, Query(alias="workspaceId", description="Only those in this workspace; 0: all.")] = 0

    def __post_init__(self) -> None:
        self.ids: list[str] | None = None  # only these

    def conditions(self) -> list[ColumnElement[bool]]:
        """On a statement that joins `User`."""
        found: list[ColumnElement[bool]] = []
        if self.users or self.user_ids:
            found.append(or_(User.username.in_(self.users or []), User.id.in_(self.user_ids or [])))
        if self.workspace_id:
            found.append(Task.workspace_id == self.workspace_id)
        if self.ids:
            found.append(Task.id.in_(few("taskIds", self.ids)))
        return found


FilterDep = Annotated[TaskFilter, Depends(in_loop(TaskFilter))]


def sort_column(name: str) -> Any:
    """What a list is sorted by. Raises: BadRequest."""
    return chosen("sortBy", name, _SORT)


SortBy = Annotated[str, Query(alias="sortBy", description=SORT_BY)]


def many(
    session: Session, kind: TaskKind, wanted: TaskFilter, sort_by: str, window: Window, user: UserPrincipal
) -> tuple[Sequence[tuple[Task, User, Allocation | None]], Pagination]:
    """A page of the tasks of a kind, each with its owner and its latest allocation. Raises: BadRequest."""
    column = sort_column(sort_by)
    is_descending = window.is_descending if window.is_descending is not None else sort_by == ""
    statement = _of(kind).where(readable_tasks(user), *wanted.conditions())
    rows, pagination = rows_of(
        session, statement.order_by(column.desc() if is_descending else column.asc(), Task.id), window
    )
    return [tuple(row) for row in rows], pagination


def one(session: Session, row: Task) -> tuple[Task, User, Allocation | None]:
    """A task with its owner and its latest allocation."""
    return session.execute(_of(TaskKind(row.kind)).where(Task.id == row.id)).tuples().one()


def _of(kind: TaskKind) -> Select[*tuple[Any, ...]]:
    later = aliased(Allocation)
    newest = select(func.max(later.run_id)).where(later.task_id == Task.id).scalar_subquery()
    statement: Select[*tuple[Any, ...]] = (
        select(Task, User, Allocation)
        .join(User, User.id == Task.owner_id)
        .outerjoin(Allocation, and_(Allocation.task_id == Task.id, Allocation.run_id == newest))
        .where(Task.kind == kind.value, Task.workspace_id.is_not(None))  # as the index of them says
    )
    return with_trials(statement)


def state_of(task: Task, allocation: Allocation | None) -> str:
    """taskv1State."""
    state = TaskState(task.state)
    if state.is_terminal:
        return "STATE_TERMINATED"
    if allocation is None or allocation.ended_at is not None:
        return "STATE_QUEUED"
    if state is not TaskState.ACTIVE:
        return "STATE_TERMINATING"
    return _RUNNING.get(allocation.state, "STATE_STARTING")


#: A task with its owner and its latest allocation.
Row = tuple[Task, User, Allocation | None]


def command(row: Row) -> wire.Command:
    """v1Command."""
    return wire.Command(**_seen(row))


def notebook(row: Row, token: str = "") -> wire.Notebook:
    """v1Notebook. `token`: what opens it."""
    return wire.Notebook(**_seen(row), service_address=_address(row, token))


Kind = TypeVar("Kind", bound=wire.Seen)


def nothing(kind: type[Kind]) -> Kind:
    """The message of a task that is not made, or not there any more."""
    texts = dict.fromkeys(
        ("id", "description", "username", "display_name", "resource_pool", "exit_status", "job_id"), ""
    )
    return kind(**texts, state="STATE_UNSPECIFIED", start_time=utc_now(), user_id=0, workspace_id=0)


def shell(row: Row) -> wire.Shell:
    """v1Shell, without its keys."""
    return wire.Shell(**_seen(row))


def tensorboard(row: Row, token: str = "") -> wire.Tensorboard:
    """v1Tensorboard. `token`: what opens it."""
    shown: dict[str, list[int]] = row[0].sources or {}
    return wire.Tensorboard(
        **_seen(row),
        experiment_ids=shown.get("experiment_ids", []),
        trial_ids=shown.get("trial_ids", []),
        service_address=_address(row, token),
    )


def terminals(row: Row, token: str) -> str:
    """The address of a shell's terminals. `token`: what opens them."""
    return _address(row, token, TERMINAL)


def _address(row: Row, token: str, service: str = "") -> str:
    return f"/proxy/{row[0].id}{service}/" + (f"?token={token}" if token else "")


def _seen(row: Row) -> dict[str, Any]:
    """What all of them have."""
    task, owner, allocation = row
    return {
        "id": task.id,
        "description": task.name or "",
        "state": state_of(task, allocation),
        "start_time": task.started_at,
        "username": owner.username,
        "display_name": owner.display_name or "",
        "user_id": owner.id,
        "resource_pool": task.pool or "",
        "exit_status": exit_status(task),
        "job_id": task.job_id,
        "workspace_id": task.workspace_id or 0,
        "container": None if allocation is None else _container(task, allocation),
    }


def exit_status(task: Task) -> str:
    """How it ended; empty until then."""
    return task.message or task.state.lower() if TaskState(task.state).is_terminal else ""


def _container(task: Task, allocation: Allocation) -> dict[str, Any]:
    """v1Container, of the latest allocation."""
    return {
        "id": f"{allocation.id}-0",
        "parent": next((place["agent_id"] for place in allocation.placements), ""),
        "state": f"STATE_{allocation.state}",
        "devices": [],
        "permissionDenied": False,
    }


def generic(task: Task, owner: User, allocation: Allocation | None) -> wire.GenericTask:
    """A generic task in a list."""
    return wire.GenericTask(
        task_id=task.id,
        user_id=owner.id,
        username=owner.username,
        name=task.name or "",
        description=(task.config or {}).get("description") or "",
        state=f"GENERIC_TASK_STATE_{task.state}",
        resource_pool=task.pool or "",
        workspace_id=task.workspace_id or 0,
        parent_id=task.parent_id,
        start_time=task.started_at,
        end_time=task.ended_at,
    )


def of_generic(task: Task) -> dict[str, Any]:
    """What v1Task says of a generic task beside what it says of all."""
    if TaskKind(task.kind) is not TaskKind.GENERIC:
        return {}
    return {
        "taskState": f"GENERIC_TASK_STATE_{task.state}",
        "parentId": task.parent_id,
        "forkedFrom": task.forked_from,
        "noPause": not task.is_pausable,
    }
