"""The workers of a job: how they meet, exchange objects, and notice that one is missing. Real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from determined import core, errors
from determined.core import _frames, _spoke
from determined.core._distributed import DistributedContext
from tests.kit.patience import PATIENCE
from tests.kit.servers import free_port

if TYPE_CHECKING:
    from conftest import Trial

ACK = "POST /api/v1/allocations/a.1/signals/ack_preemption"
POLL = "GET /api/v1/allocations/a.1/signals/preemption"


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    # A token of its own for each test: no test meets the workers of another.
    monkeypatch.setenv("DET_DISTRIBUTED_TOKEN", os.urandom(8).hex())
    monkeypatch.setenv("DET_GANG_TIMEOUT_S", "20")
    monkeypatch.setenv("DET_COLLECTIVE_TIMEOUT_S", "20")


@pytest.fixture(autouse=True)
def _is_heard(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """libzmq says why it aborts a process on stderr; what was captured of it would be lost with the process."""
    with capfd.disabled():
        yield


@pytest.fixture
def port() -> int:
    return free_port()


def _numbers(rank: int, size: int, machines: int = 1) -> dict[str, int]:
    local_size = size // machines
    return {
        "rank": rank,
        "size": size,
        "local_rank": rank % local_size,
        "local_size": local_size,
        "cross_rank": rank // local_size,
        "cross_size": machines,
    }


class Threads:
    """Workers as threads of this process: each has connections of its own."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.pool = ThreadPoolExecutor(count)

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """What `work(rank)` returned on each rank, or the error that it raised."""

        def one(rank: int) -> Any:
            try:
                return work(rank)
            except Exception as e:  # noqa: BLE001
                return e

        return [future.result(60) for future in [self.pool.submit(one, rank) for rank in range(self.count)]]


@pytest.fixture
def threads() -> Iterator[Callable[[int], Threads]]:
    made: list[Threads] = []

    def make(count: int) -> Threads:
        made.append(Threads(count))
        return made[-1]

    yield make
    for pool in made:
        pool.pool.shutdown()


def _process(rank: int, size: int, script: str, **numbers: int) -> subprocess.Popen[str]:
    """A worker with `dist`, that runs a script and prints."""
    given = {**_numbers(rank, size), **numbers}
    source = (
        "import os, sys, time\nfrom determined.core._distributed import DistributedContext\n"
        f"rank = {rank}\ndist = DistributedContext(**{given!r})\n{script}"
    )
    worker = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    _started.append(worker)
    return worker


_started: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _reap() -> Iterator[None]:
    yield
    while _started:
        worker = _started.pop()
        worker.kill()
        worker.wait()
        for pipe in (worker.stdout, worker.stderr):
            assert pipe is not None
            pipe.close()


EVERYTHING = """
print(dist.gather({"from": rank}))
print(dist.allgather(rank))
print(dist.broadcast(f"from {rank}"))
print(dist.gather_local(rank), dist.allgather_local(rank), dist.broadcast_local(rank))
dist.close()
dist.close()
"""


@pytest.mark.parametrize("size", [2, 4])
def test_processes_of_one_machine_exchange_objects(size: int) -> None:
    workers = [_process(rank, size, EVERYTHING) for rank in range(size)]
    outputs = [worker.communicate(timeout=30 * PATIENCE) for worker in workers]
    everybody = list(range(size))
    for rank, (out, err) in enumerate(outputs):
        assert err == ""
        assert out.splitlines() == [
            str([{"from": r} for r in everybody] if rank == 0 else None),
            str(everybody),
            "from 0",
            f"{everybody if rank == 0 else None} {everybody} 0",
        ]


