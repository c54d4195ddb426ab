"""The PyTorch example as users run it: undisturbed, killed between a step and its checkpoint, preempted; on two workers.

And the examples with FSDP2, transformers, Lightning, Keras and accelerate.

All trials share one cluster. They run in `.venv-torch`, which `make test` makes.
"""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from tests.kit.embedded import Embedded, with_torch
from tests.kit.servers import REPOSITORY

EXAMPLE = REPOSITORY / "examples" / "digits_pytorch"
FSDP2 = EXAMPLE.with_name("digits_fsdp2")
EPOCHS = 30  # some seconds: long enough to be killed and paused in the middle
PER_EPOCH = 44
BATCHES = EPOCHS * PER_EPOCH


@dataclass(frozen=True)
class Runs:
    """A cluster whose trials have PyTorch."""

    cluster: Embedded

    def create(self, config: str, example: Path = EXAMPLE, epochs: int | None = EPOCHS) -> int:
        """Submit one of an example's configurations, longer than it is unless None; returns the experiment's id."""
        longer = ["--config", f"searcher.max_length.epochs={epochs}"] if epochs else []
        return self.cluster.submit(example / config, example, *longer)

    def pause(self, experiment: int) -> None:
        """Until its trial has left."""
        assert self.cluster.det("experiment", "pause", str(experiment)).returncode == 0
        self.cluster.until_state(experiment, "PAUSED")
        self.cluster.until(lambda: not self.cluster.training(), 30, "the trial left")

    def finish(self, experiment: int) -> None:
        """Activate it again, until it is completed."""
        assert self.cluster.det("experiment", "activate", str(experiment)).returncode == 0
        self.cluster.until_state(experiment, "COMPLETED")

    def final_state(self, experiment: int) -> str:
        """SHA-256 of what its last checkpoint holds: weights, optimizer, random numbers, place in the data."""
        ((uuid,),) = self.cluster.rows(
            f"SELECT uuid FROM checkpoints WHERE experiment_id = {experiment} AND steps_completed = {BATCHES}"
        )
        file = self.cluster.folder / "checkpoints" / uuid / "state.pt"
        return hashlib.sha256(file.read_bytes()).hexdigest()

    def accuracy(self, experiment: int) -> float:
        """Of its trial, as the search has it."""
        ((accuracy,),) = self.cluster.rows(f"SELECT searcher_metric FROM trials WHERE experiment_id = {experiment}")
        return accuracy

    def sharded(self, epochs: int) -> int:
        """Train the example whose workers have a shard each, one of which is killed; returns the experiment's id."""
        experiment = self.create("const.yaml", FSDP2, epochs)
        self.cluster.until_trained(experiment, 60)
        os.kill(self.cluster.trainers(experiment, "train.py")[1], signal.SIGKILL)
        self.cluster.until_state(experiment, "COMPLETED")
        assert self.runs(experiment) == (2, 1)
        assert self.cluster.log(experiment).count("resumed after") == 2, "each worker says so"
        return experiment

    def sharded_weights(self, experiment: int, epochs: int) -> str:
        """SHA-256 of the weights in its last checkpoint, of which each worker has written a part."""
        ((uuid,),) = self.cluster.rows(
            f"SELECT uuid FROM checkpoints WHERE experiment_id = {experiment} AND steps_completed = {epochs * PER_EPOCH}"
        )
        folder = self.cluster.folder / "checkpoints" / uuid
        assert len(list(folder.glob("*.distcp"))) == 2
        whole = self.cluster.folder / f"{uuid}.pt"
        dcp_to_torch_save(folder, whole)
        weights = torch.load(whole, weights_only=True)["network"]
        return hashlib.sha256(b"".join(weights[name].numpy().tobytes() for name in sorted(weights))).hexdigest()

    def runs(self, experiment: int) -> tuple[int, int]:
        """How often its trial was started, and how many restarts were spent."""
        query = "SELECT run_id, restarts FROM trials WHERE experiment_id = "
        ((runs, restarts),) = self.cluster.rows(f"{query}{experiment}")
        return runs, restarts


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    with with_torch(tmp_path_factory.mktemp("pytorch")) as cluster:
        yield Runs(cluster)


@pytest.fixture(scope="module")
def undisturbed(runs: Runs) -> str:
    experiment = runs.create("const.yaml")
    runs.cluster.until_state(experiment, "COMPLETED")
    assert runs.runs(experiment) == (1, 0)
    assert runs.accuracy(experiment) > 0.95
    return runs.final_state(experiment)


def test_killed_trial_ends_with_the_same_bits(runs: Runs, undisturbed: str) -> None:
    """Seed 003: steps after the last checkpoint are trained again, with the very same data and random numbers."""
    experiment = runs.create("const.yaml")
    for steps in (60, 200):  # checkpoints are at multiples of 40
        runs.cluster.until_trained(experiment, steps)
        (pid,) = runs.cluster.training().values()
        os.kill(pid, signal.SIGKILL)
    runs.cluster.until_state(experiment, "COMPLETED")
    assert runs.runs(experiment) == (3, 2)
    assert runs.cluster.log(experiment).count("resumed after") == 2
    assert runs.final_state(experiment) == undisturbed


