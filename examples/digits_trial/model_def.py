"""A `PyTorchTrial` on scikit-learn's handwritten digits, for one slot and for several."""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from determined import pytorch


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Images (1, 8, 8) from 0 to 1 with their labels: 1,437 to train on, then 360 to validate with."""
    bunch: Any = load_digits()
    images, labels = bunch.data, bunch.target
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8)[order] / 16
    y = torch.tensor(labels)[order]
    return TensorDataset(x[:1437], y[:1437]), TensorDataset(x[1437:], y[1437:])


class Shifted(Dataset[Any]):
    """Each image, moved by up to one pixel in either direction: another one each time it is seen."""

    def __init__(self, images: TensorDataset) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        image, label = self.images[index]
        down, right = int(torch.randint(-1, 2, ())), int(torch.randint(-1, 2, ()))
        return torch.roll(image, (down, right), (1, 2)), label


class DigitsTrial(pytorch.PyTorchTrial):
    """Two convolutions and a linear layer."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        network = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(context.get_hparam("dropout")),
            nn.Linear(32 * 16, 10),
        )
        self.network = context.wrap_model(network)
        adam = torch.optim.Adam(self.network.parameters(), lr=context.get_hparam("learning_rate"))
        self.optimizer = context.wrap_optimizer(adam)
        context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.StepLR(adam, step_size=2, gamma=0.7),
            pytorch.LRScheduler.StepMode.STEP_EVERY_EPOCH,
        )
        self.training_data, self.validation_data = digits()

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(
            Shifted(self.training_data), batch_size=self.context.get_per_slot_batch_size(), shuffle=True
        )

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(self.validation_data, batch_size=180)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, torch.Tensor]:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.network(images), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, torch.Tensor]:
        images, labels = batch
        scores = self.network(images)
        return {
            "accuracy": (scores.argmax(1) == labels).float().mean(),
            "validation_loss": nn.functional.cross_entropy(scores, labels),
        }