@pytest.mark.parametrize("force_tcp", [False, True])
def test_two_machines_of_two(force_tcp: bool, port: int, threads: Callable[[int], Threads]) -> None:
    def work(rank: int) -> Any:
        dist = DistributedContext(
            **_numbers(rank, 4, 2), chief_ip="127.0.0.1", pull_port=port - 1, port_offset=1, force_tcp=force_tcp
        )
        assert dist.pull_port == port
        found = [dist.gather(rank), dist.allgather(rank), dist.broadcast(rank)]
        found += [dist.gather_local(rank), dist.allgather_local(rank), dist.broadcast_local(rank)]
        dist.close()
        return found

    assert threads(4).run(work) == [
        [[0, 1, 2, 3], [0, 1, 2, 3], 0, [0, 1], [0, 1], 0],
        [None, [0, 1, 2, 3], 0, None, [0, 1], 0],
        [None, [0, 1, 2, 3], 0, [2, 3], [2, 3], 2],
        [None, [0, 1, 2, 3], 0, None, [2, 3], 2],
    ]


def test_bursts_stay_in_order(threads: Callable[[int], Threads]) -> None:
    def work(rank: int) -> Any:
        dist = DistributedContext(**_numbers(rank, 4))
        if rank == 3:
            time.sleep(0.3)  # the others run ahead
        gathered = [dist.gather((i, rank)) for i in range(300)]
        told = [dist.broadcast((i, rank)) for i in range(300)]
        both = [dist.allgather(i) for i in range(50)]
        dist.close()
        return gathered, told, both

    for rank, (gathered, told, both) in enumerate(threads(4).run(work)):
        assert gathered == [[(i, r) for r in range(4)] if rank == 0 else None for i in range(300)]
        assert told == [(i, 0) for i in range(300)]
        assert both == [[i] * 4 for i in range(50)]


def test_100_mb_arrive(threads: Callable[[int], Threads]) -> None:
    def work(rank: int) -> Any:
        dist = DistributedContext(**_numbers(rank, 2))
        gathered = dist.gather(bytes([rank]) * (100 << 20))
        told = dist.broadcast(b"x" * (100 << 20) if rank == 0 else None)
        dist.close()
        return gathered and [(part[0], len(part)) for part in gathered], len(told)

    assert threads(2).run(work) == [([(0, 100 << 20), (1, 100 << 20)], 100 << 20), (None, 100 << 20)]


def test_what_was_sent_last_arrives_without_close() -> None:
    chief = _process(0, 2, "time.sleep(0.5)\nprint(len(dist.gather(b'')[1]))")
    worker = _process(1, 2, "dist.gather(bytes(50 << 20))")
    assert worker.wait(30) == 0
    assert chief.communicate(timeout=30 * PATIENCE) == (f"{50 << 20}\n", "")


# -- what goes wrong


def test_a_rank_that_does_not_come_is_named(threads: Callable[[int], Threads], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DET_GANG_TIMEOUT_S", "1")
    present = [0, 1, 4]
    found = threads(3).run(lambda i: DistributedContext(**_numbers(present[i], 5)))
    for error in found:
        assert isinstance(error, errors.DistributedError)
        assert "waited 1 s for ranks 2 and 3 of 5 to arrive" in str(error)
    (alone,) = threads(1).run(lambda _: DistributedContext(**_numbers(1, 2)))
    assert isinstance(alone, errors.DistributedError)
    assert "waited 1 s for rank 0, which is not to be reached at ipc://" in str(alone)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"rank": 1, "size": 3, "local_rank": 1, "local_size": 3}, "rank 1 has size=3, but rank 0 has size=2"),
        (
            {"rank": 1, "size": 2, "local_rank": 0, "local_size": 1, "cross_rank": 1, "cross_size": 2},
            "rank 1 has cross_size=2, but rank 0 has cross_size=1",
        ),
    ],
)
def test_workers_that_contradict_the_chief_are_named(
    second: dict[str, int], message: str, port: int, threads: Callable[[int], Threads]
) -> None:
    tcp: dict[str, Any] = {"chief_ip": "127.0.0.1", "pull_port": port, "force_tcp": True}
    numbers = [_numbers(0, 2), {**_numbers(1, 2), **second}]
    found = threads(2).run(lambda rank: DistributedContext(**numbers[rank], **tcp))
    assert [str(error) for error in found] == [message, message]


