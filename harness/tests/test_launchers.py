"""The launchers of jobs of several workers, with stand-ins for the frameworks' own launchers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

# What torchrun does with these options, as far as it matters here: workers, their environment, the first death.
FAKE = """
import json, os, subprocess, sys, time
argv = sys.argv[1:]
with open(os.environ["SEEN"], "a") as f:
    f.write(json.dumps(argv) + "\\n")
at = next(i for i, a in enumerate(argv) if a == sys.executable)
option = lambda name, default: argv[argv.index(name) + 1] if name in argv else default
count = int(option("--nproc_per_node", option("-np", option("--num_gpus", option("--num_processes", "1")))))
first = int(option("--node_rank", "0")) * count
workers = [
    subprocess.Popen(argv[at:], env={**os.environ, "RANK": str(first + i), "LOCAL_RANK": str(i)}) for i in range(count)
]
while None in [w.poll() for w in workers]:
    if any(w.returncode for w in workers):
        [w.terminate() for w in workers if w.poll() is None]
        [w.wait() for w in workers]
        sys.exit(1)
    time.sleep(0.02)
sys.exit(1 if any(w.returncode for w in workers) else 0)
"""


class Task:
    """The files of a container, and the launchers in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.info: dict[str, Any] = {"addrs": ["10.0.0.1"], "rank": 0, "slots": [2]}
        torch = root / "fakes" / "torch" / "distributed"
        torch.mkdir(parents=True)
        for folder in (torch, torch.parent):
            (folder / "__init__.py").write_text("")
        (torch / "run.py").write_text(FAKE)
        (root / "bin").mkdir()
        for name in ("horovodrun", "deepspeed", "accelerate"):
            path = root / "bin" / name
            path.write_text(f"#!{sys.executable}\n{FAKE}")
            path.chmod(0o755)

    def start(self, launcher: str, *arguments: str, path: str | None = None, **env: str) -> subprocess.Popen[str]:
        info = self.root / "info"
        info.mkdir(exist_ok=True)
        cluster = ("master_url", "cluster_id", "agent_id", "task_id", "allocation_id", "session_token", "task_type")
        trial = {"trial_id": 1, "experiment_id": 1, "trial_seed": 1, "steps_completed": 0, "trial_run_id": 1}
        for name, content in {
            "cluster": {**dict.fromkeys(cluster, "x"), "task_type": "TRIAL", "slot_ids": [0]},
            "trial": {**trial, "hparams": {}, "config": {}, "debug": False},
            "rendezvous": {
                "container_addrs": self.info["addrs"],
                "container_rank": self.info["rank"],
                "container_slot_counts": self.info["slots"],
            },
            "resources": {"gpu_uuids": []},
        }.items():
            (info / f"{name}.json").write_text(json.dumps(content))
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("DET_", "C10D"))}
        return subprocess.Popen(
            [sys.executable, "-m", f"determined.launch.{launcher}", *arguments],
            env={
                **clean,
                "DET_RUN_DIR": str(self.root),
                "PYTHONPATH": str(self.root / "fakes"),
                "PATH": f"{path or self.root / 'bin'}:{os.environ['PATH']}",
                "SEEN": str(self.root / "seen"),
                **env,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, launcher: str, *arguments: str, **env: str) -> tuple[int, list[str], str]:
        with self.start(launcher, *arguments, **env) as process:
            out, err = process.communicate(timeout=50)
            return process.returncode, sorted(out.splitlines()), err

    def seen(self) -> list[str]:
        """The launcher's options of the last start."""
        argv: list[str] = json.loads((self.root / "seen").read_text().splitlines()[-1])
        return argv[: argv.index(sys.executable)]


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return Task(tmp_path)


def _script(source: str) -> list[str]:
    return [sys.executable, "-c", f"import os, signal, sys, time\nrank = os.environ['RANK']\n{source}"]


def test_torchrun_gets_what_the_contract_says_and_lines_get_ranks(task: Task) -> None:
    hello = _script("print('a', os.environ['DET_CHIEF_IP'])\nprint('b\\rc', file=sys.stderr)")
    code, out, err = task.run("torch_distributed", *hello)
    assert code == 0, err
    assert out == ["[rank=0] a 10.0.0.1", "[rank=1] a 10.0.0.1"]
    assert sorted(err.splitlines()) == ["[rank=0] b", "[rank=0] c", "[rank=1] b", "[rank=1] c"]
    base = "--nnodes 1 --nproc_per_node 2 --node_rank 0 --max_restarts 0 --master_addr localhost --master_port"
    assert task.seen() == [*base.split(), "29400", "--no_python"]

    task.run("torch_distributed", "--rdzv_backend", "static", "--", *hello, DET_UNIQUE_PORT_OFFSET="4")
    assert task.seen() == [*base.split(), "29404", "--rdzv_backend", "static", "--no_python"]
    task.run("torch_distributed", "--", *hello, DET_UNIQUE_PORT_OFFSET="4", C10D_PORT="777")
    assert task.seen() == [*base.split(), "777", "--no_python"]


def test_the_second_of_two_machines(task: Task) -> None:
    task.info = {"addrs": ["10.0.0.1", "10.0.0.2"], "rank": 1, "slots": [2, 2]}
    code, out, err = task.run("torch_distributed", *_script("print(1)"), DET_UNIQUE_PORT_OFFSET="4")
    assert (code, out) == (0, ["[rank=2] 1", "[rank=3] 1"]), err
    options = "--nnodes 2 --nproc_per_node 2 --node_rank 1 --max_restarts 0 --master_addr 10.0.0.1 --master_port 29400"
    assert task.seen() == [*options.split(), "--no_python"]


@pytest.mark.parametrize(
    ("death", "code", "words"),
    [
        ("sys.exit(7)", 7, "rank 1 ended with exit code 7"),
        ("os.kill(os.getpid(), 9)", 137, r"rank 1 was ended by signal 9 (SIGKILL)"),
    ],
)
def test_the_death_of_one_ends_all_and_is_named_last(task: Task, death: str, code: int, words: str) -> None:
    began = time.monotonic()
    status, _, err = task.run("torch_distributed", *_script(f"if rank == '1':\n    {death}\ntime.sleep(60)"))
    assert status == code
    assert err.splitlines()[-1].endswith(f"{words}; all workers were stopped")
    assert time.monotonic() - began < 20


def test_sigterm_reaches_all_ranks(task: Task) -> None:
    script = _script(
        "signal.signal(signal.SIGTERM, lambda *_: (print('bye'), sys.exit(0)))\nprint('up')\ntime.sleep(60)"
    )
    with task.start("torch_distributed", *script) as process:
        assert process.stdout is not None
        assert sorted(process.stdout.readline() for _ in range(2)) == ["[rank=0] up\n", "[rank=1] up\n"]
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=20)
    assert sorted(out.splitlines()) == ["[rank=0] bye", "[rank=1] bye"]


