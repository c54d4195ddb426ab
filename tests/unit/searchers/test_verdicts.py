"""What each comparison is recorded as: place, how many go on, threshold, and who caused it."""

import math
from typing import Any

from search_bench import config

from workflows.searchers import (
    Create,
    Decision,
    Event,
    ExitReason,
    OperationCompleted,
    Search,
    Started,
    TrialClosed,
    TrialExitedEarly,
    ValidationReported,
    Verdict,
)


class Told:
    """A search whose verdicts are shown with the numbers of its trials, from 1."""

    def __init__(self, **searcher: Any) -> None:
        self.search = Search.new(config(searcher))
        self.ids: list[str] = []
        self.last: Decision | None = None
        self.send(Started())

    def send(self, event: Event) -> list[tuple[Any, ...]]:
        self.last = self.search.decide(event)
        self.ids += [action.request_id for action in self.last.actions if isinstance(action, Create)]
        return [self.shown(verdict) for verdict in self.last.verdicts]

    def shown(self, verdict: Verdict) -> tuple[Any, ...]:
        """(trial, outcome, rung, place/results, keep, threshold) and the trial that it is owed to, if any."""
        cause = () if verdict.because_of is None else (self.number(verdict.because_of),)
        place = None if verdict.place is None else f"{verdict.place}/{verdict.results}"
        number, outcome = self.number(verdict.request_id), verdict.outcome.value
        return (number, outcome, verdict.rung, place, verdict.keep, verdict.threshold, *cause)

    def number(self, request_id: str) -> int:
        return self.ids.index(request_id) + 1

    def report(self, number: int, metric: Any, time: int) -> list[tuple[Any, ...]]:
        return self.send(ValidationReported(request_id=self.ids[number - 1], metrics={"loss": metric, "t": time}))

    def complete(self, number: int, metric: Any) -> list[tuple[Any, ...]]:
        request_id = self.ids[number - 1]
        length = self.search.trial(request_id).length
        assert length is not None
        return self.send(OperationCompleted(request_id=request_id, length=length, metric=metric))

    def exit(self, number: int, reason: ExitReason) -> list[tuple[Any, ...]]:
        verdicts = self.send(TrialExitedEarly(request_id=self.ids[number - 1], reason=reason))
        assert self.send(TrialClosed(request_id=self.ids[number - 1])) == []
        return verdicts


ASHA = {"name": "async_halving", "num_rungs": 3, "divisor": 2, "max_trials": 4, "max_concurrent_trials": 4}
EVENTS = {**ASHA, "max_time": 40, "time_metric": "t"}


def test_stopping_names_every_rung_that_a_report_passes() -> None:
    told = Told(**EVENTS)
    assert told.report(1, 0.5, 9) == []
    assert told.report(1, 0.5, 21) == [(1, "goes_on", 0, "1/1", 1, 0.5), (1, "goes_on", 1, "1/1", 1, 0.5)]
    assert told.report(2, 0.7, 10) == [(2, "stopped", 0, "2/2", 1, 0.5)]
    assert told.report(3, 0.4, 10) == [(3, "goes_on", 0, "1/3", 1, 0.4)]
    assert told.report(1, 0.3, 40) == [(1, "finished", 2, "1/1", None, None)]
    assert told.last is not None
    first = told.last.verdicts[0]
    assert (first.bracket, first.length, first.metric) == (0, 40, 0.3)


def test_stopping_tells_failed_from_invalid() -> None:
    told = Told(**EVENTS)
    told.report(1, 0.5, 10)
    ((*failed, threshold),) = told.exit(2, ExitReason.ERRORED)
    assert (failed, threshold) == ([2, "failed", 0, "2/2", 1], 0.5)
    assert told.exit(3, ExitReason.INVALID_HP) == [(3, "invalid", 0, None, None, None)]
    told.report(4, 0.9, 10)
    assert told.exit(4, ExitReason.ERRORED) == []  # it was stopped before


def test_metrics_are_told_as_they_were_reported_when_larger_is_better() -> None:
    told = Told(**EVENTS, smaller_is_better=False)
    told.report(1, 0.5, 10)
    assert told.report(2, 0.4, 10) == [(2, "stopped", 0, "2/2", 1, 0.5)]


def test_stop_once_compares_like_stopping() -> None:
    told = Told(**ASHA, max_length=40, stop_once=True)
    assert told.complete(1, 0.5) == [(1, "goes_on", 0, "1/1", 1, 0.5)]
    assert told.complete(2, 0.6) == [(2, "stopped", 0, "2/2", 1, 0.5)]
    assert told.exit(1, ExitReason.ERRORED)[0][:4] == (1, "failed", 1, "1/1")


def test_promotion_names_who_waits_and_whom_a_result_promotes() -> None:
    told = Told(**ASHA, max_length=40)
    assert told.complete(1, 0.3) == [(1, "waits", 0, "1/1", 0, None)]
    assert told.complete(2, 0.4) == [(2, "waits", 0, "2/2", 1, 0.3), (1, "promoted", 0, "1/2", 1, 0.3, 2)]
    assert told.complete(3, 0.2) == [(3, "goes_on", 0, "1/3", 1, 0.2)]
    assert told.complete(1, 0.25) == [(1, "waits", 1, "1/1", 0, None)]
    assert told.complete(3, 0.15) == [(3, "goes_on", 1, "1/2", 1, 0.15)]
    assert told.complete(3, 0.1) == [(3, "finished", 2, "1/1", None, None)]


def test_promotion_closes_losers_because_of_the_last_result() -> None:
    told = Told(**{**ASHA, "num_rungs": 2}, max_length=40)
    told.complete(1, 0.1)
    told.complete(2, 0.2)
    told.complete(3, 0.3)
    assert told.complete(4, 0.4) == [
        (4, "waits", 0, "4/4", 2, 0.2),
        (2, "promoted", 0, "2/4", 2, 0.2, 4),
        (3, "stopped", 0, "3/4", 2, 0.2, 4),
        (4, "stopped", 0, "4/4", 2, 0.2),
    ]


def test_a_failed_trial_that_is_promoted_is_named_with_its_worst_result() -> None:
    told = Told(**ASHA, max_length=40)
    told.complete(1, 0.1)
    assert told.exit(1, ExitReason.ERRORED) == []  # it has its result already
    verdicts = told.complete(2, 0.2)
    assert [verdict[:4] for verdict in verdicts] == [
        (2, "waits", 0, "2/2"),
        (1, "promoted", 0, "1/2"),
        (1, "failed", 1, "1/1"),
    ]
    assert told.last is not None
    assert math.isnan(told.last.verdicts[-1].metric or 0)
    assert told.last.trials >= set(told.ids[:2])


def test_brackets_are_numbered() -> None:
    told = Told(name="adaptive_asha", max_trials=9, divisor=3, max_time=90, time_metric="t", max_concurrent_trials=3)
    told.report(3, 0.5, 31)
    assert told.last is not None
    assert [(v.bracket, v.rung, v.length) for v in told.last.verdicts] == [(1, 0, 30)]
    text = told.last.canonical()
    assert Decision.model_validate_json(text) == told.last
