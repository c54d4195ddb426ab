"""Which checkpoints stay: the examples of spec experiment-config.md §11, and what must hold for any of them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.lifecycle.retention import KEEP_NOTHING, Candidate, RetentionPolicy, kept

#: Trial 1 with checkpoints 1 to 5, trial 2 with 6 to 10; the metric of each, None where it was not validated.
METRICS = {1: None, 2: None, 3: 0.6, 4: 0.5, 5: 0.4, 6: None, 7: 0.2, 8: 0.3, 9: None, 10: None}
EXAMPLE = [
    Candidate(str(n), 1 if n <= 5 else 2, (n - 1) % 5, n, metric, None if metric is None else n)
    for n, metric in METRICS.items()
]


def policy(experiment_best: int, trial_best: int, latest: int) -> RetentionPolicy:
    return RetentionPolicy(save_experiment_best=experiment_best, save_trial_best=trial_best, save_trial_latest=latest)


@pytest.mark.parametrize(
    ("wanted", "stay"),
    [
        ((0, 0, 0), set()),
        ((2, 0, 0), {7, 8}),
        ((5, 0, 0), {3, 4, 5, 7, 8}),
        ((9, 0, 0), {3, 4, 5, 7, 8}),
        ((0, 3, 0), {3, 4, 5, 7, 8}),
        ((0, 1, 0), {5, 7}),
        ((0, 0, 1), {5, 10}),
        ((0, 0, 3), {3, 4, 5, 8, 9, 10}),
        ((2, 1, 0), {5, 7, 8}),
        ((2, 0, 1), {5, 7, 8, 10}),
        ((2, 1, 1), {5, 7, 8, 10}),
        ((0, 1, 1), {5, 7, 10}),
    ],
)
def test_the_examples_of_the_spec(wanted: tuple[int, int, int], stay: set[int]) -> None:
    assert kept(EXAMPLE, policy(*wanted), smaller_is_better=True) == {str(n) for n in stay}


def test_larger_is_better_turns_the_order_round() -> None:
    assert kept(EXAMPLE, policy(0, 1, 0), smaller_is_better=False) == {"3", "8"}


def test_nan_is_after_every_number_and_the_older_validation_wins_a_tie() -> None:
    trial = [
        Candidate("nan", 1, 1, 1, math.nan, 1),
        Candidate("inf", 1, 2, 2, math.inf, 2),
        Candidate("first", 1, 3, 3, 0.5, 3),
        Candidate("second", 1, 4, 4, 0.5, 4),
    ]
    best_first = ["first", "second", "inf", "nan"]
    for count in range(5):
        assert kept(trial, policy(0, count, 0), smaller_is_better=True) == set(best_first[:count])


def test_checkpoints_of_one_step_share_their_rank() -> None:
    twins = [Candidate("a", 1, 5, 1, 0.1, 7), Candidate("b", 1, 5, 2, 0.1, 7), Candidate("c", 1, 6, 3, 0.2, 8)]
    assert kept(twins, policy(1, 0, 0), smaller_is_better=True) == {"a", "b"}
    assert kept(twins, policy(0, 0, 1), smaller_is_better=True) == {"c"}


candidates = st.lists(
    st.builds(
        Candidate,
        uuid=st.uuids().map(str),
        trial_id=st.integers(1, 4),
        steps=st.integers(0, 6),
        age=st.integers(0, 1000),
        metric=st.none() | st.floats(),
        validation=st.integers(0, 1000),
    ),
    unique_by=(lambda candidate: candidate.uuid, lambda candidate: candidate.validation),
)
policies = st.builds(policy, st.integers(0, 5), st.integers(0, 5), st.integers(0, 5))


@given(candidates, policies, st.booleans())
def test_what_stays_is_what_the_policy_promises(
    found: list[Candidate], wanted: RetentionPolicy, smaller_is_better: bool
) -> None:
    stay = kept(found, wanted, smaller_is_better=smaller_is_better)
    assert stay <= {candidate.uuid for candidate in found}
    assert kept(found, KEEP_NOTHING, smaller_is_better=smaller_is_better) == set()
    for trial_id in {candidate.trial_id for candidate in found}:
        own = [candidate for candidate in found if candidate.trial_id == trial_id]
        assert len(stay & {candidate.uuid for candidate in own}) >= min(len(own), wanted.save_trial_latest)
    # collecting twice is collecting once: what stayed stays
    left = [candidate for candidate in found if candidate.uuid in stay]
    assert kept(left, wanted, smaller_is_better=smaller_is_better) == stay
