"""Reading, hashing and landing files, several at a time."""

from __future__ import annotations

import contextlib
import os

from determined.common.storage._manifest import FileEntry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from typing import IO, Any, Callable, TypeVar

    T = TypeVar("T")
    R = TypeVar("R")

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


@contextlib.contextmanager
def landing(path: str) -> Generator[Landing, None, None]:
    """A file to write, which gets its name when the block ends well; else nothing of it stays."""
    name = os.path.join(os.path.dirname(path), f".undeterred-{os.urandom(6).hex()}.part")
    try:
        with open(name, "wb") as f:
            yield Landing(f)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


class Landing:
    """Writes a file and hashes it on the way."""

    def __init__(self, file: IO[bytes]) -> None:
        import hashlib

        self._file = file
        self._hash = hashlib.sha256()
        self._size = 0

    def write(self, piece: bytes | memoryview) -> None:
        """Append a piece."""
        self._file.write(piece)
        self._hash.update(piece)
        self._size += len(piece)

    def entry(self) -> FileEntry:
        """Size and hash of all so far."""
        return FileEntry(self._size, self._hash.hexdigest())


class HashingReader:
    """A file to upload which is hashed while the SDK reads it.

    SDKs read in order, and go back only to send a piece again: what was hashed once is not hashed again. Should one
    leap ahead, the file is hashed by itself in the end.

    Args:
        path: The file.
        seekable: What to answer to an SDK that would rather read in several threads at once if it may.
    """

    def __init__(self, path: str, *, seekable: bool = True) -> None:
        import hashlib

        self._path = path
        self._file = open(path, "rb")  # noqa: SIM115 (closed by __exit__)
        self._hash = hashlib.sha256()
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
    import hashlib

    found, size = hashlib.sha256(), 0
    buffer = memoryview(bytearray(_PIECE))
    while count := origin.readinto(buffer):
        found.update(buffer[:count])
        size += count
        written = 0
        while target is not None and written < count:
            written += target.write(buffer[written:count])
    return FileEntry(size, found.hexdigest())
