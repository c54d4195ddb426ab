"""Small modules that scripts take from here: GPUs, writers for TensorBoard, what TensorFlow's workers need."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import determined
from determined import core, gpu
from tests.kit.patience import PATIENCE

if TYPE_CHECKING:
    from conftest import Trial


@pytest.fixture
def tensorflow(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """As much of TensorFlow as is asked."""
    made = types.SimpleNamespace(
        config=types.SimpleNamespace(list_physical_devices=lambda kind: []),
        distribute=types.SimpleNamespace(
            MultiWorkerMirroredStrategy=lambda: "of several",
            MirroredStrategy=lambda: "of GPUs",
            get_strategy=lambda: "",
        ),
    )
    monkeypatch.setitem(sys.modules, "tensorflow", made)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.delenv("DET_CHIEF_IP", raising=False)
    return made


def of_worker(index: int, kind: str = "worker", **cluster: list[str]) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


def test_one_worker_of_tensorflow(tensorflow: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    context, strategy = core.DistributedContext.from_tf_config()
    assert (context.rank, context.size, strategy) == (0, 1, "")
    tensorflow.config.list_physical_devices = lambda kind: [kind, kind]
    monkeypatch.setenv("TF_CONFIG", of_worker(0, worker=["10.0.0.1:2222"]))
    assert core.DistributedContext.from_tf_config()[1] == "of GPUs"


SCRIPT = """
import tensorflow
from determined import core
workers, strategy = core.DistributedContext.from_tf_config()
print(strategy, workers.rank, workers.cross_size, workers.allgather(workers.rank), flush=True)
workers.close()
"""
FAKE = """
class distribute:
    MultiWorkerMirroredStrategy = staticmethod(lambda: "of several")
"""


def test_launcher_starts_a_worker_on_each_container(trial: Trial, tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text(FAKE)
    (tmp_path / "train.py").write_text(SCRIPT)
    trial.write_info()
    started: list[subprocess.Popen[str]] = []
    for rank in range(2):
        folder = tmp_path / f"run-{rank}"
        shutil.copytree(trial.run_dir, folder)
        rendezvous = {"container_addrs": ["127.0.0.1"] * 2, "container_rank": rank, "container_slot_counts": [1, 1]}
        (folder / "info" / "rendezvous.json").write_text(json.dumps(rendezvous))
        search = [str(tmp_path), str(Path(determined.__file__).parents[1])]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(search), "DET_RUN_DIR": str(folder)}
        command = [sys.executable, "-m", "determined.launch.tensorflow", "--port", "2222", "--"]
        started.append(
            subprocess.Popen(
                [*command, sys.executable, str(tmp_path / "train.py")],
                env={**env, "DET_UNIQUE_PORT_OFFSET": "2345"},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    said = [process.communicate(timeout=30 * PATIENCE)[0].splitlines() for process in started]
    assert said == [[f"[rank={rank}] of several {rank} 2 [0, 1]"] for rank in range(2)]


def test_chief_that_is_named_apart_is_the_first() -> None:
    from determined.core._distributed import _tf_config

    cluster = {"chief": ["[::1]:1"], "worker": ["10.0.0.2:2", "10.0.0.3:2"]}
    told = [_tf_config(of_worker(0, "chief", **cluster)), _tf_config(of_worker(1, "worker", **cluster))]
    assert told == [(rank, ["[::1]:1", "10.0.0.2:2", "10.0.0.3:2"]) for rank in (0, 2)]


@pytest.mark.parametrize(
    "text",
    ["{", "{}", of_worker(1, worker=["a:1"]), of_worker(0, "ps", ps=["a:1"]), of_worker(0, ps=["a"], worker=["b"])],
)
def test_wrong_tf_config_is_named(
    tensorflow: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match="the environment variable TF_CONFIG is .*, but must name this task and a clu"):
        core.DistributedContext.from_tf_config()


def test_tensorflow_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(ImportError, match="needs tensorflow, which is not installed here: pip install tensorflow"):
        core.DistributedContext.from_tf_config()


def test_gpus_by_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    class NVMLError(Exception):
        pass

    def name(pid: int) -> bytes:
        if pid == 6:
            raise NVMLError
        return b"python3"

    driver = types.SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}".encode(),
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(used=1, total=4),
        nvmlDeviceGetUtilizationRates=lambda handle: types.SimpleNamespace(gpu=50),
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [
            types.SimpleNamespace(pid=5 + handle, usedGpuMemory=3 * 2**20)
        ],
        nvmlSystemGetProcessName=name,
    )
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    assert gpu.get_gpus() == ([gpu.GPU(0, "GPU-0", 0.5, 0.25), gpu.GPU(1, "GPU-1", 0.5, 0.25)], "cuda")
    assert gpu.get_gpu_uuids() == ["GPU-0", "GPU-1"]
    assert gpu.get_gpu_processes() == [
        gpu.GPUProcess(5, "python3", "GPU-0", "3 MiB"),
        gpu.GPUProcess(6, "", "GPU-1", "3 MiB"),
    ]
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert (gpu.get_gpus(), gpu.get_gpu_uuids(), gpu.get_gpu_processes()) == (([], ""), [], [])


def test_torch_writer_writes_where_the_trial_does(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from determined.tensorboard.metric_writers.pytorch import TorchWriter

    with trial.init() as context:
        writer = TorchWriter()
        writer.add_scalar("loss", 1.0, 1)
        writer.reset()
        assert list(context.train.get_tensorboard_path().glob("*tfevents*"))
        writer.writer.close()
    monkeypatch.setattr(determined._info, "_cached", None)
    monkeypatch.setenv("DET_RUN_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    outside = TorchWriter()
    assert outside.writer.log_dir == str(core.init().train.get_tensorboard_path())
    outside.writer.close()
