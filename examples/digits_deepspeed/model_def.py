"""A `DeepSpeedTrial` on scikit-learn's handwritten digits, for one slot and for several, on CPUs and on GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import deepspeed
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from determined import pytorch
from determined.pytorch import deepspeed as det_deepspeed


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Images (64) from 0 to 1 with their labels: 1,437 to train on, then 360 to validate with."""
    bunch: Any = load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(bunch.data, dtype=torch.float32)[order] / 16, torch.tensor(bunch.target)[order]
    return TensorDataset(x[:1437], y[:1437]), TensorDataset(x[1437:], y[1437:])


class DigitsTrial(det_deepspeed.DeepSpeedTrial):
    """Three linear layers, whose optimizer's state ZeRO spreads over the slots."""

    def __init__(self, context: det_deepspeed.DeepSpeedTrialContext) -> None:
        self.context = context
        network = nn.Sequential(
            *(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(context.get_hparam("dropout"))),
            *(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)),
        )
        # An optimizer of PyTorch's: DeepSpeed's own ones are compiled when they are first used.
        adam = torch.optim.AdamW(network.parameters(), lr=context.get_hparam("learning_rate"))
        config = det_deepspeed.overwrite_deepspeed_config(
            "ds_config.json", context.get_hparams().get("overwrite_deepspeed_args", {})
        )
        engine, *_ = deepspeed.initialize(
            model=network, optimizer=adam, model_parameters=network.parameters(), config=config
        )
        self.engine = context.wrap_model_engine(engine)
        self.training_data, self.validation_data = digits()

    def build_training_data_loader(self) -> pytorch.DataLoader:
        size = self.context.get_train_micro_batch_size_per_gpu()
        return pytorch.DataLoader(self.training_data, batch_size=size, shuffle=True)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(self.validation_data, batch_size=180)

    def train_batch(
        self, dataloader_iter: Iterator[Any] | None, epoch_idx: int, batch_idx: int
    ) -> dict[str, torch.Tensor]:
        assert dataloader_iter is not None
        images, labels = self.context.to_device(next(dataloader_iter))
        loss = nn.functional.cross_entropy(self.engine(images), labels)
        self.engine.backward(loss)
        self.engine.step()
        return {"loss": loss}

    def evaluate_batch(self, dataloader_iter: Iterator[Any] | None, batch_idx: int) -> dict[str, torch.Tensor]:
        assert dataloader_iter is not None
        images, labels = self.context.to_device(next(dataloader_iter))
        scores = self.engine(images)
        return {
            "accuracy": (scores.argmax(1) == labels).float().mean(),
            "validation_loss": nn.functional.cross_entropy(scores, labels),
        }
