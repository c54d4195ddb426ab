"""What TensorBoard reads of a trial: its local folder, the metrics written into it, the copy in the storage."""

from __future__ import annotations

import contextlib
import enum
import functools
import itertools
import os
import pathlib
import queue
import struct
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import io
    from collections.abc import Generator
    from typing import Any, Callable

    from determined._info import ClusterInfo
    from determined.common.storage import Storage
    from determined.core._distributed import DistributedContext

# Between two looks at the folder. One that takes long to copy is copied less often: a tenth of the time at most.
_SYNC_S = 1.0
_SYNC_SHARE = 10
_QUEUE_LIMIT = 10_000
# How long the end of a trial waits for a storage that does not answer.
_CLOSE_S = 60.0


class TensorboardMode(enum.Enum):
    """How TensorBoard's files are treated.

    AUTO: the chief writes the metrics that it reports into `train.get_tensorboard_path()`, if `tensorboard` is
    installed, and whatever is in that folder is copied to the checkpoint storage in the background, at most once a
    second, and at the end. What other workers have in theirs is left alone.
    MANUAL: you write files below `train.get_tensorboard_path()` and call `train.upload_tensorboard_files()`.
    """

    AUTO = "AUTO"
    MANUAL = "MANUAL"


class TensorboardFiles:
    """The local folder for TensorBoard, and its place in the checkpoint storage."""

    def __init__(self, local: str, storage: Storage | None, below: tuple[str, ...]) -> None:
        self._local = pathlib.Path(local)
        self._storage = storage
        self._below = below

    @classmethod
    def of_trial(cls, info: ClusterInfo, rank: int, storage: Storage) -> TensorboardFiles:
        """Those of one worker of a trial, where the cluster looks for them."""
        trial = info.trial
        below = (info.cluster_id, "tensorboard", "experiment", str(trial.experiment_id), "trial", str(trial.trial_id))
        return cls(_folder_of(info, rank), storage, below)

    def path(self) -> pathlib.Path:
        """The local folder; made if needed."""
        self._local.mkdir(parents=True, exist_ok=True)
        return self._local

    def upload(
        self,
        selector: Callable[[pathlib.Path], bool],
        mangler: Callable[[pathlib.Path, int], pathlib.Path],
        rank: int,
    ) -> None:
        """Copy the selected files. Each appears whole."""
        for file in self._files():
            relative = file.relative_to(self._local)
            if not selector(relative):
                continue
            name = pathlib.PurePosixPath(mangler(relative, rank))
            if name.is_absolute() or ".." in name.parts:
                raise ValueError(f"upload_tensorboard_files: mangler returned {str(name)!r}, which leaves the folder")
            self._put(file, name)

    def upload_changed(self, known: dict[pathlib.Path, tuple[int, int]], rank: int = 0) -> None:
        """Copy the files that have changed since they were noted in `known`, by size and time; note them."""
        for file in self._files():
            name = _name_of(file.relative_to(self._local), rank)
            if name is None:
                continue
            try:
                found = file.stat()
                mark = (found.st_size, found.st_mtime_ns)
                if known.get(file) != mark:
                    self._put(file, name)
            except FileNotFoundError:
                continue  # it was removed meanwhile
            known[file] = mark

    def _files(self) -> list[pathlib.Path]:
        return sorted(p for p in self._local.rglob("*") if p.is_file())

    def _put(self, file: pathlib.Path, name: pathlib.PurePosixPath) -> None:
        if self._storage is not None:
            self._storage.put_tensorboard(str(file), "/".join((*self._below, *name.parts)))


def _name_of(file: pathlib.Path, rank: int) -> pathlib.PurePosixPath | None:
    """The name of a worker's file in the storage, which has one folder for all workers; None: it is not copied."""
    name = pathlib.PurePosixPath(file)
    if rank == 0:
        return name
    if "tfevents" in name.name:
        return None  # event files of several workers would show each metric several times
    import socket

    host = socket.gethostname()
    # A profiler names its file by the host alone, and workers share one.
    return name.with_name(f"{host}#{rank}{name.name[len(host) :]}") if name.name.startswith(host) else name


