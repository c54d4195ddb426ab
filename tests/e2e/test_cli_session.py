"""What a person does at a terminal, on a real cluster: create and watch, follow a log over a restart of the API, ask the
doctor, complete ids, bring another cluster over.

All tests share one cluster.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.importing.conftest import DUMP
from tests.kit.embedded import Embedded
from tests.kit.scripts import TRAIN

CONFIG = """
name: watched
entrypoint: python3 train.py
hyperparameters: {{quality: 0.5, sleep: {sleep}}}
searcher: {{name: single, metric: accuracy, smaller_is_better: false, max_length: {{batches: {length}}}}}
max_restarts: 0
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    with Embedded(tmp_path_factory.mktemp("session")).started() as cluster:
        yield cluster


def files(cluster: Embedded, *, sleep: float, length: int) -> tuple[str, str]:
    """A configuration and a folder to create an experiment from."""
    model = cluster.folder / "model"
    model.mkdir(exist_ok=True)
    (model / "train.py").write_text(TRAIN)
    path = cluster.folder / "config.yaml"
    path.write_text(CONFIG.format(sleep=sleep, length=length))
    return str(path), str(model)


def steps(text: str) -> list[int]:
    return [int(line.split()[-1]) for line in text.splitlines() if "|| step " in line]


def test_over_a_pipe_f_prints_the_first_trials_log(cluster: Embedded) -> None:
    done = cluster.det("experiment", "create", *files(cluster, sleep=0, length=3), "-f")
    assert done.returncode == 0, done.stderr
    assert steps(done.stdout) == [1, 2, 3]
    assert "1 file(s)" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_over_a_pipe_follow_prints_what_changes(cluster: Embedded) -> None:
    done = cluster.det("experiment", "create", *files(cluster, sleep=0, length=3), "--follow")
    assert done.returncode == 0, done.stderr
    assert ": COMPLETED after " in done.stdout
    assert "\x1b" not in done.stdout


def test_a_log_is_followed_over_a_restart_of_the_api(cluster: Embedded) -> None:
    words = ["experiment", "create", *files(cluster, sleep=0.2, length=25)]
    experiment = cluster.det(*words).stdout.split()[-1]
    command = [sys.executable, "-m", "cli", "experiment", "logs", "-f", experiment]
    log = cluster.folder / "followed"
    with log.open("w") as out, (cluster.folder / "said").open("w") as said:
        follower = subprocess.Popen(command, env=cluster.environment, stdout=out, stderr=said)
        try:
            cluster.until(lambda: len(steps(log.read_text())) >= 3, 30, "three steps were printed")
            os.kill(cluster.pid("api"), signal.SIGKILL)
            cluster.until(lambda: "does not answer" in (cluster.folder / "said").read_text(), 30, "it was noticed")
            cluster.up()
            assert follower.wait(60) == 0
        finally:
            follower.kill()
            follower.wait()
    assert steps(log.read_text()) == list(range(1, 26))
    assert (cluster.folder / "said").read_text().count("does not answer") == 1


def test_a_large_folder_goes_on_after_the_api_was_killed_and_reaches_the_trial(cluster: Embedded) -> None:
    config, model = files(cluster, sleep=0, length=1)
    weights = random.Random(3).randbytes(64 << 20)
    (Path(model) / "weights.bin").write_bytes(weights)
    with (Path(model) / "train.py").open("a") as script:
        script.write("import hashlib\nprint('sha', hashlib.sha256(open('weights.bin', 'rb').read()).hexdigest())\n")
    command = [sys.executable, "-m", "cli", "experiment", "create", config, model, "-f"]
    creating = subprocess.Popen(
        command, env=cluster.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )

    def stored() -> int:
        return cluster.rows("SELECT count(*) FROM context_chunks")[0][0]

    try:
        cluster.until(lambda: stored() >= 2, 60, "two chunks were stored")
        os.kill(cluster.pid("api"), signal.SIGKILL)
        assert stored() < 16, "it was in the middle"
        cluster.up()
        out, err = creating.communicate(timeout=120)
    finally:
        creating.kill()
        creating.wait()
        (Path(model) / "weights.bin").unlink()
    assert creating.returncode == 0, err
    assert f"sha {hashlib.sha256(weights).hexdigest()}" in out


def test_what_is_wrong_is_said_before_anything_is_sent(cluster: Embedded) -> None:
    config, model = files(cluster, sleep=0, length=3)
    Path(config).write_text(Path(config).read_text().replace("max_restarts", "max_restart"))
    before = json.loads(cluster.det("experiment", "list", "--json").stdout)
    done = cluster.det("experiment", "create", config, model)
    assert done.returncode == 1
    assert f'{config}:6:1: additionalProperties "max_restart" not allowed (did you mean "max_restarts"?)' in done.stderr
    assert len(json.loads(cluster.det("experiment", "list", "--json").stdout)) == len(before)


def test_the_doctor_finds_a_part_that_is_gone(cluster: Embedded) -> None:
    well = cluster.det("doctor", "--json")
    found = {finding["name"]: finding for finding in json.loads(well.stdout)}
    assert well.returncode == 0, well.stdout
    assert [found[name]["status"] for name in ("embedded", "temporal", "database", "storage", "api", "agents")] == [
        "ok"
    ] * 6
    os.kill(cluster.pid("orchestrator"), signal.SIGKILL)
    try:
        ill = cluster.det("doctor")
        assert ill.returncode == 1
        assert "orchestrator of the cluster in" in ill.stdout
        assert "to do: start it again with `det up`" in ill.stdout
    finally:
        cluster.up()


def test_ids_are_completed(cluster: Embedded) -> None:
    experiment = cluster.det("experiment", "create", *files(cluster, sleep=0, length=1)).stdout.split()[-1]
    cluster.environment["XDG_CACHE_HOME"] = str(cluster.folder / "cache")
    done = cluster.det("__complete", "zsh", "experiment", "describe", "")
    assert any(line.startswith(f"{experiment}\t") for line in done.stdout.splitlines())
    trials = cluster.det("__complete", "bash", "det trial logs ").stdout.splitlines()
    assert trials
    assert all(line.split("\t")[0].isdigit() for line in trials)


def test_a_dump_of_another_cluster_comes_over(cluster: Embedded) -> None:
    config, model = files(cluster, sleep=0, length=1)
    taken = int(cluster.det("experiment", "create", config, model).stdout.split()[-1])
    refused = cluster.det("import", "run", "--from", str(DUMP))
    assert refused.returncode != 0
    assert "`--shift` moves all numbers of what comes" in refused.stderr
    planned = cluster.det("import", "plan", "--from", str(DUMP), "--shift")
    assert planned.returncode == 0, planned.stderr
    assert "COMPLETED" in planned.stdout
    done = cluster.det("import", "run", "--from", str(DUMP), "--shift")
    assert done.returncode == 0, done.stderr
    by = int(re.search(r"experiments by (\d+)", done.stdout)[1])  # pyright: ignore[reportOptionalSubscript]
    assert by >= taken
    verified = cluster.det("import", "verify", "--from", str(DUMP), "--shift")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    described = cluster.det("experiment", "describe", str(5 + by), "--json")
    assert json.loads(described.stdout)[0]["experiment"]["name"] == "search-24", described.stdout
    listed = json.loads(cluster.det("import", "list", "--json").stdout)
    assert [each["mode"] for each in listed] == ["VERIFY", "RUN", "PLAN", "RUN"]
    assert cluster.rows("SELECT count(*) FROM imports WHERE source != ''") == [(0,)], "no address stays"
