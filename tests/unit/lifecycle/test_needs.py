"""What a task comes after: when it goes on, and when it can't."""

from __future__ import annotations

import pytest

from workflows.lifecycle.needs import Need, NeedEnded, broken, is_waiting, note_end
from workflows.lifecycle.task import TERMINAL, TaskState


@pytest.mark.parametrize("state", sorted(TERMINAL))
@pytest.mark.parametrize("any_end", [False, True])
def test_task_goes_on_when_the_other_one_completed_or_any_end_will_do(state: TaskState, any_end: bool) -> None:
    needs = [Need(task_id="a", any_end=any_end), Need(task_id="b", any_end=True)]
    assert is_waiting(needs)
    note_end(needs, NeedEnded(task_id="b", state=TaskState.ERROR))
    assert is_waiting(needs)
    note_end(needs, NeedEnded(task_id="a", state=state))
    assert not is_waiting(needs)
    is_broken = state is not TaskState.COMPLETED and not any_end
    assert broken(needs) == (f"task a, which it comes after, ended as {state}" if is_broken else "")


def test_an_end_is_told_once_and_of_none_that_is_not_awaited() -> None:
    needs = [Need(task_id="a")]
    note_end(needs, NeedEnded(task_id="other", state=TaskState.ERROR))
    assert is_waiting(needs)
    note_end(needs, NeedEnded(task_id="a", state=TaskState.COMPLETED))
    note_end(needs, NeedEnded(task_id="a", state=TaskState.ERROR))
    assert broken(needs) == ""
    assert not is_waiting([])
