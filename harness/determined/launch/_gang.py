"""What the launchers share: where this container is in its job, and a launcher's process that is watched to its end.

Each worker runs under `wrap_rank`, which notes how it ended in a folder that all of this container share (`_folder`).
So the worker that failed first is known, whatever the framework's own launcher says about it. When none of them goes on
any more, `_stall` shows where they are.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from determined import errors
from determined._fail import fail, say
from determined.launch import _stall
from determined.launch._folder import GANG_DIR, GangFolder
from determined.launch._stacks import catches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn

# After the first worker has failed the others get so long for the framework's launcher to end them.
END_WITHIN_S = 30.0
_SIOCGIFADDR = 0x8915  # netdevice(7)
FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGWINCH")


class Place:
    """This container in its job.

    Attributes:
        addresses: Of all containers, by rank.
        rank: Of this container.
        slots: Workers of each container, by rank; at least 1.
    """

    def __init__(self) -> None:
        from determined._info import get_cluster_info

        try:
            info = get_cluster_info()
        except errors.InvalidConfigurationException as e:
            fail(str(e))
        self.addresses = info.container_addrs if info else ["127.0.0.1"]
        self.rank = info.container_rank if info else 0
        counts = info.container_slot_counts if info else [1]
        self.slots = [max(1, count) for count in counts] or [1]

    @property
    def chief_ip(self) -> str:
        """The address of the container of rank 0."""
        return self.addresses[0]

    def network(self, env: Mapping[str, str]) -> dict[str, str]:
        """Variables that tell Gloo and NCCL by which interface other hosts reach this one.

        Left to themselves they take the address of this host's name, which many images and hosts map to 127.0.0.1.
        What `env` has already stays.
        """
        if len(self.addresses) == 1:
            return {}
        name = env.get("DET_INTER_NODE_NETWORK_INTERFACE") or _interface_of(self.addresses[self.rank])
        names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
        return {variable: name for variable in names if name and variable not in env}


def _interface_of(address: str) -> str:
    """The network interface of this host that has an IPv4 address; empty if none has, or it is unknown."""
    try:
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            for _, name in socket.if_nameindex():
                asked = name.encode().ljust(256, b"\0")
                try:
                    answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, asked)
                except OSError:
                    continue  # it has no IPv4 address
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    except (ImportError, OSError):
        pass
    return ""


def arguments(launcher: str, argv: list[str]) -> tuple[list[str], list[str]]:
    """Split `[overrides --] script…` into the overrides and the command. Ends the process if there is no command.

    `--trial module:Class` in place of a script is the command that trains a trial class.
    """
    overrides: list[str] = []
    if "--" in argv:
        at = argv.index("--")
        overrides, argv = argv[:at], argv[at + 1 :]
    if argv[:1] == ["--trial"]:
        if len(argv) != 2:
            fail(f"determined.launch.{launcher} --trial takes one trial class, for example --trial model_def:MyTrial")
        return overrides, [sys.executable, "-m", "determined.exec.harness", argv[1]]
    if not argv or argv[0].startswith("-"):
        fail(
            f"determined.launch.{launcher} has no command to run; use: python3 -m determined.launch.{launcher} "
            "[options of the launcher --] python3 train.py …"
        )
    if argv[0].endswith(".py"):
        argv = [sys.executable, *argv]
    return overrides, argv


def program(name: str, what: str) -> str:
    """Where a framework's launcher is. Ends the process if it is not installed."""
    beside = os.path.join(os.path.dirname(sys.executable), name)
    found = beside if os.access(beside, os.X_OK) else shutil.which(name)
    if found is None:
        fail(f"{name} was not found: {what} is not installed in the image of this task", 127)
    return found


def rendezvous_port(place: Place) -> str:
    """Where the workers of a job find each other: `C10D_PORT`, or 29400 and what keeps trials of one machine apart.

    A job of several machines has them for itself, and all of them must agree. On one machine, which others share, it
    is the first free port from there on.
    """
    text = os.environ.get("DET_UNIQUE_PORT_OFFSET") or "0"
    is_alone = len(place.addresses) == 1
    if given := os.environ.get("C10D_PORT"):
        return given
    first = 29400 + (int(text) if is_alone and text.isdigit() else 0)
    return str(next(filter(_is_free, range(first, first + 1000)), first) if is_alone else first)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As torch does: what an earlier trial's connections have left behind is no server.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def on_one_machine(launcher: str, instead: str) -> Place:
    """This container, for a launcher that needs ssh to reach others. Ends the process if there are others."""
    place = Place()
    if len(place.addresses) > 1:
        fail(
            f"this trial has {len(place.addresses)} containers, and {launcher}'s launcher needs ssh between them, "
            f"which comes with a later release; use determined.launch.torch_distributed{instead}"
        )
    return place


