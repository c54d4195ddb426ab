"""One validation of a `DeepSpeedTrial`: all ranks evaluate equally many batches, as engines wait for each other."""

from __future__ import annotations

import logging
import time
from typing import Any

from determined.pytorch import _metrics, _user_code
from determined.pytorch._data import DataLoader
from determined.pytorch._order import length_of
from determined.pytorch._reducer import reduce_validation
from determined.pytorch._validation import Validation
from determined.pytorch.deepspeed import _checks
from determined.pytorch.deepspeed._data import batches_of
from determined.pytorch.deepspeed._trial import DeepSpeedTrial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from determined.pytorch.deepspeed._context import DeepSpeedTrialContext

logger = logging.getLogger("determined.pytorch")


class EngineValidation(Validation):
    """Validates a trial as often as it is asked to.

    Args:
        counts: Whether the metrics of this rank count.
        others: As those of `Validation`.
    """

    _base = DeepSpeedTrial
    _context: DeepSpeedTrialContext

    def __init__(self, *others: Any, counts: bool) -> None:
        self._counts = counts
        self._records = 0
        super().__init__(*others)
        self._batches = 0 if self._is_whole else self._agreed()

    def _sharded(self, loader: Any) -> Any:
        mpu = self._context._mpu  # pyright: ignore[reportPrivateUsage]
        if not mpu.should_build_data_loader:
            return None
        build = self._trial.build_validation_data_loader
        _checks.check_loader(build, loader, self._context._any_loader)  # pyright: ignore[reportPrivateUsage]
        if not isinstance(loader, DataLoader):
            return loader
        rank, size = (0, 1) if self._is_whole else (mpu.data_parallel_rank, mpu.data_parallel_world_size)
        return loader.get_data_loader(repeat=False, skip=0, num_replicas=size, rank=rank)

    def _agreed(self) -> int:
        """How many batches each rank evaluates."""
        context = self._context
        build = self._trial.build_validation_data_loader
        own = None if self._loader is None else (length_of(self._loader),)
        lengths = [each[0] for each in self._ranks.allgather(own) if each is not None]
        if None in lengths:
            raise RuntimeError(
                f"{_user_code.where(build)}: build_validation_data_loader returned a loader without __len__, which it "
                "must have: all ranks evaluate equally many batches"
            )
        each = context.get_num_micro_batches_per_slot() if context.use_pipeline_parallel else 1
        batches = batches_of(lengths, each, _user_code.where(build), "build_validation_data_loader")
        assert batches is not None
        left = max(lengths) - batches * each
        if left and self._ranks.rank == 0:
            logger.warning(
                f"validations leave up to {left} of {max(lengths)} batches of a rank out, so that all ranks evaluate "
                f"{batches * each}"
            )
        return 1 if self._only_one_batch else batches

    def _of_batches(self, trial: Any) -> dict[str, Any]:
        for callback in self._callbacks.values():
            callback.on_validation_epoch_start()
        began, self._records = time.monotonic(), 0
        batches = None if self._loader is None else self._measured()
        outputs: list[dict[str, Any]] = []
        for batch_idx in range(self._batches):
            outputs.append(_metrics.evaluation_output(trial.evaluate_batch(batches, batch_idx), trial.evaluate_batch))
        for callback in self._callbacks.values():
            callback.on_validation_epoch_end(outputs)
        self._tell(self._records, len(outputs), time.monotonic() - began)
        counted = outputs if self._counts else []
        return reduce_validation(counted, trial.evaluation_reducer(), self._ranks.allgather, len(counted))

    def _measured(self) -> Iterator[Any]:
        for batch in self._loader:
            self._records += self._length_of(batch)
            yield batch
