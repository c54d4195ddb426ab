"""What all kinds of asynchronous halving share: rungs, the book of one bracket, and the deal between brackets.

Li et al., "A System for Massively Parallel Hyperparameter Tuning", 2020: the reduction factor η is `divisor`, R is
the top rung's length, a rung k of bracket s is compared at R / η^(K-k).  Source: spec searchers.md §5-§8.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from pydantic import (
    PrivateAttr,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidatorFunctionWrapHandler,
    field_serializer,
    field_validator,
)
from typing_extensions import TypedDict

from workflows.searchers.base import MANY, WORST, Frame, RungView, State, TrialState
from workflows.searchers.decisions import Outcome, Verdict
from workflows.searchers.messages import ExitReason
from workflows.searchers.values import MetricValue, sort_key

Number = int | float


@lru_cache(maxsize=64)  # asked for at each result, and a fraction of text is slow to make
def exact(value: Number) -> Fraction:
    """The number as it was written: 1.1 means 11/10, not the nearest binary fraction."""
    return Fraction(value) if isinstance(value, int) else Fraction(repr(value))


def rung_lengths(max_length: int, divisor: Number, num_rungs: int) -> list[int]:
    """Where trials are compared, lowest rung first; neighbours can be equal when `max_length` is small."""
    factor = exact(divisor)
    lengths: list[int] = []
    left = Fraction(max_length)
    for _ in range(num_rungs):
        lengths.append(max(int(left), 1))
        if left >= 1:
            left /= factor  # below 1 every further rung is at 1, and the fractions would only grow
    return lengths[::-1]


def floor_log(value: int, divisor: Number) -> int:
    """The largest k with divisor**k <= value, for value >= 1; exact, unlike a quotient of logarithms."""
    factor, power, k = exact(divisor), Fraction(1), 0
    while power * factor <= value:
        power *= factor
        k += 1
    return k


#: The request id of entries whose trial is retired.
RETIRED = ""


class Entry(NamedTuple):
    """A result in a rung."""

    request_id: str
    metric: MetricValue


class _Columns(TypedDict):
    """Many entries."""

    ids: list[str]
    metrics: list[float]  # words for NaN and infinity are read, too


_COLUMNS = TypeAdapter(_Columns)


class Rung(State):
    """Results at one length, best first.

    Attributes:
        length: Where trials are compared.
        entries: The results.
        outstanding: Trials on their way to this rung; kept by promotion only.
    """

    length: int
    entries: list[Entry] = []
    outstanding: int = 0
    # Where to look for a trial that has to go; made when the first one has to, which is rare.
    _metric_of: dict[str, float] | None = PrivateAttr(default=None)

    def insert(self, entry: Entry, *, smaller_is_better: bool, before_equal: bool) -> int:
        """Put a result in its place and return the place, from 0."""
        place = self._place_for(entry.metric, smaller_is_better=smaller_is_better, before_equal=before_equal)
        self.entries.insert(place, entry)
        if self._metric_of is not None:
            self._metric_of[entry.request_id] = entry.metric
        return place

    def remove(self, request_id: str, *, smaller_is_better: bool) -> bool:
        """Forget a trial's result; whether there was one."""
        if self._metric_of is None:
            self._metric_of = dict(self.entries)
        metric = self._metric_of.pop(request_id, None)
        if metric is None:
            return False
        place = self._place_for(metric, smaller_is_better=smaller_is_better, before_equal=True)
        while self.entries[place].request_id != request_id:
            place += 1  # along the equal ones
        del self.entries[place]
        return True

    @field_serializer("entries", mode="wrap")
    def _write_columns(self, entries: list[Entry], handler: SerializerFunctionWrapHandler) -> Any:
        if len(entries) < MANY:
            return handler(entries)
        return {"ids": [entry[0] for entry in entries], "metrics": [entry[1] for entry in entries]}

    @field_validator("entries", mode="wrap")
    @classmethod
    def _read_columns(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> list[Entry]:
        if not isinstance(value, dict):
            return handler(value)
        columns = _COLUMNS.validate_python(value)
        return [Entry._make(pair) for pair in zip(columns["ids"], columns["metrics"], strict=True)]

    def rename(self, names: Mapping[str, str]) -> None:
        """As `Method.rename`."""
        self.entries = [
            entry if entry[0] == RETIRED else Entry(names.get(entry[0], RETIRED), entry[1]) for entry in self.entries
        ]
        self._metric_of = None

    def _place_for(self, metric: float, *, smaller_is_better: bool, before_equal: bool) -> int:
        def key(item: Entry) -> tuple[int, float]:
            return sort_key(item.metric, smaller_is_better=smaller_is_better)

        bisect = bisect_left if before_equal else bisect_right
        return bisect(self.entries, sort_key(metric, smaller_is_better=smaller_is_better), key=key)


class Bracket(State):
    """One successive halving. Subclasses add ``kind`` and decide who goes on.

    Every method that takes an event returns whether a place became free that a new trial should take.

    Attributes:
        number: Counts the brackets of a search, from 0.
        divisor: One trial in this many goes on.
        max_trials: Trials to be run, those with invalid hyperparameters not counted.
        concurrency: Trials created at the start, at least 1.
        smaller_is_better: Direction of the metric.
        rungs: Lowest first.
        rung_of: For each trial of this bracket, the rung that its next result counts for; it went on from those below.
        created, invalid, done: Trials asked for, found invalid, over.
        lifted: By trial the rung below which it goes on whatever its result, as a user wants.
    """

    number: int = 0
    divisor: Number
    max_trials: int
    concurrency: int
    smaller_is_better: bool
    rungs: list[Rung]
    rung_of: dict[str, int] = {}
    created: int = 0
    invalid: int = 0
    done: int = 0
    lifted: dict[str, int] = {}

    @property
    def room(self) -> int:
        """Trials that are left to be created; negative when invalid ones were replaced too often."""
        return self.max_trials - (self.created - self.invalid)

    @property
    def top(self) -> int:
        """Number of the last rung."""
        return len(self.rungs) - 1

    def create(self, frame: Frame) -> str:
        """Ask for a trial and give it its first length, if lengths are given at all."""
        request_id = frame.create()
        self.created += 1
        self.rung_of[request_id] = 0
        self.rungs[0].outstanding += 1
        if frame.generation == "ops":
            frame.train_to(request_id, self.rungs[0].length)
        return request_id

    def validated(self, frame: Frame, request_id: str, metric: float, time: int) -> bool:
        """A validation after `time` units of the time metric (events generation)."""
        return False

    def completed(self, frame: Frame, request_id: str, metric: float) -> bool:
        """The length of the trial's rung was reached (ops generation)."""
        return False

    def exited(self, frame: Frame, request_id: str, reason: ExitReason) -> bool:
        """The trial ended early."""
        raise NotImplementedError

    def closed(self, frame: Frame, request_id: str) -> bool:
        """The trial is over."""
        self.done += 1
        return False

    def is_lifted(self, request_id: str, rung: int) -> bool:
        """Whether a trial goes on from a rung whatever its result."""
        return self.lifted.get(request_id, 0) > rung

    def raised(self, frame: Frame, request_id: str) -> bool:
        """Send a trial on that waits at a rung which it is to pass; whether it got a new length by it."""
        return False

    def settle(self, frame: Frame, request_id: str) -> None:
        """Called after every event, with the trial that it was about: release trials that can no longer go on."""

    def may_retire(self, trial: TrialState) -> bool:
        """Whether nothing asks any more who left the results of a trial that is over."""
        return True

    def rename(self, names: Mapping[str, str]) -> None:
        """As `Method.rename`."""
        self.rung_of = {names[key]: rung for key, rung in self.rung_of.items() if key in names}
        self.lifted = {names[key]: rung for key, rung in self.lifted.items() if key in names}
        for rung in self.rungs:
            rung.rename(names)

    def progress(self) -> float:
        """Share of the results of the lowest rung, and of closed trials once that rung is full."""
        reached = len(self.rungs[0].entries)
        share = reached / (1.2 * self.max_trials)
        if reached == self.max_trials:
            share = max(share, (self.done - self.invalid) / self.max_trials)
        return share

    def views(self, most: int | None = None) -> list[RungView]:
        """The rungs for people, with at most `most` of the trials of each."""
        return [
            RungView(
                bracket=self.number,
                rung=index,
                length=rung.length,
                results=len(rung.entries),
                entries=[(e.request_id, e.metric, self.went_on(e, index)) for e in rung.entries[:most]],
            )
            for index, rung in enumerate(self.rungs)
        ]

    def survivors(self, results: int) -> int:
        """How many of that many results go on, rounded down."""
        factor = exact(self.divisor)
        return results * factor.denominator // factor.numerator

    def keep(self, results: int) -> int:
        """How many of that many results go on, by the rule of this kind of bracket: the first one always."""
        return max(self.survivors(results), 1)

    def went_on(self, entry: Entry, rung: int) -> bool:
        """Whether the trial of an entry has left its rung for the next one, or is retired, which goes nowhere."""
        return self.rung_of.get(entry.request_id, len(self.rungs)) > rung

    def record(self, rung: int, request_id: str, metric: float, *, before_equal: bool) -> int:
        """Put a result into a rung and return its place, from 0."""
        return self.rungs[rung].insert(
            Entry(request_id, metric), smaller_is_better=self.smaller_is_better, before_equal=before_equal
        )

    def compare(self, frame: Frame, rung: int, request_id: str, metric: float) -> Outcome:
        """Put the result of a trial into a rung where it goes on or is done at once (not by promotion)."""
        # Before equal ones: a tie goes to the newcomer, which still runs.
        place = self.record(rung, request_id, metric, before_equal=True)
        if rung == self.top:
            outcome = Outcome.FINISHED
        else:
            is_good = place < self.keep(len(self.rungs[rung].entries)) or self.is_lifted(request_id, rung)
            outcome = Outcome.GOES_ON if is_good else Outcome.STOPPED
        self.judge(frame, rung, place, outcome)
        return outcome

    def fail(self, frame: Frame, request_id: str) -> None:
        """Put the worst result into the rung that a trial was on its way to (not by promotion)."""
        rung = self.rung_of[request_id]
        self.judge(frame, rung, self.record(rung, request_id, WORST, before_equal=True), Outcome.FAILED)

    def forget(self, frame: Frame, request_id: str) -> list[int]:
        """Drop every result of a trial whose hyperparameters turned out to be invalid; returns the rungs it was in."""
        rung = self.rung_of[request_id]
        self.invalid += 1
        length = self.rungs[rung].length
        frame.judge(
            Verdict(request_id=request_id, outcome=Outcome.INVALID, bracket=self.number, rung=rung, length=length)
        )
        return [
            number
            for number in range(rung + 1)
            if self.rungs[number].remove(request_id, smaller_is_better=self.smaller_is_better)
        ]

    def judge(self, frame: Frame, rung: int, place: int, outcome: Outcome, because_of: str | None = None) -> None:
        """Note how the entry at a place of a rung compared with the others, and what followed for its trial."""
        entries = self.rungs[rung].entries
        request_id, metric = entries[place]
        keep = None if rung == self.top else self.keep(len(entries))
        frame.judge(
            Verdict(
                request_id=request_id,
                outcome=outcome,
                bracket=self.number,
                rung=rung,
                length=self.rungs[rung].length,
                metric=metric,
                place=place + 1,
                results=len(entries),
                keep=keep,
                threshold=entries[keep - 1].metric if keep else None,
                because_of=None if because_of == request_id else because_of,
            )
        )


def bracket_fields(
    *,
    number: int,
    num_rungs: int,
    max_length: int,
    divisor: Number,
    max_trials: int,
    concurrency: int,
    smaller_is_better: bool,
) -> dict[str, Any]:
    """What the constructor of every kind of bracket takes."""
    return {
        "number": number,
        "divisor": divisor,
        "max_trials": max_trials,
        "concurrency": concurrency,
        "smaller_is_better": smaller_is_better,
        "rungs": [Rung(length=length) for length in rung_lengths(max_length, divisor, num_rungs)],
    }
