"""What kinds of tasks there are, and their states. Source: spec container-contract.md §2, tasks.md §6."""

from __future__ import annotations

from enum import StrEnum


class TaskKind(StrEnum):
    """What a task is: as its containers read it in `DET_TASK_TYPE`, and as it is stored."""

    TRIAL = "TRIAL"
    COMMAND = "COMMAND"
    NOTEBOOK = "NOTEBOOK"
    SHELL = "SHELL"
    TENSORBOARD = "TENSORBOARD"
    GENERIC = "GENERIC"

    @property
    def on_the_wire(self) -> str:
        """As the REST API names it, a value of v1TaskType."""
        return f"TASK_TYPE_{self.value}"


class TaskState(StrEnum):
    """Whether a task goes on, or how it ended."""

    ACTIVE = "ACTIVE"
    COMPLETED = "COMPLETED"
    CANCELED = "CANCELED"
    ERROR = "ERROR"
