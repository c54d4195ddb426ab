"""The interpreter that trials run in: which it is, who says so, and that what a trial installs stays the trial's."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.embedded import Embedded
from tests.kit.servers import REPOSITORY

TRIAL_PYTHON = REPOSITORY / ".venv-trial" / "bin" / "python"
CONFIG = """
name: layers
entrypoint: python3 train.py
hyperparameters: {}
searcher: {name: single, metric: accuracy, max_length: 1}
max_restarts: 5
"""
# Says what it sees of its environment, and stays until all of them have said it.
SCRIPT = """
import json, os, shutil, sys, time
import layered, sklearn
from determined import core
seen = {name: os.environ.get(name) for name in ("PATH", "VIRTUAL_ENV", "PYTHONPATH", "HOME")}
print("SEEN " + json.dumps(seen | {"version": layered.VERSION, "file": layered.__file__, "pip": shutil.which("pip"),
                                   "prefix": sys.prefix, "sklearn": sklearn.__file__}), flush=True)
with core.init() as context:
    for op in context.searcher.operations():
        context.train.report_validation_metrics(1, {"accuracy": 1.0})
        op.report_completed(1.0)
"""


def wheel(folder: Path, version: str) -> Path:
    """A package that pip installs without any network."""
    path = folder / f"layered-{version}-py3-none-any.whl"
    info = f"layered-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("layered.py", f"VERSION = {version!r}\n")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: layered\nVersion: {version}\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", f"layered.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path


def created(cluster: Embedded, folder: Path) -> int:
    (folder / "config.yaml").write_text(CONFIG)
    return cluster.submit(folder / "config.yaml", folder)


def logs(cluster: Embedded, experiment: int) -> list[str]:
    task = f"(SELECT task_id FROM trials WHERE experiment_id = {experiment})"
    return [line for (line,) in cluster.rows(f"SELECT log FROM task_logs WHERE task_id = {task} ORDER BY id")]


def has_layered(python: str | Path) -> bool:
    code = "import importlib.util as u; print(bool(u.find_spec('layered')))"
    return subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    """Started by a shell that has the cluster's own environment activated, and names no Python for trials."""
    cluster = Embedded(tmp_path_factory.mktemp("layers"))
    del cluster.environment["UNDETERRED_TRIAL_PYTHON"]
    own = REPOSITORY / ".venv"
    cluster.environment["UNDETERRED_TIMING"] = json.dumps({"restart_backoff_s": 0.1})
    cluster.environment |= {"VIRTUAL_ENV": str(own), "PATH": f"{own}/bin:{cluster.environment['PATH']}"}
    with cluster.started():
        yield cluster


def test_what_a_startup_hook_installs_is_its_trials_alone(cluster: Embedded, tmp_path: Path) -> None:
    experiments: dict[str, int] = {}
    for version, installs in (("1.0", "pip"), ("2.0", "python3 -m pip")):
        folder = tmp_path / version
        folder.mkdir()
        name = wheel(folder, version).name
        (folder / "train.py").write_text(SCRIPT)
        (folder / "startup-hook.sh").write_text(f"{installs} install --quiet --no-index ./{name}\n")
        experiments[version] = created(cluster, folder)
    for version, experiment in experiments.items():
        assert cluster.det("experiment", "wait", str(experiment)).returncode == 0, logs(cluster, experiment)
        seen = json.loads(next(line for line in logs(cluster, experiment) if line.startswith("SEEN "))[5:])
        assert seen["version"] == version
        container = str(cluster.folder / "agent" / "containers")
        for name in ("VIRTUAL_ENV", "HOME", "file", "pip", "prefix"):
            assert seen[name].startswith(container), f"{name}: {seen[name]}"
        assert seen["sklearn"].startswith(str(TRIAL_PYTHON.parents[1])), "what is below the layer is seen through it"
        assert seen["PYTHONPATH"] is None
        assert str(REPOSITORY / ".venv" / "bin") not in seen["PATH"].split(":")
    assert not has_layered(TRIAL_PYTHON)
    assert not has_layered(sys.executable)


def test_trial_whose_import_fails_twice_stops_and_says_what_to_install(cluster: Embedded, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import skimage\n")
    experiment = created(cluster, tmp_path)
    cluster.det("experiment", "wait", str(experiment))
    [(state, restarts, message)] = cluster.rows(
        f"SELECT state, restarts, message FROM trials WHERE experiment_id = {experiment}"
    )
    assert (state, restarts) == ("ERROR", 1)
    assert message.startswith(
        "not restarted, as it failed in this way 2 times in a row: exited with code 1: ModuleNotFoundError: No module "
        f"named 'skimage'; its Python is {TRIAL_PYTHON}: `{TRIAL_PYTHON} -m pip install scikit-image`, or put"
    )
    assert message in logs(cluster, experiment)[-1].replace("Not restarted", "not restarted")


def test_python_of_trials_is_the_one_beside_the_installation_and_shown(cluster: Embedded) -> None:
    shown = f"run as processes, in {TRIAL_PYTHON}"
    assert json.loads((cluster.folder / "cluster.json").read_text())["trial_python"] == str(TRIAL_PYTHON)
    assert shown in cluster.run("up").stdout
    assert shown in cluster.run("status").stdout
    found = cluster.det("doctor").stdout
    assert re.search(rf"ok +trials +{re.escape(shown)} \(Python 3.* with undeterred-harness", found), found


def test_modules_of_the_folder_where_det_is_typed_are_not_ours(cluster: Embedded, tmp_path: Path) -> None:
    (tmp_path / "workers.py").write_text("raise SystemExit('not the cluster')")
    det = REPOSITORY / ".venv" / "bin" / "det"
    done = subprocess.run(
        [det, "status"], cwd=tmp_path, env=cluster.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_another_python_restarts_the_agent_and_what_can_not_change_is_refused(cluster: Embedded) -> None:
    before = cluster.pid("agent")
    cluster.environment["UNDETERRED_TRIAL_PYTHON"] = "/no/such/python"
    done = cluster.run("up")
    assert (done.returncode, cluster.pid("agent")) == (1, before)
    assert done.stderr.startswith("UNDETERRED_TRIAL_PYTHON: '/no/such/python': expected a Python")
    cluster.environment["UNDETERRED_TRIAL_PYTHON"] = sys.executable
    done = cluster.run("up")
    assert "the agent is started again" in done.stdout, done.stderr
    assert cluster.pid("agent") != before
    del cluster.environment["UNDETERRED_TRIAL_PYTHON"]
    assert f"in {sys.executable}" in cluster.run("up").stdout, "it is remembered"
    for option, value, known in (("--slots", "3", "2"), ("--launcher", "docker", "process")):
        done = cluster.run("up", option, value)
        assert done.returncode == 1
        assert f"{option[2:]}: the cluster runs with {known}: `det down` first, to change it to {value}" in done.stderr
