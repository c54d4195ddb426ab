"""What a search would still do from where it stands: all of it simulated, nothing decided. Pure: the search is copied.

Trials train side by side at one speed. How well they will do is not known. A trial that was compared keeps its value,
others do as well as those that were compared so far, evenly spread. So the number of trials is sure, what each of them
trains is an estimate.
"""

import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from workflows.searchers.async_halving import Brackets
from workflows.searchers.base import RungView
from workflows.searchers.custom import CustomSearch
from workflows.searchers.messages import (
    Action,
    Amended,
    Ask,
    Close,
    Create,
    Event,
    OperationCompleted,
    Started,
    Stop,
    Suggested,
    TrainTo,
    TrialClosed,
    ValidationReported,
)
from workflows.searchers.search import Search
from workflows.searchers.space import sample
from workflows.searchers.values import SearchError

#: Events of one simulation. A search that is larger is followed so far only.
MOST_EVENTS = 20_000
#: Steps of this size, taken modulo one, spread evenly however many there are.
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class RungForecast:
    """A rung in the end, by the number of trials.

    Attributes:
        compared: Trials that are compared there.
        promoted: Those of them that go on.
    """

    bracket: int
    rung: int
    length: int
    compared: int
    promoted: int


@dataclass(frozen=True)
class Forecast:
    """What is still to come.

    Attributes:
        trained: Units that were trained until now.
        total: Trials in the end, those that there are included.
        new: Those of them that are still to be created.
        promotions: Comparisons from which a trial will go on.
        units: What all of them will still train, in the unit of the search's length; None if their code alone decides.
        longest: How long that takes, in the same unit, if every trial gets its slots at once.
        at_once: The most trials that train at the same time.
        rungs: All rungs in the end.
        is_whole: Whether the simulation came to the end.
    """

    trained: float
    total: int
    new: int
    promotions: int
    units: float | None
    longest: float | None
    at_once: int
    rungs: list[RungForecast]
    is_whole: bool


def forecast(
    search: Search,
    trained: Mapping[str, float] | None = None,
    change: Amended | None = None,
    *,
    most: int = MOST_EVENTS,
) -> Forecast:
    """Simulate the rest of a search, by a copy of it.

    Args:
        search: As it stands.
        trained: By request id, how far each trial is, in the unit of the length.
        change: What is changed before it goes on.
        most: Events to follow.

    Raises:
        SearchError: The change can't be made, or a program of the user's decides.
    """
    if isinstance(search.method, CustomSearch):
        raise SearchError("what a custom search will do cannot be known: its own program decides")
    run = _Run(search.model_copy(deep=True), dict(trained or {}))
    return run.to_the_end(change, most)


