"""Reports on local disk, while the master does not take them.

A spool is one file of one process, `<nanoseconds since 1970>-<process id>.spool`, locked (flock) for as long as the
process lives. It is made by the first report that has to wait, and read by that process once the master is back; what
a process left behind is read by the next one in its container (`leftovers`), or by the agent after the container's end.
The agent has a reader of its own (`activities/spool.py` of the application), perhaps of another release: a change of
the format needs another number in the first line.

Lines of JSON. A line counts once its newline is there: what has none was being written when the process was killed.

    ["spool",1]            the first one: the format
    ["metrics",{…}]        an entry: a report, as an element of `reports` in POST /api/v1/trials/<id>/metrics/batch
    ["ack",null]           an entry: POST /api/v1/allocations/<id>/signals/ack_preemption
    ["progress",…]         an entry: POST /api/v1/trials/<id>/progress
    ["status",{…}]         an entry: POST /api/v1/trials/<id>/runner/metadata
    ["done",n]             the first n entries of this file are delivered

Delivering an entry twice does no harm, the master ignores repeats: so nothing here waits for the disk, and a crash
between a delivery and its `done` is no case of its own. What a process wrote survives its death in the page cache of
the host; only an outage of the host itself loses the last seconds.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SUFFIX = ".spool"
LIMIT_BYTES = 2 << 30
"""Where a spool ends: an outage must not fill the host's disk. From there on reports wait in memory."""

_FIRST_LINE = b'["spool",1]\n'
_PIECE = 1 << 18
# O_BINARY is Windows', O_CLOEXEC is that of all others.
_FLAGS = os.O_RDWR | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class Spool:
    """The spool of this process, or one that another left behind. Not safe for threads: the caller locks.

    Args:
        folder: Where the file is to be; made with it.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._path = ""
        self._fd = -1
        self._size = 0
        self._read_at = 0
        self._done = 0
        self._is_torn = False  # a line of it is no entry: lines must be looked at
        self._ends_torn = False  # … and it is the last one, without its newline
        self.waiting = 0
        """Entries that are not delivered yet."""

    @property
    def path(self) -> str:
        """The file; empty before the first entry."""
        return self._path

    def append(self, kind: str, bodies: Sequence[bytes]) -> None:
        """Write entries of one kind, all or none of them.

        Args:
            kind: See the module.
            bodies: JSON without line breaks.

        Raises:
            OSError: The disk does not take them, or the spool has reached `LIMIT_BYTES`.
        """
        start = b'["%b",' % kind.encode()
        data = b"".join(b"%b%b]\n" % (start, body) for body in bodies)
        if self._size + len(data) > LIMIT_BYTES:
            raise OSError(errno.EFBIG, f"the spool has reached its limit of {LIMIT_BYTES >> 20} MiB", self._path)
        self._open()
        self._write(data)
        self.waiting += len(bodies)

    def read(self, limit: int, limit_bytes: int) -> tuple[str, list[bytes]]:
        """The next entries that wait and are of one kind, with that kind. They stay until `advance`.

        Args:
            limit: Most entries, 1 or more.
            limit_bytes: Most bytes of them together, but for the first one.
        """
        kind, bodies, size = "", list[bytes](), 0
        for _, line in self._entries():
            found, body = split(line)
            size += len(body)
            if bodies and (found != kind or len(bodies) == limit or size > limit_bytes):
                break
            kind = found
            bodies.append(body)
        return kind, bodies

    def advance(self, count: int) -> None:
        """The next `count` entries are delivered. With the last one the file becomes empty."""
        if count >= self.waiting:
            self.clear()
            return
        entries = self._entries()
        for _ in range(count):
            self._read_at, _ = next(entries)
        self.waiting -= count
        self._done += count
        try:
            self._write(b'["done",%d]\n' % self._done)
        except OSError:
            return  # a full disk: should it come to that, whoever reads this file repeats what is delivered

    def clear(self) -> None:
        """Forget all entries. Raises: OSError, though they are forgotten here."""
        self.waiting = self._done = 0
        self._read_at = self._size
        if self._fd >= 0:
            os.ftruncate(self._fd, len(_FIRST_LINE))
            self._size = self._read_at = len(_FIRST_LINE)
            self._is_torn = self._ends_torn = False

    def sync(self) -> None:
        """Wait until all of it is on the disk. Raises: OSError."""
        if self._fd >= 0:
            os.fsync(self._fd)

    def close(self) -> None:
        """Close the file. It stays if entries wait in it."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        if sys.platform == "win32":  # a file that is open can't be removed there
            os.close(fd)
        if not self.waiting:
            with contextlib.suppress(FileNotFoundError):  # the whole folder may be gone
                os.unlink(self._path)
        if sys.platform != "win32":
            os.close(fd)

    # -- the file

    def _open(self) -> None:
        if self._fd >= 0:
            return
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        while True:
            path = os.path.join(self._folder, f"{time.time_ns():020d}-{os.getpid()}{SUFFIX}")
            # for this user only: metrics are nobody else's business
            fd = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
            if _lock(fd) and os.fstat(fd).st_nlink:
                break
            os.close(fd)  # a process that looked for orphans was faster
        self._fd, self._path, self._size = fd, path, 0
        try:
            self._write(_FIRST_LINE)
        except OSError:
            self.close()
            raise
        self._read_at = self._size

    def _write(self, data: bytes) -> None:
        if self._ends_torn:
            data = b"\n" + data  # ends what could not be taken back, so that it is a line that is no entry
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError:
            if written:
                self._take_back()
            raise
        self._ends_torn = False
        self._size += len(data)

    def _take_back(self) -> None:
        """A write was cut off, by a full disk: the file ends before it again."""
        try:
            os.ftruncate(self._fd, self._size)
        except OSError:
            self._is_torn = self._ends_torn = True
            self._size = os.fstat(self._fd).st_size

    def _entries(self) -> Iterator[tuple[int, bytes]]:
        """The entries that wait, each with the offset where it ends."""
        left = self.waiting
        for end, line in self._lines(self._read_at) if left else ():
            if line.startswith((b'["done",', b'["spool",')) or (self._is_torn and not is_entry(line)):
                continue
            left -= 1
            yield end, line
            if not left:
                return

    def _lines(self, at: int) -> Iterator[tuple[int, bytes]]:
        """The lines from an offset on, each with the offset where it ends. What has no newline is none."""
        buffer, start = b"", 0
        while True:
            end = buffer.find(b"\n", start) + 1
            if not end:
                buffer, start = buffer[start:], 0
                piece = _read(self._fd, _PIECE, at + len(buffer))
                if not piece:
                    return
                buffer += piece
                continue
            at += end - start
            yield at, buffer[start:end]
            start = end

    def _take_up(self, path: str) -> bool:
        """Become a spool that is there already. False if its process lives, or nothing waits in it."""
        fd = os.open(path, _FLAGS | os.O_NOFOLLOW)
        if not _lock(fd):
            os.close(fd)
            return False
        self._fd, self._path = fd, path
        count, ends = 0, [0]
        for end, line in self._lines(0):
            self._size = end
            if line.startswith(b'["done",') and line[8:-2].isdigit():
                self._done = int(line[8:-2])
            elif is_entry(line):
                count += 1
                ends.append(end)
            elif line != _FIRST_LINE:
                self._is_torn = True
        os.ftruncate(fd, self._size)
        self._done = min(self._done, count)
        self._read_at = ends[self._done]
        self.waiting = count - self._done
        return self.waiting > 0


