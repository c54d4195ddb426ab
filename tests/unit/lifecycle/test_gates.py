"""Which trials a gate holds back."""

from __future__ import annotations

from typing import Any

import pytest

from workflows.lifecycle.gates import GateState, gate_of
from workflows.searchers import TrialView


@pytest.mark.parametrize(
    ("view", "gate"),
    [
        ({"rung": 0, "length": 4}, None),
        ({"rung": 1, "length": 16}, 1),
        ({"rung": 3, "length": 64}, 1),
        ({"rung": 1, "length": 4, "completed": True}, None),  # it has nothing to train
        ({"rung": 1}, 1),  # it trains on until it is stopped
        ({"rung": 1, "stopped": True}, None),
        ({"rung": 1, "ended": True}, None),
        ({}, None),  # a search without rungs
    ],
)
def test_trial_is_held_at_the_first_rung_that_is_not_approved(view: dict[str, Any], gate: int | None) -> None:
    of = TrialView(request_id="a", **view)
    assert gate_of(of, {1: None, 2: GateState.WAITING}) == gate
    assert gate_of(of, {1: GateState.APPROVED}) is None
    assert gate_of(of, {1: GateState.DENIED}) == gate
