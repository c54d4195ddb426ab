"""Asynchronous halving as a search method: one bracket or several, of one of the three kinds.

Source: spec searchers.md §6 and §7.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from workflows.searchers.base import Frame, Method, RungView, TrialState, check_raise
from workflows.searchers.halving import Bracket, Number, bracket_fields, exact
from workflows.searchers.messages import Amended, ExitReason
from workflows.searchers.promotion import PromotionBracket
from workflows.searchers.stop_once import StopOnceBracket
from workflows.searchers.stopping import StoppingBracket
from workflows.searchers.values import SearchError, parse_metric

BracketKind = Literal["stopping", "stop_once", "promotion"]
AnyBracket = Annotated[StoppingBracket | StopOnceBracket | PromotionBracket, Field(discriminator="kind")]


class Brackets(Method):
    """Deals events to brackets, and places to trials.

    Attributes:
        metric: Name of the metric that is compared.
        time_metric: Name of the metric that says how far a trial is; None in the ops generation.
        brackets: The brackets; each runs its own halving, and knows its trials.
        lends: Whether a place that a bracket has no trial for goes to another one. Determined leaves it empty.
    """

    metric: str
    time_metric: str | None
    brackets: list[AnyBracket]
    lends: bool = True

    def wants_validations(self, frame: Frame) -> bool:
        """In the events generation they are all there is."""
        return frame.generation == "events"

    @property
    def to_come(self) -> int:
        """What is left of all brackets."""
        return sum(max(bracket.room, 0) for bracket in self.brackets)

    def start(self, frame: Frame) -> None:
        """Fill each bracket's places, bracket by bracket."""
        self._fill(frame)

    def validated(self, frame: Frame, request_id: str, metrics: dict[str, Any]) -> None:
        """Let the trial's bracket compare."""
        bracket = self._bracket(request_id)
        metric, time = self._read(metrics)
        if not frame.trials[request_id].stopped:
            self._after(frame, request_id, bracket.validated(frame, request_id, metric, time))

    def check_metric(self, metric: Any) -> None:
        """It must be a number, or a word for NaN or infinity."""
        parse_metric(metric, self.metric)

    def completed(self, frame: Frame, request_id: str, metric: Any) -> None:
        """Let the trial's bracket compare."""
        value = parse_metric(metric, self.metric)
        bracket = self._bracket(request_id)
        wanted = bracket.rungs[bracket.rung_of[request_id]].length
        if frame.trials[request_id].length != wanted:  # it was raised while the trial was on its way
            frame.train_to(request_id, wanted)
        else:
            self._after(frame, request_id, bracket.completed(frame, request_id, value))

    def exited(self, frame: Frame, request_id: str, reason: ExitReason) -> None:
        """Tell the trial's bracket."""
        self._after(frame, request_id, self._bracket(request_id).exited(frame, request_id, reason))

    def closed(self, frame: Frame, request_id: str) -> None:
        """Tell the trial's bracket."""
        self._after(frame, request_id, self._bracket(request_id).closed(frame, request_id))

    def amend(self, frame: Frame, event: Amended) -> None:
        """More trials, more places, a longer way to the top; a bracket never shrinks."""
        check_raise("max_trials", event.max_trials, sum(b.max_trials for b in self.brackets))
        check_raise("max_concurrent_trials", event.max_concurrent_trials, sum(b.concurrency for b in self.brackets))
        self._check_length(event.max_length)
        if event.max_trials is not None:
            for bracket, trials in zip(self.brackets, self.share_trials(event.max_trials), strict=True):
                bracket.max_trials = trials
        if event.max_concurrent_trials is not None:
            for bracket, places in zip(self.brackets, self.share_places(event.max_concurrent_trials), strict=True):
                bracket.concurrency = places
        if event.max_length is not None:
            frame.max_units = event.max_length if frame.generation == "ops" else None
            for bracket in self.brackets:
                bracket.rungs[-1].length = event.max_length
        if frame.trials:
            self._fill(frame)

    def lift(self, frame: Frame, request_id: str, *, to_top: bool) -> None:
        """At once if it waits at a rung; else when it gets there."""
        bracket, trial = self._bracket(request_id), frame.trials[request_id]
        rung = max(bracket.rung_of[request_id], bracket.lifted.get(request_id, 0) if trial.owes_result else 0)
        if bracket.rung_of[request_id] == bracket.top or rung >= bracket.top:
            raise SearchError("the trial is on its way to the last rung already")
        bracket.lifted[request_id] = bracket.top if to_top else rung + 1
        bracket.raised(frame, request_id)

    def share_trials(self, total: int) -> list[int]:
        """The trials of each bracket if there are that many in all, at least as many as now."""
        raise NotImplementedError

    def share_places(self, total: int) -> list[int]:
        """The places of each bracket if there are that many in all, at least as many as now."""
        raise NotImplementedError

    @property
    def can_rename(self) -> bool:
        """Each bracket can."""
        return True

    def may_retire(self, request_id: str, trial: TrialState) -> bool:
        """Its bracket knows."""
        return self._bracket(request_id).may_retire(trial)

    def rename(self, names: Mapping[str, str]) -> None:
        """Rename them in each bracket."""
        for bracket in self.brackets:
            bracket.rename(names)

    def progress(self, frame: Frame) -> float:
        """Mean of the brackets'."""
        return sum(bracket.progress() for bracket in self.brackets) / len(self.brackets)

    def place(self, request_id: str) -> tuple[int | None, int | None]:
        """(bracket, rung) of a trial."""
        bracket = self._bracket(request_id)
        return bracket.number, bracket.rung_of[request_id]

    def rungs(self, most: int | None = None) -> list[RungView]:
        """All rungs, bracket by bracket, with at most `most` of the trials of each."""
        return [view for bracket in self.brackets for view in bracket.views(most)]

    def _bracket(self, request_id: str) -> Bracket:
        return next(bracket for bracket in self.brackets if request_id in bracket.rung_of)

    def _read(self, metrics: dict[str, Any]) -> tuple[float, int]:
        for name in (self.metric, self.time_metric):
            if name is not None and name not in metrics:
                raise SearchError(f"the search needs the metric {name!r}, which the validation report does not have")
        metric = parse_metric(metrics[self.metric], self.metric)
        time_name = self.time_metric or ""
        time = parse_metric(metrics[time_name], time_name)
        if not math.isfinite(time):
            raise SearchError(f"metric {time_name!r} says how far a trial is, so it must be finite, but is {time}")
        return metric, int(time)

    def _check_length(self, wanted: int | None) -> None:
        field, now = "max_length" if self.time_metric is None else "max_time", self.brackets[0].rungs[-1].length
        check_raise(field, wanted, now)
        if wanted not in (None, now) and any(bracket.rungs[-1].entries for bracket in self.brackets):
            raise SearchError(
                f"{field} cannot become {wanted}: trials have been compared at {now} already; "
                "`det experiment fork` makes a search of the new length that reuses what was trained"
            )

    def _fill(self, frame: Frame) -> None:
        """Create trials while there are places."""
        busy = [0] * len(self.brackets)
        for request_id, trial in frame.drawn():
            if _holds_place(frame, trial):
                busy[self._bracket(request_id).number] += 1
        wanted = [min(max(b.concurrency - busy[b.number], 0), max(b.room, 0)) for b in self.brackets]
        if self.lends:
            # Places without a trial of their own bracket go to the others; those lent before are not given out twice.
            spare = sum(b.concurrency for b in self.brackets) - sum(busy) - sum(wanted)
            for number, bracket in enumerate(self.brackets):
                extra = max(min(spare, max(bracket.room, 0) - wanted[number]), -wanted[number])
                wanted[number] += extra
                spare -= extra
        for number, count in enumerate(wanted):
            for _ in range(count):
                self.brackets[number].create(frame)

    def _after(self, frame: Frame, request_id: str, is_free: bool) -> None:
        own = self._bracket(request_id)
        if is_free:
            others = [bracket for bracket in self.brackets if bracket is not own] if self.lends else []
            taker = next((bracket for bracket in (own, *others) if bracket.room > 0), None)
            if taker is not None:
                taker.create(frame)
        own.settle(frame, request_id)


