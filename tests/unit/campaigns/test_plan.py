"""What a run does next: order, conditions, failures, reuse; and that every run ends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.campaigns.definition import Definition, parse_definition
from workflows.campaigns.plan import Moves, RunState, Scope, StepOutcome, StepState, advance, bounded

SCOPE = Scope(params={"lr": 0.1}, run={"number": 1}, context="abc")


def definition(**steps: dict[str, Any]) -> Definition:
    full = {
        name: step if {"experiment", "register"} & step.keys() else {"task": {}, **step} for name, step in steps.items()
    }
    return parse_definition(json.dumps({"name": "x", "params": {"lr": 0.1}, "steps": full}), {}.get)


def begin(wanted: Definition) -> dict[str, StepOutcome]:
    return {name: StepOutcome() for name in wanted.steps}


def done(**outputs: Any) -> StepOutcome:
    return StepOutcome(state=StepState.COMPLETED, outputs=outputs)


FAILED = StepOutcome(state=StepState.ERROR, attempt=1)


def go(wanted: Definition, outcomes: dict[str, StepOutcome], state: RunState = RunState.ACTIVE) -> Moves:
    return advance(wanted, begin(wanted) | outcomes, state, SCOPE)


DIAMOND = definition(a={}, b={"after": ["a"]}, c={"after": ["a"]}, d={"after": ["b", "c"]})


def test_steps_begin_when_those_before_them_have_ended() -> None:
    assert list(go(DIAMOND, {}).ready) == ["a"]
    assert list(go(DIAMOND, {"a": done()}).ready) == ["b", "c"]
    assert list(go(DIAMOND, {"a": done(), "b": done()}).ready) == ["c"]
    assert list(go(DIAMOND, {"a": done(), "b": done(), "c": done()}).ready) == ["d"]
    assert go(DIAMOND, dict.fromkeys("abcd", done())).state is RunState.COMPLETED


def test_a_paused_run_begins_nothing_and_still_ends() -> None:
    assert go(DIAMOND, {"a": done()}, RunState.PAUSED) == Moves()
    assert go(DIAMOND, dict.fromkeys("abcd", done()), RunState.PAUSED).state is RunState.COMPLETED


@pytest.mark.parametrize("state", [RunState.CANCELING, RunState.KILLING])
def test_a_canceled_run_waits_for_what_runs(state: RunState) -> None:
    running = StepOutcome(state=StepState.RUNNING)
    moves = go(DIAMOND, {"a": done(), "b": running}, state)
    assert moves.ended == dict.fromkeys("cd", (StepState.CANCELED, "the run was canceled"))
    assert moves.state is None
    canceled = StepOutcome(state=StepState.CANCELED)
    assert go(DIAMOND, {"a": done(), "b": canceled, "c": canceled, "d": canceled}, state).state is RunState.CANCELED


def test_a_failure_stops_what_has_not_begun() -> None:
    moves = go(DIAMOND, {"a": done(), "b": FAILED, "c": StepOutcome(state=StepState.RUNNING)})
    assert moves.ended == {"d": (StepState.SKIPPED, "step b failed")}
    assert moves.state is None
    assert go(DIAMOND, {"a": done(), "b": FAILED, "c": done()}).state is RunState.ERROR


def test_a_failure_may_be_of_no_consequence() -> None:
    wanted = definition(a={"if_failed": "continue"}, b={"after": ["a"]}, c={"task": {"x": "${steps.a.exit_code}"}})
    moves = go(wanted, {"a": FAILED})
    assert list(moves.ready) == ["b"]
    assert moves.ended["c"] == (StepState.SKIPPED, "${steps.a.exit_code} has no value, step a is ERROR")
    assert go(wanted, {"a": FAILED, "b": done(), "c": StepOutcome(state=StepState.SKIPPED)}).state is RunState.COMPLETED


def test_a_condition_may_ask_for_the_state_of_a_step() -> None:
    wanted = definition(
        a={"if_failed": "continue"},
        good={"when": "${steps.a.state} == 'COMPLETED'"},
        bad={"when": "${steps.a.state} == 'ERROR'"},
    )
    moves = go(wanted, {"a": FAILED})
    assert list(moves.ready) == ["bad"]
    assert moves.ended["good"][0] is StepState.SKIPPED


def test_what_depends_on_a_skipped_step_is_skipped_at_once() -> None:
    wanted = definition(
        a={"experiment": {"x": 1}},
        b={"experiment": {"x": "${steps.a.metric}"}, "when": "${steps.a.metric} > 1"},
        c={"task": {"y": "${steps.b.id}"}},
        d={"after": ["c"]},
    )
    moves = go(wanted, {"a": done(metric=0.5, id=3)})
    assert {name: state for name, (state, _) in moves.ended.items()} == dict.fromkeys("bc", StepState.SKIPPED)
    assert list(moves.ready) == ["d"]


def test_a_condition_that_does_not_compare_fails_its_step() -> None:
    wanted = definition(a={"experiment": {}}, b={"when": "${steps.a.metric} > 'x'"})
    moves = go(wanted, {"a": done(metric=1)})
    assert moves.ended["b"][0] is StepState.ERROR
    assert moves.state is RunState.ERROR


def test_references_are_replaced() -> None:
    wanted = definition(
        a={"experiment": {}},
        b={"experiment": {"hyperparameters": {"lr": "${steps.a.hparams.lr}", "p": "${params.lr}"}}},
    )
    moves = go(wanted, {"a": done(hparams={"lr": 0.3})})
    assert moves.ready["b"].config == {"hyperparameters": {"lr": 0.3, "p": 0.1}}


def digest(wanted: Definition, outcomes: dict[str, StepOutcome], scope: Scope = SCOPE, name: str = "b") -> str:
    return advance(wanted, begin(wanted) | outcomes, RunState.ACTIVE, scope).ready[name].digest


def test_the_digest_is_of_all_that_decides() -> None:
    wanted = definition(a={"experiment": {}}, b={"task": {"x": "${params.lr}"}, "after": ["a"]})
    first = digest(wanted, {"a": done(id=1)})
    assert digest(wanted, {"a": done(id=1, metric=3)}) == first  # that it does not use
    assert digest(wanted, {"a": StepOutcome(state=StepState.REUSED, outputs={"id": 1}, reused_from=1)}) == first
    assert digest(wanted, {"a": done(id=2)}) != first
    assert digest(wanted, {"a": done(id=1)}, Scope({"lr": 0.2}, {}, "abc")) != first
    assert digest(wanted, {"a": done(id=1)}, Scope({"lr": 0.1}, {}, "other")) != first
    templated = definition(a={"experiment": {}}, b={"task": {"x": "${params.lr}"}, "after": ["a"], "template": "t"})
    assert digest(templated, {"a": done(id=1)}) != first


def test_a_registration_does_not_depend_on_files() -> None:
    wanted = definition(
        a={"experiment": {}}, b={"register": {"checkpoint": "${steps.a.best_checkpoint}", "model": "m"}}
    )
    outcomes = {"a": done(id=1, best_checkpoint="c")}
    assert digest(wanted, outcomes) == digest(wanted, outcomes, Scope({"lr": 0.1}, {}, "other"))


def test_outputs_are_bounded() -> None:
    deep: dict[str, Any] = {}
    at = deep
    for _ in range(20):
        at["x"] = {}
        at = at["x"]
    kept = bounded({"long": "x" * 5000, "many": {str(n): n for n in range(1000)}, "deep": deep, "nan": float("nan")})
    assert "long" not in kept
    assert len(kept["many"]) < 200
    assert len(json.dumps(bounded({"deep": deep}))) < 100


@st.composite
def campaigns(draw: st.DrawFn) -> Definition:
    """Any graph of up to six steps, with conditions and failures that do not matter."""
    names = [f"s{n}" for n in range(draw(st.integers(1, 6)))]
    steps: dict[str, Any] = {}
    for place, name in enumerate(names):
        before = draw(st.lists(st.sampled_from(names[:place]), unique=True)) if place else []
        step: dict[str, Any] = {"after": before, "if_failed": draw(st.sampled_from(["stop", "continue"]))}
        if before and draw(st.booleans()):
            step["when"] = f"${{steps.{before[0]}.exit_code}} == 0"
        if before and draw(st.booleans()):
            step["task"] = {"x": f"${{steps.{before[-1]}.id}}"}
        steps[name] = step
    order = draw(st.permutations(names))
    return definition(**{name: steps[name] for name in order})


@given(campaigns(), st.data())
def test_every_run_ends_and_no_step_begins_before_its_time(wanted: Definition, data: st.DataObject) -> None:
    outcomes, state, launched = begin(wanted), RunState.ACTIVE, list[str]()
    for _ in range(100):
        moves = advance(wanted, outcomes, state, SCOPE)
        for name, (ended, message) in moves.ended.items():
            assert outcomes[name].state is StepState.WAITING
            outcomes[name] = StepOutcome(state=ended, message=message)
        for name in moves.ready:
            assert all(outcomes[other].state.is_terminal for other in wanted.before[name])
            assert name not in launched
            launched.append(name)
            outcomes[name] = StepOutcome(state=StepState.RUNNING)
        if moves.state is not None:
            break
        running = [name for name, outcome in outcomes.items() if outcome.state is StepState.RUNNING]
        name = data.draw(st.sampled_from(running))
        end = data.draw(st.sampled_from([done(id=name, exit_code=0), done(id=name, exit_code=1), FAILED]))
        outcomes[name] = end
        if data.draw(st.integers(0, 9)) == 0:
            state = RunState.CANCELING
    assert moves.state is not None
    assert all(outcome.state.is_terminal for outcome in outcomes.values())
    stopped = any(
        outcome.state is StepState.ERROR and wanted.steps[n].if_failed == "stop" for n, outcome in outcomes.items()
    )
    expected = RunState.CANCELED if state is RunState.CANCELING else RunState.ERROR if stopped else RunState.COMPLETED
    assert moves.state is expected
