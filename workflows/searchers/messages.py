"""What a search receives and what it answers: events in, actions out.

Source: spec searchers.md §1 and §10.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class ExitReason(StrEnum):
    """Why a trial ended before the search was done with it."""

    ERRORED = "errored"
    USER_CANCELED = "user_canceled"
    INVALID_HP = "invalid_hp"
    INIT_INVALID_HP = "init_invalid_hp"
    USER_REQUESTED_STOP = "user_requested_stop"


class Message(BaseModel):
    """Base of what goes into a search and comes out of it."""

    # A metric may be infinite or no number at all; JSON has no words for that, so text stands for it.
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")


class Started(Message):
    """The experiment begins; sent once."""

    kind: Literal["started"] = "started"


class ProgressReported(Message):
    """How far a trial is: units of its length in the ops generation, a fraction in [0, 1] in the events generation."""

    kind: Literal["progress_reported"] = "progress_reported"
    request_id: str
    progress: float


class ValidationReported(Message):
    """All metrics of a validation; decides in the events generation only."""

    kind: Literal["validation_reported"] = "validation_reported"
    request_id: str
    metrics: dict[str, Any]


class OperationCompleted(Message):
    """A trial has trained to the length it was given, and this is its metric; ops generation only."""

    kind: Literal["operation_completed"] = "operation_completed"
    request_id: str
    length: int
    metric: Any = None


class TrialExitedEarly(Message):
    """A trial ended before the search was done with it; a :class:`TrialClosed` always follows."""

    kind: Literal["trial_exited_early"] = "trial_exited_early"
    request_id: str
    reason: ExitReason


class TrialClosed(Message):
    """A trial is over, for whatever reason; nothing follows."""

    kind: Literal["trial_closed"] = "trial_closed"
    request_id: str


class Suggested(Message):
    """The point that an :class:`Ask` asked for, from a sampler that is not part of the search.

    Attributes:
        number: Which Ask it answers.
        hparams: Values by name; nested spaces give nested maps.
    """

    kind: Literal["suggested"] = "suggested"
    number: int
    hparams: dict[str, Any]


class Amended(Message):
    """The search was changed by its user while it runs; None leaves a thing as it is.

    Attributes:
        max_trials: More trials than before.
        max_concurrent_trials: More trials at the same time than before.
        max_length: A longer training than before, in the unit of ``max_length`` or ``time_metric``.
        hyperparameters: The search space, narrowed, complete, as a config writes it.
    """

    kind: Literal["amended"] = "amended"
    max_trials: int | None = None
    max_concurrent_trials: int | None = None
    max_length: int | None = None
    hyperparameters: dict[str, Any] | None = None


class Steered(Message):
    """A user steers one trial by hand.

    Attributes:
        key: Of the request: sent again, it counts once.
        action: ``add`` a trial with a point that is given; ``stop`` one; ``promote`` one to the next rung; ``boost``
            one, which passes every rung.
        request_id: The trial; of a new one its id to be.
        trial_seed: Of a new one.
        hparams: Of a new one: values by name.
    """

    kind: Literal["steered"] = "steered"
    key: str
    action: Literal["add", "stop", "promote", "boost"]
    request_id: str
    trial_seed: int = 0
    hparams: dict[str, Any] | None = None


class Create(Message):
    """Start a trial.

    Attributes:
        request_id: The trial's id in the search, a uuid drawn from the experiment's generator.
        trial_seed: In [0, 2**31).
        hparams: Values by name; nested spaces give nested maps.
        parent: The trial whose newest checkpoint it starts from, by request id.
        checkpoint: The checkpoint that it starts from, by uuid.
        inherits: The trial of the forked experiment whose results count as this one's, by its request id there.
    """

    kind: Literal["create"] = "create"
    request_id: str
    trial_seed: int
    hparams: dict[str, Any]
    parent: str | None = None
    checkpoint: str | None = None
    inherits: str | None = None


class TrainTo(Message):
    """Train a trial until it has reached this length in all, in the unit of ``max_length``; ops generation only."""

    kind: Literal["train_to"] = "train_to"
    request_id: str
    length: int


class Close(Message):
    """No further length will come for this trial; ops generation only."""

    kind: Literal["close"] = "close"
    request_id: str


class Stop(Message):
    """Ask a trial to stop now, gracefully; events generation only."""

    kind: Literal["stop"] = "stop"
    request_id: str


class Shutdown(Message):
    """The search is over.

    Attributes:
        failure: Every trial failed.
        cancel: Every trial was canceled.
    """

    kind: Literal["shutdown"] = "shutdown"
    failure: bool
    cancel: bool


class Ask(Message):
    """Have a sampler that is not part of the search choose a point; answered by :class:`Suggested`.

    Attributes:
        number: Counts the questions of a search, from 1.
    """

    kind: Literal["ask"] = "ask"
    number: int


Action = Annotated[Create | TrainTo | Close | Stop | Ask | Shutdown, Field(discriminator="kind")]


class SetProgress(Message):
    """A custom search says how far it is, in [0, 1]."""

    kind: Literal["set_progress"] = "set_progress"
    progress: float


PostedOperation = Annotated[Create | TrainTo | Close | SetProgress | Shutdown, Field(discriminator="kind")]


class OperationsPosted(Message):
    """The program that runs a custom search decided.

    Attributes:
        triggered_by: The queued event it answers; that one and all before it leave the queue. None answers nothing.
        operations: What it wants, in order.
    """

    kind: Literal["operations_posted"] = "operations_posted"
    triggered_by: int | None
    operations: list[PostedOperation]


Event = Annotated[
    Started
    | ProgressReported
    | ValidationReported
    | OperationCompleted
    | TrialExitedEarly
    | TrialClosed
    | Suggested
    | Amended
    | OperationsPosted
    | Steered,
    Field(discriminator="kind"),
]
