"""A killed run with DeepSpeed continues to the very same weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .deepspeed_runs import Runs
from .pytorch_trials import Jobs

pytestmark = pytest.mark.timeout(300)
_FIT = {"max_length": 9, "reporting_period": 2, "validation_period": 4, "checkpoint_period": 3}


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    jobs = Jobs("deepspeed_trials.py")
    yield jobs
    jobs.close()


@pytest.fixture
def runs(jobs: Jobs, trial: Any, tmp_path: Path) -> Runs:
    return Runs(jobs, trial, tmp_path)


@pytest.mark.parametrize(
    ("cls", "size", "hparams"),
    [
        ("Exact", 1, {"stage": 0, "workers": 2, "kill_at": 7}),
        ("Exact", 1, {"stage": 3, "kill_at": 4}),
        ("Exact", 2, {"stage": 0, "kill_at": 5, "kill_rank": 1}),
        ("Exact", 2, {"stage": 1, "micro": 3, "kill_at": 7}),
        ("Exact", 2, {"stage": 2, "kill_at": 8, "kill_rank": 1}),
        ("Exact", 2, {"stage": 3, "kill_at": 7}),
        ("Exact", 2, {"stage": 2, "kill_at": 7, "ds": {"bf16": {"enabled": True}}}),
        ("Piped", 2, {"kill_at": 7, "kill_rank": 1}),
        ("Piped", 2, {"stage": 1, "kill_at": 4}),
    ],
)
def test_killed_run_ends_with_the_weights_of_one_that_was_not_disturbed(
    runs: Runs, cls: str, size: int, hparams: dict[str, Any]
) -> None:
    lives = {name: value for name, value in hparams.items() if not name.startswith("kill")}
    undisturbed = runs.run(cls, size, hparams=lives, fit=_FIT)
    runs.trial.master.calls.clear()
    codes, errors = runs.start(cls, size, hparams=hparams, fit=_FIT)
    assert -9 in codes, errors
    assert list(runs.trial.checkpoints())[-1] == hparams["kill_at"] // 3 * 3
    resumed = runs.run(cls, size, runs.latest(), hparams=lives, fit=_FIT)
    for before, after in zip(undisturbed, resumed):
        assert after["weights"] == before["weights"]
        assert after["seen"] == before["seen"][-len(after["seen"]) :]
        assert after["seen"][0][1] == hparams["kill_at"] // 3 * 3


def test_random_numbers_are_a_ranks_own(runs: Runs) -> None:
    """Seeds come from the trial, whose ranks make the same model; what they draw then differs."""
    import torch

    runs.run("Exact", 2, fit={"max_length": 1})
    folder = runs.trial.storage / runs.latest()
    first, second = (
        torch.load(folder / f"det_state_dict_rank{rank}.pth", weights_only=False)["rng_state"] for rank in range(2)
    )
    assert set(first) == {"cpu_rng_state", "random_rng_state", "np_rng_state"}
    assert not torch.equal(first["cpu_rng_state"], second["cpu_rng_state"])


def test_checkpoint_of_other_ranks_is_loaded_where_deepspeed_can(runs: Runs) -> None:
    runs.run("Simple", 2, fit={"max_length": 2})
    alone = runs.run("Simple", 1, runs.latest(), fit={"max_length": 3})
    assert [batch for _, batch, _ in alone[0]["seen"]] == [2, 2]
    runs.run("Simple", 2, hparams={"stage": 1}, fit={"max_length": 2})
    latest = runs.latest()
    told = "InvalidCheckpointException: DeepSpeed can't load model0 of the checkpoint: ZeRORuntimeException: .*world"
    runs.fails("Simple", told, latest=latest, hparams={"stage": 1})


def test_checkpoint_of_another_kind_of_trial_is_refused(runs: Runs) -> None:
    other = runs.trial.storage / "00000000-0000-4000-8000-000000000001"
    other.mkdir(parents=True)
    (other / "state_dict.pth").touch()
    runs.fails("Simple", "has no det_state_dict_rank0.pth: it was not saved by a DeepSpeedTrial", latest=other.name)


def test_checkpoint_of_the_published_package_is_resumed(runs: Runs) -> None:
    """§6: its files have callbacks and random states, engines, and `trial_state.pkl`; none of what is ours."""
    import torch

    (first,) = runs.run("Simple", fit={"max_length": 2})
    folder = runs.trial.storage / runs.latest()
    old = runs.trial.storage / "00000000-0000-4000-8000-000000000002"
    folder.rename(old)
    for file in (path for path in old.iterdir() if "manifest" in path.name or path.name == "metadata.json"):
        file.unlink()
    state = torch.load(old / "det_state_dict_rank0.pth", weights_only=False)
    del state["resume"]
    torch.save(state, old / "det_state_dict_rank0.pth")
    (again,) = runs.run("Simple", latest=old.name, fit={"max_length": 4})
    assert [(batch, values) for _, batch, values in again["seen"]] == [
        (2, [8, 9]),
        (2, [10, 11]),
        (3, [0, 1]),
        (3, [2, 3]),
    ]
    (straight,) = runs.run("Simple", fit={"max_length": 4})
    assert again["weights"] == straight["weights"] != first["weights"]


def test_outside_of_a_cluster_it_trains_saves_and_goes_on(runs: Runs, tmp_path: Path) -> None:
    env = {"XDG_DATA_HOME": str(tmp_path), "DET_RUN_DIR": str(tmp_path / "none")}
    runs.run("Simple", 2, fit={"max_length": 2}, env=env, is_local=True)
    (saved,) = (tmp_path / "determined" / "checkpoints").glob("[!.]*-*-*-*-*")
    found = runs.run("Simple", 2, saved.name, fit={"max_length": 3}, env=env, is_local=True)
    assert [batch for _, batch, _ in found[0]["seen"]] == [2, 2]
