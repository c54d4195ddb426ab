"""States of an allocation: how far one run of a task on resources has come. Source: spec scheduling.md §7."""

from __future__ import annotations

from enum import StrEnum


class AllocationState(StrEnum):
    """In the order of progress. PENDING is a request in its pool's queue, which has no record yet."""

    PENDING = "PENDING"
    ASSIGNED = "ASSIGNED"
    PULLING = "PULLING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    TERMINATED = "TERMINATED"


_ORDER = list(AllocationState)

#: What is recorded only moves forward, over any number of states: a late word of an earlier one changes nothing.
TRANSITIONS: dict[AllocationState, frozenset[AllocationState]] = {
    state: frozenset(_ORDER[place + 1 :]) for place, state in enumerate(_ORDER)
}


def before(state: AllocationState) -> list[str]:
    """The states that `state` may follow, as they are stored."""
    return [earlier.value for earlier, targets in TRANSITIONS.items() if state in targets]
