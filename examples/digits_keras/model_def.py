"""The same network as a `TFKerasTrial`: `trial.yaml` names the class.

The environment says which backend Keras has: `KERAS_BACKEND`.
"""

from __future__ import annotations

from typing import Any

import keras
from train import build_model, load_data

from determined.keras import TFKerasTrial, TFKerasTrialContext


class DigitsTrial(TFKerasTrial):
    """Two convolutions and a linear layer on scikit-learn's handwritten digits."""

    def __init__(self, context: TFKerasTrialContext) -> None:
        self.context = context
        self.x, self.y, self.held_out_x, self.held_out_y = load_data()

    def build_model(self) -> keras.Model:
        """The model, compiled."""
        hparams = self.context.get_hparams()
        return self.context.wrap_model(build_model(hparams["learning_rate"], hparams["dropout"]))

    def build_training_data_loader(self) -> Any:
        """1,437 images and their labels."""
        return self.x, self.y

    def build_validation_data_loader(self) -> Any:
        """360 held-out images and their labels."""
        return self.held_out_x, self.held_out_y
