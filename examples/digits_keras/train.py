"""Train a small convolutional network on scikit-learn's handwritten digits with Keras 3 on PyTorch.

It runs as it is: by hand (`python train.py`), and as a trial (`const.yaml`).
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")  # before the import, which looks at it

import keras
import numpy as np
from sklearn.datasets import load_digits

import determined as det
from determined import core
from determined.keras import DeterminedCallback

# Used outside of a cluster.
DEFAULT_HPARAMS: dict[str, Any] = {"learning_rate": 0.002, "dropout": 0.25, "batch_size": 32, "epochs": 5}


def load_data() -> tuple[Any, Any, Any, Any]:
    """Images (n, 8, 8, 1) from 0 to 1 and labels (n,): 1,437 to train on, then 360 to validate with."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x, y = (images.astype("float32").reshape(-1, 8, 8, 1) / 16)[order], labels[order]
    return x[:1437], y[:1437], x[1437:], y[1437:]


def build_model(learning_rate: float, dropout: float) -> keras.Model:
    """Two convolutions and a linear layer."""
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dropout(dropout),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    optimizer = keras.optimizers.Adam(learning_rate)
    model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def main(core_context: core.Context) -> None:
    """Train as far as the searcher wants, and no further than the epochs of the hyperparameters."""
    info = det.get_cluster_info()
    hparams = info.trial.hparams if info else DEFAULT_HPARAMS
    keras.utils.set_random_seed(info.trial.trial_seed if info else 0)
    callback = DeterminedCallback(
        core_context,
        checkpoint=info.latest_checkpoint if info else None,
        continue_id=info.trial.trial_id if info else 0,
    )
    x, y, held_out_x, held_out_y = load_data()
    build_model(hparams["learning_rate"], hparams["dropout"]).fit(
        x,
        y,
        batch_size=hparams["batch_size"],
        epochs=hparams["epochs"],
        validation_data=(held_out_x, held_out_y),
        verbose=2,
        callbacks=[callback],
    )


if __name__ == "__main__":
    with core.init() as context:
        main(context)
