"""How metrics of batches and ranks become one. Ranks are threads that meet in a real allgather."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from determined import errors
from determined.pytorch._reducer import (
    MetricReducer,
    Reducer,
    ReducerGroup,
    default_allgather_fn,
    reduce_training,
    reduce_validation,
)


def _on_ranks(size: int, work: Callable[[int, Callable[[Any], list[Any]]], Any]) -> list[Any]:
    """What `work(rank, allgather)` returned or raised on each rank; one that is missing breaks the others."""
    barrier = threading.Barrier(size)
    table: dict[int, Any] = {}

    def one(rank: int) -> Any:
        def allgather(value: Any) -> list[Any]:
            table[rank] = value
            barrier.wait(5)
            gathered = [table[r] for r in range(size)]
            barrier.wait(5)
            return gathered

        try:
            return work(rank, allgather)
        except Exception as e:  # noqa: BLE001
            return e

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


def _validation(per_rank: list[list[dict[str, Any]]], reducers: Any = Reducer.AVG) -> list[Any]:
    return _on_ranks(len(per_rank), lambda rank, gather: reduce_validation(per_rank[rank], reducers, gather))


def test_averages_weigh_ranks_by_their_batches() -> None:
    # Acceptance case 4.
    assert _validation([[{"sum": np.float64(6)}, {"sum": 38}], [{"sum": 22}]]) == [{"sum": 22.0}] * 2
    assert _validation([[{"a": 1}, {"a": 1}, {"a": 1}], [{"a": 5}]]) == [{"a": 2.0}] * 2


def test_a_rank_without_a_batch_contributes_nothing() -> None:
    # Acceptance case 5.
    for reducer in Reducer:
        assert _validation([[{"a": np.float32(-3)}], []], reducer) == [{"a": -3.0}] * 2
    errors_of_all = _validation([[], []])
    assert [type(e) for e in errors_of_all] == [RuntimeError] * 2
    assert "loader without a batch" in str(errors_of_all[0])


@pytest.mark.parametrize(
    ("reducer", "value"), [(Reducer.AVG, 3.0), (Reducer.SUM, 18), (Reducer.MAX, 6), (Reducer.MIN, 1)]
)
def test_arrays_are_reduced_over_all_elements(reducer: Reducer, value: float) -> None:
    ranks = [[{"a": np.array([[1, 2], [3, 4]])}, {"a": np.array([6])}], [{"a": 2}]]
    got = _validation(ranks, reducer)[0]["a"]
    assert got == (pytest.approx((2.5 + 6 + 2) / 3) if reducer is Reducer.AVG else value)
    assert type(got) in (int, float)


def test_each_metric_has_its_reducer() -> None:
    reducers = {"a": Reducer.SUM, "b": Reducer.MAX}
    assert _validation([[{"a": 1, "b": 1}, {"b": 7, "a": 2}]], reducers) == [{"a": 3, "b": 7}]
    for wrong, message in (
        ({"a": Reducer.SUM}, r"has the metrics \['a'\], but evaluate_batch returned \['a', 'b'\]"),
        ({"a": Reducer.SUM, "b": "max"}, "has 'max' for the metric 'b'"),
        ("avg", "returned str, but must return a Reducer"),
    ):
        with pytest.raises(errors.InvalidExperimentException, match=message):
            reduce_validation([{"a": 1, "b": 1}], wrong)  # type: ignore[arg-type]


def test_metrics_that_do_not_fit_are_an_error_on_all_ranks() -> None:
    for per_rank, message in (
        ([[{"a": 1}, {"b": 1}], [{"a": 1}]], "batch 1 has ['b'], but batch 0 has ['a']"),
        ([[{"a": 1}], [{"b": 1}]], "rank 1 has ['b'], but rank 0 has ['a']"),
        ([[{"a": 1}], [{"a": "high"}]], "metric 'a' is 'high' in batch 0"),
        ([[{"a": 1}, {"a": None}], [{"a": 1}]], "metric 'a' is None in batch 1"),
    ):
        raised = _validation(per_rank)
        assert [type(e) for e in raised] == [ValueError] * 2
        assert all(message in str(e) for e in raised)


def test_training_metrics_are_means_over_ranks_and_then_over_the_chunk() -> None:
    ranks = [
        [{"loss": 0.0, "some": None, "name": "x"}, {"loss": 2.0, "some": 1.0, "name": "y"}],
        [{"loss": 1.0, "some": None, "name": "z"}, {"loss": 5.0, "some": None, "name": "w"}],
    ]
    averages, batches = _on_ranks(2, lambda rank, gather: reduce_training(ranks[rank], gather))[1]
    assert averages == {"loss": 2.0, "some": 1.0, "name": None}
    assert batches == [{"loss": 0.5, "some": None, "name": "x"}, {"loss": 3.5, "some": 1.0, "name": "y"}]


def test_training_metrics_of_one_slot() -> None:
    per_batch = [{"loss": np.array([1.0, 3.0]), "n": 1}, {"loss": np.array([5.0, 7.0]), "n": 2}]
    averages, batches = reduce_training(per_batch)
    assert averages == {"loss": 4.0, "n": 1.5}
    assert batches is per_batch
    assert reduce_training([]) == ({}, [])
    with pytest.raises(ValueError, match=r"training metrics differ: batch 1 has \['b'\], but batch 0 has \['a'\]"):
        reduce_training([{"a": 1}, {"b": 1}])
    arrays = [[{"a": np.array([1.0, 2.0])}], [{"a": np.array([3.0, 4.0])}]]
    _, merged = _on_ranks(2, lambda rank, gather: reduce_training(arrays[rank], gather))[0]
    assert merged[0]["a"].tolist() == [2.0, 3.0]


class Largest(MetricReducer):
    def __init__(self) -> None:
        self.values: list[int] = []

    def reset(self) -> None:
        self.values = []

    def per_slot_reduce(self) -> Any:
        return max(self.values)

    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        return {"largest": max(per_slot_metrics), "of": per_slot_metrics}


def test_functions_get_values_in_the_order_of_the_dataset() -> None:
    # Acceptance case 16: five batches over two ranks.
    calls: list[int] = []

    def work(rank: int, gather: Any) -> Any:
        def counted(value: Any) -> list[Any]:
            calls.append(rank)
            return gather(value)

        group = ReducerGroup(counted)
        both = group.wrap(lambda values: list(values), name="values")
        validation = group.wrap(len, name="count", for_training=False)
        own = group.wrap(Largest(), for_validation=False)
        group.reset()
        for value in range(rank, 5, 2):
            both.update(value)  # type: ignore[attr-defined]
            validation.update(value)  # type: ignore[attr-defined]
            own.values.append(value)  # type: ignore[attr-defined]
        results = [group.reduce(for_training=True), group.reduce(for_training=False)]
        group.reset()
        both.update(9)  # type: ignore[attr-defined]
        return [*results, group.reduce(for_training=False)]

    training = {"values": [0, 1, 2, 3, 4], "largest": 4, "of": [4, 3]}
    validation = {"values": [0, 1, 2, 3, 4], "count": 5}
    assert _on_ranks(2, work) == [[training, validation, {"values": [9, 9], "count": 0}]] * 2
    assert sorted(calls) == [0, 0, 0, 1, 1, 1]  # one allgather each time


def test_reducers_that_are_used_wrongly_are_named() -> None:
    group = ReducerGroup(default_allgather_fn)
    assert group.reduce(for_training=True) == {}
    own = Largest()
    assert group.wrap(own, name="own") is own
    with pytest.raises(AssertionError, match="this Largest was wrapped before"):
        group.wrap(own)
    with pytest.raises(AssertionError, match="reducer is int, but must be a function or a MetricReducer"):
        group.wrap(3)
    own.values = [1]
    with pytest.raises(AssertionError, match="'own' has a name, but returned a dict"):
        group.reduce(for_training=True)
    unnamed = ReducerGroup()
    unnamed.wrap(len)
    with pytest.raises(AssertionError, match="'len' returned int, but must return a dict of metrics"):
        unnamed.reduce(for_training=False)


def test_a_failing_reducer_fails_all_ranks() -> None:
    def work(rank: int, gather: Any) -> Any:
        group = ReducerGroup(gather)
        own = group.wrap(Largest(), name="best")
        own.values = [1] if rank else []  # type: ignore[attr-defined]
        return group.reduce(for_training=True)

    raised = _on_ranks(2, work)
    assert [type(e) for e in raised] == [ValueError] * 2
    assert all("the reducer 'best' failed in per_slot_reduce: ValueError" in str(e) for e in raised)
    group = ReducerGroup()
    group.wrap(lambda values: 1 / len(values), name="inverse")
    with pytest.raises(ValueError, match="'inverse' failed in cross_slot_reduce: ZeroDivisionError"):
        group.reduce(for_training=True)
