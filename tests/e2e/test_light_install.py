"""`pip install undeterred` as a user does it: from wheels, without the server's libraries, in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kit.releases import sources, uv, wheels
from tests.kit.servers import REPOSITORY
from tests.unit.cli.test_search import Story
from tests.unit.cli.test_simulate import TRACE

#: What `det up` needs, and nobody who only calls a cluster does.
OF_SERVERS = {
    *("temporalio", "grpcio", "protobuf", "fastapi", "starlette", "uvicorn", "uvloop", "sqlalchemy", "alembic"),
    *("psycopg", "psycopg-binary", "docker", "structlog", "orjson", "argon2-cffi", "boto3", "azure-storage-blob"),
    "google-cloud-storage",
}
CONFIG = """
name: light
entrypoint: python3 train.py
hyperparameters:
  rate: {type: log, base: 10, minval: -4, maxval: -1}
searcher: {name: adaptive_asha, metric: accuracy, smaller_is_better: false, max_length: {batches: 64}, max_trials: 8}
log_policies: [{pattern: "out of memory", action: {type: cancel_retries}}]
"""
INSTALL = "pip install 'undeterred[server]'\n"


@dataclass(frozen=True)
class Installed:
    """A virtual environment, and what runs in it: far from the repository, without its PYTHONPATH."""

    folder: Path
    work: Path

    def __call__(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "SSL_CERT_FILE") if name in os.environ}
        environment = kept | {"HOME": str(self.work), "DET_MASTER": "http://127.0.0.1:1", "DET_USER_TOKEN": "t"}
        line = [str(self.folder / "bin" / program), *words]
        return subprocess.run(line, cwd=self.work, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """What `pip install undeterred` makes, in the versions of constraints.txt."""
    folder = tmp_path_factory.mktemp("light")
    uv("venv", "--quiet", "--python", sys.executable, folder / "venv")
    python = folder / "venv" / "bin" / "python"
    uv(
        "pip",
        "install",
        "--quiet",
        "--python",
        python,
        "-c",
        REPOSITORY / "constraints.txt",
        *wheels(sources(folder / "source"), folder / "wheels"),
    )
    (folder / "work").mkdir()
    return Installed(folder / "venv", folder / "work")


def test_no_library_of_the_server_comes_along(light: Installed) -> None:
    code = "import json, importlib.metadata as m; print(json.dumps([d.name.lower() for d in m.distributions()]))"
    names = set(json.loads(light("python", "-c", code).stdout))
    assert not names & OF_SERVERS
    assert len(names) <= 32, sorted(names)


def test_det_plans_and_checks_without_a_cluster(light: Installed) -> None:
    (light.work / "config.yaml").write_text(CONFIG)
    page = light("det", "--help")
    assert (page.returncode, page.stderr) == (0, "")
    assert "experiment" in page.stdout
    for words in (["preview-search", "config.yaml"], ["experiment", "plan", "config.yaml"]):
        plan = light("det", *words)
        assert (plan.returncode, plan.stderr) == (0, ""), words
        assert "64" in plan.stdout


def test_det_replays_a_search_and_a_pool_without_a_cluster(light: Installed) -> None:
    (light.work / "search.jsonl").write_text(Story().run().text("COMPLETED"))
    verified = light("det", "experiment", "replay", "search.jsonl", "--verify")
    assert verified.returncode == 0, verified.stderr
    assert "each is what its event leads to, byte for byte" in verified.stdout
    (light.work / "trace.yaml").write_text(json.dumps(TRACE))
    simulated = light("det", "dev", "simulate-pool", "trace.yaml")
    assert simulated.returncode == 0, simulated.stderr
    assert "32 slots, 3 jobs" in simulated.stdout


def test_the_sdk_imports_and_says_that_there_is_no_cluster(light: Installed) -> None:
    code = "import determined as det; from determined import core; from determined.experimental import client; "
    done = light("python", "-c", code + "client.login('http://127.0.0.1:1', 'ada', 'x')")
    assert "MasterNotFoundException: can't reach the master" in done.stderr
    done = light("det", "experiment", "list")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("can't reach the master at http://127.0.0.1:1")


@pytest.mark.parametrize(
    "words",
    [["up"], ["down"], ["status"], ["deploy", "local", "cluster-up"], ["deploy", "reset-password"], ["agent", "run"]],
)
def test_what_runs_a_cluster_says_what_to_install(light: Installed, words: list[str]) -> None:
    done = light("det", *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith("needs the server's libraries, and temporalio is not installed: " + INSTALL)


@pytest.mark.parametrize("name", ["api", "orchestrator", "agent", "gateway"])
def test_so_do_its_processes(light: Installed, name: str) -> None:
    done = light(f"undeterred-{name}")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"undeterred-{name} needs the server's libraries, and ")
    assert done.stderr.endswith(f" is not installed: {INSTALL}")


def test_doctor_says_that_it_cannot_look_into_the_cluster(light: Installed) -> None:
    folder = light.work / ".local" / "share" / "undeterred"
    folder.mkdir(parents=True)
    (folder / "cluster.json").write_text("{}")
    finding = next(one for one in json.loads(light("det", "doctor", "--json").stdout) if one["name"] == "inside")
    assert finding["status"] == "warning"
    assert "temporalio is not installed" in finding["message"]
    assert INSTALL.strip() in finding["fix"]
