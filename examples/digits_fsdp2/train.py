"""Train a network on scikit-learn's handwritten digits that is sharded over its workers by FSDP2, under the Core API.

Each worker holds a part of each weight, of its gradient and of the optimizer's state (`fully_shard`), and writes this
part into its own folder of a checkpoint (`torch.distributed.checkpoint`). The union of the folders is the checkpoint.

It needs workers that torchrun has started: `const.yaml` has two. A trial that was killed or preempted anywhere ends
with the same bits as one that never was.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import determined as det
from determined import core

REPORT_EVERY = 20
CHECKPOINT_EVERY = 40
HAS_GPU = torch.cuda.is_available()


def load_data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images (n, 64) from 0 to 1 and labels (n,): 1,437 to train on, then 360 to validate with."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(images, dtype=torch.float32)[order] / 16
    y = torch.tensor(labels, dtype=torch.int64)[order]
    return x[:1437], y[:1437], x[1437:], y[1437:]


def build_network(dropout: float) -> nn.Sequential:
    """Three layers: images (n, 64) to logits (n, 10). What is gathered at a time is one of them."""
    return nn.Sequential(
        nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(dropout)),
        nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Dropout(dropout)),
        nn.Linear(128, 10),
    )


class Training:
    """This worker's part of a network in training.

    Args:
        hparams: `learning_rate`, `dropout`, `batch_size` (of all workers together).
        seed: Of the weights, the dropout and the order of the data.
        rank: Of this worker.
        size: How many workers there are.
    """

    def __init__(self, hparams: dict[str, Any], seed: int, rank: int, size: int) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device()) if HAS_GPU else torch.device("cpu")
        torch.manual_seed(seed)
        self.network = build_network(hparams["dropout"]).to(self.device)
        mesh = torch.distributed.init_device_mesh(self.device.type, (size,))
        for layer in self.network:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.network, mesh=mesh)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=hparams["learning_rate"])
        self.batches = 0
        self.seed, self.rank, self.size, self.batch_size = seed, rank, size, hparams["batch_size"]
        self.x, self.y, self.held_out_x, self.held_out_y = (part.to(self.device) for part in load_data())
        self.batches_per_epoch = len(self.y) // self.batch_size
        torch.manual_seed(seed + rank)  # each worker drops out other units

    def train_one_batch(self) -> float:
        """Returns the loss on this worker's part of the batch."""
        epoch, batch = divmod(self.batches, self.batches_per_epoch)
        order = torch.randperm(len(self.y), generator=torch.Generator().manual_seed(self.seed * 100_003 + epoch))
        mine = order[batch * self.batch_size : (batch + 1) * self.batch_size][self.rank :: self.size]
        self.network.train()
        loss = nn.functional.cross_entropy(self.network(self.x[mine]), self.y[mine])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.batches += 1
        return loss.item()

    @torch.no_grad()
    def accuracy(self) -> float:
        """The part of the held-out images that is recognized. All workers call it: each has a part of the weights."""
        self.network.eval()
        return (self.network(self.held_out_x).argmax(1) == self.held_out_y).float().mean().item()

    def save(self, path: Path) -> None:
        """Write this worker's part into a folder of its own; all workers call it."""
        dcp.save(self._shards(), checkpoint_id=path)
        own = {"batches": self.batches, "random_states": self._random_states()}
        torch.save(own, path / f"worker-{self.rank}.pt")

    def load(self, path: Path) -> None:
        """Go on from the folder with what all have saved; all workers call it."""
        shards = self._shards()
        dcp.load(shards, checkpoint_id=path)
        set_state_dict(
            self.network,
            self.optimizer,
            model_state_dict=shards["network"],
            optim_state_dict=shards["optimizer"],
        )
        own = torch.load(path / f"worker-{self.rank}.pt", weights_only=True)
        self.batches = own["batches"]
        torch.set_rng_state(own["random_states"][0])
        if HAS_GPU:
            torch.cuda.set_rng_state(own["random_states"][1])

    def _shards(self) -> dict[str, Any]:
        network, optimizer = get_state_dict(self.network, self.optimizer)
        return {"network": network, "optimizer": optimizer}

    def _random_states(self) -> list[torch.Tensor]:
        return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if HAS_GPU else [])]


def main(core_context: core.Context) -> None:
    """Train as far as the searcher wants."""
    info = det.get_cluster_info()
    assert info is not None, "this script is for trials: det experiment create const.yaml ."
    workers = core_context.distributed
    is_chief = workers.rank == 0
    training = Training(info.trial.hparams, info.trial.trial_seed, workers.rank, workers.size)
    if info.latest_checkpoint is not None:
        with core_context.checkpoint.restore_path(info.latest_checkpoint) as path:
            training.load(path)
        print(f"resumed after {training.batches} batches", flush=True)

    def save() -> None:
        with core_context.checkpoint.store_path({"steps_completed": training.batches}, shard=True) as (path, _):
            training.save(path)

    saved = training.batches
    for op in core_context.searcher.operations():
        until = op.length * training.batches_per_epoch
        while training.batches < until:
            loss = training.train_one_batch()
            if training.batches % REPORT_EVERY == 0 and is_chief:
                core_context.train.report_training_metrics(training.batches, {"loss": loss})
                op.report_progress(training.batches / training.batches_per_epoch)
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


if __name__ == "__main__":
    torch.set_num_threads(1)  # the same bits every time, whatever the machine has to do besides
    group = core.DistributedContext.from_torch_distributed()
    if HAS_GPU:
        torch.cuda.set_device(group.local_rank)
    torch.distributed.init_process_group("nccl" if HAS_GPU else "gloo")
    with core.init(distributed=group) as context:
        main(context)
    torch.distributed.destroy_process_group()
