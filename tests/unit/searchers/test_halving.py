"""Asynchronous halving, both generations. Source: spec searchers.md §5-§7, §9."""

import math

import pytest
from search_bench import Bench

from workflows.searchers import SearchError, rung_lengths
from workflows.searchers.halving import floor_log


@pytest.mark.parametrize(
    ("length", "divisor", "rungs", "units"),
    [
        (9, 3, 3, [1, 3, 9]),
        (10, 2, 4, [1, 2, 5, 10]),
        (900, 3, 3, [100, 300, 900]),
        (12, 3, 3, [1, 4, 12]),
        (576000, 3, 3, [64000, 192000, 576000]),
        (1000, 4, 5, [3, 15, 62, 250, 1000]),
        (16, 4, 5, [1, 1, 1, 4, 16]),
        (500, 2.5, 4, [32, 80, 200, 500]),
        (11, 1.1, 2, [10, 11]),
    ],
)
def test_rung_lengths(length: int, divisor: float, rungs: int, units: list[int]) -> None:
    assert rung_lengths(length, divisor, rungs) == units


def test_rung_lengths_of_many_rungs_are_quick() -> None:
    assert rung_lengths(10**18, 1.5, 1000)[:2] == [1, 1]


def test_logarithm_is_exact() -> None:
    for base in range(2, 12):
        for power in range(1, 30):
            assert floor_log(base**power, base) == power
            assert floor_log(base**power - 1, base) == power - 1 or base**power == 2
    assert floor_log(1, 1.5) == 0


# --- events generation: stopping


def stopping(**more: object) -> Bench:
    searcher = {
        "name": "async_halving",
        "num_rungs": 2,
        "max_time": 8,
        "time_metric": "t",
        "divisor": 4,
        "max_trials": 6,
        "max_concurrent_trials": 2,
        "metric": "acc",
        "smaller_is_better": False,
        **more,
    }
    return Bench(searcher)


def test_stopping_worked_example() -> None:
    bench = stopping()
    steps = [
        (lambda: bench.start(), ["create 1", "create 2"]),
        (lambda: bench.report(1, acc=0.5, t=1), []),
        (lambda: bench.report(1, acc=0.6, t=2), []),
        (lambda: bench.report(2, acc=0.4, t=2), ["stop 2", "create 3"]),
        (lambda: bench.exit(2), []),
        (lambda: bench.report(3, acc=0.7, t=5), []),
        (lambda: bench.exit(1, "errored"), ["create 4"]),
        (lambda: bench.report(3, acc=0.8, t=8), ["stop 3", "create 5"]),
        (lambda: bench.exit(3), []),
        (lambda: bench.report(4, acc=0.1, t=1), []),
        (lambda: bench.exit(4, "invalid_hp"), ["stop 4", "create 6"]),
        (lambda: bench.report(5, acc=0.65, t=9), ["stop 5", "create 7"]),
    ]
    for number, (step, actions) in enumerate(steps):
        assert step() == actions, number
    assert bench.exit(5) == []
    # The worked table lets 6 and 7 end; in Determined that frees no place. Here all six valid trials exist anyway.
    assert bench.exit(6) == []
    assert bench.exit(7) == ["shutdown completed"]


def test_stopping_one_good_trial_among_ten() -> None:
    bench = Bench(
        {
            "name": "async_halving",
            "num_rungs": 3,
            "max_time": 900,
            "time_metric": "batches",
            "divisor": 3,
            "max_trials": 10,
            "max_concurrent_trials": 3,
        }
    )
    bench.start()
    last: list[int] = []
    while not bench.shutdowns:
        number = len(last) + 1
        for time in range(100, 901, 100):
            if any(a.startswith("stop") for a in bench.report(number, loss=number, batches=time)):
                last.append(time)
                break
        bench.exit(number)
    assert last == [900] + [100] * 9


def test_one_report_may_pass_several_rungs() -> None:
    bench = stopping(num_rungs=3, max_time=32)
    bench.start()
    bench.report(1, acc=0.5, t=9)
    assert [len(view.entries) for view in bench.search.rungs()] == [1, 1, 0]
    assert bench.search.trial(bench.ids[0]).rung == 2


