"""Train a small convolutional network on scikit-learn's handwritten digits with accelerate.

It runs as it is: by hand (`python train.py`), and as a trial (`const.yaml`).
"""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import determined as det
from determined import core
from determined.accelerate import DeterminedTracker, load_state, save_state

# Used outside of a cluster.
DEFAULT_HPARAMS: dict[str, Any] = {"learning_rate": 0.002, "dropout": 0.25, "batch_size": 32}


def build(dropout: float) -> nn.Module:
    """Two convolutions and a linear layer: images (n, 1, 8, 8) to logits (n, 10)."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(32 * 4 * 4, 10),
    )


def loaders(batch_size: int) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """1,437 images to train on, and 360 to validate with."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8)[order] / 16
    y = torch.tensor(labels, dtype=torch.int64)[order]
    train, held_out = TensorDataset(x[:1437], y[:1437]), TensorDataset(x[1437:], y[1437:])
    # A generator of its own: a loader that begins does not move the random numbers of the training.
    shuffled = DataLoader(train, batch_size, shuffle=True, generator=torch.Generator())
    return shuffled, DataLoader(held_out, len(held_out))


class Training:
    """One run: from the trial's latest checkpoint to where the searcher wants it."""

    def __init__(self, core_context: core.Context, hparams: dict[str, Any]) -> None:
        self.core = core_context
        self.accelerator = Accelerator(
            log_with=DeterminedTracker(core_context),
            dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
        )
        self.accelerator.init_trackers("digits")
        model = build(hparams["dropout"])
        optimizer = torch.optim.Adam(model.parameters(), lr=hparams["learning_rate"])
        self.model, self.optimizer, self.train, self.held_out = self.accelerator.prepare(
            model, optimizer, *loaders(hparams["batch_size"])
        )
        self.steps = load_state(core_context, self.accelerator)
        self.saved = self.steps

    def run(self) -> None:
        """Follow the searcher's operations; leave when the cluster asks for the slots."""
        for operation in self.core.searcher.operations():
            while self.steps < operation.length * len(self.train):
                if not self.epoch():
                    return
            accuracy = self.validate()
            self.save()
            operation.report_completed(accuracy)

    def epoch(self) -> bool:
        """What is left of an epoch. False: the cluster asks for the slots."""
        number, done = divmod(self.steps, len(self.train))
        self.train.set_epoch(number)
        self.model.train()
        for images, labels in self.accelerator.skip_first_batches(self.train, done) if done else self.train:
            loss = nn.functional.cross_entropy(self.model(images), labels)
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.steps += 1
            if self.steps % 20 == 0:
                self.accelerator.log({"loss": loss.item()}, step=self.steps)
                if self.core.preempt.should_preempt():
                    self.save()
                    return False
        self.save()
        return True

    @torch.no_grad()
    def validate(self) -> float:
        """The part of the held-out images that is recognized."""
        self.model.eval()
        ((images, labels),) = self.held_out
        accuracy = (self.model(images).argmax(1) == labels).float().mean().item()
        self.accelerator.log({"accuracy": accuracy}, step=self.steps)
        return accuracy

    def save(self) -> None:
        """Unless it is saved."""
        if self.saved != self.steps:
            self.saved = self.steps
            save_state(self.core, self.accelerator, self.steps)


def main(core_context: core.Context) -> None:
    """Train as far as the searcher wants; by hand, for one epoch."""
    info = det.get_cluster_info()
    torch.manual_seed(info.trial.trial_seed if info else 0)
    Training(core_context, info.trial.hparams if info else DEFAULT_HPARAMS).run()


if __name__ == "__main__":
    torch.set_num_threads(1)  # the same bits every time, whatever the machine has to do besides
    with core.init() as context:
        main(context)
