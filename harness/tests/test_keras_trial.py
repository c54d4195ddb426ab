"""`TFKerasTrial`: a real, tiny training with Keras 3 on PyTorch, against the master of `conftest.py`."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from . import keras_trials  # before Keras: it names the backend

# isort: split
import h5py
import keras
import numpy as np

import determined as det
from determined import errors
from determined import keras as det_keras
from determined.keras import _legacy

pytestmark = pytest.mark.filterwarnings("ignore")
WEIGHTS = "determined-keras-model-weights.weights.h5"


class Runs:
    """Runs of one trial on a cluster, in this process or in one of its own."""

    def __init__(self, trial: Any) -> None:
        self.cluster = trial
        self.master = trial.master
        trial.hparams = {"global_batch_size": 4}
        trial.config |= {
            "searcher": {"name": "single", "metric": "val_mae", "max_length": {"batches": 13}},
            "scheduling_unit": 4,
            "min_validation_period": {"batches": 4},
            "min_checkpoint_period": {"batches": 3},
            "checkpoint_policy": "none",
        }
        trial.lengths = [13]
        self.master.answer("POST /api/v1/trials/7/status", {})
        self.master.answer("GET /api/v1/trials/7", lambda _: {"trial": {}})
        self.master.answer("GET /api/v1/tasks/1.task/context_directory", {"b64Tgz": ""})
        self.master.answer(
            "GET /api/v1/experiments/3/searcher/best_searcher_validation_metric", (404, {"message": "none yet"})
        )

    def __call__(self, cls: Any = keras_trials.Exact) -> None:
        self.cluster.write_info()
        det._info._cached = None  # type: ignore[attr-defined]
        info = det.get_cluster_info()
        assert info is not None
        _legacy.run(cls, info)

    def as_program(self, entrypoint: str = "keras_trials:Exact") -> subprocess.CompletedProcess[str]:
        """As a container runs it."""
        self.cluster.write_info()
        environment = {**os.environ, "DET_RUN_DIR": str(self.cluster.run_dir)}
        return subprocess.run(
            [sys.executable, "-m", "determined.exec.harness", entrypoint],
            cwd=Path(__file__).parent,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def resume(self) -> None:
        """From the latest checkpoint."""
        self.cluster.latest_checkpoint = self.master.of("POST /api/v1/checkpoints")[-1].body["uuid"]

    def folder(self) -> Path:
        """Of the latest checkpoint."""
        return self.cluster.storage / self.master.of("POST /api/v1/checkpoints")[-1].body["uuid"]

    def digest(self) -> str:
        """SHA-256 of weights and optimizer of the latest checkpoint."""
        found = hashlib.sha256()

        def add(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset):
                found.update(name.encode() + np.asarray(item[()]).tobytes())

        with h5py.File(self.folder() / WEIGHTS) as file:
            file.visititems(add)
        return found.hexdigest()

    def steps(self, group: str) -> list[int]:
        """Of the reports of a group."""
        return [r["stepsCompleted"] for r in self.master.reports() if r["group"] == group]

    def checkpoints(self) -> list[int]:
        return [c.body["metadata"]["steps_completed"] for c in self.master.of("POST /api/v1/checkpoints")]


@pytest.fixture
def runs(trial: Any) -> Runs:
    return Runs(trial)


def test_training_is_reported_validated_saved_and_completed(runs: Runs) -> None:
    runs()
    assert runs.steps("training") == [3, 4, 6, 8, 9, 12, 13]
    assert runs.steps("validation") == [4, 8, 12, 13]
    assert runs.checkpoints() == [3, 6, 9, 12, 13]
    assert [c["op"]["length"] for c in runs.cluster.completed] == [13]
    by_group = {r["group"]: r["metrics"]["avgMetrics"] for r in runs.master.reports()}
    assert by_group["training"].keys() == {"loss", "mae", "batches", "epochs"}
    assert by_group["validation"].keys() == {"val_loss", "val_mae", "batches", "epochs"}
    assert (by_group["validation"]["batches"], by_group["validation"]["epochs"]) == (13, 2)
    assert runs.master.of("POST /api/v1/trials/7/progress")[-1].body == 13
    files = {p.name for p in runs.folder().iterdir()}
    assert files >= {WEIGHTS, "determined-callbacks.v1.pkl", "rng_state.pkl", "workload_sequencer.pkl", "code"}
    about = json.loads((runs.folder() / "load_data.json").read_text())
    assert about["trial_type"] == "TFKerasTrial"
    metadata = runs.master.of("POST /api/v1/checkpoints")[-1].body["metadata"]
    assert (metadata["format"], metadata["framework"]) == ("saved_weights", f"keras-{keras.__version__}")


@pytest.mark.parametrize("data", ["sequence", "arrays"])
def test_killed_run_ends_with_the_weights_of_one_that_was_not_disturbed(runs: Runs, data: str) -> None:
    runs.cluster.hparams |= {"data": data}
    runs()
    undisturbed, losses = runs.digest(), _losses(runs)
    runs.master.calls.clear()
    runs.cluster.completed.clear()
    runs.cluster.hparams |= {"kill_at": 8}
    killed = runs.as_program()
    assert killed.returncode == -9, killed.stderr
    assert runs.checkpoints() == [3, 6]
    runs.resume()
    del runs.cluster.hparams["kill_at"]
    runs()
    assert runs.digest() == undisturbed
    assert _losses(runs)[13] == losses[13]
    assert [c["op"]["length"] for c in runs.cluster.completed] == [13]


def _losses(runs: Runs) -> dict[int, float]:
    reports = [r for r in runs.master.reports() if r["group"] == "training"]
    return {r["stepsCompleted"]: r["metrics"]["avgMetrics"]["loss"] for r in reports}


class _Preempts(det_keras.callbacks.Callback):
    cluster: Any = None

    def on_train_workload_begin(self, total_batches_trained: int, batches_requested: Any, logs: Any) -> None:
        if total_batches_trained < 4:
            return
        self.cluster.preempt.set()
        (thread,) = (t for t in threading.enumerate() if t.name == "determined-preempt")
        thread.join(5.0)


class _Preempted(keras_trials.Exact):
    def keras_callbacks(self) -> list[Any]:
        return [*super().keras_callbacks(), _Preempts()]


def test_preempted_run_is_saved_after_its_workload_and_resumed(runs: Runs) -> None:
    runs()
    undisturbed = runs.digest()
    runs.master.calls.clear()
    runs.cluster.completed.clear()
    _Preempts.cluster = runs.cluster
    runs.cluster.config["min_checkpoint_period"] = {"batches": 0}
    runs(_Preempted)
    assert runs.checkpoints() == [8]
    runs.cluster.preempt.clear()
    runs.resume()
    runs()
    assert runs.digest() == undisturbed


class _Told(det_keras.callbacks.Callback):
    told: list[Any] = []

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name.startswith("on_") or name in ("get_state", "load_state"):
            return lambda *args, **how: (_Told.told.append((name, *args[:1])), value(*args, **how))[1]
        return value

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        (Path(checkpoint_dir) / "mine").write_text("added")


class _Telling(keras_trials.Exact):
    def keras_callbacks(self) -> list[Any]:
        return [_Told()]


def test_callbacks_come_in_their_order(runs: Runs) -> None:
    runs.cluster.hparams |= {"data": "arrays", "global_batch_size": 8}
    runs.cluster.config |= {"min_validation_period": {}, "min_checkpoint_period": {}}
    runs.cluster.lengths, _Told.told = [4], []
    runs.cluster.config["searcher"]["max_length"] = {"batches": 4}
    runs(_Telling)
    told = [each for each in _Told.told if "test_batch" not in each[0] and "on_batch" not in each[0]]
    begin, end = "on_train_batch_begin", "on_train_batch_end"
    assert [each[:2] for each in told if each[0] not in ("on_test_begin", "on_test_end", "on_checkpoint_end")] == [
        *(("on_train_begin", {}), ("on_train_workload_begin", 0), ("on_epoch_begin", 0), (begin, 0), (end, 0)),
        *((begin, 1), (end, 1), (begin, 2), (end, 2), ("on_epoch_end", 0), ("on_epoch_begin", 1)),
        *((begin, 0), (end, 0), ("on_train_workload_end", 4), ("get_state",), ("on_train_end", {})),
    ]
    (metrics,) = (each[1] for each in told if each[0] == "on_test_end")
    assert metrics.keys() == {"loss", "mae", "val_loss", "val_mae"}
    assert (runs.folder() / "mine").read_text() == "added"


class _Stopping(keras_trials.Exact):
    kind: Any = keras.callbacks.EarlyStopping

    def keras_callbacks(self) -> list[Any]:
        return [self.kind(monitor="val_mae", mode="min", min_delta=100.0, patience=1)]


@pytest.mark.parametrize("kind", [keras.callbacks.EarlyStopping, det_keras.callbacks.EarlyStopping])
def test_early_stopping_looks_at_validations_and_ends_the_training(runs: Runs, kind: Any) -> None:
    _Stopping.kind = kind
    runs(_Stopping)
    assert runs.steps("validation") == [4, 8]
    assert runs.checkpoints()[-1] == 8
    assert runs.cluster.completed == []
    states = pickle.loads((runs.folder() / "determined-callbacks.v1.pkl").read_bytes())["callbacks"]
    assert states[0]["wait"] == 1


def test_records_per_epoch_say_how_long_an_epoch_is(runs: Runs) -> None:
    runs.cluster.config |= {"records_per_epoch": 8, "min_validation_period": {"epochs": 2}}
    runs.cluster.config["searcher"]["max_length"] = {"epochs": 3}
    runs.cluster.lengths = [3]
    runs()
    assert runs.steps("validation") == [4, 6]
    assert runs.checkpoints()[-1] == 6


def test_model_of_a_checkpoint_is_loaded(runs: Runs, tmp_path: Path) -> None:
    runs()
    trained = keras_trials.Exact.last.model
    code = runs.folder() / "code"
    source = Path(keras_trials.__file__).read_text()
    (code / "keras_trials_copy.py").write_text(source)
    about = json.loads((runs.folder() / "load_data.json").read_text())
    about["trial_cls_spec"] = "keras_trials_copy:Exact"
    (runs.folder() / "load_data.json").write_text(json.dumps(about))
    model = det_keras.load_model_from_checkpoint_path(str(runs.folder()))
    x, _ = keras_trials.arrays()
    assert np.array_equal(model.predict(x, verbose=0), trained.predict(x, verbose=0))
    assert int(model.optimizer.iterations.numpy()) == 13
    (runs.folder() / WEIGHTS).rename(runs.folder() / "determined-keras-model-weights.index")
    with pytest.raises(errors.InvalidCheckpointException, match="in the format of TensorFlow and Keras 2"):
        det_keras.load_model_from_checkpoint_path(str(runs.folder()))


@pytest.mark.parametrize("name", ["determined-keras-model", "determined-keras-model.h5"])
def test_model_of_an_old_checkpoint_is_loaded(tmp_path: Path, name: str) -> None:
    old = keras.Sequential([keras.Input((3,)), keras.layers.Dense(8), keras.layers.Dropout(0.5)])
    old.add(keras.layers.Dropout(0.2))
    old.add(keras.layers.Dense(1))
    old.compile("adam", "mse")
    old.save(tmp_path / "old.h5")
    (tmp_path / "old.h5").rename(tmp_path / name)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "old_model_def.py").write_text(Path(keras_trials.__file__).read_text())
    config = {"entrypoint": "old_model_def:Exact"}
    (tmp_path / "metadata.json").write_text(json.dumps({"experiment_config": config, "hparams": {}, "format": "h5"}))
    model = det_keras.load_model_from_checkpoint_path(tmp_path)
    assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), old.get_weights()))


class _Base(keras_trials.Exact):
    def build_training_data_loader(self) -> Any:
        return keras_trials.arrays()


class _Unwrapped(_Base):
    def build_model(self) -> Any:
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model


class _Uncompiled(_Base):
    def build_model(self) -> Any:
        return self.context.wrap_model(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))


class _NoModel(_Base):
    def build_model(self) -> Any:
        return {"layers": 2}


class _NoData(_Base):
    def build_training_data_loader(self) -> Any:
        return [1, 2, 3]


class _Uneven(_Base):
    def build_training_data_loader(self) -> Any:
        x, y = keras_trials.arrays()
        return x, y[:-1]


class _Few(_Base):
    def build_validation_data_loader(self) -> Any:
        return keras_trials.arrays(3)


class _Strings(_Base):
    def build_training_data_loader(self) -> Any:
        return "x", "y"


class _NoList(_Base):
    def keras_callbacks(self) -> Any:
        return keras.callbacks.History()


class _NoCallback(_Base):
    def keras_callbacks(self) -> Any:
        return ["early stopping"]


class _Workers(_Base):
    def build_model(self) -> Any:
        self.context.configure_fit(workers=-1)
        return super().build_model()


class _Lacking(det_keras.TFKerasTrial):
    pass


@pytest.mark.parametrize(
    ("cls", "problem"),
    [
        (_Unwrapped, "build_model returned a model that is not wrapped: use model = self.context.wrap_model"),
        (_Uncompiled, "build_model returned a model that is not compiled: call model.compile"),
        (_NoModel, "build_model returned a builtins.dict, but must return a keras.Model of Keras 3"),
        (_NoData, "build_training_data_loader returned a list, but must return a keras.utils.PyDataset, a determined"),
        (_Uneven, "build_training_data_loader returned arrays of different lengths: 22, 21"),
        (_Few, "build_validation_data_loader returned 3 records, but a batch has 4: give it data"),
        (_Strings, "build_training_data_loader returned a str in its tuple, but must return NumPy arrays"),
        (_NoList, "keras_callbacks returned a History, but must return a list of callbacks"),
        (_NoCallback, "keras_callbacks returned a str, but must return callbacks of Keras"),
        (_Lacking, r"lacks __init__\(\), build_model\(\), build_training_data_loader\(\), build_validation_data_load"),
    ],
)
def test_mistakes_of_a_trial_are_one_sentence_with_their_place(runs: Runs, cls: Any, problem: str) -> None:
    with pytest.raises((errors.InvalidExperimentException, errors.InvalidDataTypeException), match=problem) as raised:
        runs(cls)
    assert "test_keras_trial.py:" in str(raised.value)


def test_what_cannot_be_done_is_said(runs: Runs) -> None:
    with pytest.raises(errors.InvalidExperimentException, match="workers is -1, but must be a number of 0 or more"):
        runs(_Workers)
    with pytest.raises(errors.InvalidExperimentException, match="is no subclass of determined.keras.TFKerasTrial"):
        runs(dict)
    experimental = det_keras.TFKerasExperimentalContext()
    for method in (experimental.cache_train_dataset, experimental.cache_validation_dataset):
        with pytest.raises(RuntimeError, match="use tf.data.Dataset.cache"):
            method(lambda: None)
    runs.cluster.config["searcher"]["metric"] = "accuracy"
    with pytest.raises(RuntimeError, match="searcher.metric is 'accuracy', but the validation returned 'val_loss', 'v"):
        runs()
    runs.cluster.slot_ids = [0, 1]
    with pytest.raises(
        errors.InvalidExperimentException, match=r"slots_per_trial is 2, but a TFKerasTrial trains on o"
    ):
        runs()


def test_harness_ends_with_the_sentence_alone(runs: Runs) -> None:
    runs.cluster.slot_ids = [0, 1]
    done = runs.as_program()
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "resources.slots_per_trial is 2" in done.stderr.splitlines()[-1]
