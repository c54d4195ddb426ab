"""An event of a custom search as the cluster sends it (v1SearcherEvent)."""

from __future__ import annotations

import uuid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


class SearcherEvent:
    """Something that happened to the experiment.

    Attributes:
        id: Counts the events of an experiment from 1; that of an `experimentInactive` says nothing.
        kind: `initialOperations`, `trialCreated`, `trialProgress`, `validationCompleted`, `trialExitedEarly`,
            `trialClosed`, `experimentInactive`, or what a later release may send.
        body: Its data.
    """

    def __init__(self, id: int, kind: str, body: dict[str, Any]) -> None:
        self.id = id
        self.kind = kind
        self.body = body

    def __repr__(self) -> str:
        return f"event {self.id}, {self.kind} {self.body}"

    @classmethod
    def from_wire(cls, value: dict[str, Any]) -> SearcherEvent:
        """From a v1SearcherEvent: the one key that is set, besides `id`, is its kind."""
        kinds = [name for name, body in value.items() if name != "id" and body is not None]
        kind = kinds[0] if kinds else ""
        return cls(int(value.get("id") or 0), kind, value[kind] if kind else {})

    def to_wire(self) -> dict[str, Any]:
        """The event, to be named as what triggered operations."""
        return {"id": self.id, self.kind: self.body} if self.kind else {"id": self.id}

    @property
    def request_id(self) -> uuid.UUID:
        """The trial it is about."""
        return uuid.UUID(self.body["requestId"])

    @property
    def metric(self) -> Any:
        """The metric of a `validationCompleted`, with what JSON can't say of numbers as floats again."""
        return _numbers(self.body.get("metric"))


def _numbers(value: Any) -> Any:
    if isinstance(value, str):
        return float(value) if value in _NOT_FINITE else value
    if isinstance(value, dict):
        return {name: _numbers(item) for name, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return [_numbers(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return value
