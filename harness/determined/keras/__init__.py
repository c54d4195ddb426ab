"""Keras 3 as a trial, on any of its backends: `DeterminedCallback` in a plain `model.fit`, or a `TFKerasTrial`.

Example::

    with core.init() as core_context:
        info = det.get_cluster_info()
        callback = DeterminedCallback(core_context, checkpoint=info.latest_checkpoint, continue_id=info.trial.trial_id)
        model.fit(x, y, validation_data=(x_test, y_test), epochs=10, verbose=2, callbacks=[callback])
"""

from __future__ import annotations

try:
    import keras as _  # noqa: F401 - whether it is there
except ImportError as e:
    from determined._extras import missing

    if e.name == "keras":
        raise missing(__name__, "keras", "keras") from e
    if e.name in ("tensorflow", "torch", "jax"):
        raise ImportError(
            f"determined.keras: Keras is to use the backend {e.name}, which is not installed here: install it, or set "
            "KERAS_BACKEND to one that is (torch, jax, tensorflow)",
            name=e.name,
        ) from e
    raise

from determined.keras import callbacks
from determined.keras._callback import DeterminedCallback
from determined.keras._context import TFKerasExperimentalContext, TFKerasTrialContext
from determined.keras._inputs import InputData, SequenceAdapter
from determined.keras._load import load_model_from_checkpoint_path
from determined.keras._tensorboard import TensorBoard
from determined.keras._trial import TFKerasTrial

#: As the published package calls that of `determined.keras.callbacks`.
TFKerasTensorBoard = callbacks.TensorBoard

__all__ = [
    "DeterminedCallback",
    "InputData",
    "SequenceAdapter",
    "TFKerasExperimentalContext",
    "TFKerasTensorBoard",
    "TFKerasTrial",
    "TFKerasTrialContext",
    "TensorBoard",
    "callbacks",
    "load_model_from_checkpoint_path",
]
