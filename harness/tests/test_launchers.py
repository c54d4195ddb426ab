"""The launchers of jobs of several workers, with stand-ins for the frameworks' own launchers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from determined.launch import _gang
from tests.kit.patience import PATIENCE

from .conftest import TRIAL_PYTHON

#: Without the frameworks whose launchers these stand in for.
PYTHON = str(TRIAL_PYTHON)

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
            path.write_text(f"#!{PYTHON}\n{FAKE}")
            path.chmod(0o755)

    def start(self, launcher: str, *arguments: str, path: str | None = None, **env: str) -> subprocess.Popen[str]:
        info = self.root / "info"
        info.mkdir(exist_ok=True)
        cluster = ("master_url", "cluster_id", "agent_id", "task_id", "allocation_id", "session_token", "task_type")
        trial = {"trial_id": 1, "experiment_id": 1, "trial_seed": 1, "steps_completed": 0, "trial_run_id": 1}
        config: dict[str, Any] = {"checkpoint_storage": {}, "resources": {}, "searcher": {}}
        slot_ids = list(range(self.info["slots"][self.info["rank"]]))
        for name, content in {
            "cluster": {**dict.fromkeys(cluster, "x"), "task_type": "TRIAL", "slot_ids": slot_ids},
            "trial": {**trial, "hparams": {}, "config": config, "debug": False},
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
            [PYTHON, "-m", f"determined.launch.{launcher}", *arguments],
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
            out, err = process.communicate(timeout=50 * PATIENCE)
            return process.returncode, sorted(out.splitlines()), err

    def seen(self, first_port: int = 29400) -> list[str]:
        """The launcher's options of the last start, with the first port for the next ones that may have been free."""
        argv = self._started()
        ports = {str(port) for port in range(first_port, first_port + 1000)}
        return [str(first_port) if word in ports else word for word in argv[: argv.index(PYTHON)]]

    def worker(self) -> list[str]:
        """The arguments of the Python that the last start has each rank run, under `wrap_rank`."""
        argv = self._started()
        return argv[len(argv) - argv[::-1].index(PYTHON) :]

    def _started(self) -> list[str]:
        return json.loads((self.root / "seen").read_text().splitlines()[-1])


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return Task(tmp_path)


def _script(source: str) -> list[str]:
    return [PYTHON, "-c", f"import os, signal, sys, time\nrank = os.environ['RANK']\n{source}"]


def test_torchrun_gets_what_the_contract_says_and_lines_get_ranks(task: Task) -> None:
    hello = _script("print('a', os.environ['DET_CHIEF_IP'])\nprint('b\\rc', file=sys.stderr)")
    code, out, err = task.run("torch_distributed", *hello)
    assert code == 0, err
    assert out == ["[rank=0] a 10.0.0.1", "[rank=1] a 10.0.0.1"]
    assert sorted(err.splitlines()) == ["[rank=0] b", "[rank=0] c", "[rank=1] b", "[rank=1] c"]
    base = "--nnodes 1 --nproc_per_node 2 --node_rank 0 --max_restarts 0 --master_addr localhost --master_port"
    assert task.seen() == [*base.split(), "29400", "--no_python"]

    task.run("torch_distributed", "--rdzv_backend", "static", "--", *hello, DET_UNIQUE_PORT_OFFSET="4")
    assert task.seen(29404) == [*base.split(), "29404", "--rdzv_backend", "static", "--no_python"]
    task.run("torch_distributed", "--", *hello, DET_UNIQUE_PORT_OFFSET="4", C10D_PORT="777")
    assert task.seen() == [*base.split(), "777", "--no_python"]


def test_a_port_that_somebody_has_is_passed_over(task: Task) -> None:
    with contextlib.ExitStack() as held:
        for port in (29450, 29451):
            with contextlib.suppress(OSError):  # somebody has it already
                held.enter_context(socket.create_server(("127.0.0.1", port)))
        task.run("torch_distributed", *_script("print(1)"), DET_UNIQUE_PORT_OFFSET="50")
    argv = json.loads((task.root / "seen").read_text().splitlines()[-1])
    assert int(argv[argv.index("--master_port") + 1]) >= 29452


