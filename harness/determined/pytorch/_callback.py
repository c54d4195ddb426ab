"""What a trial can do at certain points of its training."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class PyTorchCallback:
    """Override what you need, and return the callback from `PyTorchTrial.build_callbacks()`.

    Each rank has its own copy. `state_dict`, `on_checkpoint_save_start`, `on_checkpoint_end` and
    `on_checkpoint_write_end` are called on the chief only; all others on every rank.
    """

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        """Before data are loaded.

        Args:
            first_batch_idx: Index of the batch that training starts or resumes with.
            checkpoint_uuid: The checkpoint that it resumes from, if it does.
        """

    def on_trial_shutdown(self) -> None:
        """At the end, also after an error."""

    def on_training_start(self) -> None:
        """After a checkpoint was loaded, before the first batch."""

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        """Before the first batch of an epoch."""

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        """After the last batch of an epoch."""

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        """After some batches, whose metrics have just been reported; the values are the same on all ranks."""

    def on_validation_start(self) -> None:
        """Before a validation."""

    def on_validation_epoch_start(self) -> None:
        """Before the first batch of a validation."""

    def on_validation_epoch_end(self, outputs: list[Any]) -> None:
        """After the last batch of a validation, with what `evaluate_batch` returned on this rank."""

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        """After a validation, with its metrics of all ranks."""

    def on_checkpoint_load_start(self, checkpoint: dict[str, Any]) -> None:
        """Before models and optimizers take their states from a checkpoint; `checkpoint` may be changed."""

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        """Before a checkpoint is saved; what is added to `checkpoint` is saved with it."""

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        """The old name of `on_checkpoint_write_end`."""

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        """After a checkpoint's files were written, before they are uploaded; files may be added."""

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        """After a checkpoint was uploaded."""

    def state_dict(self) -> dict[str, Any]:
        """What of this callback belongs into a checkpoint."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
