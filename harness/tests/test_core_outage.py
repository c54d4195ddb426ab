"""The master is away: what is reported waits on disk, arrives once and in order, and outlives the process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from determined import core, errors
from determined.core import _reporter

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Call, Trial

BATCH = "POST /api/v1/trials/7/metrics/batch"
ACK = "POST /api/v1/allocations/a.1/signals/ack_preemption"


@pytest.fixture
def collected(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As under an agent, which delivers what is left in this folder; but nobody waits for 10 s."""
    folder = trial.run_dir / "spool"
    monkeypatch.setenv("DET_SPOOL_DIR", str(folder))
    monkeypatch.setattr(_reporter, "LEAVE_AFTER_S", 0.3)
    return folder


def on_disk(folder: Path) -> list[tuple[str, Any]]:
    """The entries in a folder, those that are delivered too."""
    contents = [path.read_bytes() for path in sorted(folder.glob("*.spool"))]
    lines = [line for content in contents for line in content[: content.rfind(b"\n") + 1].splitlines()]
    entries = [json.loads(line) for line in lines]
    return [(kind, body) for kind, body in entries if kind not in ("spool", "done")]


def steps_on_disk(folder: Path) -> list[int]:
    return [body["stepsCompleted"] for kind, body in on_disk(folder) if kind == "metrics"]


def arrived(ctx: core.Context) -> None:
    """All reports are there, and the harness knows: no answer is under way."""
    assert ctx._reporter is not None
    ctx._reporter.flush()


