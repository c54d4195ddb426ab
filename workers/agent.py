"""The agent: a Temporal worker on a queue of its own, one per host. It launches containers and ships their output."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import httpx
import structlog
from temporalio.worker import Worker

from activities.attempts import Attempts
from activities.containers import AgentPresence, Containers
from activities.launchers import entry
from activities.launchers.base import RUNS_IN, ContainerSpec, HostDevice, Launcher, LaunchError, Mount
from activities.launchers.docker import DockerLauncher, owner_of
from activities.launchers.host_policy import HostPolicy
from activities.launchers.process import ProcessLauncher, paths_of_host
from activities.log_shipper import LogShipper
from activities.spool import SpoolDelivery
from activities.storage import Storage
from determined.common.outgoing import Outgoing, configure
from workers.agent_api import ApiClient
from workers.connect import GivenUp, connect, mark_ready
from workers.connect import run as run_process
from workers.leftovers import Leftovers
from workers.settings import AgentSettings
from workflows import names
from workflows.lifecycle.ports import free_ports
from workflows.messages import RunContainer

log = structlog.get_logger()


def spec_builder(settings: AgentSettings, launcher: Launcher) -> Any:
    """Completes launch orders with this host's addresses, folders and interpreter, and holds them to its policy."""
    policy = HostPolicy.of(settings.bind_mounts, settings.host_devices, settings.capabilities)
    url = settings.container_api_url or settings.api_url
    parts = urlsplit(url)
    usual_python = "python3"
    if launcher.sees_host:
        usual_python = settings.trial_python or sys.executable
    start = Path(entry.__file__).read_text()
    handed_on = settings.handed_on(os.environ)

    def build(order: RunContainer, launch: Mapping[str, Any]) -> ContainerSpec:
        paths = launcher.container_paths(order.container_id)
        python: str = launch["env"].get("DET_PYTHON_EXECUTABLE") or usual_python
        env = (
            handed_on
            | launch["env"]
            | {
                "DET_MASTER": url,
                "DET_MASTER_HOST": parts.hostname or "",
                "DET_MASTER_ADDR": parts.hostname or "",
                "DET_MASTER_PORT": str(parts.port or (443 if parts.scheme == "https" else 80)),
                "DET_USE_TLS": "true" if parts.scheme == "https" else "false",
                "DET_AGENT_ID": settings.agent_id,
                "DET_CONTAINER_ID": order.container_id,
                "DET_RESOURCES_ID": order.container_id,
                "DET_RESOURCES_TYPE": launcher.resources_type,
                "DET_SLOT_IDS": str(list(launch["slotIds"])),
                "DET_RUN_DIR": str(paths.run_dir),
                # what is left there when the container ends, we deliver
                "DET_SPOOL_DIR": f"{paths.run_dir}/spool",
                "DET_WORKDIR": str(paths.work_dir),
                "PYTHONUNBUFFERED": "1",
            }
        )
        # a gang's must be the same on each of its hosts; one in a network of its own finds them free there
        ports: dict[str, int] = launch["ports"]
        if launcher.shares_host_network and not launch["isOfGang"]:
            ports = free_ports(order.allocation_id, ports, _is_free)
        env |= {name: str(port) for name, port in ports.items()}
        layer = ""
        if launcher.sees_host:
            # `python3` and the tools beside it are those of the trial's environment; what it installs, its own
            beside = Path(python if "/" in python else usual_python).parent
            env["PATH"] = os.pathsep.join([str(beside), paths_of_host()])
            layer = f"{paths.run_dir}/python"
        mounts = [
            Mount(Path(m["source"]), m["target"], m["readOnly"], m["propagation"], m["isTrusted"])
            for m in launch["mounts"]
        ]
        places: list[str] = []
        if launcher.sees_host:  # where Determined's own harness must see its folders
            places += [str(paths.run_dir), "/run/determined"]
        for mount in launch["mounts"]:
            if mount["isStorage"]:
                env["DET_SHARED_FS_PATH"] = mount["source"] if launcher.sees_host else mount["target"]
                if launcher.sees_host:
                    places += [mount["source"], mount["target"]]
        spec = ContainerSpec(
            container_id=order.container_id,
            argv=[python, "-c", start, layer, *places],
            env=env,
            image=launch["image"],
            pulls_always=launch["forcePull"],
            registry_login=launch["registryAuth"],
            workdir=str(paths.work_dir),
            mounts=mounts,
            slot_ids=launch["slotIds"],
            memory_bytes=settings.memory_mib * 2**20 * max(1, len(launch["slotIds"])) if settings.memory_mib else None,
            shm_bytes=launch["shmBytes"],
            devices=[HostDevice(Path(d["source"]), d["target"], d["mode"]) for d in launch["devices"]],
            add_capabilities=launch["addCapabilities"],
            drop_capabilities=launch["dropCapabilities"],
            user=launch["user"],
            ports=ports,
            is_of_gang=launch["isOfGang"],
            labels=launch["labels"] | {RUNS_IN: python if launcher.sees_host else f"image {launch['image']}"},
        )
        if not launcher.sees_host:  # a process has what its user has, whatever is asked for
            spec = policy.applied(spec)
        for mount in launch["mounts"]:
            # a container that runs as another user may not be able to make it; a folder that only a user names is left
            # to that user
            if mount["isStorage"] and mount["isTrusted"] and (launcher.makes_storage or launch["user"]):
                _make_storage(Path(mount["source"]))
        return spec

    return build


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a port in TIME_WAIT is free
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _make_storage(path: Path) -> None:
    """Make checkpoint storage that is missing. Many users' containers write there: each removes only its own files."""
    try:
        path.mkdir(parents=True, exist_ok=False)
        path.chmod(0o1777)
    except FileExistsError:
        return
    except OSError as error:
        raise LaunchError(
            "bad_spec", f"checkpoint storage {path} can't be made on this host: {error.strerror}"
        ) from None


