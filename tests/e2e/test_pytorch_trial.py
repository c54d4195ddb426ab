"""Trial classes as users run them: named by an entrypoint or trained by a script, on one slot and two, killed and paused.

All trials share one cluster. They run in `.venv-torch`, which `make test` makes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.utils._pytree

from tests.kit.embedded import PARTS, Embedded, with_torch
from tests.kit.servers import REPOSITORY

EXAMPLE = REPOSITORY / "examples" / "digits_trial"
EPOCHS = 5
BATCHES = EPOCHS * 45


@dataclass(frozen=True)
class Trials:
    """A cluster whose trials have PyTorch."""

    cluster: Embedded

    def create(self, config: str, *options: str, folder: Path = EXAMPLE) -> int:
        """Submit one of the example's configurations; returns the experiment's id."""
        return self.cluster.submit(folder / config, folder, *options)

    def one(self, query: str) -> tuple[object, ...]:
        """The only row."""
        (row,) = self.cluster.rows(query)
        return row

    def weights(self, experiment: int) -> str:
        """SHA-256 of the weights in its last checkpoint."""
        (uuid,) = self.one(
            f"SELECT uuid FROM checkpoints WHERE experiment_id = {experiment} AND steps_completed = {BATCHES}"
        )
        file = self.cluster.folder / "checkpoints" / str(uuid) / "state_dict.pth"
        # As anybody may read it, without this package.
        (model,) = torch.load(file, map_location="cpu", weights_only=False)["models_state_dict"]
        return hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.values())).hexdigest()

    def tensors(self, experiment: int) -> str:
        """SHA-256 of all tensors that DeepSpeed has in the last checkpoint: each rank's weights and optimizer."""
        (uuid,) = self.one(
            f"SELECT uuid FROM checkpoints WHERE experiment_id = {experiment} ORDER BY steps_completed DESC LIMIT 1"
        )
        found = hashlib.sha256()
        for file in sorted((self.cluster.folder / "checkpoints" / str(uuid) / "model0").glob("*_states.pt")):
            state = torch.load(file, map_location="cpu", weights_only=False)
            for leaf in torch.utils._pytree.tree_leaves(state):  # pyright: ignore[reportPrivateUsage]
                if isinstance(leaf, torch.Tensor):
                    found.update(leaf.detach().numpy().tobytes())
        return found.hexdigest()


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trials]:
    with with_torch(tmp_path_factory.mktemp("pytorch-trial")) as cluster:
        yield Trials(cluster)


# harness/tests/test_pytorch_resume.py kills single processes at many steps, test_pytorch_example.py pauses them
@pytest.mark.parametrize(
    ("config", "is_paused"), [pytest.param("const.yaml", True, marks=pytest.mark.long), ("distributed.yaml", False)]
)
def test_killed_and_paused_trial_ends_with_the_weights_of_an_undisturbed_one(
    trials: Trials, config: str, is_paused: bool
) -> None:
    longer = ("--config", f"searcher.max_length.epochs={EPOCHS}")
    undisturbed, disturbed = trials.create(config, *longer), trials.create(config, *longer)
    trials.cluster.until_trained(disturbed, 60)  # checkpoints are at multiples of 40
    for pid in trials.cluster.trainers(disturbed)[-1:]:
        os.kill(pid, signal.SIGKILL)
    if is_paused:
        trials.cluster.until_trained(disturbed, 140)
        assert trials.cluster.det("experiment", "pause", str(disturbed)).returncode == 0
        trials.cluster.until_state(disturbed, "PAUSED")
        assert trials.cluster.det("experiment", "activate", str(disturbed)).returncode == 0
    for experiment in (undisturbed, disturbed):
        trials.cluster.until_state(experiment, "COMPLETED")
    query = "SELECT restarts, searcher_metric FROM trials WHERE experiment_id = "
    assert trials.one(f"{query}{undisturbed}")[0] == 0
    restarts, accuracy = trials.one(f"{query}{disturbed}")
    assert restarts == 1
    assert isinstance(accuracy, float)
    assert accuracy > 0.9
    assert trials.cluster.log(disturbed).count("resuming after") == 1 + is_paused
    assert trials.weights(disturbed) == trials.weights(undisturbed)


def test_deepspeed_example_learns_on_two_slots(trials: Trials) -> None:
    example = EXAMPLE.with_name("digits_deepspeed")
    experiment = trials.create("distributed.yaml", "--config", "searcher.max_length.epochs=3", folder=example)
    trials.cluster.until_state(experiment, "COMPLETED")
    query = f"SELECT searcher_metric > 0.9, total_batches FROM trials WHERE experiment_id = {experiment}"
    assert trials.one(query) == (True, 3 * 45), trials.cluster.log(experiment)


