"""The contract of a custom search, and what its runner keeps about the experiment."""

from __future__ import annotations

import abc
import enum
import json
import os
import uuid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from determined.searcher._operations import Operation

STATE_FILE = "state"


class ExitedReason(enum.Enum):
    """Why a trial ended before the search was done with it."""

    ERRORED = "ERRORED"
    USER_CANCELED = "USER_CANCELED"
    INVALID_HP = "INVALID_HP"

    @classmethod
    def of(cls, value: Any) -> ExitedReason:
        """From the cluster's name for it (v1TrialExitedEarlyExitedReason)."""
        name = str(value).replace("EXITED_REASON_", "", 1)
        if name in ("INVALID_HP", "INIT_INVALID_HP"):
            return cls.INVALID_HP
        if name in ("USER_CANCELED", "USER_REQUESTED_STOP"):
            return cls.USER_CANCELED
        return cls.ERRORED


class SearcherState:
    """What a runner knows about the experiment. A search method reads it, and changes nothing in it.

    A method that needs more keeps it itself; see `SearchMethod.save_method_state`.

    Attributes:
        trials_created: Request ids of all trials so far.
        trials_closed: … of those that have ended, however they did.
        trial_progress: How far each has trained, in `searcher.unit`; trials with invalid hyperparameters leave it.
        failures: Request ids of trials that ended in error.
        last_event_id: The last event that was handled; 0 before the first.
        experiment_id: The experiment; None before it exists.
        experiment_completed: It has ended, in state COMPLETED.
        experiment_failed: It has ended, in state ERROR.
    """

    def __init__(self) -> None:
        self.failures: set[uuid.UUID] = set()
        self.trial_progress: dict[uuid.UUID, float] = {}
        self.trials_closed: set[uuid.UUID] = set()
        self.trials_created: set[uuid.UUID] = set()
        self.last_event_id = 0
        self.experiment_id: int | None = None
        self.experiment_completed = False
        self.experiment_failed = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SearcherState) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"SearcherState({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def to_dict(self) -> dict[str, Any]:
        """The state in JSON's types."""
        return {
            "failures": sorted(str(r) for r in self.failures),
            "trialProgress": {str(r): units for r, units in self.trial_progress.items()},
            "trialsClosed": sorted(str(r) for r in self.trials_closed),
            "trialsCreated": sorted(str(r) for r in self.trials_created),
            "lastEventId": self.last_event_id,
            "experimentId": self.experiment_id,
            "experimentCompleted": self.experiment_completed,
            "experimentFailed": self.experiment_failed,
        }

    def from_dict(self, d: dict[str, Any]) -> None:
        """Take over what `to_dict` gave."""
        self.failures = {uuid.UUID(r) for r in d["failures"]}
        self.trial_progress = {uuid.UUID(r): float(units) for r, units in d["trialProgress"].items()}
        self.trials_closed = {uuid.UUID(r) for r in d["trialsClosed"]}
        self.trials_created = {uuid.UUID(r) for r in d["trialsCreated"]}
        self.last_event_id = int(d["lastEventId"])
        self.experiment_id = None if d["experimentId"] is None else int(d["experimentId"])
        self.experiment_completed = bool(d["experimentCompleted"])
        self.experiment_failed = bool(d.get("experimentFailed", False))


class SearchMethod(abc.ABC):
    """A search of your own: subclass it, and hand an instance to a runner.

    The runner calls it for one event after another and never twice at a time. What a handler returns is saved before it
    is posted, together with the state of the method; a runner that died goes on from there. A handler may however run
    again for an event whose answer was never saved, in a method that was loaded anew: keep everything that decides,
    random generators included, in what `save_method_state` writes.

    Nothing ends by itself: trials end by `Close`, the experiment by `Shutdown`.
    """

    @abc.abstractmethod
    def initial_operations(self, searcher_state: SearcherState) -> list[Operation]:
        """The first operations: usually `Create` and `ValidateAfter` for some trials."""

    @abc.abstractmethod
    def on_trial_created(self, searcher_state: SearcherState, request_id: uuid.UUID) -> list[Operation]:
        """A trial was created."""

    @abc.abstractmethod
    def on_validation_completed(
        self, searcher_state: SearcherState, request_id: uuid.UUID, metric: Any, train_length: int
    ) -> list[Operation]:
        """A trial has done a `ValidateAfter`.

        Args:
            searcher_state: The state of the experiment.
            request_id: The trial.
            metric: What the trial reported; NaN and infinities are floats.
            train_length: The length of that `ValidateAfter`.
        """

    @abc.abstractmethod
    def on_trial_closed(self, searcher_state: SearcherState, request_id: uuid.UUID) -> list[Operation]:
        """A trial has ended; it comes exactly once for each, also after `on_trial_exited_early`."""

    @abc.abstractmethod
    def progress(self, searcher_state: SearcherState) -> float:
        """How far the search is, from 0 to 1."""

    @abc.abstractmethod
    def on_trial_exited_early(
        self, searcher_state: SearcherState, request_id: uuid.UUID, exited_reason: ExitedReason
    ) -> list[Operation]:
        """A trial ended, or is about to, although the search was not done with it."""

    def save(self, searcher_state: SearcherState, path: Path, *, experiment_id: int) -> None:
        """Write the state of the experiment and of the method into the folder `path`; runners call it."""
        with open(os.path.join(path, STATE_FILE), "w", encoding="utf-8") as f:
            json.dump({**searcher_state.to_dict(), "experimentId": experiment_id}, f)
        self.save_method_state(path)

    def save_method_state(self, path: Path) -> None:  # noqa: B027 - a method may have no state
        """Write the state of the method into the folder `path`; any names but `state` and `ops`."""

    def load(self, path: Path) -> tuple[SearcherState, int]:
        """Read what `save` wrote.

        Returns:
            The state of the experiment, and the experiment's id.
        """
        with open(os.path.join(path, STATE_FILE), encoding="utf-8") as f:
            values = json.load(f)
        state = SearcherState()
        state.from_dict(values)
        self.load_method_state(path)
        return state, int(values["experimentId"])

    def load_method_state(self, path: Path) -> None:  # noqa: B027 - as above
        """Read what `save_method_state` wrote."""
