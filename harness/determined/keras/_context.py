"""`TFKerasTrialContext`: what a `TFKerasTrial` knows of its run, and what it says of its training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from determined import errors
from determined._trial_context import TrialContext

_UNSET: Any = object()


@dataclass
class FitOptions:
    """How batches are read and trained: what `TFKerasTrialContext.configure_fit` was given."""

    verbose: bool = True
    class_weight: Any = None
    workers: int = 1
    use_multiprocessing: bool = False
    max_queue_size: int = 10
    shuffle: bool = True
    validation_steps: int | None = None

    def reading(self) -> dict[str, Any]:
        """Arguments of `keras.utils.PyDataset`."""
        return {name: getattr(self, name) for name in ("workers", "use_multiprocessing", "max_queue_size")}


class TFKerasExperimentalContext:
    """What was there before data were cached by `tf.data.Dataset.cache`."""

    def cache_train_dataset(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises: RuntimeError; use `tf.data.Dataset.cache`."""
        raise RuntimeError("context.experimental.cache_train_dataset is gone: use tf.data.Dataset.cache")

    def cache_validation_dataset(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises: RuntimeError; use `tf.data.Dataset.cache`."""
        raise RuntimeError("context.experimental.cache_validation_dataset is gone: use tf.data.Dataset.cache")


class TFKerasTrialContext(TrialContext):
    """What a `TFKerasTrial` knows about its run. It is given to the trial's constructor."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.experimental = TFKerasExperimentalContext()
        self._fit = FitOptions()
        self._model: Any = None
        self._wrapped_datasets = 0

    def configure_fit(
        self,
        verbose: bool | None = None,
        class_weight: Any = _UNSET,
        workers: int | None = None,
        use_multiprocessing: bool | None = None,
        max_queue_size: int | None = None,
        shuffle: bool | None = None,
        validation_steps: Any = _UNSET,
    ) -> None:
        """How to train and validate, as arguments of `model.fit`; those that are left out stay as they are.

        Args:
            verbose: Whether each report of training metrics is a line of the log too.
            class_weight: Class -> weight of its records.
            workers: How many threads, or processes, read batches of a sequence ahead.
            use_multiprocessing: Whether they are processes.
            max_queue_size: How many batches they read ahead.
            shuffle: Whether each pass has an order of its own: of the batches of a sequence, of the records of arrays.
            validation_steps: How many batches to validate with; None: all.

        Raises:
            InvalidExperimentException: One of the numbers is none, or too small.
        """
        given: dict[str, Any] = {
            "verbose": verbose,
            "workers": workers,
            "use_multiprocessing": use_multiprocessing,
            "max_queue_size": max_queue_size,
            "shuffle": shuffle,
        }
        given = {name: value for name, value in given.items() if value is not None}
        if class_weight is not _UNSET:
            given["class_weight"] = class_weight
        if validation_steps is not _UNSET:
            given["validation_steps"] = validation_steps
        for name, value in given.items():
            if name in ("workers", "max_queue_size", "validation_steps") and value is not None:
                _check_count(name, value, 0 if name == "workers" else 1)
            setattr(self._fit, name, value)

    def wrap_model(self, model: Any) -> Any:
        """Say which model is trained; call it in `build_model`, before `model.compile`. Returns the model."""
        self._model = model
        return model

    def wrap_optimizer(self, optimizer: Any) -> Any:
        """The optimizer to compile the model with: on one slot as it is."""
        return optimizer

    def wrap_dataset(self, dataset: Any, shard_dataset: bool = True) -> Any:
        """Say that a `tf.data.Dataset` is trained or validated with. On one slot it is not sharded.

        Args:
            dataset: Before it is batched.
            shard_dataset: Whether each of several slots reads a part of it.
        """
        self._wrapped_datasets += 1
        return dataset


def _check_count(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise errors.InvalidExperimentException(
            f"context.configure_fit: {name} is {value!r}, but must be a number of {least} or more"
        )
