"""The training loop of a `DeepSpeedTrial`."""

from __future__ import annotations

import json
import logging
import pickle
from typing import Any

import torch

import determined
from determined import errors
from determined.pytorch import _metrics, _random, _state, _user_code
from determined.pytorch._loop import Loop
from determined.pytorch._source import training_source
from determined.pytorch.deepspeed import _checks
from determined.pytorch.deepspeed._data import MicroBatches, batches_of
from determined.pytorch.deepspeed._validation import EngineValidation

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pathlib

    from determined._code import Code
    from determined.pytorch.deepspeed._context import DeepSpeedTrialContext
    from determined.pytorch.deepspeed._trial import DeepSpeedTrial

logger = logging.getLogger("determined.pytorch")


class EngineLoop(Loop):
    """Trains the micro batches of a batch at a time; all ranks write into each checkpoint."""

    _context: DeepSpeedTrialContext
    _trial: DeepSpeedTrial
    _micro: MicroBatches | None = None

    def _prepare(self, code: Code) -> None:
        _checks.check_trial(self._trial, self._context)
        self._code = code
        self._mpu = self._context._mpu  # pyright: ignore[reportPrivateUsage]
        self._calls = self._context._calls()  # pyright: ignore[reportPrivateUsage]
        self._counts = self._counting()
        self._taken = 0

    def _counting(self) -> list[bool]:
        """By rank, whether its metrics count: of the ranks that report for a copy of the model the first does."""
        mpu, seen, counts = self._mpu, set[int](), list[bool]()
        for copy, reports in self._ranks.allgather((mpu.data_parallel_rank, mpu.should_report_metrics)):
            counts.append(reports and copy not in seen)
            if reports:
                seen.add(copy)
        if not seen:
            raise errors.InvalidExperimentException(
                f"{_user_code.where(type(self._trial))}: should_report_metrics is False in the ModelParallelUnit of "
                "each rank, but must be True on one: no metric would count"
            )
        return counts

    def _allgather(self, metrics: Any) -> list[Any]:
        return [each for each, counts in zip(self._ranks.allgather(metrics), self._counts) if counts]

    # -- resuming ------------------------------------------------------------------------------------------------------

    def _read_resume(self, folder: pathlib.Path) -> dict[str, Any]:
        """This rank's file; where a checkpoint has none for it, what the chief's says of all ranks."""
        own, first = (folder / _rank_file(rank) for rank in (self._ranks.rank, 0))
        if not first.is_file():
            raise errors.InvalidCheckpointException(
                f"{folder} has no {first.name}: it was not saved by a DeepSpeedTrial"
            )
        state = _state.load_file(own if own.is_file() else first)
        stored = len(list(folder.glob(_rank_file("*"))))
        return {**state.pop("resume", {}), "state": state, "is_own": own.is_file(), "size": stored}

    def _make_data(self, resume: dict[str, Any]) -> int | None:
        context, trial, mpu = self._context, self._trial, self._mpu
        training = validation = None
        if mpu.should_build_data_loader:
            training, validation = trial.build_training_data_loader(), trial.build_validation_data_loader()
            self._source = self._micro = self._training_source(training, resume)
        self._validation = EngineValidation(
            *(trial, context, validation, self._callbacks, self._plan.test_mode), counts=self._counts[self._ranks.rank]
        )
        own = None if self._source is None else (self._source.length,)
        lengths = [each[0] for each in self._ranks.allgather(own) if each is not None]
        if 0 in lengths:
            return 0
        build = trial.build_training_data_loader
        return batches_of(lengths, self._micro_batches(), _user_code.where(build), "build_training_data_loader")

    def _training_source(self, loader: Any, resume: dict[str, Any]) -> MicroBatches:
        context, mpu = self._context, self._mpu
        any_loader = context._any_loader  # pyright: ignore[reportPrivateUsage]
        _checks.check_loader(self._trial.build_training_data_loader, loader, any_loader)
        source = training_source(
            loader,
            seed=self._data_seed,
            rank=mpu.data_parallel_rank,
            size=mpu.data_parallel_world_size,
            state=resume.get("data") if self._progress.batches else None,
            skip=self._progress.batches * self._micro_batches(),
            allow_any=any_loader,
        )
        return MicroBatches(source)

    def _micro_batches(self) -> int:
        return self._context.get_num_micro_batches_per_slot()

    def _begin(self, folder: pathlib.Path | None, resume: dict[str, Any]) -> None:
        if folder is not None:
            self._load(folder, resume)
        elif self._context._trial_seed is not None:  # pyright: ignore[reportPrivateUsage]
            self._own_random_states()

    def _load(self, folder: pathlib.Path, resume: dict[str, Any]) -> None:
        state: dict[str, Any] = resume["state"]
        for callback in self._callbacks.values():
            callback.on_checkpoint_load_start(state)
        self._trial.load(self._context, folder)
        _state.load_callbacks(self._callbacks, state.get("callbacks") or {})
        if resume["size"] != self._ranks.size and self._is_chief:
            logger.info(
                f"the checkpoint is of {resume['size']} slots, and this run has {self._ranks.size}: ranks that are new "
                "draw random numbers of their own"
            )
        if resume["is_own"]:
            _random.restore_states(state.get("rng_state") or {}, self._context.device)
        else:
            self._own_random_states()
        self._tell_what_is_resumed()

    def _own_random_states(self) -> None:
        """Ranks drew alike while models were made. Now each copy of a model, and each stage of it, draws its own.

        The ranks that share a stage draw alike: they compute parts of the same layers.
        """
        place = (self._mpu.data_parallel_rank, self._context._stage)  # pyright: ignore[reportPrivateUsage]
        if any(place):
            _random.seed_rank(_random.derived(self._data_seed, "rank", *place, self._progress.batches))

    # -- training and saving -------------------------------------------------------------------------------------------

    def _train_batch(self, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        context, train_batch = self._context, self._trial.train_batch
        context._batch_idx = batch_idx  # pyright: ignore[reportPrivateUsage]
        outputs: list[dict[str, Any]] = []
        for _ in range(self._calls):
            output = train_batch(self._batches, epoch_idx, batch_idx)
            try:
                outputs.append(_metrics.training_output(output, train_batch))
            except TypeError as error:
                raise errors.InvalidExperimentException(str(error)) from None
        if not context.use_pipeline_parallel:
            _checks.check_micro_steps(self._trial, context.models, batch_idx)
        if self._micro is not None:
            self._taken = self._micro.taken
        return _metrics.mean_of(outputs, train_batch)

    def _checkpoint(self, alone: bool) -> None:
        if alone and self._ranks.size > 1:
            logger.warning("the batches since the last checkpoint are not saved: engines are saved by all ranks only")
            return
        self._status("checkpointing")
        progress = self._progress
        progress.last_checkpoint = progress.batches
        metadata = {
            "determined_version": determined.__version__,
            "steps_completed": progress.batches,
            "framework": f"torch-{torch.__version__}",
            "format": "pickle",
        }
        with self._core.checkpoint.store_path(metadata, shard=True) as (folder, uuid):
            torch.save(self._rank_state(), folder / _rank_file(self._ranks.rank))  # pyright: ignore
            self._trial.save(self._context, folder)
            if self._is_chief:
                self._write_what_is_common(folder)
            self._written(str(folder))
        for callback in self._callbacks.values():
            callback.on_checkpoint_upload_end(uuid)

    def _rank_state(self) -> dict[str, Any]:
        """The content of this rank's file. Source: spec training-apis.md §6; `resume` is ours."""
        state: dict[str, Any] = {
            "callbacks": {name: callback.state_dict() for name, callback in self._callbacks.items()},
            "rng_state": _random.states_of(self._context.device),
        }
        for callback in self._callbacks.values():
            callback.on_checkpoint_save_start(state)
        state["resume"] = {
            "version": 1,
            "data": None if self._micro is None else self._micro.state(self._taken),
            "data_seed": self._data_seed,
            "last_metric": self._progress.last_metric,
        }
        return state

    def _write_what_is_common(self, folder: pathlib.Path) -> None:
        (folder / _state.LOOP_FILE).write_bytes(pickle.dumps(self._progress.saved()))
        load_data = self._master.load_data(type(self._trial), "DeepSpeedTrial")
        (folder / _state.LOAD_FILE).write_text(json.dumps(load_data, default=str))
        self._code(folder / "code")

    def _until_saved(self) -> None:
        """A checkpoint is stored before training goes on."""

    def _check_saving(self) -> None:
        """As `_until_saved`."""


def _rank_file(rank: Any) -> str:
    return f"det_state_dict_rank{rank}.pth"
