"""`det` and the SDK where there is no POSIX: nothing that Windows or macOS lacks is imported, and both still work."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from cli import keys
from cli.commands import ENTRIES
from tests.kit.servers import REPOSITORY
from tests.unit.cli.conftest import Cluster
from tests.unit.cli.test_experiment import experiment, page

PRETEND = Path(__file__).with_name("as_windows.py")
CONFIG = """
name: elsewhere
entrypoint: python3 train.py
hyperparameters: {rate: {type: log, base: 10, minval: -4, maxval: -1}}
searcher: {name: adaptive_asha, metric: accuracy, smaller_is_better: false, max_length: {batches: 64}, max_trials: 8}
"""
#: Imports every module, but for what is of later releases and what a container's own entrypoint does at import. The
#: libraries of others, which have wheels of their own for each system, count as not installed.
IMPORT_ALL = """
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys(["accelerate", "keras", "lightning", "mcp", "torch", "transformers"]))
import cli, determined, workflows.config, workflows.lifecycle, workflows.scheduling, workflows.searchers
problems = []
for package in (cli, determined, workflows.config, workflows.lifecycle, workflows.scheduling, workflows.searchers):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".", onerror=lambda name: None):
        try:
            importlib.import_module(module.name)
        except Exception as error:
            said = ("is not in this harness", "pip install 'undeterred-harness[")
            lacks = (getattr(error, "name", None) or "").partition(".")[0]
            if lacks not in ("torch", "mcp") and not any(words in str(error) for words in said):
                problems.append(f"{module.name}: {type(error).__name__}: {error}")
print("\\n".join(problems))
"""
#: Core API off any cluster, with a checkpoint.
TRAIN = """
import pathlib
from determined import core
with core.init() as context:
    context.train.report_training_metrics(1, {"loss": 0.5})
    with context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
        (path / "weights").write_text("w")
    with context.checkpoint.restore_path(uuid) as restored:
        print((pathlib.Path(restored) / "weights").read_text())
"""
#: The SDK against a cluster.
SDK = """
from determined.experimental import client
client.login(user="ada", password="x")
print([each.id for each in client.list_experiments()])
made = client.create_experiment(config="config.yaml", model_dir="model")
print(made.id)
"""
#: A spool: written, read and delivered, and gone in the end.
SPOOL = """
import os, sys
from determined.core._spool import Spool, spool_folder
folder, _ = spool_folder()
spool = Spool(folder)
spool.append("metrics", [b'{"a":1}', b'{"b":2}'])
print(spool.read(10, 1000))
spool.advance(1)
print(spool.read(10, 1000)[1], spool.waiting)
spool.advance(1)
spool.close()
print(os.listdir(folder))
"""

Elsewhere = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(params=["windows", "macos"])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Elsewhere:
    """Runs `det` or a program in a process that looks like that system."""

    def run(*words: str, program: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        if program:
            (tmp_path / "program.py").write_text(program)
        line = [sys.executable, str(PRETEND), *(["program.py"] if program else ["det"]), *words]
        path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "harness")])
        environment = (
            os.environ | {"UNDETERRED_AS": request.param, "PYTHONPATH": path, "HOME": str(tmp_path)} | variables
        )
        return subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    return run


def test_all_of_it_imports(elsewhere: Elsewhere) -> None:
    done = elsewhere(program=IMPORT_ALL)
    assert (done.stdout.strip(), done.returncode) == ("", 0), done.stderr


def test_help_and_plans(elsewhere: Elsewhere, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    done = elsewhere("--help")
    assert done.returncode == 0, done.stderr
    assert all(entry.shown in done.stdout for entry in ENTRIES)
    done = elsewhere("preview-search", "config.yaml")
    assert (done.returncode, done.stderr) == (0, "")


def test_commands_against_a_cluster(elsewhere: Elsewhere, cluster: Cluster, tmp_path: Path) -> None:
    cluster.routes["GET /api/v1/experiments"] = page("experiments", experiment())
    done = elsewhere("experiment", "list")
    assert done.returncode == 0, done.stderr
    assert "mnist" in done.stdout
    done = elsewhere("user", "login", "ada", DET_PASS="x")
    assert done.returncode == 0, done.stderr
    done = elsewhere("user", "whoami", DET_USER_TOKEN="")
    assert "ada" in done.stdout, "the token was kept"
    assert elsewhere("doctor", "--json").stdout.startswith("[")
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "model" / "deep").mkdir(parents=True)
    (tmp_path / "model" / "deep" / "train.py").write_text("pass")
    cluster.routes["POST /api/v1/experiments"] = {"experiment": experiment(), "config": {}}
    done = elsewhere("experiment", "create", "config.yaml", "model")
    assert done.returncode == 0, done.stderr
    sent = cluster.body_of("POST /api/v1/experiments")["modelDefinition"]
    assert [file["path"] for file in sent] == ["deep", "deep/train.py"], "with forward slashes everywhere"


def test_the_sdk_against_a_cluster(elsewhere: Elsewhere, cluster: Cluster, tmp_path: Path) -> None:
    cluster.routes["GET /api/v1/experiments"] = page("experiments", experiment())
    cluster.routes["POST /api/v1/experiments"] = {"experiment": experiment(), "config": {}}
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "model").mkdir()
    done = elsewhere(program=SDK)
    assert (done.returncode, done.stdout.split("\n")[:2]) == (0, ["[7]", "7"]), done.stderr


def test_the_core_api_off_a_cluster(elsewhere: Elsewhere) -> None:
    done = elsewhere(program=TRAIN)
    assert (done.returncode, done.stdout) == (0, "w\n"), done.stderr


def test_reports_wait_on_disk(elsewhere: Elsewhere) -> None:
    done = elsewhere(program=SPOOL)
    expected = ["('metrics', [b'{\"a\":1}', b'{\"b\":2}'])", "[b'{\"b\":2}'] 1", "[]"]
    assert done.stdout.splitlines() == expected, done.stderr


@pytest.mark.parametrize("elsewhere", ["windows"], indirect=True)
def test_a_cluster_is_run_elsewhere(elsewhere: Elsewhere) -> None:
    done = elsewhere("up")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("`det up` runs on Linux only: run it in WSL")


def test_keys_of_a_console_without_termios(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = list("q")
    console = type("Console", (), {"kbhit": lambda: bool(waiting), "getwch": waiting.pop})
    monkeypatch.setitem(sys.modules, "msvcrt", cast("Any", console))
    assert keys._console_key(5.0) == "q"
    assert keys._console_key(0.01) == ""
