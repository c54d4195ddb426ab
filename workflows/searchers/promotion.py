"""Halving that pauses trials at rungs and promotes the best: the ops generation's default.

Source: spec searchers.md §7.
"""

from typing import Literal

from workflows.searchers.base import INVALID_HP, WORST, Frame, TrialState
from workflows.searchers.decisions import Outcome
from workflows.searchers.halving import Bracket, Entry
from workflows.searchers.messages import ExitReason


class PromotionBracket(Bracket):
    """A trial waits at its rung until it is among the best there, or until nobody can change the ranking any more.

    Attributes:
        swept: For each rung, its number of results when its losers were closed, -1 if that has not happened.
    """

    kind: Literal["promotion"] = "promotion"
    swept: list[int] = []

    def keep(self, results: int) -> int:
        """Nobody has to go on at once: who waits may be promoted later."""
        return self.survivors(results)

    def completed(self, frame: Frame, request_id: str, metric: float) -> bool:
        """A result: promote the trial that it brought among the best, else the place is free."""
        is_taken = self._trains_on(frame, request_id, metric)
        return not (self.raised(frame, request_id) or is_taken)

    def raised(self, frame: Frame, request_id: str) -> bool:
        """It leaves its rung as if it were among the best there; those that are stay so."""
        trial, rung = frame.trials[request_id], self.rung_of[request_id]
        if not self.is_lifted(request_id, rung) or trial.owes_result or trial.is_over or trial.closed:
            return False
        place = next(place for place, entry in enumerate(self.rungs[rung].entries) if entry.request_id == request_id)
        metric = self.rungs[rung].entries[place].metric
        self.judge(frame, rung, place, Outcome.PROMOTED)
        self.rung_of[request_id] = rung + 1
        self.rungs[rung + 1].outstanding += 1
        if self.rungs[rung + 1].length != self.rungs[rung].length:
            frame.train_to(request_id, self.rungs[rung + 1].length)
            return True
        return self._trains_on(frame, request_id, metric) or self.raised(frame, request_id)

    def exited(self, frame: Frame, request_id: str, reason: ExitReason) -> bool:
        """A failure is the worst result; invalid hyperparameters never happened."""
        trial = frame.trials[request_id]
        if trial.closed:
            return False
        if reason in INVALID_HP:
            for rung in self.forget(frame, request_id):
                self._sweep_again(rung)
            if trial.owes_result:
                self.rungs[self.rung_of[request_id]].outstanding -= 1
            frame.close(request_id)
            return True
        # A paused trial has its result already, and holds no place.
        return trial.owes_result and not self._trains_on(frame, request_id, WORST)

    def may_retire(self, trial: TrialState) -> bool:
        """One that failed may still be promoted, to be the worst of the next rung."""
        return trial.closed

    def settle(self, frame: Frame, request_id: str) -> None:
        """Once all first results are in, close the losers of every rung that nobody is on the way to."""
        if len(self.rungs[0].entries) < self.max_trials:
            return
        if not self.swept:
            self.swept = [-1] * len(self.rungs)
        for index, rung in enumerate(self.rungs):
            if rung.outstanding > 0:
                return
            if self.swept[index] == len(rung.entries):
                continue
            self.swept[index] = len(rung.entries)
            for place, entry in enumerate(rung.entries):
                if self.went_on(entry, index):
                    continue
                trial = frame.trials[entry.request_id]
                if not (trial.is_over or trial.closed):
                    frame.close(entry.request_id)
                    self.judge(frame, index, place, Outcome.STOPPED, because_of=request_id)

    def _sweep_again(self, rung: int) -> None:
        # Its number of results will rise to what it was, but they are not the same ones.
        if self.swept:
            self.swept[rung] = -1

    def _trains_on(self, frame: Frame, request_id: str, metric: float) -> bool:
        """Record a result and what follows from it; whether a trial got a new length by it.

        A promoted trial that has failed meanwhile, or whose next rung has the same length, has its result there at
        once, which may promote a further trial. It is a loop because that chain can be long.
        """
        while True:
            rung = self.rung_of[request_id]
            self.rungs[rung].outstanding -= 1
            entry = self._promotable(frame, rung, request_id, metric)
            if entry is None:
                return False
            request_id = entry.request_id
            self.rung_of[request_id] = rung + 1
            self.rungs[rung + 1].outstanding += 1
            if frame.trials[request_id].is_over:
                metric = WORST
            elif self.rungs[rung + 1].length == self.rungs[rung].length:
                metric = entry.metric
            else:
                frame.train_to(request_id, self.rungs[rung + 1].length)
                return True

    def _promotable(self, frame: Frame, rung: int, request_id: str, metric: float) -> Entry | None:
        """Record a result in a rung; the entry that goes up because of it, if any."""
        entries = self.rungs[rung].entries
        is_over = frame.trials[request_id].is_over
        old, new = self.survivors(len(entries)), self.survivors(len(entries) + 1)
        # After equal ones: a tie goes to the trial that was there first.
        place = self.record(rung, request_id, metric, before_equal=False)
        if rung == self.top:
            self.judge(frame, rung, place, Outcome.FAILED if is_over else Outcome.FINISHED)
            if not is_over:
                frame.close(request_id)
            return None
        if place < new:
            self.judge(frame, rung, place, Outcome.GOES_ON)
            return entries[place]
        self.judge(frame, rung, place, Outcome.FAILED if is_over else Outcome.WAITS)
        if new == old or self.went_on(entries[old], rung) or frame.trials[entries[old].request_id].closed:
            return None
        self.judge(frame, rung, old, Outcome.PROMOTED, because_of=request_id)
        return entries[old]
