"""A real, tiny Lightning Trainer under `DeterminedCallback`, and `DetLogger`, against the master of `conftest.py`."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from lightning import pytorch as pl
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

from determined import core, errors
from determined.lightning import DeterminedCallback
from determined.lightning.experimental import DetLogger

if TYPE_CHECKING:
    from conftest import Trial

pytestmark = pytest.mark.filterwarnings("ignore")
BATCHES = 6  # an epoch


class Module(pl.LightningModule):
    """Dropout, a shuffled loader and a scheduler that looks at a metric: all of them need their state back."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", nn.functional.cross_entropy(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}


class AtBatch(pl.Callback):
    """Does something when the batch of this number begins, counted over all epochs."""

    def __init__(self, batch: int, action: Callable[[], Any]) -> None:
        self.batch, self.action = batch, action

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch * BATCHES + batch_idx == self.batch:
            self.action()


class Killed(BaseException):
    pass


class ByEpoch(Sampler[int]):
    """Shuffles by the epoch it is given, as those of several workers do."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(24, generator=torch.Generator().manual_seed(self.epoch)).tolist())

    def __len__(self) -> int:
        return 24


def data(shuffle: bool, sampler: Sampler[int] | None = None) -> DataLoader[Any]:
    numbers = torch.randn(24, 3, generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(numbers, (numbers.sum(1) > 0).long())
    return DataLoader(dataset, batch_size=4, shuffle=shuffle, sampler=sampler)


def fit(
    trial: Trial, folder: Path, at: AtBatch | None = None, every: int = 1, loader: Any = None, **others: Any
) -> str:
    """Train as a trial; SHA-256 of the weights it ends with."""
    with trial.init() as context:
        callback = DeterminedCallback(context, checkpoint_every_n_epochs=every)
        pl.seed_everything(7)
        trainer = pl.Trainer(
            accelerator="cpu",
            callbacks=[*([at] if at else []), callback],
            default_root_dir=str(folder),
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
            logger=False,
            log_every_n_steps=4,
            **others,
        )
        module = Module()
        train = loader or data(shuffle=True)
        trainer.fit(module, train, data(shuffle=False), ckpt_path=callback.checkpoint_path)
        return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in module.parameters())).hexdigest()


def of_epochs(trial: Trial, epochs: int, **searcher: Any) -> None:
    trial.config["searcher"] = {
        "name": "single",
        "metric": "val_loss",
        **(searcher or {"max_length": {"epochs": epochs}}),
    }
    trial.lengths = [epochs]


def preempt(trial: Trial) -> None:
    """The cluster asks for room, and the thread that listens has heard it."""
    trial.preempt.set()
    (thread,) = (t for t in threading.enumerate() if t.name == "determined-preempt")
    thread.join(5.0)


def kill() -> None:
    raise Killed


def test_training_ends_at_the_searchers_length_and_is_reported(trial: Trial, tmp_path: Path) -> None:
    of_epochs(trial, 2)
    fit(trial, tmp_path, max_epochs=100)
    assert trial.reported("training") == [(4, 0), (6, 1), (8, 1), (12, 2)]
    assert trial.reported("validation") == [(6, 1), (12, 2)], "the sanity check is none"
    named = {r["group"]: r["metrics"]["avgMetrics"].keys() for r in trial.master.reports()}
    assert named == {"training": {"loss", "batches", "epochs"}, "validation": {"val_loss", "batches", "epochs"}}
    assert sorted(trial.checkpoints()) == [6, 12]
    assert [c["op"]["length"] for c in trial.completed] == [2]
    assert trial.completed[0]["searcherMetric"] > 0
    progress = [c.body["progress"] for c in trial.master.of("POST /api/v1/trials/7/progress")]
    assert progress == sorted(set(progress))
    assert progress[-1] == 1.0


def test_preempted_and_killed_runs_end_with_the_weights_of_an_undisturbed_one(trial: Trial, tmp_path: Path) -> None:
    of_epochs(trial, 4)
    undisturbed = fit(trial, tmp_path)
    validations = trial.reported("validation")
    trial.completed.clear()
    trial.master.calls.clear()

    with pytest.raises(Killed):
        fit(trial, tmp_path, AtBatch(9, kill))
    assert sorted(trial.checkpoints()) == [6]
    trial.latest_checkpoint = trial.checkpoints()[6]
    fit(trial, tmp_path, AtBatch(13, lambda: preempt(trial)), min_epochs=4)
    assert sorted(trial.checkpoints()) == [6, 12, 14], "stored within the third epoch"
    trial.preempt.clear()
    trial.latest_checkpoint = trial.checkpoints()[14]
    fit(trial, tmp_path, AtBatch(16, lambda: preempt(trial)))  # once more within this epoch
    trial.preempt.clear()
    trial.latest_checkpoint = trial.checkpoints()[17]
    fit(trial, tmp_path, AtBatch(17, lambda: preempt(trial)))  # its last batch: left after its validation
    assert trial.completed == []
    trial.preempt.clear()
    trial.latest_checkpoint = trial.checkpoints()[18]
    assert fit(trial, tmp_path) == undisturbed
    assert sorted(trial.checkpoints()) == [6, 12, 14, 17, 18, 24]
    assert trial.reported("validation") == validations, "each epoch is validated once"
    assert [c["op"]["length"] for c in trial.completed] == [4]

    fit(trial, tmp_path)
    assert len(trial.checkpoints()) == 6, "started again when the searcher wants nothing: nothing is trained or stored"


def test_sampler_that_shuffles_by_epoch_is_resumed_within_one(trial: Trial, tmp_path: Path) -> None:
    of_epochs(trial, 3)
    undisturbed = fit(trial, tmp_path, loader=data(shuffle=False, sampler=ByEpoch()))
    trial.completed.clear()
    trial.master.calls.clear()
    fit(trial, tmp_path, AtBatch(8, lambda: preempt(trial)), loader=data(shuffle=False, sampler=ByEpoch()))
    trial.preempt.clear()
    trial.latest_checkpoint = trial.checkpoints()[9]
    assert fit(trial, tmp_path, loader=data(shuffle=False, sampler=ByEpoch())) == undisturbed


def test_operations_in_batches_end_with_a_validation(trial: Trial, tmp_path: Path) -> None:
    trial.config["searcher"] = {"name": "asha", "metric": "val_loss", "max_length": {"batches": 18}}
    trial.lengths = [3, 9]
    fit(trial, tmp_path, val_check_interval=3)
    assert trial.reported("validation") == [(3, 0), (6, 1), (9, 1)]
    assert [c["op"]["length"] for c in trial.completed] == [3, 9]
    assert sorted(trial.checkpoints()) == [6, 9]

    trial.completed.clear()
    trial.lengths = [18]
    trial.latest_checkpoint = trial.checkpoints()[9]
    fit(trial, tmp_path, val_check_interval=3)
    assert trial.reported("validation")[3:] == [(12, 2), (15, 2), (18, 3)]
    assert [c["op"]["length"] for c in trial.completed] == [18]


def test_validation_within_an_epoch_is_neither_lost_nor_repeated_by_a_preemption(trial: Trial, tmp_path: Path) -> None:
    of_epochs(trial, 2)
    undisturbed = fit(trial, tmp_path, val_check_interval=3)
    validations = trial.reported("validation")
    trial.completed.clear()
    trial.master.calls.clear()
    for batch in (1, 8):  # one batch before a validation, and the one that a validation follows
        fit(trial, tmp_path, AtBatch(batch, lambda: preempt(trial)), val_check_interval=3)
        trial.preempt.clear()
        trial.latest_checkpoint = trial.checkpoints()[batch + 1]
    assert fit(trial, tmp_path, val_check_interval=3) == undisturbed
    assert trial.reported("validation") == validations


def test_time_metric_says_how_far_to_train(trial: Trial, tmp_path: Path) -> None:
    of_epochs(trial, 0, time_metric="batches", max_time=8)
    fit(trial, tmp_path, every=0)
    assert sorted(trial.checkpoints()) == [8]
    assert trial.reported("validation")[0] == (6, 1)


def test_a_forgotten_checkpoint_path_is_said(trial: Trial, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    of_epochs(trial, 1)
    fit(trial, tmp_path)
    trial.latest_checkpoint = trial.checkpoints()[6]
    with trial.init() as context:
        pl.Trainer(
            accelerator="cpu",
            callbacks=[DeterminedCallback(context)],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(Module(), data(shuffle=True), data(shuffle=False))
    assert "give ckpt_path=callback.checkpoint_path" in caplog.text


@pytest.mark.parametrize(
    ("searcher", "problem"),
    [
        ({"max_length": 3}, "searcher.max_length is 3, but must have a unit"),
        (
            {"max_length": {"records": 3}},
            "searcher.max_length is {records: 3}, but Lightning counts epochs and batches",
        ),
    ],
)
def test_lengths_that_lightning_does_not_know_are_refused(trial: Trial, searcher: Any, problem: str) -> None:
    of_epochs(trial, 0, **searcher)
    with trial.init() as context, pytest.raises(ValueError, match=problem):
        DeterminedCallback(context)


def test_missing_metric_and_foreign_checkpoints_are_named(trial: Trial, tmp_path: Path) -> None:
    trial.config["searcher"] = {"name": "single", "metric": "accuracy"}
    with pytest.raises(
        ValueError, match="needs the metric 'accuracy', which is not among .* batches, epochs, val_loss"
    ):
        fit(trial, tmp_path, max_epochs=1)
    with trial.init() as context, context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
        (path / "state.pt").write_text("of another library")
    trial.latest_checkpoint = uuid
    with trial.init() as context, pytest.raises(errors.InvalidCheckpointException, match=f"{uuid} has no lightning.ck"):
        DeterminedCallback(context)


def test_logger_begins_its_run_with_the_first_metrics_and_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from determined.experimental import core_v2

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    caplog.set_level("INFO", "determined.core")
    logger = DetLogger()
    logger.log_hyperparams({"lr": 1})
    assert not core_v2.is_initialized()
    pl.Trainer(
        accelerator="cpu",
        logger=logger,
        max_epochs=1,
        log_every_n_steps=3,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Module(), data(shuffle=True), data(shuffle=False))
    assert not core_v2.is_initialized()
    logged = [m for m in caplog.messages if m.startswith("training metrics at step")]
    assert [("'loss'" in m, "'val_loss'" in m) for m in logged] == [(True, False), (True, False), (False, True)]

    core_v2.init()
    logger.log_metrics({"loss": 1.0}, 3)
    logger.finalize("success")
    assert isinstance(core_v2.train, core.TrainContext), "a run that another began stays open"
    core_v2.close()
