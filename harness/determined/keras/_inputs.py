"""What a trial trains on and validates with: sequences of batches, arrays, and datasets of TensorFlow.

Source: spec training-apis.md §8.1.
"""

from __future__ import annotations

import abc
import threading
from typing import Any, Union, cast

import keras
import numpy as np

from determined import errors
from determined._random import capture, derived, forked, restore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from determined.keras._context import FitOptions


class SequenceAdapter:
    """A sequence of batches, and how it is read: `keras.utils.PyDataset`, which Keras 2 called Sequence.

    Args:
        sequence: What has `len()` and, by index, batches.
        use_multiprocessing: Read it by processes in place of threads.
        workers: How many of them.
        max_queue_size: How many batches they read ahead.
    """

    def __init__(
        self, sequence: Any, use_multiprocessing: bool = False, workers: int = 1, max_queue_size: int = 10
    ) -> None:
        self.sequence = sequence
        self.reading = {
            "use_multiprocessing": use_multiprocessing,
            "workers": workers,
            "max_queue_size": max_queue_size,
        }


#: Some backends read batches in a thread of their own, and all threads share the random states of the process.
_random_states = threading.RLock()

#: What the loaders of a trial return: a sequence, one in an adapter, (x, y) or (x, y, weights) of arrays, or a dataset
#: of TensorFlow.
InputData = Union[keras.utils.PyDataset, SequenceAdapter, "tuple[Any, ...]", Any]


#: How many batches Keras may look at, to know their shapes.
_LOOKED_AT = 4


class Source(abc.ABC):
    """The training's batches by their index in all of it, pass after pass: the same ones in each process.

    Attributes:
        length: Batches of a pass; None if that is unknown.
        reading: How batches are read ahead: arguments of `keras.utils.PyDataset`.
    """

    length: int | None = None
    reading: dict[str, Any] = {}

    @abc.abstractmethod
    def batch(self, index: int) -> Any:
        """One batch: (x,), (x, y) or (x, y, weights)."""


class Arrays(Source):
    """Samples in an order that depends on the seed and the pass alone.

    Args:
        data: Arrays, or lists and dicts of them, of equal lengths.
        batch_size: Records of a batch.
        shuffle: Whether the order is another one in each pass.
        seed: Of the trial.
    """

    def __init__(self, data: tuple[Any, ...], batch_size: int, shuffle: bool, seed: int) -> None:
        self._data = data
        self._batch_size = batch_size
        self._order = _Order(length_of(data), shuffle, seed)
        self.length = -(-length_of(data) // batch_size)

    def batch(self, index: int) -> Any:
        """Those of its samples; the last batch of a pass may be a smaller one."""
        assert self.length is not None
        number, at = divmod(index, self.length)
        chosen = self._order.of(number)[at * self._batch_size : (at + 1) * self._batch_size]
        return tuple(_mapped(lambda array: array[chosen], part) for part in self._data)


class Batches(Source):
    """A user's sequence of batches. It draws random numbers of its own, by the seed and the batch.

    Args:
        sequence: What has `len()` and, by index, batches; its `on_epoch_end` is called after each pass.
        reading: How it is read ahead.
        shuffle: Whether the order of its batches is another one in each pass.
        seed: Of the trial.
    """

    def __init__(self, sequence: Any, reading: dict[str, Any], shuffle: bool, seed: int) -> None:
        self._sequence = sequence
        self._seed = seed
        self._pass = 0
        self._lock = threading.Lock()
        self.length = len(sequence)
        self.reading = reading
        self._is_apart = int(reading.get("workers", 1)) <= 1 or bool(reading.get("use_multiprocessing"))
        self._order = _Order(self.length, shuffle, seed)

    def batch(self, index: int) -> Any:
        """One of them; a resumed run catches up with what the ends of passes did to the sequence."""
        assert self.length is not None
        number, at = divmod(index, self.length)
        with self._lock:
            while self._pass < number:
                self._end_pass()
        at = int(self._order.of(number)[at])
        if not self._is_apart:  # threads share the process' random states
            return self._sequence[at]
        with _random_states, forked(derived("batch", self._seed, index)):
            return self._sequence[at]

    def _end_pass(self) -> None:
        if hasattr(self._sequence, "on_epoch_end"):
            with _random_states, forked(derived("pass", self._seed, self._pass)):
                self._sequence.on_epoch_end()
        self._pass += 1

    def __getstate__(self) -> dict[str, Any]:  # for processes that read ahead
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())


