"""The contract between an agent and whatever runs its containers.

A launcher starts a container under a name made from its id, and can find it again later: an agent that was killed,
restarted or upgraded attaches to the containers that lived on. Nothing here knows of Temporal or of the database.
`tests/integration/test_launchers.py` holds the contract as a test class that each launcher inherits.
"""

from __future__ import annotations

import abc
import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from workflows.messages import NodeState

RUNS_IN = "ai.undeterred.runs-in"
"""The label of a container that says where its imports are looked for: the path of an interpreter, or `image NAME`."""


SLOTS = "ai.undeterred.slots"
"""The label of a container that says which slots of its host it has, with commas."""


class LaunchError(Exception):
    """The container can't be started, and trying again will not help.

    `reason` is a short machine word: of the image "image_missing", "image_denied", "wrong_architecture", "no_program"
    and "registry_unavailable", else "bad_spec", "no_space", "engine_unavailable" or "start_failed". The message is a
    sentence for the trial's log that says what to do. `workflows.lifecycle.trial.classify` knows which are final.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ExitCause(StrEnum):
    """Why a container is no longer running."""

    EXITED = "exited"  # ended by itself; `code` is its exit status, 128+n if signal n ended it
    KILLED = "killed"  # ended by `Launcher.kill`
    OUT_OF_MEMORY = "out_of_memory"  # the kernel or the engine ended it for memory
    NO_PROGRAM = "no_program"  # the image has no such first program, or none for this architecture
    BAD_GPU = "bad_gpu"  # it failed, and a GPU that it had is in error
    EVICTED = "evicted"  # its cluster ended it: for others, or with its node
    LOST = "lost"  # gone without a trace: the host rebooted, or it was removed from outside


@dataclass(frozen=True)
class Mount:
    """A folder of the host that the container sees. The process launcher has no mounts: it uses `source` itself."""

    source: Path
    target: str
    read_only: bool = False
    propagation: str = "rprivate"
    is_trusted: bool = False  # the cluster's own, no user's wish


@dataclass(frozen=True)
class HostDevice:
    """A device of the host that the container may use. Processes of the process launcher see what their user may."""

    source: Path
    target: str
    mode: str = "rwm"


@dataclass(frozen=True)
class ContainerSpec:
    """What to launch. `container_id` is the identity: a second start with the same id finds the first container."""

    container_id: str
    argv: Sequence[str]
    env: Mapping[str, str]
    image: str = ""
    pulls_always: bool = False
    registry_login: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    workdir: str = ""
    mounts: Sequence[Mount] = ()
    slot_ids: Sequence[int] = ()
    memory_bytes: int | None = None
    shm_bytes: int | None = None
    devices: Sequence[HostDevice] = ()
    add_capabilities: Sequence[str] = ()
    drop_capabilities: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    user: str = ""
    ports: Mapping[str, int] = field(default_factory=dict[str, int])  # that it listens on, by the variable that says so
    is_of_gang: bool = False  # others of its allocation run on other hosts, and must reach it at its host's address
    group: str = ""  # its allocation
    rank: int = 0  # in it
    group_size: int = 1  # containers that the allocation has
    pod_spec: Mapping[str, Any] = field(default_factory=dict[str, Any])  # a user's, for launchers that make pods
    excluded_nodes: Sequence[str] = ()  # of a cluster, by log policies
    namespace: str = ""  # of a cluster, that its workspace is bound to; empty: the usual one


@dataclass(frozen=True)
class ContainerExit:
    """How a container ended. `code` is None only when the cause is LOST."""

    cause: ExitCause
    code: int | None
    ended_at: datetime
    message: str = ""


@dataclass(frozen=True)
class LogLine:
    """One line of output, without its newline.

    `offset` grows strictly from line to line of one container, over both streams, and stays the same when read again,
    so that (container id, offset) identifies the line permanently.
    """

    offset: int
    timestamp: datetime
    stdtype: str | None  # "stdout" or "stderr"; None: the launcher can't tell
    text: str


@dataclass(frozen=True)
class ContainerStatus:
    """A container that this launcher started at some time and has not removed."""

    container_id: str
    running: bool
    labels: Mapping[str, str]


@dataclass(frozen=True)
class Usage:
    """What a running container uses: seconds of processors since its start, and bytes of memory now."""

    cpu_s: float
    memory_bytes: int


@dataclass(frozen=True)
class ContainerPaths:
    """Where the harness' folders are, as the container's processes see them.

    An environment value may hold `{container_dir}`: the launcher puts `container_dir` in its place.
    """

    container_dir: str
    run_dir: str  # DET_RUN_DIR
    work_dir: str  # DET_WORKDIR, and the working directory if the specification names none


@dataclass(frozen=True)
class Node:
    """A node of a cluster.

    Attributes:
        name: As the cluster calls it.
        slots: That it has, for whose pods ever.
        foreign: Of them used by others than this agent.
        used: Of them held by this agent's containers.
        address: Within the cluster.
        is_cordoned: An operator of the cluster took it out of service, for all pods.
        service: `in`; `drain`: this agent's containers may stay and none may come; `out`: they are to leave as well.
        is_open: New containers may be sent there.
    """

    name: str
    slots: int
    foreign: int
    used: int = field(compare=False)
    address: str
    is_cordoned: bool
    service: NodeState
    is_open: bool


@dataclass(frozen=True)
class Offer:
    """What a cluster offers at present: slots in all, the most of one container, and the nodes that have them."""

    slots: int
    slots_per_pod: int
    nodes: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Place:
    """Where a container of a cluster runs: its node, and the address where the others of its gang reach it."""

    node: str
    address: str


class RunFiles:
    """Files of a container, open for reading. Close it."""

    def __init__(self, files: Sequence[tuple[str, IO[bytes]]], held: contextlib.ExitStack) -> None:
        self.files = files
        self._held = held

    def close(self) -> None:
        """Close all of them."""
        self._held.close()


STACKS_S = 3.0
"""How long programs get to write their stacks; a launch module asks its workers every half second."""

RUN_FILES_LIMIT = 4 << 30
"""Bytes in all that `Launcher.run_files` reads or copies: a container may leave a sparse file of any size."""

_CONTAINER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


def check_spec(spec: ContainerSpec) -> None:
    """Refuse what no launcher can start. Raises: LaunchError("bad_spec")."""
    if not _CONTAINER_ID.fullmatch(spec.container_id):
        raise LaunchError(
            "bad_spec",
            f"container id {spec.container_id!r}: expected 1 to 128 letters, digits, '_', '.', '-', a letter or digit"
            " first; make the id from the allocation's id.",
        )
    if not spec.argv:
        raise LaunchError("bad_spec", "argv is empty: expected the command and its arguments; set `entrypoint`.")
    for name, value in spec.env.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise LaunchError(
                "bad_spec",
                f"environment variable {name!r}: expected a name without '=' and no NUL in name or value;"
                " correct `environment.environment_variables`.",
            )
    if any("\0" in word for word in spec.argv):
        raise LaunchError("bad_spec", "argv: expected words without NUL characters; correct `entrypoint`.")


class Launcher(abc.ABC):
    """Starts, watches and ends containers on this host. All methods may be called again after a crash at any point.

    What holds for a launcher is asked by its properties, never by its name.

    Attributes:
        name: As operators choose it.
        sees_host: Containers see the host's folders, programs and devices at their own places: they have no images,
            mounts or capabilities.
        shares_host_network: A port that a container listens on is the host's, also when it is no gang's.
        makes_storage: A folder for checkpoints that lacks is made before the container starts: it would be root's if
            the launcher made it.
        runs_here: Containers run on the agent's own host.
        resources_type: As Determined's clients know it, in `DET_RESOURCES_TYPE`.
    """

    name: str
    sees_host: bool
    shares_host_network: bool
    makes_storage: bool
    runs_here: bool = True
    resources_type: str = "docker-container"

    @abc.abstractmethod
    def container_paths(self, container_id: str) -> ContainerPaths:
        """The folders of a container, started or not."""

    async def close(self) -> None:
        """Close connections and release threads. Containers keep running; the object must not be used afterwards."""
        return

    @abc.abstractmethod
    async def check(self) -> None:
        """Raise LaunchError("engine_unavailable", …) when this launcher can't work on this host."""

    async def prepare(self, spec: ContainerSpec, say: Callable[[str], None]) -> None:
        """Get what takes long to get, which is the image, before `start`. May be cancelled, and begun again.

        Args:
            spec: What is to be started.
            say: Gets lines for the trial's log; the first one before anything takes long.

        Raises: LaunchError.
        """
        check_spec(spec)

    @abc.abstractmethod
    async def start(self, spec: ContainerSpec) -> None:
        """Start the container, or find that it was started before (running or ended). Idempotent by container_id.

        Raises: LaunchError.
        """

    async def started(self, container_id: str, say: Callable[[str], None]) -> None:
        """Wait until the container's program runs or has ended. Others than clusters' launchers start it in `start`.

        Args:
            container_id: Of what `start` has started.
            say: Gets lines for the trial's log: what it waits for.

        Raises: LaunchError, when it will never run.
        """
        return

    async def place(self, container_id: str) -> Place | None:
        """Where a container of a cluster runs; None of others, and while it has no node."""
        return None

    @abc.abstractmethod
    async def wait(self, container_id: str, timeout_s: float) -> ContainerExit | None:
        """How the container ended, or None if it still runs after `timeout_s`. LOST if it is unknown here."""

    @abc.abstractmethod
    async def kill(self, container_id: str, grace_s: float) -> None:
        """Send SIGTERM, after `grace_s` SIGKILL, to the whole container. Does nothing if it ended or is unknown.

        Returns when the container is gone; `wait` then reports KILLED.
        """

    async def show_stacks(self, container_id: str) -> None:
        """Have its Python programs write what their threads do, before a `kill`, and give them `STACKS_S` for it.

        They get SIGUSR1, upon which the harness does so. A program without a handler may end by it. Nothing is said of
        one that does not answer, has ended or is unknown. Clusters have their own way, see `kubernetes/first.py`.
        """
        return

    @abc.abstractmethod
    async def logs(self, container_id: str, after: int, limit: int = 1000) -> Sequence[LogLine]:
        """Up to `limit` lines with an offset greater than `after` (-1: from the start), in order; empty if none yet.

        After `wait` returned an exit, reading until empty yields everything the container wrote.
        """

    @abc.abstractmethod
    async def run_files(self, container_id: str, folder: str) -> RunFiles:
        """The regular files directly in a folder of the container's run folder, by name; none if there is no folder.

        The user's code wrote them: they may hold anything. Links are left out.

        Raises: LaunchError, when they can't be read now; ValueError, when they are larger than `RUN_FILES_LIMIT`.
        """

    @abc.abstractmethod
    async def list(self) -> Sequence[ContainerStatus]:
        """Every container of this agent, running or ended, that was not removed."""

    async def find(self, container_id: str) -> ContainerStatus | None:
        """One container of those that `list` has; None: it was never started here, or was removed."""
        return next((status for status in await self.list() if status.container_id == container_id), None)

    async def usage(self, container_id: str) -> Usage | None:
        """What a container uses; None: it does not run, or this launcher can't tell. Raises: LaunchError."""
        return None

    async def unstarted(self) -> Sequence[ContainerStatus]:
        """What a crash left between the making of a container and its start: for `start` to make anew, or `remove`."""
        return ()

    @abc.abstractmethod
    async def remove(self, container_id: str) -> None:
        """Forget an ended container: its files, its logs. Kills it first if it still runs."""
