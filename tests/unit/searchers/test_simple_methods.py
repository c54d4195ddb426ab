"""single, random and grid. Source: spec searchers.md §2-§4 and §11."""

import pytest
from search_bench import Bench

from workflows.searchers import (
    OperationCompleted,
    ProgressReported,
    SearchError,
    TrialClosed,
    ValidationReported,
)

SINGLE = {"name": "single"}
RANDOM = {"name": "random", "max_trials": 4, "max_concurrent_trials": 2}


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [(None, "completed"), ("errored", "error"), ("user_canceled", "canceled"), ("invalid_hp", "completed")],
)
def test_single_ends_with_its_trial(reason: str | None, outcome: str) -> None:
    bench = Bench(SINGLE)
    assert bench.start() == ["create 1"]
    assert bench.report(1, loss=0.5) == []
    assert bench.exit(1, reason) == [f"shutdown {outcome}"]


def test_random_replaces_invalid_trials_only() -> None:
    bench = Bench(RANDOM)
    assert bench.start() == ["create 1", "create 2"]
    assert bench.exit(1) == ["create 3"]
    assert bench.exit(2, "invalid_hp") == ["create 4"]
    assert bench.exit(3) == ["create 5"]
    assert bench.exit(4, "errored") == []
    assert bench.exit(5) == ["shutdown completed"]


def test_random_in_ops_gives_each_trial_its_whole_length() -> None:
    bench = Bench({**RANDOM, "max_length": {"batches": 500}})
    assert bench.start()[:3] == ["create 1", "train 1 to 500", "close 1"]
    bench = Bench({**RANDOM, "max_length": {"batches": 500}})
    bench.run_ops(lambda n: 0.5, fails={(2, 0): "invalid_hp"})
    assert bench.lengths == [[500]] * 5
    assert bench.shutdowns[0].model_dump() == {"kind": "shutdown", "failure": False, "cancel": False}


def test_random_runs_one_after_the_other_when_told_so() -> None:
    bench = Bench({"name": "random", "max_trials": 2, "max_concurrent_trials": 1})
    assert (bench.start(), bench.exit(1), bench.exit(2)) == (["create 1"], ["create 2"], ["shutdown completed"])


def test_random_starts_all_at_once_when_concurrency_is_zero() -> None:
    bench = Bench({"name": "random", "max_trials": 3, "max_concurrent_trials": 0})
    assert len(bench.start()) == 3
    assert [bench.exit(n, "errored") for n in (1, 2, 3)] == [[], [], ["shutdown error"]]


def test_one_good_trial_is_enough_to_complete() -> None:
    bench = Bench({"name": "random", "max_trials": 2})
    bench.start()
    bench.exit(1, "errored")
    assert bench.exit(2) == ["shutdown completed"]


def test_grid_is_taken_from_its_end() -> None:
    space = {
        "a": {"type": "int", "minval": 0, "maxval": 2, "count": 100},
        "b": {"type": "categorical", "vals": [10, 20]},
        "c": "c",
    }
    bench = Bench({"name": "grid", "max_concurrent_trials": 2}, space)
    bench.start()
    number = 0
    while not bench.shutdowns:
        number += 1
        # Invalid hyperparameters of a grid are not replaced.
        bench.exit(number, "invalid_hp" if number == 2 else None)
    assert [(h["a"], h["b"]) for h in bench.hparams] == [(2, 20), (2, 10), (1, 20), (1, 10), (0, 20), (0, 10)]
    assert {h["c"] for h in bench.hparams} == {"c"}


def test_progress_counts_trials_that_do_not_exist_yet() -> None:
    bench = Bench(RANDOM)
    bench.start()
    bench.send(ProgressReported(request_id=bench.ids[0], progress=0.5))
    assert bench.search.progress() == pytest.approx(0.5 / 4)
    bench.exit(1)
    assert bench.search.progress() == pytest.approx(1 / 4)
    bench.send(ProgressReported(request_id=bench.ids[1], progress=0.8))
    bench.exit(2, "invalid_hp")
    assert bench.search.progress() == pytest.approx(1 / 4)