def _holds_place(frame: Frame, trial: TrialState) -> bool:
    if trial.is_over:
        return False
    return trial.owes_result if frame.generation == "ops" else not trial.stopped


class AsyncHalving(Brackets):
    """The searcher ``async_halving``: one bracket."""

    kind: Literal["async_halving"] = "async_halving"

    def share_trials(self, total: int) -> list[int]:
        """All of them."""
        return [total]

    def share_places(self, total: int) -> list[int]:
        """All of them."""
        return [total]


def new_bracket(
    kind: BracketKind,
    *,
    number: int,
    num_rungs: int,
    max_length: int,
    divisor: Number,
    max_trials: int,
    concurrency: int,
    smaller_is_better: bool,
) -> AnyBracket:
    """An empty bracket; concurrency 0 means as many as give the top rung one trial."""
    if concurrency == 0:
        wanted = int(exact(divisor) ** (num_rungs - 1))
        concurrency = min(max(wanted, 1), max_trials)
    fields = bracket_fields(
        number=number,
        num_rungs=num_rungs,
        max_length=max_length,
        divisor=divisor,
        max_trials=max_trials,
        concurrency=concurrency,
        smaller_is_better=smaller_is_better,
    )
    if kind == "stopping":
        return StoppingBracket(**fields)
    return StopOnceBracket(**fields) if kind == "stop_once" else PromotionBracket(**fields)