def test_sigusr1_prints_the_stacks_of_all_ranks(task: Task) -> None:
    script = _script(
        "import faulthandler\nfaulthandler.register(signal.SIGUSR1)\n"
        "def stuck():\n    print('up')\n    time.sleep(2)\nstuck()"
    )
    with task.start("torch_distributed", *script) as process:
        assert process.stdout is not None
        for _ in range(2):
            process.stdout.readline()
        process.send_signal(signal.SIGUSR1)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 0
    for rank in (0, 1):
        assert re.search(rf'\[rank={rank}\]   File "<string>", line [67] in stuck', err)


@pytest.mark.parametrize(
    ("launcher", "options"),
    [
        ("horovod", "-np 2 -H localhost:2 --start-timeout 1200 --gloo-timeout-seconds 240 --x"),
        ("deepspeed", "--num_gpus 2 --master_port 29400 --x --no_python"),
        (
            "accelerate",
            "launch --num_processes 2 --num_machines 1 --machine_rank 0 --main_process_ip localhost "
            "--main_process_port 29400 --x --no_python",
        ),
    ],
)
def test_other_frameworks_get_their_own_launcher(task: Task, launcher: str, options: str) -> None:
    code, out, err = task.run(launcher, "--x", "--", *_script("print(1)"))
    assert (code, out) == (0, ["[rank=0] 1", "[rank=1] 1"]), err
    assert task.seen() == options.split()


def test_one_worker_needs_no_horovod(task: Task) -> None:
    task.info["slots"] = [1]
    code, out, _ = task.run("horovod", "--autohorovod", sys.executable, "-c", "print(1)")
    assert (code, out) == (0, ["[rank=0] 1"])


@pytest.mark.parametrize(
    ("launcher", "arguments", "code", "message"),
    [
        ("torch_distributed", [], 1, "has no command to run; use: python3 -m determined.launch.torch_distributed"),
        ("torch_distributed", ["--nnodes", "2"], 1, "has no command to run"),
        ("torch_distributed", ["--trial", "model:Trial"], 1, "--trial names a trial class"),
        ("torch_distributed", ["no-such-command"], 127, "'no-such-command' of rank . can't be executed: No such file"),
        ("wrap_rank", ["x", "--", "true"], 1, "RANK is 'x', but must be a number"),
    ],
)
def test_mistakes_are_named(task: Task, launcher: str, arguments: list[str], code: int, message: str) -> None:
    status, _, err = task.run(launcher, *arguments)
    assert status == code
    assert re.search(message, err)


def test_a_framework_that_is_missing_is_named(task: Task) -> None:
    (task.root / "fakes" / "torch" / "distributed" / "run.py").unlink()
    for name in ("horovodrun", "deepspeed", "accelerate"):
        (task.root / "bin" / name).unlink()
    for launcher, message in (
        ("horovod", "horovodrun was not found: Horovod is not installed"),
        ("deepspeed", "DeepSpeed is not installed"),
        ("accelerate", "accelerate is not installed"),
    ):
        status, _, err = task.run(launcher, "python3", "train.py")
        assert (status, message in err) == (127, True), err
    (task.root / "fakes").rename(task.root / "none")
    status, _, err = task.run("torch_distributed", "python3", "train.py")
    assert (status, "PyTorch is not installed for" in err) == (1, True), err
