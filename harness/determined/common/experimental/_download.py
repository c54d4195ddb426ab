"""Getting a checkpoint's files into a folder: all of them or none, going on where an earlier attempt broke off.

What is under way lies beside the target in `.<name>.part`. A file has its own name there once it is complete and
verified; the next download of the same checkpoint to the same place goes on from what is there.
"""

from __future__ import annotations

import contextlib
import os
import pathlib

from determined import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any, Callable

    from determined.common.storage import FileEntry

    Progress = Callable[[int, int], None]


METADATA_FILE = "metadata.json"
#: So many files come from the master at a time.
PARALLEL = 4
_PIECE = 1 << 18
_UNFINISHED = ".undeterred-part"
_OWNER_FILE = ".undeterred-download"


@contextlib.contextmanager
def into(target: pathlib.Path, uuid: str) -> Generator[str, None, None]:
    """A folder beside `target` to download into; what is in it moves to `target` when the block ends well.

    When the block fails, the folder stays for the next attempt if it holds anything.
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


def entries_of(files: dict[str, Any]) -> dict[str, FileEntry]:
    """What the master says about a checkpoint's files.

    Raises:
        CheckpointCorruptError: A path leads out of the checkpoint.
    """
    from determined.common.storage._manifest import FileEntry, is_inside

    for path in files:
        if not is_inside(path):
            raise errors.CheckpointCorruptError(f"the path {path!r} is refused: it leads out of the checkpoint")
    return {path: FileEntry(int(file["size"]), str(file["xxh3"])) for path, file in files.items()}


class Arriving:
    """A file that comes in pieces, beside its place until it is complete; goes on from what an earlier try left.

    Args:
        path: Its place.
        expected: Its size and, if known, hash.
        progress: Called with how many bytes more are there.
    """

    def __init__(self, path: str, expected: FileEntry, progress: Callable[[int], None]) -> None:
        self._path = path
        self._expected = expected
        self._progress = progress
        self._unfinished = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}{_UNFINISHED}")
        self._file: Any = None
        self.is_complete = False

    def open(self) -> None:
        """Find out what is there, and make ready to take the rest."""
        from determined.common.storage._files import Landing, is_there

        if is_there(self._path, self._expected):
            self.is_complete = True
            self._progress(self._expected.size)
            return
        self._file = open(self._unfinished, "a+b", buffering=0)  # noqa: SIM115 (closed by close)
        if self._file.tell() > self._expected.size:
            self._file.truncate(0)
        self._landing = Landing(self._file, self._progress)
        self._file.seek(0)
        while piece := self._file.read(_PIECE):
            self._landing.take(piece)

    @property
    def size(self) -> int:
        """How many bytes are there."""
        return self._landing.size

    def write(self, piece: bytes) -> None:
        """Append a piece."""
        self._landing.write(piece)

    def finish(self) -> None:
        """Give the file its name.

        Raises:
            CheckpointCorruptError: It is not what was expected; nothing of it stays then.
        """
        from determined.common.storage._manifest import check_file

        self._file.close()
        try:
            check_file(self._path, self._expected, self._landing.entry())
        except errors.CheckpointCorruptError:
            os.unlink(self._unfinished)
            raise
        os.replace(self._unfinished, self._path)
        self.is_complete = True

    def close(self) -> None:
        """Leave what is there to the next try."""
        if self._file is not None:
            self._file.close()


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
        """Count further bytes as downloaded."""
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
        name != _OWNER_FILE and os.path.getsize(os.path.join(path, name))
        for path, _, names in os.walk(folder)
        for name in names
    )
