"""Events of a notebook, shell or TensorBoard, as clients up to 0.21 follow them. Source: spec tasks.md §5.

They are not stored: they follow from the records of the task and its newest allocation, and from its log.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.queries import logs
from api.queries.tasks import exit_status
from api.schemas.base import rfc3339
from database.models import Allocation, Task
from database.types import utc_now
from workflows import names
from workflows.lifecycle.task import TaskState

#: Of events that were before a client came.
MOST = 200
_KINDS = (
    "scheduled_event",
    "assigned_event",
    "resources_started_event",
    "service_ready_event",
    "terminate_request_event",
    "exited_event",
    "log_event",
)
_Event = tuple[datetime, str, Any, str, str | None]  # when, kind, what, container and level


class TaskEvents:
    """The events of one task, for one client.

    Attributes:
        is_over: The last one was returned.
    """

    def __init__(self, task_id: str, tail: int = MOST) -> None:
        self.is_over = False
        self._task_id = task_id
        self._tail = max(1, min(tail, MOST))
        self._number = 0
        self._said: set[tuple[str, str]] = set()
        self._last_line: int | None = None

    def read(self, session: Session, *, with_end: bool = True) -> list[dict[str, Any]]:
        """What has happened since the last call; at the first one the newest of all.

        `with_end`: also that it has ended, if it has; lines of its log may be on their way then.
        """
        is_first = self._number == 0
        task = session.get(Task, self._task_id)
        if task is None:  # it is gone with its workspace
            self.is_over = True
            return []
        newest = select(Allocation).where(Allocation.task_id == task.id).order_by(Allocation.run_id.desc()).limit(1)
        allocation = session.scalar(newest)
        found = sorted([*self._of_life(task, allocation), *self._of_log(session)], key=lambda event: event[0])
        if task.ended_at is not None and with_end:
            self.is_over = True
            found.append((task.ended_at, "exited_event", exit_status(task), "", None))
        events = [self._event(task, allocation, *event) for event in found]
        return events[-self._tail :] if is_first else events

    def _of_life(self, task: Task, allocation: Allocation | None) -> Iterator[_Event]:
        first = names.allocation_id(task.id, 1)
        reached: list[tuple[datetime | None, str, str, Any]] = [(task.started_at, first, "scheduled_event", first)]
        if allocation is not None:
            has_begun = allocation.state == "RUNNING" or allocation.ready_at is not None
            reached += [
                (allocation.started_at, allocation.id, "assigned_event", {}),
                (allocation.started_at if has_begun else None, allocation.id, "resources_started_event", {}),
                (allocation.ready_at, allocation.id, "service_ready_event", True),
            ]
        if task.state == TaskState.STOPPING_CANCELED.value:
            reached.append((utc_now(), task.id, "terminate_request_event", {}))
        for at, whose, kind, value in reached:
            if at is not None and (whose, kind) not in self._said:
                self._said.add((whose, kind))
                yield at, kind, value, "", None

    def _of_log(self, session: Session) -> Iterator[_Event]:
        if self._last_line is None:
            latest = logs.read(session, [self._task_id], logs.LogFilter(), most=MOST, descending=True).rows
            rows = list(reversed(latest))
        else:
            rows = list(logs.read(session, [self._task_id], logs.LogFilter(), from_id=self._last_line).rows)
        if rows:
            self._last_line = rows[-1].id
        for row in rows:
            yield row.timestamp, "log_event", row.log, row.container_id or "", row.level

    def _event(
        self, task: Task, allocation: Allocation | None, at: datetime, kind: str, value: Any, container: str, level: Any
    ) -> dict[str, Any]:
        self._number += 1
        return {
            "id": str(uuid.uuid4()),
            "parent_id": task.id,
            "seq": self._number - 1,
            "time": rfc3339(at),
            "description": task.name or "",
            "is_ready": allocation is not None and allocation.ready_at is not None and allocation.ended_at is None,
            "container_id": container,
            "level": level,
            **dict.fromkeys(_KINDS),
            kind: value,
        }
