"""How metrics of batches and slots become one: built-in reductions, and those that users write."""

from __future__ import annotations

import abc
import enum
import itertools
from typing import Any

import numpy as np

from determined import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Metrics = dict[str, Any]
    Allgather = Callable[[Any], list[Any]]
    #: A value, or the error to raise on all slots.
    Contribution = tuple[Any, "str | None"]

_MISSING: Any = object()


class Reducer(enum.Enum):
    """What `evaluation_reducer` returns: how a validation metric of all batches becomes one number.

    AVG is weighted over slots by their number of batches. An array is reduced over all of its elements.
    """

    AVG = 1
    SUM = 2
    MAX = 3
    MIN = 4


class MetricReducer(abc.ABC):
    """A reduction of your own over all batches of all slots, for `context.wrap_reducer`.

    Feed it from `train_batch` or `evaluate_batch` by a method that you add.
    """

    @abc.abstractmethod
    def reset(self) -> None:
        """Forget everything: called before each training chunk and before each validation."""

    @abc.abstractmethod
    def per_slot_reduce(self) -> Any:
        """What this slot contributes; it must be picklable."""

    @abc.abstractmethod
    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        """The metric, or a dict of metrics, from what each slot contributed, in the order of ranks."""


class SimpleReducer(MetricReducer):
    """What `context.wrap_reducer` makes of a function, which gets all values of all slots as one list."""

    def __init__(self, fn: Callable[[list[Any]], Any]) -> None:
        self._fn = fn
        self._values: list[Any] = []

    def update(self, value: Any) -> None:
        """Add a value. With one for each batch, the function gets them in the order of the data set."""
        self._values.append(value)

    def reset(self) -> None:
        self._values = []

    def per_slot_reduce(self) -> Any:
        return self._values

    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        return self._fn(_interleaved(per_slot_metrics))


def _interleaved(per_slot: list[Any]) -> list[Any]:
    rounds = itertools.zip_longest(*per_slot, fillvalue=_MISSING)
    return [value for values in rounds for value in values if value is not _MISSING]


def default_allgather_fn(metrics: Any) -> list[Any]:
    """The allgather of one slot."""
    return [metrics]


class _Wrapped:
    """A reducer and what it is for."""

    def __init__(self, reducer: MetricReducer, name: str | None, for_training: bool, for_validation: bool) -> None:
        self.reducer = reducer
        self.name = name
        self.for_training = for_training
        self.for_validation = for_validation
        fn = getattr(reducer, "_fn", None)
        self.label = name or getattr(fn, "__name__", None) or type(reducer).__name__

    def contribution(self) -> Contribution:
        """What this slot contributes."""
        try:
            return self.reducer.per_slot_reduce(), None
        except Exception as e:  # noqa: BLE001
            return None, f"the reducer {self.label!r} failed in per_slot_reduce: {type(e).__name__}: {e}"

    def metrics(self, runs: list[list[Contribution]]) -> Metrics:
        """The metrics of what each slot contributed, in one run or one after another."""
        for _, error in itertools.chain.from_iterable(runs):
            if error:
                raise ValueError(error)
        values = [[value for value, _ in run] for run in runs]
        if len(values) > 1 and isinstance(self.reducer, SimpleReducer):
            values = [[_interleaved(run)] for run in values]
            values = [[list(itertools.chain.from_iterable(run[0] for run in values))]]
        try:
            result = self.reducer.cross_slot_reduce(list(itertools.chain.from_iterable(values)))
        except Exception as e:
            raise ValueError(f"the reducer {self.label!r} failed in cross_slot_reduce: {type(e).__name__}: {e}") from e
        if self.name is not None:
            if isinstance(result, dict):
                raise errors.ArgumentsError(
                    f"the reducer {self.label!r} has a name, but returned a dict; wrap it without one"
                )
            return {self.name: result}
        if not isinstance(result, dict):
            raise errors.ArgumentsError(
                f"the reducer {self.label!r} returned {type(result).__name__}, but must return a dict of metrics, as "
                "it was wrapped with name=None"
            )
        return result  # pyright: ignore[reportUnknownVariableType]


