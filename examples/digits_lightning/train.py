"""Train a small convolutional network on scikit-learn's handwritten digits with Lightning.

It runs as it is: by hand (`python train.py`), and as a trial (`const.yaml`).
"""

from __future__ import annotations

from typing import Any

import torch
from lightning import pytorch as pl
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import determined as det
from determined import core
from determined.lightning import DeterminedCallback

# Used outside of a cluster.
DEFAULT_HPARAMS: dict[str, Any] = {"learning_rate": 0.002, "dropout": 0.25, "batch_size": 32}


class Digits(pl.LightningModule):
    """Two convolutions and a linear layer: images (n, 1, 8, 8) to logits (n, 10)."""

    def __init__(self, learning_rate: float, dropout: float) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.network = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(32 * 4 * 4, 10),
        )

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """One batch."""
        images, labels = batch
        loss = nn.functional.cross_entropy(self.network(images), labels)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """The part of the held-out images that is recognized."""
        images, labels = batch
        self.log("accuracy", (self.network(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)


def loaders(batch_size: int) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """1,437 images to train on, and 360 to validate with."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8)[order] / 16
    y = torch.tensor(labels, dtype=torch.int64)[order]
    train, held_out = TensorDataset(x[:1437], y[:1437]), TensorDataset(x[1437:], y[1437:])
    return DataLoader(train, batch_size, shuffle=True), DataLoader(held_out, len(held_out))


def main(core_context: core.Context) -> None:
    """Train as far as the searcher wants; by hand, for five epochs."""
    info = det.get_cluster_info()
    hparams = info.trial.hparams if info else DEFAULT_HPARAMS
    pl.seed_everything(info.trial.trial_seed if info else 0)
    callback = DeterminedCallback(core_context)
    trainer = pl.Trainer(
        max_epochs=5,
        callbacks=[callback],
        log_every_n_steps=20,
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
    )
    train, held_out = loaders(hparams["batch_size"])
    module = Digits(hparams["learning_rate"], hparams["dropout"])
    trainer.fit(module, train, held_out, ckpt_path=callback.checkpoint_path)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the same bits every time, whatever the machine has to do besides
    with core.init() as context:
        main(context)
