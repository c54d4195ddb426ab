"""A model's weights as a file: as Keras 3 writes them, and as older checkpoints have them."""

from __future__ import annotations

import os
import shutil
import tempfile

from determined import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SUFFIX = ".weights.h5"


def save_weights(model: Any, path: str) -> None:
    """Write weights and optimizer to `path` and the suffix that Keras 3 demands."""
    model.save_weights(path + SUFFIX)


def load_weights(model: Any, path: str) -> None:
    """Read what was saved as `path`, whatever its suffix.

    Raises:
        InvalidCheckpointException: There is nothing, or it is in TensorFlow's own format.
    """
    for name in (path + SUFFIX, path + ".h5", path + ".keras"):
        if os.path.isfile(name):
            model.load_weights(name)
            return
    if os.path.isfile(path):
        with tempfile.TemporaryDirectory() as folder:
            named = os.path.join(folder, "model" + _suffix_of(path))
            shutil.copyfile(path, named)
            model.load_weights(named)
        return
    name = os.path.basename(path)
    if os.path.isfile(path + ".index"):
        raise errors.InvalidCheckpointException(
            f"the checkpoint's {name} is in the format of TensorFlow and Keras 2, which Keras 3 can't read: load it "
            f"there, and save it as {name}{SUFFIX}"
        )
    raise errors.InvalidCheckpointException(
        f"the checkpoint has no {name}{SUFFIX}: it is none that determined.keras has stored"
    )


def _suffix_of(path: str) -> str:
    """By what it has in it: HDF5 as Keras 2 wrote it names its layers at the top."""
    import h5py

    with h5py.File(path, "r") as file:
        is_old = "layer_names" in file.attrs or "model_weights" in file
    return ".h5" if is_old else SUFFIX
