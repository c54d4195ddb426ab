"""A real, tiny training with accelerate, against the master of `conftest.py`."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import accelerate
import pytest
import torch
from accelerate.state import AcceleratorState
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from determined import errors
from determined.accelerate import DeterminedTracker, load_state, save_state

if TYPE_CHECKING:
    from conftest import Trial

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
BATCHES = 6  # an epoch


@pytest.fixture(autouse=True)
def _alone() -> None:
    AcceleratorState._reset_state(True)  # accelerate has one of a process


@pytest.fixture(autouse=True)
def searcher(trial: Trial) -> None:
    trial.config["searcher"] = {"name": "single", "metric": "accuracy"}


def data() -> TensorDataset:
    x = torch.randn(24, 3, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, (x.sum(1) > 0).long())


def fit(trial: Trial, epochs: int = 3, leave_at: int | None = None) -> str:
    """Train as a trial, as the documentation shows it; SHA-256 of the weights."""
    torch.manual_seed(3)
    with trial.init() as context:
        accelerator = accelerate.Accelerator(
            cpu=True,
            log_with=DeterminedTracker(context),
            dataloader_config=accelerate.DataLoaderConfiguration(use_seedable_sampler=True),
        )
        accelerator.init_trackers("digits", config={"lr": 0.1})
        model: Any = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        optimizer: Any = torch.optim.Adam(model.parameters(), lr=0.05)
        # A generator of its own: a loader that begins does not move the random numbers of the training.
        loader: Any = DataLoader(data(), 4, shuffle=True, generator=torch.Generator())
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        steps = load_state(context, accelerator)
        for epoch in range(steps // BATCHES, epochs):
            loader.set_epoch(epoch)
            done = steps % BATCHES
            for x, y in accelerator.skip_first_batches(loader, done) if done else loader:
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
                if steps == leave_at:
                    save_state(context, accelerator, steps)
                    return ""
            accelerator.log({"loss": float(loss), "val_loss": 0.5, "accuracy": 0.75}, step=steps)
            save_state(context, accelerator, steps)
        accelerator.end_training()
        return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


def test_what_is_logged_is_reported_by_kind(trial: Trial) -> None:
    fit(trial, epochs=1)
    reports = {r["group"]: (r["stepsCompleted"], r["metrics"]["avgMetrics"]) for r in trial.master.reports()}
    assert reports["validation"] == (6, {"val_loss": 0.5, "accuracy": 0.75}), "the searcher's metric is one of these"
    assert reports["training"][1].keys() == {"loss"}
    with trial.init() as context:
        accelerator = accelerate.Accelerator(cpu=True, log_with=DeterminedTracker(context))
        accelerator.init_trackers("digits")
        accelerator.log({"bleu": 1.0}, step=7, log_kwargs={"determined": {"group": "inference"}})
        with pytest.raises(ValueError, match=r"accelerator.log\({'bleu'}\) was given no step: pass the number"):
            accelerator.log({"bleu": 1.0})
        assert accelerator.get_tracker("determined", unwrap=True) is context
    assert [(r["group"], r["stepsCompleted"]) for r in trial.master.reports()][-1] == ("inference", 7)


@pytest.mark.parametrize("leave_at", [6, 8], ids=["at the end of an epoch", "within one"])
def test_resumed_training_ends_with_the_weights_of_an_undisturbed_one(trial: Trial, leave_at: int) -> None:
    undisturbed = fit(trial)
    assert list(trial.checkpoints()) == [6, 12, 18]
    trial.master.calls.clear()
    fit(trial, leave_at=leave_at)
    trial.latest_checkpoint = trial.checkpoints()[leave_at]
    trial.master.calls.clear()
    assert fit(trial) == undisturbed
    assert list(trial.checkpoints()) == [12, 18]


#: One of two workers: trains a step of its own data, and stores or resumes.
WORKER = """
import json, os, sys
import accelerate, torch
from determined import core
from determined.accelerate import DeterminedTracker, load_state, save_state

accelerator = accelerate.Accelerator(cpu=True)
with core.init(distributed=core.DistributedContext.from_torch_distributed()) as context:
    accelerator.log_with = [DeterminedTracker(context)]
    accelerator.init_trackers("two")
    torch.manual_seed(accelerator.process_index)
    model = accelerator.prepare(torch.nn.Linear(1, 1))
    optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    steps = load_state(context, accelerator)
    accelerator.backward(model(torch.randn(4, 1)).sum())
    optimizer.step()
    accelerator.log({"loss": 1.0}, step=steps + 1)
    save_state(context, accelerator, steps + 1)
    print(json.dumps([steps, float(torch.rand(1)), [float(p) for p in model.parameters()]]))
torch.distributed.destroy_process_group()
"""


def together(trial: Trial) -> list[Any]:
    """What two workers print: steps at their begin, their next random number, the weights."""
    trial.slot_ids = [0, 1]
    trial.write_info()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "DET_RUN_DIR": str(trial.run_dir)}
    workers = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", WORKER],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "ACCELERATE_USE_CPU": "true"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [worker.communicate(timeout=120)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    return [json.loads(text.splitlines()[-1]) for text in said]


def test_two_workers_store_one_checkpoint_and_each_resumes_from_its_part(trial: Trial) -> None:
    first = together(trial)
    assert [steps for steps, _, _ in first] == [0, 0]
    assert first[0][2] == first[1][2], "they have one model"
    assert [(r["group"], r["stepsCompleted"]) for r in trial.master.reports()] == [("training", 1)]
    trial.latest_checkpoint = trial.checkpoints()[1]
    (folder,) = trial.storage.rglob(trial.latest_checkpoint)
    assert {p.name for p in folder.iterdir()} >= {"random_states_0.pkl", "random_states_1.pkl"}
    second = together(trial)
    assert [steps for steps, _, _ in second] == [1, 1]
    assert second[0][1] != second[1][1], "each has random numbers of its own"
    assert list(trial.checkpoints()) == [1, 2]


def test_checkpoints_of_others(trial: Trial) -> None:
    fit(trial, epochs=1)
    uuid = trial.checkpoints()[6]
    with trial.init() as context:
        with context.checkpoint.store_path({"steps_completed": 1}) as (folder, foreign):
            (folder / "model.pkl").write_text("of another library")
        assert context.info is not None
        context.info.trial.trial_id = 8
        accelerator = accelerate.Accelerator(cpu=True)
        model = accelerator.prepare(nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2)))
        accelerator.prepare(torch.optim.Adam(model.parameters()))
        assert load_state(context, accelerator, uuid) == 0, "the weights of another trial, and a new training"
        with pytest.raises(errors.InvalidCheckpointException, match=r"has no determined_state.json: determined.accele"):
            load_state(context, accelerator, foreign)