def launcher_of(settings: AgentSettings) -> Launcher:
    """What runs this host's containers."""
    folder = Path(settings.folder)
    gpus = {slot: device.uuid for slot, device in enumerate(settings.devices) if device.kind == "cuda"}
    if settings.launcher != "docker":
        return ProcessLauncher(folder / "containers", gpus=gpus)
    return DockerLauncher(
        owner_of(settings.agent_id, folder),
        gpus=gpus,
        pids_limit=settings.pids_limit,
        disk_bytes=settings.disk_mib << 20 if settings.disk_mib else None,
    )


async def main(settings: AgentSettings, stop: asyncio.Event, *, launcher: Launcher | None = None) -> None:
    """Work until asked to stop. Containers stay. Raises: GivenUp."""
    configure(Outgoing.of(settings.allowed_networks, settings.own_buckets))
    folder = Path(settings.folder)
    folder.mkdir(parents=True, exist_ok=True)
    launcher = launcher or launcher_of(settings)
    try:
        await launcher.check()
    except LaunchError as error:
        raise GivenUp(f"this agent can't launch containers ({settings.launcher}): {error}") from None
    credential = settings.agent_token.get_secret_value() if settings.is_behind_gateway else None
    client = await connect(settings.temporal_address, settings.temporal_namespace, stop, credential=credential)
    if client is None:
        return
    api = ApiClient(settings)
    shipper = LogShipper(launcher, api.send_logs, folder / "shipping")
    shipper.resume()
    spools = SpoolDelivery(launcher, api.post_as_container)
    attempts = Attempts(folder / "attempts")
    containers = Containers(launcher, api, spec_builder(settings, launcher), shipper, spools, attempts)
    leftovers = Leftovers(launcher, api, shipper, spools)
    presence = AgentPresence(leftovers)
    roots = None if settings.storage_roots is None else settings.storage_roots.split(":")
    removals = Storage(api, in_containers=not launcher.sees_host, roots=roots)
    # No grace at the end: what runs is watched on by the agent that comes next, and every activity takes a cancel.
    worker = Worker(
        client,
        task_queue=names.agent_queue(settings.agent_id),
        activities=[containers.run_container, containers.kill_container, containers.drain_container, presence.presence],
        max_concurrent_activities=settings.slots + 200,
        # a cancel reaches an activity only in the answer to a heartbeat: don't hold those back
        max_heartbeat_throttle_interval=timedelta(seconds=2),
        default_heartbeat_throttle_interval=timedelta(seconds=2),
    )
    storage = Worker(
        client,
        task_queue=names.storage_queue(settings.pool),
        activities=[removals.remove_files],
        max_concurrent_activities=2,
    )
    await attempts.end_left(client)
    loops = [asyncio.create_task(shipper.run()), asyncio.create_task(leftovers.run())]
    try:
        async with worker, storage:
            if await _greet(api, stop):
                mark_ready()
                log.info("agent is ready", agent_id=settings.agent_id, slots=settings.slots, launcher=launcher.name)
                await _first_end(stop, loops)
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.wait(loops)
        await spools.close()
        await api.close()


async def _first_end(stop: asyncio.Event, loops: Sequence[asyncio.Task[None]]) -> None:
    """Wait until asked to stop. Loops never return: one that ends says by its exception why."""
    stopping = asyncio.create_task(stop.wait())
    try:
        ended, _ = await asyncio.wait({stopping, *loops}, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()
    finally:
        stopping.cancel()


async def _greet(api: ApiClient, stop: asyncio.Event) -> bool:
    """Say that this agent starts, however long the API takes to answer; what runs here is looked after meanwhile.

    False if it was asked to stop before.
    """
    pause = 0.05
    while not stop.is_set():
        try:
            await api.hello()
            return True
        except httpx.HTTPError as error:
            log.info("the API does not answer yet", error=str(error))
        try:
            await asyncio.wait_for(stop.wait(), pause)
        except TimeoutError:
            pause = min(5.0, pause * 1.2)
    return False


def run() -> NoReturn:
    """Entry point of `undeterred-agent`."""
    run_process(AgentSettings, main)


if __name__ == "__main__":
    run()
