"""The experiment's table of transitions (spec scheduling.md §5), written down a second time and compared cell by cell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.lifecycle.experiment import (
    CONTINUABLE,
    FINAL_STATE,
    TERMINAL,
    TRANSITIONS,
    Command,
    CommandRefused,
    ExperimentState,
    next_state,
)

STOPPING = ["STOPPING_COMPLETED", "STOPPING_CANCELED", "STOPPING_KILLED", "STOPPING_ERROR"]

#: As the spec has it. The two edges of ours: a kill must end what hangs while it stops. ACTIVE after the end: "continue".
EDGES = {
    "ACTIVE": ["PAUSED", *STOPPING, "ERROR"],
    "PAUSED": ["ACTIVE", *STOPPING, "ERROR"],
    "STOPPING_CANCELED": ["CANCELED", "STOPPING_KILLED", "STOPPING_ERROR", "ERROR"],
    "STOPPING_KILLED": ["CANCELED", "STOPPING_ERROR", "ERROR"],
    "STOPPING_COMPLETED": ["COMPLETED", "STOPPING_ERROR", "ERROR", "STOPPING_KILLED"],
    "STOPPING_ERROR": ["ERROR", "STOPPING_KILLED"],
    "CANCELED": ["DELETING", "ACTIVE"],
    "COMPLETED": ["DELETING", "ACTIVE"],
    "ERROR": ["DELETING", "ACTIVE"],
    "DELETING": ["DELETED", "DELETE_FAILED"],
    "DELETED": [],
    "DELETE_FAILED": ["DELETING"],
}

#: state: what activate, pause, cancel and kill lead to. "=": stays, no error; "terminal", "busy": refused, and why.
COMMANDS = {
    "ACTIVE": ["=", "PAUSED", "STOPPING_CANCELED", "STOPPING_KILLED"],
    "PAUSED": ["ACTIVE", "=", "STOPPING_CANCELED", "STOPPING_KILLED"],
    "STOPPING_COMPLETED": ["busy", "busy", "=", "STOPPING_KILLED"],
    "STOPPING_CANCELED": ["busy", "busy", "=", "STOPPING_KILLED"],
    "STOPPING_KILLED": ["busy", "busy", "=", "="],
    "STOPPING_ERROR": ["busy", "busy", "=", "STOPPING_KILLED"],
    "COMPLETED": ["terminal", "terminal", "=", "="],
    "CANCELED": ["terminal", "terminal", "=", "="],
    "ERROR": ["terminal", "terminal", "=", "="],
    "DELETING": ["terminal", "terminal", "=", "="],
    "DELETED": ["terminal", "terminal", "=", "="],
    "DELETE_FAILED": ["terminal", "terminal", "=", "="],
}
CASES = [
    pytest.param(state, command, outcome, id=f"{state}-{command}")
    for state, outcomes in COMMANDS.items()
    for command, outcome in zip(("activate", "pause", "cancel", "kill"), outcomes, strict=True)
]


@pytest.mark.parametrize(("state", "command", "outcome"), CASES)
def test_command_leads_to_the_state_of_the_table_when_given_in_any_state(
    state: str, command: str, outcome: str
) -> None:
    if outcome in ("terminal", "busy"):
        text = f"experiment in {'terminal' if outcome == 'terminal' else 'incompatible'} state {state}"
        with pytest.raises(CommandRefused, match=text):
            next_state(ExperimentState(state), Command(command))
        return
    assert next_state(ExperimentState(state), Command(command)) == (state if outcome == "=" else outcome)


def test_tables_name_every_state_and_command_when_one_is_added() -> None:
    assert set(COMMANDS) == set(EDGES) == set(ExperimentState)
    assert {"activate", "pause", "cancel", "kill"} == set(Command)


@pytest.mark.parametrize("state", ExperimentState)
def test_transitions_are_those_of_the_spec_when_compared_state_by_state(state: ExperimentState) -> None:
    assert TRANSITIONS[state] == set(EDGES[state])


@pytest.mark.parametrize("state", ExperimentState)
def test_state_is_stopping_or_terminal_by_its_name_when_asked(state: ExperimentState) -> None:
    assert state.is_stopping == state.startswith("STOPPING_")
    running = state in ("ACTIVE", "PAUSED") or state.is_stopping
    assert state.is_terminal == (state in TERMINAL) == (not running)


def test_end_is_named_like_the_stop_when_the_last_trial_has_gone() -> None:
    assert FINAL_STATE == {
        "STOPPING_COMPLETED": "COMPLETED",
        "STOPPING_CANCELED": "CANCELED",
        "STOPPING_KILLED": "CANCELED",
        "STOPPING_ERROR": "ERROR",
    }
    assert all(final in TRANSITIONS[stopping] for stopping, final in FINAL_STATE.items())


@given(st.sampled_from(ExperimentState), st.lists(st.sampled_from(Command), max_size=12))
def test_only_edges_are_taken_and_ends_stay_ends_when_commands_come_in_any_order(
    state: ExperimentState, commands: list[Command]
) -> None:
    for command in commands:
        try:
            target = next_state(state, command)
        except CommandRefused:
            continue
        assert target is state or target in TRANSITIONS[state]
        assert next_state(target, command) is target, "a repeat has no effect"
        assert not state.is_terminal or target is state
        state = target


@given(st.sampled_from([state for state in ExperimentState if not state.is_terminal]))
def test_kill_is_never_refused_when_the_experiment_runs(state: ExperimentState) -> None:
    assert next_state(state, Command.KILL) is ExperimentState.STOPPING_KILLED


def test_only_what_ended_well_or_badly_can_continue() -> None:
    assert {state for state in TERMINAL if ExperimentState.ACTIVE in TRANSITIONS[state]} == CONTINUABLE
    assert {state for state in TERMINAL if ExperimentState.DELETING in TRANSITIONS[state]} == {
        *CONTINUABLE,
        ExperimentState.DELETE_FAILED,
    }