def spool_folder() -> tuple[str, bool]:
    """Where reports are kept while the master is away, and whether the agent looks there after the container's end."""
    told = os.environ.get("DET_SPOOL_DIR")
    if told:
        return told, True
    run_dir = os.environ.get("DET_RUN_DIR")
    if run_dir:
        return os.path.join(run_dir, "spool"), False
    import tempfile

    user = os.getuid() if hasattr(os, "getuid") else ""  # Windows has a temporary folder for each user
    return os.path.join(tempfile.gettempdir(), f"determined-spool-{user}-{os.getpid()}"), False


def leftovers(folder: str) -> list[Spool]:
    """What earlier processes of this container left behind, oldest first. Each is this process's now.

    None where the system has no locks, which is Windows: a live writer looks like one that has ended.

    Raises:
        OSError: The folder or one of its files can't be read.
    """
    if not hasattr(os, "O_NOFOLLOW"):
        return []
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX))
    except FileNotFoundError:
        return []
    found: list[Spool] = []
    for name in names:
        spool = Spool(folder)
        try:
            is_ours = spool._take_up(os.path.join(folder, name))  # pyright: ignore[reportPrivateUsage]
        except FileNotFoundError:
            continue  # another process was faster
        if is_ours:
            found.append(spool)
        else:
            spool.close()
    return found


def split(line: bytes) -> tuple[str, bytes]:
    """Kind and body of an entry's line."""
    end = line.index(b'"', 2)
    return line[2:end].decode(), line[end + 2 : -2]


def is_entry(line: bytes) -> bool:
    """Whether a line is a whole entry."""
    import json

    if not line.endswith(b"]\n") or not line.startswith(b'["'):
        return False
    try:
        value = json.loads(line)
    except ValueError:
        return False
    return len(value) == 2 and value[0] not in ("spool", "done")


def _read(fd: int, count: int, at: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(fd, count, at)
    os.lseek(fd, at, os.SEEK_SET)  # writing is not disturbed: O_APPEND
    return os.read(fd, count)


def _lock(fd: int) -> bool:
    """Hold the file for as long as it is open. False if another process holds it."""
    try:
        import fcntl
    except ImportError:  # Windows: nobody takes up another's file there
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
