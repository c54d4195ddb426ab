"""Trials to train in tests, and processes to train them in: started from one that has imported torch already."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import multiprocessing
import os
import random
import signal
import socket
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import data

import determined._info
from determined import pytorch


class Numbers(data.Dataset[Any]):
    """0, 1, 2, … as a feature, and twice that as the label; `jitter` is random augmentation by all three libraries."""

    def __init__(self, count: int = 12, jitter: float = 0.0) -> None:
        self.count = count
        self.jitter = jitter

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        value = float(index)
        if self.jitter:
            value += self.jitter * (float(torch.rand(1)) + random.random() + float(np.random.rand()))
        return torch.tensor([value / self.count]), torch.tensor([2.0 * value / self.count])


class Exact(pytorch.PyTorchTrial):
    """Everything that has a state: dropout, augmentation, two optimizers, schedulers, AMP, aggregation."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.options = context.get_hparams()
        if self.options.get("amp"):
            context.experimental.use_amp()
        self.body = context.wrap_model(nn.Sequential(nn.Linear(1, 16), nn.BatchNorm1d(16), nn.Dropout(0.3)))
        self.head = context.wrap_model(nn.Sequential(nn.ReLU(), nn.Linear(16, 16), nn.Dropout(0.3), nn.Linear(16, 1)))
        self.first = context.wrap_optimizer(torch.optim.Adam(self.body.parameters(), lr=0.01))
        self.second = context.wrap_optimizer(torch.optim.SGD(self.head.parameters(), lr=0.01, momentum=0.9))
        modes = pytorch.LRScheduler.StepMode
        self.scheduler = context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.StepLR(self.first, 2, 0.9), modes[self.options.get("mode", "STEP_EVERY_BATCH")]
        )
        context.wrap_lr_scheduler(torch.optim.lr_scheduler.StepLR(self.second, 1, 0.8), modes.STEP_EVERY_EPOCH)
        self.seen: list[int] = []

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        if batch_idx == self.options.get("kill_at") and self.context.distributed.rank == self.options.get(
            "kill_rank", 0
        ):
            os.kill(os.getpid(), signal.SIGKILL)
        features, labels = batch
        loss = nn.functional.mse_loss(self.head(self.body(features)), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.first, lambda params: nn.utils.clip_grad_norm_(params, 0.5))
        self.context.step_optimizer(self.second)
        if self.options.get("mode") == "MANUAL_STEP":
            self.scheduler.step()
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        if self.context.current_train_batch() == self.options.get("kill_in_validation_after", -1):
            os.kill(os.getpid(), signal.SIGKILL)
        features, labels = batch
        return {"accuracy": nn.functional.mse_loss(self.head(self.body(features)), labels)}

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(
            Numbers(22, 0.1),
            batch_size=self.context.get_per_slot_batch_size(),
            shuffle=True,
            num_workers=self.options.get("workers", 0),
        )

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(Numbers(8, 0.1), batch_size=2)

    def weights(self) -> tuple[str, str]:
        """SHA-256 of the parameters, which all ranks share, and of the buffers, which are a rank's own."""
        parameters, buffers = hashlib.sha256(), hashlib.sha256()
        for model in self.context.models:
            for parameter in model.parameters():
                parameters.update(parameter.detach().numpy().tobytes())
            for buffer in model.buffers():
                buffers.update(buffer.numpy().tobytes())
        return parameters.hexdigest(), buffers.hexdigest()


def train(folder: str, hparams: dict[str, Any], latest: str | None, fit: dict[str, Any], every: int, out: str) -> None:
    """One rank of a job: train an `Exact`, and write its weights' hash to `out`."""
    # Workers of loaders are forked: no other threads may compute.
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO)
    os.environ["DET_RUN_DIR"] = folder
    determined._info._cached = None  # pyright: ignore[reportPrivateUsage]
    try:
        with pytorch.init(hparams=hparams, aggregation_frequency=every) as context:
            trial = Exact(context)
            pytorch.Trainer(trial, context).fit(latest_checkpoint=latest, **fit)
            rank = context.distributed.rank
            Path(f"{out}.{rank}").write_text(json.dumps(trial.weights()))
    except BaseException:
        Path(f"{out}.error.{os.environ.get('RANK', 0)}").write_text(traceback.format_exc())
        raise


def _rank(rank: int, size: int, port: int, folder: str, rest: tuple[Any, ...]) -> None:
    os.setpgid(0, 0)
    multiprocessing.set_start_method("fork", force=True)  # the loaders' workers, as in a process of its own
    if size > 1:
        names = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "GROUP_RANK": 0}
        os.environ.update({name: str(value) for name, value in names.items()})
        os.environ.update({"GROUP_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
        os.environ["USE_TORCH_DISTRIBUTED"] = "True"
        os.environ["INTER_TRAIN_PROCESS_COMM_PORT_2"] = str(port + 1)
    train(folder, *rest)


_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "torch._dynamo",
        "determined.pytorch._trainer",
        "determined.core._reporter",
        "tensorboard.summary.writer",
        __name__,
    ]
)


def run_job(size: int, folder: Path, *rest: Any, timeout_s: float = 60) -> list[int | None]:
    """Run `size` ranks to their ends; when one dies, the others are killed, as the launcher does. Their exit codes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [_context.Process(target=_rank, args=(i, size, port, str(folder), rest)) for i in range(size)]
    for rank in ranks:
        rank.start()
    left_s = timeout_s
    while any(rank.is_alive() for rank in ranks):
        for rank in ranks:
            rank.join(0.01)
        left_s -= 0.01 * size
        if left_s < 0 or any(rank.exitcode for rank in ranks):
            for rank in ranks:
                rank.kill()
    for rank in ranks:
        # A loader's workers outlive a process that was killed: an agent ends the whole group, too.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(rank.pid or 0, signal.SIGKILL)
    return [rank.exitcode for rank in ranks]