@pytest.mark.parametrize(
    ("addrs", "given", "expected"),
    [
        (["127.0.0.1", "10.0.0.2"], {}, {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}),
        (["127.0.0.1", "10.0.0.2"], {"NCCL_SOCKET_IFNAME": "ib0"}, {"GLOO_SOCKET_IFNAME": "lo"}),
        (
            ["127.0.0.1", "10.0.0.2"],
            {"DET_INTER_NODE_NETWORK_INTERFACE": "eth7"},
            {"GLOO_SOCKET_IFNAME": "eth7", "NCCL_SOCKET_IFNAME": "eth7"},
        ),
        (["203.0.113.7", "10.0.0.2"], {}, {}),  # an address that this host has nowhere
        (["127.0.0.1"], {}, {}),
    ],
)
def test_workers_on_several_hosts_take_the_interface_that_the_others_reach(
    addrs: list[str], given: dict[str, str], expected: dict[str, str]
) -> None:
    """The address of a host's own name is 127.0.0.1 in many images: Gloo would listen there."""
    place = _gang.Place.__new__(_gang.Place)
    place.addresses, place.rank, place.slots = addrs, 0, [1] * len(addrs)
    assert place.network(given) == expected


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
        out, _ = process.communicate(timeout=20 * PATIENCE)
    assert sorted(out.splitlines()) == ["[rank=0] bye", "[rank=1] bye"]


class Log:
    """What a launcher writes to stderr, as it comes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.lines: list[str] = []
        self._has_more = threading.Condition()
        self._is_over = False
        self._thread = threading.Thread(target=self._read, args=(process.stderr,), daemon=True)
        self._thread.start()

    def _read(self, stream: Any) -> None:
        for line in stream:
            with self._has_more:
                self.lines.append(line.rstrip("\n"))
                self._has_more.notify_all()
        with self._has_more:
            self._is_over = True
            self._has_more.notify_all()

    def wait_for(self, pattern: str, count: int = 1, after: int = -1) -> int:
        """Wait for so many lines that match, after the line of a number; returns the last one's number."""

        def found() -> list[int]:
            return [i for i, line in enumerate(self.lines) if i > after and re.search(pattern, line)]

        with self._has_more:
            self._has_more.wait_for(lambda: self._is_over or len(found()) >= count, 60)
            assert len(found()) >= count, f"{pattern!r} came {len(found())} times in\n" + "\n".join(self.lines)
            return found()[count - 1]

    def join(self) -> None:
        """Wait for the end of the output."""
        self._thread.join(60)


@contextlib.contextmanager
def _watched(task: Task, *command: str, **env: str) -> Iterator[tuple[subprocess.Popen[str], Log]]:
    """A launcher with its log; ended after the block, if it still runs."""
    with task.start("torch_distributed", *command, **env) as process:
        log = Log(process)
        try:
            yield process, log
        finally:
            process.terminate()
            try:
                process.wait(45)
            finally:
                process.kill()
                log.join()


# Written by the script when it is where it will stay.
UP = "print('up', file=sys.stderr)"
STALL = "WARNING: .*no worker of this container has written or reported anything"
# A mutex that is locked twice, with the interpreter held: not even Python's own signal handlers come to their turn.
STUCK = {
    "sleeping": "time.sleep(600)",
    "waiting for a lock": "lock = threading.Lock()\n    lock.acquire()\n    lock.acquire()",
    "in C": "c, m = ctypes.PyDLL(None), ctypes.create_string_buffer(64)\n"
    "    c.pthread_mutex_lock(m)\n    c.pthread_mutex_lock(m)",
}


@pytest.mark.parametrize("registers", [True, False])
def test_sigusr1_prints_the_stacks_of_all_ranks(task: Task, registers: bool) -> None:
    handler = "import faulthandler\nfaulthandler.register(signal.SIGUSR1)\n" if registers else ""
    with _watched(task, *_script(f"{handler}def stuck():\n    {UP}\n    time.sleep(600)\nstuck()")) as (process, log):
        up = log.wait_for(r"\] up", count=2)
        process.send_signal(signal.SIGUSR1)
        for rank in (0, 1):
            log.wait_for(rf'\[rank={rank}\]   File "<string>", line \d in stuck', after=up)
        assert process.poll() is None


