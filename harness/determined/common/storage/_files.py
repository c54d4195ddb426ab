"""Reading, hashing and landing files, several at a time."""

from __future__ import annotations

import contextlib
import errno
import os

from determined.common.storage._manifest import FileEntry, new_hash
from determined.common.storage._tree import make_folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping
    from io import FileIO
    from typing import Any, Callable, TypeVar

    from determined.common.storage._storage import Progress

    T = TypeVar("T")
    R = TypeVar("R")

_KERNEL_PIECE = 1 << 23
# Two file systems, or one that has no such call.
_NOT_IN_KERNEL = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
_PIECE = 1 << 18  # larger ones fall out of the cache between reading, hashing and writing


def each(function: Callable[[T], R], items: Iterable[T], threads: int) -> list[R]:
    """What `function` returns for each item, in their order; run in threads. The first error ends it."""
    items = list(items)
    if len(items) < 2:
        return [function(item) for item in items]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(threads, len(items)), thread_name_prefix="storage") as pool:
        running = [pool.submit(function, item) for item in items]
        try:
            return [future.result() for future in running]
        except BaseException:
            for future in running:
                future.cancel()
            raise


def hash_file(path: str) -> FileEntry:
    """Size and hash of a file, which is read once."""
    with open(path, "rb", buffering=0) as f:
        return _pump(f, None)


def copy_hashed(source: str, target: str) -> FileEntry:
    """Copy a file with its mode and force it to the disk. Size and hash are those of what was read, once."""
    import shutil

    with open(source, "rb", buffering=0) as origin, open(target, "wb", buffering=0) as f:
        entry = _pump(origin, f)
        os.fsync(f.fileno())
    shutil.copymode(source, target)
    return entry


def download_each(
    entries: Mapping[str, FileEntry],
    target: str,
    fetch: Callable[[str, FileEntry, Landing], None],
    threads: int,
    progress: Progress | None,
) -> None:
    """Land files in the folder `target`, several at a time; those that are there already are left as they are.

    Args:
        entries: What is wanted; folders, whose paths end with "/", are made.
        target: The folder, made if needed.
        fetch: Writes a file of a path and an entry, or raises.
        threads: How many files at a time.
        progress: Called with how many bytes more are there, by several threads.
    """
    make_folders(target, entries)

    def land(path: str) -> None:
        place, expected = os.path.join(target, path), entries[path]
        if is_there(place, expected):
            if progress is not None:
                progress(expected.size)
            return
        with landing(place, progress) as landed:
            fetch(path, expected, landed)

    each(land, [path for path in entries if not path.endswith("/")], threads)


def is_there(path: str, expected: FileEntry) -> bool:
    """Whether a file needs no download any more: its hash tells, nothing else does."""
    if not expected.xxh3 or os.path.islink(path) or not os.path.isfile(path):
        return False
    return os.path.getsize(path) == expected.size and hash_file(path) == expected


@contextlib.contextmanager
def landing(path: str, progress: Progress | None = None) -> Generator[Landing, None, None]:
    """A file to write, which gets its name when the block ends well; else nothing of it stays."""
    name = os.path.join(os.path.dirname(path), f".undeterred-{os.urandom(6).hex()}.part")
    try:
        with open(name, "w+b", buffering=0) as f:
            yield Landing(f, progress)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


class Landing:
    """Writes a file and hashes it on the way."""

    def __init__(self, file: FileIO, progress: Progress | None = None) -> None:
        self.name = str(file.name)
        self._file = file
        self._progress = progress
        self._hash = new_hash()
        #: How many bytes there are.
        self.size = 0

    def write(self, piece: bytes | memoryview) -> None:
        """Append a piece."""
        left = memoryview(piece)
        while left:
            left = left[self._file.write(left) :]
        self.take(piece)

    def take(self, piece: bytes | memoryview) -> None:
        """Note a piece that is in the file already."""
        self._hash.update(piece)
        self.size += len(piece)
        if self._progress is not None:
            self._progress(len(piece))

    def copy(self, origin: FileIO) -> None:
        """Append the rest of a file: within the kernel where it can, and hashed as it has landed."""
        buffer = memoryview(bytearray(_PIECE))
        while self._copy_in_kernel(origin):
            while count := self._file.readinto(buffer):
                self.take(buffer[:count])
        while count := origin.readinto(buffer):
            self.write(buffer[:count])

    def _copy_in_kernel(self, origin: FileIO) -> bool:
        """Append a part, and stand before it; False at the end, or if the kernel can't."""
        if not hasattr(os, "copy_file_range"):
            return False
        begin = self._file.tell()
        try:
            count = os.copy_file_range(origin.fileno(), self._file.fileno(), _KERNEL_PIECE)
        except OSError as e:
            if e.errno in _NOT_IN_KERNEL:
                return False
            raise
        self._file.seek(begin)
        return count > 0

    def entry(self) -> FileEntry:
        """Size and hash of all so far."""
        return FileEntry(self.size, self._hash.hexdigest())


class HashingReader:
    """A file to upload which is hashed while the SDK reads it.

    SDKs read in order, and go back only to send a piece again: what was hashed once is not hashed again. Should one
    leap ahead, the file is hashed by itself in the end.

    Args:
        path: The file.
        seekable: What to answer to an SDK that would rather read in several threads at once if it may.
    """

    def __init__(self, path: str, *, seekable: bool = True) -> None:
        self._path = path
        self._file = open(path, "rb")  # noqa: SIM115 (closed by __exit__)
        self._hash = new_hash()
        self._hashed = 0
        self._leapt = False
        self._seekable = seekable
        self.size = os.fstat(self._file.fileno()).st_size

    def __enter__(self) -> HashingReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, size: int | None = -1) -> bytes:
        """As of a file."""
        start = self._file.tell()
        piece = self._file.read(-1 if size is None else size)
        end = start + len(piece)
        if start > self._hashed:
            self._leapt = True
        elif end > self._hashed:
            self._hash.update(memoryview(piece)[self._hashed - start :])
            self._hashed = end
        return piece

    def seekable(self) -> bool:
        """As of a file."""
        return self._seekable

    def seek(self, offset: int, whence: int = 0) -> int:
        """As of a file."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """As of a file."""
        return self._file.tell()

    def entry(self) -> FileEntry:
        """Size and hash of what was read."""
        if self._leapt or self._hashed < self.size:
            return hash_file(self._path)
        return FileEntry(self._hashed, self._hash.hexdigest())


def _pump(origin: Any, target: Any) -> FileEntry:
    found, size = new_hash(), 0
    buffer = memoryview(bytearray(_PIECE))
    while count := origin.readinto(buffer):
        found.update(buffer[:count])
        size += count
        written = 0
        while target is not None and written < count:
            written += target.write(buffer[written:count])
    return FileEntry(size, found.hexdigest())
