"""Containers of a Docker engine on this host.

All truth is in the engine: a container is found by its name, its labels say whose it is, and an empty file in its
file system tells that `kill` ended it. So another agent process can go on with it.

What a container may do: its own bridge network (with the host reachable as `host.docker.internal`), the capabilities
of `_CAPABILITIES`, no new privileges, limits on memory, shared memory and processes. `kill` sends SIGTERM to the main
process, which hands it on (the harness' launch layers do); SIGKILL then ends every process of the container.

Let the engine run with `"live-restore": true`: else a restart of the engine ends all containers.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import tarfile
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import IO, Any

from activities.launchers import supervisor
from activities.launchers.base import (
    RUN_FILES_LIMIT,
    ContainerExit,
    ContainerPaths,
    ContainerSpec,
    ContainerStatus,
    ExitCause,
    Launcher,
    LaunchError,
    LogLine,
    RunFiles,
    check_spec,
)
from activities.launchers.docker_logs import LogTail
from activities.launchers.engine import Engine, EngineError, EngineGone, filters

LABEL = "ai.undeterred"
RUN_DIR = "/run/determined"
_WORK_DIR = f"{RUN_DIR}/workdir"
_KILLED = "/.undeterred-killed"
_CAPABILITIES = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID"]
"""What an image that runs as root needs to install packages and to drop to another user."""


def owner_of(agent_id: str, folder: Path) -> str:
    """Who an agent's containers belong to: agents of two clusters on one host may have the same id."""
    return f"{agent_id}@{folder.resolve()}"


