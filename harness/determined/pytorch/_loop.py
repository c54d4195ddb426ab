"""The training loop: batches, and what is due after them."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

import determined
from determined import errors
from determined.pytorch import _horovod, _memory, _metrics, _random, _state, _user_code
from determined.pytorch._callback import PyTorchCallback
from determined.pytorch._checkpoints import CheckpointWriter, Code
from determined.pytorch._goals import Goal, Master
from determined.pytorch._load import read_loop_state
from determined.pytorch._reducer import reduce_training
from determined.pytorch._source import training_source
from determined.pytorch._units import Epoch, TrainUnit
from determined.pytorch._validation import Validation

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pathlib
    from collections.abc import Generator, Iterator

    from determined.pytorch._context import PyTorchTrialContext
    from determined.pytorch._trial import PyTorchTrial

logger = logging.getLogger("determined.pytorch")


@dataclass
class Plan:
    """What `Trainer.fit` was asked for, checked.

    Attributes:
        policy: When a validation is followed by a checkpoint: best, all or none.
        latest_checkpoint: Where to resume.
        metric: The searcher's metric; None outside of a cluster.
        needs_metric: Each validation must have it.
        is_reproducible: Refuse what a resumed run can't do again to the bit.
    """

    checkpoint_period: TrainUnit
    validation_period: TrainUnit
    reporting_period: TrainUnit
    policy: str = "best"
    latest_checkpoint: str | None = None
    step_zero_validation: bool = False
    test_mode: bool = False
    metric: str | None = None
    needs_metric: bool = False
    smaller_is_better: bool = True
    is_reproducible: bool = False


@dataclass
class Progress:
    """How far a run has come; saved with each checkpoint."""

    trial_id: int
    batches: int = 0
    epochs: int = 0
    last_checkpoint: int = 0
    last_validation: int = 0
    #: The searcher's metric of the last validation.
    last_metric: float | None = None

    def saved(self) -> dict[str, Any]:
        """The content of `trial_state.pkl`, by the names that the published package gave them."""
        return {
            "trial_id": self.trial_id,
            "last_ckpt": self.last_checkpoint,
            "step_id": 0,
            "last_val": self.last_validation,
            "batches_trained": self.batches,
            "epochs_trained": self.epochs,
        }


class _End(Exception):
    pass


class TrainingLoop:
    """One call of `Trainer.fit`.

    Args:
        trial: The user's.
        context: The trial's.
        plan: What to do when.
        master: What of the cluster the loop needs to know.
    """

    def __init__(self, trial: PyTorchTrial, context: PyTorchTrialContext, plan: Plan, master: Master) -> None:
        self._trial = trial
        self._context = context
        self._plan = plan
        self._master = master
        self._core = context._core  # pyright: ignore[reportPrivateUsage]
        self._ranks = context.distributed
        self._is_chief = self._ranks.rank == 0
        self._progress = Progress(context.get_trial_id())
        self._callbacks: dict[str, PyTorchCallback] = {}
        self._first_batch = 0
        self._is_saving = False

    # -- from the first callback to the last ---------------------------------------------------------------------------

    def run(self, goals: Iterable[Goal]) -> None:
        """Train to each goal, then save."""
        self._context._is_training = True  # pyright: ignore[reportPrivateUsage]
        _user_code.check_trial(self._trial, self._context)
        self._callbacks = _user_code.check_callbacks(self._trial)
        self._warn_of_old_forms()
        code = Code(self._master.packed_code(), self._core.checkpoint._storage.root)  # pyright: ignore
        load_data = self._master.load_data(type(self._trial))
        self._writer = CheckpointWriter(self._core, load_data, code)
        with contextlib.ExitStack() as shutdown:
            with self._restored() as folder:
                loop_state, resume = self._read(folder)
                for callback in self._callbacks.values():
                    callback.on_trial_startup(self._progress.batches, self._plan.latest_checkpoint)
                    shutdown.callback(callback.on_trial_shutdown)
                self._load_data(loop_state, resume)
                if folder is not None:
                    self._load(folder, resume)
                else:
                    self._own_random_states()
            self._broadcast_horovod()
            self._train(goals)

    @contextlib.contextmanager
    def _restored(self) -> Generator[pathlib.Path | None]:
        """The folder of the checkpoint to resume from, for as long as it is loaded."""
        if self._plan.latest_checkpoint is None:
            yield None
            return
        self._status("restoring")
        with self._core.checkpoint.restore_path(self._plan.latest_checkpoint) as folder:
            yield folder

    def _train(self, goals: Iterable[Goal]) -> None:
        for callback in self._callbacks.values():
            callback.on_training_start()
        profiler = self._context.profiler
        if profiler is not None:
            profiler.start()
        try:
            self._to_all(goals)
        except _End:
            self._checkpoint_if_unsaved()
        except errors.InvalidHP:
            # Other ranks may have gone on: nothing is exchanged.
            if not self._is_saving:
                self._checkpoint_if_unsaved(alone=True)
                self._writer.wait()
            raise
        except Exception:
            with contextlib.suppress(Exception):  # the first error is the one to show
                self._writer.wait()
            raise
        finally:
            if profiler is not None:
                profiler.stop()
        self._writer.wait()

    def _to_all(self, goals: Iterable[Goal]) -> None:
        progress, plan = self._progress, self._plan
        if plan.step_zero_validation and progress.batches == 0 and self._told(self._master.last_validation)[0] is None:
            self._validate()
            self._look_around()
        elif progress.batches and self._is_due(plan.validation_period) and progress.last_validation < progress.batches:
            # Preempted between the training and the validation after it.
            self._validate()
            self._look_around()
        for goal in goals:
            while not self._is_reached(goal.length):
                self._chunk(goal)
            # Of an older checkpoint the validation may be known, and its metric not.
            is_unknown = goal.operation is not None and progress.last_metric is None
            if progress.last_validation != progress.batches or is_unknown:
                self._validate()
            self._checkpoint_if_unsaved()
            if goal.operation is not None and self._is_chief:
                assert progress.last_metric is not None
                goal.operation.report_completed(progress.last_metric)

    # -- resuming ------------------------------------------------------------------------------------------------------

    def _read(self, folder: pathlib.Path | None) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """How far the checkpoint's run was, and what only our own checkpoints have."""
        if folder is None:
            return None, {}
        saved = read_loop_state(folder, None)
        resume: dict[str, Any] = {}
        if (folder / _state.RESUME_FILE).is_file():
            resume = _state.load_file(folder / _state.RESUME_FILE)
        if saved is None or saved.get("trial_id") != self._progress.trial_id:
            return None, {"ranks": resume.get("ranks") or []}
        progress = self._progress
        progress.batches = saved["batches_trained"]
        progress.epochs = saved["epochs_trained"] or 0
        progress.last_checkpoint = progress.batches
        progress.last_validation = saved["last_val"] or 0
        progress.last_metric = resume.get("last_metric")
        self._first_batch = progress.batches
        last, metric = self._told(self._master.last_validation)
        if last == progress.batches:
            progress.last_validation = last
            progress.last_metric = progress.last_metric if metric is None else metric
        return saved, resume

    def _load_data(self, loop_state: dict[str, Any] | None, resume: dict[str, Any]) -> None:
        """Make the loaders. A resumed run goes on with the next batch of the one sequence of all ranks."""
        context, trial = self._context, self._trial
        seed = resume.get("data_seed")
        if seed is None:
            seed = context._trial_seed  # pyright: ignore[reportPrivateUsage]
        self._data_seed = int(self._ranks.broadcast(torch.initial_seed() if seed is None else seed))
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
        length = self._ranks.broadcast(self._source.length)
        if length == 0:
            raise RuntimeError(
                f"{_user_code.where(trial.build_training_data_loader)}: build_training_data_loader returned a loader "
                "without a batch: give it data, or smaller batches"
            )
        self._epoch_length = sys.maxsize if length is None else int(length)
        context._epoch_len = self._epoch_length  # pyright: ignore[reportPrivateUsage]
        if loop_state is not None and loop_state["epochs_trained"] is None:
            self._progress.epochs = self._progress.batches // self._epoch_length
        self._batches: Iterator[Any] = iter(self._source.batches())
        self._validation = Validation(trial, context, validation, self._callbacks, self._plan.test_mode)
        self._warn_of_what_is_inexact()

    def _data_state(self, resume: dict[str, Any]) -> Any:
        """Where this rank's data were. Of a loader of ours, any rank's says it, also to another number of ranks."""
        if not self._progress.batches or not resume.get("ranks"):
            return None
        ranks = resume["ranks"]
        return ranks[self._ranks.rank if self._ranks.rank < len(ranks) else 0].get("data")

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
        if self._progress.batches:
            logger.info(
                f"resuming after {self._progress.batches} batches from checkpoint {self._plan.latest_checkpoint}"
            )

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

    # -- training ------------------------------------------------------------------------------------------------------

    def _is_reached(self, length: TrainUnit) -> bool:
        done = self._progress.epochs if isinstance(length, Epoch) else self._progress.batches
        assert isinstance(length.value, int)
        return done >= length.value

    def _is_due(self, unit: TrainUnit) -> bool:
        """Whether a period ends with the batch that was trained last."""
        batches = self._progress.batches
        if isinstance(unit, Epoch):
            return batches % self._epoch_length == 0 and unit.should_stop(batches // self._epoch_length)
        return unit.should_stop(batches)

    def _chunk(self, goal: Goal) -> None:
        """Train until something is due, report it, and do what is due."""
        self._status("training")
        plan, progress = self._plan, self._progress
        outputs = self._train_batches(
            (goal.length, plan.validation_period, plan.checkpoint_period, plan.reporting_period)
        )
        self._report_training(outputs)
        has_ended, reports = self._is_reached(goal.length), self._is_due(plan.reporting_period)
        if (has_ended or reports) and self._is_chief:
            goal.report_progress(self._core, progress.batches, progress.epochs)
        if has_ended:
            self._look_around()
        if self._is_due(plan.validation_period):
            if progress.last_validation != progress.batches:
                self._validate()
            self._look_around()
        if self._is_due(plan.checkpoint_period):
            self._checkpoint_if_unsaved()
            self._look_around()
        if reports:
            self._look_around()

    def _train_batches(self, units: tuple[TrainUnit, ...]) -> list[dict[str, Any]]:
        context, trial, progress = self._context, self._trial, self._progress
        profiler, moves, length = context.profiler, context._moves_data, self._epoch_length  # pyright: ignore
        train_batch, begin, end = trial.train_batch, context._begin_batch, context._end_batch  # pyright: ignore
        for model in context.models:
            model.train()
        context.reset_reducers()
        outputs: list[dict[str, Any]] = []
        while True:
            batch_idx = progress.batches
            epoch_idx, in_epoch = divmod(batch_idx, length)
            if in_epoch == 0:
                self._epoch_start(epoch_idx)
            batch = next(self._batches)
            if moves:
                batch = context.to_device(batch)
            begin(batch_idx)
            try:
                output = train_batch(batch=batch, epoch_idx=epoch_idx, batch_idx=batch_idx)
            except Exception as error:
                # Of several ranks one alone would wait for the others.
                if _memory.is_out_of_memory(error) and self._ranks.size == 1:
                    _memory.tell_what_fits(train_batch, batch, epoch_idx=epoch_idx, batch_idx=batch_idx)
                raise
            end(batch_idx)
            outputs.append(_metrics.training_output(output, train_batch))
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
        averages, batches = reduce_training(outputs, self._ranks.allgather)
        averages.update(self._context.reduce_metrics(for_training=True))
        averages.setdefault("batches", progress.batches)
        averages.setdefault("epochs", progress.epochs)
        if self._is_chief:
            self._core.train.report_training_metrics(progress.batches, averages, batches)
        for callback in self._callbacks.values():
            callback.on_training_workload_end(averages, batches)

    def _look_around(self) -> None:
        """End here if the cluster wants the slots, or any rank wants to stop."""
        self._writer.check()
        self._context._flush_writer()  # pyright: ignore[reportPrivateUsage]
        if self._core.preempt.should_preempt():
            raise _End
        if any(self._ranks.allgather(self._context.get_stop_requested())):
            raise _End

    # -- validating and saving -----------------------------------------------------------------------------------------

    def _validate(self) -> None:
        self._status("validating")
        plan, progress = self._plan, self._progress
        # What a validation draws must not move the training: a resumed run may have had another one, or none.
        drawn = _random.states_of(self._context.device)
        metrics = self._validation.run()
        _random.restore_states(drawn, self._context.device)
        progress.last_validation = progress.batches
        metric: float | None = None
        if plan.metric is not None and (plan.needs_metric or plan.metric in metrics):
            metric = _metrics.searcher_metric(metrics, plan.metric)
        progress.last_metric = metric
        # Before it is reported: a value is no better than itself.
        saves = self._wants_checkpoint(metric)
        if self._is_chief:
            reported = {"batches": progress.batches, "epochs": progress.epochs, **metrics}
            self._core.train.report_validation_metrics(progress.batches, reported)
        if saves:
            self._checkpoint_if_unsaved()

    def _wants_checkpoint(self, metric: float | None) -> bool:
        plan, progress = self._plan, self._progress
        if plan.policy == "none" or progress.batches == 0 or progress.last_checkpoint == progress.batches:
            return False
        if plan.policy == "all":
            return True
        return self._told(lambda: self._is_better(metric))

    def _is_better(self, metric: float | None) -> bool:
        best = self._core.train.get_experiment_best_validation()
        if best is None or metric is None:
            return True
        return metric < best if self._plan.smaller_is_better else metric > best

    def _checkpoint_if_unsaved(self, *, alone: bool = False) -> None:
        if self._progress.last_checkpoint != self._progress.batches:
            self._is_saving = True
            self._checkpoint(alone)
            self._is_saving = False

    def _checkpoint(self, alone: bool) -> None:
        """Save what all ranks need to go on from here. `alone`: other ranks don't take part."""
        self._status("checkpointing")
        context, progress = self._context, self._progress
        progress.last_checkpoint = progress.batches
        own = _state.rank_state(context, progress.batches)
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
            files = {_state.STATE_FILE: _state.on_host(state), _state.RESUME_FILE: resume}
            written = self._written if self._any_overrides("on_checkpoint_end", "on_checkpoint_write_end") else None
            self._writer.write(files, progress.saved(), metadata, written)
        if not alone and self._any_overrides("on_checkpoint_upload_end"):
            uuid = self._told(self._writer.wait)
            for callback in self._callbacks.values():
                callback.on_checkpoint_upload_end(uuid)

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

    # -- what to tell --------------------------------------------------------------------------------------------------

    def _told(self, ask: Any) -> Any:
        """What the chief finds out, on all ranks. What it raises, all ranks raise."""
        if self._ranks.size == 1:
            return ask()
        answer, error = None, None
        if self._is_chief:
            try:
                answer = ask()
            except Exception as raised:  # noqa: BLE001 - the others would wait for an answer
                error = raised
        answer, problem = self._ranks.broadcast((answer, None if error is None else f"{type(error).__name__}: {error}"))
        if error is not None:
            raise error
        if problem is not None:
            raise errors.DistributedError(f"rank 0 has failed: {problem}")
        return answer

    def _status(self, status: str) -> None:
        if self._is_chief:
            self._core.train.set_status(status)

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
        if self._source.why_inexact is not None:
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