class Dataset(Source):
    """A dataset of TensorFlow, repeated. It is read in its own order; a resumed run skips what was trained."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._batches: Any = None
        self._next = 0
        self._last: Any = None
        count = int(dataset.cardinality())
        self.length = count if count > 0 else None

    def batch(self, index: int) -> Any:
        """The batch of that index, or the one before once more: the model is built by the first one."""
        if self._batches is not None and index == self._next - 1:
            return self._last
        if self._batches is None or index != self._next:
            self._batches, self._next = self._dataset.repeat().skip(index).as_numpy_iterator(), index
        self._last = next(self._batches)
        self._next += 1
        return self._last


class Workload(keras.utils.PyDataset):
    """Some batches of a source, for one call of `fit`.

    Args:
        source: Where they come from.
        first: Index of the first one.
        count: How many.
    """

    def __init__(self, source: Source, first: int, count: int) -> None:
        super().__init__(**source.reading)  # pyright: ignore[reportUnknownMemberType]
        self._source, self._first, self._count = source, first, count
        self._seen: dict[int, Any] = {}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        """A batch as Keras takes it; it looks at the first ones twice, and a source is read forwards only."""
        if index in self._seen:
            return self._seen[index]
        batch = self._source.batch(self._first + index)
        batch = tuple(cast("list[Any]", batch)) if isinstance(batch, list) else batch
        if index < _LOOKED_AT:
            self._seen[index] = batch
        return batch


class _Order:
    """The order of a pass, by its number."""

    def __init__(self, count: int, shuffle: bool, seed: int) -> None:
        self._count, self._shuffle, self._seed = count, shuffle, seed
        self._known: tuple[int, Any] = (-1, None)

    def of(self, number: int) -> Any:
        """Indices, an array of NumPy."""
        known, order = self._known
        if known != number:
            order = np.arange(self._count)
            if self._shuffle:
                np.random.RandomState(derived("order", self._seed, number) % 2**32).shuffle(order)
            self._known = number, order
        return order


def random_states() -> Any:
    """Those of the process, as they are between two batches."""
    with _random_states:
        return capture()


def set_random_states(states: Any) -> None:
    """Put back what `random_states` returned."""
    with _random_states:
        restore(states)


# -- from what a loader returned ---------------------------------------------------------------------------------------


def training_source(data: InputData, options: FitOptions, batch_size: Callable[[], int], seed: int) -> Source:
    """The training's batches; `data` was checked."""
    if is_dataset(data):
        return Dataset(data)
    if isinstance(data, tuple):
        return Arrays(_as_arrays(cast("tuple[Any, ...]", data)), batch_size(), options.shuffle, seed)
    reading = options.reading()
    if isinstance(data, SequenceAdapter):
        return Batches(data.sequence, {**reading, **data.reading}, options.shuffle, seed)
    return Batches(data, reading, options.shuffle, seed)


def validation_arguments(data: InputData, options: FitOptions, batch_size: Callable[[], int]) -> dict[str, Any]:
    """Those of `model.evaluate`; `data` was checked."""
    given: dict[str, Any] = {"steps": options.validation_steps}
    if isinstance(data, tuple):
        names = ("x", "y", "sample_weight")
        return {**given, "batch_size": batch_size(), **dict(zip(names, _as_arrays(cast("tuple[Any, ...]", data))))}
    return {**given, "x": data.sequence if isinstance(data, SequenceAdapter) else data}