def test_a_stall_shows_once_where_every_worker_is(task: Task) -> None:
    """And again after somebody has gone on. A handler for SIGUSR1 that ends the worker is not called."""
    go_on = task.root / "go-on"
    functions = [f"def stuck_{i}():\n    {UP}\n    {STUCK[how]}" for i, how in enumerate(STUCK)]
    script = _script(
        f"import ctypes, threading\nsignal.signal(signal.SIGUSR1, lambda *_: os._exit(3))\n{chr(10).join(functions)}\n"
        f"if rank == '3':\n    while not os.path.exists({str(go_on)!r}):\n        time.sleep(0.05)\n    {UP}\n"
        "stuck_0() if rank == '3' else globals()['stuck_' + rank]()"
    )
    task.info["slots"] = [4]
    with _watched(task, *script, DET_STALL_STACKS_S="1") as (process, log):
        up = log.wait_for(r"\] up", count=3)
        stall = log.wait_for(STALL, after=up)
        for rank, how in enumerate(STUCK):
            shown = log.wait_for(rf'\[rank={rank}\]   File "<string>", line \d+ in stuck_{rank}', after=stall)
            asked = log.wait_for(rf"\[rank={rank}\] what process \d+ is doing:", after=stall)
            assert stall < asked < shown, how
        go_on.touch()
        again = log.wait_for(r"\[rank=3\] up", count=2, after=up)
        second = log.wait_for(STALL, after=again)
        log.wait_for(r'\[rank=3\]   File "<string>", line \d+ in stuck_0', after=second)
        assert process.poll() is None
        assert len([line for line in log.lines[up:again] if re.search(STALL, line)]) == 1


def test_a_worker_that_says_it_still_waits_has_stalled(task: Task) -> None:
    script = _script(
        "from determined.core import DistributedContext, _group\n_group._WARN_AFTER_S = 0.2\nr = int(rank)\n"
        "dist = DistributedContext(rank=r, size=2, local_rank=r, local_size=2, cross_rank=0, cross_size=1)\n"
        f"{UP}\ntime.sleep(600) if r else dist.allgather(0)"
    )
    # It says so every 2 s.
    with _watched(task, *script, DET_STALL_STACKS_S="3", DET_DISTRIBUTED_TOKEN="x") as (_, log):
        up = log.wait_for(r"\] up", count=2)
        stall = log.wait_for(STALL, after=up)
        log.wait_for(r"\[rank=0\]   File .* in allgather", after=stall)
        last = log.wait_for("still waiting for rank 1 in allgather", count=3, after=stall)
        assert not [line for line in log.lines[stall + 1 : last] if re.search(STALL, line)]


@pytest.mark.parametrize(
    "step",
    [
        "dist.allgather(0)",  # says nothing to the log
        "rank == '0' and print(end='\\r50 %', file=sys.stderr)",  # ends no line
    ],
)
def test_workers_that_go_on_quietly_have_not_stalled(task: Task, step: str) -> None:
    script = _script(
        "from determined.core import DistributedContext\nr = int(rank)\n"
        "dist = DistributedContext(rank=r, size=2, local_rank=r, local_size=2, cross_rank=0, cross_size=1)\n"
        f"{UP}\nfor _ in range(100):\n    {step}\n    time.sleep(0.06)\n"
    )
    with _watched(task, *script, DET_STALL_STACKS_S="3", DET_DISTRIBUTED_TOKEN="x") as (process, log):
        up = log.wait_for(r"\] up", count=2)
        assert process.wait(60) == 0
        log.join()
    assert not [line for line in log.lines[up:] if re.search(STALL, line)]


@pytest.mark.parametrize(
    "command",
    [
        ["sh", "-c", 'echo up >&2; while ! [ -e "$GO_ON" ]; do sleep 0.1; done; echo survived >&2'],
        # It does not read the environment, and so gets no handler: the signal would end it.
        [
            *(PYTHON, "-I", "-c"),
            "import os, sys, time; print('up', file=sys.stderr)\n"
            "while not os.path.exists(os.environ['GO_ON']): time.sleep(0.1)\nprint('survived', file=sys.stderr)",
        ],
        # Its stacks would go into whatever file has the number by now.
        _script(
            "os.closerange(3, 4096)\nprint('up', file=sys.stderr)\n"
            "while not os.path.exists(os.environ['GO_ON']): time.sleep(0.1)\nprint('survived', file=sys.stderr)"
        ),
    ],
)
def test_a_worker_that_cannot_show_its_stacks_is_left_alone(task: Task, command: list[str]) -> None:
    go_on = task.root / "go-on"
    task.info["slots"] = [1]
    with _watched(task, *command, DET_STALL_STACKS_S="1", GO_ON=str(go_on)) as (process, log):
        stall = log.wait_for(STALL, after=log.wait_for(r"\] up"))
        log.wait_for("rank 0 can't show its stacks: it runs no Python that this launcher has prepared", after=stall)
        go_on.touch()
        assert process.wait(60) == 0
        log.wait_for(r"\[rank=0\] survived")


def test_a_folder_that_somebody_has_removed_ends_nothing(task: Task) -> None:
    go_on = task.root / "go-on"
    script = _script(
        "print(os.environ['DET_GANG_DIR'], 'is the folder', file=sys.stderr)\n"
        f"while not os.path.exists({str(go_on)!r}):\n    time.sleep(0.1)\nprint('survived', file=sys.stderr)"
    )
    with _watched(task, *script, DET_STALL_STACKS_S="1") as (process, log):
        line = log.lines[log.wait_for("is the folder", count=2)]
        shutil.rmtree(line.split()[1])
        process.send_signal(signal.SIGUSR1)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)  # it looks every half a second
        go_on.touch()
        assert process.wait(60) == 0
        log.wait_for(r"\] survived", count=2)


