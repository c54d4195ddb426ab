"""What a trial's container does before the user's code, as processes."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import stat
import statistics
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.patience import PATIENCE

if TYPE_CHECKING:
    from conftest import Master

DIGITS = Path(__file__).parents[2] / "examples" / "digits"


RUNNER = "New trial runner in (container r1) on agent agent\n"


class Container:
    """The environment of a trial's container, and a master that serves it."""

    def __init__(self, master: Master, root: Path, files: dict[str, str | bytes]) -> None:
        self.master = master
        self.root = root
        self.config: dict[str, Any] = {
            "entrypoint": "cat marker",
            "checkpoint_storage": {"type": "shared_fs", "host_path": str(root / "storage"), "storage_path": "ck"},
            "searcher": {"name": "single", "metric": "accuracy", "max_length": {"epochs": 2}},
            "resources": {"slots_per_trial": 1},
        }
        self.env = {
            "PATH": os.environ["PATH"],
            "DET_MASTER": master.url,
            "DET_CLUSTER_ID": "cluster",
            "DET_AGENT_ID": "agent",
            "DET_RESOURCES_ID": "r1",
            "DET_SLOT_IDS": "[0]",
            "DET_TASK_ID": "3.task",
            "DET_ALLOCATION_ID": "a.1",
            "DET_SESSION_TOKEN": "secret-token",
            "DET_TASK_TYPE": "TRIAL",
            "DET_TRIAL_ID": "7",
            "DET_EXPERIMENT_ID": "3",
            "DET_TRIAL_RUN_ID": "2",
            "DET_TRIAL_SEED": "42",
            "DET_STEPS_COMPLETED": "0",
            "DET_HPARAMS": '{"lr": 0.1}',
            "DET_RUN_DIR": str(root / "run"),
            "DET_WORKDIR": str(root / "work"),
            "PYTHONPYCACHEPREFIX": os.environ.get("PYTHONPYCACHEPREFIX", str(root / "pycache")),
        }
        self.pack(files)
        master.answer(
            "GET /api/v1/allocations/a.1/resources/r1/rendezvous",
            {"rendezvousInfo": {"addresses": ["10.0.0.1"], "rank": 0, "slots": [1]}},
        )

    def pack(self, files: dict[str, str | bytes]) -> None:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for name, content in files.items():
                data = content if isinstance(content, bytes) else content.encode()
                info = tarfile.TarInfo(name)
                info.size, info.mode = len(data), 0o755
                archive.addfile(info, io.BytesIO(data))
        answer = {"b64Tgz": base64.b64encode(buffer.getvalue()).decode() if files else ""}
        self.master.answer("GET /api/v1/tasks/3.task/context_directory", answer)

    def run(self, python: str = sys.executable, **env: str | None) -> subprocess.CompletedProcess[str]:
        all_env = {"DET_EXPERIMENT_CONFIG": json.dumps(self.config), **self.env, **env}
        return subprocess.run(
            [python, "-m", "determined.exec.launch"],
            env={k: v for k, v in all_env.items() if v is not None},
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=100,
        )


@pytest.fixture
def container(master: Master, tmp_path: Path) -> Container:
    return Container(master, tmp_path, {"marker": "hello from the context\n"})


def test_the_container_is_prepared_and_becomes_the_entrypoint(container: Container) -> None:
    container.config["entrypoint"] = [
        sys.executable,
        "-c",
        "import json, determined as d; i = d.get_cluster_info(); print(json.dumps([i.trial.hparams, i.task_id, "
        "i.latest_checkpoint, i.container_addrs, i.slot_ids, i.trial.trial_seed])); print(open('marker').read())",
    ]
    done = container.run(DET_LATEST_CHECKPOINT="ckpt-1")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()[:2]
    assert json.loads(first) == [{"lr": 0.1}, "3.task", "ckpt-1", ["10.0.0.1"], [0], 42]
    assert second == "hello from the context"
    assert done.stderr.endswith(RUNNER), "the words that tools look for"
    assert len(done.stderr.splitlines()) == 1
    info = container.root / "run" / "info"
    assert sorted(os.listdir(info)) == ["cluster.json", "rendezvous.json", "resources.json", "trial.json"]
    assert stat.S_IMODE((info / "cluster.json").stat().st_mode) == 0o600
    keys = {name: set(json.loads((info / name).read_text())) for name in os.listdir(info)}
    assert keys["cluster.json"] == {
        *("master_url", "cluster_id", "agent_id", "slot_ids", "task_id", "allocation_id", "session_token"),
        *("task_type", "master_cert_name", "master_cert_file", "latest_checkpoint"),
    }
    assert keys["trial.json"] == {
        *("trial_id", "experiment_id", "trial_seed", "hparams", "config", "steps_completed", "trial_run_id"),
        *("debug", "inter_node_network_interface", "unique_port_offset"),
    }
    assert keys["rendezvous.json"] == {"container_addrs", "container_rank", "container_slot_counts"}
    assert os.listdir(container.root / "storage" / "ck") == []
    mode = stat.S_IMODE((container.root / "storage" / "ck").stat().st_mode)
    assert not mode & 0o022, "whoever runs hosts of many users makes it before"
    for call in container.master.calls:
        assert call.headers["Grpc-Metadata-x-allocation-token"] == "Bearer secret-token"


