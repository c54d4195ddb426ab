"""A network with dropout, trained in half precision: its next step depends on the GPU's random state and the scaler."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from determined import pytorch

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
torch.use_deterministic_algorithms(True)


class Trial(pytorch.PyTorchTrial):
    """Learns the sign of a sum."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        assert context.device.type == "cuda", context.device
        self.scaler = context.wrap_scaler(torch.amp.GradScaler("cuda"))
        self.network = context.wrap_model(
            nn.Sequential(
                nn.Linear(32, 512), nn.ReLU(), nn.Dropout(0.3), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)
            )
        )
        self.optimizer = context.wrap_optimizer(torch.optim.AdamW(self.network.parameters(), lr=1e-3))
        x = torch.randn(4096, 32, generator=torch.Generator().manual_seed(1))
        self.data = TensorDataset(x, (x.sum(1, keepdim=True) > 0).float())

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(
            self.data, batch_size=self.context.get_per_slot_batch_size(), shuffle=True, pin_memory=True
        )

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(self.data, batch_size=1024)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, torch.Tensor]:
        x, y = batch
        assert x.is_cuda
        # the rest of the GPU's memory, for configurations that want more than there is
        rows = int(self.context.get_hparam("rows")) * len(x)
        room = torch.empty(rows, 2**20, dtype=torch.uint8, device="cuda") if rows else None
        with torch.autocast("cuda", torch.float16):
            loss = nn.functional.binary_cross_entropy_with_logits(self.network(x), y)
        self.context.backward(self.scaler.scale(loss))
        self.context.step_optimizer(self.optimizer, scaler=self.scaler)
        self.scaler.update()
        del room
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, torch.Tensor]:
        x, y = batch
        return {"accuracy": ((self.network(x) > 0) == (y > 0)).float().mean()}