def check(data: Any, name: str, place: str, batch_size: Callable[[], int]) -> None:
    """Refuse what is no data to train on or to validate with.

    Args:
        data: What the loader returned.
        name: Of the method.
        place: File and line of it.
        batch_size: Records of a batch; asked for arrays only.

    Raises:
        InvalidDataTypeException: It is none of the kinds that are known.
        InvalidExperimentException: It is empty, or its parts are of different lengths.
        ValueError: There is no batch size.
    """
    if isinstance(data, tuple):
        _check_arrays(cast("tuple[Any, ...]", data), name, place, batch_size())
        return
    inner = data.sequence if isinstance(data, SequenceAdapter) else data
    if is_dataset(inner):
        return
    if isinstance(inner, (list, dict, str, np.ndarray)) or not all(
        hasattr(inner, each) for each in ("__len__", "__getitem__")
    ):
        raise errors.InvalidDataTypeException(
            f"{place}: {name} returned a {type(data).__name__}, but must return a keras.utils.PyDataset, a "
            "determined.keras.SequenceAdapter, (x, y) or (x, y, weights) of NumPy arrays, or a tf.data.Dataset"
        )
    if not len(inner):
        raise errors.InvalidExperimentException(f"{place}: {name} returned a {type(inner).__name__} without a batch")


def _check_arrays(data: tuple[Any, ...], name: str, place: str, batch_size: int) -> None:
    if not 1 <= len(data) <= 3:
        raise errors.InvalidDataTypeException(
            f"{place}: {name} returned a tuple of {len(data)}, but must return (x, y) or (x, y, weights)"
        )
    lengths = [len(array) for array in _leaves(_as_arrays(data, f"{place}: {name}"))]
    if len(set(lengths)) != 1:
        raise errors.InvalidExperimentException(
            f"{place}: {name} returned arrays of different lengths: {', '.join(map(str, lengths))}"
        )
    if lengths[0] < batch_size:
        raise errors.InvalidExperimentException(
            f"{place}: {name} returned {lengths[0]} records, but a batch has {batch_size}: give it data, or set "
            "hyperparameters.global_batch_size to less"
        )


def is_dataset(data: Any) -> bool:
    """Whether it is a dataset of TensorFlow, which is not imported for it."""
    kinds: tuple[Any, ...] = type(data).__mro__
    return any(kind.__name__ == "DatasetV2" and kind.__module__.startswith("tensorflow.") for kind in kinds)


def length_of(data: Any) -> int:
    """How many records arrays have."""
    return len(_leaves(data)[0])


def _as_arrays(part: Any, of: str = "") -> Any:
    """Lists and dicts of arrays as they are, numbers as an array. Raises: InvalidDataTypeException."""
    if part is None or isinstance(part, np.ndarray):
        return cast("Any", part)
    if isinstance(part, dict):
        return {name: _as_arrays(value, of) for name, value in cast("dict[Any, Any]", part).items()}
    if isinstance(part, tuple):
        return tuple(_as_arrays(value, of) for value in cast("tuple[Any, ...]", part))
    if isinstance(part, list):
        items = cast("list[Any]", part)
        return [_as_arrays(item, of) for item in items] if _has_arrays(items) else np.array(items)
    if hasattr(part, "to_numpy"):  # of pandas
        return part.to_numpy()
    raise errors.InvalidDataTypeException(
        f"{of} returned a {type(part).__name__} in its tuple, but must return NumPy arrays, or lists and dicts of them"
    )


def _has_arrays(items: list[Any]) -> bool:
    return any(isinstance(item, (np.ndarray, dict)) for item in items)


def _mapped(change: Callable[[Any], Any], part: Any) -> Any:
    if part is None:
        return None
    if isinstance(part, dict):
        return {name: _mapped(change, value) for name, value in cast("dict[Any, Any]", part).items()}
    if isinstance(part, (list, tuple)):
        items = [_mapped(change, value) for value in cast("list[Any]", part)]
        return tuple(items) if isinstance(part, tuple) else items
    return change(part)


def _leaves(part: Any) -> list[Any]:
    found: list[Any] = []
    _mapped(found.append, part)
    return found