class ReducerGroup:
    """The reducers that a trial wrapped."""

    def __init__(self, allgather: Allgather = default_allgather_fn) -> None:
        self._allgather = allgather
        self._wrapped: list[_Wrapped] = []

    def wrap(
        self, reducer: Any, name: str | None = None, for_training: bool = True, for_validation: bool = True
    ) -> MetricReducer:
        """Add a MetricReducer or a function; what to feed values to is returned.

        Raises:
            ArgumentsError: It is neither, or was added before.
        """
        if not isinstance(reducer, MetricReducer):
            if not callable(reducer):
                raise errors.ArgumentsError(
                    f"wrap_reducer: reducer is {type(reducer).__name__}, but must be a function or a MetricReducer"
                )
            reducer = SimpleReducer(reducer)
        if any(wrapped.reducer is reducer for wrapped in self._wrapped):
            raise errors.ArgumentsError(f"wrap_reducer: this {type(reducer).__name__} was wrapped before; wrap it once")
        self._wrapped.append(_Wrapped(reducer, name, for_training, for_validation))
        return reducer

    def __len__(self) -> int:
        return len(self._wrapped)

    def reset(self) -> None:
        """Let all reducers forget."""
        for wrapped in self._wrapped:
            wrapped.reducer.reset()

    def reduce(self, for_training: bool) -> Metrics:
        """The metrics of the reducers for training, or for validation; called on all ranks.

        Raises:
            ValueError: A user's reducer failed.
            ArgumentsError: It returned a dict under a name, or something else without one.
        """
        chosen = [w for w in self._wrapped if (w.for_training if for_training else w.for_validation)]
        if not chosen:
            return {}
        ranks = self._allgather([wrapped.contribution() for wrapped in chosen])
        metrics: Metrics = {}
        for wrapped, *contributions in zip(chosen, *ranks):
            metrics.update(wrapped.metrics([contributions]))
        return metrics

    def contributions(self) -> list[Contribution]:
        """What this slot contributes to each reducer, whatever it is for; to be stored, or to be combined."""
        return [wrapped.contribution() for wrapped in self._wrapped]

    def combine(self, earlier: list[list[list[Contribution]]], now: list[list[Contribution]]) -> Metrics:
        """The metrics of all reducers, from the `contributions` of each slot, in earlier runs too.

        What failed in an earlier run counts for nothing: it had no value then.

        Raises:
            ValueError, ArgumentsError: As `reduce`.
        """
        metrics: Metrics = {}
        for number, wrapped in enumerate(self._wrapped):
            before = [[slot[number] for slot in run if slot[number][1] is None] for run in earlier]
            metrics.update(wrapped.metrics([*filter(None, before), [slot[number] for slot in now]]))
        return metrics


def reduce_validation(
    per_batch: list[Metrics],
    reducers: Reducer | dict[str, Reducer],
    allgather: Allgather = default_allgather_fn,
    num_batches: int | None = None,
) -> Metrics:
    """One number for each validation metric, from all batches of all ranks; called on all ranks.

    Args:
        per_batch: What `evaluate_batch` returned for each batch of this rank.
        num_batches: The weight of this rank; by default the number of its batches.

    Raises:
        RuntimeError: No rank had a batch.
        ValueError: Batches have different metrics, or one isn't numeric.
        InvalidExperimentException: `reducers` does not fit the metrics.
    """
    weight = len(per_batch) if num_batches is None else num_batches
    try:
        mine: Any = _reduce_own(per_batch, reducers)
    except (ValueError, errors.DeterminedException) as e:
        mine = e  # raised once the other ranks know: they would wait for this one
    ranks = allgather((weight, mine))
    there: list[tuple[int, Metrics]] = []
    for weight, one in ranks:
        if isinstance(one, Exception):
            raise one
        if one is not None:
            there.append((weight, one))
    if not there:
        raise RuntimeError("build_validation_data_loader returned a loader without a batch; give it data")
    _check_equal([one for _, one in there], "validation metrics", "rank")
    by_name = _by_name(reducers, there[0][1])
    return {
        name: _combine([one[name] for _, one in there], by_name[name], [weight for weight, _ in there])
        for name in there[0][1]
    }


def _reduce_own(per_batch: list[Metrics], reducers: Any) -> Metrics | None:
    if not per_batch:
        return None
    _check_equal(per_batch, "validation metrics", "batch")
    by_name = _by_name(reducers, per_batch[0])
    reduced: Metrics = {}
    for name, reducer in by_name.items():
        values: list[Any] = []
        for number, metrics in enumerate(per_batch):
            array = _numbers(metrics[name])
            if array is None or not array.size:
                raise ValueError(
                    f"evaluate_batch: the metric {name!r} is {metrics[name]!r} in batch {number}, but must be a number "
                    "or an array of numbers"
                )
            values.append(_combine([array], reducer, [1]))
        reduced[name] = _combine(values, reducer, [1] * len(values))
    return reduced


