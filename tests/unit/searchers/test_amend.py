"""Changing a search while it runs."""

from typing import Any

import pytest
from search_bench import Bench, config

from workflows.searchers import Amended, Search, SearchError, Started
from workflows.searchers.replay import replay

SPACE = {"x": {"type": "int", "minval": 0, "maxval": 9, "count": 5}}
RANDOM = {"name": "random", "max_trials": 3, "max_concurrent_trials": 2}


def amend(bench: Bench, **changes: Any) -> list[str]:
    return bench.send(Amended(**changes))


def refused(bench: Bench, **changes: Any) -> str:
    before = bench.search.model_dump_json()
    with pytest.raises(SearchError) as refusal:
        amend(bench, **changes)
    assert bench.search.model_dump_json() == before
    return str(refusal.value)


# --- random, single, grid


def test_random_takes_more_trials_and_more_places() -> None:
    bench = Bench(RANDOM)
    bench.start()
    assert amend(bench, max_trials=6) == []
    assert amend(bench, max_concurrent_trials=4) == ["create 3", "create 4"]
    assert amend(bench, max_concurrent_trials=4) == []
    assert bench.exit(1) == ["create 5"]
    assert amend(bench, max_concurrent_trials=0) == ["create 6"]


def test_random_fills_places_that_had_no_trial_left() -> None:
    bench = Bench(RANDOM)
    bench.start()
    bench.exit(1)
    assert bench.exit(2) == []
    assert amend(bench, max_trials=5) == ["create 4"]


def test_random_with_all_trials_at_once_starts_the_new_ones_at_once() -> None:
    bench = Bench({**RANDOM, "max_concurrent_trials": 0})
    bench.start()
    assert amend(bench, max_trials=5) == ["create 4", "create 5"]
    assert "max_concurrent_trials must be at least" in refused(bench, max_concurrent_trials=9)


def test_only_raises_are_taken_and_the_sentence_says_what_is() -> None:
    bench = Bench({**RANDOM, "max_length": 10})
    bench.start()
    for field, now in (("max_trials", 3), ("max_concurrent_trials", 2), ("max_length", 10)):
        assert refused(bench, **{field: 1}) == (
            f"{field} must be at least {now}, as it is now: it can only be raised, but is 1"
        )
    # One that cannot be takes the others with it.
    assert refused(bench, max_trials=1, max_concurrent_trials=9)
    assert refused(bench, max_trials=9, hyperparameters={"lr": 7})


def test_a_longer_training_reaches_all_that_are_not_over() -> None:
    bench = Bench({**RANDOM, "max_length": 10, "max_concurrent_trials": 3})
    bench.start()
    bench.complete(1, 0.1)
    bench.close(1)
    bench.complete(2, 0.2)
    assert amend(bench, max_length=15) == ["train 2 to 15"]
    assert bench.complete(3, 0.3) == ["train 3 to 15"]
    view = bench.search.trial(bench.ids[2])
    assert (view.length, view.completed, view.closed) == (15, False, True)
    assert bench.complete(3, 0.3, length=10) == []  # a repeat
    assert bench.complete(3, 0.3) == []
    assert amend(bench, max_trials=4, max_concurrent_trials=4) == ["create 4", "train 4 to 15", "close 4"]


def test_a_length_that_the_code_decides_cannot_be_changed() -> None:
    bench = Bench(RANDOM)
    bench.start()
    assert "max_length cannot become 20: the config gives none" in refused(bench, max_length=20)


def test_a_narrowed_space_is_what_later_trials_are_drawn_from() -> None:
    bench = Bench(RANDOM, SPACE)
    bench.start()
    assert amend(bench, hyperparameters={"x": 3}) == []
    bench.exit(1)
    assert bench.hparams[-1] == {"x": 3}
    assert "hyperparameters.x: 12 is not the constant 3" in refused(bench, hyperparameters={"x": 12})


def test_single_can_only_train_longer() -> None:
    bench = Bench({"name": "single", "max_length": 10}, SPACE)
    bench.start()
    for changes in ({"max_trials": 2}, {"max_concurrent_trials": 2}, {"hyperparameters": {"x": 3}}):
        assert "a single search is one trial" in refused(bench, **changes)
    assert amend(bench, max_length=20) == []
    assert bench.complete(1, 0.1) == ["train 1 to 20"]


def test_grid_keeps_its_points() -> None:
    bench = Bench({"name": "grid", "max_concurrent_trials": 2}, SPACE)
    bench.start()
    assert "all 5 points" in refused(bench, max_trials=9)
    assert "list of points" in refused(bench, hyperparameters={"x": 3})
    assert amend(bench, max_concurrent_trials=4) == ["create 3", "create 4"]


def test_nothing_is_created_before_the_search_has_started() -> None:
    for searcher in (RANDOM, ASHA):
        bench = Bench(searcher)
        assert amend(bench, max_trials=50, max_concurrent_trials=5) == []
        assert len([a for a in bench.start() if a.startswith("create")]) == 5


# --- halving

ASHA = {
    "name": "async_halving",
    "num_rungs": 2,
    "divisor": 2,
    "max_trials": 4,
    "max_length": 10,
    "max_concurrent_trials": 2,
}
EVENTS = {key: value for key, value in ASHA.items() if key != "max_length"} | {"max_time": 10, "time_metric": "t"}


