"""Trials of Keras to train in tests. Loaded as `keras_trials:Exact` by the harness too, in a process of its own."""

from __future__ import annotations

import os
import signal
from typing import Any, ClassVar

os.environ.setdefault("KERAS_BACKEND", "torch")  # before the first import of Keras, which looks at it once

import keras
import numpy as np

from determined import keras as det_keras

FEATURES, RECORDS = 3, 22


def arrays(count: int = RECORDS) -> tuple[Any, Any]:
    """Features (n, 3) and what is to be learned of them (n, 1)."""
    x = np.random.default_rng(1).normal(size=(count, FEATURES)).astype("float32")
    return x, x.sum(1, keepdims=True)


class Jittered(keras.utils.PyDataset):
    """Batches with random augmentation, whose records change their places after each pass."""

    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self.x, self.y = arrays()
        self.batch_size = batch_size
        self.order = np.arange(len(self.x))

    def __len__(self) -> int:
        return len(self.x) // self.batch_size

    def __getitem__(self, index: int) -> Any:
        chosen = self.order[index * self.batch_size : (index + 1) * self.batch_size]
        noise = np.random.normal(scale=0.1, size=(len(chosen), FEATURES)).astype("float32")
        return self.x[chosen] + noise, self.y[chosen]

    def on_epoch_end(self) -> None:
        np.random.shuffle(self.order)


class KillAt(keras.callbacks.Callback):
    """Kills the process in a batch of the training, as a machine that fails does."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.left = batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Exact(det_keras.TFKerasTrial):
    """What has a state: dropout by two generators, Adam, a learning rate that falls, data that move."""

    stopping: ClassVar[Any] = None
    last: ClassVar[Any] = None

    def __init__(self, context: det_keras.TFKerasTrialContext) -> None:
        self.context = context
        self.options = context.get_hparams()
        Exact.last = self

    def build_model(self) -> Any:
        layers = [keras.Input((FEATURES,)), keras.layers.Dense(8), keras.layers.Dropout(0.5, seed=5)]
        model = keras.Sequential([*layers, keras.layers.Dropout(0.2), keras.layers.Dense(1)])
        self.model = self.context.wrap_model(model)
        model.compile(self.context.wrap_optimizer(keras.optimizers.Adam(0.05)), loss="mse", metrics=["mae"])
        return model

    def build_training_data_loader(self) -> Any:
        if self.options.get("data") == "arrays":
            return arrays()
        return Jittered(self.context.get_per_slot_batch_size())

    def build_validation_data_loader(self) -> Any:
        return arrays(8)

    def keras_callbacks(self) -> list[Any]:
        falling = det_keras.callbacks.ReduceLROnPlateau(monitor="val_mae", mode="max", patience=1, factor=0.5)
        return [falling, *([KillAt(self.options["kill_at"])] if self.options.get("kill_at") else [])]
