"""What Determined's code relied on and never checked (seed 003, "Hidden Assumptions"): one test for each of the ten.

They break in ways that confuse people: an error far from its cause, a process that dies, a wrong result. Here each is
said where it is first known, by a sentence that names it, or does no harm.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import delete

from database.models import Agent
from database.session import Database
from determined import errors
from determined._info import read_cluster_info
from tests.kit import servers
from tests.kit.embedded import Embedded

CONFIG = """
name: assumptions
entrypoint: python3 train.py
searcher: {name: single, metric: loss, max_length: {batches: 1}}
max_restarts: 0
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    with Embedded(tmp_path_factory.mktemp("assumptions")).started() as cluster:
        yield cluster


def test_user_code_can_be_imported(cluster: Embedded) -> None:
    experiment = cluster.create(CONFIG, "import helpers_that_were_not_sent\n")
    done = cluster.det("experiment", "wait", str(experiment), "--polling-interval", "0.2")
    assert "ERROR" in done.stdout + done.stderr
    ((trial,),) = cluster.rows(f"SELECT id FROM trials WHERE experiment_id = {experiment}")
    why = cluster.det("trial", "why", str(trial)).stdout
    assert "No module named 'helpers_that_were_not_sent'" in why


@pytest.mark.parametrize(
    ("section", "text", "message"),
    [
        ("searcher", "", "searcher"),
        ("resources", "resources: 3\n", "resources"),
        ("hyperparameters", "hyperparameters: [1]\n", "hyperparameters"),
    ],
)
def test_configuration_has_its_sections(
    cluster: Embedded, tmp_path: Path, section: str, text: str, message: str
) -> None:
    lines = [line for line in CONFIG.strip().splitlines() if not line.startswith(section)]
    (tmp_path / "c.yaml").write_text("\n".join(lines) + "\n" + text)
    done = cluster.det("experiment", "create", str(tmp_path / "c.yaml"), str(tmp_path))
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    _write_info(tmp_path / "info", config={"searcher": {}, "resources": {}, "checkpoint_storage": {}, section: None})
    if section != "hyperparameters":  # which a trial gets beside it
        with pytest.raises(errors.InvalidConfigurationException, match=rf"trial\.json: .* lacks {section}"):
            read_cluster_info(str(tmp_path / "info"))


def test_login_stays_valid_for_the_whole_session(cluster: Embedded, tmp_path: Path) -> None:
    """A session of someone who logged out elsewhere ends with what to do; a trial's own rights are not touched."""
    script = (
        "import time\nfrom determined import core\nwith core.init() as c:\n    open('up', 'w')\n    time.sleep(6)\n"
    )
    script += "    c.train.report_validation_metrics(1, {'loss': 1.0})\n"
    own = tmp_path / "config"
    environment = cluster.environment | {"DET_DEBUG_CONFIG_PATH": str(own), "PYTHONPATH": str(servers.REPOSITORY)}
    det = [sys.executable, "-m", "cli"]

    def run(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*det, *words], env=environment, input=stdin, capture_output=True, text=True, timeout=60, check=False
        )

    assert run("user", "login", "admin", stdin="correct horse\n").returncode == 0
    experiment = cluster.create(CONFIG, script)
    stale = tmp_path / "stale"
    shutil.copytree(own, stale)
    assert run("user", "logout").returncode == 0
    environment["DET_DEBUG_CONFIG_PATH"] = str(stale)
    done = run("experiment", "list")
    assert done.returncode == 3
    assert "log in" in done.stderr
    assert "Traceback" not in done.stderr
    done = cluster.det("experiment", "wait", str(experiment), "--polling-interval", "0.2")
    assert "COMPLETED" in done.stdout + done.stderr


def test_list_of_agents_is_short(cluster: Embedded) -> None:
    """Hundreds of agents: the list is JSON, whole, and there before anybody gives up."""
    records = Database(f"sqlite:///{cluster.folder / 'undeterred.db'}")
    with records.write() as session:
        session.add_all(
            Agent(id=f"host-{n:04}", pool="default", slot_ids=list(range(8)), is_connected=True) for n in range(500)
        )
    began = time.monotonic()
    done = cluster.det("agent", "list", "--json")
    took_s = time.monotonic() - began
    with records.write() as session:
        session.execute(delete(Agent).where(Agent.id.startswith("host-")))
    records.close()
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == 501
    assert took_s < 20


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x89PNG\r\n\x1a\n\x00\xff\xfe", "not UTF-8|not YAML|can't be read"),
        (b"name: [1, 2\nentrypoint: }", r"c\.yaml:2:11: expected"),
        (b"", "empty"),
    ],
)
def test_input_is_yaml(cluster: Embedded, tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "c.yaml").write_bytes(content)
    done = cluster.det("experiment", "create", str(tmp_path / "c.yaml"), str(tmp_path))
    assert done.returncode == 1
    assert re.search(message, done.stderr), done.stderr
    assert "Traceback" not in done.stderr


