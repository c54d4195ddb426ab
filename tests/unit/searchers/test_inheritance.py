"""A fork's trials are told what is known, in the order in which it came, and run only for what is not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.searchers.search_bench import config
from workflows.searchers import Create, ExitReason, OperationCompleted, Search, Started, TrialClosed, TrialExitedEarly
from workflows.searchers.inheritance import Inheritance, InheritedResult, InheritedTrial


def inheritance(*trials: dict[str, Any]) -> Inheritance:
    """Trials with the results {length: metric}; the results came trial by trial."""
    found: dict[str, InheritedTrial] = {}
    order = 0
    for number, fields in enumerate(trials, 1):
        results: list[InheritedResult] = []
        for length, metric in fields.pop("results", {}).items():
            order += 1
            results.append(InheritedResult(order=order, length=length, metrics={"loss": metric}))
        found[f"old-{number}"] = InheritedTrial(
            request_id=f"old-{number}", hparams={"lr": number / 10}, trial_id=number, results=results,
            trained_to=results[-1].length if results else 0, **fields,
        )  # fmt: skip
    return Inheritance(metric="loss", trials=found)


def forked(book: Inheritance, **searcher: Any) -> tuple[Search, list[Create]]:
    wanted = {"name": "random", "max_trials": 3, "max_length": 10, **searcher}
    search = Search.new(config(wanted), inherited=book.points())
    created = [action for action in search.decide(Started()).actions if isinstance(action, Create)]
    for action in created:
        book.take(action)
    return search, created


def fed(book: Inheritance, search: Search) -> list[Any]:
    """All that is told, until nothing more is known."""
    events: list[Any] = []
    while (event := book.next_event(search)) is not None:
        events.append(event)
        search.decide(event)
    return events


def test_what_is_known_is_told_and_the_rest_is_trained() -> None:
    book = inheritance({"results": {5: 0.5, 10: 0.4}}, {"results": {5: 0.3}})
    search, created = forked(book)
    first, second, third = created
    assert [action.inherits for action in created] == ["old-1", "old-2", None]
    assert fed(book, search) == [
        OperationCompleted(request_id=first.request_id, length=10, metric=0.4),
        TrialClosed(request_id=first.request_id),
    ]
    assert book.take_runners(search) == [second.request_id], "it is known up to 5 only"
    assert third.request_id not in book.heirs
    assert fed(book, search) == []


def test_results_are_told_in_the_order_in_which_they_came() -> None:
    book = inheritance({"results": {10: 0.4}}, {"results": {10: 0.3}})
    book.trials["old-1"].results[0].order, book.trials["old-2"].results[0].order = 2, 1
    search, (first, second, _) = forked(book)
    told = [event.request_id for event in fed(book, search) if isinstance(event, OperationCompleted)]
    assert told == [second.request_id, first.request_id]


@pytest.mark.parametrize(("length", "metric"), [(5, 0.5), (7, 0.5), (10, 0.1), (3, 0.5)])
def test_result_at_a_length_is_the_last_until_then_or_the_first_after_it(length: int, metric: float) -> None:
    book = inheritance({"results": {5: 0.5, 10: 0.1}})
    search, (first, *_) = forked(book, max_length=length)
    assert fed(book, search)[0] == OperationCompleted(request_id=first.request_id, length=length, metric=metric)


def test_a_failure_is_taken_over() -> None:
    book = inheritance({"exit_reason": ExitReason.ERRORED})
    search, (first, *_) = forked(book)
    assert fed(book, search) == [
        TrialExitedEarly(request_id=first.request_id, reason=ExitReason.ERRORED),
        TrialClosed(request_id=first.request_id),
    ]
    assert book.heirs == {}


def test_state_is_the_same_after_a_round_trip() -> None:
    book = inheritance({"results": {5: 0.5}}, {"results": {5: 0.5}, "is_finished": True})
    search, _ = forked(book)
    fed(book, search)
    text = book.model_dump_json()
    assert Inheritance.model_validate_json(text).model_dump_json() == text
