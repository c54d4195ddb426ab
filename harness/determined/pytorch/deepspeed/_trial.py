"""The class that users write their training with DeepSpeed as."""

from __future__ import annotations

import abc

from determined import errors
from determined.pytorch._reducer import Reducer

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator
    from typing import Any

    import torch
    from torch.utils import data

    from determined.pytorch._callback import PyTorchCallback
    from determined.pytorch._data import DataLoader
    from determined.pytorch.deepspeed._context import DeepSpeedTrialContext


class DeepSpeedTrial(abc.ABC):
    """Training as its parts: engines, a micro batch, the data, a validation. `Trainer` puts them together.

    Make and wrap the engines in `__init__`::

        def __init__(self, context):
            self.context = context
            model = Net()
            engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=ds_config)
            self.engine = context.wrap_model_engine(engine)

    Override `evaluate_batch` or `evaluate_full_dataset`.
    """

    #: What old code looks at.
    trial_context_class: Any = None
    trial_controller_class: Any = None

    @abc.abstractmethod
    def __init__(self, context: DeepSpeedTrialContext) -> None:
        """Make the engines, and wrap them."""

    @abc.abstractmethod
    def train_batch(
        self, dataloader_iter: Iterator[Any] | None, epoch_idx: int, batch_idx: int
    ) -> torch.Tensor | dict[str, Any]:
        """Train one micro batch: forward, `engine.backward(loss)`, `engine.step()`.

        It is called for each micro batch. With a pipeline, and after `context.disable_auto_grad_accumulation()`, it is
        called once and trains all of the batch, with a pipeline by `engine.train_batch(dataloader_iter)`.

        Args:
            dataloader_iter: Has the batches of the training loader as the loader made them: take them by `next` and
                move them by `context.to_device`. None on a rank without a loader.
            epoch_idx: Index of the epoch.
            batch_idx: Index of the batch in the whole training.

        Returns:
            Metrics by name, or the loss alone. Those of a batch are the means of its micro batches.
        """

    @abc.abstractmethod
    def build_training_data_loader(self) -> DataLoader | None:
        """The loader of the training data, with `context.get_train_micro_batch_size_per_gpu()`."""

    @abc.abstractmethod
    def build_validation_data_loader(self) -> DataLoader | data.DataLoader[Any] | None:
        """The loader of the validation data."""

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        """Callbacks by name. Under their names checkpoints have their states, of each rank."""
        return {}

    def evaluate_batch(self, dataloader_iter: Iterator[Any] | None, batch_idx: int) -> dict[str, Any]:
        """Metrics by name of the next batch of the validation data; `evaluation_reducer` says how they become one.

        Args:
            dataloader_iter: As that of `train_batch`. A pipeline takes all micro batches of a batch from it.
            batch_idx: Index of the batch in this validation.
        """
        raise NotImplementedError

    def evaluation_reducer(self) -> Reducer | dict[str, Reducer]:
        """How the values of all batches become one: a `Reducer`, or one for each name."""
        return Reducer.AVG

    def evaluate_full_dataset(self, data_loader: data.DataLoader[Any]) -> dict[str, Any]:
        """Metrics by name of the whole validation data; called on rank 0 alone, which must have the whole model."""
        raise NotImplementedError

    def get_batch_length(self, batch: Any) -> int:
        """How many records a batch has; override it for batches of a form of your own."""
        from determined.pytorch._data import data_length

        return data_length(batch)

    def save(self, context: DeepSpeedTrialContext, path: pathlib.Path) -> None:
        """Write all engines into a checkpoint's folder; called on all ranks, each with a folder of its own.

        Override it together with `load`.
        """
        for number, engine in enumerate(context.models):
            engine.save_checkpoint(str(path), tag=f"model{number}")

    def load(self, context: DeepSpeedTrialContext, load_path: pathlib.Path) -> None:
        """Take all engines from a checkpoint's folder, which has what all ranks have written; called on all ranks.

        Raises: InvalidCheckpointException, if DeepSpeed can't load them, for example to another number of ranks.
        """
        for number, engine in enumerate(context.models):
            tag = f"model{number}"
            try:
                path, _ = engine.load_checkpoint(str(load_path), tag=tag)
            except Exception as error:
                raise errors.InvalidCheckpointException(
                    f"DeepSpeed can't load {tag} of the checkpoint: {type(error).__name__}: {error}"
                ) from error
            if path is None:
                raise errors.InvalidCheckpointException(f"the checkpoint has no {tag} that DeepSpeed can load")
