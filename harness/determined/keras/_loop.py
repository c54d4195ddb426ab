"""The training loop of a `TFKerasTrial`: one `model.fit` for each workload. Source: spec training-apis.md §7, §8.1."""

from __future__ import annotations

import contextlib
import json
import logging
import pickle
import sys
from typing import Any

import keras

import determined
from determined._code import Code
from determined._sequencer import Plan, Sequencer
from determined._units import Epoch, TrainUnit
from determined.keras import _inputs, _states, _user_code
from determined.keras._events import Events, Within
from determined.keras._weights import SUFFIX, load_weights, save_weights

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pathlib
    from collections.abc import Generator, Iterable

    from determined._goals import Goal, Master
    from determined.keras._context import TFKerasTrialContext
    from determined.keras._trial import TFKerasTrial

logger = logging.getLogger("determined.keras")

#: Of a checkpoint. The names are those of the published package; the format of the weights is Keras 3's.
WEIGHTS_FILE = "determined-keras-model-weights"
RANDOM_FILE = "rng_state.pkl"
CALLBACKS_FILE = "determined-callbacks.v1.pkl"
LOOP_FILE = "workload_sequencer.pkl"


class TrialLoop(Sequencer):
    """Trains a `TFKerasTrial`.

    Args:
        trial: The user's.
        context: The trial's.
        plan: What to do when.
        master: What of the cluster the loop needs to know.
    """

    def __init__(self, trial: TFKerasTrial, context: TFKerasTrialContext, plan: Plan, master: Master) -> None:
        super().__init__(context, plan, master)
        self._trial = trial
        self._options = context._fit  # pyright: ignore[reportPrivateUsage]
        self._latest: dict[str, Any] = {}
        self._drawn: Any = None
        self._last = 0
        self._seed = int(context._trial_seed or 0)  # pyright: ignore[reportPrivateUsage]

    def run(self, goals: Iterable[Goal]) -> None:
        """Train to each goal, then save."""
        self._make_data()
        self._model = _user_code.built_model(self._trial, self._context)
        self._events = Events(_user_code.callbacks_of(self._trial), self._model, self._params())
        self._code = Code(self._master.packed_code(), self._core.checkpoint._storage.root)  # pyright: ignore
        self._load_data = self._master.load_data(type(self._trial), "TFKerasTrial")
        with self._restored() as folder:
            resume = self._read(folder)
            self._build()
            self._events.to_all("on_train_begin", {})
            if folder is not None:
                self._load(folder, resume)
        self._train(goals)
        self._events.to_all("on_train_end", {})

    # -- the beginning -------------------------------------------------------------------------------------------------

    def _make_data(self) -> None:
        context, trial, options = self._context, self._trial, self._options
        size = context.get_per_slot_batch_size
        training = _user_code.loaded_data(trial, context, "build_training_data_loader")
        held_out = _user_code.loaded_data(trial, context, "build_validation_data_loader")
        self._source = _inputs.training_source(training, options, size, self._seed)
        self._held_out = _inputs.validation_arguments(held_out, options, size)
        config: dict[str, Any] = context.get_experiment_config()
        records = int(config.get("records_per_epoch") or 0)
        length = records // context.get_global_batch_size() if records else self._source.length
        self._epoch_length = max(length, 1) if length is not None else sys.maxsize
        if self._plan.test_mode:
            self._held_out["steps"] = 1

    def _params(self) -> dict[str, Any]:
        return {"verbose": int(self._options.verbose), "epochs": 1, "steps": self._source.length}

    def _build(self) -> None:
        """Have Keras make all variables, those of the optimizer too: by the next batch, of which nothing is learned."""
        first = _inputs.Workload(self._source, self._progress.batches, 1)
        self._model.evaluate(first, verbose=0)
        self._model.reset_metrics()
        if not self._model.optimizer.built:  # TensorFlow's backend leaves it to the first `fit`
            self._model.optimizer.build(self._model.trainable_variables)

    # -- resuming ------------------------------------------------------------------------------------------------------

    def _read_resume(self, folder: pathlib.Path) -> dict[str, Any]:
        # That of an older package is a pickle of TensorFlow's, beside weights that are refused.
        is_ours = (folder / (WEIGHTS_FILE + SUFFIX)).is_file()
        return pickle.loads((folder / CALLBACKS_FILE).read_bytes()) if is_ours else {}

    def _load(self, folder: pathlib.Path, resume: dict[str, Any]) -> None:
        load_stored_weights(self._model, folder)
        self._events.restore(resume.get("callbacks") or [])
        if resume:
            _states.set_random_states(self._model, pickle.loads((folder / RANDOM_FILE).read_bytes()))
        if not self._knows_epochs:
            self._progress.epochs = self._progress.batches // self._epoch_length
        self._tell_what_is_resumed()

    # -- training ------------------------------------------------------------------------------------------------------

    def _work(self, units: tuple[TrainUnit, ...]) -> None:
        progress, first = self._progress, self._progress.batches
        count = min(self._until(unit) for unit in units)
        self._events.to_ours("on_train_workload_begin", first, count, {})
        self._drawn, self._last = _inputs.random_states(), first + count
        with _unfinished(self._model.optimizer):
            history = self._model.fit(
                _inputs.Workload(self._source, first, count),
                class_weight=self._options.class_weight,
                shuffle=False,
                verbose=0,
                callbacks=[Within(self._events, self._begin_batch, self._end_batch)],
            )
        _inputs.set_random_states(self._drawn)
        self._latest = {name: values[-1] for name, values in history.history.items()}
        self._events.to_ours("on_train_workload_end", progress.batches, self._latest)
        metrics = {**self._latest, "batches": progress.batches, "epochs": progress.epochs}
        self._core.train.report_training_metrics(progress.batches, metrics)
        if self._options.verbose:
            logger.info(", ".join(f"{name} {value:.6g}" for name, value in metrics.items()))
        self._heed_model()
        if progress.batches < first + count:
            self._look_around()

    def _until(self, unit: TrainUnit) -> int:
        """In how many batches it is due."""
        assert isinstance(unit.value, int)  # configurations have no schedules
        every = max(unit.value, 1) * (self._epoch_length if isinstance(unit, Epoch) else 1)
        return every - self._progress.batches % every

    def _begin_batch(self) -> int:
        if self._drawn is not None:
            # What Keras draws to begin and to end a `fit` must not move the training, wherever a workload begins.
            _inputs.set_random_states(self._drawn)
            self._drawn = None
        epoch, at = divmod(self._progress.batches, self._epoch_length)
        if at == 0:
            self._events.to_all("on_epoch_begin", epoch, {})
        return at

    def _end_batch(self) -> None:
        progress = self._progress
        progress.batches += 1
        if progress.batches % self._epoch_length == 0:
            self._events.epoch_ended(progress.epochs)
            progress.epochs += 1
        if progress.batches >= self._last or self._model.stop_training:
            self._drawn = _inputs.random_states()

    def _heed_model(self) -> None:
        """A callback that sets `model.stop_training` wants to stop."""
        if self._model.stop_training:
            self._context.set_stop_requested(True)

    # -- validating and saving -----------------------------------------------------------------------------------------

    def _evaluate(self) -> dict[str, Any]:
        drawn = _states.random_states(self._model)
        found = self._model.evaluate(**self._held_out, verbose=0, return_dict=True, callbacks=[Within(self._events)])
        _states.set_random_states(self._model, drawn)
        metrics = {f"val_{name}": value for name, value in found.items()}
        self._model.stop_training = False
        epoch = max(self._progress.batches - 1, 0) // self._epoch_length
        self._events.validated(epoch, {**self._latest, **metrics})
        self._heed_model()
        return metrics

    def _checkpoint(self, alone: bool) -> None:
        self._status("checkpointing")
        progress = self._progress
        progress.last_checkpoint = progress.batches
        metadata = {
            "determined_version": determined.__version__,
            "steps_completed": progress.batches,
            "framework": f"keras-{keras.__version__}",
            "format": "saved_weights",
        }
        with self._core.checkpoint.store_path(metadata) as (folder, _):
            self._write(folder)
            self._events.to_ours("on_checkpoint_end", str(folder))

    def _until_saved(self) -> None:
        """A checkpoint is stored when `_checkpoint` returns: Keras writes what is in use."""

    def _check_saving(self) -> None:
        """As `_until_saved`."""

    def _write(self, folder: pathlib.Path) -> None:
        save_weights(self._model, str(folder / WEIGHTS_FILE))
        callbacks = {"last_metric": self._progress.last_metric, "callbacks": self._events.state()}
        (folder / CALLBACKS_FILE).write_bytes(pickle.dumps(callbacks))
        (folder / RANDOM_FILE).write_bytes(pickle.dumps(_states.random_states(self._model)))
        (folder / LOOP_FILE).write_bytes(pickle.dumps(self._progress.saved()))
        (folder / "load_data.json").write_text(json.dumps(self._load_data, default=str))
        self._code(folder / "code")


def load_stored_weights(model: Any, folder: pathlib.Path) -> None:
    """Put a model, whose variables are made, into the state of a checkpoint of any age.

    Raises: InvalidCheckpointException, if it has none that Keras 3 can read.
    """
    old = folder / "determined-keras-model"
    is_old = old.is_file() or old.with_suffix(".h5").is_file()
    load_weights(model, str(old if is_old else folder / WEIGHTS_FILE))


@contextlib.contextmanager
def _unfinished(optimizer: Any) -> Generator[None]:
    """A `fit` that is not the end of the training: averages of weights (`use_ema`) do not take the weights' place."""
    optimizer.finalize_variable_values = lambda variables: None  # pyright: ignore[reportUnknownLambdaType]
    try:
        yield
    finally:
        del optimizer.finalize_variable_values
