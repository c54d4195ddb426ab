"""How many trials a search says that it will ask for yet: their numbers are reserved."""

from typing import Any

import pytest
from search_bench import Bench

from workflows.searchers import Event

GRID = {"a": {"type": "categorical", "vals": [1, 2, 3]}, "b": {"type": "categorical", "vals": [1, 2]}}
HALVING = {"max_trials": 9, "max_concurrent_trials": 2, "divisor": 2, "max_length": 8}


class _Counting(Bench):
    """Notes after each event how many trials there are to be in all."""

    def send(self, event: Event) -> list[str]:
        actions = super().send(event)
        self.promised = [*getattr(self, "promised", []), len(self.ids) + self.search.to_come]
        return actions


@pytest.mark.parametrize(
    ("searcher", "total"),
    [
        ({"name": "random", "max_trials": 5, "max_concurrent_trials": 2, "max_length": 1}, 5),
        ({"name": "random", "max_trials": 5, "max_length": 1}, 5),
        ({"name": "grid", "max_concurrent_trials": 4, "max_length": 1}, 6),
        ({"name": "async_halving", "num_rungs": 3, **HALVING}, 9),
        ({"name": "async_halving", "num_rungs": 3, "stop_once": True, **HALVING}, 9),
        ({"name": "adaptive_asha", "mode": "conservative", **HALVING}, 9),
    ],
)
def test_trials_that_are_to_come_come(searcher: dict[str, Any], total: int) -> None:
    bench = _Counting(searcher, GRID)
    bench.run_ops(lambda number: number)
    assert bench.promised == [total] * len(bench.promised)
    assert len(bench.ids) == total


@pytest.mark.parametrize(("name", "more"), [("random", {}), ("async_halving", {"num_rungs": 2})])
def test_trial_that_takes_the_place_of_an_invalid_one_is_to_come(name: str, more: dict[str, Any]) -> None:
    searcher = {"name": name, "max_trials": 4, "max_concurrent_trials": 2, "max_length": 4} | more
    bench = _Counting(searcher)
    bench.run_ops(lambda number: number, fails={(3, 0): "invalid_hp"})
    assert sorted(set(bench.promised)) == [4, 5]
    assert bench.promised == sorted(bench.promised)
    assert len(bench.ids) == 5


@pytest.mark.parametrize("searcher", [{"name": "single", "max_length": 1}, {"name": "custom"}])
def test_nothing_is_promised_where_it_is_not_known(searcher: dict[str, Any]) -> None:
    bench = Bench(searcher)
    bench.start()
    assert bench.search.to_come == 0