def test_a_container_that_is_alone_asks_for_no_addresses(container: Container) -> None:
    command = "import determined as d; i = d.get_cluster_info(); print(i.container_addrs, i.container_rank)"
    container.config["entrypoint"] = [sys.executable, "-c", command]
    done = container.run(UNDETERRED_RENDEZVOUS='{"addresses": ["127.0.0.1"], "rank": 0, "slots": [1]}')
    assert done.stdout.splitlines() == ["['127.0.0.1'] 0"], done.stderr
    assert [call.path for call in container.master.calls] == ["/api/v1/tasks/3.task/context_directory"]


@pytest.mark.parametrize(
    ("visible", "found"),
    [("all", ["GPU-a", "GPU-b"]), ("1", ["GPU-b"]), ("GPU-a", ["GPU-a"]), ("none", []), ("", [])],
)
def test_gpus_are_those_that_the_container_sees_and_a_wrong_number_is_told(
    container: Container, visible: str, found: list[str]
) -> None:
    driver = container.root / "bin" / "nvidia-smi"  # a machine of CI has no GPU
    driver.parent.mkdir()
    driver.write_text("#!/bin/sh\necho GPU-a\necho GPU-b\n")
    driver.chmod(0o755)
    done = container.run(PATH=f"{driver.parent}:{os.environ['PATH']}", NVIDIA_VISIBLE_DEVICES=visible)
    assert done.returncode == 0, done.stderr
    assert json.loads((container.root / "run" / "info" / "resources.json").read_text()) == {"gpu_uuids": found}
    warning = "this container has 1 slots, but sees 2 GPUs: GPU-a, GPU-b"
    assert (warning in done.stderr) == (len(found) == 2)


@pytest.mark.parametrize("name", ["DET_MASTER", "DET_SESSION_TOKEN", "DET_HPARAMS", "DET_TRIAL_SEED"])
def test_a_missing_variable_is_named_in_one_sentence(container: Container, name: str) -> None:
    done = container.run(**{name: None})
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("ERROR: [")
    assert f"determined.exec.launch: the environment variable {name} is not set" in line


def test_wrong_variables_are_named(container: Container) -> None:
    for env, message in (
        ({"DET_TRIAL_ID": "x"}, "DET_TRIAL_ID is 'x', but must be an integer"),
        ({"DET_HPARAMS": "{"}, "DET_HPARAMS is not valid JSON"),
        ({"DET_SLOT_IDS": "{}"}, "DET_SLOT_IDS must be a JSON list"),
        ({"DET_TASK_TYPE": "BATCH"}, "this harness starts TRIAL, COMMAND, GENERIC, NOTEBOOK, SHELL, TENSORBOARD"),
    ):
        done = container.run(**env)
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
        assert message in done.stderr


