"""Whether what concurrent clients saw of one experiment can be explained by some order of their calls.

The model is `workflows.lifecycle.experiment`: a state, in which each call has one outcome, and the moves that an experiment
makes by itself. The record, which GET, archive and continue read, follows the state; a command that moved the state is answered when
its record is there. After Wing and Gong, "Testing and verifying concurrent objects" (1993): all orders that respect who
was answered before who asked, step by step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from workflows.lifecycle.experiment import (
    CONTINUABLE,
    FINAL_STATE,
    TRANSITIONS,
    Command,
    CommandRefused,
    ExperimentState,
    next_state,
)

_State = ExperimentState
Outcome = Literal["done", "refused"] | _State


@dataclass(frozen=True)
class Call:
    """A call and its answer. `what` is a command's name or `get`; the outcome of a `get` is the state that it showed."""

    what: str
    began: float
    ended: float
    outcome: Outcome


@dataclass(frozen=True)
class _World:
    """The state and its record, and what is under way: calls that took effect, and calls whose record is missing."""

    state: _State
    record: _State
    effective: frozenset[int] = frozenset()
    unrecorded: frozenset[int] = frozenset()


def explain(calls: Sequence[Call], *, may_complete: bool) -> str:
    """Empty if there is such an order, else the call that none explains, with those before it.

    Args:
        calls: All that were made to an experiment since it was created, active.
        may_complete: Whether its search can come to its end by itself.
    """
    moments = [(call.began, 0, number) for number, call in enumerate(calls)]
    moments += [(call.ended, 1, number) for number, call in enumerate(calls)]
    worlds = {_World(_State.ACTIVE, _State.ACTIVE)}
    waiting: set[int] = set()
    for _, is_answer, number in sorted(moments):
        if not is_answer:
            waiting.add(number)
            continue
        reached = _closure(worlds, [(each, calls[each]) for each in sorted(waiting)], may_complete)
        worlds = {
            _World(world.state, world.record, world.effective - {number}, world.unrecorded)
            for world in reached
            if number in world.effective
        }
        waiting.discard(number)
        if not worlds:
            states = sorted({f"{world.state} (recorded: {world.record})" for world in reached})
            before = sorted((call for call in calls if call.began <= calls[number].ended), key=lambda call: call.began)
            return f"no order explains {calls[number]}; possible were {states} after " + "\n".join(
                map(str, before[-20:])
            )
    return ""


def _closure(worlds: set[_World], waiting: list[tuple[int, Call]], may_complete: bool) -> set[_World]:
    reached, fresh = set(worlds), list(worlds)
    while fresh:
        world = fresh.pop()
        for successor in _successors(world, waiting, may_complete):
            if successor not in reached:
                reached.add(successor)
                fresh.append(successor)
    return reached


def _successors(world: _World, waiting: list[tuple[int, Call]], may_complete: bool) -> Iterator[_World]:
    if world.record is not world.state or world.unrecorded:
        yield _World(world.state, world.state, world.effective | world.unrecorded)
    for target in _own_moves(world.state, may_complete):
        yield _World(target, world.record, world.effective, world.unrecorded)
    for number, call in waiting:
        if number not in world.effective and number not in world.unrecorded:
            yield from _effects(world, number, call)


def _own_moves(state: _State, may_complete: bool) -> Iterator[_State]:
    """What an experiment does without being asked: its search ends, its last trial ends."""
    if state in FINAL_STATE:
        yield FINAL_STATE[state]
    elif may_complete and not state.is_terminal:
        yield _State.STOPPING_COMPLETED


def _effects(world: _World, number: int, call: Call) -> Iterator[_World]:
    now = frozenset({number})
    if call.what == "get":
        if call.outcome is world.record:
            yield _World(world.state, world.record, world.effective | now, world.unrecorded)
        return
    if call.what == "continue":
        if call.outcome == "done" and world.record in CONTINUABLE and world.state is world.record:
            yield _World(_State.ACTIVE, _State.ACTIVE, world.effective | now, world.unrecorded)
        # of a completed search there may be nothing left to go on with
        if call.outcome == "refused" and (world.record not in CONTINUABLE or world.record is _State.COMPLETED):
            yield _World(world.state, world.record, world.effective | now, world.unrecorded)
        return
    if call.what in ("archive", "unarchive"):
        if (call.outcome == "done") == world.record.is_terminal:
            yield _World(world.state, world.record, world.effective | now, world.unrecorded)
        return
    try:
        target = next_state(world.state, Command(call.what))
    except CommandRefused:
        target = None
    if (call.outcome == "done") != (target is not None):
        return
    if target is None or target is world.state:
        yield _World(world.state, world.record, world.effective | now, world.unrecorded)
        return
    assert target in TRANSITIONS[world.state]
    yield _World(target, world.record, world.effective, world.unrecorded | now)
