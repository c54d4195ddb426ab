"""Containers that are plain processes of this host, each under a supervisor of its own (`supervisor.py`).

There is no isolation and no memory limit here: `memory_bytes` and `shm_bytes` are the Docker launcher's (RLIMIT_AS
would end CUDA programs, which reserve far more address space than memory). A container is the folder
`root/<container_id>`: `run/` and `work/` are the user's, the rest is described in `supervisor.py`. All truth is in
those files and in /proc; the object holds nothing, so that any agent, now or later, can go on with any container.

An agent under systemd needs `KillMode=process`: the default ends the whole control group at a restart of the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import psutil

from activities.launchers import supervisor
from activities.launchers.base import (
    RUN_FILES_LIMIT,
    STACKS_S,
    ContainerExit,
    ContainerPaths,
    ContainerSpec,
    ContainerStatus,
    ExitCause,
    Launcher,
    LaunchError,
    LogLine,
    RunFiles,
    Usage,
    check_spec,
)
from determined.launch._stacks import catches

DEFAULT_LOG_LIMIT = 1 << 30
_STREAMS = {b"o": "stdout", b"e": "stderr"}
_START_LIMIT_S = 30.0


class ProcessLauncher(Launcher):
    """Runs each container as a process group of this host.

    Args:
        root: Folder of all containers of this agent; made if absent. One agent a folder.
        log_limit_bytes: Where the log of a container ends; what it writes later is dropped, with a line that says so.
        gpus: Slot id to the UUID of its GPU; a container sees those of its slots. None: slots are no GPUs.
        python: The interpreter that runs the supervisor.
    """

    name = "process"
    sees_host = True
    shares_host_network = True
    makes_storage = False  # processes make it themselves, on their first checkpoint

    def __init__(
        self,
        root: Path,
        *,
        log_limit_bytes: int = DEFAULT_LOG_LIMIT,
        gpus: Mapping[int, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        self._root = root.absolute()
        self._log_limit = log_limit_bytes
        self._gpus = gpus
        self._python = python
        #: By container: the offset of the line that was read last, and the one at which the next line will begin.
        self._read_up_to: dict[str, tuple[int, int]] = {}

    def container_paths(self, container_id: str) -> ContainerPaths:
        """The folders, as absolute paths of this host."""
        folder = self._root / container_id
        return ContainerPaths(str(folder), str(folder / "run"), str(folder / "work"))

    async def check(self) -> None:
        """Raise LaunchError("engine_unavailable") unless this is Linux with /proc and a writable root."""
        try:
            self._root.mkdir(parents=True, exist_ok=True, mode=0o711)
            supervisor.boot_id()
        except OSError as error:
            raise LaunchError(
                "engine_unavailable",
                f"process launcher, root {self._root}: {error.strerror} ({error.filename});"
                " it needs Linux with /proc and a folder that the agent may write.",
            ) from None
        if not os.access(self._root, os.W_OK):
            raise LaunchError("engine_unavailable", f"process launcher, root {self._root}: the agent may not write it.")

    async def start(self, spec: ContainerSpec) -> None:
        """Start, or find started before. See `Launcher.start`."""
        check_spec(spec)
        await asyncio.to_thread(self._start, spec)

    async def wait(self, container_id: str, timeout_s: float) -> ContainerExit | None:
        """How it ended; wakes within a few milliseconds of the end, and costs nothing until then (a pidfd)."""
        folder = self._root / container_id
        deadline = time.monotonic() + timeout_s
        while True:
            found = await asyncio.to_thread(self._look, folder)
            if isinstance(found, ContainerExit):
                return found
            left = deadline - time.monotonic()
            if left <= 0 or not await _process_ended(*found, left):
                return None

    async def kill(self, container_id: str, grace_s: float) -> None:
        """SIGTERM to the process group; after the grace SIGKILL to every process of the container."""
        folder = self._root / container_id
        if isinstance(await asyncio.to_thread(self._look, folder), ContainerExit):
            return
        (folder / "killed").touch()
        state = _read_json(folder / "state.json") or {}
        if grace_s > 0:
            _signal_group(state, signal.SIGTERM)
            _signal_group(state, signal.SIGCONT)
            if await self.wait(container_id, grace_s) is not None:
                return
        while True:
            await asyncio.to_thread(_kill_everything, folder, state)
            if await self.wait(container_id, 0.5) is not None:
                return

    async def show_stacks(self, container_id: str) -> None:
        """SIGUSR1 to its outermost programs that have a handler for it: a launch module asks its workers itself."""
        folder = self._root / container_id
        state = _read_json(folder / "state.json")
        if state is None or isinstance(await asyncio.to_thread(self._look, folder), ContainerExit):
            return
        for pid in await asyncio.to_thread(_outermost_catching, folder, state, signal.SIGUSR1):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        await self.wait(container_id, STACKS_S)

    async def logs(self, container_id: str, after: int, limit: int = 1000) -> Sequence[LogLine]:
        """Lines after the byte offset `after` of the log file. See `Launcher.logs`."""
        path = self._root / container_id / "log"
        if after >= 0 and self._read_up_to.get(container_id) == (after, _size(path)):
            return ()  # nothing was written since: most looks, which come ten times a second, are not worth a thread
        lines, end = await asyncio.to_thread(_read_log, path, after, limit)
        if lines:
            self._read_up_to[container_id] = lines[-1].offset, end
        return lines

    async def run_files(self, container_id: str, folder: str) -> RunFiles:
        """The files themselves."""
        run_dir = self.container_paths(container_id).run_dir
        opening = asyncio.create_task(asyncio.to_thread(_open_files, run_dir, folder))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_opened)  # its thread goes on
            raise

    async def list(self) -> Sequence[ContainerStatus]:
        """Every container that was started: a folder that a crash left before that is for `start` to take up."""
        return await asyncio.to_thread(self._list)

    async def find(self, container_id: str) -> ContainerStatus | None:
        """By its own folder: a look at all of them for each start would be the more, the more there are."""
        return await asyncio.to_thread(self._status, self._root / container_id)

    async def usage(self, container_id: str) -> Usage | None:
        """The sums over its processes: memory that some of them share counts for each."""
        return await asyncio.to_thread(_usage, self._root / container_id)

    async def unstarted(self) -> Sequence[ContainerStatus]:
        """Folders that were prepared, and in which nothing was started for longer than a start may take."""
        return await asyncio.to_thread(self._list_unstarted)

    async def remove(self, container_id: str) -> None:
        """Delete the folder."""
        await self.kill(container_id, 0.0)
        self._read_up_to.pop(container_id, None)
        await asyncio.to_thread(self._remove, container_id)

    def _start(self, spec: ContainerSpec) -> None:
        folder = self._root / spec.container_id
        if (folder / "state.json").exists():
            return
        try:
            self._prepare(folder, spec)
            python_path = {k: os.environ[k] for k in ("LD_LIBRARY_PATH",) if k in os.environ}
            done = subprocess.run(
                [self._python, "-I", "-S", "-c", supervisor.COMMAND, folder, Path(supervisor.__file__).parent],
                env=python_path,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                cwd="/",
                start_new_session=True,
                timeout=_START_LIMIT_S,
                check=False,
            )
        except OSError as error:
            reason = "no_space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "start_failed"
            raise LaunchError(reason, f"container {spec.container_id}: {error.strerror} ({error.filename}).") from error
        except subprocess.TimeoutExpired:
            raise LaunchError(
                "start_failed",
                f"container {spec.container_id}: not started within {_START_LIMIT_S:g} s; check the host.",
            ) from None
        # Another supervisor may hold the lock and be a moment behind.
        deadline = time.monotonic() + 2.0
        while done.returncode == 0 and not (folder / "state.json").exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        if not (folder / "state.json").exists():
            text = done.stderr.decode(errors="replace").strip()[-500:] or f"supervisor exit code {done.returncode}"
            reason = "no_space" if "No space left" in text else "start_failed"
            raise LaunchError(reason, f"container {spec.container_id}: its supervisor did not start it: {text}")

    def _prepare(self, folder: Path, spec: ContainerSpec) -> None:
        paths = self.container_paths(spec.container_id)
        user = _resolve_user(spec.user)
        folder.mkdir(parents=True, exist_ok=True, mode=0o711)
        for name in (paths.run_dir, paths.work_dir):
            os.makedirs(name, mode=0o700, exist_ok=True)
            if user:
                os.chown(name, *user)
        env = {
            "PATH": paths_of_host(),
            "HOME": paths.work_dir,
            "LANG": "C.UTF-8",
            **{name: value.replace("{container_dir}", paths.container_dir) for name, value in spec.env.items()},
            supervisor.MARKER: str(folder),
        }
        if self._gpus:  # of its own slots, and no other
            env["CUDA_VISIBLE_DEVICES"] = ",".join(self._gpus[slot] for slot in spec.slot_ids)
        # first, as it tells whose the folder is, should a crash leave it so
        record = {
            "container_id": spec.container_id,
            "argv": list(spec.argv),
            "env": env,
            "labels": dict(spec.labels),
            "slot_ids": list(spec.slot_ids),
            "user": spec.user,
        }
        _write_private(folder / "spec.json", json.dumps(record, indent=1))
        sections = {
            "argv": list(spec.argv),
            "env": [f"{name}={value}" for name, value in env.items()],
            "workdir": [spec.workdir.replace("{container_dir}", paths.container_dir) or paths.work_dir],
            "user": [str(number) for number in user],
            "log_limit": [str(self._log_limit)],
        }
        words = [word for name, values in sections.items() for word in (name, str(len(values)), *values)]
        _write_private(folder / "launch", "\0".join([*words, ""]))

    def _look(self, folder: Path) -> ContainerExit | tuple[int, int]:
        """The exit, or process id and start time of whom to wait for."""
        found = _read_exit(folder)
        if found:
            return found
        state = _read_json(folder / "state.json")
        if state is None:
            return ContainerExit(ExitCause.LOST, None, datetime.now(UTC), "it was never started here, or was removed")
        if state["boot_id"] != supervisor.boot_id():
            return _record_exit(folder, ExitCause.LOST, None, "the host was restarted while it ran")
        for pid, ticks in ((state["supervisor"], state["supervisor_ticks"]), (state["pid"], state["ticks"])):
            if _is_alive(pid, ticks):
                return pid, ticks
        found = _read_exit(folder)  # it may have been written since the first look
        if found:
            return found
        supervisor.sweep(str(folder), (state["pid"], state["ticks"]), 0)
        if (folder / "killed").exists():
            return _record_exit(folder, ExitCause.KILLED, 128 + signal.SIGKILL, "its supervisor was gone")
        return _record_exit(folder, ExitCause.LOST, None, "its supervisor was ended from outside, and then it was gone")

    def _list(self) -> Sequence[ContainerStatus]:
        statuses: list[ContainerStatus] = []
        for entry in sorted(self._root.iterdir()) if self._root.is_dir() else ():
            if (status := self._status(entry)) is not None:
                statuses.append(status)
        return statuses

    def _status(self, folder: Path) -> ContainerStatus | None:
        record = None if folder.name.startswith(".") else _read_json(folder / "spec.json")
        if record is None or not (folder / "state.json").exists():
            return None
        running = not isinstance(self._look(folder), ContainerExit)
        return ContainerStatus(folder.name, running, record["labels"])

    def _list_unstarted(self) -> Sequence[ContainerStatus]:
        statuses: list[ContainerStatus] = []
        for entry in sorted(self._root.iterdir()) if self._root.is_dir() else ():
            record = None if entry.name.startswith(".") else _read_json(entry / "spec.json")
            if record is None or (entry / "state.json").exists():
                continue
            with contextlib.suppress(FileNotFoundError):
                if time.time() - (entry / "spec.json").stat().st_mtime > 2 * _START_LIMIT_S:
                    statuses.append(ContainerStatus(entry.name, False, record["labels"]))
        return statuses

    def _remove(self, container_id: str) -> None:
        # One rename takes it out of the list, so that a crash half-way leaves no container without its record.
        trash = self._root / f".removed-{container_id}-{time.time_ns()}"
        with contextlib.suppress(FileNotFoundError):
            (self._root / container_id).rename(trash)
        for old in self._root.glob(".removed-*"):
            shutil.rmtree(old, ignore_errors=True)


def paths_of_host() -> str:
    """This process' PATH without virtual environments: that of the cluster itself, or of the user who started it."""
    own = os.path.dirname(sys.executable) if sys.prefix != sys.base_prefix else ""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    kept = [f for f in folders if f and f != own and not os.path.exists(os.path.join(f, "..", "pyvenv.cfg"))]
    return os.pathsep.join(kept) or os.defpath


