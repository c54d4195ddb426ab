"""The embedded cluster with the Docker launcher: the same life of an experiment, in containers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from activities.launchers.docker import DockerLauncher, owner_of
from api.auth.authentication import client_hash
from tests.kit.embedded import Embedded
from tests.kit.registries import PASSWORD, USER, noise, registry
from tests.kit.scripts import TRAIN
from tests.kit.servers import TRIAL_IMAGE, docker_engine, trial_image

CONFIG = """
name: in docker
entrypoint: python3 train.py
hyperparameters: {sleep: 0.4}
searcher: {name: single, metric: accuracy, smaller_is_better: false, max_length: 40}
max_restarts: 0
"""


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Embedded]:
    with docker_engine():
        trial_image()
        here = {"UNDETERRED_ALLOWED_NETWORKS": "127.0.0.0/8,::1/128"}  # where our registries are
        with Embedded(tmp_path, launcher="docker", environment=here).started() as cluster:
            yield cluster


@pytest.mark.docker
def test_trial_survives_a_pause_and_a_killed_agent_in_its_container(embedded: Embedded) -> None:
    experiment_id = embedded.create(CONFIG, TRAIN)

    def steps() -> int:
        (count,) = embedded.rows("SELECT count(*) FROM metrics WHERE group_name = 'validation'")[0]
        return count

    embedded.until(lambda: steps() >= 3, 60, "three steps are reported")
    os.kill(embedded.pid("agent"), signal.SIGKILL)
    embedded.up()
    seen = steps()
    embedded.until(lambda: steps() > seen, 30, "the container reports on")
    assert embedded.det("experiment", "pause", str(experiment_id)).returncode == 0
    ended = "SELECT count(*) FROM allocations WHERE ended_at IS NOT NULL"
    embedded.until(lambda: embedded.rows(ended) == [(1,)], 60, "the container left")
    assert embedded.det("experiment", "activate", str(experiment_id)).returncode == 0
    assert embedded.det("experiment", "wait", str(experiment_id)).returncode == 0

    assert embedded.rows("SELECT state, restarts, run_id FROM trials") == [("COMPLETED", 0, 2)]
    assert embedded.rows("SELECT end_cause FROM allocations ORDER BY run_id") == [
        ("preempted",),
        ("out_of_operations",),
    ]
    lines = [line for (line,) in embedded.rows("SELECT log FROM task_logs WHERE log LIKE 'step %' ORDER BY id")]
    assert lines == [f"step {number}" for number in range(1, 41)], "in order, and each once"


SHORT = '''
"""Reports forty steps, and ends, whether anybody hears it or not."""
import time
from determined import core

with core.init() as context:
    for step in range(1, 41):
        context.train.report_validation_metrics(step, {"accuracy": step / 40})
        print(f"step {step}", flush=True)
        time.sleep(0.1)
'''


@pytest.mark.docker
def test_reports_are_there_when_the_container_ended_while_the_api_was_away(embedded: Embedded) -> None:
    """They are in the file system of a container that has ended: the agent fetches them from the engine."""
    embedded.create(
        "name: ends alone\nentrypoint: python3 train.py\nsearcher: {name: single, metric: accuracy}\n", SHORT
    )
    reported = "SELECT total_batches FROM metrics WHERE group_name = 'validation' AND archived = 0 ORDER BY id"
    embedded.until(lambda: len(embedded.rows(reported)) >= 3, 60, "three steps are reported")
    os.kill(embedded.pid("api"), signal.SIGKILL)
    log = embedded.folder / "logs" / "agent.log"
    embedded.until(lambda: "reports of an ended container wait" in log.read_text(), 60, "the container ended")
    assert 3 <= len(embedded.rows(reported)) < 40
    os.kill(embedded.pid("agent"), signal.SIGKILL)  # what it knew is gone, what the container left is not
    embedded.up()
    embedded.until(lambda: embedded.rows("SELECT state FROM experiments") == [("COMPLETED",)], 60, "it is over")
    assert embedded.rows(reported) == [(step,) for step in range(1, 41)], "in order, and each once"
    assert embedded.rows("SELECT restarts, run_id FROM trials") == [(0, 1)]
    assert embedded.rows("SELECT end_cause, exit_code FROM allocations") == [("exit_zero", 0)]


@pytest.mark.docker
def test_orphans_of_a_killed_agent_are_found_and_removed(embedded: Embedded) -> None:
    """What was made and not started, what was being pulled, what somebody else removed; and nothing of others."""
    agent_id = json.loads((embedded.folder / "cluster.json").read_text())["agent_id"]
    owner = owner_of(agent_id, embedded.folder / "agent")
    name = f"leftover-{os.getpid()}"

    def leave(container_id: str, whose: str) -> None:
        full_name = DockerLauncher(whose)._name(container_id)
        labels = {
            "agent": whose,
            "container": container_id,
            "labels": json.dumps({"ai.undeterred.allocation": "9.gone.1"}),
        }
        words = [word for key, value in labels.items() for word in ("--label", f"ai.undeterred.{key}={value}")]
        subprocess.run(["docker", "create", "--name", full_name, *words, TRIAL_IMAGE, "true"], check=True)

    def left() -> list[str]:
        line = ["docker", "ps", "-a", "--filter", f"name={name}", "--format", "{{.Names}}"]
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout.split()

    with registry() as public:
        image = public.push("team/bare:1", {"readme": b"no program"} | noise(9_000_000))
        public.rate_bytes_s = 600_000
        embedded.create(IN_A_REGISTRY.format(image=image, user=USER, password=PASSWORD), TRAIN)
        embedded.until(lambda: embedded.rows("SELECT state FROM allocations") == [("PULLING",)], 30, "it is pulled")
        os.kill(embedded.pid("agent"), signal.SIGKILL)
        try:
            leave(f"{name}-ours", owner)
            leave(f"{name}-theirs", "another@/elsewhere")
            position = embedded.folder / "agent" / "shipping" / "9.gone.1-0.json"
            position.write_text(json.dumps({"after": 1, "allocation_id": "9.gone.1", "agent_id": agent_id}))
            public.rate_bytes_s = None
            embedded.up()
            embedded.until(
                lambda: [one.rpartition("-")[2] for one in left()] == ["theirs"], 30, "what was left is removed"
            )
            embedded.until(lambda: not position.exists(), 30, "nobody looks for its output any more")
        finally:
            subprocess.run(["docker", "rm", "-f", *left()], check=True)
        embedded.until(lambda: embedded.rows("SELECT state FROM trials") == [("ERROR",)], 60, "it was pulled again")
    lines = [line for (line,) in embedded.rows("SELECT log FROM task_logs ORDER BY id")]
    assert any(line.startswith(f"pulled image {image}") for line in lines)
    assert any("has no python3 that can be executed" in line for line in lines)
    assert embedded.rows("SELECT restarts FROM trials") == [(0,)]


IN_A_REGISTRY = """
name: from a registry
entrypoint: python3 train.py
environment: {{image: "{image}", registry_auth: {{username: {user}, password: {password}}}}}
searcher: {{name: single, metric: accuracy, max_length: 40}}
max_restarts: 3
"""


@pytest.mark.docker
def test_users_see_what_becomes_of_their_image(embedded: Embedded) -> None:
    """Pulled with progress, ended while it is pulled, not there, denied, and without what starts a trial."""

    def created(image: str, password: str = PASSWORD) -> int:
        return embedded.create(IN_A_REGISTRY.format(image=image, user=USER, password=password), TRAIN)

    def lines(experiment_id: int) -> list[str]:
        return [
            line
            for (line,) in embedded.rows(
                "SELECT log FROM task_logs JOIN trials ON task_logs.task_id = trials.task_id"
                f" WHERE trials.experiment_id = {experiment_id} ORDER BY task_logs.id"
            )
        ]

    def end(experiment_id: int) -> tuple[str, int, str]:
        query = f"SELECT state, restarts, id FROM trials WHERE experiment_id = {experiment_id}"
        embedded.until(lambda: embedded.rows(query)[0][0] in ("ERROR", "CANCELED"), 60, "the trial ended")
        state, restarts, trial_id = embedded.rows(query)[0]
        return state, restarts, embedded.det("trial", "why", str(trial_id)).stdout

    with registry(asks_for_login=True) as private:
        bare = private.push("team/bare:1", {"readme": b"no program"} | noise(9_000_000))
        private.rate_bytes_s = 600_000
        killed = created(bare)
        state = f"SELECT a.state FROM allocations a JOIN trials t ON a.trial_id = t.id WHERE t.experiment_id = {killed}"
        embedded.until(lambda: embedded.rows(state) == [("PULLING",)], 30, "its image is pulled")
        assert "PULLING" in embedded.det("experiment", "list-trials", str(killed)).stdout
        embedded.until(lambda: any("% of 9 MB" in line for line in lines(killed)), 30, "its progress is told")
        began = time.monotonic()
        assert embedded.det("experiment", "kill", str(killed)).returncode == 0
        assert end(killed)[0] == "CANCELED"
        assert time.monotonic() - began < 8, "the rest would have taken as long"
        private.rate_bytes_s = None

        for image, password, words in (
            (f"{private.address}/team/none:1", PASSWORD, "is not in"),
            (bare, "wrong", "does not give it to us"),
            (bare, PASSWORD, "has no python3 that can be executed"),
        ):
            experiment_id = created(image, password)
            state, restarts, why = end(experiment_id)
            assert (state, restarts) == ("ERROR", 0), "another try would find the same"
            assert words in " ".join(why.split())
            assert any(words in line for line in lines(experiment_id)), lines(experiment_id)
            assert any(line == f"pulling image {image}" for line in lines(experiment_id))

    assert PASSWORD not in embedded.det("experiment", "config", str(killed)).stdout
    kept = [path for path in embedded.folder.rglob("*") if path.is_file() and path.name != "undeterred.db"]
    holders = [path for path in kept if PASSWORD.encode() in path.read_bytes() and "undeterred.db" not in path.name]
    assert [path for path in holders if path.name != "config.yaml"] == [], "it is in no log, history or folder"


SERVES = (
    "import http.server as h; h.ThreadingHTTPServer(('127.0.0.1', 8501), h.SimpleHTTPRequestHandler).serve_forever()"
)


@pytest.mark.docker
def test_a_port_in_a_container_is_reached_through_the_server(embedded: Embedded) -> None:
    """Its network has no way in: the container connects out."""
    config = "environment: {proxy_ports: [{proxy_port: 8501}]}\nresources: {slots: 0}\n"
    (embedded.folder / "serves.yaml").write_text(config)
    run = embedded.det(
        "command", "run", "-d", "--config-file", str(embedded.folder / "serves.yaml"), "python3", "-c", SERVES
    )
    assert run.returncode == 0, run.stderr
    task_id = run.stdout.strip()
    address = f"{embedded.environment['DET_MASTER']}/proxy/{task_id}:8501/nothing"
    login = {"username": "admin", "password": client_hash("correct horse"), "isHashed": True}
    with httpx.Client() as http:
        token = http.post(f"{embedded.environment['DET_MASTER']}/api/v1/auth/login", json=login).json()["token"]
        http.headers["Authorization"] = f"Bearer {token}"
        embedded.until(lambda: "Nothing matches" in http.get(address).text, 60, "the container's server answers")
