"""What the workers' Python programs are doing, asked for by a signal and copied into the log.

Each Python of a worker registers `faulthandler` for the signal when it starts (`_worker_site`, on its PYTHONPATH), so
the script need not call anything. The handler is C: it answers while the program sleeps, waits for a lock, or hangs in
C code with the interpreter held; then the system call that it interrupted goes on. The stacks go into a file of their
own, so that they are not mistaken for output of the worker.

The signal is not SIGUSR1, for which training code may have handlers that end the training. Without a handler the signal
would end a process: only those get it which catch it and have the file open.
"""

from __future__ import annotations

import os
import signal
import sys

from determined._fail import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from determined.launch._folder import GangFolder

_SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_worker_site")
# A real-time signal that no library is known to use. 0: this system has none, and nobody is asked.
_SIGNAL = signal.SIGRTMAX - 7 if sys.platform == "linux" else 0


def environment(env: Mapping[str, str], folder: GangFolder, rank: str) -> dict[str, str]:
    """`env` for a worker that can be asked for its stacks."""
    if not _SIGNAL:
        return dict(env)
    path = folder.stacks_path(rank)
    open(path, "a").close()
    search = f"{_SITE}{os.pathsep}{env['PYTHONPATH']}" if env.get("PYTHONPATH") else _SITE
    return {**env, "PYTHONPATH": search, "DET_STACKS_FILE": path, "DET_STACKS_SIGNAL": str(_SIGNAL)}


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal. Unknown where there is no /proc: False."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as f:
            caught = next(line.split()[1] for line in f if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught, 16) >> (number - 1) & 1)


class Stacks:
    """The stacks of the workers of a container. Not made for several threads.

    Args:
        folder: Of the gang.
    """

    def __init__(self, folder: GangFolder) -> None:
        self._folder = folder
        self._shown: dict[str, int] = {}
        self._to_ask: dict[str, list[int]] = {}

    def ask(self, workers: Mapping[int, str]) -> None:
        """Ask workers what they are doing; `show` brings the answers.

        Args:
            workers: The rank of each, by the id of its process.
        """
        for pid, rank in workers.items():
            found = _pythons(pid, self._folder.stacks_path(rank))
            if not found:
                say("WARNING", f"rank {rank} can't show its stacks: it runs no Python that this launcher has prepared")
            self._shown.setdefault(rank, 0)
            self._to_ask[rank] = found
        self.show()

    def show(self) -> None:
        """Copy what has arrived into the log, line by line. To be called again and again."""
        for rank in self._shown:
            has_more = self._copy(rank, is_last=False)
            # One after the other: processes of one worker write into the same file.
            if not has_more and self._to_ask.get(rank):
                self._signal(rank, self._to_ask[rank].pop(0))

    def close(self) -> None:
        """Copy what is left."""
        for rank in self._shown:
            self._copy(rank, is_last=True)

    def _signal(self, rank: str, pid: int) -> None:
        # It may have changed since it was found.
        if _is_ready(pid, self._folder.stacks_path(rank)):
            _write(rank, [f"what process {pid} is doing:".encode()])
            try:
                os.kill(pid, _SIGNAL)
            except ProcessLookupError:
                return

    def _copy(self, rank: str, *, is_last: bool) -> bool:
        with open(self._folder.stacks_path(rank), "rb") as f:
            f.seek(self._shown[rank])
            data = f.read()
        end = len(data) if is_last else data.rfind(b"\n") + 1
        self._shown[rank] += end
        _write(rank, [line for line in data[:end].split(b"\n") if line])
        return bool(data)


def _write(rank: str, lines: list[bytes]) -> None:
    data = b"".join(b"[rank=%s] %s\n" % (rank.encode(), line) for line in lines)
    while data:
        data = data[os.write(sys.stderr.fileno(), data) :]


def _pythons(session: int, path: str) -> list[int]:
    """The processes of a worker that can be asked, without those that others of them have started."""
    if not _SIGNAL:
        return []
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as f:
                    # After the name of the program, which may contain anything: state, parent, group, session.
                    fields = f.read().rpartition(b")")[2].split()
            except OSError:
                continue  # it has ended
            if int(fields[3]) == session:
                parents[int(name)] = int(fields[1])
    ready = {pid for pid in parents if _is_ready(pid, path)}
    return sorted(pid for pid in ready if parents[pid] not in ready)


def _is_ready(pid: int, path: str) -> bool:
    if not catches(pid, _SIGNAL):
        return False
    folder = f"/proc/{pid}/fd"
    try:
        return any(os.readlink(os.path.join(folder, fd)) == path for fd in os.listdir(folder))
    except OSError:
        return False  # it has ended or closed a file just now, or is not ours
