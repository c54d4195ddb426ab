"""Resumes a search after its end: the events of its record are replayed, except for the ends that are taken back.

The search starts from scratch and decides on these events once more, so that its record is again that of one search,
which a replay verifies. Trials that failed or were canceled are open again; those that came to their own end are over.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from workflows.searchers.decisions import Decision
from workflows.searchers.messages import Event, ExitReason, Started, Steered, TrialClosed, TrialExitedEarly

_TAKEN_BACK = (ExitReason.ERRORED, ExitReason.USER_CANCELED)


@dataclass(frozen=True)
class Past:
    """The events to replay.

    Attributes:
        events: In order.
        same: How many decisions, from the first on, are what they were, if the config is what it was.
        again: Request ids of the trials whose ends are taken back.
    """

    events: list[Event]
    same: int
    again: set[str]


def past_of(decisions: Sequence[Decision], *, is_single: bool) -> Past:
    """What is replayed.

    Args:
        decisions: The record of the search, in order.
        is_single: The only trial always runs again, whatever became of it.
    """
    if is_single:
        again = {request_id for decision in decisions for request_id in decision.trials}
        added = [d.event for d in decisions if isinstance(d.event, Steered) and d.event.action == "add"]
        return Past([Started(), *added] if decisions else [], min(1, len(decisions)), again)
    again = {
        decision.event.request_id
        for decision in decisions
        if isinstance(decision.event, TrialExitedEarly) and decision.event.reason in _TAKEN_BACK
    }
    events: list[Event] = []
    same = len(decisions)
    for decision in decisions:
        event = decision.event
        is_end = isinstance(event, TrialExitedEarly | TrialClosed) and event.request_id in again
        if is_end or decision.error:
            same = min(same, decision.number - 1)
        else:
            events.append(event)
    return Past(events, same, again)
