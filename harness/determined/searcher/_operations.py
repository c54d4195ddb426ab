"""What a search method may ask for, and how it looks on the wire (v1SearcherOperation)."""

from __future__ import annotations

import math
import uuid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from determined.experimental.client import Checkpoint


class Operation:
    """Base of all operations."""

    def to_wire(self) -> dict[str, Any]:
        """The operation as the cluster takes it."""
        raise NotImplementedError(f"{type(self).__name__} is not an operation that the cluster knows")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Operation) and self.to_wire() == other.to_wire()

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in vars(self).items() if value is not None)
        return f"{type(self).__name__}({values})"


class ValidateAfter(Operation):
    """Train a trial until it has reached `length` in all, then validate it.

    Args:
        request_id: The trial, by the id it was created with.
        length: Counts from the trial's beginning, in `searcher.unit`; at least 1.
    """

    def __init__(self, request_id: uuid.UUID, length: int) -> None:
        self.request_id = _request_id(request_id)
        self.length = int(length)
        if self.length != length or self.length < 1:
            raise ValueError(f"ValidateAfter: length is {length!r}, but must be a whole number, 1 or more")

    def to_wire(self) -> dict[str, Any]:
        """The operation as the cluster takes it."""
        validate_after = {"requestId": str(self.request_id), "length": str(self.length)}
        return {"trialOperation": {"validateAfter": validate_after}}


class Close(Operation):
    """Let a trial end: no `ValidateAfter` will follow for it."""

    def __init__(self, request_id: uuid.UUID) -> None:
        self.request_id = _request_id(request_id)

    def to_wire(self) -> dict[str, Any]:
        """The operation as the cluster takes it."""
        return {"closeTrial": {"requestId": str(self.request_id)}}


class Progress(Operation):
    """Say how far the search is, from 0 to 1. Runners do it by themselves, from `SearchMethod.progress`."""

    def __init__(self, progress: float) -> None:
        self.progress = float(progress)
        if not math.isfinite(self.progress):
            raise ValueError(f"Progress: {progress!r} is not between 0 and 1")

    def to_wire(self) -> dict[str, Any]:
        """The operation as the cluster takes it."""
        return {"setSearcherProgress": {"progress": self.progress}}


class Shutdown(Operation):
    """End the experiment. A search never ends by itself.

    Args:
        cancel: It ends as CANCELED.
        failure: It ends as ERROR. With neither, it is COMPLETED.
    """

    def __init__(self, cancel: bool = False, failure: bool = False) -> None:
        self.cancel = bool(cancel)
        self.failure = bool(failure)

    def to_wire(self) -> dict[str, Any]:
        """The operation as the cluster takes it."""
        return {"shutDown": {name: True for name in ("cancel", "failure") if getattr(self, name)}}


class Create(Operation):
    """Create a trial; it starts to train at its first `ValidateAfter`.

    Args:
        request_id: The id that the method will know it by: make it with `uuid.uuid4()`, or draw it.
        hparams: Its hyperparameters; they must be values that JSON has (numpy's scalars are converted).
        checkpoint: A checkpoint to start from.

    Attributes:
        hparams: The hyperparameters as JSON text.
        checkpoint_uuid: The id of `checkpoint`. An operation that was read back from a runner's files has only this.
    """

    def __init__(self, request_id: uuid.UUID, hparams: dict[str, Any], checkpoint: Checkpoint | None = None) -> None:
        import json

        self.request_id = _request_id(request_id)
        if not isinstance(hparams, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"Create: hparams must be a dictionary, but is of type {type(hparams).__name__}")
        try:
            self.hparams = json.dumps(hparams, allow_nan=False, default=_plain)
        except (TypeError, ValueError) as e:
            raise type(e)(f"Create: hparams can't be written as JSON: {e}") from e
        self.checkpoint = checkpoint
        self.checkpoint_uuid: str | None = None if checkpoint is None else checkpoint.uuid

    def to_wire(self) -> dict[str, Any]:
        """The operation as the cluster takes it."""
        body: dict[str, Any] = {"requestId": str(self.request_id), "hyperparams": self.hparams}
        if self.checkpoint_uuid is not None:
            body["checkpoint"] = {"uuid": self.checkpoint_uuid}
        return {"createTrial": body}


def operation_from_wire(body: dict[str, Any]) -> Operation:
    """What `to_wire` made.

    Raises:
        ValueError: It is not an operation.
    """
    import json

    try:
        if "trialOperation" in body:
            validate_after = body["trialOperation"]["validateAfter"]
            return ValidateAfter(uuid.UUID(validate_after["requestId"]), int(validate_after["length"]))
        if "closeTrial" in body:
            return Close(uuid.UUID(body["closeTrial"]["requestId"]))
        if "setSearcherProgress" in body:
            return Progress(body["setSearcherProgress"]["progress"])
        if "shutDown" in body:
            return Shutdown(**body["shutDown"])
        create = body["createTrial"]
        operation = Create(uuid.UUID(create["requestId"]), json.loads(create["hyperparams"]))
        operation.checkpoint_uuid = create["checkpoint"]["uuid"] if "checkpoint" in create else None
        return operation
    except (KeyError, TypeError, AttributeError) as e:
        raise ValueError(f"{body!r} is not a searcher operation") from e


def _request_id(value: Any) -> uuid.UUID:
    if isinstance(value, uuid.UUID):
        return value
    try:
        return uuid.UUID(value)
    except (ValueError, TypeError, AttributeError):
        raise ValueError(f"a request id must be a uuid.UUID, but is {value!r}") from None


def _plain(value: Any) -> Any:
    tolist: Any = getattr(value, "tolist", None)  # numpy's scalars and arrays
    if callable(tolist):
        return tolist()
    raise TypeError(f"{value!r} is of type {type(value).__name__}")