@pytest.mark.long  # harness/tests/test_deepspeed_resume.py kills single processes, with each of DeepSpeed's stages
@pytest.mark.parametrize(("config", "batches"), [("const.yaml", 3 * 90), ("distributed.yaml", 3 * 45)])
def test_deepspeed_example_goes_on_after_a_kill_as_if_nothing_had_happened(
    trials: Trials, config: str, batches: int
) -> None:
    example = EXAMPLE.with_name("digits_deepspeed")
    options = ("--config", "searcher.max_length.epochs=3")
    undisturbed, disturbed = (trials.create(config, *options, folder=example) for _ in range(2))
    trials.cluster.until_trained(disturbed, 60)
    os.kill(trials.cluster.trainers(disturbed)[-1], signal.SIGKILL)
    for experiment in (undisturbed, disturbed):
        trials.cluster.until_state(experiment, "COMPLETED")
    query = "SELECT restarts, searcher_metric > 0.9, total_batches FROM trials WHERE experiment_id = "
    assert trials.one(f"{query}{undisturbed}") == (0, True, batches), trials.cluster.log(undisturbed)
    assert trials.one(f"{query}{disturbed}") == (1, True, batches), trials.cluster.log(disturbed)
    assert "resuming after" in trials.cluster.log(disturbed)
    assert trials.tensors(disturbed) == trials.tensors(undisturbed)


# tests/chaos/test_sweep.py kills a cluster at any of a trial's steps, test_pytorch_resume.py compares weights
@pytest.mark.long
def test_trial_whose_cluster_is_killed_during_its_back_off_ends_with_the_same_weights(tmp_path: Path) -> None:
    timing = json.dumps({"restart_backoff_s": 10.0})
    with with_torch(tmp_path, UNDETERRED_TIMING=timing) as cluster:
        trials = Trials(cluster)
        longer = ("--config", f"searcher.max_length.epochs={EPOCHS}")
        undisturbed, disturbed = trials.create("const.yaml", *longer), trials.create("const.yaml", *longer)
        trials.cluster.until_trained(disturbed, 60)
        (trainer,) = cluster.trainers(disturbed)
        os.kill(trainer, signal.SIGKILL)
        progress = f"SELECT restarts, run_id FROM trials WHERE experiment_id = {disturbed}"
        cluster.until(lambda: trials.one(progress) == (1, 1), 30, "the trial waits for its second run")
        for part in PARTS:
            os.kill(cluster.pid(part), signal.SIGKILL)
        assert trials.one(progress) == (1, 1)
        assert not cluster.trainers(disturbed)
        cluster.up()
        for experiment in (undisturbed, disturbed):
            trials.cluster.until_state(experiment, "COMPLETED")
        assert trials.one(progress) == (1, 2)
        assert trials.cluster.log(disturbed).count("resuming after") == 1
        assert trials.weights(disturbed) == trials.weights(undisturbed)


def test_script_trains_as_far_as_it_says(trials: Trials) -> None:
    script = trials.create("script.yaml")
    trials.cluster.until_state(script, "COMPLETED")
    assert trials.one(f"SELECT total_batches, restarts FROM trials WHERE experiment_id = {script}") == (3 * 45, 0)
    progress = f"SELECT progress FROM experiments WHERE id = {script}"
    assert trials.one(progress)[0] == 1


@pytest.mark.long  # harness/tests/test_pytorch_trainer.py has a searcher say how far; a demo is a search
def test_search_trains_as_far_as_it_decides(trials: Trials) -> None:
    smaller = ("--config", "searcher.max_trials=4", "--config", "searcher.max_length.epochs=4")
    search = trials.create("adaptive.yaml", *smaller)
    trials.cluster.until_state(search, "COMPLETED")
    states = trials.cluster.rows(f"SELECT state, total_batches FROM trials WHERE experiment_id = {search}")
    assert len(states) == 4
    assert {state for state, _ in states} == {"COMPLETED"}
    assert len({batches for _, batches in states}) > 1, "all were trained to the end"


def test_class_that_can_not_be_trained_is_one_sentence_with_its_place(trials: Trials, tmp_path: Path) -> None:
    code = (EXAMPLE / "model_def.py").read_text()
    (tmp_path / "model_def.py").write_text(code.replace("def train_batch(self, batch: Any,", "def train_batch(self,"))
    (tmp_path / "const.yaml").write_text((EXAMPLE / "const.yaml").read_text())
    experiment = trials.create("const.yaml", "--config", "max_restarts=0", folder=tmp_path)
    query = f"SELECT state FROM experiments WHERE id = {experiment}"
    trials.cluster.until(lambda: trials.one(query)[0] == "ERROR", 120, "it failed")
    log = trials.cluster.log(experiment)
    assert re.search(r"model_def.py:\d+: train_batch\(.*\) must take batch, epoch_idx, batch_idx", log), log
    assert "Traceback" not in log
