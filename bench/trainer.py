"""What the Trainer costs beside the same loop in plain PyTorch; what a checkpoint and an import cost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from bench.measure import Figure

#: A Python with determined==0.38.1 and torch, to measure its Trainer too.
PEER = "UNDETERRED_PEER_PYTHON"
_RUNS = 7

_MODEL = """
import json, logging, sys, time
import torch
from torch import nn
torch.set_num_threads(1)
BATCHES, RUNS = 2000, int(sys.argv[1])
data = torch.utils.data.TensorDataset(torch.randn(64 * 100, 32), torch.randn(64 * 100, 1))

def network():
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

def plain():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
    began, done = time.perf_counter(), 0
    while done < BATCHES:
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
    return (time.perf_counter() - began) / BATCHES
"""
_OURS = """
from determined import pytorch

class Trial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(network())
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.01))
    def train_batch(self, batch, epoch_idx, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.model(x), y)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}
    def evaluate_batch(self, batch, batch_idx):
        return {"loss": nn.functional.mse_loss(self.model(batch[0]), batch[1])}
    def build_training_data_loader(self):
        return pytorch.DataLoader(data, batch_size=64, shuffle=True)
    def build_validation_data_loader(self):
        return pytorch.DataLoader(torch.utils.data.Subset(data, range(64)), batch_size=64)
    def build_callbacks(self):
        return {"clock": Clock()}

class Clock(pytorch.PyTorchCallback):
    def on_training_start(self):
        self.began = time.perf_counter()
    def on_validation_start(self):
        Clock.took = time.perf_counter() - self.began

def trained():
    with pytorch.init(hparams={"global_batch_size": 64}) as context:
        pytorch.Trainer(Trial(context), context).fit(max_length=pytorch.Batch(BATCHES), checkpoint_policy="none")
    return Clock.took / BATCHES
"""
_LIGHTNING = """
import lightning, warnings
warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = network()
    def training_step(self, batch, batch_idx):
        loss = nn.functional.mse_loss(self.model(batch[0]), batch[1])
        self.log("loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)
    def on_train_start(self):
        self.began = time.perf_counter()
    def on_train_end(self):
        Module.took = time.perf_counter() - self.began

def trained():
    trainer = lightning.Trainer(max_steps=BATCHES, max_epochs=-1, logger=False, enable_checkpointing=False, accelerator="cpu",
        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=64, shuffle=True))
    return Module.took / BATCHES
"""
_PAIRS = """
plain(), trained()
print("TOLD", json.dumps([[plain(), trained()] for _ in range(RUNS)]))
"""
_STALL = """
from determined.pytorch import _training
told = []
checkpoint = _training.TrainingLoop._checkpoint

def timed(self, alone):
    began = time.perf_counter()
    checkpoint(self, alone)
    stalled = time.perf_counter() - began
    self._writer.wait()
    told.append([stalled, time.perf_counter() - began])

_training.TrainingLoop._checkpoint = timed

def network():
    return nn.Sequential(*(nn.Linear(1600, 1600) for _ in range(20)))  # 200 MiB of weights

data = torch.utils.data.TensorDataset(torch.randn(64, 1600), torch.randn(64, 1600))
with pytorch.init(hparams={"global_batch_size": 64}) as context:
    pytorch.Trainer(Trial(context), context).fit(
        max_length=pytorch.Batch(RUNS + 1), checkpoint_policy="none", checkpoint_period=pytorch.Batch(1)
    )
print("TOLD", json.dumps(told[1:]))
"""
_PEAK = """
def peak():
    with open("/proc/self/status") as status:
        (line,) = (line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024

{train}()
print("TOLD", json.dumps(peak()))
"""
_IMPORT = """
import json, sys, time
import torch, numpy
began = time.perf_counter()
from determined.pytorch import DataLoader, PyTorchTrial, Trainer
print("TOLD", json.dumps([[time.perf_counter() - began]]))
"""


def figures() -> Iterator[Figure]:
    """The Trainer's figures; goals of issue 19."""
    own = _told(sys.executable, _MODEL + _OURS + _PAIRS)
    plain = [before * 1e6 for before, _ in own]
    yield Figure("a batch of a small network in plain PyTorch (for comparison)", plain, "µs")
    ours = [(after - before) * 1e6 for before, after in own]
    yield Figure("what the Trainer adds to it, paired", ours, "µs", goal=100, theirs=_of_peer())
    lightning = _told(sys.executable, _MODEL + _LIGHTNING + _PAIRS)
    added = [(after - before) * 1e6 for before, after in lightning]
    yield Figure("what Lightning's Trainer adds to it, paired (for comparison)", added, "µs")
    stalls = _told(sys.executable, _MODEL + _OURS + _STALL)
    share = [100 * stalled / whole for stalled, whole in stalls]
    seconds = f"{sorted(whole for _, whole in stalls)[len(stalls) // 2]:.2f} s in all"
    yield Figure("stall of a checkpoint of 200 MiB, of the time until it is stored", share, "%", goal=10, note=seconds)
    plain_peaks, peaks = _peaks(_MODEL, "plain"), _peaks(_MODEL + _OURS, "trained")
    yield Figure("peak memory of a process that trains it in plain PyTorch (for comparison)", plain_peaks, "MiB")
    beyond = [after - before for before, after in zip(plain_peaks, peaks, strict=True)]
    yield Figure("what the Trainer adds to it, paired, outside of a cluster", beyond, "MiB")
    imports = [_told(sys.executable, _IMPORT)[0][0] * 1e3 for _ in range(_RUNS)]
    yield Figure("import determined.pytorch's Trainer, beyond torch", imports, "ms", goal=50)


def _peaks(program: str, train: str) -> list[float]:
    """MiB, of a process a run."""
    return [_told(sys.executable, program + _PEAK.replace("{train}", train)) for _ in range(_RUNS)]


def _of_peer() -> str:
    """What the Trainer of 0.38.1 adds, off any cluster; empty where there is none."""
    python = os.environ.get(PEER)
    if not python:
        return ""
    told = sorted((after - before) * 1e6 for before, after in _told(python, _MODEL + _OURS + _PAIRS))
    return f"{told[len(told) // 2]:.0f} µs"


def _told(python: str, program: str) -> Any:
    # Apart: the published package copies the current folder into checkpoints, and would copy them into themselves.
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [python, "-c", program, str(_RUNS)],
            env={**os.environ, "XDG_DATA_HOME": home, "HOME": home},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("TOLD ")]
    assert lines, done.stdout + done.stderr
    return json.loads(lines[-1].removeprefix("TOLD "))
