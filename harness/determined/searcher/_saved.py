"""The files in which runners keep what they must not forget."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from determined.searcher._operations import Operation, operation_from_wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

OPERATIONS_FILE = "ops"


def write_operations(folder: Path, operations: list[Operation]) -> None:
    """Write the operations that answer the event of this folder."""
    text = json.dumps([operation.to_wire() for operation in operations])
    (folder / OPERATIONS_FILE).write_text(text, encoding="utf-8")


def read_operations(folder: Path) -> list[Operation]:
    """What `write_operations` wrote.

    Raises:
        ValueError: The file was not written by this package.
    """
    path = folder / OPERATIONS_FILE
    try:
        return [operation_from_wire(body) for body in json.loads(path.read_bytes())]
    except ValueError as e:
        raise ValueError(
            f"{path} does not hold the operations of a search that this release can go on with: {e}"
        ) from e


def write_durably(path: Path, text: str) -> None:
    """Replace a file as a whole: whatever happens, either the old content is there or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w", encoding="utf-8") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    os.replace(temporary, path)
    _sync(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync all files of a folder to disk, including those of the method."""
    for root, _, names in os.walk(folder):
        for name in names:
            _sync(Path(root, name))
        _sync(Path(root))


@contextlib.contextmanager
def only_one(path: Path) -> Generator[None, None, None]:
    """Hold a lock on `path` for the block, where the system has such locks.

    Raises:
        RuntimeError: Another process holds it.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError(
                f"another process runs the search in {path.parent}; give each its own searcher_dir"
            ) from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(fd)


def _sync(path: Path) -> None:
    # Not every system lets folders be opened, and not every file system knows the call.
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
