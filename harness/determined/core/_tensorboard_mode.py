"""How TensorBoard's files are treated."""

from __future__ import annotations

import enum


class TensorboardMode(enum.Enum):
    """How TensorBoard's files are treated.

    AUTO: for Determined, the chief writes all reported metrics for TensorBoard and uploads its folder by itself. This
    release writes and uploads nothing in this mode: metrics are in the web pages, and TensorBoard is not required.
    MANUAL: you write files below `train.get_tensorboard_path()` and call `train.upload_tensorboard_files()`.
    """

    AUTO = "AUTO"
    MANUAL = "MANUAL"
