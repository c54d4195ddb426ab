"""Callbacks of Keras whose state can be stored: for `DeterminedCallback(callbacks=[…])`."""

from __future__ import annotations

import keras

from determined.core._tensorboard import folder_of_this_process
from determined.keras import _states

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Callback", "EarlyStopping", "ReduceLROnPlateau", "TensorBoard"]


class Callback(keras.callbacks.Callback):
    """A callback of Keras with Determined's further events, which a `TFKerasTrial` has."""

    def on_train_workload_begin(
        self, total_batches_trained: int, batches_requested: int | None, logs: dict[str, Any]
    ) -> None:
        """Some batches are about to be trained."""

    def on_train_workload_end(self, total_batches_trained: int, logs: dict[str, Any]) -> None:
        """Some batches were trained; `logs` are their metrics."""

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        """A checkpoint was written to this folder, and is stored next: add files of your own."""

    def get_state(self) -> Any:
        """What to store of this callback; it is pickled."""
        return {}

    def load_state(self, state: Any) -> None:
        """Take back what `get_state` has returned."""


class EarlyStopping(Callback, keras.callbacks.EarlyStopping):
    """`keras.callbacks.EarlyStopping` whose state, the best value included, can be stored."""

    def get_state(self) -> dict[str, Any]:
        """How far it has come."""
        return _states.fields_of(self)

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        _states.set_fields(self, state)


class ReduceLROnPlateau(Callback, keras.callbacks.ReduceLROnPlateau):
    """`keras.callbacks.ReduceLROnPlateau` whose state can be stored."""

    def get_state(self) -> dict[str, Any]:
        """How far it has come."""
        return _states.fields_of(self)

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        _states.set_fields(self, state)


class TensorBoard(Callback, keras.callbacks.TensorBoard):
    """`keras.callbacks.TensorBoard` that writes into the trial's folder, unless `log_dir` is given."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not args and "log_dir" not in kwargs:
            kwargs["log_dir"] = folder_of_this_process()
        keras.callbacks.TensorBoard.__init__(self, *args, **kwargs)  # pyright: ignore[reportUnknownMemberType]

    def on_train_workload_end(self, total_batches_trained: int, logs: dict[str, Any]) -> None:
        """Write the metrics, as Keras does at the end of an epoch."""
        self.on_epoch_end(total_batches_trained, logs)  # pyright: ignore[reportUnknownMemberType]