async def _process_ended(pid: int, ticks: int, timeout_s: float) -> bool:
    """True as soon as the process is gone, False after the time-out."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except OSError:  # out of file descriptors, or a kernel before 5.3
        return await _poll_ended(pid, ticks, timeout_s)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    try:
        if not _is_alive(pid, ticks):  # asked while we hold the pidfd, so the number can't go to another process
            return True
        loop.add_reader(fd, ended.set)
        try:
            async with asyncio.timeout(timeout_s):
                await ended.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(fd)
        return True
    finally:
        os.close(fd)


async def _poll_ended(pid: int, ticks: int, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    pause = 0.02
    while _is_alive(pid, ticks):
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        await asyncio.sleep(min(pause, left))
        pause = min(pause * 1.1, 0.5)
    return True


def _is_alive(pid: int, ticks: int) -> bool:
    stat = supervisor.process_stat(pid)
    return stat is not None and stat[2] == ticks


def _signal_group(state: dict[str, Any], number: signal.Signals) -> None:
    if not state or not _is_alive(state["pid"], state["ticks"]):
        return
    try:
        os.killpg(state["pid"], number)
    except ProcessLookupError:  # it has not made its group yet
        with contextlib.suppress(ProcessLookupError):
            os.kill(state["pid"], number)


def _usage(folder: Path) -> Usage | None:
    state = _read_json(folder / "state.json")
    if state is None or not _is_alive(state["pid"], state["ticks"]):
        return None
    cpu_s, memory = 0.0, 0
    for pid in supervisor.find_processes(str(folder), (state["pid"], state["ticks"]), state["supervisor"]):
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile: then its parent has its time
            process = psutil.Process(pid)
            cpu_s += sum(process.cpu_times()[:4])  # its own, and that of its children which have ended
            memory += process.memory_info().rss
    return Usage(cpu_s, memory)


def _outermost_catching(folder: Path, state: dict[str, Any], number: signal.Signals) -> list[int]:
    """The processes of a container that handle a signal, without those that others of them have started."""
    parent = state["supervisor"] if _is_alive(state["supervisor"], state["supervisor_ticks"]) else 0
    pids = supervisor.find_processes(str(folder), (state["pid"], state["ticks"]), parent)
    stats = {pid: stat for pid in pids if (stat := supervisor.process_stat(pid)) is not None}
    catching = {pid for pid in stats if catches(pid, number)}

    def is_below(pid: int) -> bool:
        above = stats[pid][0]
        return above in catching or (above in stats and is_below(above))

    return sorted(pid for pid in catching if not is_below(pid))


def _kill_everything(folder: Path, state: dict[str, Any]) -> None:
    if not state:
        return
    parent = state["supervisor"] if _is_alive(state["supervisor"], state["supervisor_ticks"]) else 0
    supervisor.sweep(str(folder), (state["pid"], state["ticks"]), parent)


def _size(path: Path) -> int:
    """Bytes of a file; -1: there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def _read_log(path: Path, after: int, limit: int) -> tuple[list[LogLine], int]:
    """The lines after an offset, and the offset at which the next one will be."""
    lines: list[LogLine] = []
    at = max(after, 0)
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return lines, at
    with file:
        file.seek(at)
        skip = after >= 0
        while len(lines) < limit:
            header = file.read(supervisor.HEADER_BYTES)
            if len(header) < supervisor.HEADER_BYTES:
                return lines, at
            try:
                stamp, stream, size = int(header[:16], 16), _STREAMS[header[16:17]], int(header[17:21], 16)
            except (KeyError, ValueError):
                raise ValueError(f"after={after}: expected -1 or the offset of a line that was read before") from None
            text = file.read(size + 1)
            if len(text) <= size:  # being written
                return lines, at
            if not skip:
                seconds, rest = divmod(stamp, 1_000_000_000)
                moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000)
                lines.append(LogLine(at, moment, stream, text[:-1].decode("utf-8", "replace")))
            skip = False
            at += len(header) + len(text)
    return lines, at


