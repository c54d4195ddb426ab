"""Containers of a Docker engine on this host.

All truth is in the engine: a container is found by its name, its labels say whose it is, and an empty file in its
file system tells that `kill` ended it. So another agent process can take it over.

What a container may do is in `docker_request.py`, how it gets its image in `images.py`. `kill` sends SIGTERM to the
main process, which forwards it (the harness' launch layers do); SIGKILL then ends every process of the container.

Let the engine run with `"live-restore": true`: else a restart of the engine ends all containers.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import IO, Any

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
from activities.launchers.docker_logs import FrameParser, LogTail
from activities.launchers.docker_request import LABEL, RUN_DIR, WORK_DIR, HostSide, create_request
from activities.launchers.engine import Engine, EngineError, EngineGone, filters
from activities.launchers.images import Images, no_program

_KILLED = "/.undeterred-killed"
#: What `docker-init`, or without it runc, writes and exits with when it can't become the container's program.
_NO_PROGRAM = re.compile(r"(?:\[FATAL tini \(\d+\)\] exec (?P<a>.*) failed|exec (?P<b>/.*)): (?P<why>.*)")
_NO_PROGRAM_CODES = (1, 126, 127)
#: Storage drivers of the engine that can limit the size of a container's own file system.
_SIZED_DRIVERS = ("btrfs", "devicemapper", "zfs", "windowsfilter")


def owner_of(agent_id: str, folder: Path) -> str:
    """Who an agent's containers belong to: agents of two clusters on one host may have the same id."""
    return f"{agent_id}@{folder.resolve()}"


