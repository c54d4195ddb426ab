"""What generic tasks come after: checked and recorded when they are created."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.auth.authorization import readable_task
from api.errors import BadRequest, NotFound
from database.models import Task, TaskDependency
from workflows.config.tasks import TaskConfig
from workflows.lifecycle.needs import Need
from workflows.lifecycle.task import TaskKind, TaskState

#: What has an exit code of its own.
_AWAITED = frozenset({TaskKind.GENERIC, TaskKind.COMMAND})


def checked(session: Session, config: TaskConfig, user: UserPrincipal) -> list[Need]:
    """What a new task comes after, and how those have ended that have.

    Their rows are locked until the end of the transaction: an end that is not seen here sees the new task.

    Raises: BadRequest.
    """
    wanted = dict.fromkeys(config.after_any, True) | dict.fromkeys(config.after, False)
    if not wanted:
        return []
    for task_id in wanted:
        _check(session, task_id, user)
    locked = select(Task).where(Task.id.in_(wanted)).order_by(Task.id).with_for_update(read=True)
    rows = session.scalars(locked.execution_options(populate_existing=True)).all()
    states = {row.id: TaskState(row.state) for row in rows if row.ended_at is not None}
    return [Need(task_id=task_id, any_end=any_end, state=states.get(task_id)) for task_id, any_end in wanted.items()]


def record(session: Session, row: Task, needs: Sequence[Need]) -> None:
    """Have the end of those that have not ended posted to a new task."""
    for need in needs:
        session.add(TaskDependency(task_id=row.id, needs_id=need.task_id, any_end=need.any_end))


def _check(session: Session, task_id: str, user: UserPrincipal) -> None:
    try:
        is_awaited = TaskKind(readable_task(session, task_id, user).kind) in _AWAITED
    except NotFound:
        is_awaited = False
    if not is_awaited:
        raise BadRequest(f"after: {task_id[:80]!r}: expected the id of a generic task or command that you can see")
