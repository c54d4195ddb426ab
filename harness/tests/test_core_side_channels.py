"""What runs beside the training: TensorBoard, the profiler, alerts. None of it costs a step, or ends one."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from determined import core, errors, gpu
from determined.core import _system, _tensorboard

if TYPE_CHECKING:
    from conftest import Trial

BATCH = "POST /api/v1/trials/7/metrics/batch"
ALERT = "POST /api/v1/webhooks/custom"
TORCH_PYTHON = Path(__file__).parents[2] / ".venv-torch" / "bin" / "python"


def _until(found: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + 30
    while not (value := found()):
        assert time.monotonic() < deadline, f"still waiting for {what}"
        time.sleep(0.02)
    return value


def _copied(trial: Trial) -> Path:
    return trial.storage / "cluster" / "tensorboard" / "experiment" / "3" / "trial" / "7"


# -- TensorBoard ------------------------------------------------------------------------------------------------------

SCRIPT = """
import json, sys
from determined import core

with core.init() as context:
    train = context.train
    train.report_training_metrics(1, {"loss": 0.5, "name": "text", "odd": float("nan")})
    train.report_training_metrics(2, {"loss": 0.25, "nested": {"a": 1}, "raw": b"bytes"})
    train.report_validation_metrics(2, {"accuracy": 0.75, "val_loss": 0.5})
    train.report_metrics("inference", 3, {"score": 7})
loaded = [name for name in ("numpy", "boto3", "tensorboard.summary") if name in sys.modules]
assert not loaded, f"a short trial has no time for {loaded}"

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

seen = EventAccumulator(sys.argv[1])
seen.Reload()
print(json.dumps({t: [(e.step, str(e.value)) for e in seen.Scalars(t)] for t in seen.Tags()["scalars"]}))
"""


def test_metrics_are_written_for_tensorboard_in_auto_mode(trial: Trial, tmp_path: Path) -> None:
    trial.write_info()
    done = subprocess.run([TORCH_PYTHON, "-c", SCRIPT, _copied(trial)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "Determined/loss": [[1, "0.5"], [2, "0.25"]],
        "Determined/odd": [[1, "nan"]],
        "Determined/val_accuracy": [[2, "0.75"]],
        "Determined/val_loss": [[2, "0.5"]],
        "Determined/inference/score": [[3, "7.0"]],
    }


@pytest.mark.parametrize("data", [b"", b"a", b"123456789", bytes(range(256)) * 40])
def test_records_are_those_that_tensorboard_writes_itself(data: bytes) -> None:
    from tensorboard.summary.writer.record_writer import RecordWriter

    written = io.BytesIO()
    RecordWriter(written).write(data)
    assert _tensorboard._framed(data) == written.getvalue()


TORCH_PROFILER = """
import torch
from determined import core

with core.init() as context:
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=1),
        on_trace_ready=torch.profiler.tensorboard_trace_handler(str(context.train.get_tensorboard_path()), "worker"),
    ) as profiler:
        for _ in range(2):
            torch.ones(8, 8) @ torch.ones(8, 8)
            profiler.step()