def test_two_workers_of_one_number_are_named(threads: Callable[[int], Threads]) -> None:
    ranks = [0, 1, 1]
    found = threads(3).run(lambda i: DistributedContext(**_numbers(ranks[i], 3)))
    for error in found:
        assert "two workers say that they are rank 1: process" in str(error)
        assert isinstance(error, errors.DistributedError)


def test_a_worker_without_the_token_is_refused(
    port: int, threads: Callable[[int], Threads], monkeypatch: pytest.MonkeyPatch
) -> None:
    import pickle

    import zmq

    monkeypatch.setenv("DET_GANG_TIMEOUT_S", "1.5")
    keys = iter([b"one" * 8, b"two" * 8])
    lock = threading.Lock()

    def key() -> bytes:
        with lock:
            return next(keys)

    monkeypatch.setattr("determined.core._distributed._key", key)
    tcp: dict[str, Any] = {"chief_ip": "127.0.0.1", "pull_port": port, "force_tcp": True}
    loaded: list[Any] = []
    monkeypatch.setattr(pickle, "loads", lambda *a: loaded.append(a))
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.connect(f"tcp://127.0.0.1:{port}")
    for frames in ([b""], [b"x", b"y", b"z"], [_frames.HEAD.pack(b"D", 0, 1, 1), b"0" * 32, pickle.dumps(1)]):
        stranger.send_multipart(frames)
    chief, worker = threads(2).run(lambda rank: DistributedContext(**_numbers(rank, 2), **tcp))
    context.destroy(0)
    assert "rank 1 of 2 to arrive; a client without this job's token was refused" in str(chief)
    assert "the workers' tokens differ: set DET_DISTRIBUTED_TOKEN" in str(worker)
    assert loaded == []


def test_a_worker_that_is_killed_is_named_at_once() -> None:
    workers = [
        _process(0, 3, "dist.gather(0)\nprint(flush=True)\ndist.gather(1)"),
        _process(1, 3, "dist.gather(0)\ndist.broadcast(0)"),
        _process(2, 3, "dist.gather(0)\ntime.sleep(60)"),
    ]
    assert workers[0].stdout is not None
    assert workers[0].stdout.readline()
    began = time.monotonic()
    workers[2].send_signal(signal.SIGKILL)
    for worker in workers[:2]:
        _, err = worker.communicate(timeout=20 * PATIENCE)
        assert "rank 2 is gone: its process has ended, or its connection is lost" in err
    assert time.monotonic() - began < 10


def test_a_chief_that_is_killed_is_named_at_once() -> None:
    chief = _process(0, 2, "time.sleep(0.3)\nos.kill(os.getpid(), 9)")
    worker = _process(1, 2, "dist.broadcast(0)")
    _, err = worker.communicate(timeout=20 * PATIENCE)
    chief.communicate(timeout=20 * PATIENCE)
    assert "rank 0 is gone: its process has ended" in err


def test_a_rank_that_never_calls_is_named(threads: Callable[[int], Threads], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DET_COLLECTIVE_TIMEOUT_S", "1")
    done = threading.Event()

    def work(rank: int) -> Any:
        dist = DistributedContext(**_numbers(rank, 3))
        try:
            if rank == 1:
                done.wait(20)
            dist.allgather(rank)
        except errors.DistributedError:
            done.set()
            with pytest.raises(errors.DistributedError):
                dist.broadcast(1)  # nothing more after an error
            raise
        finally:
            dist.close()

    chief, _, worker = threads(3).run(work)
    assert str(chief) == "waited 1 s for rank 1 in allgather (call 1 of this group)"
    assert "waited 1 s for rank" in str(worker)


def test_calls_that_differ_are_named(threads: Callable[[int], Threads], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_spoke, "_NOTE_AFTER_S", 0.2)

    def work(rank: int) -> Any:
        dist = DistributedContext(**_numbers(rank, 2))
        try:
            return dist.gather(1) if rank == 0 else dist.broadcast(1)
        finally:
            dist.close()

    for error in threads(2).run(work):
        assert "rank 1 called broadcast as call 1 of this group, but rank 0 called gather as call 1" in str(error)


def test_a_worker_that_has_left_is_named(threads: Callable[[int], Threads]) -> None:
    def work(rank: int) -> Any:
        dist = DistributedContext(**_numbers(rank, 2))
        try:
            return dist.gather(rank) if rank == 0 else None
        finally:
            dist.close()
            with pytest.raises(RuntimeError, match="is closed"):
                dist.gather(1)

    error, _ = threads(2).run(work)
    assert str(error) == "rank 1 has closed its DistributedContext; it was waited for in gather"


def test_a_port_that_is_taken_is_named(port: int) -> None:
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(errors.DistributedError, match=f"can't listen at .*{port}"),
    ):
        DistributedContext(**_numbers(0, 2), pull_port=port, force_tcp=True)


