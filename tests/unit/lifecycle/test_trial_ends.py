"""What the end of an allocation means (scheduling.md §7) and what the trial does with it (§8), rule by rule.

Each case matches its own rule and the next ones as well, so that it fails if two rules are swapped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.lifecycle.allocation import (
    AllocationEnd,
    ContainerResult,
    EndCause,
    ExitKind,
    backoff_s,
    classify,
    is_repeatable,
)
from workflows.lifecycle.trial import FINAL_STATE, MAX_SYSTEM_FAILURES, NextStep, TrialState, Verdict, accepts, judge

# -- accepts -----------------------------------------------------------------------------------------------------------

#: state: the requests that it takes (scheduling.md §6). Everything else is ignored.
_ANY = "ACTIVE PAUSED STOPPING_COMPLETED STOPPING_CANCELED STOPPING_KILLED STOPPING_ERROR"
ACCEPTED = {
    "ACTIVE": _ANY,
    "PAUSED": _ANY,
    "STOPPING_COMPLETED": "STOPPING_CANCELED STOPPING_KILLED STOPPING_ERROR",
    "STOPPING_CANCELED": "STOPPING_KILLED STOPPING_ERROR",
    "STOPPING_KILLED": "STOPPING_ERROR",
    "STOPPING_ERROR": "",
    "COMPLETED": "",
    "CANCELED": "",
    "ERROR": "",
}


@pytest.mark.parametrize("wanted", TrialState)
@pytest.mark.parametrize("state", TrialState)
def test_request_is_taken_as_the_table_says_when_the_trial_is_in_any_state(
    state: TrialState, wanted: TrialState
) -> None:
    assert accepts(state, wanted) == (wanted in ACCEPTED[state].split())


@pytest.mark.parametrize("state", TrialState)
def test_state_is_stopping_or_terminal_by_its_name_when_asked(state: TrialState) -> None:
    assert state.is_stopping == state.startswith("STOPPING_")
    assert state.is_terminal == (state in ("COMPLETED", "CANCELED", "ERROR"))


@given(st.lists(st.sampled_from(TrialState), max_size=15))
def test_stop_only_gets_more_severe_when_requests_come_in_any_order(requests: list[TrialState]) -> None:
    severity = [*ACCEPTED]
    state = TrialState.ACTIVE
    for wanted in requests:
        if accepts(state, wanted):
            assert not state.is_stopping or severity.index(wanted) > severity.index(state)
            state = wanted
        assert not state.is_terminal, "an end is reached by the end of an allocation, never by a request"


# -- classify ----------------------------------------------------------------------------------------------------------


def result(code: int | None = 0, cause: str = "exited", rank: int = 0, **more: str) -> ContainerResult:
    return ContainerResult(container_id=f"1.a.1-{rank}", rank=rank, code=code, cause=cause, **more)


def end_of(results: list[ContainerResult], **facts: Any) -> AllocationEnd:
    return classify(results, **{"killed_by_us": False, "preemption_acked": False} | facts)


FAILURE = result(1)
ALL_AT_ONCE = {"preemption_acked": True, "preemption_sent": True, "node_lost": True}


def test_end_is_clean_when_killed_by_us_whatever_else_is_true() -> None:
    end = end_of([FAILURE], killed_by_us=True, **ALL_AT_ONCE)
    assert (end.kind, end.cause) == (ExitKind.CLEAN, EndCause.KILLED)


def test_end_is_clean_when_killed_by_us_before_any_container_started() -> None:
    assert end_of([], killed_by_us=True).cause is EndCause.KILLED


def test_cause_says_that_it_did_not_leave_in_time_when_killed_for_that() -> None:
    end = end_of([result(137, cause="killed")], killed_by_us=True, preemption_sent=True, left_too_late=True)
    assert (end.kind, end.cause) == (ExitKind.CLEAN, EndCause.UNRESPONSIVE), "it costs no restart all the same"
    assert "did not leave in time" in end.message


def test_hang_is_a_failure_though_we_killed_it() -> None:
    end = end_of([result(137, cause="killed")], killed_by_us=True, hung="30m")
    assert (end.kind, end.cause) == (ExitKind.FAILED, EndCause.HANG)
    assert end.message.startswith("it reported and wrote nothing for 30m, and was killed")
    assert end_of([FAILURE], hung="30m").cause is EndCause.USER_CODE, "it failed by itself before it was killed"


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", EndCause.BAD_GPU),
        ("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution", EndCause.BAD_GPU),
        ("pynvml.NVMLError_GpuIsLost: GPU is lost", EndCause.BAD_GPU),
        ("cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorECCUncorrectable: ", EndCause.BAD_GPU),
        ("RuntimeError: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", EndCause.BAD_GPU),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", EndCause.USER_CODE),
        ("RuntimeError: CUDA error: device-side assert triggered (Xid 13)", EndCause.USER_CODE),
    ],
)
def test_error_of_the_gpu_itself_is_not_one_of_the_code(line: str, cause: EndCause) -> None:
    end = end_of([FAILURE], last_error=line)
    assert (end.kind, end.cause) == (ExitKind.FAILED, cause)
    assert line in end.message


def test_end_is_clean_when_it_never_got_its_slots() -> None:
    end = end_of([])
    assert (end.kind, end.cause) == (ExitKind.CLEAN, EndCause.NEVER_STARTED)


@pytest.mark.parametrize("code", [0, 1, 143])
def test_end_is_a_preemption_when_acknowledged_whatever_the_exit_code(code: int) -> None:
    end = end_of([result(code)], **ALL_AT_ONCE)
    assert (end.kind, end.cause, end.code) == (ExitKind.CLEAN, EndCause.PREEMPTED, code)


def test_what_is_known_of_a_lost_container_is_quoted() -> None:
    end = end_of([result(None, cause="lost", message="its node a says nothing any more")])
    assert end.message == "its container was lost: its node a says nothing any more"
    assert end_of([FAILURE], node_lost=True).message == "its agent or its container was lost"


@pytest.mark.parametrize("code", [0, 1])
def test_end_is_clean_when_acknowledged_without_a_preemption(code: int) -> None:
    """Clients of the operations generation acknowledge also when they run out of operations."""
    end = end_of([result(code)], preemption_acked=True)
    assert (end.kind, end.cause) == (ExitKind.CLEAN, EndCause.OUT_OF_OPERATIONS)


def test_trial_is_finished_when_it_exits_with_zero_after_an_unacknowledged_preemption() -> None:
    end = end_of([result(0)], preemption_sent=True)
    assert (end.kind, end.cause, end.code) == (ExitKind.FINISHED, EndCause.EXIT_ZERO, 0)


def test_cause_says_that_nothing_was_reported_when_it_exits_with_zero_without_a_word() -> None:
    end = end_of([result(0)], has_reported=False)
    assert (end.kind, end.cause, end.code) == (ExitKind.FINISHED, EndCause.NOTHING_REPORTED, 0)
    assert end_of([result(1)], has_reported=False).cause is EndCause.USER_CODE
    assert end_of([result(0)], has_reported=False, preemption_acked=True).cause is EndCause.OUT_OF_OPERATIONS


def test_trial_is_not_finished_when_one_of_two_containers_failed() -> None:
    end = end_of([result(0, rank=0), result(3, rank=1)])
    assert (end.kind, end.cause, end.code) == (ExitKind.FAILED, EndCause.USER_CODE, 3)
    assert "rank 1" in end.message


def test_first_failure_counts_when_the_others_were_killed_because_of_it() -> None:
    end = end_of([result(3, rank=1), result(137, cause="killed", rank=0)])
    assert (end.kind, end.code) == (ExitKind.FAILED, 3)


@pytest.mark.parametrize(
    ("found", "node_lost"),
    [
        ([], True),
        ([FAILURE], True),
        ([result(0)], True),
        ([result(None, cause="lost")], False),
        ([result(0), result(None, "lost")], False),
    ],
    ids=["no-result", "failed-with-its-node", "ended-before-its-node", "container-lost", "one-of-two-lost"],
)
def test_nothing_is_spent_when_the_node_or_the_container_is_lost(found: list[ContainerResult], node_lost: bool) -> None:
    end = end_of(found, node_lost=node_lost)
    assert (end.kind, end.cause) == (ExitKind.SYSTEM, EndCause.NODE_LOST)


def test_nothing_is_spent_when_the_container_was_killed_but_not_by_us() -> None:
    end = end_of([result(143, cause="killed")])
    assert (end.kind, end.cause) == (ExitKind.SYSTEM, EndCause.NODE_SHUTDOWN)


def test_nothing_is_spent_when_its_cluster_evicted_it() -> None:
    evicted = ContainerResult(container_id="c", code=143, cause="evicted", message="evicted by its node (node n1)")
    end = end_of([evicted])
    assert (end.kind, end.cause, end.message) == (ExitKind.SYSTEM, EndCause.EVICTED, "evicted by its node (node n1)")


@pytest.mark.parametrize(
    ("reason", "kind", "cause"),
    [
        ("image_missing", ExitKind.FATAL, EndCause.IMAGE),
        ("image_denied", ExitKind.FATAL, EndCause.IMAGE),
        ("wrong_architecture", ExitKind.FATAL, EndCause.IMAGE),
        ("no_program", ExitKind.FATAL, EndCause.IMAGE),
        ("registry_unavailable", ExitKind.SYSTEM, EndCause.IMAGE),
        ("bad_spec", ExitKind.FATAL, EndCause.LAUNCH),
        ("no_space", ExitKind.SYSTEM, EndCause.LAUNCH),
        ("engine_unavailable", ExitKind.SYSTEM, EndCause.LAUNCH),
        ("start_failed", ExitKind.SYSTEM, EndCause.LAUNCH),
        ("", ExitKind.SYSTEM, EndCause.LAUNCH),
    ],
)
def test_launch_failure_is_fatal_only_when_trying_again_is_pointless(
    reason: str, kind: ExitKind, cause: EndCause
) -> None:
    end = end_of([result(None, cause="launch_failed", reason=reason, message="it is so")])
    assert (end.kind, end.cause, end.message) == (kind, cause, "it is so")


@pytest.mark.parametrize(
    ("ended", "cause", "message"),
    [
        (result(137, cause="out_of_memory"), EndCause.OUT_OF_MEMORY, "out of memory"),
        (result(139), EndCause.CRASH, "ended by signal 11 (SIGSEGV): it crashed"),
        (result(134), EndCause.CRASH, "ended by signal 6 (SIGABRT): it crashed"),
        (result(143), EndCause.TERMINATED, "ended by signal 15 (SIGTERM), which the cluster did not send"),
        (result(129), EndCause.TERMINATED, "ended by signal 1 (SIGHUP), which the cluster did not send"),
        (
            result(137),
            EndCause.SIGNAL,
            "ended by signal 9 (SIGKILL), which the cluster did not send: had its host no memory left?",
        ),
        (result(138), EndCause.SIGNAL, "ended by signal 10"),
        (result(128), EndCause.USER_CODE, "exited with code 128"),
        (result(127), EndCause.ENTRYPOINT, "exited with code 127: the entrypoint's command was not found"),
        (result(126), EndCause.ENTRYPOINT, "exited with code 126: the entrypoint's command can't be executed"),
        (result(1), EndCause.USER_CODE, "exited with code 1"),
    ],
)
def test_failure_has_its_typed_cause_when_the_users_code_ends_badly(
    ended: ContainerResult, cause: EndCause, message: str
) -> None:
    end = end_of([ended])
    assert (end.kind, end.cause, end.message, end.code) == (ExitKind.FAILED, cause, message, ended.code)


def test_image_is_at_fault_when_its_first_program_could_not_be_executed() -> None:
    ended = ContainerResult(container_id="c", code=127, cause="no_program", message="image 'a' has no python3")
    end = end_of([ended])
    assert (end.kind, end.cause, end.message, end.code) == (
        ExitKind.FATAL, EndCause.IMAGE, "image 'a' has no python3", 127)  # fmt: skip


def test_out_of_memory_says_what_the_agent_knows() -> None:
    end = end_of([ContainerResult(container_id="c", code=137, cause="out_of_memory", message="over its limit")])
    assert (end.cause, end.message) == (EndCause.OUT_OF_MEMORY, "out of memory: over its limit")


def test_cause_is_the_import_when_the_output_ends_with_its_traceback() -> None:
    line = "ModuleNotFoundError: No module named 'nets'"
    end = end_of([result(1)], import_failure=line)
    assert (end.cause, end.message) == (EndCause.IMPORT, f"exited with code 1: {line}")
    assert is_repeatable(end)
    assert end_of([result(3)], import_failure=line).cause is EndCause.USER_CODE, "Python leaves with 1"
    assert not is_repeatable(end_of([result(3)]))
    assert is_repeatable(end_of([result(127)]))


@pytest.mark.parametrize(
    ("line", "runs_in", "said"),
    [
        (
            "ModuleNotFoundError: No module named 'sklearn.svm'",
            "/t/bin/python",
            "; its Python is /t/bin/python: `/t/bin/python -m pip install scikit-learn`, or put `pip install"
            " scikit-learn` into the experiment's startup-hook.sh; a module of your own has to be in the experiment's folder",
        ),
        (
            "ModuleNotFoundError: No module named 'torch'",
            "image i:1",
            "; it ran in the image i:1: build the image with it, or put `pip install torch` into the experiment's"
            " startup-hook.sh; a module of your own has to be in the experiment's folder",
        ),
        ("ImportError: cannot import name 'a' from 'b'", "/t/bin/python", "; its Python is /t/bin/python"),
        ("ModuleNotFoundError: No module named 'x; rm -rf /'", "/t/bin/python", "; its Python is /t/bin/python"),
        ("ModuleNotFoundError: No module named 'torch'", "", ""),
    ],
)
def test_failed_import_names_the_interpreter_and_the_command_that_installs(line: str, runs_in: str, said: str) -> None:
    ended = ContainerResult(container_id="c", code=1, runs_in=runs_in)
    assert end_of([ended], import_failure=line, last_error=line).message == f"exited with code 1: {line}{said}"


def test_last_error_is_part_of_how_it_ended() -> None:
    assert end_of([result(1)], last_error="MemoryError").message == "exited with code 1: MemoryError"
    said = "exited with code 127: the entrypoint's command 'x' was not found (in /w, PATH=/bin)"
    assert end_of([result(127)], last_error=said.partition(": ")[2]).message == said
    assert "Segm" not in end_of([result(139)], last_error=None).message
    assert end_of([result(134)], last_error="RuntimeError: CUDA error").message.endswith(
        "crashed: RuntimeError: CUDA error"
    )


def test_five_faults_have_five_causes() -> None:
    """What users and operators tell apart (guide faults-and-security.md, fault 8)."""
    ends = [
        end_of([result(137, cause="out_of_memory")]),
        end_of([result(139)]),
        end_of([result(0)], has_reported=False),
        end_of([result(143)]),
        end_of([result(137, cause="killed")], killed_by_us=True, left_too_late=True),
    ]
    assert len({end.cause for end in ends}) == 5


def test_every_cause_is_documented() -> None:
    rows = (Path(__file__).parents[3] / "docs" / "lifecycle.md").read_text().splitlines()
    assert [cause for cause in EndCause if not any(row.startswith(f"| `{cause}` |") for row in rows)] == []


@given(
    st.lists(
        st.builds(
            result,
            st.integers(0, 255),
            st.sampled_from(["exited", "killed", "lost", "out_of_memory", "launch_failed", "no_program"]),
            st.integers(0, 3),
        ),
        max_size=4,
    ),
    st.fixed_dictionaries(
        {
            key: st.booleans()
            for key in (
                "killed_by_us",
                "preemption_acked",
                "preemption_sent",
                "node_lost",
                "left_too_late",
                "has_reported",
            )
        }
    ),
)
def test_every_end_has_a_meaning_and_a_sentence_when_facts_combine_in_any_way(
    results: list[ContainerResult], facts: dict[str, bool]
) -> None:
    end = classify(results, **facts)
    assert end.message
    if end.kind is ExitKind.FAILED:
        assert results, "only a container can fail"
        assert not facts["node_lost"], "a fault of a host never costs the user"
    if end.kind is ExitKind.FINISHED:
        assert all(item.cause == "exited" and item.code == 0 for item in results)


# -- judge -------------------------------------------------------------------------------------------------------------


def ended(kind: ExitKind, cause: EndCause = EndCause.USER_CODE) -> AllocationEnd:
    return AllocationEnd(kind=kind, cause=cause, message="that is why")


def verdict_of(kind: ExitKind, **facts: Any) -> Verdict:
    usual: dict[str, Any] = {
        "state": TrialState.ACTIVE,
        "closed_by_searcher": False,
        "early_exit": None,
        "restarts": 0,
        "max_restarts": 5,
        "system_failures": 1 if kind is ExitKind.SYSTEM else 0,
    }
    return judge(ended(kind), **usual | facts)


@pytest.mark.parametrize("kind", ExitKind)
@pytest.mark.parametrize("state", [state for state in TrialState if state.is_stopping])
def test_trial_ends_as_it_was_told_or_in_error_when_it_is_stopping(state: TrialState, kind: ExitKind) -> None:
    """Row 1; rows 2, 6 and 7 match as well."""
    verdict = verdict_of(kind, state=state, closed_by_searcher=True, early_exit="invalid_hp", restarts=9)
    failed = kind in (ExitKind.FAILED, ExitKind.FATAL)
    final = TrialState.ERROR if failed else FINAL_STATE[state]
    assert (verdict.step, verdict.state) == (NextStep.END, final)
    expected = {TrialState.ERROR: "errored", TrialState.CANCELED: "user_canceled", TrialState.COMPLETED: None}
    assert verdict.exit_reason == expected[final]


def test_early_exit_is_told_when_a_trial_that_is_stopping_completes() -> None:
    verdict = verdict_of(ExitKind.CLEAN, state=TrialState.STOPPING_COMPLETED, early_exit="invalid_hp")
    assert (verdict.state, verdict.exit_reason) == (TrialState.COMPLETED, "invalid_hp")


@pytest.mark.parametrize("kind", [ExitKind.CLEAN, ExitKind.FINISHED])
def test_trial_completes_without_a_reason_when_the_searcher_is_done_with_it(kind: ExitKind) -> None:
    """Row 2; rows 7 to 9 match as well."""
    verdict = verdict_of(kind, closed_by_searcher=True, early_exit="invalid_hp")
    assert verdict == Verdict(step=NextStep.END, state=TrialState.COMPLETED)


@pytest.mark.parametrize("kind", [ExitKind.FAILED, ExitKind.FATAL])
def test_trial_errs_without_a_restart_when_it_fails_after_the_searcher_is_done(kind: ExitKind) -> None:
    """Row 2; row 6 matches as well."""
    verdict = verdict_of(kind, closed_by_searcher=True)
    assert (verdict.step, verdict.state, verdict.exit_reason) == (NextStep.END, TrialState.ERROR, "errored")
    assert verdict.message == "that is why"


def test_trial_tries_again_when_its_host_fails_after_the_searcher_is_done() -> None:
    """It may still have to write what it wants to keep; the workflow ends it if it need not run again."""
    assert verdict_of(ExitKind.SYSTEM, closed_by_searcher=True).step is NextStep.RETRY


def test_trial_errs_at_once_when_the_end_is_fatal() -> None:
    """Row 3; rows 6 and 7 match as well."""
    verdict = verdict_of(ExitKind.FATAL, early_exit="invalid_hp")
    assert (verdict.step, verdict.state, verdict.exit_reason) == (NextStep.END, TrialState.ERROR, "errored")


def test_trial_tries_again_for_nothing_when_the_cluster_failed() -> None:
    """Row 4; rows 6 and 7 match as well: no restarts are left, and an early exit was reported."""
    verdict = verdict_of(ExitKind.SYSTEM, restarts=5, early_exit="invalid_hp")
    assert (verdict.step, verdict.state) == (NextStep.RETRY, None)


def test_trial_is_given_up_when_the_cluster_fails_too_often_in_a_row() -> None:
    assert verdict_of(ExitKind.SYSTEM, system_failures=MAX_SYSTEM_FAILURES).step is NextStep.RETRY
    verdict = verdict_of(ExitKind.SYSTEM, system_failures=MAX_SYSTEM_FAILURES + 1)
    assert (verdict.step, verdict.state, verdict.exit_reason) == (NextStep.END, TrialState.ERROR, "errored")
    assert verdict.message == "given up after 11 failures of the cluster in a row, the last: that is why"


@pytest.mark.parametrize("max_restarts", [0, 1, 5])
def test_trial_runs_once_more_than_its_restarts_when_it_always_fails(max_restarts: int) -> None:
    """Row 6."""
    for restarts in range(max_restarts):
        assert verdict_of(ExitKind.FAILED, restarts=restarts, max_restarts=max_restarts).step is NextStep.RESTART
    verdict = verdict_of(ExitKind.FAILED, restarts=max_restarts, max_restarts=max_restarts)
    assert (verdict.step, verdict.state, verdict.exit_reason) == (NextStep.END, TrialState.ERROR, "errored")
    assert verdict.message == f"trial exceeded max restarts ({max_restarts}): that is why"


_POLICY = "the log policy `ECC` matched the line `ECC error`"


def test_trial_errs_without_a_restart_when_a_log_policy_canceled_retries() -> None:
    """Row 5; row 6 matches as well."""
    verdict = verdict_of(ExitKind.FAILED, retries_canceled=_POLICY)
    assert (verdict.step, verdict.state, verdict.exit_reason) == (NextStep.END, TrialState.ERROR, "errored")
    assert verdict.message == f"not restarted, as {_POLICY}: that is why"


@pytest.mark.parametrize(
    ("kind", "step"),
    [(ExitKind.CLEAN, NextStep.RUN_AGAIN), (ExitKind.SYSTEM, NextStep.RETRY), (ExitKind.FINISHED, NextStep.END)],
)
def test_canceled_retries_mean_nothing_when_it_did_not_fail(kind: ExitKind, step: NextStep) -> None:
    """Rows 4, 8 and 9."""
    verdict = verdict_of(kind, retries_canceled=_POLICY)
    assert (verdict.step, verdict.state is TrialState.ERROR) == (step, False)


@pytest.mark.parametrize("restarts", [1, 4])
def test_trial_ends_when_the_same_failure_comes_again(restarts: int) -> None:
    verdict = verdict_of(ExitKind.FAILED, same_failures=1)
    assert (verdict.step, verdict.message) == (NextStep.RESTART, "that is why")
    verdict = verdict_of(ExitKind.FAILED, same_failures=2, restarts=restarts)
    assert (verdict.step, verdict.state, verdict.exit_reason) == (NextStep.END, TrialState.ERROR, "errored")
    assert verdict.message == "not restarted, as it failed in this way 2 times in a row: that is why"


@pytest.mark.parametrize("kind", [ExitKind.CLEAN, ExitKind.FINISHED, ExitKind.FAILED])
@pytest.mark.parametrize("reason", ["invalid_hp", "init_invalid_hp"])
def test_early_exit_counts_when_reported_however_the_code_ended(kind: ExitKind, reason: str) -> None:
    """Row 7 before rows 8 and 9 (README 15), and before row 6: the same hyperparameters would fail again."""
    verdict = verdict_of(kind, early_exit=reason)
    assert verdict == Verdict(step=NextStep.END, state=TrialState.COMPLETED, exit_reason=reason)


def test_trial_completes_by_its_users_wish_when_it_exits_with_zero() -> None:
    """Row 8."""
    verdict = verdict_of(ExitKind.FINISHED, state=TrialState.PAUSED)
    assert verdict == Verdict(step=NextStep.END, state=TrialState.COMPLETED, exit_reason="user_requested_stop")


@pytest.mark.parametrize("state", [TrialState.ACTIVE, TrialState.PAUSED])
def test_trial_goes_on_later_when_it_left_cleanly(state: TrialState) -> None:
    """Row 9: the workflow waits while it is paused."""
    assert verdict_of(ExitKind.CLEAN, state=state, restarts=5).step is NextStep.RUN_AGAIN


@given(
    st.sampled_from(ExitKind),
    st.sampled_from([state for state in TrialState if not state.is_terminal]),
    st.booleans(),
    st.sampled_from([None, "invalid_hp", "init_invalid_hp"]),
    st.integers(0, 8),
    st.integers(0, 8),
)
def test_verdict_is_complete_when_facts_combine_in_any_way(
    kind: ExitKind, state: TrialState, closed: bool, early_exit: str | None, restarts: int, max_restarts: int
) -> None:
    verdict = verdict_of(
        kind,
        state=state,
        closed_by_searcher=closed,
        early_exit=early_exit,
        restarts=restarts,
        max_restarts=max_restarts,
    )
    assert (verdict.step is NextStep.END) == (verdict.state is not None)
    assert verdict.state is None or verdict.state.is_terminal
    if verdict.step is NextStep.RESTART:
        assert kind is ExitKind.FAILED
        assert restarts < max_restarts
    if state.is_stopping:
        assert verdict.step is NextStep.END


# -- back-off ----------------------------------------------------------------------------------------------------------


def test_backoff_doubles_up_to_its_cap_when_failures_go_on() -> None:
    assert [backoff_s(n, 1.0, 20.0) for n in range(8)] == [1, 1, 2, 4, 8, 16, 20, 20]


@given(st.integers(0, 2000), st.floats(0.001, 10), st.floats(0.001, 1000))
def test_backoff_never_shrinks_nor_overflows_when_failures_are_many(failures: int, base: float, cap: float) -> None:
    now, later = backoff_s(failures, base, cap), backoff_s(failures + 1, base, cap)
    assert 0 < now <= later <= cap
