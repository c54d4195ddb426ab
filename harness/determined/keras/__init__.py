"""Keras 3 as a trial: `DeterminedCallback` in a plain `model.fit`, on any backend of Keras.

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
from determined.keras._tensorboard import TensorBoard

__all__ = ["DeterminedCallback", "TensorBoard", "callbacks"]

# Not AttributeError: `from determined.keras import TFKerasTrial` would say no more than that there is no such name.
_OF_TRIALS = (
    "SequenceAdapter",
    "TFKerasExperimentalContext",
    "TFKerasTensorBoard",
    "TFKerasTrial",
    "TFKerasTrialContext",
    "load_model_from_checkpoint_path",
)


def __getattr__(name: str) -> object:
    if name in _OF_TRIALS:
        from determined._later import WITH_DETERMINED, gone

        raise gone(
            f"{__name__}.{name}",
            f"use determined.keras.DeterminedCallback in model.fit of Keras 3, or {WITH_DETERMINED}",
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