def test_progress_in_ops_is_in_units() -> None:
    bench = Bench({**RANDOM, "max_length": {"batches": 200}})
    bench.start()
    bench.send(ProgressReported(request_id=bench.ids[0], progress=50))
    assert bench.search.progress() == pytest.approx(50 / 800)
    bench.complete(1, 1.0)
    bench.close(1)
    assert bench.search.progress() == pytest.approx(200 / 800)


def test_progress_is_one_when_completed_and_stays_when_all_failed() -> None:
    bench = Bench(SINGLE)
    bench.start()
    bench.exit(1, "user_requested_stop")
    assert bench.search.progress() == 1.0
    bench = Bench(SINGLE)
    bench.start()
    bench.send(ProgressReported(request_id=bench.ids[0], progress=float("nan")))
    assert bench.search.progress() == 0.0


def test_repeated_and_late_events_change_nothing() -> None:
    bench = Bench({**RANDOM, "max_length": 100})
    bench.start()
    assert bench.start() == []
    bench.complete(1, 0.5)
    bench.close(1)
    before = bench.search.model_dump_json()
    for event in (
        ProgressReported(request_id=bench.ids[0], progress=0.3),
        ValidationReported(request_id=bench.ids[0], metrics={}),
        OperationCompleted(request_id=bench.ids[0], length=100, metric=0.1),
        OperationCompleted(request_id=bench.ids[0], length=7, metric=0.1),
        TrialClosed(request_id=bench.ids[0]),
    ):
        assert bench.send(event) == []
    assert bench.exit(1, "errored") == []
    assert bench.search.model_dump_json() == before


def test_only_a_completion_that_was_decided_on_is_a_repeat() -> None:
    """It gets no decision of its own: how often an answer was lost is not part of a search."""
    bench = Bench({**RANDOM, "max_length": 100})
    bench.start()
    report = OperationCompleted(request_id=bench.ids[0], length=100, metric=0.5)
    assert not bench.search.is_repeat(report)
    bench.send(report)
    assert bench.search.is_repeat(report)
    assert not bench.search.is_repeat(OperationCompleted(request_id=bench.ids[0], length=7, metric=0.5))
    assert not bench.search.is_repeat(OperationCompleted(request_id="nobody", length=100, metric=0.5))
    assert not bench.search.is_repeat(TrialClosed(request_id=bench.ids[0]))


def test_a_completed_length_may_be_reported_again() -> None:
    bench = Bench({**SINGLE, "max_length": 100})
    bench.start()
    assert bench.complete(1, 0.5) == []
    assert bench.complete(1, 0.6, length=100) == []


def test_what_cannot_be_true_is_refused_and_changes_nothing() -> None:
    bench = Bench({**SINGLE, "max_length": 100})
    bench.start()
    before = bench.search.model_dump_json()
    with pytest.raises(SearchError, match="trained to 7, but the length it was given is 100"):
        bench.complete(1, 0.5, length=7)
    with pytest.raises(SearchError, match="no trial with the request id 'nobody'"):
        bench.search.handle(TrialClosed(request_id="nobody"))
    with pytest.raises(SearchError, match="nobody"):
        bench.search.trial("nobody")
    assert bench.search.model_dump_json() == before


def test_generation_follows_the_config() -> None:
    assert Bench(SINGLE).search.generation == "events"
    assert Bench({**SINGLE, "max_length": 0}).search.generation == "ops"
    assert not Bench(RANDOM).search.wants_validations
    asha = {"name": "async_halving", "num_rungs": 2, "max_trials": 2}
    assert Bench({**asha, "max_length": 10}).search.generation == "ops"
    both = Bench({**asha, "max_length": 10, "max_time": 5, "time_metric": "t"}).search
    assert (both.generation, both.wants_validations) == ("events", True)


def test_a_trial_is_shown_with_its_operation() -> None:
    bench = Bench({**SINGLE, "max_length": 100})
    bench.start()
    view = bench.search.trial(bench.ids[0])
    assert (view.length, view.completed, view.closed, view.ended, view.rung) == (100, False, True, False, None)
    bench.complete(1, "anything")
    assert bench.search.trial(bench.ids[0]).completed
    assert bench.search.rungs() == []