def test_numbers_that_contradict_each_other_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="must be the same, because there is one machine"):
        DistributedContext(rank=0, size=2, local_rank=0, local_size=1, cross_rank=0, cross_size=1)
    with pytest.raises(ValueError, match="rank 0 must be the first worker"):
        DistributedContext(**{**_numbers(0, 4, 2), "cross_rank": 1}, chief_ip="a")
    monkeypatch.setenv("DET_GANG_TIMEOUT_S", "soon")
    with pytest.raises(ValueError, match="DET_GANG_TIMEOUT_S is 'soon', but must be a number of seconds above 0"):
        DistributedContext(**_numbers(0, 2))


def test_ports_follow_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def ports(**kwargs: int) -> tuple[int, int]:
        dist = DistributedContext(**_numbers(0, 1), **kwargs)
        return dist.pub_port, dist.pull_port

    assert ports() == (12360, 12376)
    monkeypatch.setenv("DET_UNIQUE_PORT_OFFSET", "3")
    assert ports() == (12363, 12379)
    assert ports(port_offset=7) == (12367, 12383)
    assert ports(pub_port=1, pull_port=2) == (1, 2)
    monkeypatch.setenv("INTER_TRAIN_PROCESS_COMM_PORT_1", "15000")
    monkeypatch.setenv("INTER_TRAIN_PROCESS_COMM_PORT_2", "15001")
    assert ports() == (15000, 15001)


def test_without_a_token_a_file_of_the_user_is_the_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from determined.core._distributed import _key

    monkeypatch.delenv("DET_DISTRIBUTED_TOKEN")
    monkeypatch.setenv("DET_RUN_DIR", str(tmp_path / "no-cluster"))
    monkeypatch.setattr("determined._info._cached", None)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert _key() == _key()
    path = tmp_path / "determined" / "distributed.key"
    assert os.stat(path).st_mode & 0o077 == 0
    path.unlink()
    path.parent.rmdir()
    (tmp_path / "determined").write_text("no folder")
    with pytest.raises(RuntimeError, match="set DET_DISTRIBUTED_TOKEN"):
        _key()


# -- what the Core API does with it


def _contexts(trial: Trial, threads: Threads, work: Callable[[core.Context], Any], **kwargs: Any) -> list[Any]:
    """Run `work` with the Core API of each of two workers."""
    trial.slot_ids = [0, 1]
    trial.write_info()

    def one(rank: int) -> Any:
        dist = DistributedContext(**_numbers(rank, 2))
        with core.init(distributed=dist, **kwargs) as ctx:
            return work(ctx)

    return threads.run(one)


def test_workers_get_the_chiefs_operations(trial: Trial, threads: Callable[[int], Threads]) -> None:
    trial.lengths = [2, 5]

    def work(ctx: core.Context) -> list[int]:
        lengths: list[int] = []
        for op in ctx.searcher.operations():
            lengths.append(op.length)
            if ctx.distributed.rank == 0:
                op.report_completed(0.5)
            else:
                with pytest.raises(RuntimeError, match="chief"):
                    op.report_completed(0.5)
        return lengths

    assert _contexts(trial, threads(2), work) == [[2, 5], [2, 5]]
    assert len(trial.completed) == 2
    assert len(trial.master.of(ACK)) == 1
    assert len(trial.master.of("GET /api/v1/trials/7/searcher/operation")) == 3