@pytest.mark.parametrize("stop_once", [False, True])
def test_more_trials_and_places_of_one_bracket(stop_once: bool) -> None:
    bench = Bench({**ASHA, "stop_once": stop_once})
    bench.start()
    assert amend(bench, max_concurrent_trials=3) == ["create 3", "train 3 to 5"]
    assert amend(bench, max_trials=5, max_concurrent_trials=5) == [
        "create 4",
        "train 4 to 5",
        "create 5",
        "train 5 to 5",
    ]
    assert refused(bench, max_trials=4).startswith("max_trials must be at least 5")
    assert refused(bench, max_concurrent_trials=0).startswith("max_concurrent_trials must be at least 5")


def test_a_place_of_a_stopped_or_paused_trial_is_free() -> None:
    bench = Bench({**EVENTS, "max_trials": 2})
    bench.start()
    bench.report(1, loss=0.1, t=5)
    assert bench.report(2, loss=0.2, t=5) == ["stop 2"]
    assert amend(bench, max_trials=5) == ["create 3"]
    bench = Bench({**ASHA, "max_trials": 3})
    bench.start()
    bench.complete(1, 0.5)
    bench.complete(2, 0.4)
    assert bench.search.trial(bench.ids[0]).completed
    assert not bench.search.trial(bench.ids[0]).closed
    assert amend(bench, max_trials=5) == []  # trials 2 and 3 have the places
    assert bench.complete(3, 0.6) == ["create 4", "train 4 to 5"]


@pytest.mark.parametrize("stop_once", [False, True])
def test_the_top_can_be_raised_until_a_trial_is_there(stop_once: bool) -> None:
    bench = Bench({**ASHA, "stop_once": stop_once})
    bench.start()
    bench.complete(1, 0.1)
    bench.complete(2, 0.2)
    assert bench.search.trial(bench.ids[0]).length == 10
    assert amend(bench, max_length=30) == []
    assert [view.length for view in bench.search.rungs()] == [5, 30]
    assert bench.complete(1, 0.1, length=10) == ["train 1 to 30"]
    assert bench.search.rungs()[1].entries == []
    assert "close 1" in bench.complete(1, 0.1)
    sentence = refused(bench, max_length=40)
    assert sentence.startswith("max_length cannot become 40: trials have been compared at 30 already")
    assert "det experiment fork" in sentence
    assert amend(bench, max_length=30) == []


def test_the_top_of_the_events_generation_is_called_max_time() -> None:
    bench = Bench(EVENTS)
    bench.start()
    assert refused(bench, max_length=9).startswith("max_time must be at least 10")
    assert amend(bench, max_length=20) == []
    assert bench.report(1, loss=0.1, t=10) == []
    assert bench.report(1, loss=0.1, t=20) == ["stop 1", "create 3"]
    assert refused(bench, max_length=30).startswith("max_time cannot become 30")


def test_one_rung_can_be_raised_too() -> None:
    bench = Bench({**ASHA, "num_rungs": 1})
    bench.start()
    amend(bench, max_length=30)
    assert bench.complete(1, 0.1) == ["train 1 to 30"]
    assert bench.complete(1, 0.1) == ["close 1", "create 3", "train 3 to 30"]


ADAPTIVE = {
    "name": "adaptive_asha",
    "divisor": 4,
    "max_time": 1000,
    "time_metric": "t",
    "max_trials": 16,
    "max_concurrent_trials": 4,
}


def shares(bench: Bench) -> list[tuple[int, int]]:
    return [(b.max_trials, b.concurrency) for b in getattr(bench.search.method, "brackets", [])]


def test_more_trials_are_shared_by_the_same_weights() -> None:
    bench = Bench(ADAPTIVE)
    bench.start()
    assert shares(bench) == [(12, 2), (4, 2)]
    amend(bench, max_trials=64)
    assert shares(bench) == [(47, 2), (17, 2)]
    assert len(amend(bench, max_concurrent_trials=7)) == 3
    assert shares(bench) == [(47, 4), (17, 3)]


def test_no_bracket_shrinks_and_no_trial_is_made_up() -> None:
    for total in range(16, 90):
        bench = Bench({**ADAPTIVE, "mode": "conservative"})
        before = [trials for trials, _ in shares(bench)]
        amend(bench, max_trials=total)
        after = [trials for trials, _ in shares(bench)]
        assert all(now >= then for now, then in zip(after, before, strict=True))
        assert sum(after) == max(total, sum(before))


@pytest.mark.parametrize(("lends", "created"), [(True, 4), (False, 2)])
def test_places_that_a_bracket_cannot_use_are_lent_if_it_lends(lends: bool, created: int) -> None:
    bench = Bench({**ADAPTIVE, "bracket_rungs": [3, 1], "max_trials": 6, "max_concurrent_trials": 2}, lends=lends)
    assert shares(bench) == [(5, 1), (1, 1)]
    bench.start()
    assert len(amend(bench, max_concurrent_trials=6)) == created
    running = [bench.search.trial(i).bracket for i in bench.ids]
    assert running.count(1) == 1


def test_a_search_that_was_amended_replays_to_the_same_bytes() -> None:
    for searcher in (ADAPTIVE, RANDOM, {**ASHA, "max_trials": 9}):
        search = Search.new(config(searcher, SPACE))
        decisions = [search.decide(Started())]
        for change in (
            Amended(max_trials=20, hyperparameters={"x": {"type": "int", "minval": 2, "maxval": 4}}),
            Amended(max_concurrent_trials=8),
            Amended(hyperparameters={"x": 3}),
        ):
            decisions.append(search.decide(change))
        again = Search.new(config(searcher, SPACE))
        assert replay(again, decisions) is None
        assert again.model_dump_json() == search.model_dump_json()
