"""Halving that stops trials while they train: the events generation. Source: spec searchers.md §6.

Determined's faults that are not copied: a stopped trial is asked to stop, its later reports and its exit change
nothing, and a trial that ends by itself frees its place.
"""

from typing import Literal

from workflows.searchers.base import INVALID_HP, Frame
from workflows.searchers.decisions import Outcome
from workflows.searchers.halving import Bracket
from workflows.searchers.messages import ExitReason


class StoppingBracket(Bracket):
    """Each report is compared at every rung it has reached; a trial that is not among the best there is stopped."""

    kind: Literal["stopping"] = "stopping"

    def validated(self, frame: Frame, request_id: str, metric: float, time: int) -> bool:
        """Compare at each rung reached and not compared at before; the first in a rung always goes on."""
        for rung in range(self.rung_of[request_id], len(self.rungs)):
            self.rung_of[request_id] = rung
            if time < self.rungs[rung].length:
                return False
            if self.compare(frame, rung, request_id, metric) is not Outcome.GOES_ON:
                break
        frame.stop(request_id)
        return True

    def exited(self, frame: Frame, request_id: str, reason: ExitReason) -> bool:
        """A failure counts as the worst result where it happened; invalid hyperparameters never happened."""
        if frame.trials[request_id].stopped:
            return False
        if reason in INVALID_HP:
            self.forget(frame, request_id)
            frame.stop(request_id)
        else:
            self.fail(frame, request_id)
        return True

    def closed(self, frame: Frame, request_id: str) -> bool:
        """A trial that was neither stopped nor failed has ended by itself; its place is free only now."""
        self.done += 1
        trial = frame.trials[request_id]
        return not trial.stopped and trial.exit_reason is None
