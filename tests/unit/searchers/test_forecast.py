"""What a search would still do, with a change and without."""

from typing import Any

import pytest
from search_bench import Bench, config

from workflows.searchers import Amended, Search, SearchError, forecast, preview_search, total_length

RANDOM = {"name": "random", "max_trials": 6, "max_length": {"batches": 10}, "max_concurrent_trials": 2}
ASHA = {
    "name": "async_halving", "num_rungs": 3, "max_trials": 16, "max_length": {"batches": 64}, "divisor": 4,
    "max_concurrent_trials": 4,
}  # fmt: skip
ADAPTIVE = {
    "name": "adaptive_asha", "mode": "standard", "max_rungs": 3, "max_trials": 24, "max_length": {"batches": 64},
    "max_concurrent_trials": 8,
}  # fmt: skip
PBT = {
    "name": "pbt", "population_size": 4, "num_rounds": 3, "length_per_round": {"batches": 5},
    "replace_function": {"truncate_fraction": 0.25},
    "explore_function": {"resample_probability": 0.2, "perturb_factor": 0.2},
}  # fmt: skip
OPTUNA = {
    "name": "optuna", "max_trials": 5, "max_length": {"batches": 8}, "max_concurrent_trials": 2,
}  # fmt: skip


@pytest.mark.parametrize("searcher", [RANDOM, PBT, OPTUNA, {"name": "single", "max_length": {"batches": 7}}])
def test_from_the_start_it_is_what_the_preview_says(searcher: dict[str, Any]) -> None:
    parsed = config(searcher)
    groups = preview_search(parsed)
    found = forecast(Search.new(parsed))
    assert found.units == total_length(groups)
    assert found.is_whole
    assert found.total == found.new
    if searcher is not PBT:  # whose copies are trials of their own
        assert found.total == sum(group.count for group in groups)


@pytest.mark.parametrize("searcher", [ASHA, ADAPTIVE])
def test_halving_creates_all_trials_and_promotes_about_one_in_four(searcher: dict[str, Any]) -> None:
    parsed = config(searcher)
    planned = total_length(preview_search(parsed))
    found = forecast(Search.new(parsed))
    assert (found.total, found.is_whole) == (searcher["max_trials"], True)
    assert planned is not None
    assert found.units is not None
    assert 0.5 * planned < found.units < 2 * planned
    assert found.promotions == sum(rung.promoted for rung in found.rungs) > 0
    assert found.at_once <= searcher["max_concurrent_trials"]


def test_search_itself_stays_as_it_is() -> None:
    bench = Bench(ASHA)
    bench.start()
    bench.complete(1, 0.3)
    before = bench.search.model_dump_json()
    forecast(bench.search, change=Amended(max_trials=32))
    assert bench.search.model_dump_json() == before


def test_more_trials_are_created_and_trained() -> None:
    bench = Bench(RANDOM)
    bench.start()
    bench.complete(1, 0.5)
    bench.close(1)
    without, with_it = forecast(bench.search), forecast(bench.search, change=Amended(max_trials=10))
    assert (without.total, without.new, without.units, without.longest, without.at_once) == (6, 3, 50.0, 30.0, 2)
    assert (with_it.total, with_it.new, with_it.units, with_it.longest) == (10, 7, 90.0, 50.0)


def test_more_places_make_it_shorter_and_train_the_same() -> None:
    bench = Bench(RANDOM)
    bench.start()
    without, with_it = forecast(bench.search), forecast(bench.search, change=Amended(max_concurrent_trials=6))
    assert (without.units, with_it.units) == (60.0, 60.0)
    assert (without.longest, with_it.longest) == (30.0, 10.0)
    assert with_it.at_once == 6


def test_what_was_trained_is_not_trained_again() -> None:
    bench = Bench(RANDOM)
    bench.start()
    found = forecast(bench.search, {bench.ids[0]: 4.0, bench.ids[1]: 10.0})
    assert found.units == 46.0


def test_longer_training_counts_for_trials_that_are_not_over() -> None:
    bench = Bench(RANDOM)
    bench.start()
    bench.complete(1, 0.5)
    bench.close(1)
    assert forecast(bench.search, change=Amended(max_length=20)).units == 100.0


def test_trial_that_was_good_is_promoted_in_the_simulation_too() -> None:
    bench = Bench({**ASHA, "smaller_is_better": True})
    bench.start()
    for number, value in ((1, 0.9), (2, 0.8), (3, 0.1)):
        bench.complete(number, value)
    found = forecast(bench.search)
    assert found.rungs[0].compared == 16
    assert found.promotions >= 4


def test_events_generation_trains_to_the_top_rung_or_is_stopped() -> None:
    bench = Bench({
        "name": "async_halving", "num_rungs": 2, "max_trials": 8, "max_time": 16, "time_metric": "batches", "divisor": 4,
        "max_concurrent_trials": 4,
    })  # fmt: skip
    bench.start()
    found = forecast(bench.search)
    assert (found.total, found.is_whole) == (8, True)
    assert found.units is not None
    assert 8 * 4 <= found.units < 8 * 16


def test_length_is_unknown_where_the_code_decides() -> None:
    bench = Bench({"name": "random", "max_trials": 3, "max_concurrent_trials": 1})
    bench.start()
    found = forecast(bench.search, change=Amended(max_trials=5))
    assert (found.total, found.new, found.units, found.longest) == (5, 4, None, None)


def test_change_that_is_refused_is_refused_with_the_same_sentence() -> None:
    bench = Bench(RANDOM)
    bench.start()
    with pytest.raises(SearchError, match="max_trials must be at least 6, as it is now"):
        forecast(bench.search, change=Amended(max_trials=2))
    with pytest.raises(SearchError, match="its own program decides"):
        forecast(Search.new(config({"name": "custom"})))


def test_simulation_ends_where_it_becomes_too_large() -> None:
    found = forecast(Search.new(config({**RANDOM, "max_trials": 50})), most=10)
    assert not found.is_whole
