"""What a forked experiment takes over: results that trials had before, so that nothing is trained again.

A trial of the fork that takes over another one's point (its heir) is fed that one's results as if it reported them,
in the order in which they came. It runs only when the search wants more of it than is known.
"""

from typing import Any

from workflows.searchers.base import Inherited, State
from workflows.searchers.messages import (
    Create,
    Event,
    ExitReason,
    OperationCompleted,
    TrialClosed,
    TrialExitedEarly,
    ValidationReported,
)
from workflows.searchers.search import Search


class InheritedResult(State):
    """One validation of an inherited trial.

    Attributes:
        order: Rises from result to result of the whole experiment: the order in which they came.
        length: How far the trial was, in the unit of the fork's searcher.
        metrics: What it reported; the searcher's metric is among them.
    """

    order: int
    length: int
    metrics: dict[str, Any]


class InheritedTrial(State):
    """A trial of the forked experiment.

    Attributes:
        request_id: Its request id there.
        hparams: Its hyperparameters.
        trial_id: Its number.
        results: In order of length.
        trained_to: How far it is known to have trained.
        exit_reason: Why it ended early, if it was for a reason of its own: it failed, or its point is invalid.
        is_finished: Whether its own code said that it was done.
    """

    request_id: str
    hparams: dict[str, Any]
    trial_id: int
    results: list[InheritedResult] = []
    trained_to: int = 0
    exit_reason: ExitReason | None = None
    is_finished: bool = False


class Inheritance(State):
    """The book of a fork: which trial took over which, and what is not fed yet.

    Attributes:
        metric: Name of the searcher's metric.
        trials: The inherited trials by their request ids there.
        heirs: Trials that took one over and do not run themselves, by their request ids here.
        fed: Number of results that each heir was fed (events generation).
    """

    metric: str
    trials: dict[str, InheritedTrial]
    heirs: dict[str, str] = {}
    fed: dict[str, int] = {}

    def points(self) -> list[Inherited]:
        """The inherited trials, as the search receives them."""
        return [Inherited(request_id=trial.request_id, hparams=trial.hparams) for trial in self.trials.values()]

    def take(self, action: Create) -> InheritedTrial | None:
        """Note that a new trial takes one over."""
        if action.inherits is None:
            return None
        self.heirs[action.request_id] = action.inherits
        return self.trials[action.inherits]

    def next_event(self, search: Search) -> Event | None:
        """What is known already and the search waits for: the oldest first; None if it has to be trained."""
        best: tuple[int, Event] | None = None
        for heir in self.heirs:
            found = self._next_of(search, heir)
            if found is not None and (best is None or found[0] < best[0]):
                best = found
        if best is None:
            return None
        event = best[1]
        if isinstance(event, ValidationReported):
            self.fed[event.request_id] = self.fed.get(event.request_id, 0) + 1
        elif isinstance(event, TrialClosed):
            del self.heirs[event.request_id]
        return event

    def note(self, event: Event) -> None:
        """Keep the book when what a search was fed before is replayed to it after its end."""
        if isinstance(event, ValidationReported) and event.request_id in self.heirs:
            self.fed[event.request_id] = self.fed.get(event.request_id, 0) + 1
        elif isinstance(event, TrialClosed):
            self.heirs.pop(event.request_id, None)

    def take_runners(self, search: Search) -> list[str]:
        """The heirs that must train on from here, after :meth:`next_event` has no more; they are heirs no longer."""
        runners = [heir for heir in self.heirs if self._must_run(search, heir)]
        for heir in runners:
            del self.heirs[heir]
        return runners

    def _next_of(self, search: Search, heir: str) -> tuple[int, Event] | None:
        view = search.trial(heir)
        inherited = self.trials[self.heirs[heir]]
        last = inherited.results[-1].order if inherited.results else 0
        if view.exit_reason is not None or view.stopped:
            return last, TrialClosed(request_id=heir)
        if search.generation == "events":
            done = self.fed.get(heir, 0)
            if done < len(inherited.results):
                result = inherited.results[done]
                return result.order, ValidationReported(request_id=heir, metrics=result.metrics)
            if inherited.is_finished:
                return last, TrialClosed(request_id=heir)
        else:
            if view.length is None or view.completed:
                return (last, TrialClosed(request_id=heir)) if view.closed else None
            result = self._result_at(inherited, view.length)
            if result is not None:
                metric = result.metrics.get(self.metric)
                return result.order, OperationCompleted(request_id=heir, length=view.length, metric=metric)
        if inherited.exit_reason is not None:
            return last, TrialExitedEarly(request_id=heir, reason=inherited.exit_reason)
        return None

    def _must_run(self, search: Search, heir: str) -> bool:
        view = search.trial(heir)
        return search.generation == "events" or (view.length is not None and not view.completed)

    @staticmethod
    def _result_at(inherited: InheritedTrial, length: int) -> InheritedResult | None:
        """The result that a trial had at a length it has reached: its last validation until then, else the next one."""
        if inherited.trained_to < length:
            return None
        before = (result for result in reversed(inherited.results) if result.length <= length)
        return next(before, inherited.results[0])
