"""The processes of an embedded cluster: started detached, found again by pid and start time, ended."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn


@dataclass(frozen=True)
class Process:
    """A part of the cluster that runs as a process of its own. `folder` keeps its pid, log and ready mark."""

    name: str
    folder: Path

    @property
    def log(self) -> Path:
        """Its log file."""
        return self.folder / "logs" / f"{self.name}.log"

    @property
    def ready_file(self) -> Path:
        """Appears when it is ready; a start removes it first."""
        return self.folder / "run" / f"{self.name}.ready"

    @property
    def _pid_file(self) -> Path:
        return self.folder / "run" / f"{self.name}.pid"

    @property
    def _umask(self) -> int:
        """Databases are for this user alone. What an agent makes, containers of other users may have to read."""
        return 0o022 if self.name == "agent" else 0o077

    def pid(self) -> int | None:
        """Its pid if it runs. A pid that another process has by now does not count."""
        try:
            saved = json.loads(self._pid_file.read_text())
            pid, started = int(saved["pid"]), str(saved["started"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return pid if _start_mark(pid) == started else None

    def run_module(self, module: str, environment: Mapping[str, str]) -> None:
        """Have a module's `run` called in a process of its own: a copy of this one where that is safe.

        It is on Linux, as long as nothing that was loaded so far has started a thread.
        """
        if sys.platform == "linux":
            # loaded here, so that the next part, which needs much the same, has less to load
            with loading():
                run = importlib.import_module(module).run
            if _thread_count() == 1:
                self.fork(run, environment)
                return
        own = {**environment, "UNDETERRED_READY_FILE": str(self.ready_file)}
        self.start([sys.executable, "-m", module], own)

    def start(self, command: Sequence[str], environment: Mapping[str, str], file: Path | None = None) -> None:
        """Start a program in a session of its own, so that it outlives us and our terminal.

        `file` is what is executed, if not what the command names.
        """

        def spawn(log: IO[bytes]) -> int:
            return subprocess.Popen(
                command,
                executable=file,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                cwd=self.folder,
                umask=self._umask,
            ).pid

        self._launch(spawn)

    def fork(self, run: Callable[[], object], environment: Mapping[str, str]) -> None:
        """As `start`, but a copy of this process, which has loaded the code already, and then calls `run`.

        Loading it takes most of a second of a core, and was most of what the start of a cluster took.
        """
        if _thread_count() > 1:
            raise RuntimeError("a process with threads must not be copied: its locks would be held indefinitely")
        own = {**environment, "UNDETERRED_READY_FILE": str(self.ready_file)}

        def copy(log: IO[bytes]) -> int:
            gc.freeze()  # the collector would touch, and so unshare, every page that the copies have in common
            sys.stdout.flush()
            sys.stderr.flush()
            return os.fork() or self._become(run, own, log.fileno())

        self._launch(copy)

    def _launch(self, spawn: Callable[[IO[bytes]], int]) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._pid_file.parent.mkdir(parents=True, exist_ok=True)
        self.ready_file.unlink(missing_ok=True)
        with _interrupt_deferred(), _opened_for_us(self.log) as log:
            pid = spawn(log)
            partial = self._pid_file.with_suffix(".tmp")
            partial.write_text(json.dumps({"pid": pid, "started": _start_mark(pid)}))
            os.replace(partial, self._pid_file)

    def _become(self, run: Callable[[], object], environment: Mapping[str, str], log: int) -> NoReturn:
        """The copy's life: nothing of what it was copied from is left but the code."""
        code = 1
        try:
            os.setsid()
            os.umask(self._umask)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            with open(os.devnull, "rb") as nothing:
                os.dup2(nothing.fileno(), 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # the lock of `det up` among them
            os.chdir(self.folder)
            os.environ.clear()
            os.environ.update(environment)
            sys.argv = [self.name]  # what stood behind `det up` was for that
            with contextlib.suppress(OSError):
                Path("/proc/self/comm").write_text(f"det-{self.name}")  # what `top` shows
            run()
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:  # noqa: BLE001 - there is nobody to catch it but what this was copied from
            traceback.print_exc()
        finally:
            os._exit(code)

    def stop(self, timeout_s: float) -> None:
        """SIGTERM, and SIGKILL if it has not gone by then."""
        pid = self.pid()
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        while self.pid() is not None and time.monotonic() < deadline:
            _reap(pid)
            time.sleep(0.02)
        if self.pid() is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            while self.pid() is not None:
                _reap(pid)
                time.sleep(0.02)
        self._pid_file.unlink(missing_ok=True)

    def last_lines(self, count: int = 5) -> str:
        """The end of its log, for an error message."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-count:])


def _opened_for_us(log: Path) -> IO[bytes]:
    """A log to append to, which other users of this machine may not read: also one of an earlier release."""
    number = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.fchmod(number, 0o600)
    return os.fdopen(number, "ab")


@contextlib.contextmanager
def loading() -> Generator[None]:
    """Code that is loaded in the block starts no thread, and no garbage is looked for: there is none yet."""
    name = "OPENBLAS_NUM_THREADS"  # numpy's library starts a thread a core as soon as it is loaded
    before = os.environ.get(name)
    os.environ[name] = "1"
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_collecting:
            gc.enable()
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextlib.contextmanager
def _interrupt_deferred() -> Generator[None]:
    """Ctrl-C waits: a child that started without its pid written would be found by nobody."""
    caught: list[int] = []

    def note(number: int, _: object) -> None:
        caught.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if caught:
        raise KeyboardInterrupt


def _thread_count() -> int:
    """Threads of this process: the native ones of libraries too, where the system tells."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count()


def _start_mark(pid: int) -> str | None:
    """What tells this process from a later one with the same pid; None if it is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None if Path("/proc/self/stat").exists() else _start_mark_without_proc(pid)
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[19]


def _start_mark_without_proc(pid: int) -> str | None:
    shown = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout.strip() or None


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def holder_of_port(port: int) -> str:
    """The process that listens on a port, for an error message; empty if it is unknown."""
    hexed = f":{port:04X}"
    inodes: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[1].endswith(hexed) and fields[3] == "0A":
                    inodes.add(f"socket:[{fields[9]}]")
    for entry in Path("/proc").glob("[0-9]*/fd/*") if inodes else ():
        with contextlib.suppress(OSError):
            if os.readlink(entry) in inodes:
                pid = entry.parts[2]
                name = Path(f"/proc/{pid}/comm").read_text().strip()
                return f"{name} (pid {pid})"
    return ""
