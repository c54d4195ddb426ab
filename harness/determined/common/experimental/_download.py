"""Getting a checkpoint's files into a folder: all of them or none, going on where an earlier attempt broke off.

What is under way lies beside the target in `.<name>.part`. A file has its own name there once it is complete, and ends
with `.incomplete` before; the next download of the same checkpoint to the same place takes what is complete over.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib

from determined import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from typing import Any, Callable, cast

    Progress = Callable[[int, int], None]
else:

    def cast(kind: object, value: object) -> object:
        """`typing.cast`, without the cost of importing it."""
        return value


METADATA_FILE = "metadata.json"
_PARALLEL = 4
_PIECE = 1 << 20
_KERNEL_PIECE = 1 << 26
# Two file systems, or one that has no such call.
_NOT_IN_KERNEL = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
_OWNER_FILE = ".undeterred-download"


@contextlib.contextmanager
def into(target: pathlib.Path, uuid: str) -> Generator[str, None, None]:
    """A folder beside `target` to download into; what is in it moves to `target` when the block ends well.

    When the block fails, the folder stays for the next attempt if it holds anything complete.
    """
    import shutil

    target.parent.mkdir(parents=True, exist_ok=True)
    with _part_folder(target, uuid) as part:
        try:
            yield str(part)
            (part / _OWNER_FILE).unlink()
            if target.is_dir():
                # What was there stays; metadata.json, which marks a finished download, comes last.
                for name in sorted(os.listdir(part), key=lambda n: n == METADATA_FILE):
                    destination = target / name
                    if destination.is_dir() and not destination.is_symlink():
                        shutil.rmtree(destination)
                    os.replace(part / name, destination)
                part.rmdir()
            else:
                os.rename(part, target)
        except BaseException:
            if not _has_files(part):
                shutil.rmtree(part, ignore_errors=True)
            raise


def copy(source: str, folder: str, progress: Progress | None) -> None:
    """Copy a checkpoint's folder, several files at a time; those that are there with the same size are not repeated.

    Raises:
        OSError: A file can't be read or written.
    """
    from concurrent.futures import ThreadPoolExecutor

    from determined.common.storage._tree import list_tree

    paths = list_tree(source)
    for path in paths:
        if path.endswith("/"):
            os.makedirs(os.path.join(folder, path), exist_ok=True)
    meter = Meter(sum(paths.values()), progress)
    files = [(path, size) for path, size in paths.items() if not path.endswith("/")]
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="download") as threads:
        running = [threads.submit(_copy_file, source, folder, path, size, meter) for path, size in files]
        try:
            for future in running:
                future.result()
        except BaseException:
            for future in running:
                future.cancel()
            raise


def untar(pieces: Iterator[bytes], folder: str, sizes: dict[str, int], progress: Progress | None) -> None:
    """Unpack a tar.gz while it arrives. Every member is checked before it is written, and the whole by its checksum.

    Args:
        pieces: The archive.
        folder: Where to put it. Files that are there with the size that the archive says are not written again.
        sizes: What is expected, for the progress.
        progress: Told how many bytes of how many are there.

    Raises:
        InvalidContextException: A member leads out of the folder.
        OSError: The archive is damaged or broke off.
    """
    import tarfile
    import zlib

    from determined.common._tar import checked_name

    meter = Meter(sum(sizes.values()), progress)
    reader = _Reader(_gunzip(pieces))
    try:
        archive: tarfile.TarFile
        with tarfile.open(fileobj=cast("Any", reader), mode="r|") as archive:
            for member in archive:
                name = checked_name(member)
                path = os.path.join(folder, name)
                if not name or member.isdir():
                    os.makedirs(path, exist_ok=True)
                    continue
                if not member.isreg():
                    raise errors.InvalidContextException(f"the archive is refused: {name!r} is neither file nor folder")
                if _is_complete(path, member.size):
                    meter.add(member.size)
                    continue
                os.makedirs(os.path.dirname(path), exist_ok=True)
                source = archive.extractfile(member)
                assert source is not None
                with _completed(path) as f:
                    while piece := source.read(_PIECE):
                        f.write(piece)
                        meter.add(len(piece))
                os.chmod(path, (member.mode & 0o777) | 0o400)
        reader.drain()
    except (tarfile.TarError, EOFError, zlib.error) as e:
        raise OSError(f"the archive is damaged: {e}") from e


def verify(uuid: str, folder: str, resources: dict[str, Any]) -> None:
    """Check that all files are there with the size that they were reported with.

    metadata.json is left out: the master's may be newer.

    Raises:
        InvalidCheckpointException: A file is missing or has another size.
    """
    wrong: list[str] = []
    for name, size in resources.items():
        path = os.path.join(folder, name)
        if name == METADATA_FILE:
            continue
        if name.endswith("/"):
            os.makedirs(path, exist_ok=True)
        elif not os.path.isfile(path):
            wrong.append(f"{name} is missing")
        elif os.path.getsize(path) != int(size):
            wrong.append(f"{name} has {os.path.getsize(path):,} bytes instead of {int(size):,}")
            os.unlink(path)  # so that no later attempt takes it over
    if wrong:
        raise errors.InvalidCheckpointException(
            f"checkpoint {uuid} is damaged: {'; '.join(wrong[:5])}{' …' if len(wrong) > 5 else ''}"
        )


class Meter:
    """Adds up what arrived, in several threads."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        import threading

        self._total = total
        self._done = 0
        self._progress = progress
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """So many bytes more are there."""
        if self._progress is None:
            return
        with self._lock:
            self._done += count
            self._progress(self._done, max(self._total, self._done))


