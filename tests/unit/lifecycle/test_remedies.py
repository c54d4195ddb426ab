"""Failure policies: which failures they are about, what the next run has instead, and when there is nothing more to try."""

from __future__ import annotations

from typing import Any

import pytest

from workflows.lifecycle.allocation import AllocationEnd, EndCause, ExitKind
from workflows.lifecycle.remedies import FailurePolicy, failure_of, multiplied, remedy_of
from workflows.lifecycle.trial import NextStep, TrialState, judge

HALVE = FailurePolicy(failure="out_of_memory", multiply={"batch_size": 0.5, "accumulation": 2}, attempts=2)
TORCH = "exited with code 1: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


def end(message: str = TORCH, cause: EndCause = EndCause.USER_CODE, kind: ExitKind = ExitKind.FAILED) -> AllocationEnd:
    return AllocationEnd(kind=kind, cause=cause, message=message)


@pytest.mark.parametrize(
    ("ended", "failure"),
    [
        (end(), "out_of_memory"),
        (end("exited with code 1: MemoryError"), "out_of_memory"),
        (end("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), "out_of_memory"),
        (end("out of memory", EndCause.OUT_OF_MEMORY), "out_of_memory"),
        (end("ended by signal 11 (SIGSEGV): it crashed", EndCause.CRASH), "crash"),
        (end("it wrote nothing for 30m", EndCause.HANG), "hang"),
        (end("an error of its GPU", EndCause.BAD_GPU), "bad_gpu"),
        (end("the GPU of slot 2 is in error", EndCause.BAD_GPU, ExitKind.SYSTEM), None),
        (end("exited with code 1: ValueError: no"), None),
        (end("exited with code 1: NoMemoryErrorHandler is missing"), None),
        (end("out of memory", EndCause.EVICTED, ExitKind.SYSTEM), None),
        (end("exited with 0", EndCause.EXIT_ZERO, ExitKind.FINISHED), None),
    ],
)
def test_failures_are_told_apart(ended: AllocationEnd, failure: str | None) -> None:
    assert failure_of(ended) == failure


def test_factors_add_up_until_the_attempts_are_made() -> None:
    first = remedy_of(end(), [HALVE], {}, {})
    assert first is not None
    assert first.factors == {"batch_size": 0.5, "accumulation": 2}
    assert first.message == (
        "attempt 1 of 2 of its policy for out_of_memory: its next run has batch_size x 0.5, accumulation x 2"
    )
    second = remedy_of(end(), [HALVE], {0: 1}, first.factors)
    assert second is not None
    assert second.factors == {"batch_size": 0.25, "accumulation": 4}
    assert remedy_of(end(), [HALVE], {0: 2}, second.factors) is None
    further = remedy_of(end(), [HALVE, HALVE], {0: 2}, second.factors)
    assert further is not None
    assert further.policy == 1, "the next one about it"
    assert remedy_of(end("ValueError"), [HALVE], {}, {}) is None


@pytest.mark.parametrize(
    ("policy", "cause", "said"),
    [
        (FailurePolicy(failure="hang", multiply={}, attempts=3), EndCause.HANG, "hang: it starts again"),
        (FailurePolicy(failure="bad_gpu", multiply={}, attempts=3), EndCause.BAD_GPU,
         "bad_gpu: it starts again, on another machine"),
        (FailurePolicy(failure="out_of_memory", multiply={}, attempts=3, pool="big", slots=4), EndCause.OUT_OF_MEMORY,
         "out_of_memory: its next run has 4 slots, the pool `big`"),
    ],
)  # fmt: skip
def test_next_run_is_another_one_in_words(policy: FailurePolicy, cause: EndCause, said: str) -> None:
    remedy = remedy_of(end("it ended", cause), [policy], {}, {})
    assert remedy is not None
    assert (remedy.pool, remedy.slots, remedy.factors) == (policy.pool, policy.slots, {})
    assert remedy.message == f"attempt 1 of 3 of its policy for {said}"


@pytest.mark.parametrize(
    ("hparams", "factors", "found"),
    [
        ({"n": 33, "lr": 0.5}, {"n": 0.5, "lr": 2}, {"n": 16, "lr": 1.0}),
        ({"n": 1}, {"n": 0.5}, {"n": 1}),
        ({"net": {"width": 8, "name": "x"}, "n": 2}, {"net.width": 0.5}, {"net": {"width": 4, "name": "x"}, "n": 2}),
        ({"on": True, "name": "x"}, {"on": 2, "name": 2, "none": 2}, {"on": True, "name": "x"}),
        ({"n": 2}, None, {"n": 2}),
    ],
)
def test_factors_are_those_of_numbers(hparams: Any, factors: Any, found: Any) -> None:
    before = repr(hparams)
    assert multiplied(hparams, factors) == found
    assert repr(hparams) == before, "what the search chose stays"


def test_remedy_costs_no_restart_and_a_stop_goes_before_it() -> None:
    def judged(state: TrialState = TrialState.ACTIVE, canceled: str | None = None) -> NextStep:
        return judge(
            end(), state=state, closed_by_searcher=False, early_exit=None, restarts=0, max_restarts=0,
            system_failures=0, retries_canceled=canceled, same_failures=2, remedy="tries less",
        ).step  # fmt: skip

    assert judged() is NextStep.ADJUST, "though there are no restarts, and it failed so before"
    assert judged(state=TrialState.STOPPING_CANCELED) is NextStep.END
    assert judged(canceled="log policy x") is NextStep.END
