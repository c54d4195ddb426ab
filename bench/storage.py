"""Saving and loading checkpoints against a plain copy, and what the workers of a job exchange."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.measure import Figure
from determined.common import storage
from determined.core._checkpoint import CheckpointContext
from determined.core._distributed import DummyDistributedContext
from tests.kit.servers import free_port
from tests.kit.storages import S3_CREDENTIALS, s3_server

_FILES, _FILE_MIB = 16, 64
_S3_FILES, _S3_FILE_MIB = 4, 64
_CALLS = 200
_RANKS = (2, 8, 32)


def figures() -> Iterator[Figure]:
    """A folder, an S3, and messages between workers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        yield from _in_folder(folder)
        yield from _in_s3(folder)
    for ranks in _RANKS:
        yield from _exchange(ranks)


def _files(folder: Path, count: int, mib: int) -> Path:
    folder.mkdir()
    for number in range(count):
        (folder / f"part-{number}").write_bytes(os.urandom(mib << 20))
    return folder


def _timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _in_turn(
    ours: Callable[[], object], theirs: Callable[[], object], after: Callable[[], object], runs: int
) -> list[float]:
    """How many times as fast ours is, run by run: a disk has its moods."""
    ratios: list[float] = []
    for number in range(runs + 1):
        reference = _timed(theirs)
        after()
        ratio = reference / _timed(ours)
        after()
        if number:  # the first warms up
            ratios.append(ratio)
    return ratios


def _in_folder(folder: Path) -> Iterator[Figure]:
    source = _files(folder / "source", _FILES, _FILE_MIB)
    root = folder / "storage"
    context = CheckpointContext(DummyDistributedContext(), storage.build(str(root)), None, "", "")
    size = f"{_FILES * _FILE_MIB / 1024:g} GiB"

    def copy() -> None:
        subprocess.run(f'cp -r "{source}" "{root}/copy" && sync -f "{root}"', shell=True, check=True)

    def empty() -> None:
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()

    empty()
    ratios = _in_turn(lambda: context.upload(source, {"steps_completed": 1}), copy, empty, 3)
    yield Figure(
        f"speed of checkpoint.upload of {size} into a folder, times that of cp and sync",
        ratios,
        "x",
        0.8,
        more_is_better=True,
    )
    storage_id = context.upload(source, {"steps_completed": 1})
    target = folder / "target"

    def clean() -> None:
        shutil.rmtree(target, ignore_errors=True)

    ratios = _in_turn(
        lambda: context.download(storage_id, target),
        lambda: subprocess.run(["cp", "-r", str(root / storage_id), str(target)], check=True),
        clean,
        3,
    )
    yield Figure(
        "speed of checkpoint.download of it, verified, times that of cp", ratios, "x", 0.8, more_is_better=True
    )
    seconds = [_timed(lambda: _restore(context, storage_id)) for _ in range(3)]
    yield Figure("checkpoint.restore_path of it, verified", seconds, "s")
    shutil.rmtree(source)
    shutil.rmtree(root)


def _restore(context: CheckpointContext, storage_id: str) -> None:
    with context.restore_path(storage_id):
        pass


