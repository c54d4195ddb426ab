"""Halving that stops trials at rungs, in the ops generation (``stop_once: true``). Source: spec searchers.md §7."""

from typing import Literal

from workflows.searchers.base import INVALID_HP, Frame
from workflows.searchers.decisions import Outcome
from workflows.searchers.halving import Bracket
from workflows.searchers.messages import ExitReason


class StopOnceBracket(Bracket):
    """A trial that is among the best at its rung goes on at once; any other is closed for good."""

    kind: Literal["stop_once"] = "stop_once"

    def completed(self, frame: Frame, request_id: str, metric: float) -> bool:
        """Compare at the rung reached, and at those above it that have the same length."""
        while True:
            rung = self.rung_of[request_id]
            outcome = self.compare(frame, rung, request_id, metric)
            if outcome is not Outcome.GOES_ON:
                frame.close(request_id)
                return True
            self.rung_of[request_id] = rung + 1
            if self.rungs[rung + 1].length != self.rungs[rung].length:
                frame.train_to(request_id, self.rungs[rung + 1].length)
                return False

    def exited(self, frame: Frame, request_id: str, reason: ExitReason) -> bool:
        """A failure leaves the worst result; invalid hyperparameters leave nothing."""
        if frame.trials[request_id].closed:
            return False
        if reason in INVALID_HP:
            self.forget(frame, request_id)
            frame.close(request_id)
        else:
            self.fail(frame, request_id)
        return True