"""


def test_traces_of_torchs_profiler_are_copied_with_the_rest(trial: Trial) -> None:
    trial.write_info()
    done = subprocess.run([TORCH_PYTHON, "-c", TORCH_PROFILER], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (trace,) = _copied(trial).glob("worker.*.pt.trace.json")
    assert any("mm" in event.get("name", "") for event in json.loads(trace.read_text())["traceEvents"])


def test_files_are_copied_while_the_trial_runs_and_at_its_end(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tensorboard, "_SYNC_S", 0.05)
    copies: list[str] = []
    put = _tensorboard.TensorboardFiles._put

    def note(self: Any, file: Path, name: Any) -> None:
        copies.append(str(name))
        put(self, file, name)

    monkeypatch.setattr(_tensorboard.TensorboardFiles, "_put", note)
    with trial.init() as ctx:
        path = ctx.train.get_tensorboard_path()
        (path / "host.pt.trace.json").write_text("{}")
        (path / "deep").mkdir()
        (path / "deep" / "events").write_text("one")
        _until(lambda: (_copied(trial) / "deep" / "events").exists(), "the first copy")
        (path / "deep" / "events").write_text("one, two")
        _until(lambda: (_copied(trial) / "deep" / "events").read_text() == "one, two", "the changed file")
        (path / "last").write_text("x")
    assert (_copied(trial) / "last").read_text() == "x"
    assert copies.count("host.pt.trace.json") == 1, "what has not changed is not copied again"


def test_missing_tensorboard_is_told_once(
    trial: Trial, caplog: pytest.LogCaptureFixture, without_tensorboard: None
) -> None:
    with caplog.at_level(logging.INFO, "determined.core"), trial.init() as ctx:
        for step in range(3):
            ctx.train.report_training_metrics(step, {"loss": 1.0})
    told = [r.getMessage() for r in caplog.records if "TensorBoard" in r.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("TensorBoard gets no metrics of this trial: ")
    assert told[0].endswith("`pip install tensorboard` in its image changes that")
    assert not _copied(trial).exists()
    assert not list(trial.run_dir.glob("tensorboard-*")), "no folder for nothing"


def test_manual_mode_writes_and_copies_nothing_by_itself(trial: Trial) -> None:
    with trial.init(tensorboard_mode=core.TensorboardMode.MANUAL) as ctx:
        (ctx.train.get_tensorboard_path() / "events").write_text("e")
        ctx.train.report_training_metrics(1, {"loss": 1.0})
    assert not _copied(trial).exists()
    assert not [t for t in threading.enumerate() if t.name == "determined-tensorboard"]


def test_broken_storage_of_tensorboard_is_told_once_and_training_goes_on(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_tensorboard, "_SYNC_S", 0.01)
    tries = 0

    def refuse(self: Any, file: Path, name: Any) -> None:
        nonlocal tries
        tries += 1
        raise OSError("no space left")

    monkeypatch.setattr(_tensorboard.TensorboardFiles, "_put", refuse)
    with trial.init() as ctx:
        (ctx.train.get_tensorboard_path() / "events").write_text("e")
        _until(lambda: tries >= 3, "three tries")
        ctx.train.report_training_metrics(1, {"loss": 1.0})
    assert len(trial.master.of(BATCH)) == 1
    told = [r.getMessage() for r in caplog.records if "TensorBoard:" in r.getMessage()]
    assert told == ["TensorBoard: OSError: no space left; training goes on, and this is not repeated"]


FULL_DISK = """
import pathlib, resource, sys, time
from determined import core

def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        if time.monotonic() > deadline:
            sys.exit("waited for 30 s in vain")
        time.sleep(0.01)

with core.init() as context:
    waiting = context._tensorboard._queue
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
    for step in range(2000):
        context.train.report_training_metrics(step, {"loss": 1.0})
    until(waiting.empty)
    (context.train.get_tensorboard_path() / "notes.txt").write_text("mine")
    # copied by the thread that writes the events: all that were waiting have met the full disk by then
    until((pathlib.Path(sys.argv[1]) / "notes.txt").exists)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    context.train.report_training_metrics(2000, {"loss": 1.0})
"""


def test_full_disk_is_told_once_and_tensorboard_goes_on_when_there_is_room(trial: Trial) -> None:
    """RLIMIT_FSIZE stands for the full disk."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    trial.write_info()
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, _copied(trial)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "TensorBoard" in line]
    assert told == [
        "TensorBoard: metrics are not written for it: OSError: [Errno 27] File too large; training goes on, and this "
        "is not repeated"
    ]
    assert "Traceback" not in done.stderr
    (file,) = _copied(trial).glob("*tfevents*")
    steps = [event.step for event in EventFileLoader(str(file)).Load() if event.summary.value]
    assert steps == [*range(len(steps) - 1), 2000]
    assert 10 < len(steps) < 1000
    assert [report["stepsCompleted"] for report in trial.master.reports()] == list(range(2001))


def test_storage_that_hangs_does_not_hold_up_the_end(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_tensorboard, "_SYNC_S", 0.01)
    monkeypatch.setattr(_tensorboard, "_CLOSE_S", 0.2)
    asked, goes_on = threading.Event(), threading.Event()

    def hang(self: Any, file: Path, name: Any) -> None:
        asked.set()
        goes_on.wait(60)

    monkeypatch.setattr(_tensorboard.TensorboardFiles, "_put", hang)
    try:
        with trial.init() as ctx:
            (ctx.train.get_tensorboard_path() / "events").write_text("e")
            assert asked.wait(30)
        assert not goes_on.is_set()
        assert "the storage has not taken the files" in caplog.text
    finally:
        goes_on.set()
        for thread in threading.enumerate():
            if thread.name == "determined-tensorboard":
                thread.join(30)


# -- the profiler -----------------------------------------------------------------------------------------------------


