"""Keras' callback for TensorBoard, writing where the cluster looks."""

from __future__ import annotations

import keras

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from determined import core


class TensorBoard(keras.callbacks.TensorBoard):
    """`keras.callbacks.TensorBoard` whose `log_dir` is the trial's folder; its other arguments are Keras' own."""

    def __init__(self, core_context: core.Context, *args: Any, **kwargs: Any) -> None:
        folder = str(core_context.train.get_tensorboard_path())
        if args:
            args = (folder, *args[1:])
        else:
            kwargs["log_dir"] = folder
        super().__init__(*args, **kwargs)  # pyright: ignore[reportUnknownMemberType]
