"""Kinds of tasks, the states of one that is no trial, and what it does with the end of its allocation.

Source: spec container-contract.md §2, tasks.md §2 and §6. A trial has states of its own (`lifecycle/trial.py`).
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from workflows.lifecycle.allocation import AllocationEnd, EndCause, ExitKind
from workflows.lifecycle.trial import MAX_SYSTEM_FAILURES, NextStep


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


#: What serves people while it runs, with a program of its own: it tells when it is ready.
INTERACTIVE = frozenset({TaskKind.NOTEBOOK, TaskKind.SHELL, TaskKind.TENSORBOARD})
#: What ends when nobody has used it for as long as its configuration says.
ENDS_IDLE = frozenset({TaskKind.NOTEBOOK, TaskKind.TENSORBOARD})


class TaskState(StrEnum):
    """The stored states of a task. Queued, starting and running are derived from its allocation."""

    ACTIVE = "ACTIVE"
    STOPPING_PAUSED = "STOPPING_PAUSED"
    PAUSED = "PAUSED"
    STOPPING_CANCELED = "STOPPING_CANCELED"
    COMPLETED = "COMPLETED"
    CANCELED = "CANCELED"
    ERROR = "ERROR"

    @property
    def is_terminal(self) -> bool:
        """Whether it has ended for good."""
        return self in TERMINAL


TERMINAL = frozenset({TaskState.COMPLETED, TaskState.CANCELED, TaskState.ERROR})

_S = TaskState
#: What a user's request makes of a state; a state that is not there ignores it.
KILLED: dict[TaskState, TaskState] = dict.fromkeys((_S.ACTIVE, _S.STOPPING_PAUSED, _S.PAUSED), _S.STOPPING_CANCELED)
PAUSED: dict[TaskState, TaskState] = {_S.ACTIVE: _S.STOPPING_PAUSED}
UNPAUSED: dict[TaskState, TaskState] = {_S.PAUSED: _S.ACTIVE, _S.STOPPING_PAUSED: _S.ACTIVE}


class TaskVerdict(BaseModel):
    """The step after an allocation's end; `state` is what the task is then, `message` says why."""

    model_config = ConfigDict(frozen=True)

    step: NextStep
    state: TaskState
    message: str = ""


def judge(
    end: AllocationEnd,
    *,
    state: TaskState,
    goes_on: bool,
    restarts: int,
    max_restarts: int,
    system_failures: int,
) -> TaskVerdict:
    """What a task does with the end of its allocation; the first rule that matches decides.

    Args:
        end: the classified end.
        state: the task's state when its last container ended.
        goes_on: started again after it was interrupted, it does what it did before. A command may have done part of
            its work: that is not done twice unless its user said so.
        restarts: spent before this end.
        max_restarts: of its configuration.
        system_failures: in a row, this one included if it is one.
    """
    if end.kind is ExitKind.FINISHED:
        return TaskVerdict(step=NextStep.END, state=TaskState.COMPLETED, message=end.message)
    if state is TaskState.STOPPING_CANCELED:
        return TaskVerdict(step=NextStep.END, state=TaskState.CANCELED, message="killed on request")
    if end.kind is ExitKind.FATAL:
        return TaskVerdict(step=NextStep.END, state=TaskState.ERROR, message=end.message)
    if state is TaskState.STOPPING_PAUSED:
        return TaskVerdict(step=NextStep.RUN_AGAIN, state=TaskState.PAUSED, message="paused on request")
    if end.kind is ExitKind.FAILED:
        if restarts < max_restarts:
            return TaskVerdict(step=NextStep.RESTART, state=TaskState.ACTIVE, message=end.message)
        spent = f" (max_restarts: {max_restarts})" if max_restarts else ""
        return TaskVerdict(step=NextStep.END, state=TaskState.ERROR, message=end.message + spent)
    if end.cause is EndCause.NEVER_STARTED:
        return TaskVerdict(step=NextStep.RUN_AGAIN, state=TaskState.ACTIVE)
    if system_failures > MAX_SYSTEM_FAILURES:
        message = f"given up after {system_failures} failures of the cluster in a row, the last: {end.message}"
        return TaskVerdict(step=NextStep.END, state=TaskState.ERROR, message=message)
    if goes_on or end.cause is EndCause.LAUNCH:
        step = NextStep.RETRY if end.kind is ExitKind.SYSTEM else NextStep.RUN_AGAIN
        return TaskVerdict(step=step, state=TaskState.ACTIVE, message=end.message)
    message = f"{end.message}; it may have done part of its work, so it is not started again"
    return TaskVerdict(step=NextStep.END, state=TaskState.ERROR, message=message)
