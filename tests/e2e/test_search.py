"""A search as a user has it: planned, run, looked into, taken along, forked, plotted; and one run by a program outside.

All tests share one cluster and one finished search.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from matplotlib import image

from tests.kit.collector import Collector, collecting
from tests.kit.embedded import Embedded
from tests.kit.scripts import TRAIN
from tests.kit.servers import REPOSITORY, free_port

CONFIG = """
name: looked-into
entrypoint: python3 train.py
hyperparameters:
  quality: {type: double, minval: 0.1, maxval: 1.0}
searcher:
  name: adaptive_asha
  metric: accuracy
  smaller_is_better: false
  max_length: {batches: 9}
  max_trials: 6
  max_concurrent_trials: 1  # of a bracket: what stopping halving promotes depends on who reports first
  max_rungs: 2
  divisor: 3
max_restarts: 0
reproducibility: {experiment_seed: 4}
"""
CUSTOM = REPOSITORY / "examples" / "custom_search" / "run_local.py"


@dataclass(frozen=True)
class Searched:
    """The cluster, and the experiment whose search is over."""

    cluster: Embedded
    experiment: int
    collector: Collector

    def det(self, *words: str | Path, code: int = 0) -> str:
        """The output of `det …`, which must end with that code."""
        return det(self.cluster, *words, code=code)

    def trials(self, experiment: int) -> list[dict[str, Any]]:
        return json.loads(self.det("experiment", "list-trials", str(experiment), "--json"))

    def steps(self, trial: dict[str, Any]) -> list[int]:
        """The steps that a trial trained itself, by its log."""
        return [int(number) for number in re.findall(r"step (\d+)$", self.det("trial", "logs", str(trial["id"])), re.M)]


def det(cluster: Embedded, *words: str | Path, code: int = 0) -> str:
    done = cluster.det(*map(str, words))
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert code == 0 or done.stderr.count("\n") <= 1, "what went wrong is one sentence"
    return done.stdout if code == 0 else done.stdout + done.stderr


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Searched]:
    with contextlib.ExitStack() as stack:
        collector = stack.enter_context(collecting())
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        cluster = Embedded(tmp_path_factory.mktemp("search"), environment=environment)
        stack.enter_context(cluster.started())
        experiment = cluster.create(CONFIG, TRAIN)
        det(cluster, "experiment", "wait", str(experiment), "--polling-interval", "0.2")
        yield Searched(cluster, experiment, collector)


def test_one_trace_leads_from_the_request_to_the_first_metrics(searched: Searched) -> None:
    """Over the processes API, orchestrator and agent, and into the container, whose reports name the launch."""
    create, report = "POST /api/v1/experiments", "POST /api/v1/trials/{trial_id}/metrics/batch"

    def counts() -> tuple[int, int]:
        names = [span.name for span in searched.collector.trace_of(create)]
        return names.count("RunActivity:run_container"), names.count(report)

    # the span of a launch ends with its container, and is sent some seconds later
    searched.cluster.until(
        lambda: counts()[0] == counts()[1] > 0, 30, "of each launch the first report has come, and no later one"
    )
    spans = searched.collector.trace_of(create)
    assert {span.service for span in spans} == {"undeterred-api", "undeterred-orchestrator", "undeterred-agent"}
    by_id = {span.id: span for span in spans}
    way, at = [], next(span for span in spans if span.name == report)
    while at.parent:
        at = by_id[at.parent]
        way.append((at.service.removeprefix("undeterred-"), at.name))
    assert way == [
        ("agent", "RunActivity:run_container"), ("orchestrator", "StartActivity:run_container"),
        ("orchestrator", "StartWorkflow:Trial"), ("orchestrator", "RunActivity:record_experiment"),
        ("orchestrator", "StartActivity:record_experiment"), ("api", "StartWorkflow:Experiment"), ("api", create),
    ]  # fmt: skip


def test_search_did_what_the_plan_said(searched: Searched) -> None:
    [plan] = json.loads(searched.det("preview-search", searched.cluster.folder / "config.yaml", "--json"))
    lengths = sorted(trial["totalBatchesProcessed"] for trial in searched.trials(searched.experiment))
    assert lengths == [group["length"] for group in plan["trials"] for _ in range(group["count"])]
    assert sum(lengths) == plan["total"]


def test_each_trial_and_the_search_tell_why(searched: Searched) -> None:
    rungs = json.loads(searched.det("experiment", "rungs", str(searched.experiment), "--json"))
    assert [(rung["bracket"], rung["length"]) for rung in rungs] == [(0, 3), (0, 9), (1, 9)]
    trials = {trial["id"]: trial for trial in searched.trials(searched.experiment)}
    first, top, _ = rungs
    assert {e["trialId"] for rung in rungs for e in rung["entries"]} == trials.keys()
    qualities = [trials[entry["trialId"]]["hparams"]["quality"] for entry in first["entries"]]
    assert qualities == sorted(qualities, reverse=True), "accuracy is quality times steps: the best first"
    stopped = [entry["trialId"] for entry in first["entries"] if not entry["wentOn"]]
    assert stopped
    assert len(top["entries"]) == len(first["entries"]) - len(stopped)
    for trial_id in stopped:
        told = searched.det("trial", "why", str(trial_id)).splitlines()
        assert told[0].startswith(f"trial {trial_id} ended as COMPLETED")
        assert any(re.match(r"decision \d+: created: ", line) for line in told)
        assert any("rung 0 of bracket 0 (length 3) with accuracy" in line and "stopped" in line for line in told)
    told = searched.det("experiment", "why", str(searched.experiment)).splitlines()
    assert told[0].startswith(f"experiment {searched.experiment} ended as COMPLETED")
    assert any(line.startswith("the search is over since decision") for line in told)


def test_record_verifies_and_travels(searched: Searched, tmp_path: Path) -> None:
    path = tmp_path / "search.jsonl"
    words = ["experiment", "replay", str(searched.experiment), "--verify", "--export", str(path)]
    assert "each is what its event leads to" in searched.det(*words)
    laptop = {
        "DET_MASTER": f"http://127.0.0.1:{free_port()}",
        "DET_DEBUG_CONFIG_PATH": str(tmp_path / "nobody"),
        "PATH": "/usr/bin:/bin",
    }
    for asked in (["replay", str(path), "--verify"], ["rungs", str(path)], ["why", str(path)]):
        command = [sys.executable, "-m", "cli", "experiment", *asked]
        done = subprocess.run(command, env=laptop, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()
    text = path.read_text()
    assert '"length":9' in text
    path.write_text(text.replace('"length":9', '"length":8', 1))
    said = searched.det("experiment", "replay", path, "--verify", code=1).splitlines()
    assert [line.partition(" ")[0] for line in said] == ["decision", "recorded:", "derived:"]


def test_finished_search_is_not_edited(searched: Searched) -> None:
    said = searched.det("experiment", "edit", str(searched.experiment), "--max-trials", "9", code=1)
    assert "is over" in said


def test_fork_with_a_larger_budget_trains_nothing_again(searched: Searched) -> None:
    words = ["experiment", "fork", str(searched.experiment), "--config", "searcher.max_trials=12"]
    fork = int(searched.det(*words).split()[-1])
    searched.det("experiment", "wait", str(fork), "--polling-interval", "0.2")
    before, after = searched.trials(searched.experiment), searched.trials(fork)
    assert len(after) == 12
    assert [t["hparams"] for t in after[: len(before)]] == [t["hparams"] for t in before]
    for old, new in zip(before, after, strict=False):
        own = searched.steps(new)
        assert own == list(range(old["totalBatchesProcessed"] + 1, new["totalBatchesProcessed"] + 1))
    for new in after[len(before) :]:
        assert searched.steps(new)[0] == 1
    assert any(not searched.steps(new) for new in after), "some were stopped where they had been before"
    searched.det("experiment", "replay", str(fork), "--verify")


def test_plot_shows_the_curves(searched: Searched, tmp_path: Path) -> None:
    path = tmp_path / "search.png"
    assert searched.det("experiment", "plot", str(searched.experiment), "-o", path).strip() == str(path)
    picture = image.imread(path)[..., :3]
    coloured = (picture.max(axis=2) - picture.min(axis=2) > 0.2).sum()
    assert coloured > 500, "curves and points have colours; all else is grey"


def test_custom_search_survives_the_death_of_its_program(searched: Searched, tmp_path: Path) -> None:
    cluster = searched.cluster
    query = "SELECT {} FROM trials JOIN experiments e ON e.id = experiment_id WHERE e.name = 'custom-asha'"

    def created() -> int:
        [(count,)] = cluster.rows(query.format("count(*)"))
        return count

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, str(CUSTOM)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=cluster.environment, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True)

    first = start()
    try:
        cluster.until(lambda: created() >= 6, 60, "some trials of the custom search are there")
    finally:
        first.kill()
        first.communicate()
    assert created() < 16, "it was killed in the middle"
    second = start()
    try:
        out, err = second.communicate(timeout=90)
    finally:
        second.kill()
    assert second.returncode == 0, err
    assert "completed after 16 trials" in out
    assert "going on with experiment" in err
    [(experiment, state)] = cluster.rows("SELECT id, state FROM experiments WHERE name = 'custom-asha'")
    assert state == "COMPLETED"
    assert cluster.rows(query.format("count(*), count(DISTINCT request_id), count(DISTINCT hparams)")) == [(16, 16, 16)]
    searched.det("experiment", "replay", str(experiment), "--verify")