def test_a_tie_goes_to_the_newcomer_when_stopping() -> None:
    bench = stopping()
    bench.start()
    bench.report(1, acc=0.5, t=2)
    assert bench.report(2, acc=0.5, t=2) == []


def test_reports_after_a_stop_change_nothing() -> None:
    bench = stopping()
    bench.start()
    bench.report(1, acc=0.5, t=2)
    assert bench.report(2, acc=0.4, t=2) == ["stop 2", "create 3"]
    before = bench.search.rungs()
    assert bench.report(2, acc=0.9, t=8) == []
    assert bench.exit(2, "errored") == []
    assert bench.search.rungs() == before


def test_a_trial_that_ends_by_itself_frees_its_place() -> None:
    bench = stopping()
    bench.start()
    bench.report(1, acc=0.5, t=1)
    assert bench.exit(1) == ["create 3"]
    while not bench.shutdowns:
        bench.exit(len([i for i in bench.ids if bench.search.trial(i).ended]) + 1)
    assert len(bench.ids) == 6


def test_initial_trials_when_concurrency_is_zero() -> None:
    assert len(stopping(max_concurrent_trials=0).start()) == 4
    assert len(stopping(max_concurrent_trials=0, max_trials=3).start()) == 3
    assert len(stopping(max_concurrent_trials=0, num_rungs=1).start()) == 1


@pytest.mark.parametrize("metrics", [{"t": 5}, {"acc": 0.5}, {"acc": "high", "t": 5}, {"acc": 0.5, "t": "late"}])
def test_a_missing_metric_is_named_and_changes_nothing(metrics: dict) -> None:
    bench = stopping()
    bench.start()
    before = bench.search.model_dump_json()
    with pytest.raises(SearchError, match=r"'(acc|t)'"):
        bench.report(1, **metrics)
    with pytest.raises(SearchError, match="must be finite"):
        bench.report(1, acc=1, t="NaN")
    with pytest.raises(SearchError, match="must be a number"):
        bench.report(1, acc=True, t=1)
    assert bench.search.model_dump_json() == before


@pytest.mark.parametrize("smaller", [True, False])
@pytest.mark.parametrize("bad", ["NaN", "Nan", "Infinity", "-Infinity", math.nan, math.inf, -math.inf, None])
def test_metrics_that_are_no_numbers_are_the_worst(smaller: bool, bad: object) -> None:
    bench = stopping(smaller_is_better=smaller, max_concurrent_trials=6)
    bench.start()
    for number, value in enumerate((0.5, bad, 0.1, bad, 0.9), 1):
        bench.report(number, acc=value, t=2)
    entries = [metric for _, metric, _ in bench.search.rungs()[0].entries]
    assert entries[:3] == sorted([0.1, 0.5, 0.9], reverse=not smaller)
    assert len(entries) == 5


# --- ops generation

OPS = {
    "name": "async_halving",
    "num_rungs": 3,
    "max_trials": 12,
    "divisor": 3,
    "max_length": {"batches": 9000},
    "max_concurrent_trials": 1,
}
LOW, MID, TOP = [1000], [1000, 3000], [1000, 3000, 9000]


def ops(metric, fails=None, **more: object) -> Bench:
    bench = Bench({**OPS, **more})
    bench.run_ops(metric, fails=fails)
    assert [(s.failure, s.cancel) for s in bench.shutdowns] == [(False, False)]
    return bench


@pytest.mark.parametrize("concurrency", [1, 12])
def test_promotion_with_losses_in_order(concurrency: int) -> None:
    expected = [TOP, MID, MID, MID] + [LOW] * 8
    assert ops(lambda n: n / 100, max_concurrent_trials=concurrency).lengths == expected


def test_promotion_when_a_promoted_trial_fails() -> None:
    assert ops(lambda n: n / 100, {(3, 1): "errored"}).lengths == [TOP, MID, MID, MID] + [LOW] * 8


def test_promotion_of_a_later_better_trial() -> None:
    losses = [0.10, 0.11, 0.12, *(n / 100 for n in range(1, 10))]
    bench = Bench({**OPS, "max_concurrent_trials": 12})
    bench.run_ops(lambda n: losses[n - 1], fails={(3, 0): "errored"})
    assert bench.lengths == [MID, LOW, LOW, TOP, MID, MID, MID, LOW, LOW, LOW, LOW, LOW]


