"""The training loop of a `PyTorchTrial`."""

from __future__ import annotations

import logging
from typing import Any

import torch

import determined
from determined._code import Code
from determined.pytorch import _horovod, _memory, _metrics, _random, _state, _user_code
from determined.pytorch._checkpoints import CheckpointWriter
from determined.pytorch._host import on_host
from determined.pytorch._loop import Loop, Plan
from determined.pytorch._source import training_source
from determined.pytorch._validation import Validation

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pathlib

    from determined._goals import Master
    from determined.pytorch._context import PyTorchTrialContext
    from determined.pytorch._trial import PyTorchTrial

logger = logging.getLogger("determined.pytorch")


class TrainingLoop(Loop):
    """Trains one batch of each rank at a time; the chief writes checkpoints, in a thread of its own."""

    _context: PyTorchTrialContext
    _trial: PyTorchTrial

    def __init__(self, trial: PyTorchTrial, context: PyTorchTrialContext, plan: Plan, master: Master) -> None:
        super().__init__(trial, context, plan, master)

    def _prepare(self, code: Code) -> None:
        _user_code.check_trial(self._trial, self._context)
        self._writer = CheckpointWriter(self._core, self._master.load_data(type(self._trial), "PyTorchTrial"), code)

    # -- resuming ------------------------------------------------------------------------------------------------------

    def _read_resume(self, folder: pathlib.Path) -> dict[str, Any]:
        path = folder / _state.RESUME_FILE
        return _state.load_file(path) if path.is_file() else {}

    def _make_data(self, resume: dict[str, Any]) -> int | None:
        context, trial = self._context, self._trial
        training, validation = trial.build_training_data_loader(), trial.build_validation_data_loader()
        self._source = training_source(
            training,
            seed=self._data_seed,
            rank=self._ranks.rank,
            size=self._ranks.size,
            state=self._data_state(resume),
            skip=self._progress.batches,
            allow_any=context._any_loader,  # pyright: ignore[reportPrivateUsage]
        )
        self._validation = Validation(trial, context, validation, self._callbacks, self._plan.test_mode)
        return self._ranks.broadcast(self._source.length)

    def _data_state(self, resume: dict[str, Any]) -> Any:
        """Where this rank's data were. Of a loader of ours, any rank's says it, also to another number of ranks."""
        if not self._progress.batches or not resume.get("ranks"):
            return None
        ranks = resume["ranks"]
        return ranks[self._ranks.rank if self._ranks.rank < len(ranks) else 0].get("data")

    def _begin(self, folder: pathlib.Path | None, resume: dict[str, Any]) -> None:
        if folder is not None:
            self._load(folder, resume)
        else:
            self._own_random_states()
        self._broadcast_horovod()

    def _load(self, folder: pathlib.Path, resume: dict[str, Any]) -> None:
        context = self._context
        state = _state.load_state_file(folder)
        for callback in self._callbacks.values():
            callback.on_checkpoint_load_start(state)
        _state.load_state(context, state)
        _state.load_callbacks(self._callbacks, state.get("callbacks") or {})
        ranks: list[dict[str, Any]] = resume.get("ranks") or []
        rank, size = self._ranks.rank, self._ranks.size
        if ranks and len(ranks) != size and self._is_chief:
            logger.info(
                f"the checkpoint is of {len(ranks)} slots, and this run has {size}: the order of samples stays, and "
                "ranks that are new draw random numbers of their own"
            )
        own = ranks[rank] if rank < len(ranks) else None
        if own is not None and len(ranks) == size:
            _state.load_rank_state(context, own)
        if own is not None or rank == 0:
            _random.restore_states(own["rng_state"] if own else state.get("rng_state") or {}, context.device)
        else:
            _random.seed_rank(_random.derived(self._data_seed, "rank", rank, self._progress.batches))
        self._tell_what_is_resumed()

    def _own_random_states(self) -> None:
        """All ranks made their models with one seed; from here each draws its own dropout. Rank 0 draws on."""
        if self._ranks.rank and self._context._trial_seed is not None:  # pyright: ignore[reportPrivateUsage]
            _random.seed_rank(_random.derived(self._data_seed, "rank", self._ranks.rank))

    def _broadcast_horovod(self) -> None:
        context = self._context
        if not context._is_horovod():  # pyright: ignore[reportPrivateUsage]
            return
        horovod = _horovod.module()
        for model in context.models:
            horovod.broadcast_parameters(model.state_dict(), root_rank=0)
        for optimizer in context.optimizers:
            horovod.broadcast_optimizer_state(optimizer, root_rank=0)

    # -- training and saving -------------------------------------------------------------------------------------------

    def _train_batch(self, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        context, train_batch = self._context, self._trial.train_batch
        batch = next(self._batches)
        if context._moves_data:  # pyright: ignore[reportPrivateUsage]
            batch = context.to_device(batch)
        context._begin_batch(batch_idx)  # pyright: ignore[reportPrivateUsage]
        try:
            output = train_batch(batch=batch, epoch_idx=epoch_idx, batch_idx=batch_idx)
        except Exception as error:
            # Of several ranks one alone would wait for the others.
            if _memory.is_out_of_memory(error) and self._ranks.size == 1:
                _memory.tell_what_fits(train_batch, batch, epoch_idx=epoch_idx, batch_idx=batch_idx)
            raise
        context._end_batch(batch_idx)  # pyright: ignore[reportPrivateUsage]
        return _metrics.training_output(output, train_batch)

    def _checkpoint(self, alone: bool) -> None:
        self._status("checkpointing")
        context, progress = self._context, self._progress
        progress.last_checkpoint = progress.batches
        own = _state.rank_state(context, progress.batches)
        assert self._source is not None
        own["data"] = self._source.state(progress.batches - self._first_batch)
        ranks = [own] if alone else self._ranks.gather(own)
        if self._is_chief:
            state = _state.state_of(context, self._callbacks)
            for callback in self._callbacks.values():
                callback.on_checkpoint_save_start(state)
            resume = {
                "version": 1,
                "ranks": ranks,
                "data_seed": self._data_seed,
                "last_metric": progress.last_metric,
            }
            metadata = {
                "determined_version": determined.__version__,
                "steps_completed": progress.batches,
                "framework": f"torch-{torch.__version__}",
                "format": "pickle",
            }
            files = {_state.STATE_FILE: on_host(state), _state.RESUME_FILE: resume}
            written = self._written if self._any_overrides("on_checkpoint_end", "on_checkpoint_write_end") else None
            self._writer.write(files, progress.saved(), metadata, written)
        if not alone and self._any_overrides("on_checkpoint_upload_end"):
            uuid = self._told(self._writer.wait)
            for callback in self._callbacks.values():
                callback.on_checkpoint_upload_end(uuid)

    def _until_saved(self) -> None:
        self._writer.wait()

    def _check_saving(self) -> None:
        self._writer.check()
