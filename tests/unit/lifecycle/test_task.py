"""What a task that is no trial does with the end of its allocation."""

from __future__ import annotations

import pytest

from workflows.lifecycle.allocation import AllocationEnd, EndCause, ExitKind
from workflows.lifecycle.task import KILLED, PAUSED, UNPAUSED, TaskState, TaskVerdict, judge
from workflows.lifecycle.trial import NextStep

S, N = TaskState, NextStep
DONE = AllocationEnd(kind=ExitKind.FINISHED, cause=EndCause.EXIT_ZERO, message="exited with 0", code=0)
FAILED = AllocationEnd(kind=ExitKind.FAILED, cause=EndCause.USER_CODE, message="exited with code 3", code=3)
LOST = AllocationEnd(kind=ExitKind.SYSTEM, cause=EndCause.NODE_LOST, message="its agent was lost")
UNLAUNCHED = AllocationEnd(kind=ExitKind.SYSTEM, cause=EndCause.LAUNCH, message="no engine")
NO_IMAGE = AllocationEnd(kind=ExitKind.FATAL, cause=EndCause.IMAGE, message="no such image")
KILL = AllocationEnd(kind=ExitKind.CLEAN, cause=EndCause.KILLED, message="killed on request")
NEVER = AllocationEnd(kind=ExitKind.CLEAN, cause=EndCause.NEVER_STARTED, message="it never got its slots")


def verdict(end: AllocationEnd, state: TaskState = S.ACTIVE, *, goes_on: bool = False, restarts: int = 0,
            max_restarts: int = 0, system_failures: int = 0) -> TaskVerdict:  # fmt: skip
    return judge(end, state=state, goes_on=goes_on, restarts=restarts, max_restarts=max_restarts,
                 system_failures=system_failures)  # fmt: skip


@pytest.mark.parametrize(
    ("end", "state", "step", "then"),
    [
        (DONE, S.ACTIVE, N.END, S.COMPLETED),
        (DONE, S.STOPPING_CANCELED, N.END, S.COMPLETED),  # it was quicker than the kill
        (DONE, S.STOPPING_PAUSED, N.END, S.COMPLETED),
        (KILL, S.STOPPING_CANCELED, N.END, S.CANCELED),
        (LOST, S.STOPPING_CANCELED, N.END, S.CANCELED),
        (KILL, S.STOPPING_PAUSED, N.RUN_AGAIN, S.PAUSED),
        (FAILED, S.STOPPING_PAUSED, N.RUN_AGAIN, S.PAUSED),
        (NO_IMAGE, S.STOPPING_PAUSED, N.END, S.ERROR),
        (FAILED, S.ACTIVE, N.END, S.ERROR),
        (NO_IMAGE, S.ACTIVE, N.END, S.ERROR),
        (NEVER, S.ACTIVE, N.RUN_AGAIN, S.ACTIVE),
        (UNLAUNCHED, S.ACTIVE, N.RETRY, S.ACTIVE),  # nothing of it ran
        (LOST, S.ACTIVE, N.END, S.ERROR),
        (KILL, S.ACTIVE, N.END, S.ERROR),  # its host was drained
    ],
)
def test_an_end_leads_to_a_state(end: AllocationEnd, state: TaskState, step: NextStep, then: TaskState) -> None:
    found = verdict(end, state)
    assert (found.step, found.state) == (step, then)


def test_what_goes_on_is_started_again_after_it_was_interrupted() -> None:
    assert verdict(LOST, goes_on=True).step is N.RETRY
    assert verdict(KILL, goes_on=True).step is N.RUN_AGAIN
    assert "may have done part of its work" in verdict(LOST).message


def test_failures_are_started_again_as_often_as_the_user_said() -> None:
    assert verdict(FAILED, max_restarts=2, restarts=1).step is N.RESTART
    given_up = verdict(FAILED, max_restarts=2, restarts=2)
    assert (given_up.step, given_up.message) == (N.END, "exited with code 3 (max_restarts: 2)")


def test_a_cluster_that_fails_on_and_on_is_not_tried_forever() -> None:
    assert verdict(UNLAUNCHED, system_failures=10).step is N.RETRY
    assert verdict(UNLAUNCHED, system_failures=11).state is S.ERROR


def test_wishes_change_nothing_of_what_has_ended() -> None:
    for state in (S.COMPLETED, S.CANCELED, S.ERROR):
        assert state.is_terminal
        assert not {state} & (KILLED.keys() | PAUSED.keys() | UNPAUSED.keys())
    assert S.STOPPING_CANCELED not in KILLED, "once is enough"
