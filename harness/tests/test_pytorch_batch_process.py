"""`torch_batch_process` against a real HTTP server and a real storage, on one process and on two."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils import data

import determined._info
from determined import errors
from determined.pytorch import MetricReducer
from determined.pytorch.experimental import TorchBatchProcessor, torch_batch_process

if TYPE_CHECKING:
    from conftest import Trial


class Mean(MetricReducer):
    """Of a user: it fails where there is no value yet."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def reset(self) -> None:
        self.values = []

    def per_slot_reduce(self) -> Any:
        return sum(self.values) / len(self.values), len(self.values)

    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        total = sum(count for _, count in per_slot_metrics)
        return {"mean": sum(mean * count for mean, count in per_slot_metrics) / total}


class Recorder(TorchBatchProcessor):
    """Notes what happens in the file of its rank, and fails or asks for preemption where told."""

    fail_at = -1
    preempt_at: tuple[int, Any] = (-1, None)

    def __init__(self, context: Any) -> None:
        self.context = context
        self.firsts = context.wrap_reducer(list, name="firsts")
        self.mean = context.wrap_reducer(Mean())
        self.log = Path(os.environ["NOTES"], str(context.get_distributed_rank()))
        assert context.get_hparams() == {"lr": 0.1}
        assert context.get_distributed_size() == int(os.environ.get("WORLD_SIZE", "1"))
        assert not context.prepare_model_for_inference(torch.nn.Dropout()).training

    def process_batch(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == self.fail_at:
            raise RuntimeError("as told")
        first, *_ = samples = self.context.to_device(batch).tolist()
        self._note(f"{batch_idx}: {samples}")
        self.firsts.update(first)
        self.mean.values.append(first)
        with self.context.upload_path() as path:
            (path / "of").mkdir()
            (path / "of" / f"{batch_idx}.txt").write_text(str(samples))
        (self.context.get_tensorboard_path() / "image.txt").write_text("x")
        if batch_idx == self.preempt_at[0]:
            self.preempt_at[1](self.context)

    def on_checkpoint_start(self) -> None:
        self._note("checkpoint")

    def on_finish(self) -> None:
        self._note("finish")

    def _note(self, text: str) -> None:
        with self.log.open("a") as f:
            f.write(text + "\n")


class Notes:
    """What `Recorder`s noted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def of(self, rank: int = 0) -> list[str]:
        file = self.folder / str(rank)
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return lines


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Notes:
    monkeypatch.setenv("NOTES", str(tmp_path))
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Recorder, "fail_at", -1)
    monkeypatch.setattr(Recorder, "preempt_at", (-1, None))
    return Notes(tmp_path)


class Numbers(data.Dataset[int]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


def _run(trial: Trial, count: int = 10, **options: Any) -> None:
    trial.write_info()
    determined._info._cached = None
    torch_batch_process(Recorder, Numbers(count), **{"batch_size": 2, "checkpoint_interval": 2, **options})


def _checkpoints(trial: Trial) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Id, progress and metadata of each, in their order."""
    found = []
    for call in trial.master.of("POST /api/v1/checkpoints"):
        folder = trial.storage / call.body["uuid"]
        progress = json.loads((folder / "batch_completed.json").read_text())
        found.append((call.body["uuid"], progress, json.loads((folder / "metadata.json").read_text())))
    return found


def _validations(trial: Trial) -> list[tuple[int, dict[str, Any]]]:
    reports = [report for report in trial.master.reports() if report["group"] == "validation"]
    return [(report["stepsCompleted"], report["metrics"]["avgMetrics"]) for report in reports]


def test_one_slot_processes_stores_and_reports(trial: Trial, notes: Notes) -> None:
    _run(trial)
    batches = [f"{i}: {[2 * i, 2 * i + 1]}" for i in range(5)]
    assert notes.of() == [*batches[:2], "checkpoint", *batches[2:4], "checkpoint", batches[4], "checkpoint", "finish"]
    checkpoints = _checkpoints(trial)
    assert [progress["batch_completed"] for _, progress, _ in checkpoints] == [2, 4, 5]
    assert [metadata["steps_completed"] for _, _, metadata in checkpoints] == [2, 4, 5]
    (output,) = {metadata["default_output_uuid"] for _, _, metadata in checkpoints}
    assert output not in {uuid for uuid, _, _ in checkpoints}
    results = trial.storage / output / "rank_0" / "of"
    assert {file.name: file.read_text() for file in results.iterdir()} == {
        f"{i}.txt": str([2 * i, 2 * i + 1]) for i in range(5)
    }
    assert _validations(trial) == [(5, {"firsts": [0, 2, 4, 6, 8], "mean": 4.0})]
    progress = [call.body["progress"] for call in trial.master.of("POST /api/v1/trials/7/progress")]
    assert progress == [0.4, 0.8, 1.0]
    assert [file.name for file in trial.storage.rglob("tensorboard/**/*.txt")] == ["image.txt"]


def test_a_preempted_and_a_failed_run_lose_nothing(trial: Trial, notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    def preempt(context: Any) -> None:
        trial.preempt.set()
        trial.master.wait_for(lambda: context._core.preempt.should_preempt(auto_ack=False))

    # Preempted while batch 0 is processed: it leaves after the checkpoint of batch 1.
    monkeypatch.setattr(Recorder, "preempt_at", (0, preempt))
    _run(trial)
    assert notes.of() == ["0: [0, 1]", "1: [2, 3]", "checkpoint"]
    assert _validations(trial) == [(2, {"firsts": [0, 2], "mean": 1.0})]
    trial.preempt.clear()

    # Resumed, it fails in batch 3, after none of its own checkpoints.
    trial.latest_checkpoint = _checkpoints(trial)[-1][0]
    monkeypatch.setattr(Recorder, "fail_at", 3)
    with pytest.raises(RuntimeError, match="as told"):
        _run(trial)
    assert notes.of() == ["2: [4, 5]"]

    # The third run repeats batch 2, and has all values.
    monkeypatch.setattr(Recorder, "fail_at", -1)
    _run(trial)
    assert notes.of() == ["2: [4, 5]", "3: [6, 7]", "checkpoint", "4: [8, 9]", "checkpoint", "finish"]
    assert _validations(trial)[-1] == (5, {"firsts": [0, 2, 4, 6, 8], "mean": 4.0})
    assert len({metadata["default_output_uuid"] for _, _, metadata in _checkpoints(trial)}) == 1

    # One that was stopped after the last checkpoint only reports and finishes.
    stored = len(_checkpoints(trial))
    trial.latest_checkpoint = _checkpoints(trial)[-1][0]
    monkeypatch.setattr(Mean, "per_slot_reduce", lambda self: (0.0, 0))
    _run(trial)
    assert notes.of() == ["finish"]
    assert _validations(trial)[-1] == (5, {"firsts": [0, 2, 4, 6, 8], "mean": 4.0})
    assert len(_checkpoints(trial)) == stored


def _worker(rank: int, trial: Trial, options: dict[str, Any]) -> None:
    numbers = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0}
    os.environ.update({**{name: str(value) for name, value in numbers.items()}, "GROUP_WORLD_SIZE": "1"})
    torch_batch_process(Recorder, Numbers(10), **{"batch_size": 2, "checkpoint_interval": 2, **options})


def test_two_slots_share_the_batches(trial: Trial, notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    # Forked: torch's import would cost each process seconds.
    forked = multiprocessing.get_context("fork")
    monkeypatch.setenv("DET_DISTRIBUTED_TOKEN", os.urandom(8).hex())
    monkeypatch.setenv("DET_COLLECTIVE_TIMEOUT_S", "30")
    trial.slot_ids = [0, 1]
    trial.write_info()
    determined._info._cached = None
    workers = [forked.Process(target=_worker, args=(rank, trial, {})) for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    # Five batches: in the third round the second slot has none.
    assert notes.of(0) == ["0: [0, 1]", "1: [4, 5]", "checkpoint", "2: [8, 9]", "checkpoint", "finish"]
    assert notes.of(1) == ["0: [2, 3]", "1: [6, 7]", "checkpoint", "checkpoint", "finish"]
    assert _validations(trial) == [(3, {"firsts": [0, 2, 4, 6, 8], "mean": 4.0})]
    stored = _checkpoints(trial)
    assert [progress["batch_completed"] for _, progress, _ in stored] == [2, 3]
    output = trial.storage / stored[0][2]["default_output_uuid"]
    assert sorted(str(file.relative_to(output)) for file in output.rglob("*.txt")) == [
        *(f"rank_0/of/{i}.txt" for i in range(3)),
        *(f"rank_1/of/{i}.txt" for i in range(2)),
    ]

    # On one slot it goes on after the four batches that both had done.
    trial.slot_ids = [0]
    trial.latest_checkpoint = stored[0][0]
    _run(trial)
    assert notes.of() == ["4: [8, 9]", "checkpoint", "finish"]
    assert _validations(trial)[-1] == (5, {"firsts": [0, 2, 4, 6, 8], "mean": 4.0})


def test_lengths(trial: Trial, notes: Notes, caplog: pytest.LogCaptureFixture) -> None:
    _run(trial, 5, max_batches=2, checkpoint_interval=9)
    assert notes.of() == ["0: [0, 1]", "1: [2, 3]", "checkpoint", "finish"]
    _run(trial, 5, batch_size=None, dataloader_kwargs={"batch_size": 2, "drop_last": True, "shuffle": False})
    assert notes.of() == ["0: [0, 1]", "1: [2, 3]", "checkpoint", "finish"]
    with caplog.at_level(logging.WARNING):
        _run(trial, 1, batch_size=None, max_batches=2)
    assert "max_batches is 2, but must be from 1 to 1" in caplog.text
    assert notes.of() == ["0: [0]", "checkpoint", "finish"]


def test_arguments_are_checked(trial: Trial, notes: Notes) -> None:
    for options, message in (
        ({"checkpoint_interval": 0}, "checkpoint_interval is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"dataloader_kwargs": {"batch_size": 3}}, "batch_size is in dataloader_kwargs too"),
        ({"dataloader_kwargs": {"shuffle": True}}, "dataloader_kwargs has shuffle=True"),
        ({"dataloader_kwargs": {"sampler": [1]}}, "dataloader_kwargs has sampler"),
        ({"dataloader_kwargs": {"batch_sampler": [[1]]}}, "dataloader_kwargs has batch_sampler"),
    ):
        with pytest.raises(ValueError, match=message):
            _run(trial, **options)
    with pytest.raises(ValueError, match="the dataset object has no __len__"):
        torch_batch_process(Recorder, object())  # type: ignore[arg-type]
    trial.run_dir.joinpath("info", "cluster.json").unlink()
    determined._info._cached = None
    with pytest.raises(errors.NoTrialException, match="runs in a trial of a cluster only"):
        torch_batch_process(Recorder, Numbers(1))


def test_a_checkpoint_of_something_else_is_refused(trial: Trial, notes: Notes) -> None:
    with trial.init() as context, context.checkpoint.store_path({"steps_completed": 1}) as (folder, uuid):
        (folder / "weights").write_text("x")
    trial.latest_checkpoint = uuid
    with pytest.raises(errors.InvalidCheckpointException, match=r"has no batch_completed\.json of torch_batch_process"):
        _run(trial)
