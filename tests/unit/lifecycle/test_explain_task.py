"""What is said of a command or another task that is no trial."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.lifecycle.test_explain import NOW, at, ended, queue, run
from workflows.lifecycle.allocation import EndCause, ExitKind
from workflows.lifecycle.explain_task import explain_task, waits_for_slots
from workflows.lifecycle.facts import NeedFacts, TaskFacts
from workflows.lifecycle.task import TaskState


def facts(**more: Any) -> TaskFacts:
    usual: dict[str, Any] = {"task_id": "t", "kind": "COMMAND", "state": TaskState.ACTIVE}
    return TaskFacts(**usual | more)


def told(**more: Any) -> list[str]:
    return explain_task(facts(**more), NOW)


def test_waiting_task_names_its_place_and_the_slots() -> None:
    assert waits_for_slots(facts())
    assert told(queue=queue()) == [
        "task t waits for 4 slots of pool `default`: place 2 of 3 in the queue, 1 of 8 slots free",
        "if it fails, it ends in ERROR",
    ]
    shared = queue(policy="fair_share", job_slots=3)
    assert told(queue=shared)[0].endswith("; slots are shared by weight, and its task holds 3")
    assert "is not known: Temporal is away" in told(queue_error="Temporal is away")[0]


def test_task_that_comes_after_others_names_them() -> None:
    first = NeedFacts(task_id="a", state=TaskState.ACTIVE)
    waiting = {"needs": [first, NeedFacts(task_id="b", state=TaskState.PAUSED, any_end=True)]}
    assert not waits_for_slots(facts(**waiting))
    assert told(**waiting)[:2] == [
        "task t waits for task a (ACTIVE) to complete, task b (PAUSED) to end, and holds no slots meanwhile",
        "if one of those fails or is killed that are to complete, it is canceled",
    ]
    assert told(needs=[first] * 7)[0].endswith("task a (ACTIVE) to complete, 2 more, and holds no slots meanwhile")


def test_running_task_tells_where_and_what_a_failure_would_cost() -> None:
    assert told(runs=[run()]) == [
        "task t runs on agent-a since 11:50:00 (run 1)",
        "if it fails, it ends in ERROR",
        "if its host fails, it is not started again: it may have done part of its work",
    ]
    assert told(runs=[run(away=["agent-a"])], goes_on=True, max_restarts=2) == [
        "task t runs on agent-a since 11:50:00 (run 1); agent-a is out of reach: what runs there goes on, and is taken "
        "up again",
        "if it fails, it starts again",
        "0 of 2 restarts spent",
    ]
    assert not waits_for_slots(facts(runs=[run()]))
    limited = told(runs=[run()], idle_timeout="20m", max_lifetime="8h", goes_on=True)
    assert limited[2:] == ["it ends when it has not been used for 20m", "it ends when it has run for 8h"]


def test_task_that_starts_or_leaves_says_so() -> None:
    assert told(runs=[run(state="PULLING")])[0] == "task t waits for its image on agent-a, since 11:50:00"
    assert "its container is being started there" in told(runs=[run(state="ASSIGNED")])[0]
    leaving = run(asked_to_leave_at=at(1), asked_to_leave_because="7 comes first")
    assert told(runs=[leaving])[0].startswith("task t was asked to leave agent-a at 11:59:00, since 7 comes first")


def test_failed_task_tells_of_its_run_and_of_the_next() -> None:
    before = told(runs=[ended()], restarts=1, max_restarts=2, queue=queue(is_queued=False))
    assert before == [
        "task t waits before it asks pool `default` for slots again: its last run failed",
        "if it fails, it starts again",
        "run 1 on agent-a, 11:50:00 to 11:55:00: exited with code 3 (user_code)",
        "1 of 2 restarts spent",
    ]
    free = ended(kind=ExitKind.SYSTEM, cause=EndCause.NODE_LOST, code=None, message="its agent was lost")
    assert told(runs=[free], max_restarts=2)[-1] == "0 of 2 restarts spent; 1 failure of the cluster cost nothing"


@pytest.mark.parametrize(
    ("state", "lines"),
    [
        (TaskState.PAUSED, ["is paused, and holds no slots", "again from the start after `det task unpause t`"]),
        (TaskState.STOPPING_PAUSED, ["is STOPPING_PAUSED: it waits for its workflow", "then it is paused"]),
        (TaskState.STOPPING_CANCELED, ["is STOPPING_CANCELED: it waits for its workflow", "killed on request"]),
        (TaskState.COMPLETED, ["ended as COMPLETED at 11:55:00"]),
        (TaskState.ERROR, ["ended as ERROR at 11:55:00: exited with code 3"]),
    ],
)
def test_each_state_has_its_sentence(state: TaskState, lines: list[str]) -> None:
    message = "exited with code 3" if state is TaskState.ERROR else ""
    said = told(state=state, ended_at=at(5) if state.is_terminal else None, message=message)
    assert len(said) == len(lines)
    for sentence, part in zip(said, lines, strict=True):
        assert part in sentence