class DockerLauncher(Launcher):
    """Runs containers of one agent.

    Args:
        owner: Whose containers these are; one agent process an owner. See `owner_of`.
        network: Bridge network of the containers; made if absent.
        inter_container: Whether containers of this network reach each other; an existing network stays as it is.
        gpus: Whether slot ids are CUDA devices.
        pids_limit: Most processes and threads of a container.
        log_bytes: Size of one of the two log files that the engine keeps of a container.
        local_images: Image names that begin so are built here and never pulled.
        host: As DOCKER_HOST, which is the default.
    """

    name = "docker"

    def __init__(
        self,
        owner: str,
        network: str = "undeterred",
        *,
        inter_container: bool = False,
        gpus: bool = False,
        pids_limit: int = 16384,
        log_bytes: int = 1 << 30,
        local_images: Sequence[str] = ("undeterred/",),
        host: str = "",
    ) -> None:
        self._owner = owner
        self._prefix = f"det-{hashlib.sha256(owner.encode()).hexdigest()[:8]}"
        self._network = network
        self._inter_container = inter_container
        self._gpus = gpus
        self._pids_limit = pids_limit
        self._log_bytes = log_bytes
        self._local_images = tuple(local_images)
        self._engine = Engine(host)
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
        return ContainerPaths(RUN_DIR, RUN_DIR, _WORK_DIR)

    async def close(self) -> None:
        """Close the connections to the engine."""
        for tail in self._tails.values():
            await tail.close()
        await self._engine.close()

    async def check(self) -> None:
        """Raise LaunchError("engine_unavailable") unless the engine answers."""
        try:
            await self._engine.call("GET", "/version", timeout_s=5.0)
        except (EngineError, EngineGone) as error:
            raise _unavailable(error) from None

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

    async def start(self, spec: ContainerSpec) -> None:
        """Create and start, or find it. See `Launcher.start`.

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
        params = {"all": "1", **filters(label=f"{LABEL}.agent={self._owner}")}
        try:
            found: list[dict[str, Any]] = await self._engine.call("GET", "/containers/json", params=params)
        except EngineGone as error:
            raise _unavailable(error) from None
        statuses: list[ContainerStatus] = []
        for item in found:
            if item["State"] in ("created", "removing"):
                continue
            container_id = item["Labels"][f"{LABEL}.container"]
            is_running = item["State"] in ("running", "paused", "restarting")
            if not is_running:
                self._ended.add(container_id)
            labels: dict[str, str] = json.loads(item["Labels"][f"{LABEL}.labels"])
            statuses.append(ContainerStatus(container_id, is_running, labels))
        return statuses

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

    async def _start(self, spec: ContainerSpec) -> None:
        name = self._name(spec.container_id)
        state = await self._state(name)
        if state is None:
            await self._create(name, spec)
        elif state["Status"] != "created":
            return
        uid, _, gid = spec.user.partition(":")
        if uid.isdigit():
            owner, mode = (int(uid), int(gid) if gid.isdigit() else int(uid)), 0o700
        else:  # a name of the image: we can't know its number
            owner, mode = (0, 0), 0o1777 if spec.user else 0o700
        await self._engine.put_files(name, {f"{RUN_DIR}/": (mode, *owner), f"{_WORK_DIR}/": (mode, *owner)})
        try:
            await self._engine.call("POST", f"/containers/{name}/start")
        except EngineError as error:
            text = str(error)
            await self.remove(spec.container_id)
            if self._use_init and "docker-init" in text:  # the engine was installed without it
                self._use_init = False
                await self._start(spec)
                return
            reason = "no_space" if "no space left" in text else "start_failed"
            raise LaunchError(reason, f"container {spec.container_id}: the engine did not start it: {text}") from None

    async def _create(self, name: str, spec: ContainerSpec) -> None:
        await self._make_network()
        body = self._body(spec)
        for is_pulled in (False, True):
            try:
                await self._engine.call("POST", "/containers/create", body, params={"name": name})
                return
            except EngineError as error:
                if error.status == 409 and "already in use" in str(error):
                    return
                if error.status == 404 and "image" in str(error).lower() and not is_pulled:
                    await self._pull(spec.image)
                    continue
                reason = "no_space" if "no space left" in str(error) else "bad_spec"
                raise LaunchError(reason, f"container {spec.container_id}: the engine refused it: {error}") from None

    def _body(self, spec: ContainerSpec) -> dict[str, Any]:
        workdir = spec.workdir.replace("{container_dir}", RUN_DIR) or _WORK_DIR
        env = {name: value.replace("{container_dir}", RUN_DIR) for name, value in spec.env.items()}
        labels = {
            **spec.labels,
            f"{LABEL}.agent": self._owner,
            f"{LABEL}.container": spec.container_id,
            f"{LABEL}.labels": json.dumps(dict(spec.labels)),
            f"{LABEL}.boot": supervisor.boot_id(),
        }
        host: dict[str, Any] = {
            "NetworkMode": "host" if spec.is_of_gang else self._network,
            "ExtraHosts": [f"host.docker.internal:{self._host_address}"],
            "CapDrop": ["ALL"],
            "CapAdd": _CAPABILITIES,
            "SecurityOpt": ["no-new-privileges"],
            "PidsLimit": self._pids_limit,
            "Init": self._use_init,
            "LogConfig": {"Type": "json-file", "Config": {"max-size": str(self._log_bytes), "max-file": "2"}},
            "Mounts": [
                {
                    "Type": "bind",
                    "Source": str(mount.source),
                    "Target": str(PurePosixPath(workdir) / mount.target),
                    "ReadOnly": mount.read_only,
                    "BindOptions": {"Propagation": "rprivate"},
                }
                for mount in spec.mounts
            ],
        }
        if spec.memory_bytes:
            host["Memory"] = host["MemorySwap"] = spec.memory_bytes
        if spec.shm_bytes:
            host["ShmSize"] = spec.shm_bytes
        if self._gpus and spec.slot_ids:
            ids = [str(slot) for slot in spec.slot_ids]
            host["DeviceRequests"] = [{"Driver": "nvidia", "DeviceIDs": ids, "Capabilities": [["gpu"]]}]
        return {
            "Image": spec.image,
            "Entrypoint": list(spec.argv),
            "Cmd": [],
            "Env": [f"{name}={value}" for name, value in env.items()],
            "WorkingDir": workdir,
            "User": spec.user,
            "Labels": labels,
            "StopSignal": "SIGTERM",
            "HostConfig": host,
        }

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
                if refusal.status != 409:  # somebody else was faster
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

    async def _pull(self, image: str) -> None:
        is_local = image.startswith(self._local_images)
        reason = "it is built on the host, no registry has it" if is_local else ""
        if not is_local:
            async with self._locks.setdefault(f"pull {image}", asyncio.Lock()):
                try:
                    await self._engine.call("GET", f"/images/{image}/json")
                    return  # pulled while we waited for the lock
                except EngineError:
                    reason = await asyncio.to_thread(_pull_with_sdk, image, self._engine.host)
        if reason:
            advice = (
                f"build it with `deploy/images/build-local.sh -t {image}`"
                if is_local
                else f"try `docker pull {image}` on the agent's host, or correct `environment.image`"
            )
            raise LaunchError("image_missing", f"image {image!r} is not on this host: {reason}; {advice}.")

    async def _state(self, name: str) -> dict[str, Any] | None:
        try:
            found = await self._engine.call("GET", f"/containers/{name}/json")
        except EngineError as error:
            if error.status == 404:
                return None
            raise
        return {**found["State"], "Boot": found["Config"]["Labels"].get(f"{LABEL}.boot", "")}

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
            return ContainerExit(ExitCause.OUT_OF_MEMORY, code, ended_at, "over its memory limit, or the host's")
        return ContainerExit(ExitCause.EXITED, code, ended_at, state["Error"])


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


def _pull_with_sdk(image: str, host: str) -> str:
    """Pull an image with the credentials of `docker login`; empty, or why it failed."""
    import docker  # slow to import, and rarely needed

    sdk: Any = docker
    name, _, tag = image.rpartition(":")
    if not name or "/" in tag or "@" in image:
        name, tag = image, "" if "@" in image else "latest"
    try:
        client = sdk.DockerClient(base_url=host, timeout=600)
        try:
            client.images.pull(name, tag=tag or None)
        finally:
            client.close()
    except (sdk.errors.DockerException, OSError) as error:
        return f"pulling failed: {getattr(error, 'explanation', None) or error}"
    return ""
