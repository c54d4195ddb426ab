"""A search that a program outside of the platform runs: events queue up for it, and what it posts is done.

Source: spec searchers.md §10.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import Field

from workflows.searchers.base import Frame, Method, State
from workflows.searchers.messages import (
    Close,
    Create,
    ExitReason,
    Message,
    OperationsPosted,
    PostedOperation,
    SetProgress,
    Shutdown,
    TrainTo,
    TrialClosed,
    TrialExitedEarly,
)
from workflows.searchers.values import SearchError

TRIAL_SEED = 42
"""Seed of every trial of a custom search."""

_UUID = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class InitialOperations(Message):
    """The search begins: what shall run first?"""

    kind: Literal["initial_operations"] = "initial_operations"


class TrialCreated(Message):
    """A trial that the program asked for is there."""

    kind: Literal["trial_created"] = "trial_created"
    request_id: str


class ValidationCompleted(Message):
    """A trial has trained to the length it was given; the metric is whatever it reported."""

    kind: Literal["validation_completed"] = "validation_completed"
    request_id: str
    length: int
    metric: Any = None


class TrialProgress(Message):
    """How far a trial is, in units of its length."""

    kind: Literal["trial_progress"] = "trial_progress"
    request_id: str
    units: float


ProgramEvent = Annotated[
    InitialOperations | TrialCreated | ValidationCompleted | TrialProgress | TrialExitedEarly | TrialClosed,
    Field(discriminator="kind"),
]


class QueuedEvent(State):
    """An event that the program has not answered yet.

    Attributes:
        id: Rises from 1, without repeats; ids of progress that a later one replaced are missing.
        event: What happened.
    """

    id: int
    event: ProgramEvent


class CustomSearch(Method):
    """Keeps the queue and carries out what is posted; it decides nothing and never ends by itself.

    Attributes:
        queue: Events that wait for an answer, oldest first. Of a trial's progress only the newest is kept.
        last_id: Id of the newest event.
        answered: Id of the newest event that was answered.
        share: How much of the search is done, as the program last said.
    """

    kind: Literal["custom"] = "custom"
    queue: list[QueuedEvent] = []
    last_id: int = 0
    answered: int = 0
    share: float = 0.0

    @property
    def ends_by_itself(self) -> bool:
        """Only the program can tell."""
        return False

    @property
    def wants_progress(self) -> bool:
        """The program receives it."""
        return True

    def start(self, frame: Frame) -> None:
        """Ask the program for its first operations."""
        self._queue(InitialOperations())

    def progressed(self, frame: Frame, request_id: str, progress: float) -> None:
        """Tell the program; a value that it has not answered yet is replaced."""
        self.queue = [
            queued
            for queued in self.queue
            if not (isinstance(queued.event, TrialProgress) and queued.event.request_id == request_id)
        ]
        self._queue(TrialProgress(request_id=request_id, units=progress))

    def completed(self, frame: Frame, request_id: str, metric: Any) -> None:
        """Tell the program."""
        length = frame.trials[request_id].length or 0
        self._queue(ValidationCompleted(request_id=request_id, length=length, metric=metric))

    def exited(self, frame: Frame, request_id: str, reason: ExitReason) -> None:
        """Tell the program."""
        self._queue(TrialExitedEarly(request_id=request_id, reason=reason))

    def closed(self, frame: Frame, request_id: str) -> None:
        """Tell the program."""
        self._queue(TrialClosed(request_id=request_id))

    def posted(self, frame: Frame, event: OperationsPosted) -> None:
        """Take the answered events off the queue, then do what is wanted, up to a shutdown."""
        answered = self._answered(event.triggered_by)
        unseen = {
            queued.event.request_id
            for queued in self.queue
            if queued.id > answered and isinstance(queued.event, TrialExitedEarly | TrialClosed)
        }
        wanted = _until_shutdown(event.operations)
        _check(frame, wanted, unseen)
        self.queue = [queued for queued in self.queue if queued.id > answered]
        self.answered = answered
        for operation in wanted:
            self._apply(frame, operation)

    def progress(self, frame: Frame) -> float:
        """What the program last said."""
        return self.share

    def _answered(self, triggered_by: int | None) -> int:
        if triggered_by is None:
            return self.answered
        if not self.answered < triggered_by <= self.last_id:
            raise SearchError(f"no event with the id {triggered_by} waits for an answer")
        return triggered_by

    def _apply(self, frame: Frame, operation: PostedOperation) -> None:
        if isinstance(operation, Create):
            frame.add_trial(operation.model_copy(update={"trial_seed": TRIAL_SEED, "parent": None, "inherits": None}))
            self._queue(TrialCreated(request_id=operation.request_id))
        elif isinstance(operation, SetProgress):
            self.share = operation.progress
        elif isinstance(operation, Shutdown):
            frame.add(operation)
        elif not frame.trials[operation.request_id].is_over:
            if isinstance(operation, TrainTo):
                frame.train_to(operation.request_id, operation.length)
            else:
                frame.close(operation.request_id)

    def _queue(self, event: ProgramEvent) -> None:
        self.last_id += 1
        self.queue.append(QueuedEvent(id=self.last_id, event=event))


def _until_shutdown(operations: list[PostedOperation]) -> list[PostedOperation]:
    """What follows a shutdown can have no effect."""
    ends = [place for place, operation in enumerate(operations) if isinstance(operation, Shutdown)]
    return operations[: ends[0] + 1] if ends else operations


class _Standing(State):
    """What a trial will be when the operations before the one that is looked at are done."""

    length: int | None = None
    is_busy: bool = False
    is_closed: bool = False
    is_over: bool = False


def _check(frame: Frame, operations: list[PostedOperation], unseen: set[str]) -> None:
    """Refuse operations that cannot be, before anything is changed.

    Args:
        frame: The trials.
        operations: In order.
        unseen: Trials whose end the program cannot know of yet; what it still wants of them is dropped, not refused.

    Raises:
        SearchError: One of them is wrong; the text says which.
    """
    changed: dict[str, _Standing] = {}
    for number, operation in enumerate(operations, 1):
        problem = _problem(frame, operation, changed, unseen)
        if problem is not None:
            raise SearchError(f"operation {number} of {len(operations)} ({operation.kind}) is refused: {problem}")


def _problem(frame: Frame, operation: PostedOperation, changed: dict[str, _Standing], unseen: set[str]) -> str | None:
    if isinstance(operation, Shutdown):
        return None
    if isinstance(operation, SetProgress):
        is_share = 0 <= operation.progress <= 1
        return None if is_share else f"progress must be in [0, 1], but is {operation.progress}"
    request_id = operation.request_id
    if isinstance(operation, Create):
        for name, value in (("request id", request_id), ("checkpoint", operation.checkpoint)):
            if value is not None and not _UUID.fullmatch(value):
                return f"the {name} must be a uuid, but is {value!r}"
        if request_id in frame.trials or request_id in changed:
            return f"there is a trial with the request id {request_id} already"
        changed[request_id] = _Standing()
        return None
    if request_id not in changed:
        if request_id not in frame.trials:
            return f"there is no trial with the request id {request_id}"
        trial = frame.trials[request_id]
        changed[request_id] = _Standing(
            length=trial.length, is_busy=trial.owes_result, is_closed=trial.closed, is_over=trial.is_over
        )
    return _next_of_trial(changed[request_id], operation, is_unseen=request_id in unseen)


def _next_of_trial(trial: _Standing, operation: TrainTo | Close, *, is_unseen: bool) -> str | None:
    if isinstance(operation, Close):
        trial.is_closed = True
        return None
    if trial.is_closed:
        return f"trial {operation.request_id} was closed before"
    if trial.is_over:
        return None if is_unseen else f"trial {operation.request_id} is over"
    if trial.is_busy:
        return f"trial {operation.request_id} is to train to {trial.length} first"
    if operation.length < 1:
        return f"a length must be at least 1, but is {operation.length}"
    if trial.length is not None and operation.length <= trial.length:
        return f"trial {operation.request_id} has trained to {trial.length} already"
    trial.length, trial.is_busy = operation.length, True
    return None
