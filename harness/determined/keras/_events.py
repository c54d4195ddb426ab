"""The callbacks of a `TFKerasTrial`: which of their methods is called when. Source: spec training-apis.md §8.1."""

from __future__ import annotations

from typing import Any

import keras

from determined.keras import _states
from determined.keras.callbacks import Callback

#: They look at what a validation found: their turn at the end of an epoch comes with its metrics.
_WATCHERS: tuple[Any, ...] = (
    keras.callbacks.EarlyStopping,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.ModelCheckpoint,
)


class Events:
    """Calls the user's callbacks, each in their order.

    Args:
        callbacks: The user's.
        model: That is trained.
        params: What callbacks of Keras know of the training.
    """

    def __init__(self, callbacks: list[Any], model: Any, params: dict[str, Any]) -> None:
        self._callbacks: list[Any] = [*callbacks, keras.callbacks.History()]
        self._model = model
        for callback in self._callbacks:
            callback.set_params(params)
            callback.set_model(model)

    def to_all(self, name: str, *args: Any) -> None:
        """Call a method of every callback."""
        for callback in self._callbacks:
            getattr(callback, name)(*args)

    def to_ours(self, name: str, *args: Any) -> None:
        """Call a method that only callbacks of `determined.keras.callbacks` have."""
        for callback in self._callbacks:
            if isinstance(callback, Callback):
                getattr(callback, name)(*args)

    def epoch_ended(self, epoch: int) -> None:
        """After the last batch of an epoch."""
        for callback in self._callbacks:
            if not isinstance(callback, _WATCHERS):
                callback.on_epoch_end(epoch, {})

    def validated(self, epoch: int, metrics: dict[str, Any]) -> None:
        """After a validation, with its metrics and the training's latest."""
        for callback in self._callbacks:
            callback.on_test_end(metrics)
            if isinstance(callback, _WATCHERS):
                callback.on_epoch_end(epoch, metrics)

    def state(self) -> list[Any]:
        """By position: what is to be stored of each; None if nothing is known of it."""
        return [_states.callback_state(each) if _states.has_state(each) else None for each in self._callbacks]

    def restore(self, states: list[Any]) -> None:
        """Put callbacks into the states that `state` returned."""
        for callback, state in zip(self._callbacks, states):
            if state is not None and _states.has_state(callback):
                _states.set_callback_state(callback, state)


class Within(keras.callbacks.Callback):
    """Passes on what happens within one call of `fit` or `evaluate`.

    Args:
        events: To the user's callbacks.
        begin: Called before a batch is trained; returns its index within its epoch.
        end: Called with the index after it was trained.
    """

    def __init__(self, events: Events, begin: Any = None, end: Any = None) -> None:
        super().__init__()
        self._events, self._begin, self._end = events, begin, end
        self._batch = self._done = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """With the index within the epoch."""
        self._batch = self._begin()
        self._events.to_all("on_train_batch_begin", self._batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """With the index within the epoch."""
        self._events.to_all("on_train_batch_end", self._batch, logs)
        for _ in range(batch + 1 - self._done):  # with `steps_per_execution` several at once
            self._end()
        self._done = batch + 1

    def on_test_begin(self, logs: Any = None) -> None:
        """As Keras calls it."""
        self._events.to_all("on_test_begin", logs)

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """As Keras calls it."""
        self._events.to_all("on_test_batch_begin", batch, logs)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """As Keras calls it."""
        self._events.to_all("on_test_batch_end", batch, logs)
