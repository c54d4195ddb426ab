"""Changes the limits of a task's time while it waits or runs."""

from __future__ import annotations

from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.auth.authorization import changeable_task
from api.errors import BadRequest, FailedPrecondition
from api.schemas.tasks import PatchTaskLimits, TaskLimitsResponse
from api.services import config_policies
from api.temporal import outbox
from database.models import Task
from database.types import utc_now
from workflows import names
from workflows.config.durations import seconds_of
from workflows.config.tasks import TaskConfig, checked_limit
from workflows.lifecycle.task import ENDS_IDLE, TaskKind, TaskState
from workflows.messages import TaskLimits

#: A notebook that runs reports its use twice a minute: what is shorter would end it between two reports.
_SHORTEST_IDLE_S = 60.0


def change(session: Session, task_id: str, wanted: PatchTaskLimits, user: UserPrincipal) -> TaskLimitsResponse:
    """Change the limits that are named. A new idle timeout counts from now on, as if the task had just been used.

    Raises: BadRequest, NotFound, Forbidden, FailedPrecondition.
    """
    row = changeable_task(session, task_id, user)
    changes = _checked(row, wanted)
    config_policies.check_limits(session, row, changes)
    session.refresh(row, with_for_update=True)
    if TaskState(row.state).is_terminal:
        raise FailedPrecondition(f"task {row.id} has ended: its limits can't be changed")
    row.config = (row.config or {}) | changes
    row.wishes += 1
    if "idle_timeout" in changes:
        row.last_used_at = utc_now()
    config = TaskConfig.model_validate(row.config)
    limits = TaskLimits(
        number=row.wishes,
        idle_timeout_s=config.idle_timeout_s if TaskKind(row.kind) in ENDS_IDLE else None,
        max_lifetime_s=config.max_lifetime_s,
    )
    outbox.post(session, names.task_workflow(row.id), "limit", limits.model_dump(mode="json"))
    return TaskLimitsResponse(idle_timeout=config.idle_timeout, max_lifetime=config.max_lifetime)


def _checked(row: Task, wanted: PatchTaskLimits) -> dict[str, str]:
    """What is to change, by the keys of the configuration. Raises: BadRequest."""
    kind = TaskKind(row.kind)
    if kind is TaskKind.TRIAL:
        raise BadRequest(f"task {row.id} is a trial's: its search limits its time")
    changes = wanted.model_dump(exclude_none=True)
    if not changes:
        raise BadRequest("expected idleTimeout, maxLifetime or both")
    for name, value in changes.items():
        try:
            checked_limit(value)
        except ValueError as error:
            raise BadRequest(f"{name}: {error}") from None
    if "idle_timeout" in changes and kind not in ENDS_IDLE:
        raise BadRequest(
            f"idle_timeout: a {kind.value.lower()} does not end when it is idle, only notebooks and TensorBoards do:"
            " limit its lifetime"
        )
    idle = changes.get("idle_timeout", "0s")
    if 0 < (seconds_of(idle) or 0) < _SHORTEST_IDLE_S:
        raise BadRequest(f"idle_timeout: {idle}: expected 1m or more, or 0s for never")
    return changes
