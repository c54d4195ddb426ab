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
BATCHES, RUNS, DEVICE = 2000, int(sys.argv[1]), sys.argv[2]
data = torch.utils.data.TensorDataset(torch.randn(64 * 100, 32), torch.randn(64 * 100, 1))

def network():
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

def now():
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()

def plain():
    model = network().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
    began, done = now(), 0
    while done < BATCHES:
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x.to(DEVICE)), y.to(DEVICE))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
    return (now() - began) / BATCHES
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
        self.began = now()
    def on_validation_start(self):
        Clock.took = now() - self.began

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
        self.began = now()
    def on_train_end(self):
        Module.took = now() - self.began

def trained():
    trainer = lightning.Trainer(max_steps=BATCHES, max_epochs=-1, logger=False, enable_checkpointing=False, accelerator=DEVICE, devices=1,
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
    began = now()
    checkpoint(self, alone)
    stalled = now() - began
    self._writer.wait()
    told.append([stalled, time.perf_counter() - began])

_training.TrainingLoop._checkpoint = timed

WIDTH = int(sys.argv[3])

def network():
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(20)))

data = torch.utils.data.TensorDataset(torch.randn(64, WIDTH), torch.randn(64, WIDTH))
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
    yield from _of_a_batch("cpu")
    yield _of_a_stall("cpu", 1600, "200 MiB")
    plain_peaks, peaks = _peaks(_MODEL, "plain"), _peaks(_MODEL + _OURS, "trained")
    yield Figure("peak memory of a process that trains it in plain PyTorch (for comparison)", plain_peaks, "MiB")
    beyond = [after - before for before, after in zip(plain_peaks, peaks, strict=True)]
    yield Figure("what the Trainer adds to it, paired, outside of a cluster", beyond, "MiB")
    imports = [_told(sys.executable, _IMPORT)[0][0] * 1e3 for _ in range(_RUNS)]
    yield Figure("import determined.pytorch's Trainer, beyond torch", imports, "ms", goal=50)


def figures_on_a_gpu() -> Iterator[Figure]:
    """The same on this machine's first GPU, and a larger checkpoint."""
    yield from _of_a_batch("cuda")
    yield _of_a_stall("cuda", 3600, "1 GiB")


def _of_a_batch(device: str) -> Iterator[Figure]:
    on = "" if device == "cpu" else " on a GPU"
    own = _told(sys.executable, _MODEL + _OURS + _PAIRS, device)
    plain = [before * 1e6 for before, _ in own]
    yield Figure(f"a batch of a small network{on} in plain PyTorch (for comparison)", plain, "µs")
    ours = [(after - before) * 1e6 for before, after in own]
    yield Figure(f"what the Trainer adds to it{on}, paired", ours, "µs", goal=100, theirs=_of_peer(device))
    lightning = _told(sys.executable, _MODEL + _LIGHTNING + _PAIRS, device)
    added = [(after - before) * 1e6 for before, after in lightning]
    yield Figure(f"what Lightning's Trainer adds to it{on}, paired (for comparison)", added, "µs")


def _of_a_stall(device: str, width: int, size: str) -> Figure:
    """How long a checkpoint of 20 layers holds up the training."""
    stalls = _told(sys.executable, _MODEL + _OURS + _STALL, device, width)
    share = [100 * stalled / whole for stalled, whole in stalls]
    middle, whole = (sorted(each[part] for each in stalls)[len(stalls) // 2] for part in (0, 1))
    on = "" if device == "cpu" else " from a GPU"
    what = f"stall of a checkpoint of {size}{on}, of the time until it is stored"
    return Figure(what, share, "%", goal=10, note=f"{middle:.2g} of {whole:.2f} s")


def _peaks(program: str, train: str) -> list[float]:
    """MiB, of a process a run."""
    return [_told(sys.executable, program + _PEAK.replace("{train}", train)) for _ in range(_RUNS)]


def _of_peer(device: str) -> str:
    """What the Trainer of 0.38.1 adds, off any cluster; empty where there is none."""
    python = os.environ.get(PEER)
    if not python:
        return ""
    told = sorted((after - before) * 1e6 for before, after in _told(python, _MODEL + _OURS + _PAIRS, device))
    return f"{told[len(told) // 2]:.0f} µs"


def _told(python: str, program: str, device: str = "cpu", *more: int) -> Any:
    # Apart: the published package copies the current folder into checkpoints, and would copy them into themselves.
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [python, "-c", program, str(_RUNS), device, *map(str, more)],
            env={**os.environ, "XDG_DATA_HOME": home, "HOME": home},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("TOLD ")]
    assert lines, done.stdout + done.stderr
    return json.loads(lines[-1].removeprefix("TOLD "))
