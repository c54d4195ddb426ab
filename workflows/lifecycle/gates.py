"""Gates: what a search waits for until people have decided. Pure: the search's views in, what is held out."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol


class GateState(StrEnum):
    """The stored states of a gate."""

    WAITING = "WAITING"
    APPROVED = "APPROVED"
    DENIED = "DENIED"


class Standing(Protocol):
    """What of a trial a gate looks at: see `workflows.searchers.TrialView`."""

    @property
    def rung(self) -> int | None: ...
    @property
    def length(self) -> int | None: ...
    @property
    def completed(self) -> bool: ...
    @property
    def stopped(self) -> bool: ...
    @property
    def ended(self) -> bool: ...


def gate_of(view: Standing, rungs: Mapping[int, GateState | None]) -> int | None:
    """The rung of the gate that holds a trial back: the first one on its way that is not approved. None: it is free.

    Args:
        view: The trial. One that has nothing to train waits for no gate.
        rungs: Those that need approval, with what was decided; None: nobody has asked yet.
    """
    if view.rung is None or view.stopped or view.ended or (view.length is not None and view.completed):
        return None
    return min(
        (rung for rung, state in rungs.items() if rung <= view.rung and state != GateState.APPROVED), default=None
    )