class DockerLauncher(Launcher):
    """Runs containers of one agent.

    Args:
        owner: Whose containers these are; one agent process an owner. See `owner_of`.
        network: Bridge network of the containers; made if absent.
        inter_container: Whether containers of this network reach each other; an existing network stays as it is.
        gpus: Slot id to the UUID of its GPU, as `nvidia-smi -L` shows it; none: slots are no GPUs.
        pids_limit: Most processes and threads of a container.
        disk_bytes: Most that a container may write into its own file system; not every engine can hold it to that.
        log_bytes: Size of one of the two log files that the engine keeps of a container.
        local_images: Image names that begin so are built here and never pulled.
        host: As DOCKER_HOST, which is the default.
    """

    name = "docker"
    sees_host = False
    shares_host_network = False
    makes_storage = True

    def __init__(
        self,
        owner: str,
        network: str = "undeterred",
        *,
        inter_container: bool = False,
        gpus: Mapping[int, str] | None = None,
        pids_limit: int = 16384,
        disk_bytes: int | None = None,
        log_bytes: int = 1 << 30,
        local_images: Sequence[str] = ("undeterred/",),
        host: str = "",
    ) -> None:
        self._owner = owner
        self._prefix = f"det-{hashlib.sha256(owner.encode()).hexdigest()[:8]}"
        self._network = network
        self._inter_container = inter_container
        self._host = HostSide(owner, network, gpus or {}, pids_limit, disk_bytes, log_bytes)
        self._engine = Engine(host)
        self._images = Images(self._engine, local_images)
        self._host_address = ""
        self._use_init = True
        self._locks: dict[str, asyncio.Lock] = {}
        self._tails: dict[str, LogTail] = {}
        self._ended: set[str] = set()
        self._killed: set[str] = set()

    def _name(self, container_id: str) -> str:
        # Agents of other clusters may use the same engine, and have containers of the same ids.
        return f"{self._prefix}-{container_id}"

    def container_paths(self, container_id: str) -> ContainerPaths:
        """The same in every container."""
        return ContainerPaths(RUN_DIR, RUN_DIR, WORK_DIR)

    async def close(self) -> None:
        """Close the connections to the engine."""
        for tail in self._tails.values():
            await tail.close()
        await self._engine.close()

    async def check(self) -> None:
        """Raise LaunchError("engine_unavailable") unless the engine answers and can hold containers to their limits."""
        try:
            found: dict[str, Any] = await self._engine.call("GET", "/info", timeout_s=15.0)
        except (EngineError, EngineGone) as error:
            raise _unavailable(error) from None
        if self._host.disk_bytes and (why := _no_disk_limit(found)):
            raise LaunchError(
                "engine_unavailable",
                f"UNDETERRED_DISK_MIB: this engine can't limit what a container writes: {why}. Put the engine's folder"
                f" ({found.get('DockerRootDir')}) on XFS mounted with `pquota`, or leave the setting out.",
            )

    async def gateway(self) -> str:
        """The host's address on the containers' network, which `host.docker.internal` means in them: what the API
        must listen on for them. Makes the network if it is absent.

        Raises:
            LaunchError: The engine does not answer, or the network has no gateway.
        """
        try:
            await self._make_network()
        except EngineGone as error:
            raise _unavailable(error) from None
        return self._host_address

    async def prepare(self, spec: ContainerSpec, say: Callable[[str], None]) -> None:
        """Pull the image where that is to be done. See `Launcher.prepare`."""
        check_spec(spec)
        try:
            await self._images.get(spec.image, spec.registry_login, always=spec.pulls_always, say=say)
        except EngineGone as error:
            raise _unavailable(error) from None

    async def start(self, spec: ContainerSpec) -> None:
        """Create and start, or find it. Its image must be here: see `prepare`. See `Launcher.start`.

        Two agent processes of one id must not run at once: a container that ended between the other's look and its
        start would run again.
        """
        check_spec(spec)
        try:
            async with self._locks.setdefault(spec.container_id, asyncio.Lock()):
                await self._start(spec)
        except EngineGone as error:
            raise _unavailable(error) from None

    async def wait(self, container_id: str, timeout_s: float) -> ContainerExit | None:
        """How it ended. An engine that can't be reached is no end: None after the time-out."""
        name = self._name(container_id)
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                found = await self._look(container_id)
                if found or (left := deadline - time.monotonic()) <= 0:
                    return found
                async with asyncio.timeout(left):
                    await self._engine.call(
                        "POST", f"/containers/{name}/wait", params={"condition": "not-running"}, timeout_s=None
                    )
            except TimeoutError:
                return None
            except (EngineError, EngineGone):
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                await asyncio.sleep(min(0.2, left))

    async def kill(self, container_id: str, grace_s: float) -> None:
        """SIGTERM to the main process; after the grace SIGKILL to all."""
        name = self._name(container_id)
        if await self._look(container_id):
            return
        self._killed.add(container_id)
        with contextlib.suppress(EngineError):  # gone, or a read-only file system: then only this process knows
            await self._engine.put_files(name, {_KILLED: (0o444, 0, 0)})
        for number, seconds in (("SIGTERM", grace_s), ("SIGKILL", 30.0)):
            if seconds <= 0:
                continue
            with contextlib.suppress(EngineError):  # it ended meanwhile
                await self._engine.call("POST", f"/containers/{name}/kill", params={"signal": number})
            if await self.wait(container_id, seconds):
                return
        raise LaunchError("engine_unavailable", f"container {container_id}: the engine did not end it within 30 s.")

    async def show_stacks(self, container_id: str) -> None:
        """SIGUSR1 to the main process, or to what the engine's init has started."""
        if await self._look(container_id):
            return
        with contextlib.suppress(EngineError):  # it ended meanwhile
            await self._engine.call(
                "POST", f"/containers/{self._name(container_id)}/kill", params={"signal": "SIGUSR1"}
            )
        await self.wait(container_id, STACKS_S)

    async def logs(self, container_id: str, after: int, limit: int = 1000) -> Sequence[LogLine]:
        """Lines after `after`; offsets are the engine's nanoseconds since 1970, made strictly increasing."""
        tail = self._tails.get(container_id)
        is_new = tail is None or tail.is_broken or after < tail.acknowledged
        if tail is None or is_new:
            if tail is not None:
                await tail.close()
            await self._look(container_id)  # so that we know if the log is complete
            tail = self._tails[container_id] = LogTail(self._engine, self._name(container_id), after)
        if container_id in self._ended:
            return await tail.read(after, limit, wait_s=30.0)
        return await tail.read(after, limit, wait_s=0.05 if is_new else 0.0)

    async def run_files(self, container_id: str, folder: str) -> RunFiles:
        """Copies, which the engine hands out as an archive: also of a container that has ended, or on another host."""
        archive: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - what is returned holds it
        try:
            await self._engine.read_archive(self._name(container_id), f"{RUN_DIR}/{folder}", archive, RUN_FILES_LIMIT)
            return await asyncio.to_thread(_files_in, archive, folder)
        except BaseException as error:
            archive.close()
            if not isinstance(error, (EngineError, EngineGone, OSError, tarfile.TarError)):
                raise
            if isinstance(error, EngineError) and error.status == 404:
                return RunFiles([], contextlib.ExitStack())
            raise LaunchError("engine_unavailable", f"container {container_id}: {folder}: {error}") from error

    async def list(self) -> Sequence[ContainerStatus]:
        """Every container of this agent that was started."""
        found = [_status(item) for item in await self._own() if item["State"] not in ("created", "removing")]
        self._ended |= {status.container_id for status in found if not status.running}
        return found

    async def usage(self, container_id: str) -> Usage | None:
        """What the engine says of it; the cache of files that it has read does not count."""
        params = {"stream": "false", "one-shot": "true"}
        try:
            found = await self._engine.call("GET", f"/containers/{self._name(container_id)}/stats", params=params)
        except EngineError as error:
            if error.status in (404, 409):
                return None
            raise
        memory: dict[str, Any] = found.get("memory_stats") or {}
        if "usage" not in memory:  # it does not run
            return None
        cached = memory.get("stats", {}).get("inactive_file", 0)
        return Usage(found["cpu_stats"]["cpu_usage"]["total_usage"] / 1e9, max(0, memory["usage"] - cached))

    async def unstarted(self) -> Sequence[ContainerStatus]:
        """Every container of this agent that was made and not started; also one that is being started now."""
        return [_status(item) for item in await self._own() if item["State"] == "created"]

    async def remove(self, container_id: str) -> None:
        """Remove the container, its log and its anonymous volumes."""
        tail = self._tails.pop(container_id, None)
        if tail:
            await tail.close()
        try:
            await self._engine.call(
                "DELETE", f"/containers/{self._name(container_id)}", params={"force": "1", "v": "1"}
            )
        except EngineError as error:
            if error.status not in (404, 409):  # gone, or being removed
                raise
        for known in (self._ended, self._killed):
            known.discard(container_id)
        self._locks.pop(container_id, None)

    async def _own(self) -> list[dict[str, Any]]:
        params = {"all": "1", **filters(label=f"{LABEL}.agent={self._owner}")}
        try:
            return await self._engine.call("GET", "/containers/json", params=params)
        except EngineGone as error:
            raise _unavailable(error) from None

    async def _start(self, spec: ContainerSpec) -> None:
        name = self._name(spec.container_id)
        state = await self._state(name)
        if state is not None and state["Status"] != "created":
            return
        if state is not None:  # a crash left it, and its token is not the one that is good now
            await self.remove(spec.container_id)
        await self._create(name, spec)
        try:
            await self._make_folders(name, spec.user)
            await self._engine.call("POST", f"/containers/{name}/start")
        except EngineError as error:
            text = str(error)
            await self.remove(spec.container_id)
            if self._use_init and "docker-init" in text:  # the engine was installed without it
                self._use_init = False
                await self._start(spec)
                return
            raise _start_failure(spec, text) from None

    async def _make_folders(self, name: str, user: str) -> None:
        uid, _, gid = user.partition(":")
        if uid.isdigit():
            owner, mode = (int(uid), int(gid) if gid.isdigit() else int(uid)), 0o700
        else:  # a name of the image: we can't know its number
            owner, mode = (0, 0), 0o1777 if user else 0o700
        await self._engine.put_files(name, {f"{RUN_DIR}/": (mode, *owner), f"{WORK_DIR}/": (mode, *owner)})

    async def _create(self, name: str, spec: ContainerSpec) -> None:
        await self._make_network()
        body = create_request(spec, self._host, host_address=self._host_address, uses_init=self._use_init)
        try:
            await self._engine.call("POST", "/containers/create", body, params={"name": name})
        except EngineError as error:
            text = str(error)
            if error.status == 409 and "already in use" in text:
                return
            if error.status == 404 and "image" in text.lower():  # removed since it was prepared
                raise LaunchError("image_missing", f"image {spec.image!r} is not on this host: {text}") from None
            reason = "no_space" if "no space left" in text else "bad_spec"
            raise LaunchError(reason, f"container {spec.container_id}: the engine refused it: {text}") from None

    async def _make_network(self) -> None:
        if self._host_address:
            return
        try:
            found = await self._engine.call("GET", f"/networks/{self._network}")
        except EngineError as error:
            found = {}
            if error.status != 404:
                raise LaunchError("engine_unavailable", f"network {self._network}: {error}") from None
            options = {"com.docker.network.bridge.enable_icc": str(self._inter_container).lower()}
            body = {
                "Name": self._network,
                "Driver": "bridge",
                "CheckDuplicate": True,
                "Options": options,
                "Labels": {f"{LABEL}.network": self._network},
            }
            try:
                await self._engine.call("POST", "/networks/create", body)
            except EngineError as refusal:
                if refusal.status != 409:  # another agent was faster
                    raise LaunchError(
                        "engine_unavailable",
                        f"network {self._network!r}: the engine did not make it: {refusal}; make it by hand"
                        f" (`docker network create {self._network}`) or name another.",
                    ) from None
            found = await self._engine.call("GET", f"/networks/{self._network}")
        pools: list[dict[str, str]] = found["IPAM"]["Config"] or []
        address = next((pool["Gateway"] for pool in pools if pool.get("Gateway")), "")
        if not address:
            raise LaunchError(
                "engine_unavailable",
                f"network {self._network!r}: it has no gateway, so that containers can't reach this host; remove it"
                f" (`docker network rm {self._network}`; it is made anew) or name another.",
            )
        self._host_address = address

    async def _state(self, name: str) -> dict[str, Any] | None:
        try:
            found = await self._engine.call("GET", f"/containers/{name}/json")
        except EngineError as error:
            if error.status == 404:
                return None
            raise
        return {
            **found["State"],
            "Boot": found["Config"]["Labels"].get(f"{LABEL}.boot", ""),
            "Image": found["Config"]["Image"],
            "Memory": found["HostConfig"]["Memory"],
        }

    async def _look(self, container_id: str) -> ContainerExit | None:
        """The exit, or None while it runs."""
        name = self._name(container_id)
        state = await self._state(name)
        if state is None or state["Status"] in ("created", "removing"):
            return ContainerExit(
                ExitCause.LOST, None, datetime.now(UTC), "the engine does not know it, or never ran it"
            )
        if state["Status"] not in ("exited", "dead"):
            return None
        self._ended.add(container_id)
        ended_at, code = _parse_time(state["FinishedAt"]), int(state["ExitCode"])
        if container_id in self._killed or await self._engine.has_file(name, _KILLED):
            return ContainerExit(ExitCause.KILLED, code, ended_at)
        if state["Boot"] != supervisor.boot_id() and ended_at > _booted_at():
            return ContainerExit(ExitCause.LOST, None, ended_at, "the host was restarted while it ran")
        if state["OOMKilled"] and code != 0:
            return ContainerExit(ExitCause.OUT_OF_MEMORY, code, ended_at, _memory_advice(state["Memory"]))
        if code in _NO_PROGRAM_CODES and (why := await self._why_no_program(name, state["Image"])):
            return ContainerExit(ExitCause.NO_PROGRAM, code, ended_at, why)
        return ContainerExit(ExitCause.EXITED, code, ended_at, state["Error"])

    async def _why_no_program(self, name: str, image: str) -> str:
        """Empty if the container's program did start: then what it says or exits with is the user's."""
        parser, lines = FrameParser(), list[LogLine]()
        try:
            async with contextlib.aclosing(self._engine.read_logs(name)) as chunks:
                async for chunk in chunks:
                    lines += parser.feed(chunk)
                    if len(lines) > 1:
                        return ""
        except EngineError:
            return ""
        found = _NO_PROGRAM.fullmatch(lines[0].text) if lines else None
        return no_program(image, found["a"] or found["b"], found["why"]) if found else ""


