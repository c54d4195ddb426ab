"""What training loops have in common: batches, and what is due after them."""

from __future__ import annotations

import abc
import contextlib
import logging
import sys
import warnings
from collections.abc import Iterable
from typing import Any

import torch

from determined import errors
from determined._code import Code
from determined._goals import Goal, Master
from determined._sequencer import Plan, Sequencer
from determined._units import TrainUnit
from determined.pytorch import _metrics, _random, _user_code
from determined.pytorch._callback import PyTorchCallback
from determined.pytorch._reducer import reduce_training

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pathlib

    from determined.pytorch._source import Source
    from determined.pytorch._torch_context import TorchTrialContext
    from determined.pytorch._validation import Validation

logger = logging.getLogger("determined.pytorch")


class Loop(Sequencer):
    """One call of `Trainer.fit`. What it trains, a subclass knows: its data, its batches, its checkpoints.

    Args:
        trial: The user's.
        context: The trial's.
        plan: What to do when.
        master: What of the cluster the loop needs to know.
    """

    def __init__(self, trial: Any, context: TorchTrialContext, plan: Plan, master: Master) -> None:
        super().__init__(context, plan, master)
        self._trial = trial
        self._callbacks: dict[str, PyTorchCallback] = {}
        self._source: Source | None = None
        self._validation: Validation

    # -- what a subclass knows -----------------------------------------------------------------------------------------

    @abc.abstractmethod
    def _prepare(self, code: Code) -> None:
        """Refuse a trial whose parts don't go together, before anything is loaded. `code` goes into checkpoints."""

    @abc.abstractmethod
    def _make_data(self, resume: dict[str, Any]) -> int | None:
        """Make the loaders, `_source` and `_validation`; the batches of an epoch, None if that is unknown."""

    @abc.abstractmethod
    def _begin(self, folder: pathlib.Path | None, resume: dict[str, Any]) -> None:
        """Load the checkpoint, or begin without one."""

    @abc.abstractmethod
    def _train_batch(self, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        """Train the next batch; its metrics on this rank."""

    def _allgather(self, metrics: Any) -> list[Any]:
        """The training metrics of all ranks whose metrics count."""
        return self._ranks.allgather(metrics)

    # -- from the first callback to the last ---------------------------------------------------------------------------

    def run(self, goals: Iterable[Goal]) -> None:
        """Train to each goal, then save."""
        self._context._is_training = True  # pyright: ignore[reportPrivateUsage]
        self._prepare(Code(self._master.packed_code(), self._core.checkpoint._storage.root))  # pyright: ignore
        self._callbacks = _user_code.check_callbacks(self._trial)
        self._warn_of_old_forms()
        with contextlib.ExitStack() as shutdown:
            with self._restored() as folder:
                resume = self._read(folder)
                for callback in self._callbacks.values():
                    callback.on_trial_startup(self._progress.batches, self._plan.latest_checkpoint)
                    shutdown.callback(callback.on_trial_shutdown)
                self._load_data(resume)
                self._begin(folder, resume)
            self._train(goals)

    def _train(self, goals: Iterable[Goal]) -> None:
        for callback in self._callbacks.values():
            callback.on_training_start()
        profiler = self._context.profiler
        if profiler is not None:
            profiler.start()
        try:
            super()._train(goals)
        finally:
            if profiler is not None:
                profiler.stop()

    # -- resuming ------------------------------------------------------------------------------------------------------

    def _load_data(self, resume: dict[str, Any]) -> None:
        """Make the loaders. A resumed run goes on with the next batch of the one sequence of all ranks."""
        seed = resume.get("data_seed")
        if seed is None:
            seed = self._context._trial_seed  # pyright: ignore[reportPrivateUsage]
        self._data_seed = int(self._ranks.broadcast(torch.initial_seed() if seed is None else seed))
        length = self._make_data(resume)
        if length == 0:
            raise RuntimeError(
                f"{_user_code.where(self._trial.build_training_data_loader)}: build_training_data_loader returned a "
                "loader without a batch: give it data, or smaller batches"
            )
        self._epoch_length = sys.maxsize if length is None else length
        self._context._epoch_len = self._epoch_length  # pyright: ignore[reportPrivateUsage]
        if not self._knows_epochs:
            self._progress.epochs = self._progress.batches // self._epoch_length
        self._batches: Any = None if self._source is None else iter(self._source.batches())
        self._warn_of_what_is_inexact()

    # -- training ------------------------------------------------------------------------------------------------------

    def _work(self, units: tuple[TrainUnit, ...]) -> None:
        self._report_training(self._train_batches(units))

    def _train_batches(self, units: tuple[TrainUnit, ...]) -> list[dict[str, Any]]:
        context, progress = self._context, self._progress
        profiler, length, train_batch = context.profiler, self._epoch_length, self._train_batch
        for model in context.models:
            model.train()
        context.reset_reducers()
        outputs: list[dict[str, Any]] = []
        while True:
            batch_idx = progress.batches
            epoch_idx, in_epoch = divmod(batch_idx, length)
            if in_epoch == 0:
                self._epoch_start(epoch_idx)
            outputs.append(train_batch(epoch_idx, batch_idx))
            if profiler is not None:
                profiler.step()
            progress.batches += 1
            if in_epoch == length - 1:
                for callback in self._callbacks.values():
                    callback.on_training_epoch_end(epoch_idx)
                progress.epochs += 1
            if any(self._is_due(unit) for unit in units):
                return outputs

    def _epoch_start(self, epoch_idx: int) -> None:
        for callback in self._callbacks.values():
            if _user_code.takes(callback.on_training_epoch_start, "epoch_idx"):
                callback.on_training_epoch_start(epoch_idx)
            else:
                callback.on_training_epoch_start()  # type: ignore[call-arg]

    def _report_training(self, outputs: list[dict[str, Any]]) -> None:
        progress = self._progress
        outputs = [{name: _metrics.to_numpy(value) for name, value in output.items()} for output in outputs]
        averages, batches = reduce_training(outputs, self._allgather)
        averages.update(self._context.reduce_metrics(for_training=True))
        averages.setdefault("batches", progress.batches)
        averages.setdefault("epochs", progress.epochs)
        if self._is_chief:
            self._core.train.report_training_metrics(progress.batches, averages, batches)
        for callback in self._callbacks.values():
            callback.on_training_workload_end(averages, batches)

    def _look_around(self) -> None:
        self._context._flush_writer()
        super()._look_around()

    # -- validating and saving -----------------------------------------------------------------------------------------

    def _evaluate(self) -> dict[str, Any]:
        # What a validation draws must not move the training: a resumed run may have had another one, or none.
        drawn = _random.states_of(self._context.device)
        metrics = self._validation.run()
        _random.restore_states(drawn, self._context.device)
        return metrics

    def _written(self, folder: str) -> None:
        for callback in self._callbacks.values():
            callback.on_checkpoint_end(folder)
            callback.on_checkpoint_write_end(folder)

    def _any_overrides(self, *names: str) -> bool:
        return any(
            _user_code.overrides(callback, PyTorchCallback, name)
            for callback in self._callbacks.values()
            for name in names
        )

    def _warn_of_old_forms(self) -> None:
        for name, callback in self._callbacks.items():
            if _user_code.overrides(callback, PyTorchCallback, "on_checkpoint_end"):
                warnings.warn(
                    f"callback {name!r}: on_checkpoint_end is called on_checkpoint_write_end now",
                    FutureWarning,
                    stacklevel=2,
                )
            if not _user_code.takes(callback.on_training_epoch_start, "epoch_idx"):
                warnings.warn(
                    f"callback {name!r}: on_training_epoch_start takes epoch_idx now", FutureWarning, stacklevel=2
                )

    def _warn_of_what_is_inexact(self) -> None:
        """One sentence at the start, of what a resumed run can't do again to the bit."""
        causes: list[str] = []
        if self._source is not None and self._source.why_inexact is not None:
            causes.append(self._source.why_inexact)
        if self._context.device.type == "cuda" and not torch.are_deterministic_algorithms_enabled():
            causes.append("kernels of this GPU may be nondeterministic (torch.use_deterministic_algorithms(True))")
        if not causes:
            return
        sentence = f"a resumed run may differ from one that was not disturbed: {'; '.join(causes)}"
        if self._plan.is_reproducible:
            raise errors.InvalidExperimentException(f"{sentence}; reproducible=True refuses that")
        if self._is_chief:
            logger.warning(f"{sentence}; Trainer.fit(reproducible=True) refuses such a run")
