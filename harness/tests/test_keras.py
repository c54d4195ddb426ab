"""A real, tiny `model.fit` of Keras 3 under `DeterminedCallback`, against the master of `conftest.py`."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")  # before the first import of Keras, which looks at it once

import keras

from determined import errors
from determined.keras import DeterminedCallback, TensorBoard, callbacks

if TYPE_CHECKING:
    from conftest import Trial

pytestmark = pytest.mark.filterwarnings("ignore")
BATCHES = 6  # an epoch


class AtEpoch(keras.callbacks.Callback):
    """Does something in the middle of an epoch, once."""

    def __init__(self, epoch: int, action: Callable[[], Any]) -> None:
        super().__init__()
        self.at, self.action, self.epoch = epoch, action, -1

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (self.epoch, batch) == (self.at, 3):
            self.action()


class Killed(BaseException):
    pass


def kill() -> None:
    raise Killed


def preempt(trial: Trial) -> None:
    """The cluster asks for room, and the thread that listens has heard it."""
    trial.preempt.set()
    (thread,) = (t for t in threading.enumerate() if t.name == "determined-preempt")
    thread.join(5.0)


def build() -> Any:
    """Two kinds of dropout: with a seed of its own, and Keras' general one in a layer that is shared."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(8), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    )
    model.compile(optimizer=keras.optimizers.Adam(0.05), loss="mse", metrics=["mae"])
    return model


def data() -> tuple[Any, Any]:
    x = numpy.random.default_rng(1).normal(size=(24, 3)).astype("float32")
    return x, x.sum(1, keepdims=True)


def digest(model: Any) -> str:
    return hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()


def fit(
    trial: Trial,
    *others: Any,
    epochs: int = 4,
    continue_id: int | str = 7,
    stored: tuple[Any, ...] = (),
    validate: bool = True,
    **how: Any,
) -> tuple[str, list[float]]:
    """Train as a trial; SHA-256 of the weights it ends with, and the losses of its epochs."""
    with trial.init() as context:
        callback = DeterminedCallback(context, trial.latest_checkpoint, continue_id, callbacks=stored, **how)
        model = build()
        x, y = data()
        history = model.fit(
            x,
            y,
            batch_size=4,
            epochs=epochs,
            verbose=0,
            validation_data=(x[:8], y[:8]) if validate else None,
            callbacks=[*others, *stored, callback],
        )
        model.evaluate(x, y, verbose=0, callbacks=[callback])
        return digest(model), history.history.get("loss", [])


@pytest.fixture(autouse=True)
def searcher(trial: Trial) -> None:
    trial.config["searcher"] = {"name": "single", "metric": "val_mae", "max_length": {"epochs": 4}}


def test_fit_is_reported_stored_and_completed(trial: Trial) -> None:
    fit(trial)
    assert trial.reported("training") == [(6, 1), (12, 2), (18, 3), (24, 4)]
    assert trial.reported("validation") == [(6, 1), (12, 2), (18, 3), (24, 4)], "evaluate() after fit is none of them"
    named = {r["group"]: r["metrics"]["avgMetrics"].keys() for r in trial.master.reports()}
    assert named["training"] == {"loss", "mae", "batches", "epochs"}
    assert named["validation"] == {"loss", "mae", "val_mae", "batches", "epochs"}
    assert sorted(trial.checkpoints()) == [6, 12, 18, 24]
    assert [c["op"]["length"] for c in trial.completed] == [4]
    assert [c.body["progress"] for c in trial.master.of("POST /api/v1/trials/7/progress")] == [0.25, 0.5, 0.75, 1.0]
    states = [c.body["state"] for c in trial.master.of("PUT /api/v1/trials/7/status")]
    assert not states or states[-1] == "finishing"
    (stored,) = trial.storage.rglob(trial.checkpoints()[24])
    assert {p.name for p in stored.iterdir()} >= {
        "model_checkpoint.weights.h5",
        "callback_state",
        "random_states.0.pkl",
    }
    state = pickle.loads((stored / "callback_state").read_bytes())
    del state["callbacks"]
    assert state == {
        "epoch": 3,
        "steps_completed": 24,
        "continue_id": 7,
        "training_length": 6,
        "validation_length": 2,
    }


def test_preempted_and_killed_fits_end_with_the_weights_of_an_undisturbed_one(trial: Trial) -> None:
    undisturbed, losses = fit(trial)
    trial.completed.clear()
    trial.master.calls.clear()
    with pytest.raises(Killed):
        fit(trial, AtEpoch(1, kill))
    assert sorted(trial.checkpoints()) == [6]
    trial.latest_checkpoint = trial.checkpoints()[6]
    fit(trial, AtEpoch(1, lambda: preempt(trial)), checkpoint_epochs=0)
    assert sorted(trial.checkpoints()) == [6, 12], "stored at the end of the epoch in which it was asked to leave"
    assert trial.completed == []
    trial.preempt.clear()
    trial.latest_checkpoint = trial.checkpoints()[12]
    weights, last = fit(trial)
    assert weights == undisturbed
    assert last == losses[2:], "it goes on with the third epoch"
    assert [c["op"]["length"] for c in trial.completed] == [4]