def _files_in(archive: IO[bytes], folder: str) -> RunFiles:
    archive.seek(0)
    with contextlib.ExitStack() as held:
        held.callback(archive.close)
        opened = held.enter_context(tarfile.open(fileobj=archive, mode="r:"))
        files: list[tuple[str, IO[bytes]]] = []
        for member in opened:
            path = PurePosixPath(member.name)
            file = opened.extractfile(member) if member.isreg() and path.parts[:-1] == (folder,) else None
            if file is not None:
                files.append((path.name, held.enter_context(file)))
        return RunFiles(sorted(files, key=lambda found: found[0]), held.pop_all())


def _start_failure(spec: ContainerSpec, text: str) -> LaunchError:
    """What the engine's words for a failed start mean. Without `docker-init` they tell of the first program too."""
    program = spec.argv[0]
    if "exec format error" in text:
        return LaunchError("wrong_architecture", no_program(spec.image, program, "exec format error"))
    if "exec:" in text and ("not found" in text or "no such file" in text or "permission denied" in text):
        return LaunchError("no_program", no_program(spec.image, program, text.rpartition(program)[2].strip('": ')))
    if "could not select device driver" in text:
        return LaunchError(
            "start_failed",
            f"container {spec.container_id}: the engine has no driver for GPUs: {text}; install the NVIDIA Container"
            " Toolkit on the agent's host (`nvidia-ctk runtime configure`), and restart the engine.",
        )
    if "gathering device information" in text:
        return LaunchError("bad_spec", f"container {spec.container_id}: {text}; correct `resources.devices`.")
    reason = "no_space" if "no space left" in text else "start_failed"
    return LaunchError(reason, f"container {spec.container_id}: the engine did not start it: {text}")


