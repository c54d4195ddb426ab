"""Orchestrators of two versions under running trials: an upgrade, a roll-back, and an upgrade that leaves what runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.client import Client

from tests.chaos.scale import chosen
from tests.kit.embedded import Embedded
from tests.kit.scripts import TRAIN
from workers.versioning import build_id
from workflows import names

REPOSITORY = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("workflows", "activities", "database", "api", "workers")
TRIALS = chosen(4, 20)
CONFIG = """
name: upgraded
entrypoint: python3 train.py
hyperparameters:
  quality: {type: double, minval: 0, maxval: 1}
  sleep: 1.0
searcher: {name: random, metric: accuracy, smaller_is_better: false, max_length: %d, max_trials: %d,
           max_concurrent_trials: 20}
max_restarts: 0
reproducibility: {experiment_seed: 7}
"""


class Newer:
    """A copy of the code with a change, and an orchestrator that runs it beside the embedded cluster's."""

    def __init__(self, embedded: Embedded, folder: Path, change: tuple[str, str, str]) -> None:
        self._folder = folder / "newer"
        for package in PACKAGES:
            shutil.copytree(REPOSITORY / package, self._folder / package)
        file, old, new = change
        path = self._folder / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        state = json.loads((embedded.folder / "cluster.json").read_text())
        self.ready = folder / "newer-is-ready"
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(self._folder),
            "UNDETERRED_DATABASE_URL": f"sqlite:///{embedded.folder / 'undeterred.db'}",
            "UNDETERRED_TEMPORAL_ADDRESS": state["temporal_address"] or f"127.0.0.1:{state['temporal_port']}",
            "UNDETERRED_READY_FILE": str(self.ready),
        }
        self._log = folder / "newer.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where Temporal is."""
        return self._environment["UNDETERRED_TEMPORAL_ADDRESS"]

    def build_id(self) -> str:
        """The version of the changed code."""
        command = [sys.executable, "-c", "from workers.versioning import build_id; print(build_id())"]
        done = subprocess.run(
            command, env=self._environment, cwd=self._folder, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def start(self) -> None:
        """Start it; it takes over before it says that it is ready."""
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "workers.orchestrator"],
                env=self._environment,
                cwd=self._folder,
                stdout=log,
                stderr=log,
            )

    def stop(self) -> None:
        """End it in order."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(30)
            self._process = None


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Embedded]:
    with Embedded(tmp_path, slots=TRIALS).stopped() as cluster:
        yield cluster


def stop_orchestrator(embedded: Embedded) -> None:
    pid = embedded.pid("orchestrator")
    os.kill(pid, signal.SIGTERM)
    embedded.until(lambda: not Path(f"/proc/{pid}").exists(), 30, "the orchestrator has left")


def reports(embedded: Embedded) -> int:
    return embedded.rows("SELECT count(*) FROM metrics WHERE group_name = 'validation'")[0][0]


async def versions_of(address: str, workflow_id: str) -> list[str]:
    """Build ids in the order in which they decided, without repeats in a row."""
    client = await Client.connect(address)
    history = await client.get_workflow_handle(workflow_id).fetch_history()
    found: list[str] = []
    for event in history.events:
        attributes = event.workflow_task_completed_event_attributes
        build = attributes.deployment_version.build_id
        if build and found[-1:] != [build]:
            found.append(build)
    return found


@pytest.mark.timeout(300)
async def test_running_trials_do_not_notice_an_upgrade_and_a_roll_back(embedded: Embedded, tmp_path: Path) -> None:
    embedded.up()
    newer = Newer(embedded, tmp_path, ("workflows/allocation.py", "runs as allocation", "is running as allocation"))
    assert newer.build_id() != build_id()
    experiment_id = embedded.create(CONFIG % (30, TRIALS), TRAIN)
    embedded.until(lambda: len(embedded.training()) == TRIALS, 90, f"{TRIALS} trials train")
    before = embedded.training()
    try:
        newer.start()
        embedded.until(newer.ready.exists, 60, "the newer version has taken over")
        stop_orchestrator(embedded)
        embedded.det("experiment", "pause", str(experiment_id))  # the newer one decides now, and passes it on
        embedded.until(lambda: not embedded.training(), 90, "all trials have saved and left")
        embedded.det("experiment", "activate", str(experiment_id))
        embedded.until(lambda: len(embedded.training()) == TRIALS, 90, "they train again")
        embedded.up()  # the older one is back, and takes over
        newer.stop()
        embedded.until(lambda: embedded.rows("SELECT 1 FROM experiments WHERE ended_at IS NOT NULL"), 150, "it is over")
    finally:
        newer.stop()
    assert before, "they ran when the first version was in charge"
    assert embedded.rows("SELECT state FROM experiments") == [("COMPLETED",)]
    trials = embedded.rows("SELECT state, restarts, run_id, total_batches FROM trials")
    assert trials == [("COMPLETED", 0, 2, 30)] * TRIALS
    steps = embedded.rows("SELECT log, count(*) FROM task_logs WHERE log LIKE 'step %' GROUP BY log, task_id")
    assert len(steps) == 30 * TRIALS
    assert {count for _, count in steps} == {1}, "no step was trained twice"
    seen = await versions_of(newer.address, names.experiment_workflow(experiment_id))
    assert seen == [build_id(), newer.build_id(), build_id()]


@pytest.mark.timeout(300)
async def test_running_experiment_stays_with_its_version_when_told_to(tmp_path: Path) -> None:
    embedded = Embedded(tmp_path, environment={"UNDETERRED_RUNNING_EXPERIMENTS": "leave"})
    newer = None
    try:
        embedded.up()
        # a change that no running experiment would survive: it waits before it does anything
        change = ("workflows/experiment.py", "        state = self._run\n        if not state.is_started:",
                  "        state = self._run\n        await workflow.sleep(0.01)\n        if not state.is_started:")  # fmt: skip
        newer = Newer(embedded, tmp_path, change)
        first = embedded.create(CONFIG % (12, 2), TRAIN)
        embedded.until(lambda: len(embedded.training()) == 2, 60, "two trials train")
        newer.start()
        embedded.until(newer.ready.exists, 60, "the newer version takes what is new")
        second = embedded.create(CONFIG % (2, 2), TRAIN)
        embedded.until(
            lambda: len(embedded.rows("SELECT 1 FROM experiments WHERE state = 'COMPLETED'")) == 2, 120, "both are over"
        )
        assert await versions_of(newer.address, names.experiment_workflow(first)) == [build_id()]
        assert await versions_of(newer.address, names.experiment_workflow(second)) == [newer.build_id()]
    finally:
        if newer is not None:
            newer.stop()
        embedded.run("down")