def folder_of_this_process() -> str:
    """The local folder of this process: that of its trial and rank, or one for all that runs outside of a cluster."""
    from determined._info import get_cluster_info

    info = get_cluster_info()
    if info is None or info.task_type != "TRIAL":
        from determined.core._local import local_dir

        return local_dir("tensorboard")
    rank = os.environ.get("RANK") or "0"
    return _folder_of(info, int(rank) if rank.isdigit() else 0)


def _folder_of(info: ClusterInfo, rank: int) -> str:
    name = f"tensorboard-{info.allocation_id or f'unmanaged-{info.trial.trial_id}'}-{rank}"
    return os.path.join(_local_base(), name)


def _local_base() -> str:
    # A container that is a plain process shares /tmp with its host, and has a folder that is removed with it.
    from determined._info import DEFAULT_RUN_DIR

    run_dir = os.environ.get("DET_RUN_DIR") or DEFAULT_RUN_DIR
    if run_dir != DEFAULT_RUN_DIR:
        return run_dir
    return os.environ.get("TMPDIR") or (os.environ.get("TEMP", ".") if sys.platform == "win32" else "/tmp")


class TensorboardSync:
    """`TensorboardMode.AUTO`, in a thread of its own. An error is reported once, and never ends training.

    Args:
        files: The worker's folder.
        rank: Of the worker. What is copied of others than the chief: all but event files.
    """

    def __init__(self, files: TensorboardFiles, rank: int = 0) -> None:
        self._files = files
        self._rank = rank
        self._queue: queue.SimpleQueue[tuple[str, int, float, list[dict[str, Any]]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._writer: Any = None
        self._can_write = True
        self._copied: dict[pathlib.Path, tuple[int, int]] = {}
        self._told: set[str] = set()

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="determined-tensorboard", daemon=True)
        self._thread.start()

    def put(self, group: str, steps: int, metrics: dict[str, Any], batches: list[dict[str, Any]] | None = None) -> None:
        """Have metrics written. Costs the caller next to nothing: what there is no room for is left out.

        Args:
            group: Training, validation or another.
            steps: How many steps were completed.
            metrics: Averages of these steps.
            batches: Metrics of each of the last steps: what they have is written for each, and its average is not.
        """
        if self._can_write and self._queue.qsize() < _QUEUE_LIMIT:
            of_batches: set[str] = {name for batch in batches or () for name in batch}
            averages = {name: value for name, value in metrics.items() if name not in of_batches}
            self._queue.put((group, steps, time.time(), [*(batches or ()), averages]))

    def close(self) -> None:
        """Write and copy what is left; waits for a minute at most."""
        if self._thread is None:
            return
        self._queue.put(None)
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            self._tell("copy", f"the storage has not taken the files for {_CLOSE_S:.0f} s")

    def _run(self) -> None:
        next_sync = time.monotonic() + _SYNC_S
        is_open = True
        while is_open:
            try:
                item = self._queue.get(timeout=max(0.0, next_sync - time.monotonic()))
            except queue.Empty:
                pass
            else:
                is_open = item is not None
                if item is not None:
                    self._write(*item)
            if not is_open or time.monotonic() >= next_sync:
                began = time.monotonic()
                self._sync(is_open)
                now = time.monotonic()
                next_sync = now + max(_SYNC_S, _SYNC_SHARE * (now - began))

    def _write(self, group: str, steps: int, time_s: float, metrics: list[dict[str, Any]]) -> None:
        try:
            if self._writer is None and self._can_write:
                self._writer = self._open()
            if self._writer is not None:
                *batches, averages = metrics
                for step, values in enumerate(batches, start=steps - len(batches)):
                    self._writer.add(group, step, time_s, values)
                self._writer.add(group, steps, time_s, averages)
        except Exception as e:  # noqa: BLE001 - whatever it is, training goes on
            self._tell("write", f"metrics are not written for it: {type(e).__name__}: {e}")

    def _open(self) -> _Scalars | None:
        try:
            return _Scalars(self._files)
        except ImportError as e:
            self._can_write = False
            _logger().info(
                f"TensorBoard gets no metrics of this trial: {e}; `pip install tensorboard` in its image changes that"
            )
            return None

    def _sync(self, is_open: bool) -> None:
        try:
            if self._writer is not None and not is_open:
                self._writer.close()
            self._files.upload_changed(self._copied, self._rank)
        except Exception as e:  # noqa: BLE001 - whatever it is, training goes on; the next time may work
            self._tell("copy", f"{type(e).__name__}: {e}")

    def _tell(self, what: str, why: str) -> None:
        if what not in self._told:
            self._told.add(what)
            _logger().warning(f"TensorBoard: {why}; training goes on, and this is not repeated")


def sync_of(files: TensorboardFiles, mode: TensorboardMode, dist: DistributedContext) -> TensorboardSync | None:
    """What writes and copies in this mode; None for a worker whose files nobody copies."""
    return TensorboardSync(files) if mode is TensorboardMode.AUTO and dist.rank == 0 else None


@contextlib.contextmanager
def copied(files: TensorboardFiles, rank: int) -> Generator[None, None, None]:
    """Copy during the block, and at its end, what a worker other than the chief has in its folder, but event files."""
    sync = TensorboardSync(files, rank)
    sync.start()
    try:
        yield
    finally:
        sync.close()


class _Records:
    """A file of whole records, made with the first: what the disk does not take is left out, and the next one is tried.

    TensorBoard's own `EventFileWriter` has a thread that ends with the first error. That error is raised from each
    later call, and gets longer every time: it holds on to all that was not written.
    """

    _count = itertools.count()

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._file: io.FileIO | None = None
        self.size = 0

    def write(self, record: bytes) -> None:
        """Append a record, all or nothing of it. Raises: OSError."""
        file = self._file = self._file or self._open()
        left = memoryview(record)
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            file.truncate(self.size)
            raise
        self.size += len(record)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _open(self) -> io.FileIO:
        import socket

        # As TensorBoard names them, but for the end: a writer of the user's own in this folder counts from 0 too.
        name = f"{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(self._count)}.core"
        return open(self._folder / f"events.out.tfevents.{name}", "ab", buffering=0)


class _Scalars:
    """An event file. Raises: ImportError, if TensorBoard is not installed."""

    def __init__(self, files: TensorboardFiles) -> None:
        from importlib import import_module

        self._event: Any = import_module("tensorboard.compat.proto.event_pb2").Event
        self._summary: Any = import_module("tensorboard.compat.proto.summary_pb2").Summary
        self._records = _Records(files.path())

    def add(self, group: str, steps: int, time_s: float, metrics: dict[str, Any]) -> None:
        """Write what of some metrics is a number. Raises: OSError: the disk does not take it."""
        from determined.core._convert import to_json_value

        values: list[Any] = []
        for name, value in metrics.items():
            if isinstance(value, (bytes, bytearray)):
                continue  # the report says so
            number = _number(to_json_value(value, f"{group} metric {name!r}"))
            if number is not None:
                values.append(self._summary.Value(tag=_tag(group, str(name)), simple_value=number))
        if values:
            if not self._records.size:
                self._write(wall_time=time.time(), file_version="brain.Event:2")
            self._write(wall_time=time_s, step=steps, summary=self._summary(value=values))

    def close(self) -> None:
        self._records.close()

    def _write(self, **fields: Any) -> None:
        self._records.write(_framed(self._event(**fields).SerializeToString()))


def _framed(data: bytes) -> bytes:
    """A record as TensorBoard reads it: length (8 bytes), its checksum, data, their checksum (4 bytes each).

    TensorBoard's `RecordWriter` makes the same, but to import it takes 0.2 s of processor time: two thirds of what a
    short trial takes.
    """
    length = struct.pack("<Q", len(data))
    return b"".join((length, _masked_checksum(length), data, _masked_checksum(data)))


def _masked_checksum(data: bytes) -> bytes:
    """CRC-32C, masked as in TFRecord files: rotated by 15 bits, plus a constant."""
    table, crc = _checksum_table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


@functools.cache
def _checksum_table() -> list[int]:
    table: list[int] = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


def _tag(group: str, name: str) -> str:
    """Under which name TensorBoard shows a metric; the ones that Determined's users know."""
    if group == "training":
        return f"Determined/{name}"
    if group == "validation":
        return f"Determined/{name if name.startswith('val') else f'val_{name}'}"
    return f"Determined/{group}/{name}"


def _number(value: Any) -> float | None:
    """A number of JSON, or what stands for one that JSON has not."""
    if isinstance(value, (int, float)):
        return float(value)
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else None


def _logger() -> Any:
    import logging

    return logging.getLogger("determined.core")
