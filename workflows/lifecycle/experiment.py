"""States of an experiment and the transitions between them, as data.

Source: spec scheduling.md §5. Nobody sets an experiment's state elsewhere: the workflow asks `next_state`.
"""

from __future__ import annotations

from enum import StrEnum


class ExperimentState(StrEnum):
    """The stored states. QUEUED, PULLING, STARTING and RUNNING are shown instead of ACTIVE, never stored."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    STOPPING_COMPLETED = "STOPPING_COMPLETED"
    STOPPING_CANCELED = "STOPPING_CANCELED"
    STOPPING_KILLED = "STOPPING_KILLED"
    STOPPING_ERROR = "STOPPING_ERROR"
    COMPLETED = "COMPLETED"
    CANCELED = "CANCELED"
    ERROR = "ERROR"
    DELETING = "DELETING"
    DELETED = "DELETED"
    DELETE_FAILED = "DELETE_FAILED"

    @property
    def is_terminal(self) -> bool:
        """Whether nothing runs any more and nothing will."""
        return self in TERMINAL

    @property
    def is_stopping(self) -> bool:
        """Whether the end is decided and only the running trials are waited for."""
        return self in FINAL_STATE


_S = ExperimentState

TERMINAL = frozenset({_S.COMPLETED, _S.CANCELED, _S.ERROR, _S.DELETING, _S.DELETED, _S.DELETE_FAILED})

#: The terminal state that each stopping state ends in.
FINAL_STATE: dict[ExperimentState, ExperimentState] = {
    _S.STOPPING_COMPLETED: _S.COMPLETED,
    _S.STOPPING_CANCELED: _S.CANCELED,
    _S.STOPPING_KILLED: _S.CANCELED,
    _S.STOPPING_ERROR: _S.ERROR,
}

_STOPPING = frozenset(FINAL_STATE)

#: Allowed transitions. STOPPING_COMPLETED -> STOPPING_KILLED is ours: a kill must end an experiment that hangs. A
#: terminal state is ACTIVE again by "continue" only.
TRANSITIONS: dict[ExperimentState, frozenset[ExperimentState]] = {
    _S.ACTIVE: frozenset({_S.PAUSED, _S.ERROR}) | _STOPPING,
    _S.PAUSED: frozenset({_S.ACTIVE, _S.ERROR}) | _STOPPING,
    _S.STOPPING_CANCELED: frozenset({_S.CANCELED, _S.STOPPING_KILLED, _S.STOPPING_ERROR, _S.ERROR}),
    _S.STOPPING_KILLED: frozenset({_S.CANCELED, _S.STOPPING_ERROR, _S.ERROR}),
    _S.STOPPING_COMPLETED: frozenset({_S.COMPLETED, _S.STOPPING_KILLED, _S.STOPPING_ERROR, _S.ERROR}),
    _S.STOPPING_ERROR: frozenset({_S.ERROR, _S.STOPPING_KILLED}),
    _S.CANCELED: frozenset({_S.DELETING, _S.ACTIVE}),
    _S.COMPLETED: frozenset({_S.DELETING, _S.ACTIVE}),
    _S.ERROR: frozenset({_S.DELETING, _S.ACTIVE}),
    _S.DELETING: frozenset({_S.DELETED, _S.DELETE_FAILED}),
    _S.DELETED: frozenset(),
    _S.DELETE_FAILED: frozenset({_S.DELETING}),
}


#: States that an experiment may go on from: it is ACTIVE again, which no command of a running one leads to.
CONTINUABLE = frozenset({_S.COMPLETED, _S.CANCELED, _S.ERROR})


class Command(StrEnum):
    """What a user may ask of a running experiment."""

    ACTIVATE = "activate"
    PAUSE = "pause"
    CANCEL = "cancel"
    KILL = "kill"


_TARGET: dict[Command, ExperimentState] = {
    Command.ACTIVATE: _S.ACTIVE,
    Command.PAUSE: _S.PAUSED,
    Command.CANCEL: _S.STOPPING_CANCELED,
    Command.KILL: _S.STOPPING_KILLED,
}


class CommandRefused(Exception):
    """A command that can't apply in the present state. The text says why; nothing was changed."""


def next_state(state: ExperimentState, command: Command) -> ExperimentState:
    """The state that `command` leads to; `state` itself when it has no effect.

    Raises: CommandRefused.
    """
    target = _TARGET[command]
    if state is target:
        return state
    if state.is_terminal:
        if command in (Command.CANCEL, Command.KILL):
            return state
        raise CommandRefused(f"experiment in terminal state {state}: it can't be {_PAST[command]}")
    if target in TRANSITIONS[state]:
        return target
    if command is Command.CANCEL:
        return state
    raise CommandRefused(f"experiment in incompatible state {state}: it can't be {_PAST[command]}")


_PAST = {
    Command.ACTIVATE: "activated",
    Command.PAUSE: "paused",
    Command.CANCEL: "canceled",
    Command.KILL: "killed",
}