def until(condition: Any, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain"
        time.sleep(0.01)


def steps(trial: Trial) -> list[int]:
    """What was reported; a request whose answer was lost comes again under the same key, and counts once."""
    calls = {call.headers["Idempotency-Key"]: call for call in trial.master.of(BATCH)}
    return [report["stepsCompleted"] for call in calls.values() for report in call.body["reports"]]


def test_reports_are_on_disk_soon_after_they_are_made(trial: Trial, quick_backoff: None) -> None:
    folder = trial.run_dir / "spool"
    with trial.init() as ctx:
        ctx.train.report_training_metrics(0, {"loss": 1.0})
        arrived(ctx)
        assert not folder.exists(), "as long as the master answers, the disk is left alone"
        trial.master.stop()
        ctx.train.report_training_metrics(1, {"loss": 1.0})
        until(lambda: steps_on_disk(folder) == [1])
        delays = []
        for step in range(2, 50):
            began = time.monotonic()
            ctx.train.report_training_metrics(step, {"loss": 1.0})
            until(lambda step=step: steps_on_disk(folder)[-1] == step)
            delays.append(time.monotonic() - began)
        print(f"on disk after {max(delays) * 1e3:.0f} ms at most")
        assert sorted(delays)[24] < 0.2
        trial.master.start()
    assert steps(trial) == list(range(50))
    assert list(folder.iterdir()) == []


def test_a_master_that_does_not_answer_counts_as_away(trial: Trial) -> None:
    """It takes the request and falls silent: only time tells."""
    gate = threading.Event()
    trial.master.fault = lambda call: gate.wait(60) and None if call.path.endswith("/batch") else None
    with trial.init() as ctx:
        ctx.train.report_training_metrics(1, {"loss": 1.0})
        ctx.train.report_training_metrics(2, {"loss": 1.0})
        until(lambda: steps_on_disk(trial.run_dir / "spool") == [1, 2])
        gate.set()
    assert steps(trial) == [1, 2]


def test_an_outage_of_any_length_costs_neither_memory_nor_the_loop(
    trial: Trial, quick_backoff: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_reporter, "QUEUE_LIMIT", 500)
    with trial.init() as ctx:
        reporter = ctx._reporter
        assert reporter is not None
        ctx.train.report_training_metrics(0, {"loss": 1.0})
        arrived(ctx)
        trial.master.stop()
        most = 0
        for step in range(1, 20_001):
            ctx.train.report_training_metrics(step, {"loss": 1 / step})
            if step % 100 == 0:
                time.sleep(0.002)
                with reporter._changed:
                    most = max(most, reporter._queue.qsize() + len(reporter._backlog._line))
        until(lambda: len(steps_on_disk(trial.run_dir / "spool")) >= 20_000)
        assert len(reporter._backlog._line) <= 2, "one mark stands for all of it"
        trial.master.start()
    assert steps(trial) == list(range(20_001))
    print(f"at most {most} things in memory")
    assert most <= 600


def test_everything_keeps_its_order_through_an_outage(trial: Trial, quick_backoff: None) -> None:
    """Metrics and an acknowledgement from disk, between them what somebody waits for, and the newest progress."""
    master = trial.master
    trial.lengths = [4, 8]
    with trial.init() as ctx:
        ctx.train.report_training_metrics(0, {"loss": 1.0})
        arrived(ctx)
        master.stop()
        timer = threading.Timer(1.0, master.start)
        timer.start()
        done = 0
        for op in ctx.searcher.operations():
            while done < op.length:
                done += 1
                ctx.train.report_training_metrics(done, {"loss": 1.0})
                ctx.train.report_progress(done / 8)
            with ctx.checkpoint.store_path({"steps_completed": done}):
                pass
            op.report_completed(1.0)
        ctx.preempt.acknowledge_preemption_signal()
        timer.join()
    assert steps(trial) == list(range(9))
    seen = [call for call in master.calls if "signals/preemption" not in call.path]
    last_report = {
        step: max(i for i, c in enumerate(seen) if c.path.endswith("/batch") and step in _steps_of(c))
        for step in (4, 8)
    }
    saved = [i for i, c in enumerate(seen) if c.path == "/api/v1/checkpoints"]
    completed = [i for i, c in enumerate(seen) if c.path.endswith("completed_operation")]
    acked = [i for i, c in enumerate(seen) if c.path.endswith("ack_preemption")]
    assert last_report[4] < saved[0] < completed[0] < last_report[8] < saved[1] < completed[1] < acked[0]
    assert [c["op"]["length"] for c in trial.completed] == [4, 8]
    progress = [c.body["progress"] for c in master.of("POST /api/v1/trials/7/progress")]
    assert progress == sorted(progress)
    assert progress[-1] == 1.0


def _steps_of(call: Call) -> list[int]:
    return [report["stepsCompleted"] for report in call.body["reports"]]


def test_a_second_outage_while_the_first_is_made_up_for(trial: Trial, quick_backoff: None) -> None:
    master = trial.master
    with trial.init() as ctx:
        ctx.train.report_training_metrics(0, {"loss": 1.0})
        arrived(ctx)
        for outage in range(4):
            master.stop()
            for step in range(outage * 400 + 1, outage * 400 + 401):
                ctx.train.report_training_metrics(step, {"loss": 1.0})
            until(lambda outage=outage: _last_on_disk(trial) == outage * 400 + 400)
            seen = len(steps(trial))
            master.start()
            master.wait_for(lambda seen=seen: len(steps(trial)) > seen)
    assert steps(trial) == list(range(1601))


def _last_on_disk(trial: Trial) -> int:
    return (steps_on_disk(trial.run_dir / "spool") or [0])[-1]


def test_a_report_that_is_refused_later_is_raised_and_its_neighbours_are_kept(
    trial: Trial, quick_backoff: None
) -> None:
    def batch(call: Call) -> Any:
        bad = [r for r in call.body["reports"] if r["metrics"]["avgMetrics"].get("bad")]
        return (400, {"message": "bad is not allowed"}) if bad else {}

    trial.master.answer(BATCH, batch)
    with pytest.raises(errors.InvalidRequestException, match="bad is not allowed"), trial.init() as ctx:
        trial.master.stop()
        for step in range(50):
            ctx.train.report_training_metrics(step, {"bad": step == 20})
        ctx.train.report_training_metrics(50, {"model": object()})
        with pytest.raises(errors.InvalidDataTypeException):
            until(lambda: ctx.train.report_training_metrics(51, {"bad": False}))
        trial.master.start()
    accepted = [s for c in trial.master.of(BATCH) if not batch(c) for s in _steps_of(c)]
    assert sorted(set(accepted)) == [s for s in range(52) if s not in (20, 50)]


def test_an_error_of_ours_is_raised_and_does_not_come_back_for_ever(
    trial: Trial, quick_backoff: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ZeroDivisionError), trial.init() as ctx:
        assert ctx._reporter is not None
        trial.master.stop()
        for step in range(10):
            ctx.train.report_training_metrics(step, {"loss": 1.0})
        until(lambda: len(steps_on_disk(trial.run_dir / "spool")) == 10)
        request = ctx._reporter._session.request
        failures: list[int] = []

        def broken(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("body") and not failures:
                failures.append(1)
                raise ZeroDivisionError
            return request(*args, **kwargs)

        monkeypatch.setattr(ctx._reporter._session, "request", broken)
        trial.master.start()
    assert len(failures) == 1
    assert set(steps(trial)) < set(range(10)), "what met it is left out, the rest is there"


@pytest.mark.parametrize("status", [401, 403])
def test_nothing_is_kept_for_an_allocation_that_has_ended(trial: Trial, status: int, quick_backoff: None) -> None:
    """A late copy of a trial that was given up: the master is back, and takes nothing from it."""
    trial.master.answer(BATCH, (status, {"message": "allocation a.1 is over"}))
    with pytest.raises(errors.AllocationEnded), trial.init() as ctx:
        trial.master.stop()
        for step in range(300):
            ctx.train.report_training_metrics(step, {"loss": 1.0})
        until(lambda: len(steps_on_disk(trial.run_dir / "spool")) == 300)
        trial.master.start()
        until(lambda: ctx.train.report_training_metrics(300, {"loss": 1.0}))
    assert len(trial.master.of(BATCH)) == 1
    assert list((trial.run_dir / "spool").iterdir()) == []


# -- the end of a process


def test_a_process_that_ends_leaves_the_rest_to_the_agent(
    trial: Trial, collected: Path, quick_backoff: None, caplog: pytest.LogCaptureFixture
) -> None:
    with trial.init() as ctx:
        trial.master.stop()
        for step in range(200):
            ctx.train.report_training_metrics(step, {"loss": 1.0})
        ctx.train.report_progress(0.5)
        ctx.train.report_progress(1.0)
        ctx.preempt.acknowledge_preemption_signal()
        began = time.monotonic()
    assert time.monotonic() - began < 20
    assert steps_on_disk(collected) == list(range(200))
    rest = [entry for entry in on_disk(collected) if entry[0] != "metrics"]
    assert rest == [("ack", None), ("progress", {"progress": 1.0, "isRaw": True})]
    assert "reports are left in" in caplog.text


def test_a_short_outage_is_waited_for(trial: Trial, collected: Path, quick_backoff: None) -> None:
    with trial.init() as ctx:
        trial.master.stop()
        ctx.train.report_training_metrics(1, {"loss": 1.0})
        threading.Timer(0.1, trial.master.start).start()
    assert steps(trial) == [1]
    assert not any(collected.iterdir())


def test_a_failed_process_leaves_the_rest_too_and_its_own_error_is_shown(
    trial: Trial, collected: Path, quick_backoff: None
) -> None:
    with pytest.raises(KeyError, match="mine"), trial.init() as ctx:
        trial.master.stop()
        ctx.train.report_training_metrics(1, {"loss": 1.0})
        raise KeyError("mine")
    assert steps_on_disk(collected) == [1]


def test_a_master_that_hangs_does_not_keep_the_process(trial: Trial, collected: Path) -> None:
    gate = threading.Event()
    trial.master.fault = lambda call: gate.wait(60) and None if call.path.endswith("/batch") else None
    with trial.init() as ctx:
        ctx.train.report_training_metrics(1, {"loss": 1.0})
        ctx.train.report_training_metrics(2, {"loss": 1.0})
        began = time.monotonic()
    assert time.monotonic() - began < 20
    gate.set()
    assert steps_on_disk(collected) == [1, 2]


def test_what_a_process_left_comes_first_in_the_next_one(trial: Trial, collected: Path, quick_backoff: None) -> None:
    """A launcher in the container may start the training again, as torchrun does."""
    for first in (0, 100):
        with trial.init() as ctx:
            trial.master.stop()
            for step in range(first, first + 100):
                ctx.train.report_training_metrics(step, {"loss": 1.0})
        assert steps_on_disk(collected) == list(range(first + 100))
        trial.master.start()
    with trial.init() as ctx:
        ctx.train.report_training_metrics(200, {"loss": 1.0})
    assert steps(trial) == list(range(201))
    assert list(collected.iterdir()) == []


def test_an_outage_without_anybody_to_leave_it_to_is_an_error_in_the_end(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, quick_backoff: None, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_reporter, "EXIT_LIMIT_S", 0.5)
    with pytest.raises(errors.MasterNotFoundException, match="can't reach the master"), trial.init() as ctx:
        trial.master.stop()
        ctx.train.report_training_metrics(1, {"loss": 1.0})
    assert steps_on_disk(trial.run_dir / "spool") == [1]
    assert "1 reports were not sent; they are in" in caplog.text


SCRIPT = """
import os, sys, time
from determined import core
with core.init() as context:
    context.train.report_training_metrics(0, {"loss": 1.0})
    context._reporter.flush()
    print("0", flush=True)
    sys.stdin.readline()
    for step in range(1, 1_000_000):
        context.train.report_training_metrics(step, {"loss": 1.0})
        print(step, flush=True)
        time.sleep(0.002)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_a_killed_process_loses_nothing_that_it_reported(trial: Trial, how: signal.Signals) -> None:
    trial.write_info()
    folder = trial.run_dir / "spool"
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        env={**os.environ, "DET_SPOOL_DIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process, process.stdin, process.stdout:
        assert process.stdout.readline() == "0\n"
        trial.master.stop()
        process.stdin.write("\n")
        process.stdin.flush()
        while int(process.stdout.readline()) < 100:
            pass
        process.send_signal(how)
        told = [int(line) for line in process.stdout.read().splitlines()]
    found = steps_on_disk(folder)
    # What was made within the last moment may not have reached the disk: milliseconds, on a machine that is not busy.
    missing = max([100, *told]) - found[-1]
    print(f"{missing} reports of 2 ms each were not on disk yet")
    assert missing <= 100


def test_a_disk_that_takes_nothing_does_not_end_the_training(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, quick_backoff: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Reports then wait in memory; when that is full, the loop waits for room."""
    monkeypatch.setattr(_reporter, "QUEUE_LIMIT", 50)
    monkeypatch.setattr(_reporter, "_DISK_RETRY_S", 0.05)
    trial.run_dir.mkdir(exist_ok=True)
    (trial.run_dir / "spool").write_text("not a folder")
    with trial.init() as ctx:
        trial.master.stop()
        done = threading.Event()

        def report() -> None:
            for step in range(400):
                ctx.train.report_training_metrics(step, {"loss": 1.0})
            done.set()

        thread = threading.Thread(target=report)
        thread.start()
        assert not done.wait(0.5)
        trial.master.start()
        assert done.wait(10)
        thread.join()
    assert steps(trial) == list(range(400))
    assert caplog.text.count("reports can't be kept on disk") == 1


def test_a_disk_that_fills_up_keeps_what_it_has(trial: Trial, tmp_path: Path) -> None:
    """RLIMIT_FSIZE stands for the full disk; room comes back in the same outage."""
    trial.write_info()
    folder = trial.run_dir / "spool"
    script = """
    import resource, sys, time
    from determined.core import _reporter
    from determined import core
    _reporter._DISK_RETRY_S = 0.2
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    with core.init() as context:
        sys.stdin.readline()
        for step in range(1000):
            context.train.report_training_metrics(step, {"loss": 1.0})
            time.sleep(0.0005)
        print("reported", flush=True)
        sys.stdin.readline()
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        for step in range(1000, 1100):
            context.train.report_training_metrics(step, {"loss": 1.0})
        print("reported", flush=True)
        sys.stdin.readline()
    """
    log = tmp_path / "stderr"  # a pipe that nobody reads would hold the process up when it is full
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script)],
            env={**os.environ, "DET_SPOOL_DIR": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    with process, process.stdin, process.stdout:

        def go_on() -> None:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()

        trial.master.stop()
        go_on()
        assert process.stdout.readline() == "reported\n"
        until(lambda: len(steps_on_disk(folder)) > 50)
        assert len(steps_on_disk(folder)) < 400
        go_on()
        assert process.stdout.readline() == "reported\n"
        until(lambda: len(steps_on_disk(folder)) == 1100)
        trial.master.start()
        go_on()
        assert process.wait(30) == 0, log.read_text()
    told = log.read_text()
    assert told.count("reports can't be kept on disk") == 1
    assert "Traceback" not in told, "TensorBoard's events meet the full disk too"
    assert steps(trial) == list(range(1100))
