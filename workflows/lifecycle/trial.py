"""States of a trial, and what it does with the end of its allocation. Source: spec scheduling.md §6 and §8."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from workflows.lifecycle.allocation import AllocationEnd, ExitKind


class TrialState(StrEnum):
    """The stored states of a trial. QUEUED, PULLING, STARTING and RUNNING are derived from its allocation."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    STOPPING_COMPLETED = "STOPPING_COMPLETED"
    STOPPING_CANCELED = "STOPPING_CANCELED"
    STOPPING_KILLED = "STOPPING_KILLED"
    STOPPING_ERROR = "STOPPING_ERROR"
    COMPLETED = "COMPLETED"
    CANCELED = "CANCELED"
    ERROR = "ERROR"

    @property
    def is_terminal(self) -> bool:
        """Whether the trial has ended for good."""
        return self in (TrialState.COMPLETED, TrialState.CANCELED, TrialState.ERROR)

    @property
    def is_stopping(self) -> bool:
        """Whether its end is decided, and only its containers are waited for."""
        return self in FINAL_STATE


FINAL_STATE: dict[TrialState, TrialState] = {
    TrialState.STOPPING_COMPLETED: TrialState.COMPLETED,
    TrialState.STOPPING_CANCELED: TrialState.CANCELED,
    TrialState.STOPPING_KILLED: TrialState.CANCELED,
    TrialState.STOPPING_ERROR: TrialState.ERROR,
}

_T = TrialState
_STOPPING = frozenset(FINAL_STATE)

#: Allowed transitions. A stopping trial only goes on to a more severe end; a terminal one is ACTIVE again when its
#: experiment continues. Any end may turn out to be an error, and a trial may end by itself, whatever was wanted of it.
TRANSITIONS: dict[TrialState, frozenset[TrialState]] = {
    _T.ACTIVE: frozenset({_T.PAUSED, _T.COMPLETED, _T.ERROR}) | _STOPPING,
    _T.PAUSED: frozenset({_T.ACTIVE, _T.COMPLETED, _T.ERROR}) | _STOPPING,
    _T.STOPPING_COMPLETED: frozenset({_T.COMPLETED, _T.ERROR}) | (_STOPPING - {_T.STOPPING_COMPLETED}),
    _T.STOPPING_CANCELED: frozenset({_T.CANCELED, _T.ERROR, _T.STOPPING_KILLED, _T.STOPPING_ERROR}),
    _T.STOPPING_KILLED: frozenset({_T.CANCELED, _T.ERROR, _T.STOPPING_ERROR}),
    _T.STOPPING_ERROR: frozenset({_T.ERROR}),
    _T.COMPLETED: frozenset({_T.ACTIVE}),
    _T.CANCELED: frozenset({_T.ACTIVE}),
    _T.ERROR: frozenset({_T.ACTIVE}),
}


def accepts(state: TrialState, wanted: TrialState) -> bool:
    """Whether a trial in `state` takes the request to become `wanted`. A refused request is ignored, never an error."""
    if state.is_terminal or wanted.is_terminal:
        return False
    return wanted in TRANSITIONS[state] or (wanted is state and not state.is_stopping)


class NextStep(StrEnum):
    """What a trial does after an allocation ended."""

    END = "end"  # in the state that comes with it
    RUN_AGAIN = "run_again"  # at once, or when it has work and is not paused
    RESTART = "restart"  # after a back-off; spends one of max_restarts
    RETRY = "retry"  # after a back-off; spends nothing
    ADJUST = "adjust"  # after a back-off, with what a failure policy changes; spends nothing


class Verdict(BaseModel):
    """The step after an allocation's end, and when the step is END, the state and the reason told to the searcher."""

    model_config = ConfigDict(frozen=True)

    step: NextStep
    state: TrialState | None = None
    exit_reason: str | None = None  # searchers.ExitReason, None when the searcher closed the trial itself
    message: str = ""