def test_stop_once_with_losses_in_order() -> None:
    assert ops(lambda n: n / 100, stop_once=True).lengths == [TOP] + [LOW] * 11


def test_stop_once_maximising() -> None:
    assert ops(lambda n: n / 100, stop_once=True, smaller_is_better=False).lengths == [TOP] * 12
    repeating = ops(
        lambda n: ((n - 1) % 4 + 1) / 100, stop_once=True, smaller_is_better=False, max_concurrent_trials=12
    )
    assert repeating.lengths == [TOP] * 4 + [LOW, LOW, MID, TOP, LOW, LOW, MID, TOP]


def test_invalid_trial_is_replaced_and_leaves_nothing() -> None:
    losses = [0.5, 0.4, 0.3, 0.2, 0.1, 0.5]
    bench = ops(
        lambda n: losses[n - 1],
        {(2, 0): "invalid_hp"},
        num_rungs=2,
        max_length={"batches": 100},
        divisor=2,
        max_trials=5,
        max_concurrent_trials=2,
    )
    assert bench.lengths == [[50], [50], [50, 100], [50, 100], [50, 100], [50]]


def test_a_paused_trial_waits_and_is_promoted_later() -> None:
    bench = Bench({**OPS, "num_rungs": 2, "divisor": 2, "max_trials": 4, "max_length": 10})
    assert bench.start() == ["create 1", "train 1 to 5"]
    assert bench.complete(1, 0.1) == ["create 2", "train 2 to 5"]
    view = bench.search.trial(bench.ids[0])
    assert (view.completed, view.closed, view.rung, view.bracket) == (True, False, 0, 0)
    assert bench.complete(2, 0.2) == ["train 1 to 10"]
    assert bench.complete(1, 0.1) == ["close 1", "create 3", "train 3 to 5"]


def test_a_tie_goes_to_whoever_was_first_when_promoting() -> None:
    bench = Bench({**OPS, "num_rungs": 2, "divisor": 2, "max_trials": 4, "max_length": 10})
    bench.start()
    bench.complete(1, 0.5)
    assert bench.complete(2, 0.5) == ["train 1 to 10"]


@pytest.mark.parametrize("stop_once", [False, True])
def test_rungs_of_equal_length_are_one_operation(stop_once: bool) -> None:
    bench = ops(lambda n: n / 100, max_length=2, num_rungs=4, stop_once=stop_once, max_trials=40)
    assert all(lengths == sorted(set(lengths)) for lengths in bench.lengths)
    assert [1, 2] in bench.lengths
    assert [view.length for view in bench.search.rungs()] == [1, 1, 1, 2]


def test_a_promoted_trial_that_has_failed_meanwhile_passes_its_place_on() -> None:
    bench = Bench({**OPS, "num_rungs": 3, "divisor": 2, "max_trials": 4, "max_length": 40})
    bench.start()
    bench.complete(1, 0.1)
    bench.exit(1, "errored")  # while it waits: it keeps its result
    assert bench.complete(2, 0.2) == ["create 3", "train 3 to 10"]
    entries = bench.search.rungs()[0].entries
    assert [(i == bench.ids[0], promoted) for i, _, promoted in entries] == [(True, True), (False, False)]
    assert math.isnan(bench.search.rungs()[1].entries[0][1])


def test_a_trial_that_ends_by_itself_counts_as_failed_in_ops() -> None:
    bench = Bench({**OPS, "max_trials": 2, "max_length": 90})
    bench.start()
    assert bench.close(1) == ["create 2", "train 2 to 10"]
    assert bench.search.trial(bench.ids[0]).exit_reason == "user_requested_stop"


def test_progress_reaches_one() -> None:
    bench = Bench(OPS)
    bench.start()
    bench.complete(1, 0.5)
    assert bench.search.progress() == pytest.approx(1 / (1.2 * 12))
    assert ops(lambda n: n).search.progress() == 1.0


def test_ops_metric_must_be_a_number() -> None:
    bench = Bench(OPS)
    bench.start()
    before = bench.search.model_dump_json()
    with pytest.raises(SearchError, match="'loss' must be a number, but is 'good'"):
        bench.complete(1, "good")
    assert bench.search.model_dump_json() == before
    bench.complete(1, "Nan")
    bench.complete(2, 10**400)