@pytest.mark.long  # as the next one, but that its newest checkpoint is whole
def test_preempted_trial_ends_with_the_same_bits(runs: Runs, undisturbed: str) -> None:
    experiment = runs.create("const.yaml")
    runs.cluster.until_trained(experiment, 60)
    runs.pause(experiment)
    runs.finish(experiment)
    assert runs.runs(experiment) == (2, 0), "a preemption costs no restart"
    assert "resumed after" in runs.cluster.log(experiment)
    assert runs.final_state(experiment) == undisturbed


def test_damaged_checkpoint_gives_way_to_the_one_before(runs: Runs, undisturbed: str) -> None:
    """Paused, damaged by a disk, activated: the trial goes on from the checkpoint before, to the same end."""
    experiment = runs.create("const.yaml")
    runs.cluster.until_trained(experiment, 100)
    runs.pause(experiment)
    query = f"SELECT uuid FROM checkpoints WHERE experiment_id = {experiment} ORDER BY steps_completed DESC LIMIT 2"
    (latest,), (before,) = runs.cluster.rows(query)
    file = runs.cluster.folder / "checkpoints" / latest / "state.pt"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    runs.finish(experiment)
    assert f"going on from the one before it instead: {before}" in runs.cluster.log(experiment)
    assert runs.final_state(experiment) == undisturbed


@pytest.mark.long  # as the next one, but that each of its workers has the whole network
def test_two_workers_train_one_network(runs: Runs) -> None:
    experiment = runs.create("distributed.yaml")
    runs.cluster.until_trained(experiment, 100)
    os.kill(runs.cluster.trainers(experiment, "train.py")[1], signal.SIGKILL)
    runs.cluster.until_state(experiment, "COMPLETED")
    assert runs.runs(experiment) == (2, 1)
    assert runs.accuracy(experiment) > 0.95


def test_sharded_network_is_saved_by_both_workers_and_goes_on_after_a_kill(runs: Runs) -> None:
    """FSDP2: both workers write their shards into one checkpoint, and one of them is killed."""
    disturbed = runs.sharded(6)
    assert runs.accuracy(disturbed) > 0.8
    assert runs.sharded_weights(disturbed, 6), "its checkpoint becomes one file"


@pytest.mark.long  # the one before has no other weights to compare with
def test_sharded_network_ends_with_the_same_bits_on_two_workers(runs: Runs) -> None:
    undisturbed = runs.create("const.yaml", FSDP2, 6)
    runs.cluster.until_state(undisturbed, "COMPLETED")
    disturbed = runs.sharded(6)
    assert runs.runs(undisturbed) == (1, 0)
    assert runs.sharded_weights(disturbed, 6) == runs.sharded_weights(undisturbed, 6)


@pytest.fixture(scope="module")
def libraries(runs: Runs) -> dict[str, int]:
    """The experiments of the examples with a library, both at once."""
    names = ("transformers", "keras")
    return {name: runs.create("const.yaml", EXAMPLE.with_name(f"digits_{name}"), None) for name in names}


# harness/tests/test_accelerate.py resumes from such a checkpoint
@pytest.mark.parametrize("library", ["lightning", pytest.param("accelerate", marks=pytest.mark.long)])
def test_example_goes_on_after_a_pause(runs: Runs, library: str) -> None:
    experiment = runs.create("const.yaml", EXAMPLE.with_name(f"digits_{library}"), 20)
    runs.cluster.until_trained(experiment, 60)
    runs.pause(experiment)
    query = f"SELECT max(steps_completed) FROM checkpoints WHERE experiment_id = {experiment}"
    ((steps,),) = runs.cluster.rows(query)
    runs.finish(experiment)
    assert runs.runs(experiment) == (2, 0)
    assert 60 <= steps < 20 * 45
    assert runs.cluster.rows(query) == [(20 * 45,)]


@pytest.mark.parametrize(("library", "steps", "wanted"), [("transformers", 230, 0.8), ("keras", 225, 0.9)])
def test_example_with_a_library_learns(
    runs: Runs, libraries: dict[str, int], library: str, steps: int, wanted: float
) -> None:
    experiment = libraries[library]
    runs.cluster.until_state(experiment, "COMPLETED")
    query = f"SELECT searcher_metric, total_batches FROM trials WHERE experiment_id = {experiment}"
    ((accuracy, trained),) = runs.cluster.rows(query)
    assert (accuracy > wanted, trained) == (True, steps)
    query = f"SELECT max(steps_completed) FROM checkpoints WHERE experiment_id = {experiment}"
    assert runs.cluster.rows(query) == [(steps,)]


@pytest.mark.long  # harness/tests/test_keras_trial.py kills such a trial, and the others here are paused
def test_keras_trial_goes_on_after_a_pause(runs: Runs) -> None:
    experiment = runs.create("trial.yaml", EXAMPLE.with_name("digits_keras"), 20)
    runs.cluster.until_trained(experiment, 60)
    assert runs.cluster.det("experiment", "pause", str(experiment)).returncode == 0
    runs.cluster.until_state(experiment, "PAUSED")
    runs.finish(experiment)
    assert runs.runs(experiment) == (2, 0)
    assert "resuming after" in runs.cluster.log(experiment)
    query = f"SELECT searcher_metric, total_batches FROM trials WHERE experiment_id = {experiment}"
    ((accuracy, trained),) = runs.cluster.rows(query)
    assert (accuracy > 0.9, trained) == (True, 20 * 45)