def _in_s3(folder: Path) -> Iterator[Figure]:
    import boto3
    from botocore.config import Config

    source = _files(folder / "s3", _S3_FILES, _S3_FILE_MIB)
    size = f"{_S3_FILES * _S3_FILE_MIB} MiB"
    with s3_server() as url:
        # Like with like: ours sends no checksums to servers that are not Amazon's, as many don't know them, and this one
        # takes a fifth longer for parts without.
        as_ours = Config(request_checksum_calculation="when_required", response_checksum_validation="when_required")
        client: Any = boto3.client("s3", endpoint_url=url, region_name="us-east-1", config=as_ours, **S3_CREDENTIALS)
        client.create_bucket(Bucket="bench")
        place = storage.build(
            {
                "type": "s3", "bucket": "bench", "endpoint_url": url,
                "access_key": S3_CREDENTIALS["aws_access_key_id"], "secret_key": S3_CREDENTIALS["aws_secret_access_key"],
            }
        )  # fmt: skip
        context = CheckpointContext(DummyDistributedContext(), place, None, "", "")
        names = sorted(path.name for path in source.iterdir())
        saved: list[str] = []

        def upload() -> None:  # by a context of its own: this one would have what is unchanged copied
            anew = CheckpointContext(DummyDistributedContext(), place, None, "", "")
            saved.append(anew.upload(source, {"steps_completed": 1}))

        def plain() -> None:
            for name in names:
                client.upload_file(str(source / name), "bench", f"plain/{name}")

        def clean() -> None:
            while len(saved) > 1:
                place.delete(saved.pop(0))

        ratios = _in_turn(upload, plain, clean, 3)
        yield Figure(
            f"speed of checkpoint.upload of {size} to S3 (moto), times that of boto3",
            ratios,
            "x",
            1.0,
            more_is_better=True,
            note="both without checksums",
        )
        yield from _unchanged(context, place, folder / "fine-tuned")
        target = folder / "from-s3"

        def plain_download() -> None:
            target.mkdir()
            for name in names:
                client.download_file("bench", f"plain/{name}", str(target / name))

        ratios = _in_turn(
            lambda: context.download(saved[-1], target),
            plain_download,
            lambda: shutil.rmtree(target, ignore_errors=True),
            3,
        )
        yield Figure(
            "speed of checkpoint.download of it, verified, times that of boto3", ratios, "x", 1.0, more_is_better=True
        )


def _unchanged(context: CheckpointContext, place: Any, folder: Path) -> Iterator[Figure]:
    """A file of 256 MiB of which a twentieth changes from one checkpoint to the next."""
    file = _files(folder, 1, 256) / "part-0"
    sent: list[int] = []

    def note(request: Any, **_: Any) -> None:
        sent.append(int(request.headers.get("Content-Length") or 0))

    place._client().meta.events.register("before-send.s3", note)
    saved = [context.upload(folder, {"steps_completed": 0})]
    whole, shares, took = sum(sent), list[float](), list[float]()
    for run in range(3):
        with file.open("r+b") as f:
            f.seek(run * whole // 4)
            f.write(os.urandom(whole // 20))
        sent.clear()
        began = time.perf_counter()
        saved.append(context.upload(folder, {"steps_completed": run + 1}))
        took.append(time.perf_counter() - began)
        shares.append(100 * sum(sent) / whole)
        place.delete(saved.pop(0))
    place.delete(saved.pop())
    yield Figure("a fine-tune that changes 5 % of 256 MiB in S3: sent", shares, "%", 10)
    yield Figure("checkpoint.upload of it", took, "s", note="moto copies on the same cores")


_WORKER = """
import sys, time
from determined.core import DistributedContext
rank, size, calls, pub, pull = map(int, sys.argv[1:])
context = DistributedContext(rank=rank, size=size, local_rank=rank, local_size=size, cross_rank=0, cross_size=1,
                             chief_ip="127.0.0.1", pub_port=pub, pull_port=pull)
for name in ("gather", "broadcast"):
    method = getattr(context, name)
    for _ in range(20):
        method(rank)
    context.allgather(None)
    began = time.perf_counter()
    for _ in range(calls):
        method(rank)
    context.allgather(None)  # a broadcast alone would be over for the chief when it is sent
    if rank == 0:
        print((time.perf_counter() - began) / calls * 1e6, flush=True)
context.close()
"""


def _exchange(ranks: int) -> Iterator[Figure]:
    """Means over many calls in a row, of all workers on this machine's cores."""
    results: list[list[float]] = []
    for _ in range(3):
        ports = [str(free_port()), str(free_port())]
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", _WORKER, str(rank), str(ranks), str(_CALLS), *ports],
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                text=True,
            )
            for rank in range(ranks)
        ]
        printed = workers[0].communicate(timeout=120)[0].split()
        assert [worker.wait(60) for worker in workers] == [0] * ranks
        results.append([float(value) for value in printed])
    for index, name in enumerate(("gather", "broadcast")):
        values = [result[index] for result in results]
        yield Figure(f"{name} of a number among {ranks} workers, mean of {_CALLS}", values, "µs")