def line_on_terminal(what: str) -> Progress | None:
    """A progress that is a line on stderr; None if stderr is no terminal."""
    import sys
    import time

    if not sys.stderr.isatty():
        return None
    told_at = 0.0

    def tell(done: int, total: int) -> None:
        nonlocal told_at
        now = time.monotonic()
        if done < total and now - told_at < 0.1:
            return
        told_at = now
        percent = 100 * done // total if total else 100
        end = "\n" if done >= total else ""
        sys.stderr.write(f"\r{what}: {done / 1e6:,.1f} of {total / 1e6:,.1f} MB ({percent} %){end}")
        sys.stderr.flush()

    return tell


@contextlib.contextmanager
def _part_folder(target: pathlib.Path, uuid: str) -> Generator[pathlib.Path, None, None]:
    """`.<name>.part`, emptied unless it is of this checkpoint; a folder of one's own if another process has that."""
    import shutil

    part = target.parent / f".{target.name}.part"
    with _locked(target.parent / f".{target.name}.part.lock") as is_mine:
        if not is_mine:
            part = target.parent / f".{target.name}.{os.getpid()}.part"
        owner = part / _OWNER_FILE
        if not owner.is_file() or owner.read_text(encoding="utf-8") != uuid:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            owner.write_text(uuid, encoding="utf-8")
        try:
            yield part
        finally:
            if not is_mine:
                shutil.rmtree(part, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Generator[bool, None, None]:
    """Whether this process is the only one here; then until the block's end."""
    try:
        import fcntl
    except ImportError:  # Windows: everybody has a folder of their own, and nothing is taken over
        yield False
        return
    number = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        try:
            yield True
        finally:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
    finally:
        os.close(number)


def _has_files(folder: pathlib.Path) -> bool:
    return any(
        name != _OWNER_FILE and not name.endswith(".incomplete") for _, _, names in os.walk(folder) for name in names
    )


def _copy_file(source: str, folder: str, path: str, size: int, meter: Meter) -> None:
    import shutil

    target = os.path.join(folder, path)
    if _is_complete(target, size):
        meter.add(size)
        return
    with open(os.path.join(source, path), "rb", buffering=0) as origin, _completed(target) as f:
        while count := _copy_piece(origin.fileno(), f):
            meter.add(count)
    shutil.copymode(os.path.join(source, path), target)


def _copy_piece(origin: int, f: Any) -> int:
    """Copy up to 64 MiB on, within the kernel where it can; returns how many bytes, 0 at the end."""
    if hasattr(os, "copy_file_range"):
        try:
            return os.copy_file_range(origin, f.fileno(), _KERNEL_PIECE)
        except OSError as e:
            if e.errno not in _NOT_IN_KERNEL:
                raise
    piece = os.read(origin, _PIECE)
    f.write(piece)
    f.flush()
    return len(piece)


def _is_complete(path: str, size: int) -> bool:
    return os.path.isfile(path) and not os.path.islink(path) and os.path.getsize(path) == size


@contextlib.contextmanager
def _completed(path: str) -> Generator[Any, None, None]:
    temporary = path + ".incomplete"
    try:
        with open(temporary, "wb") as f:
            yield f
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _gunzip(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The content of a gzip stream. Raises zlib.error for a wrong checksum, EOFError for a stream that broke off."""
    import zlib

    unpacker = zlib.decompressobj(wbits=31)
    for piece in pieces:
        yield unpacker.decompress(piece)
    if not unpacker.eof:
        raise EOFError("it ends too early")


class _Reader:
    """A file over pieces of bytes, as `tarfile` needs it."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._buffer = bytearray()

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; fewer at the end only."""
        while len(self._buffer) < size:
            piece = next(self._pieces, None)
            if piece is None:
                break
            self._buffer += piece
        result = bytes(self._buffer[:size])
        del self._buffer[:size]
        return result

    def drain(self) -> None:
        """Read to the end, where the checksum is."""
        for _ in self._pieces:
            continue
