"""Train a small convolutional network on scikit-learn's handwritten digits with PyTorch, under the Core API.

It runs as it is: by hand (`python train.py`), as a trial with one slot (`const.yaml`), and as a trial with several
(`distributed.yaml`), where torchrun starts a worker for each slot and gradients are averaged over gloo or NCCL.

A checkpoint holds all that the next batch depends on: weights, optimizer, the state of the random numbers, and the
place in the data. A trial that was killed or preempted anywhere ends with the same bits as one that never was.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import determined as det
from determined import core

# Used outside of a cluster.
DEFAULT_HPARAMS: dict[str, Any] = {"learning_rate": 0.002, "dropout": 0.25, "batch_size": 32}
REPORT_EVERY = 20
CHECKPOINT_EVERY = 40


def load_data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images (n, 1, 8, 8) from 0 to 1 and labels (n,): 1,437 to train on, then 360 to validate with."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8)[order] / 16
    y = torch.tensor(labels, dtype=torch.int64)[order]
    return x[:1437], y[:1437], x[1437:], y[1437:]


def build_network(dropout: float) -> nn.Module:
    """Two convolutions and a linear layer: images (n, 1, 8, 8) to logits (n, 10)."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(32 * 16, 10),
    )


class Training:
    """A network in training, on one worker or, each with its part of every batch, on several.

    Args:
        hparams: `learning_rate`, `dropout`, `batch_size` (of all workers together).
        seed: Of the weights, the dropout and the order of the data.
    """

    def __init__(self, hparams: dict[str, Any], seed: int, rank: int, size: int) -> None:
        self.device = (
            torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
        )
        torch.manual_seed(seed)
        self.network = build_network(hparams["dropout"]).to(self.device)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=hparams["learning_rate"])
        self.batches = 0
        self.seed, self.rank, self.size, self.batch_size = seed, rank, size, hparams["batch_size"]
        self.x, self.y, self.held_out_x, self.held_out_y = (part.to(self.device) for part in load_data())
        self.batches_per_epoch = len(self.y) // self.batch_size
        self.parallel = DistributedDataParallel(self.network) if size > 1 else self.network
        torch.manual_seed(seed + rank)  # each worker drops out other units

    def random_state(self) -> torch.Tensor:
        """Where this worker's random numbers are: a tensor of bytes."""
        return torch.cuda.get_rng_state() if self.device.type == "cuda" else torch.get_rng_state()

    def train_one_batch(self) -> float:
        """Returns the loss on this worker's part of the batch."""
        epoch, batch = divmod(self.batches, self.batches_per_epoch)
        order = torch.randperm(len(self.y), generator=torch.Generator().manual_seed(self.seed * 100_003 + epoch))
        mine = order[batch * self.batch_size : (batch + 1) * self.batch_size][self.rank :: self.size]
        self.parallel.train()
        loss = nn.functional.cross_entropy(self.parallel(self.x[mine]), self.y[mine])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.batches += 1
        return loss.item()

    @torch.no_grad()
    def accuracy(self) -> float:
        """The part of the held-out images that is recognized."""
        self.network.eval()
        return (self.network(self.held_out_x).argmax(1) == self.held_out_y).float().mean().item()

    def save(self, path: Path, random_states: list[torch.Tensor]) -> None:
        """Write all that the next batch depends on; `random_states` by rank."""
        state = {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random_states": random_states,
            "batches": self.batches,
        }
        torch.save(state, path / "state.pt")

    def load(self, path: Path) -> None:
        """Go on from what `save` wrote."""
        state = torch.load(path / "state.pt", map_location="cpu", weights_only=True)
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        random_state = state["random_states"][self.rank]
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(random_state)
        else:
            torch.set_rng_state(random_state)
        self.batches = state["batches"]


def main(core_context: core.Context) -> None:
    """Train as far as the searcher wants."""
    info = det.get_cluster_info()
    workers = core_context.distributed
    is_chief = workers.rank == 0
    hparams = info.trial.hparams if info else DEFAULT_HPARAMS
    training = Training(hparams, info.trial.trial_seed if info else 0, workers.rank, workers.size)
    if info is not None and info.latest_checkpoint is not None:
        with core_context.checkpoint.restore_path(info.latest_checkpoint) as path:
            training.load(path)
        print(f"resumed after {training.batches} batches", flush=True)

    def save() -> None:
        states = workers.gather(training.random_state())
        if states is not None:
            with core_context.checkpoint.store_path({"steps_completed": training.batches}) as (path, _):
                training.save(path, states)

    losses: list[float] = []
    saved = training.batches
    for op in core_context.searcher.operations():
        until = op.length * training.batches_per_epoch
        while training.batches < until:
            losses.append(training.train_one_batch())
            if training.batches % REPORT_EVERY == 0 and is_chief:
                loss = sum(losses) / len(losses)
                core_context.train.report_training_metrics(training.batches, {"loss": loss})
                op.report_progress(training.batches / training.batches_per_epoch)
                print(f"batch {training.batches}: loss {loss:.4f}", flush=True)
                losses.clear()
            if training.batches % CHECKPOINT_EVERY == 0 and training.batches < until:
                save()
                saved = training.batches
                if core_context.preempt.should_preempt():
                    return
        accuracy = training.accuracy()
        if is_chief:
            core_context.train.report_validation_metrics(training.batches, {"accuracy": accuracy})
            print(f"batch {training.batches}: accuracy {accuracy:.4f}", flush=True)
        if training.batches > saved:
            save()
            saved = training.batches
        if is_chief:
            op.report_completed(accuracy)
        if core_context.preempt.should_preempt():
            return


@contextlib.contextmanager
def process_group() -> Iterator[core.DistributedContext | None]:
    """The workers that torchrun started; None if it started none."""
    if not torch.distributed.is_torchelastic_launched():
        yield None
        return
    workers = core.DistributedContext.from_torch_distributed()
    if torch.cuda.is_available():
        torch.cuda.set_device(workers.local_rank)
    torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield workers
    finally:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    # The same bits every time, whatever the machine has to do besides.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(mode=True)
    torch.set_num_threads(1)
    with process_group() as group, core.init(distributed=group) as context:
        main(context)
