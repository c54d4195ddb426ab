"""A killed run continues to the very same weights."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .pytorch_trials import UPLOAD, Jobs

IS_LONG = bool(os.environ.get("UNDETERRED_SOAK"))
LENGTH = 13
_FIT = {
    "reporting_period": 2,
    "validation_period": 4,
    "checkpoint_period": 3,
    "checkpoint_policy": "none",
}


class Runs:
    """Runs of one trial: undisturbed, or killed and resumed from its latest checkpoint."""

    def __init__(self, jobs: Jobs, trial: Any, tmp_path: Path) -> None:
        self.jobs = jobs
        self.trial = trial
        self.out = tmp_path / "out"
        trial.config["searcher"] = {"name": "single", "metric": "accuracy"}

    def run(self, size: int, hparams: dict[str, Any], latest: str | None, every: int = 1) -> str | None:
        """Train to the end; the hashes of parameters and of the chief's buffers, None if it was killed."""
        found = self._run(size, hparams, latest, every, LENGTH)
        if found is None:
            return None
        assert len({parameters for parameters, _ in (rank["weights"] for rank in found)}) == 1, "the ranks differ"
        return ":".join(found[0]["weights"])

    def samples(self, size: int, hparams: dict[str, Any], latest: str | None, length: int) -> list[int]:
        """Train to a length; the samples of this run, batch by batch, of each batch rank by rank."""
        found = self._run(size, hparams, latest, 1, length)
        assert found is not None
        rounds = zip(*(rank["seen"] for rank in found), strict=True)
        return [sample for batches in rounds for batch in batches for sample in batch]

    def _run(
        self, size: int, hparams: dict[str, Any], latest: str | None, every: int, length: int
    ) -> list[dict[str, Any]] | None:
        """What the ranks wrote; None if they were killed."""
        for file in self.out.parent.glob("out.*"):
            file.unlink()
        self.trial.slot_ids = list(range(size))
        self.trial.write_info()
        batch = {"global_batch_size": 8 if size > 2 else 4, **hparams}
        codes = self.jobs.run(
            size,
            folder=str(self.trial.run_dir),
            hparams=batch,
            latest=latest,
            fit=_FIT | {"max_length": length},
            every=every,
            out=str(self.out),
        )
        if any(code == -9 for code in codes) and not list(self.out.parent.glob("out.error.*")):
            return None
        errors = "\n".join(file.read_text() for file in self.out.parent.glob("out.error.*"))
        if any(codes):
            assert any(name.startswith("kill") for name in hparams), errors
            return None
        return [json.loads(Path(f"{self.out}.{rank}").read_text()) for rank in range(size)]

    def latest(self) -> str | None:
        calls = self.trial.master.of("POST /api/v1/checkpoints")
        return calls[-1].body["uuid"] if calls else None


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    jobs = Jobs()
    yield jobs
    jobs.close()


@pytest.fixture
def runs(jobs: Jobs, trial: Any, tmp_path: Path) -> Runs:
    trial.master.answers["GET /api/v1/trials/7"] = lambda _: _trial_of(trial.master)
    trial.master.answer("POST /api/v1/trials/7/status", {})
    trial.master.answer("GET /api/v1/tasks/1.task/context_directory", {"b64Tgz": ""})
    return Runs(jobs, trial, tmp_path)


def _trial_of(master: Any) -> dict[str, Any]:
    validations = [r for r in master.reports() if r.get("group") == "validation"]
    if not validations:
        return {"trial": {}}
    last = validations[-1]
    return {"trial": {"latestValidation": {"totalBatches": last["stepsCompleted"], "metrics": {}}}}


#: An epoch has 6 batches on one slot and two, and 3 on four. Checkpoints are after 3, 6, 9 … batches.
SHORT: list[tuple[int, dict[str, Any], int]] = [
    (1, {"workers": 0, "kill_at": 0}, 1),  # in the first batch
    (1, {"workers": 2, "kill_at": 6}, 1),  # in the first batch of an epoch
    (1, {"workers": 2, "kill_in_upload": ("files", 2)}, 1),
    (2, {"workers": 2, "kill_in_upload": ("report", 1)}, 2),
    (1, {"workers": 0, "mode": "STEP_EVERY_BATCH", "kill_at": 7}, 1),
    (1, {"workers": 2, "mode": "STEP_EVERY_EPOCH", "amp": True, "kill_at": 11}, 1),
    (1, {"workers": 0, "mode": "MANUAL_STEP", "kill_in_validation_after": 7}, 2),
    (2, {"workers": 0, "mode": "STEP_EVERY_OPTIMIZER_STEP", "kill_at": 5, "kill_rank": 1}, 2),
    (4, {"workers": 0, "kill_at": 4, "kill_rank": 3}, 1),
]
IN_BATCHES = [
    (size, {"workers": workers, "mode": mode, "amp": amp, "kill_at": at, "kill_rank": size - 1}, every)
    for size, workers, mode, amp, at, every in itertools.product(
        (1, 2, 4),
        (0, 2),
        ("STEP_EVERY_BATCH", "STEP_EVERY_EPOCH", "STEP_EVERY_OPTIMIZER_STEP", "MANUAL_STEP"),
        (False, True),
        (0, 4, 6, 11),
        (1, 2),
    )
]
IN_BETWEEN = [
    (size, {"workers": workers, "mode": "MANUAL_STEP", "kill_rank": size - 1, **kill}, every)
    for size, workers, kill, every in itertools.product(
        (1, 2, 4),
        (0, 2),
        (
            *({"kill_in_validation_after": last} for last in (3, 7, 12)),
            *({"kill_in_upload": (place, number)} for place in UPLOAD for number in (1, 2, 4)),
        ),
        (1, 2),
    )
]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("size", "hparams", "every"), SHORT + IN_BATCHES + IN_BETWEEN if IS_LONG else SHORT)
def test_killed_run_ends_with_the_weights_of_one_that_was_not_disturbed(
    runs: Runs, size: int, hparams: dict[str, Any], every: int
) -> None:
    killed = {name: value for name, value in hparams.items() if not name.startswith("kill")}
    undisturbed = runs.run(size, killed, None, every)
    assert undisturbed is not None
    runs.trial.master.calls.clear()
    assert runs.run(size, hparams, None, every) is None, "it was not killed"
    latest = runs.latest()
    assert runs.run(size, killed, latest, every) == undisturbed


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (4, 3)])
def test_another_number_of_slots_goes_on_with_the_next_sample_of_one_order(runs: Runs, before: int, after: int) -> None:
    """27 samples in batches of 12: batches, rounds of batches and the two runs end at different places of an epoch."""
    hparams = {"global_batch_size": 12, "count": 27, "workers": 2}
    undisturbed = runs.samples(1, hparams, None, 16)
    first = runs.samples(before, hparams, None, 4)
    seen = first + runs.samples(after, hparams, runs.latest(), 12)
    assert 1 < len(first) % 27 < 26
    assert len(seen) > 4 * 27
    assert seen == undisturbed[: len(seen)]
    for epoch in range(4):
        assert sorted(seen[epoch * 27 :][:27]) == list(range(27)), "a sample came twice or was left out"
