"""Adaptive ASHA: bracket tables, previews, runs. Source: spec searchers.md §8."""

import pytest
from search_bench import Bench, config

from workflows.searchers import Search, TrialGroup, plan_brackets, preview_search, total_length
from workflows.searchers.adaptive import AdaptiveAsha, bracket_concurrency, bracket_trials


def plan(**more):
    settings = {
        "mode": "standard",
        "max_length": 1000,
        "max_trials": 16,
        "divisor": 4,
        "max_rungs": 5,
        "concurrency": 16,
        "bracket_rungs": [],
        **more,
    }
    return [tuple(p) for p in plan_brackets(**settings)]


@pytest.mark.parametrize(
    ("trials", "divisor", "rungs", "expected"),
    [
        (20, 3, [3, 2, 1], [12, 5, 3]),
        (50, 3, [4, 3], [35, 15]),
        (50, 4, [3, 2], [37, 13]),
        (100, 4, [4, 3, 2], [70, 22, 8]),
    ],
)
def test_bracket_trials(trials: int, divisor: int, rungs: list[int], expected: list[int]) -> None:
    assert bracket_trials(trials, divisor, rungs) == expected


@pytest.mark.parametrize(
    ("concurrency", "divisor", "trials", "expected"),
    [(0, 3, [9, 3, 1], [3, 3, 3]), (11, 3, [9, 3, 1], [4, 4, 3]), (0, 4, [40, 10], [10, 10])],
)
def test_bracket_concurrency(concurrency: int, divisor: int, trials: list[int], expected: list[int]) -> None:
    assert bracket_concurrency(concurrency, divisor, trials) == expected


TABLE = [
    (16, "aggressive", [(3, 16, 16)], {62: 12, 250: 3, 1000: 1}),
    (16, "standard", [(3, 12, 8), (2, 4, 8)], {62: 9, 250: 5, 1000: 2}),
    (16, "conservative", [(3, 12, 6), (2, 3, 5), (1, 1, 5)], {62: 9, 250: 4, 1000: 3}),
    (64, "aggressive", [(4, 64, 16)], {15: 48, 62: 12, 250: 3, 1000: 1}),
    (64, "standard", [(4, 45, 6), (3, 14, 5), (2, 5, 5)], {15: 34, 62: 20, 250: 7, 1000: 3}),
    (64, "conservative", [(4, 43, 4), (3, 14, 4), (2, 5, 4), (1, 2, 4)], {15: 33, 62: 19, 250: 7, 1000: 5}),
    (128, "aggressive", [(4, 128, 16)], {15: 96, 62: 24, 250: 6, 1000: 2}),
    (128, "standard", [(4, 89, 6), (3, 29, 5), (2, 10, 5)], {15: 67, 62: 39, 250: 18, 1000: 4}),
    (128, "conservative", [(4, 85, 4), (3, 28, 4), (2, 10, 4), (1, 5, 4)], {15: 64, 62: 37, 250: 18, 1000: 9}),
]


@pytest.mark.parametrize(("trials", "mode", "brackets", "preview"), TABLE)
def test_bracket_table_and_preview(trials: int, mode: str, brackets: list, preview: dict[int, int]) -> None:
    assert plan(max_trials=trials, mode=mode) == brackets
    searcher = {"name": "adaptive_asha", "max_trials": trials, "mode": mode, "max_time": 1000, "time_metric": "t"}
    assert {group.length: group.count for group in preview_search(config(searcher))} == preview


@pytest.mark.parametrize(
    ("settings", "brackets"),
    [
        ({"max_length": 100, "max_trials": 500}, [(4, 344, 6), (3, 114, 5), (2, 42, 5)]),
        ({"bracket_rungs": [2, 3], "max_trials": 50, "concurrency": 0}, [(3, 37, 13), (2, 13, 13)]),
        ({"max_trials": 1}, [(1, 1, 16)]),
        ({"max_length": 100, "max_trials": 10, "concurrency": 2}, [(2, 7, 1), (1, 3, 1)]),
        (
            {"divisor": 3, "max_trials": 10, "concurrency": 5, "mode": "conservative"},
            [(3, 7, 2), (2, 2, 2), (1, 1, 1)],
        ),
        (
            {"divisor": 3, "max_length": 243, "max_trials": 243, "max_rungs": 10, "mode": "aggressive"},
            [(6, 243, 16)],
        ),
    ],
)
def test_more_bracket_tables(settings: dict, brackets: list) -> None:
    assert plan(**settings) == brackets


def test_many_rungs_do_not_overflow() -> None:
    assert len(plan(bracket_rungs=[1000, 999])) == 2


@pytest.mark.parametrize(
    ("searcher", "groups"),
    [
        ({"name": "single"}, [(1, None)]),
        ({"name": "random", "max_trials": 5, "max_length": 7}, [(5, 7)]),
        (
            {"name": "async_halving", "num_rungs": 3, "divisor": 3, "max_trials": 12, "max_length": 9000},
            [(8, 1000), (3, 3000), (1, 9000)],
        ),
    ],
)
def test_preview_of_other_searchers(searcher: dict, groups: list) -> None:
    assert [(g.count, g.length) for g in preview_search(config(searcher))] == groups