def _groups(trial: Trial) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for call in trial.master.of(BATCH):
        for report in call.body["reports"]:
            if report["stepsCompleted"] is None:
                assert report["reportTime"]
                found.setdefault(report["group"], []).append(report["metrics"]["avgMetrics"])
    return found


def test_profiler_reports_means_of_samples_by_agent(trial: Trial) -> None:
    with trial.init() as ctx:
        ctx.profiler.on(sampling_interval=0.1, samples_per_report=3)
        _until(lambda: len(_groups(trial).get("network", [])) >= 2, "two reports")
        ctx.profiler.off()
    groups = _groups(trial)
    assert {"cpu", "memory", "network"} <= set(groups)
    assert 0 <= groups["cpu"][0]["agent"]["cpu_util_simple"] <= 100
    free = groups["memory"][0]["agent"]["memory_free"]
    assert 0.2 < free / psutil.virtual_memory().available < 5
    assert set(groups["network"][0]["agent"]) == {"net_throughput_sent", "net_throughput_recv"}
    assert set(groups["disk"][0]["agent"]) >= {"/"}
    assert not [t for t in threading.enumerate() if t.name == "determined-profiler"]


def test_profiler_is_on_from_the_start_if_the_configuration_says_so(trial: Trial) -> None:
    with trial.init() as ctx:
        assert ctx.profiler._thread is None
    trial.config["profiling"] = {"enabled": True}
    with trial.init() as ctx:
        assert ctx.profiler._thread is not None
    assert ctx.profiler._thread is None


def test_profiler_measures_once_a_machine(trial: Trial) -> None:
    numbers = {"rank": 1, "size": 2, "local_rank": 1, "local_size": 2, "cross_rank": 0, "cross_size": 1}
    second = SimpleNamespace(**numbers)
    profiler = core.ProfilerContext("agent", object(), second)  # type: ignore[arg-type]
    profiler.on()
    assert profiler._thread is None
    profiler.off()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.05, 10), r"sampling_interval is 0\.05, but must be 0\.1"),
        ((float("nan"), 10), "sampling_interval is nan"),
        ((1, 0), "samples_per_report is 0, but must be 1 or more"),
    ],
)
def test_profiler_refuses_what_it_cannot_measure(trial: Trial, arguments: tuple[float, int], message: str) -> None:
    with trial.init() as ctx, pytest.raises(ValueError, match=message):
        ctx.profiler.on(*arguments)


def test_profiler_that_is_on_stays_as_it_is(trial: Trial, caplog: pytest.LogCaptureFixture) -> None:
    with trial.init() as ctx:
        ctx.profiler.on(5, 5)
        thread = ctx.profiler._thread
        ctx.profiler.on(6, 6)
        assert ctx.profiler._thread is thread
    assert "the profiler is on already" in caplog.text


def test_what_cannot_be_measured_is_told_once_and_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def withheld() -> None:
        raise PermissionError("/proc/diskstats")

    monkeypatch.setattr(psutil, "disk_io_counters", withheld)
    system = _system.System()
    found = [system.sample() for _ in range(3)]
    assert all("disk" not in sample and "cpu" in sample for sample in found)
    assert [r.getMessage() for r in caplog.records] == [
        "the profiler can't measure disk: PermissionError: /proc/diskstats; the rest goes on"
    ]


def test_machine_that_cannot_be_measured_at_all_is_told(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: Any) -> None:
        raise PermissionError("/proc/stat")

    monkeypatch.setattr(_system.System, "__init__", broken)
    with trial.init() as ctx:
        ctx.profiler.on(0.1, 1)
        ctx.profiler.off()
        ctx.train.report_training_metrics(1, {"loss": 1.0})
    assert "the profiler can't measure this machine: PermissionError: /proc/stat; training goes on" in caplog.text
    assert len(trial.master.of(BATCH)) == 1


class Nvml:
    """A driver of two GPUs, the second of which is a part of one (MIG). There is none on a machine of CI."""

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):
        pass

    def __init__(self) -> None:
        self.is_open = False

    def nvmlInit(self) -> None:
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index > 1:
            raise self.NVMLError
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        if uuid not in ("GPU-a", "MIG-b"):
            raise self.NVMLError
        return ("GPU-a", "MIG-b").index(uuid)

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return ("GPU-a", "MIG-b")[handle]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(free=1000 * (handle + 1))

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        if handle == 1:
            raise self.NVMLError_NotSupported
        return SimpleNamespace(gpu=50)


