"""What users wrote for Determined runs with its own package and with ours, and ends with the same results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.compat.published import GENERATIONS, MODEL, environment_of, experiment_config
from tests.kit.embedded import Embedded

_OF_THE_MACHINE = "('cpu', 'memory', 'disk', 'network', 'gpu')"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    """One that no record is made of."""
    with Embedded(tmp_path_factory.mktemp("results")).started() as cluster:
        yield cluster


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("script", ["every_call.py", "train.py", "epochs.py"])
def test_script_does_the_same_with_our_package(cluster: Embedded, generation: str, script: str) -> None:
    theirs = _run(cluster, generation, script, f"DET_PYTHON_EXECUTABLE={environment_of(generation) / 'bin' / 'python'}")
    ours = _run(cluster, generation, script)
    told, also_told = _told(cluster, theirs), _told(cluster, ours)
    assert told
    # 0.21 lacks what came later, such as groups of metrics; 0.38 makes its own operations up
    known = told if generation == GENERATIONS[1] else also_told
    assert {name: what for name, what in also_told.items() if name in known} == told
    reported, also_reported = _reported(cluster, theirs), _reported(cluster, ours)
    groups = {group for group, _, _ in reported}
    assert "validation" in groups
    assert [row for row in also_reported if row[0] in groups] == reported
    if generation == GENERATIONS[0]:
        assert {group for group, _, _ in also_reported} == groups
    saved, also_saved = _checkpoints(cluster, theirs), _checkpoints(cluster, ours)
    assert [steps for steps, _ in also_saved] == [steps for steps, _ in saved]
    for (_, files), (_, also_files) in zip(saved, also_saved, strict=True):
        assert also_files == files or (not also_files and generation == GENERATIONS[1]), (
            "0.21 tells nobody of deletions"
        )


def _run(cluster: Embedded, generation: str, script: str, *variables: str) -> int:
    """Train once; returns the experiment's id."""
    config = experiment_config(
        generation,
        entrypoint=f"python3 {script}",
        environment={"environment_variables": list(variables)},
        hyperparameters={"sleep": 0, "quality": 0.5},
    )
    path = cluster.folder / "config.json"
    path.write_text(json.dumps(config))
    done = cluster.det("experiment", "create", str(path), str(MODEL), "--follow-first-trial")
    assert done.returncode == 0, done.stdout + done.stderr
    experiment = int(next(line for line in done.stdout.splitlines() if "Created experiment" in line).split()[-1])
    state = f"SELECT state FROM experiments WHERE id = {experiment}"
    cluster.until(lambda: cluster.rows(state) == [("COMPLETED",)], 60, f"{script} completes: {done.stdout}")
    return experiment


def _told(cluster: Embedded, experiment: int) -> dict[str, str]:
    """What a script printed of each step, without the ids of this run."""
    log = cluster.det("experiment", "logs", str(experiment)).stdout
    steps = [line.partition("STEP ")[2].split(": ", 1) for line in log.splitlines() if "STEP " in line]
    if steps:
        return {name: what for name, what in steps if name not in ("experiment", "end")}
    lines = [line.partition("|| ")[2].split(" as ")[0] for line in log.splitlines()]
    return {line: "" for line in lines if line.startswith(("step ", "saved ", "epoch ", "stopped "))}


def _reported(cluster: Embedded, experiment: int) -> list[tuple[Any, ...]]:
    """The metrics of an experiment, but for what the profiler measured."""
    rows = cluster.rows(
        "SELECT group_name, metrics.total_batches, metrics.metrics FROM metrics JOIN trials ON trials.id = trial_id "
        f"WHERE trials.experiment_id = {experiment} AND group_name NOT IN {_OF_THE_MACHINE} ORDER BY 1, 2"
    )
    return [(group, steps, json.loads(metrics)) for group, steps, metrics in rows]


def _checkpoints(cluster: Embedded, experiment: int) -> list[tuple[int, list[str]]]:
    """Steps and files of the checkpoints that were saved, but for our manifest and what 0.21 does not list."""
    rows = cluster.rows(
        f"SELECT steps_completed, resources FROM checkpoints WHERE experiment_id = {experiment} ORDER BY reported_at"
    )
    return [(steps, sorted(name for name in json.loads(files) if name != "metadata.json")) for steps, files in rows]