@dataclass
class _Run:
    """A simulation under way.

    Attributes:
        search: The copy that decides.
        at: Where each trial is, in the unit of the length.
        due: (time, number, trial, length) of what each trial reaches next, as a heap; a length of None: it is over.
        training: The trials that train.
        known: The value of each trial that has one, real or made up.
        seen: The real ones, ascending.
        made_up: Number of the others.
    """

    search: Search
    at: dict[str, float]
    now: float = 0.0
    units: float = 0.0
    at_once: int = 0
    count: int = 0
    pushed: int = 0
    due: list[tuple[float, int, str, int | None]] = field(default_factory=list[tuple[float, int, str, int | None]])
    training: set[str] = field(default_factory=set[str])
    known: dict[str, float] = field(default_factory=dict[str, float])
    seen: list[float] = field(default_factory=list[float])
    made_up: int = 0

    def to_the_end(self, change: Amended | None, most: int) -> Forecast:
        search = self.search
        for rung in search.rungs():
            self.known |= {request_id: value for request_id, value, _ in rung.entries if math.isfinite(value)}
        self.seen = sorted(self.known.values())
        before, promoted = len(search.frame.trials), _promoted(search.rungs())
        for request_id, trial in search.frame.trials.items():
            reached = trial.length if trial.completed else max(trial.earlier_lengths, default=0)
            self.at[request_id] = max(self.at.get(request_id, 0.0), float(reached or 0))
            if not trial.ended:
                self._go_on(request_id)
        trained = sum(self.at.values())
        if change is not None:
            self._tell(change)
        if not search.is_started:
            self._tell(Started())
        while self.due and self.count < most and search.shutdown is None:
            self._next()
        rungs = search.rungs()
        has_lengths = search.generation == "ops" or isinstance(search.method, Brackets)
        return Forecast(
            trained=trained,
            total=len(search.frame.trials),
            new=len(search.frame.trials) - before,
            promotions=_promoted(rungs) - promoted,
            units=self.units if has_lengths else None,
            longest=self.now if has_lengths else None,
            at_once=self.at_once,
            rungs=[_rung(view) for view in rungs],
            is_whole=not self.due or search.shutdown is not None,
        )

    def _next(self) -> None:
        time, _, request_id, length = heapq.heappop(self.due)
        trial = self.search.frame.trials[request_id]
        self.count += 1
        if trial.ended or (length is not None and request_id not in self.training):
            return
        if length is not None and self.search.generation == "ops" and (trial.length != length or trial.completed):
            return  # it was given another length on its way
        self.now = max(self.now, time)
        self.training.discard(request_id)
        if length is None:
            self._tell(TrialClosed(request_id=request_id))
            return
        self.units += max(length - self.at[request_id], 0.0)
        self.at[request_id] = float(length)
        value = self._value(request_id)
        if self.search.generation == "ops":
            self._tell(OperationCompleted(request_id=request_id, length=length, metric=value))
        else:
            method = self.search.method
            assert isinstance(method, Brackets)
            self._tell(
                ValidationReported(
                    request_id=request_id, metrics={method.metric: value, method.time_metric or "": length}
                )
            )
        if not self.search.frame.trials[request_id].ended:
            self._go_on(request_id)

    def _tell(self, event: Event) -> None:
        self._carry_out(self.search.handle(event))
        self.search.frame.take_verdicts()

    def _carry_out(self, actions: Iterable[Action]) -> None:
        touched: dict[str, None] = {}
        for action in actions:
            if isinstance(action, Create):
                # a copy in population based training goes on where its parent was
                self.at[action.request_id] = self.at.get(action.parent or "", 0.0)
                touched[action.request_id] = None
            elif isinstance(action, TrainTo | Close | Stop):
                touched[action.request_id] = None
            elif isinstance(action, Ask):
                point = sample(self.search.frame.space, self.search.frame.rng)
                self._tell(Suggested(number=action.number, hparams=point))
        for request_id in touched:
            self._go_on(request_id)

    def _go_on(self, request_id: str) -> None:
        """Note what a trial reaches next; one that waits for a promotion reaches nothing."""
        trial = self.search.frame.trials[request_id]
        if trial.ended:
            return
        length = self._next_length(request_id)
        if length is not None:
            self.training.add(request_id)
            self.at_once = max(self.at_once, len(self.training))
            self._push(self.now + max(length - self.at[request_id], 0.0), request_id, length)
        elif trial.closed or trial.stopped or trial.exit_reason is not None or self.search.generation == "events":
            self._push(self.now, request_id, None)

    def _next_length(self, request_id: str) -> int | None:
        trial = self.search.frame.trials[request_id]
        if trial.stopped or trial.exit_reason is not None:
            return None
        if self.search.generation == "ops":
            return trial.length if trial.owes_result else None
        method = self.search.method
        if not isinstance(method, Brackets):
            return None
        bracket = next(each for each in method.brackets if request_id in each.rung_of)
        return next((rung.length for rung in bracket.rungs if rung.length > self.at[request_id]), None)

    def _push(self, time: float, request_id: str, length: int | None) -> None:
        self.pushed += 1  # of two at the same time the one that was noted first
        heapq.heappush(self.due, (time, self.pushed, request_id, length))

    def _value(self, request_id: str) -> float:
        if request_id not in self.known:
            self.made_up += 1
            place = self.made_up * _GOLDEN % 1
            self.known[request_id] = self.seen[int(place * len(self.seen))] if self.seen else place
        return self.known[request_id]


def _promoted(rungs: Iterable[RungView]) -> int:
    return sum(went_on for rung in rungs for _, _, went_on in rung.entries)


def _rung(view: RungView) -> RungForecast:
    return RungForecast(
        bracket=view.bracket,
        rung=view.rung,
        length=view.length,
        compared=len(view.entries),
        promoted=sum(went_on for _, _, went_on in view.entries),
    )
