"""Random search: trials drawn independently, a fixed number in all. Source: spec searchers.md §3."""

import math
from typing import Any, Literal

from workflows.searchers.base import INVALID_HP, Frame, Method, TrialState, check_length, check_raise
from workflows.searchers.messages import Amended, ExitReason


class IndependentTrials(Method):
    """Base of the methods whose trials do not know of each other.

    Attributes:
        total: Trials that are to be run.
        concurrency: Trials at the same time; 0 is all.
        made: Trials created so far, without those whose hyperparameters were invalid.
        done: Trials of those that are over.
    """

    total: int
    concurrency: int
    made: int = 0
    done: int = 0

    @property
    def to_come(self) -> int:
        """What is left of the total."""
        return self.total - self.made

    def start(self, frame: Frame) -> None:
        """Fill all places."""
        self.fill(frame)

    def fill(self, frame: Frame) -> None:
        """Create trials while there are places."""
        running = [trial for _, trial in frame.drawn() if not trial.ended]
        # An invalid trial that is not over yet will be replaced when it is.
        left = self.total - self.made - sum(not self.counts(trial) for trial in running)
        for _ in range(min(left, self.concurrency - len(running)) if self.concurrency else left):
            self.make(frame)

    def make(self, frame: Frame) -> None:
        """Create the next trial; in the ops generation its whole life is known at once."""
        request_id = self.create(frame)
        self.made += 1
        if frame.max_units is not None:
            frame.train_to(request_id, frame.max_units)
            frame.close(request_id)

    def create(self, frame: Frame) -> str:
        """Ask for a trial with drawn hyperparameters."""
        return frame.create()

    def completed(self, frame: Frame, request_id: str, metric: Any) -> None:
        """It trains on if the length was raised meanwhile."""
        self._lengthen(frame, request_id)

    def closed(self, frame: Frame, request_id: str) -> None:
        """The place is free."""
        self.done += self.counts(frame.trials[request_id])
        if self.made < self.total:
            self.make(frame)

    def amend(self, frame: Frame, event: Amended) -> None:
        """More trials, more places, and in the ops generation a longer training for all that are not over."""
        check_raise("max_trials", event.max_trials, self.total)
        if event.max_concurrent_trials != 0:
            check_raise("max_concurrent_trials", event.max_concurrent_trials, self.concurrency or math.inf)
        check_length(frame, event.max_length, frame.max_units or 0)
        self.total = self.total if event.max_trials is None else event.max_trials
        self.concurrency = self.concurrency if event.max_concurrent_trials is None else event.max_concurrent_trials
        if event.max_length is not None:
            frame.max_units = event.max_length
            for request_id, trial in frame.drawn():
                if trial.completed and not trial.is_over:
                    self._lengthen(frame, request_id)
        if frame.trials:
            self.fill(frame)

    def progress(self, frame: Frame) -> float:
        """Mean over all trials that are to be run; trials not created yet count 0, so it never falls when one is."""
        whole = 1.0 if frame.max_units is None else float(frame.max_units)
        return (self.done * whole + frame.open_progress) / (whole * self.total) if whole else 0.0

    @property
    def can_rename(self) -> bool:
        """It knows none of its trials."""
        return True

    def counts(self, trial: TrialState) -> bool:
        """Whether a trial is one of the total."""
        return True

    def _lengthen(self, frame: Frame, request_id: str) -> None:
        if frame.max_units is not None and frame.trials[request_id].length != frame.max_units:
            frame.train_to(request_id, frame.max_units)


class RandomSearch(IndependentTrials):
    """Trials with drawn hyperparameters; a trial with invalid ones is replaced."""

    kind: Literal["random"] = "random"

    def exited(self, frame: Frame, request_id: str, reason: ExitReason) -> None:
        """Invalid hyperparameters do not count; the replacement follows when the trial is closed."""
        if reason in INVALID_HP:
            self.made -= 1

    def counts(self, trial: TrialState) -> bool:
        """Not if another one takes its place."""
        return trial.exit_reason not in INVALID_HP
