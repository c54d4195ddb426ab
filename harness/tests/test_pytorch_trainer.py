"""What a trainer does when: spec training-apis.md §14, on one slot, against a master that records what is reported."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import data

import determined as det
from determined import errors, pytorch
from determined.pytorch import Batch, Epoch

from .pytorch_trials import Numbers


class Simple(pytorch.PyTorchTrial):
    """0..11 in batches of 4; what a test wants to be different, it gives as attributes of the class."""

    told: list[Any] = []
    values: list[Any] = []
    callbacks: dict[str, pytorch.PyTorchCallback] = {}

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(nn.Linear(1, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
        self.seen: list[tuple[int, int, list[float]]] = []

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        features, labels = batch
        self.seen.append((epoch_idx, batch_idx, [round(12 * float(value)) for value in features]))
        self.told.append(f"batch {batch_idx}")
        loss = nn.functional.mse_loss(self.model(features), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return loss

    def evaluate_batch(self, batch: Any) -> Any:
        return {"accuracy": self.values[0] if self.values else 1.0}

    def build_training_data_loader(self) -> Any:
        return pytorch.DataLoader(Numbers(), batch_size=4)

    def build_validation_data_loader(self) -> Any:
        return pytorch.DataLoader(Numbers(8), batch_size=4)

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return self.callbacks


class Fit:
    """Trains a `Simple` on a cluster; `searcher.max_length` is not set unless a test does."""

    def __init__(self, trial: Any) -> None:
        self.cluster = trial
        self.master = trial.master
        trial.config["searcher"] = {"name": "single", "metric": "accuracy", "smaller_is_better": True}
        self.best: float | None = None
        self.trial_id = 7
        self.master.answer("POST /api/v1/trials/7/status", {})
        self.master.answer("GET /api/v1/trials/7", lambda _: {"trial": {}})  # type: ignore[misc]
        self.master.answer("GET /api/v1/tasks/1.task/context_directory", {"b64Tgz": ""})
        self.master.answer(
            "GET /api/v1/experiments/3/searcher/best_searcher_validation_metric",
            lambda _: (404, {"message": "none yet"}) if self.best is None else {"metric": self.best},  # type: ignore[misc]
        )

    def __call__(self, cls: type[Simple] = Simple, every: int = 1, **options: Any) -> Any:
        """The trial, after its training."""
        options.setdefault("checkpoint_policy", "none")
        self.cluster.write_info()
        det._info._cached = None  # type: ignore[attr-defined]
        cls.told = []
        with pytorch.init(hparams={"global_batch_size": 4}, aggregation_frequency=every) as context:
            trial = cls(context)
            pytorch.Trainer(trial, context).fit(**options)
        return trial

    def reported(self, group: str) -> list[tuple[int, dict[str, Any]]]:
        """Steps and metrics, in their order."""
        return [(r["stepsCompleted"], r["metrics"]["avgMetrics"]) for r in self.master.reports() if r["group"] == group]

    def steps(self, group: str) -> list[int]:
        return [steps for steps, _ in self.reported(group)]

    def checkpoints(self) -> list[int]:
        return [c.body["metadata"]["steps_completed"] for c in self.master.of("POST /api/v1/checkpoints")]

    def folder(self) -> Path:
        """Of the latest checkpoint."""
        return self.cluster.storage / self.latest()

    def latest(self) -> str:
        return self.master.of("POST /api/v1/checkpoints")[-1].body["uuid"]


@pytest.fixture
def fit(trial: Any) -> Iterator[Fit]:
    yield Fit(trial)
    Simple.callbacks, Simple.values = {}, []


def test_periods_lengths_and_progress(fit: Fit) -> None:
    periods = {"validation_period": Batch(4), "checkpoint_period": Batch(5), "reporting_period": Batch(2)}
    fit(max_length=Epoch(2), step_zero_validation=True, **periods)
    assert fit.steps("training") == [2, 4, 5, 6]
    assert fit.steps("validation") == [0, 4, 6]
    assert fit.checkpoints() == [5, 6]
    # Of several that wait to be sent, the latest is.
    progress = [c.body["progress"] for c in fit.master.of("POST /api/v1/trials/7/progress")]
    assert progress == [value for value in (0, 0.5, 1) if value in progress]
    assert progress[-1] == 1
    assert [metrics["epochs"] for _, metrics in fit.reported("training")] == [0, 1, 1, 2]


def test_callbacks_come_in_their_order(fit: Fit) -> None:
    told = Simple.told

    class Tells(pytorch.PyTorchCallback):
        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            if name.startswith("on_") or name in ("state_dict", "load_state_dict"):
                return lambda *args, **kwargs: (Simple.told.append(name), value(*args, **kwargs))[1]
            return value

        def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
            (Path(checkpoint_dir) / "mine").write_text("added")

        def on_checkpoint_upload_end(self, uuid: str) -> None:
            Simple.told.append(uuid)

    Simple.callbacks = {"tells": Tells()}
    fit(max_length=Batch(3), reporting_period=Batch(2))
    told = Simple.told
    assert told == [
        *("on_trial_startup", "on_training_start", "on_training_epoch_start", "batch 0", "batch 1"),
        *("on_training_workload_end", "batch 2", "on_training_epoch_end", "on_training_workload_end"),
        *("on_validation_start", "on_validation_epoch_start", "on_validation_epoch_end", "on_validation_end"),
        *("state_dict", "on_checkpoint_save_start", "on_checkpoint_end", "on_checkpoint_write_end"),
        *("on_checkpoint_upload_end", fit.latest(), "on_trial_shutdown"),
    ]
    assert (fit.folder() / "mine").read_text() == "added"


def test_preempted_run_goes_on_with_the_next_batch_and_what_was_due(fit: Fit) -> None:
    class Preempted(Simple):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 3:
                fit.cluster.preempt.set()
                fit.master.wait_for(lambda: self.context._core.preempt._preempt)  # type: ignore[attr-defined]
            return super().train_batch(batch, epoch_idx, batch_idx)

    periods = {"reporting_period": Batch(2), "validation_period": Batch(4)}
    fit(Preempted, max_length=Batch(9), **periods)
    assert fit.checkpoints() == [4]
    fit.cluster.preempt.clear()
    resumed = fit(max_length=Batch(9), latest_checkpoint=fit.latest(), **periods)
    assert [batch for _, batch, _ in resumed.seen] == [4, 5, 6, 7, 8]
    assert resumed.seen[0] == (1, 4, [4, 5, 6, 7])
    # whichever the preemption was seen before: the validation or what comes after it
    assert fit.steps("validation") == [4, 8, 9]


def test_checkpoint_of_another_trial_gives_weights_only(fit: Fit) -> None:
    first = fit(max_length=Batch(4))
    state = fit.folder() / "trial_state.pkl"
    import pickle

    stored = pickle.loads(state.read_bytes())
    assert stored == {
        "trial_id": 7,
        "last_ckpt": 4,
        "step_id": 0,
        "last_val": 4,
        "batches_trained": 4,
        "epochs_trained": 1,
    }
    manifest = fit.folder() / "manifest.json"
    state.write_bytes(pickle.dumps({**stored, "trial_id": 8}))
    with contextlib.suppress(FileNotFoundError):
        manifest.unlink()

    class Stays(Simple):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            self.seen.append((epoch_idx, batch_idx, []))
            return {"loss": self.model.weight.item()}

    warm = _resumed_from_any(fit, Stays)
    assert [batch for _, batch, _ in warm.seen] == [0, 1]
    assert warm.model.weight.item() == first.model.weight.item()


def _resumed_from_any(fit: Fit, cls: type[Simple]) -> Any:
    """From a copy of the latest checkpoint that was changed: its manifest speaks of another one."""
    folder = fit.folder()
    copy = fit.cluster.storage / "00000000-0000-4000-8000-000000000001"
    copy.mkdir()
    for file in folder.rglob("*"):
        if file.is_file() and "manifest" not in file.name:
            (copy / file.name).write_bytes(file.read_bytes())
    return fit(cls, max_length=Batch(2), latest_checkpoint=copy.name)


def test_checkpoint_that_is_torn_is_named(fit: Fit) -> None:
    fit(max_length=Batch(1))
    torn = fit.cluster.storage / "00000000-0000-4000-8000-000000000002"
    torn.mkdir()
    with pytest.raises(
        errors.InvalidCheckpointException, match="has none of state_dict.pth, determined/state_dict.pth"
    ):
        fit(max_length=Batch(2), latest_checkpoint=torn.name)
    (torn / "state_dict.pth").write_bytes(b"torn")
    with pytest.raises(errors.InvalidCheckpointException, match="state_dict.pth can't be read"):
        fit(max_length=Batch(2), latest_checkpoint=torn.name)


def test_best_saves_what_is_better_than_all_before(fit: Fit) -> None:
    values = iter([3.0, 2.0, 2.0, 1.0])

    class Improves(Simple):
        def evaluate_batch(self, batch: Any) -> Any:
            return {"accuracy": self.values[0]}

    class Next(pytorch.PyTorchCallback):
        def on_validation_start(self) -> None:
            Improves.values = [next(values)]

        def on_validation_end(self, metrics: dict[str, Any]) -> None:
            Next.last = metrics["accuracy"]

    class Best(pytorch.PyTorchCallback):
        def on_training_start(self) -> None:
            fit.master.answer(
                "GET /api/v1/experiments/3/searcher/best_searcher_validation_metric", lambda _: _best_of(fit)
            )

    Improves.callbacks = {"next": Next(), "best": Best()}
    fit(Improves, max_length=Batch(4), validation_period=Batch(1), checkpoint_policy="best")
    assert fit.checkpoints() == [1, 2, 4]


def _best_of(fit: Fit) -> Any:
    found = [metrics["accuracy"] for _, metrics in fit.reported("validation")]
    return {"metric": min(found)} if found else (404, {"message": "none yet"})


@pytest.mark.parametrize(
    ("returned", "told"),
    [({"other": 1.0}, "'accuracy', but the validation returned 'other'"), ({"accuracy": [1, 2]}, None)],
)
def test_metric_that_the_search_needs_must_be_there(fit: Fit, returned: Any, told: str | None) -> None:
    class Wrong(Simple):
        def evaluate_batch(self, batch: Any) -> Any:
            return returned

    if told is None:  # arrays are reduced to one number
        fit(Wrong, max_length=Batch(1), checkpoint_policy="best")
        assert fit.reported("validation")[0][1]["accuracy"] == 1.5
        return
    with pytest.raises(RuntimeError, match=told):
        fit(Wrong, max_length=Batch(1), checkpoint_policy="best")


def test_aggregated_gradients_step_together(fit: Fit) -> None:
    class Aggregates(Simple):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            self.scheduler = context.wrap_lr_scheduler(
                torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5),
                pytorch.LRScheduler.StepMode.STEP_EVERY_BATCH,
            )
            self.steps: list[int] = []
            self.clipped: list[float] = []

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            self.context.backward(self.model(torch.ones(1, 1)).sum())
            before = self.model.weight.item()
            self.context.step_optimizer(
                self.optimizer, clip_grads=lambda params: self.clipped.append(next(iter(params)).grad.item())
            )
            if self.model.weight.item() != before:
                self.steps.append(batch_idx)
            return {"lr": self.optimizer.param_groups[0]["lr"]}

    trial = fit(Aggregates, every=2, max_length=Batch(4), reporting_period=Batch(1))
    assert trial.steps == [1, 3]
    assert trial.clipped == [1.0, 1.0], "clipping sees the average"
    assert [metrics["lr"] for _, metrics in fit.reported("training")] == [0.1, 0.1, 0.025, 0.025]


def test_stop_is_honored_at_the_next_report_with_a_checkpoint(fit: Fit) -> None:
    class Stops(Simple):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            self.context.set_stop_requested(batch_idx == 1 or self.context.get_stop_requested())
            return super().train_batch(batch, epoch_idx, batch_idx)

    fit(Stops, max_length=Batch(9), reporting_period=Batch(4))
    assert (fit.checkpoints(), fit.steps("validation")) == ([4], [])


def test_invalid_hp_is_saved_and_reported_and_other_errors_are_not(fit: Fit) -> None:
    class Fails(Simple):
        error: Exception = det.InvalidHP("too large")

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 2:
                raise self.error
            return super().train_batch(batch, epoch_idx, batch_idx)

    class Shut(pytorch.PyTorchCallback):
        def on_trial_shutdown(self) -> None:
            Fails.told.append("shutdown")

    Fails.callbacks = {"shut": Shut()}
    with pytest.raises(SystemExit) as ended:
        fit(Fails, max_length=Batch(4))
    assert ended.value.code == 0
    assert fit.checkpoints() == [2]
    assert fit.master.of("POST /api/v1/trials/7/early_exit")[0].body["reason"] == "EXITED_REASON_INVALID_HP"
    Fails.error = RuntimeError("boom")
    with pytest.raises(RuntimeError, match="boom"):
        fit(Fails, max_length=Batch(4))
    assert fit.checkpoints() == [2]
    assert Fails.told[-1] == "shutdown"


@pytest.mark.parametrize("name", ["max_length", "length_per_round"])
def test_searcher_says_how_far_and_is_told_what_came_of_it(fit: Fit, name: str) -> None:
    fit.cluster.config["searcher"][name] = {"epochs": 3}
    fit.cluster.lengths = [1, 3]
    fit(max_length=Epoch(2))
    assert [(c["op"]["length"], c["searcherMetric"]) for c in fit.cluster.completed] == [(1, 1.0), (3, 1.0)]
    assert fit.steps("validation") == [3, 9]
    # A trial that comes back at the end of an operation does not train it again.
    fit.cluster.completed.pop()
    again = fit(max_length=Epoch(2), latest_checkpoint=fit.latest())
    assert again.seen == []
    assert len(fit.cluster.completed) == 2


def test_searcher_needs_its_metric_whatever_is_saved(fit: Fit) -> None:
    class Other(Simple):
        def evaluate_batch(self, batch: Any) -> Any:
            return {"loss": 1.0}

    fit.cluster.config["searcher"]["max_length"] = {"epochs": 3}
    with pytest.raises(RuntimeError, match="searcher.metric is 'accuracy', but the validation returned 'loss'"):
        fit(Other)


def test_search_that_decides_by_reports_says_how_far_by_its_time(fit: Fit) -> None:
    fit.cluster.config["searcher"].update(name="asha", time_metric="batches", max_time=5)
    trial = fit()
    assert len(trial.seen) == 5


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"checkpoint_policy": "some"}, "checkpoint_policy is 'some', but must be one of best, all, none"),
        ({"max_length": 3}, "max_length is 3, but must be a Batch or an Epoch"),
        ({"max_length": Batch(0)}, r"max_length is Batch\(0\), but must be one number of 1 or more"),
        ({"max_length": Batch([1, 2])}, "must be one number of 1 or more"),
        ({}, "nothing says how far to train"),
        ({"max_length": Batch(1), "test_mode": True}, "test_mode is for training outside of a cluster only"),
    ],
)
def test_arguments_of_fit_are_checked(fit: Fit, options: dict[str, Any], told: str) -> None:
    with pytest.raises((ValueError, TypeError), match=told):
        fit(**options)
    assert fit.checkpoints() == []


class _Plain(Simple):
    def build_training_data_loader(self) -> Any:
        return data.DataLoader(Numbers(), batch_size=4)


class _Nothing(Simple):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context


class _Names(Simple):
    def train_batch(self, data: Any, epoch: int, index: int) -> Any:  # type: ignore[override]
        return None


class _Returns(Simple):
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        return None


class _Evaluates(Simple):
    def evaluate_full_dataset(self, data_loader: Any) -> Any:
        return {}


class _Callbacks(Simple):
    def build_callbacks(self) -> Any:
        return {"mine": object()}


class _Late(Simple):
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.context.wrap_model(nn.Linear(1, 1))


class _Unwrapped(Simple):
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.context.step_optimizer(torch.optim.SGD(self.model.parameters(), lr=1))


class _NoData(Simple):
    def build_training_data_loader(self) -> Any:
        return pytorch.DataLoader(Numbers(3), batch_size=4, drop_last=True)


class _Empty(Simple):
    def evaluate_batch(self, batch: Any) -> Any:
        return None


@pytest.mark.parametrize(
    ("cls", "kind", "told"),
    [
        (
            _Plain,
            RuntimeError,
            "build_training_data_loader returned torch.*must return a determined.pytorch.DataLoader",
        ),
        (_Nothing, errors.InvalidExperimentException, r"py:\d+: _Nothing has wrapped no model"),
        (_Names, errors.InvalidExperimentException, r"py:\d+: train_batch\(.*\) must take batch, epoch_idx, batch_idx"),
        (
            _Returns,
            TypeError,
            r"py:\d+: train_batch returned a NoneType, but must return a dictionary of metrics or the",
        ),
        (_Evaluates, errors.InvalidExperimentException, "has both evaluate_batch and evaluate_full_dataset"),
        (
            _Callbacks,
            errors.InvalidExperimentException,
            "the callback 'mine' is a object, but must be a PyTorchCallback",
        ),
        (_Late, errors.InvalidExperimentException, "wrap_model was called after training had begun"),
        (_Unwrapped, errors.InvalidExperimentException, "this optimizer is not wrapped"),
        (_NoData, RuntimeError, r"py:\d+: build_training_data_loader returned a loader without a batch"),
        (_Empty, TypeError, r"py:\d+: evaluate_batch returned a NoneType, but must return a dictionary of metrics"),
    ],
)
def test_mistakes_of_a_trial_are_one_sentence(fit: Fit, cls: type[Simple], kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told):
        fit(cls, max_length=Batch(1))


def test_horovod_that_is_not_installed_is_named(fit: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USE_HOROVOD", "1")
    with pytest.raises(errors.InvalidExperimentException, match="started with horovod, which is not installed"):
        fit(max_length=Batch(1))


@pytest.mark.parametrize("size", ["ten", 0.5])
def test_batch_size_is_a_number(fit: Fit, size: Any) -> None:
    fit.cluster.write_info()
    det._info._cached = None  # type: ignore[attr-defined]
    told = "global_batch_size is .*, but must be an integer"
    with (
        pytest.raises(errors.InvalidExperimentException, match=told),
        pytorch.init(hparams={"global_batch_size": size}),
    ):
        pass


def test_outside_of_a_cluster_it_trains_saves_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("DET_RUN_DIR", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text("# mine")
    det._info._cached = None  # type: ignore[attr-defined]
    caplog.set_level(logging.INFO)

    def train(length: Any, latest: str | None = None, **options: Any) -> Any:
        with pytorch.init(hparams={"global_batch_size": 4}) as context:
            trial = Simple(context)
            pytorch.Trainer(trial, context).fit(max_length=length, latest_checkpoint=latest, **options)
        return trial

    with pytest.raises(ValueError, match="max_length must be given outside of a cluster"):
        train(None)
    train(Batch(4))
    (saved,) = (tmp_path / "determined" / "checkpoints").glob("[!.]*-*-*-*-*")
    assert [file.name for file in (saved / "code").rglob("*")] == ["model.py", "determined"]
    about = json.loads((saved / "load_data.json").read_text())
    assert about["trial_cls_spec"].endswith(":Simple")
    assert about["is_trainer"] is True
    assert "checkpoint_policy 'best' needs a cluster, which knows the best validation: using 'all'" in caplog.text
    assert [batch for _, batch, _ in train(Batch(6), saved.name).seen] == [4, 5]
    tried = train(Batch(100), test_mode=True)
    assert len(tried.seen) == 1


def test_tensorboard_gets_each_batch_and_what_only_the_average_has(fit: Fit) -> None:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    trial = fit(max_length=Batch(3), reporting_period=Batch(2))
    (file,) = fit.cluster.storage.glob("cluster/tensorboard/experiment/3/trial/7/*tfevents*")
    found = [(value.tag, event.step) for event in EventFileLoader(str(file)).Load() for value in event.summary.value]
    assert [step for tag, step in found if tag == "Determined/loss"] == [0, 1, 2]
    assert [step for tag, step in found if tag == "Determined/epochs"] == [2, 3]
    assert ("Determined/val_accuracy", 3) in found
    assert trial.context.get_tensorboard_writer() is trial.context.get_tensorboard_writer()


@pytest.mark.parametrize(("room", "told"), [(3, "with 4 records a slot; 2 fit"), (0, "and with a single one as well")])
def test_batch_that_does_not_fit_is_followed_by_one_that_does(
    fit: Fit, caplog: pytest.LogCaptureFixture, room: int, told: str
) -> None:
    class Large(Simple):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if len(batch[0]) > room:
                raise torch.OutOfMemoryError("out of memory")  # as of a GPU, which is not there
            return super().train_batch(batch, epoch_idx, batch_idx)

    with pytest.raises(torch.OutOfMemoryError):
        fit(Large, max_length=Batch(1))
    assert told in caplog.text