def test_gpus_are_measured_by_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Nvml()
    monkeypatch.setitem(__import__("sys").modules, "pynvml", driver)
    system = _system.System()
    assert system.sample()["gpu"] == {
        "GPU-a": {"gpu_free_memory": 1000, "gpu_util": 50},
        "MIG-b": {"gpu_free_memory": 2000},
    }
    system.close()
    assert not driver.is_open


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (None, ["GPU-a", "MIG-b"]),
        ("", []),
        ("MIG-b", ["MIG-b"]),
        ("MIG-b, GPU-a", ["MIG-b", "GPU-a"]),
        ("1", ["MIG-b"]),
        ("GPU-a,GPU-gone,MIG-b", ["GPU-a"]),
        ("7,0", []),
        ("-1", []),
    ],
)
def test_gpus_of_other_trials_are_not_measured(
    monkeypatch: pytest.MonkeyPatch, names: str | None, expected: list[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", Nvml())
    if names is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
    assert list(_system.System().sample().get("gpu", {})) == expected
    assert gpu.get_gpu_uuids() == expected


def test_profiler_neither_waits_nor_takes_an_error_that_is_the_training_codes(trial: Trial) -> None:
    trial.master.answer(BATCH, lambda call: (400, {"message": "no such metric"}))
    with pytest.raises(errors.InvalidRequestException, match="no such metric"), trial.init() as ctx:
        ctx.train.report_training_metrics(1, {"loss": 1.0})
        _until(lambda: trial.master.of(BATCH), "the refusal")
        for _ in range(3):
            ctx.train._reporter.offer_metrics("cpu", {"agent": {"cpu_util_simple": 1.0}})


# -- alerts -----------------------------------------------------------------------------------------------------------


def test_alert_reaches_the_webhooks_of_the_experiment(trial: Trial) -> None:
    trial.master.answer(ALERT, {})
    with trial.init() as ctx:
        ctx.alert("loss is up", "by half", "warn")
        ctx.alert()
    first, second = (call.body for call in trial.master.of(ALERT))
    assert first == {
        "data": {"title": "loss is up", "description": "by half", "level": "LOG_LEVEL_WARNING"},
        "experimentId": 3,
        "trialId": 7,
    }
    assert second["data"] == {"title": "", "description": "", "level": "LOG_LEVEL_INFO"}


def test_alert_of_an_unknown_level_is_refused(trial: Trial) -> None:
    with trial.init() as ctx, pytest.raises(ValueError, match="level is 'loud', but must be one of 'debug', 'info'"):
        ctx.alert("x", level="loud")  # type: ignore[arg-type]


def test_alert_that_is_not_taken_does_not_end_training(trial: Trial, caplog: pytest.LogCaptureFixture) -> None:
    trial.master.answer(ALERT, lambda call: (400, {"message": "too many wait"}))
    with trial.init() as ctx:
        ctx.alert("first")
        ctx.train.report_training_metrics(1, {"loss": 1.0})
    assert len(trial.master.of(BATCH)) == 1
    assert "the alert 'first' was not sent: too many wait" in caplog.text


def test_alerts_of_an_outage_are_bounded(trial: Trial, caplog: pytest.LogCaptureFixture) -> None:
    goes_on = threading.Event()
    trial.master.answer(ALERT, lambda call: goes_on.wait(60) and {})
    with trial.init() as ctx:
        for number in range(103):
            ctx.alert(f"number {number}")
        goes_on.set()
    assert [call.body["data"]["title"] for call in trial.master.of(ALERT)] == [f"number {n}" for n in range(100)]
    assert [r.getMessage() for r in caplog.records] == [
        f"the alert 'number {n}' is left out: 100 wait for the master already" for n in (100, 101, 102)
    ]


def test_outside_of_a_cluster_all_of_it_goes_to_the_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DET_RUN_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with caplog.at_level(logging.INFO, "determined.core"), core.init() as ctx:
        ctx.profiler.on()
        ctx.profiler.off()
        ctx.alert("title", "text", "error")
        assert ctx.train.get_metadata() == {}
        ctx.train.set_metadata({"commit": "abc"})
        assert ctx.train.get_metadata() == {"commit": "abc"}
        ctx.experimental.report_task_using_checkpoint(SimpleNamespace(uuid="u1"))  # type: ignore[arg-type]
    for text in ("measures nothing outside", "alert (error): title: text", "{'commit': 'abc'}", "'u1'"):
        assert text in caplog.text