def test_a_python_below_a_shell_shows_its_stacks(task: Task) -> None:
    go_on, script = task.root / "go-on", task.root / "train.py"
    script.write_text(
        f"import os, sys, time\ndef stuck():\n    {UP}\n    while not os.path.exists({str(go_on)!r}):\n"
        "        time.sleep(0.1)\nstuck()"
    )
    command = ["sh", "-c", f"{PYTHON} {script}; exit 0"]
    with _watched(task, *command, DET_STALL_STACKS_S="1") as (process, log):
        stall = log.wait_for(STALL, after=log.wait_for(r"\] up", count=2))
        for rank in (0, 1):
            log.wait_for(rf'\[rank={rank}\]   File ".*train.py", line \d in stuck', after=stall)
        go_on.touch()
        assert process.wait(60) == 0


def test_what_python_does_first_otherwise_it_still_does(task: Task) -> None:
    script = _script("print([p for p in sys.path if 'determined' in p], sys.modules['sitecustomize'].__file__)")
    task.info["slots"] = [1]
    code, out, err = task.run("torch_distributed", *script)
    assert (code, err) == (0, "")
    assert re.fullmatch(r"\[rank=0\] \[\] .*", out[0])
    own = task.root / "fakes" / "sitecustomize.py"
    own.write_text("print('first')")
    code, out, _ = task.run("torch_distributed", *script)
    of_worker = [line for line in out if line.startswith("[rank=0]")]
    assert (code, of_worker) == (0, [f"[rank=0] [] {own}", "[rank=0] first"])


def test_the_stall_limit_can_be_turned_off_and_is_checked(task: Task) -> None:
    script = _script("print(os.environ.get('DET_STACKS_FILE'), os.environ['PYTHONPATH'])\ntime.sleep(1.5)")
    task.info["slots"] = [1]
    code, out, err = task.run("torch_distributed", *script, DET_STALL_STACKS_S="0")
    assert (code, out, err) == (0, [f"[rank=0] None {task.root / 'fakes'}"], "")
    for text in ("soon", "-1", "nan"):
        code, _, err = task.run("torch_distributed", *script, DET_STALL_STACKS_S=text)
        assert code == 1
        assert f"DET_STALL_STACKS_S is '{text}', but must be a number of seconds, or 0 to show no stacks" in err


@pytest.mark.parametrize(
    ("launcher", "options"),
    [
        ("horovod", "-np 2 -H localhost:2 --start-timeout 1200 --gloo-timeout-seconds 240 --x"),
        ("deepspeed", "--num_gpus 2 --master_port 29400 --x --no_python --no_local_rank"),
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
    code, out, _ = task.run("horovod", "--autohorovod", PYTHON, "-c", "print(1)")
    assert (code, out) == (0, ["[rank=0] 1"])


@pytest.mark.parametrize(
    ("launcher", "options", "slots"),
    [("torch_distributed", [], [1]), ("torch_distributed", [], [2]), ("horovod", ["--autohorovod"], [2])],
)
def test_trial_class_is_run_by_the_harness(task: Task, launcher: str, options: list[str], slots: list[int]) -> None:
    """Without Horovod, which hardly any Python of today has, its launcher uses PyTorch's own distribution."""
    (task.root / "bin" / "horovodrun").unlink()
    task.info["slots"] = slots
    status, _, err = task.run(launcher, *options, "--trial", "model_def:MyTrial")
    assert status == 1
    assert task.worker() == ["-m", "determined.exec.harness", "model_def:MyTrial"]
    # The first rank that fails may end the others before they say so.
    assert 1 <= err.count("there is no module model_def in") <= slots[0]
    assert ("Horovod is not installed: training with PyTorch" in err) == (launcher == "horovod")


@pytest.mark.parametrize(
    ("launcher", "arguments", "code", "message"),
    [
        ("torch_distributed", [], 1, "has no command to run; use: python3 -m determined.launch.torch_distributed"),
        ("torch_distributed", ["--nnodes", "2"], 1, "has no command to run"),
        ("torch_distributed", ["--trial"], 1, "--trial takes one trial class, for example --trial model_def:MyTrial"),
        ("torch_distributed", ["--trial", "a:B", "c"], 1, "--trial takes one trial class"),
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