@pytest.mark.parametrize(
    ("entrypoint", "status", "out", "err"),
    [
        ("cat marker", 0, "hello from the context\n", ""),
        ("sh -c 'exit 7'", 7, "", ""),
        ("X=1 && echo $X; exit 3", 3, "1\n", ""),
        ("echo $DET_TRIAL_ID 'a  b'", 0, "7 a  b\n", ""),
        ("cd / && pwd", 0, "/\n", ""),
        (["echo", "a  b", "$X"], 0, "a  b $X\n", ""),
        ("nonsense --x", 127, "", "the entrypoint's command 'nonsense' was not found"),
        ("./missing.py", 127, "", "the entrypoint's command './missing.py' was not found"),
        ("nonsense 'x y'", 127, "", "nonsense"),
        ("./data.txt", 126, "", "'./data.txt' can't be executed"),
        ("model_def:MyTrial", 1, "", "entrypoint 'model_def:MyTrial': there is no module model_def in"),
        ("marker:MyTrial", 1, "", "entrypoint 'marker:MyTrial': marker has no MyTrial"),
        (None, 1, "", "entrypoint in the experiment's configuration is None, but must be a command"),
        ([], 1, "", "must be a list of strings, not empty"),
    ],
)
def test_entrypoints(container: Container, entrypoint: Any, status: int, out: str, err: str) -> None:
    files = {"marker": "hello from the context\n", "marker.py": "", "data.txt": b"\x01\x02"}
    container.pack(files)
    container.config["entrypoint"] = entrypoint
    done = container.run()
    assert (done.returncode, done.stdout) == (status, out), done.stderr
    assert err in done.stderr
    began = RUNNER in done.stderr
    assert began or status in (1, 126), "what names no command is refused before"
    assert len(done.stderr.splitlines()) == bool(err) + began


def test_signals_reach_the_entrypoint(container: Container) -> None:
    container.config["entrypoint"] = "echo $$ 'started'"
    env = {**container.env, "DET_EXPERIMENT_CONFIG": json.dumps(container.config)}
    process = subprocess.Popen(
        [sys.executable, "-m", "determined.exec.launch"], env=env, stdout=subprocess.PIPE, text=True, cwd=container.root
    )
    out, _ = process.communicate(timeout=60 * PATIENCE)
    assert out == f"{process.pid} started\n"


def test_python3_is_the_one_that_this_package_is_installed_for(container: Container, trial_python: str) -> None:
    container.config["entrypoint"] = "python3 which.py"
    container.pack({"which.py": "import sys, os; print(sys.prefix, os.environ['PYTHONUNBUFFERED'])"})
    done = container.run(trial_python)
    assert done.stdout.split() == [str(Path(trial_python).parents[1]), "1"], done.stderr


def test_a_startup_hook_is_sourced_before(container: Container) -> None:
    container.config["entrypoint"] = "sh -c 'echo $FROM_HOOK $$'"
    container.pack({"startup-hook.sh": "export FROM_HOOK=hooked\n"})
    assert container.run().stdout.startswith("hooked ")
    container.pack({"startup-hook.sh": "false\n"})
    done = container.run()
    assert (done.returncode, done.stdout) == (1, "")
    assert "startup-hook.sh ended with status 1" in done.stderr
    container.pack({"startup-hook.sh": "exit 5\n"})
    assert container.run().returncode == 5


def test_no_context_is_fine(container: Container) -> None:
    container.pack({})
    container.config["entrypoint"] = "pwd"
    done = container.run()
    assert done.stdout.strip() == str(container.root / "work"), done.stderr


def test_an_unsafe_context_is_refused(container: Container) -> None:
    container.pack({"../evil": "x"})
    done = container.run()
    assert done.returncode == 1
    assert "can't unpack the files of this task" in done.stderr
    assert "'../evil'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (container.root / "evil").exists()


def test_a_broken_storage_is_found_before_training(container: Container) -> None:
    (container.root / "storage").write_text("a file")
    done = container.run()
    assert done.returncode == 1
    assert "checkpoints could not be saved: the checkpoint storage" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    container.config["checkpoint_storage"] = {"type": "hdfs", "hdfs_url": "u"}
    assert "storage type 'hdfs' is not available in this release" in container.run().stderr


def test_an_ended_allocation_starts_nothing(container: Container) -> None:
    container.master.answer("GET /api/v1/tasks/3.task/context_directory", (401, {"message": "allocation is over"}))
    done = container.run()
    assert (done.returncode, done.stdout) == (1, "")
    assert "the cluster has ended this allocation (allocation is over); nothing was started" in done.stderr


def test_the_start_survives_an_outage(container: Container) -> None:
    container.master.stop()
    timer = threading.Timer(1.0, container.master.start)
    timer.start()
    done = container.run()
    timer.join()
    assert done.stdout == "hello from the context\n", done.stderr


SILENT = """
import ctypes, os, time
from determined import core
with core.init() as context:
    print("begun", flush=True)
    {hangs}
    print("goes on", flush=True)
    for step in range(20):
        time.sleep(0.1)
        {step}
"""


