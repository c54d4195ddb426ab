"""Reading checkpoints of a `TFKerasTrial` into a model that a script uses. Source: spec training-apis.md §8.1."""

from __future__ import annotations

import os
import pathlib
from typing import Any

from determined import errors
from determined._stored import Stored, imported
from determined.core._checkpoint import CheckpointContext
from determined.core._context import Context
from determined.core._distributed import DummyDistributedContext
from determined.keras import _user_code
from determined.keras._context import TFKerasTrialContext
from determined.keras._loop import load_stored_weights
from determined.keras._trial import TFKerasTrial


def load_model_from_checkpoint_path(path: str | os.PathLike[str], tags: list[str] | None = None) -> Any:
    """The model of a `TFKerasTrial`, with the weights of a checkpoint::

        path = client.get_checkpoint(uuid).download()
        model = keras.load_model_from_checkpoint_path(path)

    The code of a checkpoint is executed, and its files can execute code: load what you trust.

    Args:
        path: The folder of the checkpoint.
        tags: Of a SavedModel of TensorFlow's estimators, which are not loaded any more.

    Returns:
        What the trial's `build_model` returned, compiled; its optimizer has the state of the checkpoint too.

    Raises:
        NoCheckpointException: The folder does not say what it has; it is an AssertionError too.
        ValueError: The class can't be imported, or is no `TFKerasTrial`.
        InvalidExperimentException: `build_model` does not return what it must.
        InvalidCheckpointException: There are no weights that Keras 3 can read, or the model has no variables yet.
    """
    folder = pathlib.Path(os.path.abspath(path))
    about = Stored(folder, "TFKerasTrial")
    with imported(folder, about) as cls:
        if not isinstance(cls, type) or not issubclass(cls, TFKerasTrial):
            raise ValueError(f"{cls!r} is no subclass of determined.keras.TFKerasTrial")
        context = _context(about)
        model = _user_code.built_model(cls(context), context)
    if not model.built:
        raise errors.InvalidCheckpointException(
            f"{folder}: the model of {cls.__name__} has no variables before it sees data: give it a keras.Input, or "
            "call model.build(…) in build_model"
        )
    model.optimizer.build(model.trainable_variables)
    load_stored_weights(model, folder)
    return model


def _context(about: Stored) -> TFKerasTrialContext:
    from determined.common import storage
    from determined.core._local import local_dir

    place = CheckpointContext(DummyDistributedContext(), storage.build(local_dir("checkpoints")), None, "", "")
    return TFKerasTrialContext(
        Context(place), trial_seed=0, hparams=about.hparams, slots_per_trial=1, num_gpus=0, exp_conf=about.config
    )
