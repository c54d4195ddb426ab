"""The record of a search: each event with what was done because of it, and by which comparison."""

from enum import StrEnum
from typing import Self

from workflows.searchers.messages import Action, Event, Message
from workflows.searchers.values import MetricValue


class Outcome(StrEnum):
    """What a comparison meant for a trial."""

    GOES_ON = "goes_on"  # among the best of its rung when it got there
    PROMOTED = "promoted"  # among the best of its rung because of a later result
    WAITS = "waits"  # not among the best yet; later results may change that
    STOPPED = "stopped"  # not among the best, for good
    FINISHED = "finished"  # reached the top
    FAILED = "failed"  # ended early: its result is the worst
    INVALID = "invalid"  # its hyperparameters do not count
    REPLACED = "replaced"  # population based training: another member's copy takes its place


class Verdict(Message):
    """One comparison of one trial, and what followed for it: why a trial was stopped or goes on.

    Attributes:
        request_id: The trial that it is about.
        outcome: What followed.
        bracket: Number of the bracket, from 0; None where there are none.
        rung: Number of the rung (of the round, in population based training), from 0; None where there are none.
        length: Where trials are compared there.
        metric: The trial's own result; NaN is that of a trial that failed.
        place: The trial's place among the results of the rung, from 1 for the best.
        results: Results in the rung then, this one included.
        keep: How many of these results go on.
        threshold: Result of the last one that goes on; None if there is none.
        because_of: The other trial that this is owed to: whose result promoted it, or whose copy replaces it.
    """

    request_id: str
    outcome: Outcome
    bracket: int | None = None
    rung: int | None = None
    length: int | None = None
    metric: MetricValue | None = None
    place: int | None = None
    results: int | None = None
    keep: int | None = None
    threshold: MetricValue | None = None
    because_of: str | None = None


class Decision(Message):
    """The record of one event and all that the search made of it; in order they are the whole search.

    Attributes:
        number: Counts the decisions of a search, from 1.
        event: What the search received.
        actions: What it wants done.
        verdicts: The comparisons that led there.
        error: Why it could not go on; the experiment ends with this sentence.
    """

    number: int
    event: Event
    actions: list[Action] = []
    verdicts: list[Verdict] = []
    error: str = ""

    def canonical(self) -> bytes:
        """The one way to write it down: equal decisions have equal bytes."""
        return self.model_dump_json(exclude_none=True).encode()

    @property
    def trials(self) -> set[str]:
        """Request ids of all trials that it is about."""
        ids = (getattr(message, "request_id", None) for message in (self.event, *self.actions, *self.verdicts))
        return {request_id for request_id in ids if request_id is not None}

    def parted(self) -> dict[str, Self]:
        """What it says of each of its trials, by request id: the event, and the actions and verdicts of this one."""
        parts = {id_: self.model_copy(update={"actions": [], "verdicts": []}) for id_ in self.trials}
        for action in self.actions:
            if (id_ := getattr(action, "request_id", None)) is not None:
                parts[id_].actions.append(action)
        for verdict in self.verdicts:
            parts[verdict.request_id].verdicts.append(verdict)
        return parts
