"""What a generic task comes after: other tasks whose end it waits for, before it asks for slots."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

from workflows.lifecycle.task import TaskState


class Need(BaseModel):
    """A task that another one comes after."""

    task_id: str
    any_end: bool = False  # it need not have completed
    state: TaskState | None = None  # in which it has ended; None: not yet


class NeedEnded(BaseModel):
    """A task that others come after has ended."""

    task_id: str
    state: TaskState


def note_end(needs: Sequence[Need], ended: NeedEnded) -> None:
    """Note an end. One that is known stays: a task ends once, however often that is said."""
    for need in needs:
        if need.task_id == ended.task_id and need.state is None:
            need.state = ended.state


def is_waiting(needs: Sequence[Need]) -> bool:
    """Whether some of them have not ended."""
    return any(need.state is None for need in needs)


def broken(needs: Sequence[Need]) -> str:
    """Why the one that comes after them can't run any more; empty if it can."""
    for need in needs:
        if need.state is not None and need.state is not TaskState.COMPLETED and not need.any_end:
            return f"task {need.task_id}, which it comes after, ended as {need.state}"
    return ""
