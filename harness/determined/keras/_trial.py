"""The class that users of Determined wrote their training with Keras as."""

from __future__ import annotations

import abc

from determined._trial_context import LegacyTrial
from determined.keras._context import TFKerasTrialContext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from determined.keras._inputs import InputData


class TFKerasTrial(LegacyTrial, abc.ABC):
    """Training with Keras as its parts: a compiled model, the data, callbacks. An `entrypoint` names the class.

    Example::

        class MyTrial(keras.TFKerasTrial):
            def __init__(self, context):
                self.context = context

            def build_model(self):
                model = self.context.wrap_model(keras.Sequential([...]))
                optimizer = self.context.wrap_optimizer(keras.optimizers.Adam(self.context.get_hparam("lr")))
                model.compile(optimizer, loss="mse", metrics=["mae"])
                return model

            def build_training_data_loader(self):
                return x, y

            def build_validation_data_loader(self):
                return held_out_x, held_out_y

    Keras 3, on any of its backends, and one slot. A script of your own uses `DeterminedCallback` in `model.fit`.
    """

    trial_context_class: Any = TFKerasTrialContext

    @abc.abstractmethod
    def __init__(self, context: TFKerasTrialContext) -> None:
        """Keep `context`; the model is made in `build_model`."""

    @abc.abstractmethod
    def build_model(self) -> Any:
        """The model to train: wrapped by `context.wrap_model`, and compiled."""

    @abc.abstractmethod
    def build_training_data_loader(self) -> InputData:
        """What to train on: a `keras.utils.PyDataset`, arrays, or a `tf.data.Dataset`.

        Arrays, (x, y) or (x, y, weights), are read in batches of `context.get_per_slot_batch_size()`. A dataset passes
        through `context.wrap_dataset`, and says its batches itself.
        """

    @abc.abstractmethod
    def build_validation_data_loader(self) -> InputData:
        """What to validate with, of the same kinds."""

    def session_config(self) -> Any:
        """The configuration of a session of TensorFlow 1, which is not used any more."""
        return None

    def keras_callbacks(self) -> list[Any]:
        """Callbacks of Keras, and those of `determined.keras.callbacks`, whose states are stored."""
        return []