@pytest.mark.parametrize("hangs", ["time.sleep(4)", "time.sleep(0.5); ctypes.PyDLL(None).sleep(4)"])
def test_silent_process_shows_its_stacks_once(master: Master, tmp_path: Path, hangs: str) -> None:
    """Also one that holds the interpreter, so that no other thread runs.

    Not from the very moment on at which it was last heard of: faulthandler lets go of the interpreter while it sets its
    watchdog anew, and does not come to finish that.
    """
    master.answer("GET /api/v1/allocations/a.1/signals/preemption", {"preempt": False})
    script = SILENT.format(hangs=hangs, step="context.preempt.should_preempt()")
    container = Container(master, tmp_path, {"train.py": script})
    container.config["entrypoint"] = "python3 train.py"
    done = container.run(DET_STALL_STACKS_S="1")
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^(?:Current thread|Thread) .*\n(?:  File .*\n)*?  File .*train.py", done.stderr, re.M)) == 1
    if "PyDLL" in hangs:
        assert "Timeout (0:00:01.300000)!" in done.stderr
    else:
        assert "this process has written and reported nothing for 1 s (DET_STALL_STACKS_S)" in done.stderr


def test_process_that_goes_on_shows_no_stacks(master: Master, tmp_path: Path) -> None:
    master.answer("GET /api/v1/allocations/a.1/signals/preemption", {"preempt": False})
    container = Container(master, tmp_path, {"train.py": SILENT.format(hangs="pass", step="print(step, flush=True)")})
    container.config["entrypoint"] = "python3 train.py"
    done = container.run(DET_STALL_STACKS_S="1")
    assert (done.returncode, "train.py" in done.stderr) == (0, False), done.stderr


def test_the_start_is_fast(container: Container, trial_python: str) -> None:
    container.config["entrypoint"] = "true"
    container.run(trial_python)  # compiles

    def measure(argv: list[str]) -> float:
        env = {**container.env, "DET_EXPERIMENT_CONFIG": json.dumps(container.config)}
        times = []
        for _ in range(9):
            began = time.perf_counter()
            subprocess.run(argv, env=env, cwd=container.root, check=True)
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    bare = measure([trial_python, "-c", "pass"])
    launch = measure([trial_python, "-m", "determined.exec.launch"])
    print(f"bare interpreter {bare * 1e3:.0f} ms, launch {launch * 1e3:.0f} ms")
    # The goal is 150 ms in all on a quiet machine; this holds on one that runs other tests.
    assert launch < bare + 0.3


def test_numbers_of_random_are_the_training_codes(container: Container) -> None:
    """Neither what is imported on the way nor a waiting time draws from the generator that a script has seeded."""
    container.config["entrypoint"] = [sys.executable, "-c", RANDOM]
    for route in ("POST /api/v1/trials/7/metrics/batch", "POST /api/v1/checkpoints"):
        tries = iter((503, 503))
        container.master.answer(route, lambda call, tries=tries: (next(tries, 200), {}))
    done = container.run()
    assert done.returncode == 0, done.stderr
    assert done.stdout == "as it was\n"


RANDOM = """
import random
random.seed(1)
before = random.getstate()
from determined import core
with core.init() as context:
    context.train.report_training_metrics(1, {"loss": 1.0})
    with context.checkpoint.store_path({"steps_completed": 1}) as (path, _):
        (path / "state").write_text("x")
    context.preempt.should_preempt()
print("as it was" if random.getstate() == before else "drawn from")
"""


