"""What the contexts of a `PyTorchTrial` and of a `DeepSpeedTrial` have in common."""

from __future__ import annotations

import time
from typing import Any

import torch

from determined import errors
from determined._trial_context import TrialContext
from determined.pytorch import _data
from determined.pytorch._reducer import MetricReducer, ReducerGroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class TorchTrialContext(TrialContext):
    """A trial of several ranks that compute by PyTorch, each on its device.

    Attributes:
        device: Where this rank trains.
        models: The wrapped models, in their order.
        profiler: That of `set_profiler`.
        distributed: Which rank this is.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.device = self._device()
        self.models: list[Any] = []
        self.profiler: Any = None
        self._reducers = ReducerGroup(self.distributed.allgather)
        self._is_training = False
        self._batch_idx: int | None = None
        self._epoch_len: int | None = None
        self._any_loader = False
        self._told_types: set[type] = set()
        self._writer: Any = None
        self._flushed_at = 0.0

    def wrap_reducer(
        self,
        reducer: Callable[[list[Any]], Any] | MetricReducer,
        name: str | None = None,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> Any:
        """Have a metric of your own reduced over batches and ranks, and reported.

        Args:
            reducer: A `MetricReducer`; or a function of the list of what you gave to `update`, in the data's order.
            name: The metric's name; None if the reducer returns a dictionary of names and values.
            for_training: Whether it is reported with training metrics.
            for_validation: Whether it is reported with validation metrics.

        Returns:
            The `MetricReducer`; of a function, an object with `update(value)`.

        Raises:
            AssertionError: It is registered already, or is neither.
        """
        return self._reducers.wrap(reducer, name, for_training, for_validation)

    def reset_reducers(self) -> None:
        """Start all reducers anew."""
        self._reducers.reset()

    def reduce_metrics(self, for_training: bool) -> dict[str, Any]:
        """What the reducers have, over all ranks; all ranks must call it."""
        return self._reducers.reduce(for_training)

    # -- a batch ------------------------------------------------------------------------------------------------------

    def is_epoch_start(self) -> bool:
        """Whether the current batch is the first of an epoch. Raises: InternalException, before training."""
        length = self._epoch_length()
        return self._current() % length == 0

    def is_epoch_end(self) -> bool:
        """Whether the current batch is the last of an epoch. Raises: InternalException, before training."""
        length = self._epoch_length()
        return self._current() % length == length - 1

    def current_train_epoch(self) -> int:
        """Index of the current epoch. Raises: InternalException, before training."""
        return self._current() // self._epoch_length()

    def current_train_batch(self) -> int:
        """Index of the current batch in the whole training. Raises: InternalException, before training."""
        return self._current()

    def _current(self) -> int:
        if self._batch_idx is None:
            raise errors.InternalException("there is no current batch before training has begun")
        return self._batch_idx

    def _epoch_length(self) -> int:
        if self._epoch_len is None:
            raise errors.InternalException("there is no current epoch before training has begun")
        return self._epoch_len

    def to_device(self, data: Any) -> Any:
        """A batch on the device of this rank: tensors, numpy arrays, and dictionaries, lists and tuples of these."""
        return _data.to_device(data, self.device, self._told_types)

    # -- looking at it ------------------------------------------------------------------------------------------------

    def set_profiler(self, *args: Any, **kwargs: Any) -> None:
        """Run `torch.profiler.profile` with these arguments during training; TensorBoard shows its traces."""
        handler: Any = torch.profiler.tensorboard_trace_handler(  # pyright: ignore[reportUnknownVariableType]
            str(self.get_tensorboard_path())
        )
        self.profiler = torch.profiler.profile(*args, **{"on_trace_ready": handler, **kwargs})

    def get_tensorboard_writer(self) -> Any:
        """A `SummaryWriter` whose files the cluster keeps; one in all. Raises: ImportError, without TensorBoard."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(log_dir=str(self.get_tensorboard_path()))  # pyright: ignore
        return self._writer

    def _flush_writer(self) -> None:
        """Once a second at most: what is not flushed, TensorBoard does not see."""
        if self._writer is not None and time.monotonic() - self._flushed_at > 1:
            self._writer.flush()
            self._flushed_at = time.monotonic()

    # -- where this runs ----------------------------------------------------------------------------------------------

    def _device(self) -> torch.device:
        if self._num_gpus <= 0 or not torch.cuda.is_available():
            return torch.device("cpu")
        index = self.distributed.local_rank if self.distributed.size > 1 else 0
        torch.cuda.set_device(index)
        return torch.device("cuda", index)

    def _before_training(self, method: str) -> None:
        if self._is_training:
            raise errors.InvalidExperimentException(
                f"context.{method} was called after training had begun: call it in the trial's __init__"
            )