def test_checkpoint_is_of_the_last_step(cluster: Embedded) -> None:
    """A crash between a step and its checkpoint: the step is trained again, from the very state before it.

    With PyTorch, bit for bit: `test_pytorch_example.py`.
    """
    script = """
import json, os, random, determined as det
from determined import core
info = det.get_cluster_info()
random.seed(1)
step, total = 0, 0.0
with core.init() as c:
    if info.latest_checkpoint:
        with c.checkpoint.restore_path(info.latest_checkpoint) as path:
            step, total, state = json.loads((path / "state").read_text())
            random.setstate((state[0], tuple(state[1]), state[2]))
    while step < 6:
        step, total = step + 1, total + random.random()
        if step == 4 and info.trial._trial_run_id == 1:
            os.kill(os.getpid(), 9)
        with c.checkpoint.store_path({"steps_completed": step}) as (path, _):
            (path / "state").write_text(json.dumps([step, total, random.getstate()]))
    c.train.report_validation_metrics(step, {"loss": total})
"""
    import random

    undisturbed = random.Random(1)
    experiment = cluster.create(CONFIG.replace("max_restarts: 0", "max_restarts: 1"), script)
    done = cluster.det("experiment", "wait", str(experiment), "--polling-interval", "0.2")
    assert "COMPLETED" in done.stdout + done.stderr
    ((loss, restarts),) = cluster.rows(
        "SELECT metrics.searcher_metric, restarts FROM metrics JOIN trials ON trials.id = trial_id "
        f"WHERE experiment_id = {experiment} AND group_name = 'validation'"
    )
    assert restarts == 1
    expected = 0.0
    for _ in range(6):
        expected += undisturbed.random()
    assert loss == expected


def test_slots_are_the_devices(tmp_path: Path) -> None:
    """Slots that don't agree with the rendezvous are named; with the GPUs: `harness/tests/test_launch.py`."""
    _write_info(tmp_path, slot_ids=[0, 1], counts=[4])
    with pytest.raises(errors.InvalidConfigurationException, match=r"says 4 slots .* has 2: \[0, 1\]"):
        read_cluster_info(str(tmp_path))


def test_files_fit_into_memory(cluster: Embedded, tmp_path: Path) -> None:
    """What is larger than the cluster takes is refused before it is read: a terabyte takes an hour to read."""
    with (tmp_path / "generated.py").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "c.yaml").write_text(CONFIG)
    done = cluster.det("experiment", "create", str(tmp_path / "c.yaml"), str(tmp_path))
    assert done.returncode == 1
    assert "this cluster takes 4096 MiB" in done.stderr
    assert "generated.py" in done.stderr
    assert "Traceback" not in done.stderr


def test_command_line_has_a_program_name() -> None:
    code = "import sys; sys.argv[:] = []; from cli.main import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "experiment" in done.stdout
    assert "Traceback" not in done.stderr


def test_what_measures_it_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Benchmarks and tests without their PostgreSQL: a sentence says what to install, and nothing is left behind."""
    monkeypatch.setattr(servers.shutil, "which", lambda name: None)
    monkeypatch.setattr(servers.Path, "glob", lambda self, pattern: iter(()))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with (
        pytest.raises(RuntimeError, match=r"need the program 'initdb'.*apt-get install postgresql"),
        servers.postgres_server(),
    ):
        pass
    assert os.listdir(tmp_path) == []


def _write_info(
    folder: Path,
    *,
    slot_ids: list[int] | None = None,
    counts: list[int] | None = None,
    config: dict[str, object] | None = None,
) -> None:
    folder.mkdir(exist_ok=True)
    names = ("master_url", "cluster_id", "agent_id", "task_id", "allocation_id", "session_token")
    cluster = dict.fromkeys(names, "x") | {"slot_ids": slot_ids or [0], "task_type": "TRIAL"}
    trial = dict.fromkeys(("trial_id", "experiment_id", "trial_seed", "steps_completed", "trial_run_id"), 1)
    sections = config or {"searcher": {}, "resources": {}, "checkpoint_storage": {}}
    content = {
        "cluster.json": cluster,
        "trial.json": {**trial, "hparams": {}, "config": sections, "debug": False},
        "rendezvous.json": {
            "container_addrs": ["127.0.0.1"],
            "container_rank": 0,
            "container_slot_counts": counts or [1],
        },
    }
    for name, values in content.items():
        (folder / name).write_text(json.dumps(values))
