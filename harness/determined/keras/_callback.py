"""`DeterminedCallback`. Source: spec training-apis.md §8.2."""

from __future__ import annotations

import os
import pickle
import tempfile

import keras

from determined._operations import (
    Operations,
    PercentProgress,
    check_counted,
    check_metrics,
    configured_length,
    required_metrics,
    searcher_config,
)
from determined.keras import _states
from determined.keras._weights import load_weights, save_weights

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from determined import core

_MODEL = "model_checkpoint"
_STATE = "callback_state"


class DeterminedCallback(keras.callbacks.Callback):
    """Connects `model.fit` of Keras with the cluster; outside of one, reports go to the log.

    - Metrics: training's at the end of an epoch or every few batches, and each validation of `fit`.
    - Checkpoints: weights, optimizer, random numbers and the states of `callbacks`, at the end of an epoch.
    - Preemption: asked for at the end of an epoch, which is then stored.
    - The searcher: with `searcher.max_length`, each operation ends with the first validation at or beyond its length.

    It goes after those in `callbacks` into the list that `fit` is given.

    Args:
        core_context: What `core.init()` gave.
        checkpoint: The uuid to begin from, `info.latest_checkpoint`; None: from scratch.
        continue_id: Usually `info.trial.trial_id`. A checkpoint that was stored under the same is resumed in the epoch
            after it; of another one only the weights are taken, and training begins at epoch 0.
        train_metrics_report_period: "epoch", or a number of batches.
        checkpoint_epochs: Store every N epochs; 0: only at the end.
        callbacks: Other callbacks of the same `fit` whose states are stored and restored: EarlyStopping,
            ReduceLROnPlateau, ModelCheckpoint, and what has `get_state()` and `load_state(state)`.

    Raises:
        ValueError: One of the arguments, or the unit of `searcher.max_length`, is none of these.
    """

    def __init__(
        self,
        core_context: core.Context,
        checkpoint: str | None,
        continue_id: int | str,
        *,
        train_metrics_report_period: int | str = "epoch",
        checkpoint_epochs: int = 1,
        callbacks: Sequence[Any] = (),
    ) -> None:
        super().__init__()
        period = train_metrics_report_period
        if period != "epoch" and (not isinstance(period, int) or period < 1):
            raise ValueError(
                f"train_metrics_report_period is {period!r}, but must be 'epoch' or a number of batches, 1 or more"
            )
        if checkpoint_epochs < 0:
            raise ValueError(f"checkpoint_epochs is {checkpoint_epochs}, but must be 0 or more")
        for each in callbacks:
            _states.check_callback(each)
        config = searcher_config(core_context)
        length = configured_length(config)
        check_counted(length, "Keras")
        self._core = core_context
        self._checkpoint = checkpoint
        self._continue_id = continue_id
        self._period = period
        self._every = checkpoint_epochs
        self._callbacks = list(callbacks)
        self._metric = str(config.get("metric") or "")
        self._required = required_metrics(config)
        self._operations = Operations(core_context)
        self._length = length
        self._progress = PercentProgress(core_context)
        self._is_chief = core_context.distributed.rank == 0
        self._is_fitting = False
        self._states_to_restore: list[Any] = []
        self._steps = 0
        self._epoch = 0
        self._batches_in_epoch = 0
        self._test_batches = 0
        self._training_length: int | None = None
        self._validation_length: int | None = None
        self._finished_epoch = -1
        self._saved_epoch = -1
        self._validation: dict[str, Any] = {}
        self._printed = 0

    # -- the beginning and the end ------------------------------------------------------------------------------------

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Restore the checkpoint, and go on in the epoch after it."""
        self._is_fitting = True
        epochs = int(self._params["epochs"])
        if self._length is not None and self._length[0] == "epochs" and epochs < self._length[1]:
            raise ValueError(
                f"searcher.max_length is {{epochs: {self._length[1]}}}, but fit is given epochs={epochs}: give it "
                f"epochs={self._length[1]}"
            )
        if self._checkpoint is not None:
            self._restore(self._checkpoint)
        if not self._operations.begin():
            print("the searcher wants nothing more of this trial", flush=True)  # noqa: T201
            self._net._initial_epoch = epochs  # there is nothing else that keeps fit from its first epoch

    def _restore(self, uuid: str) -> None:
        self._set_status("restoring")
        with self._core.checkpoint.restore_path(uuid) as folder:
            self.load_model(self._net, str(folder / _MODEL), self._core.distributed)
            path = folder / _STATE
            state: dict[str, Any] = pickle.loads(path.read_bytes()) if path.exists() else {}
            if state.get("continue_id") != self._continue_id:
                return
            self._steps = state["steps_completed"]
            self._training_length = state.get("training_length")
            self._validation_length = state.get("validation_length")
            self._finished_epoch = self._saved_epoch = state["epoch"]
            self._states_to_restore = state.get("callbacks", [])
            self._net._initial_epoch = state["epoch"] + 1
            own = folder / _random_file(self._core.distributed.rank)
            if own.exists():
                _states.set_random_states(self._net, pickle.loads(own.read_bytes()))

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Store the last epoch, if it is not yet."""
        self._is_fitting = False
        self._save_if_unsaved()
        self._net._initial_epoch = None  # of this fit, and not of a second one
        self._set_status("finishing")

    # -- training -----------------------------------------------------------------------------------------------------

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Note where training is."""
        # Only now: each callback resets itself when the training begins.
        for callback, state in zip(self._callbacks, self._states_to_restore):
            _states.set_callback_state(callback, state)
        self._states_to_restore = []
        self._epoch, self._batches_in_epoch, self._printed = epoch, 0, 0
        self._validation = {}
        self._set_status("training")

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Count, and report if it is time."""
        before = self._steps
        trained = batch + 1 - self._batches_in_epoch  # with `steps_per_execution` several at once
        self._batches_in_epoch, self._steps = batch + 1, before + trained
        if isinstance(self._period, int) and before // self._period != self._steps // self._period:
            self._report("training", logs or {})
        self._print(batch + 1, self._params.get("steps") or self._training_length)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Report and store; complete the searcher's operation; ask whether to make room."""
        self._finished_epoch = epoch
        self._training_length = self._batches_in_epoch
        if self._period == "epoch":
            self._report("training", {n: v for n, v in (logs or {}).items() if not n.startswith("val_")})
        self._progress.report((epoch + 1) / int(self._params["epochs"]))
        if self._every and (epoch + 1) % self._every == 0:
            self._save_if_unsaved()
        trained = epoch + 1 if self._operations.unit == "epochs" else self._steps
        if self._validation and self._operations.reached(trained):
            self._save_if_unsaved()
            if not self._operations.complete(self._validation.get(self._metric)):
                self._net.stop_training = True
        if self._core.preempt.should_preempt():
            # Before others see the end of the training: EarlyStopping may put its best weights in place of these.
            self._save_if_unsaved()
            self._net.stop_training = True

    # -- validation ---------------------------------------------------------------------------------------------------

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Note it."""
        self._test_batches = 0
        if self._is_fitting:
            self._set_status("validating")

    def on_test_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Count."""
        self._test_batches = batch + 1

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Report a validation of `fit`; `evaluate()` outside of it is no part of the training."""
        if not self._is_fitting:
            return
        self._validation_length = self._test_batches
        metrics = dict(logs or {})
        for name in self._required:
            # As `fit` names it in its own logs.
            if name not in metrics and name.startswith("val_") and name[4:] in metrics:
                metrics[name] = metrics[name[4:]]
        # The report adds these two.
        required = [name for name in self._required if name not in ("batches", "epochs")]
        check_metrics(required, metrics, "of this validation")
        self._validation = metrics
        self._report("validation", metrics)
        self._set_status("training")

    # -- for subclasses -----------------------------------------------------------------------------------------------

    def save_model(self, model: Any, path: str, distributed: core.DistributedContext) -> None:
        """Save the model as `path`; all workers call it, and what others than the chief write is dropped."""
        if distributed.rank == 0 or keras.backend.backend() == "tensorflow":
            save_weights(model, path)

    def load_model(self, model: Any, path: str, distributed: core.DistributedContext) -> None:
        """Load what `save_model` has saved; all workers call it."""
        load_weights(model, path)

    # -- what they share ----------------------------------------------------------------------------------------------

    def _save_if_unsaved(self) -> None:
        if self._finished_epoch > self._saved_epoch:
            self._saved_epoch = self._finished_epoch
            self._save()

    def _save(self) -> None:
        self._set_status("checkpointing")
        workers = self._core.distributed
        with self._core.checkpoint.store_path({"steps_completed": self._steps}, shard=True) as (folder, _):
            if self._is_chief:
                self.save_model(self._net, str(folder / _MODEL), workers)
                state = {
                    "epoch": self._finished_epoch,
                    "steps_completed": self._steps,
                    "continue_id": self._continue_id,
                    "training_length": self._training_length,
                    "validation_length": self._validation_length,
                    "callbacks": [_states.callback_state(each) for each in self._callbacks],
                }
                (folder / _STATE).write_bytes(pickle.dumps(state))
            else:
                with tempfile.TemporaryDirectory() as dropped:
                    self.save_model(self._net, os.path.join(dropped, _MODEL), workers)
            (folder / _random_file(workers.rank)).write_bytes(pickle.dumps(_states.random_states(self._net)))
        self._set_status("training")

    def _report(self, group: str, metrics: dict[str, Any]) -> None:
        if self._is_chief and metrics:
            metrics = {**metrics, "batches": self._steps, "epochs": self._epoch + 1}
            self._core.train.report_metrics(group, self._steps, metrics)

    def _set_status(self, status: str) -> None:
        if self._is_chief:
            self._core.train.set_status(status)

    @property
    def _net(self) -> Any:
        return self.model  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

    @property
    def _params(self) -> dict[str, Any]:
        return self.params or {}  # pyright: ignore

    def _print(self, batch: int, of: int | None) -> None:
        """A line for each tenth: a bar that moves is none in a log."""
        if not self._is_chief or not of or not self._params.get("verbose"):
            return
        tenth = batch * 10 // of
        if tenth > self._printed:
            self._printed = tenth
            print(f"epoch {self._epoch + 1}: {tenth * 10}% ({batch} of {of} batches)", flush=True)  # noqa: T201


def _random_file(rank: int) -> str:
    return f"random_states.{rank}.pkl"
