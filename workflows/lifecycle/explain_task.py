"""Explains the state of a task that is no trial in sentences: what it waits for, how it ended, what comes next."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from workflows.lifecycle.explain import (
    before_its_code,
    budget,
    clock,
    how_runs_ended,
    open_run,
    out_of_reach,
    since,
    why_queued,
)
from workflows.lifecycle.facts import TaskFacts
from workflows.lifecycle.task import TaskState

#: Of tasks that one waits for.
_MOST_NAMED = 5


def waits_for_slots(facts: TaskFacts) -> bool:
    """Whether it holds nothing and wants something: then its pool knows more."""
    return facts.state is TaskState.ACTIVE and open_run(facts) is None and not facts.needs


def explain_task(facts: TaskFacts, now: datetime) -> list[str]:
    """How a task stands and why, what comes next, its runs and what is left of its budget. Times are UTC."""
    sentences = [f"task {facts.task_id} {_headline(facts, now)}", *_next(facts)]
    sentences += how_runs_ended(facts.runs, now, f"det task logs {facts.task_id}")
    if facts.max_restarts:
        sentences.append(budget(facts))
    return sentences


def _headline(facts: TaskFacts, now: datetime) -> str:
    run = open_run(facts)
    if facts.state.is_terminal:
        return f"ended as {facts.state}{since(facts.ended_at, now)}" + (f": {facts.message}" if facts.message else "")
    if run is not None and (run.asked_to_leave_at is not None or run.state != "RUNNING"):
        return before_its_code(run, now) + out_of_reach(run)
    if run is not None:
        where = ", ".join(run.agents)
        return f"runs on {where} since {clock(run.started_at, now)} (run {run.run_id})" + out_of_reach(run)
    if facts.state is TaskState.PAUSED:
        return "is paused, and holds no slots"
    if facts.state is not TaskState.ACTIVE:
        return f"is {facts.state}: it waits for its workflow"
    if facts.needs:
        return f"waits for {_named(facts)}, and holds no slots meanwhile"
    if facts.queue is None:
        return f"has no slots; whether it waits for some is not known: {facts.queue_error or 'its pool was not asked'}"
    if not facts.queue.is_queued and not facts.queue.is_granted and facts.runs:
        return f"waits before it asks pool `{facts.queue.pool}` for slots again: its last run failed"
    return why_queued(facts.queue, "task")


def _named(facts: TaskFacts) -> str:
    """What it comes after; the first ones if there are many."""
    shown = [
        f"task {need.task_id} ({need.state}) to {'end' if need.any_end else 'complete'}"
        for need in facts.needs[:_MOST_NAMED]
    ]
    more = len(facts.needs) - len(shown)
    return ", ".join([*shown, *([f"{more} more"] if more else [])])


def _next(facts: TaskFacts) -> Iterator[str]:
    run = open_run(facts)
    if facts.state.is_terminal:
        return
    if any(not need.any_end for need in facts.needs):
        yield "if one of those fails or is killed that are to complete, it is canceled"
    if facts.state is TaskState.PAUSED:
        yield f"it begins again from the start after `det task unpause {facts.task_id}`"
        return
    if facts.state is TaskState.STOPPING_CANCELED:
        yield "then it has ended: it was killed on request"
        return
    if facts.state is TaskState.STOPPING_PAUSED:
        yield "then it is paused"
        return
    left = facts.max_restarts - facts.restarts
    yield "if it fails, it starts again" if left > 0 else "if it fails, it ends in ERROR"
    if facts.idle_timeout:
        yield f"it ends when it has not been used for {facts.idle_timeout}"
    if facts.max_lifetime:
        yield f"it ends when it has run for {facts.max_lifetime}"
    if run is not None and not facts.goes_on:
        yield "if its host fails, it is not started again: it may have done part of its work"