#: System failures in a row after which a trial is given up: something is wrong that waiting doesn't mend.
MAX_SYSTEM_FAILURES = 10


def judge(
    end: AllocationEnd,
    *,
    state: TrialState,
    closed_by_searcher: bool,
    early_exit: str | None,
    restarts: int,
    max_restarts: int,
    system_failures: int,
    retries_canceled: str | None = None,
    same_failures: int = 1,
    remedy: str | None = None,
) -> Verdict:
    """What a trial does with the end of its allocation; the first rule that matches decides (scheduling.md §8).

    Args:
        end: the classified end.
        state: the trial's state when its last container ended.
        closed_by_searcher: the searcher wants nothing more of it.
        early_exit: what the harness reported, `invalid_hp` or `init_invalid_hp`.
        restarts: spent before this end.
        max_restarts: of the experiment's configuration.
        system_failures: in a row, this one included if it is one.
        retries_canceled: which log policy says that a failure is final, and because of which line; None: none does.
        same_failures: how often in a row it failed in this very way, this end included; only for ends that the same
            code will have again (`is_repeatable`).
        remedy: what a failure policy has its next run try, as a sentence; None: nothing.
    """
    bad = end.kind in (ExitKind.FAILED, ExitKind.FATAL)
    if state.is_stopping:
        final = TrialState.ERROR if bad else FINAL_STATE[state]
        reason = _stop_reason(final, early_exit, closed_by_searcher)
        return Verdict(step=NextStep.END, state=final, exit_reason=reason, message=end.message if bad else "")
    if closed_by_searcher and end.kind is not ExitKind.SYSTEM:
        if bad:
            return Verdict(step=NextStep.END, state=TrialState.ERROR, exit_reason="errored", message=end.message)
        return Verdict(step=NextStep.END, state=TrialState.COMPLETED)
    if end.kind is ExitKind.FATAL:
        return Verdict(step=NextStep.END, state=TrialState.ERROR, exit_reason="errored", message=end.message)
    if early_exit is not None and end.kind is not ExitKind.SYSTEM:
        return Verdict(step=NextStep.END, state=TrialState.COMPLETED, exit_reason=early_exit)
    if end.kind is ExitKind.SYSTEM:
        if system_failures > MAX_SYSTEM_FAILURES:
            message = f"given up after {system_failures} failures of the cluster in a row, the last: {end.message}"
            return Verdict(step=NextStep.END, state=TrialState.ERROR, exit_reason="errored", message=message)
        return Verdict(step=NextStep.RETRY, message=end.message)
    if end.kind is ExitKind.FAILED:
        message = end.message
        if retries_canceled is not None:
            message = f"not restarted, as {retries_canceled}: {message}"
            return Verdict(step=NextStep.END, state=TrialState.ERROR, exit_reason="errored", message=message)
        if remedy is not None:
            return Verdict(step=NextStep.ADJUST, message=f"{message}; {remedy}")
        if restarts >= max_restarts:
            message = f"trial exceeded max restarts ({max_restarts}): {message}"
            return Verdict(step=NextStep.END, state=TrialState.ERROR, exit_reason="errored", message=message)
        if same_failures > 1:
            message = f"not restarted, as it failed in this way {same_failures} times in a row: {message}"
            return Verdict(step=NextStep.END, state=TrialState.ERROR, exit_reason="errored", message=message)
        return Verdict(step=NextStep.RESTART, message=message)
    if end.kind is ExitKind.FINISHED:
        return Verdict(step=NextStep.END, state=TrialState.COMPLETED, exit_reason="user_requested_stop")
    return Verdict(step=NextStep.RUN_AGAIN)


def _stop_reason(final: TrialState, early_exit: str | None, closed_by_searcher: bool) -> str | None:
    if final is TrialState.CANCELED:
        return "user_canceled"
    if final is TrialState.ERROR:
        return "errored"
    return early_exit if not closed_by_searcher else None