def _close_opened(opening: asyncio.Task[RunFiles]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _open_files(run_dir: str, folder: str) -> RunFiles:
    # We may be root, and the user's code may have put a link or a pipe there: none of them is followed or waited for.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    files: list[tuple[str, IO[bytes]]] = []
    with contextlib.ExitStack() as held, contextlib.ExitStack() as folders:
        try:
            outer = os.open(run_dir, flags | os.O_DIRECTORY)
            folders.callback(os.close, outer)
            inner = os.open(folder, flags | os.O_DIRECTORY, dir_fd=outer)
            folders.callback(os.close, inner)
            size = 0
            for name in sorted(os.listdir(inner)):
                found = os.stat(name, dir_fd=inner, follow_symlinks=False)
                if not stat.S_ISREG(found.st_mode):
                    continue
                size += found.st_size
                if size > RUN_FILES_LIMIT:
                    raise ValueError(f"{run_dir}/{folder} is larger than {RUN_FILES_LIMIT} bytes")
                file = os.fdopen(os.open(name, flags, dir_fd=inner), "rb")
                files.append((name, held.enter_context(file)))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return RunFiles([], contextlib.ExitStack())
            raise LaunchError(
                "engine_unavailable", f"{run_dir}/{folder} can't be read: {error.strerror} ({error.filename})."
            ) from error
        return RunFiles(files, held.pop_all())


def _read_exit(folder: Path) -> ContainerExit | None:
    record = _read_json(folder / "exit.json")
    if record is None:
        return None
    ended_at = datetime.fromtimestamp(record["ended_ns"] / 1e9, UTC)
    return ContainerExit(ExitCause(record["cause"]), record["code"], ended_at, record["message"])


def _record_exit(folder: Path, cause: ExitCause, code: int | None, message: str) -> ContainerExit:
    """Record the end that we found out, so that all later callers get the same answer."""
    record = {"cause": cause.value, "code": code, "ended_ns": time.time_ns(), "message": message}
    try:
        _write_private(folder / "exit.json", json.dumps(record))
    except OSError:  # removed meanwhile, or a full disk: the next to ask finds it out again
        return ContainerExit(cause, code, datetime.now(UTC), message)
    return _read_exit(folder) or ContainerExit(cause, code, datetime.now(UTC), message)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None  # a file that a power cut left empty counts as absent


def _write_private(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(os.fsencode(text))
    new.rename(path)


def _resolve_user(user: str) -> tuple[int, int] | tuple[()]:
    """Numeric user and group of `name`, `uid` or `uid:gid`; empty for the agent's own user."""
    if not user:
        return ()
    import pwd

    name, _, group = user.partition(":")
    try:
        entry = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
        ids = entry.pw_uid, int(group) if group else entry.pw_gid
    except (KeyError, ValueError):
        if not (name.isdigit() and group.isdigit()):
            raise LaunchError(
                "bad_spec", f"user {user!r}: expected a name of this host, `uid` or `uid:gid`; correct the agent user."
            ) from None
        ids = int(name), int(group)
    if ids[0] == os.geteuid():
        return ()
    if os.geteuid() != 0:
        raise LaunchError(
            "bad_spec",
            f"user {user!r}: an agent that is not root runs containers as its own user (uid {os.geteuid()}) only.",
        )
    return ids