def wrapped(command: list[str], rank: int | None = None) -> list[str]:
    """The command of one worker; `rank` where no launcher sets a variable for it."""
    named = [] if rank is None else [str(rank)]
    return [sys.executable, "-m", "determined.launch.wrap_rank", *named, "--", *command]


def run(command: list[str], env: Mapping[str, str], what: str) -> NoReturn:
    """Run a framework's launcher to its end, and end with the status of the worker that failed first.

    Signals are forwarded to all workers. When one has failed, the launcher gets `END_WITHIN_S` to end the others; then
    they are killed.
    """
    limit_s = _stall.limit_s()
    # Its real path: by that /proc knows the files in it.
    folder = GangFolder(os.path.realpath(tempfile.mkdtemp(prefix="determined-gang-")))
    stall = _stall.StallWatch(folder, limit_s)
    try:
        try:
            code = _watch(command, {**env, GANG_DIR: folder.path}, folder, stall)
        finally:
            stall.close()
        first = folder.first_failure()
        if first is not None:
            say("ERROR", f"rank {first['rank']} {how_it_ended(first['returncode'])}; all workers were stopped")
            code = first["returncode"]
        elif code:
            say("ERROR", f"{what} {how_it_ended(code)}, and no worker had failed")
    except FileNotFoundError:
        fail(f"{command[0]!r} was not found; install {what} in the image of this task", 127)
    finally:
        shutil.rmtree(folder.path, ignore_errors=True)
    sys.exit(128 - code if code < 0 else code)


def how_it_ended(returncode: int) -> str:
    """In words. Negative: by a signal."""
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = "unknown"
    return f"was ended by signal {-returncode} ({name})"


def _watch(command: list[str], env: Mapping[str, str], folder: GangFolder, stall: _stall.StallWatch) -> int:
    # A group of its own: what is left of the workers is killed with it.
    process = subprocess.Popen(command, env=env, start_new_session=True)
    stopping, asked = threading.Event(), threading.Event()

    def forward(number: int, _: Any) -> None:
        if number in (signal.SIGINT, signal.SIGTERM):
            stopping.set()
        if number == signal.SIGUSR1:
            asked.set()
        else:
            _signal_group(process.pid, number)

    before = {name: signal.signal(getattr(signal, name), forward) for name in FORWARDED}
    try:
        left_s: float | None = None
        while True:
            try:
                code = process.wait(0.5)
            except subprocess.TimeoutExpired:
                if asked.is_set():
                    asked.clear()
                    _show_stacks(folder, stall)
                if left_s is None and folder.first_failure() is not None:
                    left_s = END_WITHIN_S
                elif left_s is not None:
                    left_s -= 0.5
                    if left_s <= 0:
                        say(
                            "WARNING", f"some workers still run {END_WITHIN_S:.0f} s after another failed: killing them"
                        )
                        _signal_group(process.pid, signal.SIGKILL)
                else:
                    stall.look()
            else:
                if stopping.is_set():
                    _wait_for_workers(folder)
                return code
    finally:
        # Workers may have groups of their own, and outlive the launcher.
        for pid in folder.running():
            _signal_group(pid, signal.SIGKILL)
        _signal_group(process.pid, signal.SIGKILL)
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


def _wait_for_workers(folder: GangFolder) -> None:
    """Not every launcher waits for workers that were asked to stop; they may have something to save."""
    until = time.monotonic() + END_WITHIN_S
    while folder.running() and time.monotonic() < until:
        time.sleep(0.05)


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _show_stacks(folder: GangFolder, stall: _stall.StallWatch) -> None:
    """SIGUSR1 is for the workers that have a handler for it: `core.init()` makes one that prints the stacks."""
    others: dict[int, str] = {}
    for pid, rank in folder.running().items():
        if not catches(pid, signal.SIGUSR1):
            others[pid] = rank
            continue
        try:
            os.kill(pid, signal.SIGUSR1)
        except (ProcessLookupError, PermissionError):
            continue
    stall.ask(others)