def test_importing_the_core_api_loads_nothing_heavy(trial_python: str) -> None:
    script = """
import sys
import determined.core
heavy = {"urllib3", "yaml", "pathspec", "numpy", "http", "email", "ssl", "logging", "asyncio", "dataclasses", "inspect"}
print(sorted(heavy & set(sys.modules)))
"""
    out = subprocess.run(
        [trial_python, "-S", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={"PYTHONPATH": str(Path(__file__).parents[1])},
    ).stdout
    assert out == "[]\n"


# -- the example


def _serve_search(master: Master, lengths: list[int]) -> dict[str, Any]:
    """The routes that a trial of the example calls; returns what it reported."""
    seen: dict[str, Any] = {"completed": [], "checkpoints": [], "preempt": threading.Event()}

    def operation(call: Any) -> Any:
        done = len(seen["completed"])
        if done >= len(lengths):
            return {"completed": True}
        return {"op": {"validateAfter": {"length": str(lengths[done])}}, "completed": False}

    def record(key: str) -> Any:
        return lambda call: seen[key].append(call.body) or {}

    master.answer("GET /api/v1/trials/7/searcher/operation", operation)
    master.answer("POST /api/v1/trials/7/searcher/completed_operation", record("completed"))
    master.answer("POST /api/v1/checkpoints", record("checkpoints"))
    for route in ("trials/7/metrics/batch", "trials/7/progress", "allocations/a.1/signals/ack_preemption"):
        master.answer(f"POST /api/v1/{route}", {})
    master.answer(
        "GET /api/v1/allocations/a.1/signals/preemption",
        lambda call: {"preempt": seen["preempt"].wait(min(30, int(call.query["timeout_seconds"][0])))},
    )
    return seen


def _validations(master: Master) -> list[tuple[int, float]]:
    return [
        (r["stepsCompleted"], r["metrics"]["avgMetrics"]["accuracy"])
        for r in master.reports()
        if r["group"] == "validation"
    ]


@pytest.fixture
def digits(container: Container) -> Container:
    container.pack({path.name: path.read_bytes() for path in DIGITS.iterdir() if path.is_file()})
    container.config["entrypoint"] = "python3 train.py"
    container.env["DET_HPARAMS"] = '{"hidden_size": 64, "learning_rate": 0.003, "alpha": 0.0001, "batch_size": 32}'
    return container


def test_the_example_trains_to_95_percent_and_can_be_evaluated(digits: Container, trial_python: str) -> None:
    seen = _serve_search(digits.master, [4, 16])
    began = time.monotonic()
    done = digits.run(trial_python)
    took_s = time.monotonic() - began
    seen["preempt"].set()
    assert done.returncode == 0, done.stderr
    print(f"the whole trial took {took_s:.2f} s")
    validations = _validations(digits.master)
    assert [steps for steps, _ in validations] == list(range(1, 17))
    assert validations[-1][1] >= 0.95
    assert [c["op"]["length"] for c in seen["completed"]] == [4, 16]
    assert seen["completed"][-1]["searcherMetric"] == validations[-1][1]
    assert [c["metadata"]["steps_completed"] for c in seen["checkpoints"]] == [4, 16]
    folder = digits.root / "storage" / "ck" / seen["checkpoints"][-1]["uuid"]
    evaluated = subprocess.run(
        [trial_python, DIGITS / "evaluate.py", folder], capture_output=True, text=True, check=True, timeout=60
    )
    assert float(evaluated.stdout) == pytest.approx(validations[-1][1], abs=1e-4)


def test_a_preempted_example_continues_exactly(digits: Container, trial_python: str) -> None:
    seen = _serve_search(digits.master, [16])
    seen["preempt"].set()  # from the start: one epoch, a checkpoint, and out
    first = digits.run(trial_python)
    assert first.returncode == 0, first.stderr
    assert len(digits.master.of("POST /api/v1/allocations/a.1/signals/ack_preemption")) == 1
    assert seen["completed"] == []
    assert [c["metadata"]["steps_completed"] for c in seen["checkpoints"]] == [1]
    seen["preempt"].clear()
    second = digits.run(trial_python, DET_LATEST_CHECKPOINT=seen["checkpoints"][0]["uuid"], DET_TRIAL_RUN_ID="3")
    seen["preempt"].set()
    assert "resumed from" in second.stdout, second.stderr
    interrupted = _validations(digits.master)
    digits.master.calls.clear()
    seen = _serve_search(digits.master, [16])
    digits.run(trial_python)
    seen["preempt"].set()
    assert interrupted == _validations(digits.master)
    assert len(interrupted) == 16


def test_the_examples_configurations_fit_its_code() -> None:
    import yaml

    for name in ("adaptive.yaml", "const.yaml"):
        config = yaml.safe_load((DIGITS / name).read_text())
        assert set(config["hyperparameters"]) == {"hidden_size", "learning_rate", "alpha", "batch_size"}
        assert config["searcher"]["metric"] == "accuracy"
        assert config["searcher"]["smaller_is_better"] is False
        assert config["searcher"]["max_length"] == {"epochs": 16}
        assert config["entrypoint"] == "python3 train.py"