def test_total_length_of_a_preview_is_known_unless_the_code_decides() -> None:
    assert total_length(preview_search(config({"name": "random", "max_trials": 5, "max_length": 7}))) == 35
    searcher = {"name": "adaptive_asha", "max_trials": 16, "max_time": 1000, "time_metric": "t"}
    assert total_length(preview_search(config(searcher))) == 62 * 9 + 250 * 5 + 1000 * 2
    assert total_length(preview_search(config({"name": "single"}))) is None
    assert total_length([TrialGroup(1, 3), TrialGroup(2, None)]) is None


ADAPTIVE = {"name": "adaptive_asha", "time_metric": "t"}


@pytest.mark.parametrize("lends", [True, False])
def test_run_of_two_brackets(lends: bool) -> None:
    bench = Bench({**ADAPTIVE, "max_time": 90, "divisor": 3, "max_trials": 9, "max_concurrent_trials": 3}, lends=lends)
    bench.start()
    last: list[int] = []
    while not bench.shutdowns:
        number = len(last) + 1
        for time in range(10, 91, 10):
            if any(a.startswith("stop") for a in bench.report(number, loss=number, t=time)):
                last.append(time)
                break
        bench.exit(number)
    assert last == [90, 10, 90, 10, 10, 30, 10, 10, 30]
    assert [bench.search.trial(i).bracket for i in bench.ids] == [0, 0, 1, 0, 0, 1, 0, 0, 1]


@pytest.mark.parametrize("fails", [None, {(2, 0): "errored"}])
def test_run_in_ops(fails: dict | None) -> None:
    bench = Bench({"name": "adaptive_asha", "max_length": 900, "max_trials": 5, "max_rungs": 2, "divisor": 3})
    bench.run_ops(lambda n: n / 10, fails=fails)
    assert bench.lengths == [[300, 900], [300], [300], [900], [900]]


def test_lockstep_run() -> None:
    bench = Bench({**ADAPTIVE, "mode": "aggressive", "max_time": 64, "max_trials": 16, "max_concurrent_trials": 4})
    losses = [0.9, 0.1, 0.5, 0.3, 0.7, 0.2, 0.8, 0.4]
    bench.start()
    trained: dict[int, int] = {}
    while not bench.shutdowns:
        running = [n for n, i in enumerate(bench.ids, 1) if not bench.search.trial(i).ended]
        for number in running:
            trained[number] = trained.get(number, 0) + 4
            actions = bench.report(number, loss=losses[(number - 1) % 8], t=trained[number])
            if f"stop {number}" in actions:
                bench.exit(number)
    assert [trained[n] for n in sorted(trained)] == [64, 64, 4, 4, 4, 4, 4, 4, 4, 64, 4, 4, 4, 16, 4, 4]


def test_places_that_a_bracket_cannot_use_go_to_the_others() -> None:
    searcher = {**ADAPTIVE, "max_time": 1000, "max_trials": 16, "max_concurrent_trials": 16}
    lending, exact = Bench(searcher), Bench(searcher, lends=False)
    assert (len(lending.start()), len(exact.start())) == (16, 12)


def test_a_bracket_that_is_through_hands_its_place_on() -> None:
    searcher = {**ADAPTIVE, "max_time": 90, "divisor": 3, "max_trials": 9, "max_concurrent_trials": 2}
    for lends, expected in ((True, 9), (False, 9)):
        bench = Bench(searcher, lends=lends)
        bench.start()
        # Bracket 1 holds the second trial; its three trials end at once, one after the other.
        others: list[str] = []
        for _ in range(3):
            number = next(
                n
                for n, i in enumerate(bench.ids, 1)
                if bench.search.trial(i).bracket == 1 and not bench.search.trial(i).ended
            )
            others = bench.exit(number)
        assert bool(others) is lends
        while not bench.shutdowns:
            bench.exit(next(n for n, i in enumerate(bench.ids, 1) if not bench.search.trial(i).ended))
        assert len(bench.ids) == expected


def test_rungs_and_trials_are_shown_by_bracket() -> None:
    bench = Bench({**ADAPTIVE, "max_time": 90, "divisor": 3, "max_trials": 9, "max_concurrent_trials": 3})
    bench.start()
    bench.report(3, loss=0.5, t=31)
    assert [(v.bracket, v.rung, v.length, len(v.entries)) for v in bench.search.rungs()] == [
        (0, 0, 10, 0),
        (0, 1, 30, 0),
        (0, 2, 90, 0),
        (1, 0, 30, 1),
        (1, 1, 90, 0),
    ]
    view = bench.search.trial(bench.ids[2])
    assert (view.bracket, view.rung, view.length) == (1, 1, None)


def test_configuration_says_whether_places_are_lent() -> None:
    for said, lends in (({}, True), ({"lend_places": True}, True), ({"lend_places": False}, False)):
        searcher = {**ADAPTIVE, "max_time": 90, "max_trials": 9, **said}
        method = Search.new(config(searcher)).method
        assert isinstance(method, AdaptiveAsha)
        assert method.lends is lends