def _by_name(reducers: Any, metrics: Iterable[str]) -> dict[str, Reducer]:
    if isinstance(reducers, Reducer):
        return dict.fromkeys(metrics, reducers)
    if not isinstance(reducers, dict):
        raise errors.InvalidExperimentException(
            f"evaluation_reducer returned {type(reducers).__name__}, but must return a Reducer, or a dict of them"
        )
    given: dict[str, Any] = reducers  # pyright: ignore[reportUnknownVariableType]
    if set(given) != set(metrics):
        raise errors.InvalidExperimentException(
            f"evaluation_reducer has the metrics {sorted(given)}, but evaluate_batch returned {sorted(metrics)}; they "
            "must be the same"
        )
    for name, reducer in given.items():
        if not isinstance(reducer, Reducer):
            raise errors.InvalidExperimentException(
                f"evaluation_reducer has {reducer!r} for the metric {name!r}, but must have a pytorch.Reducer"
            )
    return {name: given[name] for name in metrics}


def _combine(values: list[Any], reducer: Reducer, weights: list[int]) -> Any:
    if reducer is Reducer.AVG:
        means = [float(np.mean(value, dtype=np.float64)) for value in values]
        total = sum(weights)
        return sum(mean * weight for mean, weight in zip(means, weights)) / total if total else float("nan")
    combined = np.concatenate([np.ravel(value) for value in values])
    function = {Reducer.SUM: np.sum, Reducer.MAX: np.max, Reducer.MIN: np.min}[reducer]
    return function(combined).item()


def reduce_training(
    per_batch: list[Metrics], allgather: Allgather = default_allgather_fn
) -> tuple[Metrics, list[Metrics]]:
    """Averages of a chunk, and each of its batches over all ranks; called on all ranks.

    A None counts for nothing. What isn't numeric has no average, and is the chief's in the batches.

    Raises:
        ValueError: Batches or ranks have different metrics.
    """
    ranks = allgather(per_batch)
    if any(len(one) != len(ranks[0]) for one in ranks):
        raise ValueError(f"ranks trained different numbers of batches: {[len(one) for one in ranks]}")
    _check_equal([metrics for one in ranks for metrics in one], "training metrics", "batch")
    if not ranks[0]:
        return {}, []
    batches = ranks[0]
    if len(ranks) > 1:
        batches = [{name: mean([one[name] for one in batch]) for name in batch[0]} for batch in zip(*ranks)]
    averages: Metrics = {}
    for name in batches[0]:
        arrays = [_numbers(metrics[name]) for metrics in batches if metrics[name] is not None]
        means = [float(np.mean(a, dtype=np.float64)) for a in arrays if a is not None and a.size]
        averages[name] = sum(means) / len(means) if means and len(means) == len(arrays) else None
    return averages, batches


def mean(values: list[Any]) -> Any:
    """Of numbers or arrays; a None counts for nothing, and of what isn't numeric it is the first."""
    given = [value for value in values if value is not None]
    arrays = [array for array in map(_numbers, given) if array is not None]
    if not given or len(arrays) < len(given):
        return given[0] if given else None
    if any(array.shape != arrays[0].shape for array in arrays):
        return float(np.mean(np.concatenate([np.ravel(array) for array in arrays]), dtype=np.float64))
    found = np.mean(arrays, axis=0, dtype=np.float64)
    return found.item() if found.ndim == 0 else found


def _numbers(value: Any) -> np.ndarray[Any, Any] | None:
    """An array of a metric's value, or None if it isn't numeric."""
    try:
        array = np.asarray(value)
    except ValueError:  # a ragged list
        return None
    return array if array.dtype.kind in "biuf" else None


def _check_equal(several: list[Metrics], what: str, of: str) -> None:
    for number, metrics in enumerate(several):
        if metrics.keys() != several[0].keys():
            raise ValueError(
                f"{what} differ: {of} {number} has {sorted(metrics)}, but {of} 0 has {sorted(several[0])}; return "
                "the same for all"
            )