def test_an_operation_that_was_not_completed_is_an_error_of_all(
    trial: Trial, threads: Callable[[int], Threads]
) -> None:
    chief, worker = _contexts(trial, threads(2), lambda ctx: list(ctx.searcher.operations()))
    assert isinstance(chief, RuntimeError)
    assert "rank 0 can't tell the next operation: RuntimeError: the operation of length 4" in str(worker)


def test_chief_only_is_for_the_chief(trial: Trial, threads: Callable[[int], Threads]) -> None:
    def work(ctx: core.Context) -> Any:
        is_preempted = ctx.preempt.should_preempt() if ctx.distributed.rank == 0 else None
        if ctx.distributed.rank != 0:
            with pytest.raises(RuntimeError, match="should_preempt.. may be called by the chief"):
                ctx.preempt.should_preempt()
            with pytest.raises(RuntimeError, match="operations.. may be called by the chief"):
                ctx.searcher.operations(core.SearcherMode.ChiefOnly)
            return None
        for op in ctx.searcher.operations(core.SearcherMode.ChiefOnly):
            op.report_completed(1)
        return is_preempted

    assert _contexts(trial, threads(2), work, preempt_mode=core.PreemptMode.ChiefOnly) == [False, None]


@pytest.mark.parametrize("mode", [core.PreemptMode.WorkersAskChief, core.PreemptMode.WorkersAskMaster])
def test_all_workers_are_preempted(trial: Trial, threads: Callable[[int], Threads], mode: core.PreemptMode) -> None:
    trial.preempt.set()
    found = _contexts(trial, threads(2), lambda ctx: ctx.preempt.should_preempt(), preempt_mode=mode)
    assert found == [True, True]
    asked_by_all = mode is core.PreemptMode.WorkersAskMaster
    assert len(trial.master.of(ACK)) == len(trial.master.of(POLL)) == (2 if asked_by_all else 1)


def test_workers_see_a_signal_at_the_same_step(trial: Trial, threads: Callable[[int], Threads]) -> None:
    def work(ctx: core.Context) -> int:
        step = 0
        while not ctx.preempt.should_preempt(auto_ack=False):
            step += 1
            if step == 20 and ctx.distributed.rank == 1:
                trial.preempt.set()
        return step

    first, second = _contexts(trial, threads(2), work)
    assert first == second >= 20
    assert trial.master.of(ACK) == []


def test_an_ended_allocation_is_raised_on_all(trial: Trial, threads: Callable[[int], Threads]) -> None:
    def work(ctx: core.Context) -> None:
        ctx.distributed.allgather(0)
        if ctx.distributed.rank == 0:
            ended = errors.AllocationEnded("a.1", "over")
            ctx.preempt._ended, ctx.preempt._end_detail = ended, "over"
        ctx.preempt.should_preempt()

    for error in _contexts(trial, threads(2), work):
        assert isinstance(error, errors.AllocationEnded)
        assert "(over)" in str(error)


def test_a_worker_that_reports_is_warned(
    trial: Trial, threads: Callable[[int], Threads], caplog: pytest.LogCaptureFixture
) -> None:
    def work(ctx: core.Context) -> None:
        for step in range(3):
            ctx.train.report_training_metrics(step, {"loss": ctx.distributed.rank})

    _contexts(trial, threads(2), work)
    assert [r.message for r in caplog.records if "reports metrics" in r.message] == [
        "rank 1 reports metrics, which are added to those of the chief; report from rank 0 only, for example of what "
        "distributed.gather() collects"
    ]
    assert (
        json.dumps(sorted(r["metrics"]["avgMetrics"]["loss"] for r in trial.master.reports())) == "[0, 0, 0, 1, 1, 1]"
    )
