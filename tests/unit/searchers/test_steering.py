"""A user steers single trials: recorded as decisions, repeated without effect, replayed byte for byte."""

from typing import Any, Literal

import pytest
from search_bench import Bench, config

from workflows.searchers import Search, SearchError, Started, Steered
from workflows.searchers.continuation import past_of
from workflows.searchers.decisions import Decision
from workflows.searchers.replay import replay

Action = Literal["add", "stop", "promote", "boost"]
RANDOM = {"name": "random", "max_trials": 2, "max_concurrent_trials": 1, "max_length": 8}
ASHA = {"name": "async_halving", "max_trials": 4, "max_length": 8, "num_rungs": 3, "divisor": 2,
        "max_concurrent_trials": 4}  # fmt: skip
STOPPING = {"name": "async_halving", "max_trials": 4, "max_time": 8, "time_metric": "t", "num_rungs": 3, "divisor": 2,
            "max_concurrent_trials": 4}  # fmt: skip


def steered(bench: Bench, action: Action, trial: int = 0, **more: Any) -> Steered:
    request_id = bench.ids[trial - 1] if trial else "00000000-0000-4000-8000-000000000001"
    return Steered(key=f"{action} {trial}", action=action, request_id=request_id, **more)


def add(bench: Bench, lr: Any = 7) -> list[str]:
    return bench.send(steered(bench, "add", hparams={"lr": lr}, trial_seed=5))


def refused(bench: Bench, event: Steered) -> str:
    before = bench.search.model_dump_json()
    with pytest.raises(SearchError) as refusal:
        bench.send(event)
    assert bench.search.model_dump_json() == before
    return str(refusal.value)


def test_point_that_is_given_is_a_trial_beside_those_of_the_search() -> None:
    bench, plain = Bench(RANDOM), Bench(RANDOM)
    bench.start()
    plain.start()
    assert add(bench) == ["create 2", "train 2 to 8", "close 2"]
    assert bench.hparams[1] == {"lr": 7}
    assert add(bench) == [], "sent again, it counts once"
    assert bench.search.is_repeat(steered(bench, "add"))
    bench.complete(1, 0.5)
    plain.complete(1, 0.5)
    assert bench.exit(1) == ["create 3", "train 3 to 8", "close 3"], "a place of the search was free, not the other one"
    plain.exit(1)
    assert bench.hparams[2] == plain.hparams[1], "the points that the search draws are what they were"
    bench.complete(3, 0.5)
    assert bench.exit(3) == []
    bench.complete(2, 0.5)
    assert bench.exit(2) == ["shutdown completed"], "it is over when all of them are"


@pytest.mark.parametrize("searcher", [RANDOM, ASHA, STOPPING, {"name": "single", "max_length": 8}])
def test_search_ends_as_usual_when_a_trial_was_added(searcher: dict[str, Any]) -> None:
    bench = Bench(searcher)
    bench.start()
    add(bench)
    added = len(bench.ids)
    assert bench.search.trial(bench.ids[added - 1]).rung is None
    number = 0
    while bench.search.shutdown is None:
        number += 1
        bench.exit(number)
    assert bench.search.frame.by_hand == [bench.ids[added - 1]]


def test_only_whole_points_are_taken_and_only_while_the_search_runs() -> None:
    bench = Bench(RANDOM)
    assert "has not begun" in refused(bench, steered(bench, "add", hparams={"lr": 1}))
    bench.start()
    message = refused(bench, steered(bench, "add", hparams={"x": 1}))
    assert message == "hyperparameters: lr is missing, x is unknown: expected a value for each of lr"
    assert "no rungs" in refused(bench, steered(bench, "promote", 1))
    bench.complete(1, 0.5)
    assert "is done with this trial" in refused(bench, steered(bench, "stop", 1))
    with pytest.raises(SearchError, match="no trial with the request id"):
        bench.send(Steered(key="k", action="stop", request_id="no such"))


def test_trial_that_waits_is_promoted_at_once() -> None:
    bench = Bench(ASHA)
    bench.start()
    for trial, metric in ((1, 0.1), (2, 0.9), (3, 0.5)):
        bench.complete(trial, metric)
    assert bench.send(steered(bench, "promote", 2)) == ["train 2 to 4"]
    assert bench.send(steered(bench, "promote", 2)) == []
    bench.complete(2, 0.9)
    assert bench.search.trial(bench.ids[1]).completed, "it waits at the next one"
    assert bench.send(steered(bench, "boost", 2)) == ["train 2 to 8"]
    assert "last rung already" in refused(
        bench, steered(bench, "promote", 2, hparams={}).model_copy(update={"key": "x"})
    )


def test_boosted_trial_passes_every_rung() -> None:
    bench = Bench(ASHA)
    bench.start()
    assert bench.send(steered(bench, "boost", 4)) == []
    bench.complete(1, 0.1)
    assert "train 4 to 4" in bench.complete(4, 0.9)
    bench.complete(2, 0.2)
    assert "train 4 to 8" in bench.complete(4, 0.9)
    assert "close 4" in bench.complete(4, 0.9)


def test_boosted_trial_is_not_stopped_by_its_reports() -> None:
    bench = Bench(STOPPING)
    bench.start()
    bench.send(steered(bench, "boost", 2))
    assert bench.report(1, loss=0.1, t=2) == []
    assert bench.report(2, loss=0.9, t=2) == []
    assert bench.report(3, loss=0.9, t=2) == ["stop 3"]
    assert bench.report(2, loss=0.9, t=8) == ["stop 2"], "it has reached the top"


@pytest.mark.parametrize("searcher", [RANDOM, ASHA, STOPPING])
def test_trial_that_is_stopped_leaves_its_place(searcher: dict[str, Any]) -> None:
    bench = Bench({**searcher, "max_concurrent_trials": 1, "max_trials": 4})
    bench.start()
    first = bench.send(steered(bench, "stop", 1))
    assert "stop 1" in first
    assert "create 2" in [*first, *bench.exit(1)]
    assert bench.search.trial(bench.ids[0]).exit_reason == "user_requested_stop"


@pytest.mark.parametrize("searcher", [RANDOM, ASHA])
def test_record_is_replayed_and_continued(searcher: dict[str, Any]) -> None:
    search = Search.new(config(searcher))
    decisions: list[Decision] = [search.decide(Started())]
    request_id = next(iter(search.frame.trials))
    for event in (
        Steered(key="a", action="add", request_id="00000000-0000-4000-8000-000000000001", hparams={"lr": 2}),
        Steered(key="b", action="stop", request_id=request_id),
    ):
        decisions.append(search.decide(event))
    lines = [Decision.model_validate_json(decision.canonical()) for decision in decisions]
    assert replay(Search.new(config(searcher)), lines) is None
    past = past_of(lines, is_single=False)
    assert [event.kind for event in past.events] == ["started", "steered", "steered"]
