"""How far a run trains: what the searcher says, or its caller."""

from __future__ import annotations

import binascii
import logging
from dataclasses import dataclass
from typing import Any

from determined import errors
from determined._operations import length_by_time, searcher_config
from determined._units import Batch, Epoch, TrainUnit
from determined.core import SearcherOperation, Unit
from determined.core._searcher import hands_out_operations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from determined._trial_context import TrialContext
    from determined.core import Context
    from determined.core._backlog import Send

logger = logging.getLogger("determined.pytorch")


@dataclass
class Goal:
    """Train so far in all, validate, save.

    Attributes:
        length: In batches or epochs.
        operation: The searcher's, to be reported as completed; None if the run's length is its own.
        records: Records of a batch, if the searcher counts in records.
    """

    length: TrainUnit
    operation: SearcherOperation | None = None
    records: int | None = None

    def report_progress(self, core: Context, batches: int, epochs: int) -> None:
        """Say how far it is; on the chief."""
        done = epochs if isinstance(self.length, Epoch) else batches
        if self.operation is not None:
            self.operation.report_progress(done * (self.records or 1))
        elif isinstance(self.length.value, int):
            core.train.report_progress(min(done / self.length.value, 1.0) if self.length.value > 0 else 1.0)


class Master:
    """What of the cluster a training loop needs to know; outside of one, what stands in for it.

    Attributes:
        is_cluster: Whether there is one.
        searcher: Its configuration; empty outside of a cluster.
    """

    def __init__(self, context: TrialContext, is_trainer: bool) -> None:
        self._context = context
        self._core = context._core  # pyright: ignore[reportPrivateUsage]
        self._is_trainer = is_trainer
        self.is_cluster = not context._managed_training  # pyright: ignore[reportPrivateUsage]
        self.searcher = searcher_config(self._core)

    def goals(self, max_length: TrainUnit | None) -> Iterator[Goal]:
        """How far to train, one after the other.

        Args:
            max_length: What the caller said.

        Raises:
            ValueError: Nobody says how far, or in no unit.
        """
        if not self.is_cluster:
            if max_length is None:
                raise ValueError("Trainer.fit: max_length must be given outside of a cluster, for example Epoch(2)")
            return iter([Goal(max_length)])
        if self.follows_operations():
            return self._operations(max_length)
        return iter([Goal(self._own_length(max_length))])

    def follows_operations(self) -> bool:
        """Whether the searcher says how far to train, and waits for the metric of each length."""
        return self.is_cluster and hands_out_operations(self.searcher)

    def _own_length(self, max_length: TrainUnit | None) -> TrainUnit:
        """Of a search that decides by reports."""
        time_metric, told = self.searcher.get("time_metric"), length_by_time(self.searcher)
        by_time = {"batches": Batch, "epochs": Epoch}[told[0]](told[1]) if told is not None else None
        if time_metric is not None and by_time is None:
            logger.warning(f"searcher.time_metric {time_metric!r} is no length of training: expected batches or epochs")
        if max_length is not None and by_time is not None and max_length != by_time:
            logger.warning(f"Trainer.fit: max_length is {max_length}, and the searcher's max_time says {by_time}")
        length = max_length or by_time
        if length is None:
            raise ValueError(
                "nothing says how far to train: give max_length to Trainer.fit, or set searcher.max_length in the "
                "experiment's configuration, for example {epochs: 2}"
            )
        return length

    def _operations(self, max_length: TrainUnit | None) -> Iterator[Goal]:
        """One for each operation of the searcher; all ranks take them together."""
        context, searcher = self._context, self._core.searcher
        unit = searcher.get_configured_units()
        kinds = {Unit.EPOCHS: Epoch, Unit.BATCHES: Batch, Unit.RECORDS: Batch}
        kind = kinds[unit] if unit is not None else type(max_length) if max_length is not None else None
        if kind is None:
            raise ValueError(
                "searcher.max_length in the experiment's configuration has no unit: use {batches: n} or {epochs: n}"
            )
        records = context.get_global_batch_size() if unit is Unit.RECORDS else None
        for operation in searcher.operations():
            length = operation.length if records is None else max(operation.length // records, 1)
            goal = Goal(kind(length), operation, records)
            if max_length is not None and max_length != goal.length and context.distributed.rank == 0:
                logger.warning(f"Trainer.fit: max_length {max_length} is not used: the searcher says {goal.length}")
                max_length = None
            yield goal

    def last_validation(self) -> tuple[int | None, float | None]:
        """After how many batches the cluster saw this trial's last validation, and the searcher's metric in it."""
        if not self.is_cluster:
            return None, None
        trial: dict[str, Any] = self._ask(f"/api/v1/trials/{self._context.get_trial_id()}").get("trial") or {}
        latest: dict[str, Any] = trial.get("latestValidation") or {}
        if not latest:
            return None, None
        metrics: dict[str, Any] = latest.get("metrics") or {}
        averages: dict[str, Any] = metrics.get("avgMetrics") or {}
        value = averages.get(str(self.searcher.get("metric")))
        return int(latest.get("totalBatches") or 0), value if isinstance(value, (int, float)) else None

    def packed_code(self) -> Callable[[], bytes] | None:
        """Fetches the experiment's model directory, packed; None outside of a cluster."""
        info = self._core.info
        if not self.is_cluster or info is None:
            return None
        return lambda: binascii.a2b_base64(
            str(self._ask(f"/api/v1/tasks/{info.task_id}/context_directory").get("b64Tgz") or "")
        )

    def load_data(self, cls: type[Any], kind: str) -> dict[str, Any]:
        """The content of `load_data.json`: what making a trial of a checkpoint needs. `kind`: "PyTorchTrial" …"""
        context = self._context
        found: dict[str, Any] = {
            "trial_type": kind,
            "experiment_config": context._exp_conf,  # pyright: ignore[reportPrivateUsage]
            "hparams": context._hparams,  # pyright: ignore[reportPrivateUsage]
            "trial_cls_spec": f"{cls.__module__}:{cls.__qualname__}",
        }
        if self._is_trainer:
            found["is_trainer"] = True
        return found

    def _ask(self, path: str) -> dict[str, Any]:
        reporter: Any = self._core._reporter  # pyright: ignore[reportPrivateUsage]
        if reporter is None:
            raise errors.InternalException("there is no cluster to ask")

        def get(send: Send) -> Any:
            return send("GET", path)

        return reporter.call(get)
