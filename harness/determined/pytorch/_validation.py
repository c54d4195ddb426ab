"""One validation: batches, or the whole data on the chief, and their metrics over all ranks."""

from __future__ import annotations

import logging
import time
from typing import Any, cast

import torch
from torch.utils import data

from determined.pytorch import _metrics, _user_code
from determined.pytorch._data import DataLoader
from determined.pytorch._reducer import reduce_validation
from determined.pytorch._trial import PyTorchTrial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from determined.pytorch._callback import PyTorchCallback

logger = logging.getLogger("determined.pytorch")


class Validation:
    """Validates a trial as often as it is asked to.

    Args:
        trial: The user's.
        context: The trial's.
        loader: What `build_validation_data_loader` returned.
        callbacks: The trial's.
        only_one_batch: Of the data; to try things out.

    Raises:
        RuntimeError: The loader is no `determined.pytorch.DataLoader`, which the trial does not allow.
    """

    #: What the trial's class derives from.
    _base: type = PyTorchTrial

    def __init__(
        self,
        trial: Any,
        context: Any,
        loader: Any,
        callbacks: dict[str, PyTorchCallback],
        only_one_batch: bool = False,
    ) -> None:
        self._trial = trial
        self._context = context
        self._ranks = context.distributed
        self._callbacks = callbacks
        self._only_one_batch = only_one_batch
        self._is_whole = _user_code.overrides(trial, self._base, "evaluate_full_dataset")
        self._wants_index = _user_code.takes(trial.evaluate_batch, "batch_idx")
        self._loader: Any = self._sharded(loader)

    def _sharded(self, loader: Any) -> Iterable[Any] | None:
        if isinstance(loader, DataLoader):
            if self._is_whole:
                return loader.get_data_loader(repeat=False, skip=0, num_replicas=1, rank=0)
            return loader.get_data_loader(repeat=False, skip=0, num_replicas=self._ranks.size, rank=self._ranks.rank)
        if not self._context._any_loader and isinstance(loader, data.DataLoader):  # pyright: ignore
            kind = cast("Any", type(cast("Any", loader)))
            raise RuntimeError(
                f"{_user_code.where(self._trial.build_validation_data_loader)}: build_validation_data_loader returned "
                f"a {kind.__module__}.{kind.__name__}, but must return a determined.pytorch.DataLoader; call "
                "context.experimental.disable_dataset_reproducibility_checks() to shard among the ranks yourself"
            )
        return loader

    def run(self) -> dict[str, Any]:
        """The metrics, the same on all ranks. Raises: what the trial raises; TypeError, ValueError, RuntimeError."""
        context, trial = self._context, self._trial
        context.reset_reducers()
        for model in context.models:
            model.eval()
        with torch.no_grad():
            for callback in self._callbacks.values():
                callback.on_validation_start()
            metrics = self._of_whole() if self._is_whole else self._of_batches(trial)
            metrics.update(context.reduce_metrics(for_training=False))
            for callback in self._callbacks.values():
                callback.on_validation_end(metrics)
        return metrics

    def _of_whole(self) -> dict[str, Any]:
        found: dict[str, Any] | None = None
        if self._ranks.rank == 0:
            evaluate = self._trial.evaluate_full_dataset
            found = _metrics.evaluation_output(evaluate(data_loader=self._loader), evaluate)
        return self._ranks.broadcast(found)

    def _of_batches(self, trial: Any) -> dict[str, Any]:
        context, evaluate = self._context, trial.evaluate_batch
        for callback in self._callbacks.values():
            callback.on_validation_epoch_start()
        began, records = time.monotonic(), 0
        outputs: list[dict[str, Any]] = []
        for batch_idx, loaded in enumerate(self._loader):
            records += self._length_of(loaded)
            batch = context.to_device(loaded) if context._moves_data else loaded  # pyright: ignore[reportPrivateUsage]
            arguments = {"batch_idx": batch_idx} if self._wants_index else {}
            outputs.append(_metrics.evaluation_output(evaluate(batch=batch, **arguments), evaluate))
            if self._only_one_batch:
                break
        for callback in self._callbacks.values():
            callback.on_validation_epoch_end(outputs)
        self._tell(records, len(outputs), time.monotonic() - began)
        return reduce_validation(outputs, trial.evaluation_reducer(), self._ranks.allgather, len(outputs))

    def _tell(self, records: int, batches: int, took: float) -> None:
        if self._ranks.rank == 0 and took > 0:
            logger.info(
                f"validated {records} records in {took:.1f} s: {records / took:.1f} records/s, "
                f"{batches / took:.1f} batches/s"
            )

    def _length_of(self, batch: Any) -> int:
        try:
            return self._trial.get_batch_length(batch)
        except (TypeError, ValueError):
            return 0  # for the log only: a batch may be anything
