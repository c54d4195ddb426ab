"""`DeterminedCallback` for `lightning.pytorch.Trainer`."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import warnings
import weakref

import lightning
from lightning import pytorch as pl

from determined import errors
from determined._operations import (
    Operations,
    PercentProgress,
    check_counted,
    check_metrics,
    configured_length,
    length_by_time,
    required_metrics,
    searcher_config,
)
from determined._random import random_state, set_random_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from determined import core

FILE = "lightning.ckpt"
_logger = logging.getLogger("determined.lightning")


class DeterminedCallback(pl.Callback):
    """Connects a `lightning.pytorch.Trainer` with the cluster; outside of one, reports go to the log.

    - Metrics: what the module logs is reported, of training every `log_every_n_steps` steps and at the end of each
      epoch, of validation after each one.
    - Checkpoints: the Trainer's own, every `checkpoint_every_n_epochs` epochs and at the end.
    - Resuming: the trial's latest checkpoint is fetched at once; `Trainer.fit` takes `checkpoint_path` as `ckpt_path`.
    - Preemption: asked for after each batch. Random numbers and the place in the data are stored as well, so that a
      trial that is resumed within an epoch ends with the weights of an undisturbed one.
    - The searcher: `searcher.max_length`, or `max_time` in epochs or batches, is how far the Trainer trains; each
      operation ends with the first validation at or beyond its length.

    A batch is a step of the optimizer (`trainer.global_step`).

    Args:
        core_context: What `core.init()` gave.
        checkpoint_every_n_epochs: 0: only at the end, and when the cluster asks for room.

    Attributes:
        checkpoint_path: The file of the trial's latest checkpoint; None if there is none.

    Raises:
        ValueError: `searcher.max_length` has no unit, or is in records.
        InvalidCheckpointException: The trial's latest checkpoint is none of this callback's.
    """

    def __init__(self, core_context: core.Context, *, checkpoint_every_n_epochs: int = 1) -> None:
        super().__init__()
        if checkpoint_every_n_epochs < 0:
            raise ValueError(f"checkpoint_every_n_epochs is {checkpoint_every_n_epochs}, but must be 0 or more")
        self.core_context = core_context
        self.checkpoint_every_n_epochs = checkpoint_every_n_epochs
        config = searcher_config(core_context)
        self._length = _length(config)
        self._metric = str(config.get("metric") or "")
        self._required = required_metrics(config)
        self._operations = Operations(core_context)
        self._progress = PercentProgress(core_context)
        self._loaded: dict[str, Any] | None = None
        self._state: dict[str, Any] = {}
        self._epoch_start: dict[str, Any] = {}
        self._is_noted = False
        self._has_left = False
        self._saved_at = -1
        self._before_validation: dict[str, Any] = {}
        self._validation_names: set[str] = set()
        self._reported_at = -1
        self.checkpoint_path = self._fetch()

    def _fetch(self) -> str | None:
        info = self.core_context.info
        uuid = info.latest_checkpoint if info is not None else None
        if uuid is None:
            return None
        workers = self.core_context.distributed
        folder = ""
        if workers.local_rank == 0:
            folder = tempfile.mkdtemp(prefix="determined-lightning-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        folder = workers.broadcast_local(folder)  # one downloads for all of this machine
        self.core_context.checkpoint.download(uuid, folder)
        path = os.path.join(folder, FILE)
        if not os.path.exists(path):
            raise errors.InvalidCheckpointException(
                f"checkpoint {uuid} has no {FILE}: determined.lightning.DeterminedCallback can't resume from it"
            )
        return path

    # -- the beginning ------------------------------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Have the Trainer train as far as the experiment says."""
        if stage != "fit" or self._length is None:
            return
        unit, length = self._length
        if unit == "epochs":
            trainer.fit_loop.max_epochs = length
        else:
            trainer.fit_loop.epoch_loop.max_steps = length
            trainer.fit_loop.max_epochs = -1

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The Trainer's: this callback's part of a checkpoint."""
        self._loaded = state_dict or None

    def state_dict(self) -> dict[str, Any]:
        """The Trainer's: this callback's part of a checkpoint; empty in those that others save."""
        return self._state

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Go on at the stored place in the data, with the stored random numbers."""
        if self.checkpoint_path is not None and self._loaded is None:
            _logger.warning(
                "this trial has a checkpoint, but begins from scratch: give ckpt_path=callback.checkpoint_path to "
                "Trainer.fit"
            )
        if not self._operations.begin():
            _logger.info("the searcher wants nothing more of this trial")
            self._stop(trainer)
        self._saved_at = trainer.global_step
        loaded, self._loaded = self._loaded, None
        fetcher = getattr(trainer.fit_loop, "_data_fetcher", None)
        batches = loaded["batches_in_epoch"] if loaded is not None else 0
        rank = self.core_context.distributed.rank
        now = _own(loaded["now"], rank) if loaded is not None else None
        if batches:
            assert loaded is not None
            self._epoch_start = _own(loaded["epoch_start"], rank) or random_state()
            if fetcher is not None and not _is_resumable(trainer):
                set_random_state(self._epoch_start)
                _set_epoch(trainer)
                iter(fetcher)
                for _ in range(batches):  # past the fetcher's own count, which the Trainer restores
                    next(fetcher.iterator)
                # It says that the loader can't be resumed: it just was.
                warnings.filterwarnings("ignore", "You're resuming from a checkpoint that ended before")
            if now is not None:
                set_random_state(now)
            return
        if now is not None:
            set_random_state(now)
        self._epoch_start = random_state()
        self._is_noted = True
        if fetcher is not None:
            _set_epoch(trainer)
            iter(fetcher)  # the Trainer has made one before: its draws must come after the state that is noted

    # -- training -----------------------------------------------------------------------------------------------------

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Store the epoch before, now that all of it is over; note the random numbers that order this one's data."""
        epochs = trainer.current_epoch
        every = self.checkpoint_every_n_epochs
        if not self._is_noted and every and epochs % every == 0:
            progress = trainer.fit_loop.epoch_progress
            # What is stored is the end of the last epoch: this one counts as begun already.
            for count in (progress.total, progress.current):
                count.ready -= 1
            self._save(trainer)
            for count in (progress.total, progress.current):
                count.ready += 1
        if not self._is_noted:
            self._epoch_start = random_state()
        self._is_noted = False

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Report, and ask whether to make room."""
        is_last = bool(trainer.is_last_batch) or batch_idx + 1 >= trainer.num_training_batches
        if (batch_idx + 1) % trainer.accumulate_grad_batches and not is_last:
            return  # gradients of half a step can't be stored
        step = trainer.global_step
        self._report_progress(trainer, batch_idx)
        if is_last:
            return  # the end of an epoch has its own place, after the validation
        if step != self._reported_at and step % trainer.log_every_n_steps == 0:
            self._report_training(trainer, trainer.current_epoch)
        if not _validates_after(trainer, batch_idx) and self.core_context.preempt.should_preempt():
            self._leave(trainer, batch_idx + 1)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Report; complete the searcher's operation; ask whether to make room."""
        if self._has_left:
            return
        epochs = trainer.current_epoch + 1  # this one is counted after its hooks
        self._report_training(trainer, epochs)
        if self._operations.unit == "epochs":
            self._complete(trainer, epochs)
        known = trainer.callback_metrics
        if all(not each.reduce_on_plateau or each.monitor in known for each in trainer.lr_scheduler_configs):
            # In an epoch that it resumed within, the Trainer leaves out the schedulers that look at a metric, for fear
            # that there is none.
            trainer.fit_loop._restarting = False
        if self.core_context.preempt.should_preempt():
            self._stop(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Store the end."""
        if not self._has_left and self._saved_at != trainer.global_step:
            self._save(trainer)

    def _report_training(self, trainer: Any, epochs: int) -> None:
        metrics = {n: v for n, v in _numbers(trainer.callback_metrics).items() if n not in self._validation_names}
        self._reported_at = trainer.global_step
        if metrics and self.core_context.distributed.rank == 0:
            metrics = {**metrics, "batches": trainer.global_step, "epochs": epochs}
            self.core_context.train.report_training_metrics(trainer.global_step, metrics)

    def _report_progress(self, trainer: Any, batch_idx: int) -> None:
        if trainer.max_steps > 0:
            self._progress.report(trainer.global_step / trainer.max_steps)
        elif trainer.max_epochs and trainer.max_epochs > 0:
            part = min(1.0, (batch_idx + 1) / trainer.num_training_batches)
            self._progress.report((trainer.current_epoch + part) / trainer.max_epochs)

    # -- validation ---------------------------------------------------------------------------------------------------

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Note what was logged before."""
        self._before_validation = dict(trainer.callback_metrics)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Report what was logged since, of a validation within `fit`."""
        if trainer.sanity_checking or trainer.state.fn != "fit" or self._has_left:
            return
        before = self._before_validation
        found = {n: v for n, v in trainer.callback_metrics.items() if v is not before.get(n)}
        self._validation_names |= found.keys()
        is_last = bool(trainer.is_last_batch) or trainer.fit_loop.batch_idx + 1 >= trainer.num_training_batches
        epochs = trainer.current_epoch + int(is_last)
        metrics = {**_numbers(found), "batches": trainer.global_step, "epochs": epochs}
        check_metrics(self._required, metrics, "that this validation logged", "log it, or ")
        if self.core_context.distributed.rank == 0:
            self.core_context.train.report_validation_metrics(trainer.global_step, metrics)
        wants_more = self._operations.unit != "batches" or self._complete(trainer, trainer.global_step)
        if not is_last and (not wants_more or self.core_context.preempt.should_preempt()):
            self._leave(trainer, trainer.fit_loop.batch_idx + 1)

    def _complete(self, trainer: Any, trained: int) -> bool:
        """Complete the searcher's operation if it is reached. False: it wants nothing more now."""
        if not self._operations.reached(trained):
            return True
        metric = _numbers(trainer.callback_metrics).get(self._metric)
        if self._operations.complete(metric):
            return True
        self._stop(trainer)
        return False

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def _leave(self, trainer: Any, batches_in_epoch: int) -> None:
        """Store a place within an epoch, and end. What the Trainer does on its way out is not part of the training."""
        self._save(trainer, batches_in_epoch)
        self._has_left = True
        self._stop(trainer)
        trainer.fit_loop.epoch_loop._skip_next_val = True  # others wait for the slots

    def _stop(self, trainer: Any) -> None:
        trainer.should_stop = True
        # Which hold for what the training itself wants.
        trainer.fit_loop.min_epochs = 0
        trainer.fit_loop.epoch_loop.min_steps = None

    def _save(self, trainer: Any, batches_in_epoch: int = 0) -> None:
        workers = self.core_context.distributed
        self._state = {
            "now": workers.allgather(random_state()),
            "epoch_start": workers.allgather(self._epoch_start),
            "batches_in_epoch": batches_in_epoch,
        }
        metadata: dict[str, Any] = {
            "steps_completed": trainer.global_step,
            "framework": f"lightning-{lightning.__version__}",
        }
        info = self.core_context.info
        if info is not None and info.task_type == "TRIAL":
            metadata["trial_id"] = info.trial.trial_id
        try:
            with self.core_context.checkpoint.store_path(metadata, shard=True) as (path, _):
                trainer.save_checkpoint(path / FILE, weights_only=False)
        finally:
            self._state = {}
        self._saved_at = trainer.global_step


def _length(config: dict[str, Any]) -> tuple[str, int] | None:
    """How far to train; None if the experiment does not say."""
    length = configured_length(config)
    check_counted(length, "Lightning")
    return length or length_by_time(config)


def _validates_after(trainer: Any, batch_idx: int) -> bool:
    """Whether a validation within the epoch follows this batch: a place to leave is after it, or it would be lost."""
    every, epochs = trainer.val_check_batch, trainer.check_val_every_n_epoch
    if every is None or every == float("inf") or not trainer.enable_validation:
        return False
    if epochs is None:
        return (trainer.fit_loop.total_batch_idx + 1) % every == 0
    return (trainer.current_epoch + 1) % epochs == 0 and (batch_idx + 1) % every == 0


def _own(states: list[Any], rank: int) -> Any:
    """This worker's; None if there were fewer workers."""
    return states[rank] if rank < len(states) else None


def _set_epoch(trainer: Any) -> None:
    """Give the epoch to samplers that shuffle by it; the Trainer does so later, when its loaders may have begun."""
    loader, epoch = trainer.fit_loop._combined_loader, trainer.fit_loop.epoch_progress.current.processed
    for each in loader.flattened if loader is not None else ():
        batches: Any = getattr(each, "batch_sampler", None)
        samplers: list[Any] = [getattr(each, "sampler", None), batches, getattr(batches, "sampler", None)]
        for sampler in samplers:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)


def _is_resumable(trainer: Any) -> bool:
    """Whether the loaders have a state of their own, which the Trainer stores."""
    loader = trainer.fit_loop._combined_loader
    return loader is not None and all(hasattr(each, "load_state_dict") for each in loader.flattened)


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}
