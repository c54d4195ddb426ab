"""The transitions of trials and allocations: what code decides is never outside of the tables that the docs draw."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.lifecycle import allocation
from workflows.lifecycle.allocation import AllocationEnd, AllocationState, EndCause, ExitKind, before
from workflows.lifecycle.trial import FINAL_STATE, TRANSITIONS, NextStep, TrialState, accepts, judge


def test_every_state_is_in_its_table() -> None:
    assert set(TRANSITIONS) == set(TrialState)
    assert set(allocation.TRANSITIONS) == set(AllocationState)


@pytest.mark.parametrize("wanted", TrialState)
@pytest.mark.parametrize("state", TrialState)
def test_request_is_taken_only_along_an_edge(state: TrialState, wanted: TrialState) -> None:
    if accepts(state, wanted):
        assert wanted is state or wanted in TRANSITIONS[state]


@given(
    state=st.sampled_from([state for state in TrialState if not state.is_terminal]),
    kind=st.sampled_from(ExitKind),
    cause=st.sampled_from(EndCause),
    closed=st.booleans(),
    early_exit=st.sampled_from([None, "invalid_hp"]),
    restarts=st.integers(0, 3),
    max_restarts=st.integers(0, 3),
    system_failures=st.integers(0, 12),
)
def test_trial_ends_only_along_an_edge(
    state: TrialState,
    kind: ExitKind,
    cause: EndCause,
    closed: bool,
    early_exit: str | None,
    restarts: int,
    max_restarts: int,
    system_failures: int,
) -> None:
    verdict = judge(
        AllocationEnd(kind=kind, cause=cause, message="it ended"),
        state=state,
        closed_by_searcher=closed,
        early_exit=early_exit,
        restarts=restarts,
        max_restarts=max_restarts,
        system_failures=system_failures,
    )
    if verdict.step is NextStep.END:
        final = verdict.state or FINAL_STATE[state]
        assert final.is_terminal
        assert final in TRANSITIONS[state]
    if kind is ExitKind.SYSTEM and not state.is_stopping and system_failures <= 10:
        assert verdict.step is NextStep.RETRY, "a fault of ours costs the user nothing"


@pytest.mark.parametrize("state", AllocationState)
def test_allocation_only_moves_forward(state: AllocationState) -> None:
    order = list(AllocationState)
    assert before(state) == [earlier.value for earlier in order[: order.index(state)]]
    assert state not in allocation.TRANSITIONS[state]