def test_another_continue_id_takes_the_weights_only(trial: Trial) -> None:
    trial.config["searcher"] = {"name": "single", "metric": "mae"}
    fit(trial, epochs=2)
    trial.latest_checkpoint = trial.checkpoints()[12]
    trial.master.calls.clear()
    _, losses = fit(trial, epochs=1, continue_id="another")
    assert trial.reported("training") == [(6, 1)]
    trial.latest_checkpoint = None
    assert losses != fit(trial, epochs=1)[1]


@pytest.mark.parametrize("kind", [keras.callbacks.EarlyStopping, callbacks.EarlyStopping])
def test_early_stopping_goes_on_from_its_best(trial: Trial, kind: Any) -> None:
    trial.config["searcher"] = {"name": "single", "metric": "mae"}

    def stopping() -> Any:
        return kind(monitor="loss", mode="max", patience=2, restore_best_weights=True)

    whole = stopping()
    undisturbed, losses = fit(trial, epochs=6, stored=(whole,))
    assert len(losses) == 4, "the second epoch is the best, and two more are waited for"
    trial.master.calls.clear()
    fit(trial, AtEpoch(1, lambda: preempt(trial)), epochs=6, stored=(stopping(),))
    trial.preempt.clear()
    trial.latest_checkpoint = trial.checkpoints()[12]
    resumed = stopping()
    assert fit(trial, epochs=6, stored=(resumed,)) == (undisturbed, losses[2:])
    assert (resumed.best, resumed.best_epoch) == (whole.best, 1)


def test_searcher_stops_at_its_rung_and_a_resumed_trial_goes_on(trial: Trial) -> None:
    trial.lengths = [1, 2]
    fit(trial, train_metrics_report_period=4)
    assert [c["op"]["length"] for c in trial.completed] == [1, 2]
    assert trial.reported("training") == [(4, 1), (8, 2), (12, 2)]
    trial.latest_checkpoint = trial.checkpoints()[12]
    assert fit(trial)[1] == [], "the searcher wants nothing: nothing is trained"


@pytest.mark.parametrize("name", ["model_checkpoint", "model_checkpoint.h5", "model_checkpoint.weights.h5"])
def test_files_of_older_releases_are_loaded(trial: Trial, tmp_path: Path, name: str) -> None:
    trial.config["searcher"] = {"name": "single", "metric": "mae"}
    old = build()
    old.set_weights([w + 1 for w in old.get_weights()])
    kept = tmp_path / ("old.weights.h5" if name.endswith(".weights.h5") else "old.h5")
    (old.save_weights if name.endswith(".weights.h5") else old.save)(str(kept))
    kept.rename(tmp_path / name)
    with trial.init() as context:
        callback = DeterminedCallback(context, None, 7)
        model = build()
        callback.load_model(model, str(tmp_path / "model_checkpoint"), context.distributed)
    assert digest(model) == digest(old)


def test_what_cannot_be_done_is_said(trial: Trial, tmp_path: Path) -> None:
    (tmp_path / "model_checkpoint.index").touch()
    with trial.init() as context:
        with pytest.raises(ValueError, match="train_metrics_report_period is 0, but must be 'epoch' or a number"):
            DeterminedCallback(context, None, 7, train_metrics_report_period=0)
        with pytest.raises(ValueError, match=r"callbacks: AtEpoch has no get_state\(\) and load_state\(state\)"):
            DeterminedCallback(context, None, 7, callbacks=[AtEpoch(1, kill)])
        callback = DeterminedCallback(context, None, 7)
        with pytest.raises(errors.InvalidCheckpointException, match="in the format of TensorFlow and Keras 2"):
            callback.load_model(build(), str(tmp_path / "model_checkpoint"), context.distributed)
        with pytest.raises(errors.InvalidCheckpointException, match="has no other.weights.h5"):
            callback.load_model(build(), str(tmp_path / "other"), context.distributed)
        folder = str(context.train.get_tensorboard_path())
        assert (TensorBoard(context).log_dir, callbacks.TensorBoard().log_dir) == (folder, folder)
    with pytest.raises(ValueError, match="is given epochs=2: give it epochs=4"):
        fit(trial, epochs=2)
    trial.config["searcher"] = {"name": "single", "metric": "accuracy"}
    with pytest.raises(ValueError, match="needs the metric 'accuracy', which is not among .*: loss, mae;"):
        fit(trial)


def test_missing_backend_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import determined.keras"],
        env={**os.environ, "KERAS_BACKEND": "tensorflow"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Keras is to use the backend tensorflow, which is not installed here" in done.stderr
