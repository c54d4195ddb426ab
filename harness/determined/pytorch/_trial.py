"""The class that users write their training as."""

from __future__ import annotations

import abc

from determined.pytorch._reducer import Reducer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import torch
    from torch.utils import data

    from determined.pytorch._callback import PyTorchCallback
    from determined.pytorch._context import PyTorchTrialContext
    from determined.pytorch._data import DataLoader


class PyTorchTrial(abc.ABC):
    """Training as its parts: a model and optimizers, a batch, the data, a validation. `Trainer` puts them together.

    Wrap models, optimizers and schedulers in `__init__`::

        def __init__(self, context):
            self.context = context
            self.model = context.wrap_model(Net())
            self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

    Override `evaluate_batch` or `evaluate_full_dataset`.
    """

    #: What old code looks at.
    trial_context_class: Any = None
    trial_controller_class: Any = None

    @abc.abstractmethod
    def __init__(self, context: PyTorchTrialContext) -> None:
        """Make the models, optimizers and schedulers, and wrap them."""

    @abc.abstractmethod
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> torch.Tensor | dict[str, Any]:
        """Train on one batch: forward, `context.backward(loss)`, `context.step_optimizer(optimizer)`.

        Args:
            batch: What the training loader yielded, on the device of this rank.
            epoch_idx: Index of the epoch.
            batch_idx: Index of the batch in the whole training.

        Returns:
            Metrics by name, or the loss alone.
        """

    @abc.abstractmethod
    def build_training_data_loader(self) -> DataLoader | data.DataLoader[Any]:
        """The loader of the training data, with `context.get_per_slot_batch_size()`."""

    @abc.abstractmethod
    def build_validation_data_loader(self) -> DataLoader | data.DataLoader[Any]:
        """The loader of the validation data."""

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        """Callbacks by name. Under their names checkpoints have their states."""
        return {}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Metrics by name of one batch of the validation data; `evaluation_reducer` says how they become one.

        `batch_idx` may be left out of the method.
        """
        raise NotImplementedError

    def evaluation_reducer(self) -> Reducer | dict[str, Reducer]:
        """How the values of all batches become one: a `Reducer`, or one for each name."""
        return Reducer.AVG

    def evaluate_full_dataset(self, data_loader: data.DataLoader[Any]) -> dict[str, Any]:
        """Metrics by name of the whole validation data; called on the chief only."""
        raise NotImplementedError

    def get_batch_length(self, batch: Any) -> int:
        """How many records a batch has; override it for batches of a form of your own."""
        from determined.pytorch._data import data_length

        return data_length(batch)
