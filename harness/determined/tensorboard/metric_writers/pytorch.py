"""PyTorch's writer for TensorBoard, in the trial's folder."""

from __future__ import annotations

try:
    from torch.utils import tensorboard
except ImportError as e:
    from determined._extras import missing

    raise missing(__name__, "torch and tensorboard", "pytorch,tensorboard") from e

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["TorchWriter"]


class TorchWriter:
    """A `torch.utils.tensorboard.SummaryWriter` as `writer`, for images, histograms and what else it knows.

    It writes where `core_context.train.get_tensorboard_path()` of this process is; outside of a cluster that is below
    `~/.local/share/determined/tensorboard`. Close it, or call `writer.flush()`, before `core.init()` ends.
    """

    def __init__(self) -> None:
        from determined.core._tensorboard import folder_of_this_process

        self.writer: Any = tensorboard.SummaryWriter(log_dir=folder_of_this_process())  # pyright: ignore

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """Write one number."""
        self.writer.add_scalar(name, value, step)

    def reset(self) -> None:
        """Write what is still in memory to the file."""
        self.writer.flush()

    def flush(self) -> None:
        """The same."""
        self.writer.flush()
