"""A script that runs beside the cluster and reports to it, as from a laptop: it trains, dies, and goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.embedded import Embedded

SCRIPT = """
import json, sys
from determined.experimental import core_v2

config = core_v2.Config(
    name="on my laptop", hparams={"lr": 0.1}, external_experiment_id="laptop", external_trial_id="first",
    searcher={"name": "single", "metric": "accuracy", "smaller_is_better": False, "max_length": {"batches": 1}},
)
core_v2.init(config=config)
steps = 0
if core_v2.info.latest_checkpoint:
    with core_v2.checkpoint.restore_path(core_v2.info.latest_checkpoint) as path:
        steps = json.loads((path / "state.json").read_text())
    print(f"goes on after {steps}")
until = int(sys.argv[1])
while steps < until:
    steps += 1
    core_v2.train.report_training_metrics(steps, {"loss": 1 / steps})
    core_v2.train.report_validation_metrics(steps, {"accuracy": steps / 10})
    with core_v2.checkpoint.store_path({"steps_completed": steps}) as (path, _):
        (path / "state.json").write_text(json.dumps(steps))
    print(f"step {steps}")
if until == 3:
    raise RuntimeError("the battery is empty")
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    with Embedded(tmp_path_factory.mktemp("unmanaged")).started() as cluster:
        yield cluster


def test_run_elsewhere_is_seen_resumed_and_completed(cluster: Embedded, tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(SCRIPT)

    def run(until: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(script), str(until)]
        environment = {name: value for name, value in cluster.environment.items() if name != "DET_RUN_DIR"} | {
            "DET_RUN_DIR": str(tmp_path / "no-task")
        }
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    def described(kind: str, number: int) -> dict[str, object]:
        done = cluster.det(kind, "describe", str(number), "--json")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        return told[0] if isinstance(told, list) else told

    died = run(3)
    assert died.returncode == 1
    assert "the battery is empty" in died.stderr
    ((experiment, state),) = cluster.rows("SELECT id, state FROM experiments")
    assert state == "ERROR"
    went_on = run(5)
    assert went_on.returncode == 0, went_on.stderr
    assert "goes on after 3" in went_on.stdout
    assert cluster.rows("SELECT id, state FROM experiments") == [(experiment, "COMPLETED")]
    query = "SELECT id, run_id, total_batches, searcher_metric FROM trials"
    ((trial, runs, steps, best),) = cluster.rows(query)
    assert (runs, steps, best) == (2, 5, 0.5)
    log = cluster.det("trial", "logs", str(trial)).stdout
    for line in ("step 3", "RuntimeError: the battery is empty", "goes on after 3", "step 5"):
        assert line in log
    assert "on my laptop" in cluster.det("experiment", "list").stdout
    assert described("experiment", experiment)
    target = tmp_path / "best"
    done = cluster.det("experiment", "download", str(experiment), "-o", str(target))
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(path.read_text()) for path in target.rglob("state.json")]
    assert found == [5]
    assert os.listdir(target)
