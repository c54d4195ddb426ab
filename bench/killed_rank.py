"""How long a trial on two slots stands still when one of its ranks is killed: until its next run has trained a batch."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.measure import Figure, p95
from tests.kit.embedded import Embedded, with_torch

_RUNS = 12
_BATCHES = 15  # before the kill: there is a checkpoint by then
_TRIAL = """
import os, time
import torch
from torch import nn
from determined import pytorch

class Trial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.marks = os.open(context.get_hparam("marks"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.model = context.wrap_model(nn.Linear(32, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.01))
        self.data = torch.utils.data.TensorDataset(torch.randn(6400, 32), torch.randn(6400, 1))

    def build_training_data_loader(self):
        return pytorch.DataLoader(self.data, batch_size=32, shuffle=True)

    def build_validation_data_loader(self):
        return pytorch.DataLoader(torch.utils.data.Subset(self.data, range(64)), batch_size=32)

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = nn.functional.mse_loss(self.model(batch[0]), batch[1])
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        os.write(self.marks, f"{self.context.distributed.rank} {os.getpid()} {batch_idx} {time.time()}\\n".encode())
        time.sleep(0.05)
        return {"loss": loss}

    def evaluate_batch(self, batch, batch_idx):
        return {"loss": nn.functional.mse_loss(self.model(batch[0]), batch[1])}
"""


@dataclass(frozen=True)
class _Mark:
    """A batch that was trained."""

    rank: int
    pid: int
    batch: int
    at: float


def figures() -> Iterator[Figure]:
    """Each run is a trial of its own: the second failure of a trial would have a longer back-off."""
    with tempfile.TemporaryDirectory() as folder, with_torch(Path(folder)) as cluster:
        values = [_stands_still(cluster, run, rank=run % 2) for run in range(_RUNS + 1)][1:]
    note = "process launcher, 2 slots; rank 0 and rank 1 in turn; includes the back-off of 1 s"
    yield Figure("a rank is killed, until the next run has trained its first batch", values, "s", 10, note=note)
    yield Figure("a rank is killed, until the next run has trained its first batch, p95", [p95(values)], "s", 10)


def _stands_still(cluster: Embedded, run: int, rank: int) -> float:
    """Seconds from the kill of a rank to the end of the next run's first batch; both from one clock."""
    file = cluster.folder / f"marks-{run}"
    experiment = cluster.create(_config(str(file)), _TRIAL)
    cluster.until(lambda: _ranks_after(file, _BATCHES) == {0, 1}, 120, "both ranks train", every_s=0.01)
    pids = {mark.rank: mark.pid for mark in _marks(file)}
    killed_at = time.time()
    os.kill(pids[rank], signal.SIGKILL)
    cluster.until(lambda: _of_others(file, pids), 120, "the next run trains", every_s=0.01)
    first = _of_others(file, pids)[0]
    assert first.batch > 0, "the next run began from scratch"
    _end(cluster, experiment)
    return first.at - killed_at


def _end(cluster: Embedded, experiment: int) -> None:
    """Have its slots for the next one."""
    done = cluster.det("experiment", "kill", str(experiment))
    assert done.returncode == 0, done.stderr
    state = f"SELECT state FROM experiments WHERE id = {experiment}"
    cluster.until(lambda: cluster.rows(state) == [("CANCELED",)], 60, "the slots are free")


def _config(marks: str) -> str:
    config: dict[str, Any] = {
        "name": "killed rank",
        "entrypoint": "train:Trial",
        "hyperparameters": {"global_batch_size": 64, "marks": marks},
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 100_000}},
        "resources": {"slots_per_trial": 2},
        "min_checkpoint_period": {"batches": 10},
        "scheduling_unit": 10,
    }
    return yaml.safe_dump(config)


def _marks(file: Path) -> list[_Mark]:
    lines = file.read_text().splitlines() if file.exists() else []
    words = [line.split() for line in lines]
    return [_Mark(int(rank), int(pid), int(batch), float(at)) for rank, pid, batch, at in words]


def _ranks_after(file: Path, batches: int) -> set[int]:
    return {mark.rank for mark in _marks(file) if mark.batch >= batches}


def _of_others(file: Path, pids: dict[int, int]) -> list[_Mark]:
    return [mark for mark in _marks(file) if mark.pid not in pids.values()]
