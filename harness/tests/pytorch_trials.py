"""Trials to train in tests, and processes to train them in: started from one that has imported torch already."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import itertools
import json
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import data

import determined._info
from determined import pytorch
from determined.common.storage._posix import PosixStorage
from determined.core._checkpoint import CheckpointContext

_ANSWER = "ANSWER "
#: A job and the arguments of `fit` in; what a test compares, as JSON can have it, out.
Train = Callable[[dict[str, Any], dict[str, Any]], Any]


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
        for name in self.options.get("tensorboard", ()):
            (context.get_tensorboard_path() / name).write_text(f"of rank {context.distributed.rank}")
        self.count = self.options.get("count", 22)
        self.seen: list[list[int]] = []

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        self._kill_if(batch_idx == self.options.get("kill_at"))
        features, labels = batch
        self.seen.append([round(float(label) * self.count / 2) for label in labels])
        loss = nn.functional.mse_loss(self.head(self.body(features)), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.first, lambda params: nn.utils.clip_grad_norm_(params, 0.5))
        self.context.step_optimizer(self.second)
        if self.options.get("mode") == "MANUAL_STEP":
            self.scheduler.step()
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        self._kill_if(self.context.current_train_batch() == self.options.get("kill_in_validation_after"))
        features, labels = batch
        return {"accuracy": nn.functional.mse_loss(self.head(self.body(features)), labels)}

    def _kill_if(self, is_time: bool) -> None:
        if is_time and self.context.distributed.rank == self.options.get("kill_rank", 0):
            os.kill(os.getpid(), signal.SIGKILL)

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(
            Numbers(self.count, 0.1),
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


#: Before these a checkpoint is: in its files but nowhere else, in files with hashes, whole but unknown to the master.
UPLOAD = {
    "files": (PosixStorage, "put"),
    "commit": (PosixStorage, "commit"),
    "report": (CheckpointContext, "_report"),
}


def _kill_in_upload(place: str, checkpoint: int) -> None:
    """Have this process killed before a step of the upload of its checkpoint of this number, from 1."""
    cls, name = UPLOAD[place]
    step, calls = getattr(cls, name), itertools.count(1)

    def mortal(*arguments: Any, **options: Any) -> Any:
        if next(calls) == checkpoint:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(*arguments, **options)

    setattr(cls, name, mortal)


def train(job: dict[str, Any], fit: dict[str, Any]) -> Any:
    """One rank of a job: train an `Exact`; its weights' hashes and the samples of its batches."""
    if "kill_in_upload" in job["hparams"]:
        _kill_in_upload(*job["hparams"]["kill_in_upload"])
    with pytorch.init(hparams=job["hparams"], aggregation_frequency=job["every"]) as context:
        trial = Exact(context)
        pytorch.Trainer(trial, context).fit(latest_checkpoint=job["latest"], **fit)
        return {"weights": trial.weights(), "seen": trial.seen}


def _write(train: Train, job: dict[str, Any]) -> None:
    """Write what one rank found to `out`, or its error."""
    # Workers of loaders are forked: no other threads may compute.
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO)
    os.environ["DET_RUN_DIR"] = job["folder"]
    os.environ.update(job.get("env") or {})
    determined._info._cached = None  # pyright: ignore[reportPrivateUsage]
    rank = os.environ.get("RANK", "0")
    fit = {name: pytorch.Batch(value) if type(value) is int else value for name, value in job["fit"].items()}
    try:
        Path(f"{job['out']}.{rank}").write_text(json.dumps(train(job, fit)))
    except BaseException:
        Path(f"{job['out']}.error.{rank}").write_text(traceback.format_exc())
        raise


def _rank(train: Train, rank: int, size: int, port: int, job: dict[str, Any]) -> None:
    """What one forked process does; never returns."""
    os.setpgid(0, 0)
    if size > 1:
        names = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "GROUP_RANK": 0}
        os.environ.update({name: str(value) for name, value in names.items()})
        os.environ.update({"GROUP_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
        os.environ["USE_TORCH_DISTRIBUTED"] = "True"
        # Both, or neither counts: jobs of tests that run at the same time would meet each other.
        os.environ.update({f"INTER_TRAIN_PROCESS_COMM_PORT_{i}": str(port + i) for i in (1, 2)})
    status = 1
    try:
        _write(train, job)
        status = 0
    finally:
        sys.stderr.flush()
        os._exit(status)


def _run(train: Train, job: dict[str, Any]) -> list[int]:
    """Fork the ranks of a job; when one dies, the others are killed, as the launcher does. Their exit codes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pids: list[int] = []
    for rank in range(job["size"]):
        if not (pid := os.fork()):
            _rank(train, rank, job["size"], port, job)
        pids.append(pid)
    codes: dict[int, int] = {}
    deadline = time.monotonic() + job["timeout_s"]
    while len(codes) < len(pids):
        for pid in set(pids) - codes.keys():
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                codes[pid] = os.waitstatus_to_exitcode(status)
        if any(codes.values()) or time.monotonic() > deadline:
            for pid in set(pids) - codes.keys():
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    for pid in pids:
        # A loader's workers outlive a process that was killed: an agent ends the whole group, too.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    return [codes[pid] for pid in pids]


class Jobs:
    """Runs jobs in processes that are forked from one that has imported torch: not from that of the tests."""

    def __init__(self, script: str = "pytorch_trials.py") -> None:
        here = Path(__file__).parent
        path = os.pathsep.join([str(here), str(here.parent)])
        self._server = subprocess.Popen(
            [sys.executable, str(here / script)],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, size: int, timeout_s: float = 60, **job: Any) -> list[int]:
        """The exit codes of the ranks; see `serve` for what a job has. Numbers in `fit` are batches."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps({"size": size, "timeout_s": timeout_s, **job}) + "\n")
        self._server.stdin.flush()
        for line in self._server.stdout:
            if line.startswith(_ANSWER):  # libraries print, too
                return json.loads(line[len(_ANSWER) :])
        raise AssertionError("the process that forks jobs has ended")

    def close(self) -> None:
        """End the process."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(10)
        self._server.stdout.close()


def serve(train: Train, *modules: str) -> None:
    """Run jobs: dictionaries with `size`, `folder`, `fit`, `out`, perhaps `env`, and what `train` reads.

    Args:
        train: Called in each rank with the job and the arguments of `fit`; what it returns is written to `out`.
        modules: What is imported before.
    """
    importlib.import_module("torch._dynamo")  # what an optimizer imports at its first step
    importlib.import_module("determined.core._reporter")
    for module in modules:
        importlib.import_module(module)
    for line in sys.stdin:
        print(_ANSWER + json.dumps(_run(train, json.loads(line))), flush=True)
    os._exit(0)  # some libraries take seconds to end, and have nothing to save


if __name__ == "__main__":
    serve(train, "determined.pytorch._trainer")