def _memory_advice(limit_bytes: int) -> str:
    if not limit_bytes:
        return "its host had no memory left: use smaller batches or fewer workers, or let the operator limit containers"
    return (
        f"over its limit of {limit_bytes >> 20} MiB: use smaller batches or fewer workers, ask for more slots, or let"
        " the operator raise UNDETERRED_MEMORY_MIB"
    )


def _no_disk_limit(info: Mapping[str, Any]) -> str:
    """Why an engine can't limit the size of containers' file systems; empty if it may."""
    driver = str(info.get("Driver"))
    below = dict(info.get("DriverStatus") or []).get("Backing Filesystem", "?")
    if driver in _SIZED_DRIVERS or (driver in ("overlay2", "vfs") and below == "xfs"):
        return ""
    return f"its storage driver is {driver} on {below}"


def _status(item: Mapping[str, Any]) -> ContainerStatus:
    labels: dict[str, str] = item["Labels"]
    is_running = item["State"] in ("running", "paused", "restarting")
    return ContainerStatus(labels[f"{LABEL}.container"], is_running, json.loads(labels[f"{LABEL}.labels"]))


def _unavailable(error: Exception) -> LaunchError:
    return LaunchError(
        "engine_unavailable",
        f"the Docker engine does not answer ({error}); start it (`systemctl start docker`), or give this user the"
        " right to its socket (group `docker`), or set DOCKER_HOST.",
    )


def _parse_time(text: str) -> datetime:
    """RFC 3339 with nanoseconds, as the engine writes it."""
    head, _, fraction = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{head}.{fraction[:6]:0<6}").replace(tzinfo=UTC)


def _booted_at() -> datetime:
    return datetime.now(UTC) - timedelta(seconds=time.clock_gettime(time.CLOCK_BOOTTIME))
