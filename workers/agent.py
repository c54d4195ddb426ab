"""The agent: a Temporal worker on a queue of its own, one per host. It launches containers and ships their output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import httpx
import structlog
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.worker import Worker

from activities.containers import AgentPresence, Containers
from activities.launchers import entry
from activities.launchers.base import ContainerSpec, Launcher, LaunchError, Mount
from activities.launchers.docker import DockerLauncher, owner_of
from activities.launchers.process import ProcessLauncher
from activities.log_shipper import LogShipper
from activities.spool import Answer, SpoolDelivery
from activities.storage import Storage
from workers.connect import connect, mark_ready
from workers.connect import run as run_process
from workers.settings import AgentSettings
from workflows import names
from workflows.messages import AgentRun, AgentSeen, RunContainer
from workflows.scheduling.model import AgentSlots

log = structlog.get_logger()

_RECONCILE_EVERY_S = 10.0


class ApiClient:
    """The API as an agent sees it."""

    def __init__(self, settings: AgentSettings) -> None:
        token = settings.agent_token.get_secret_value()
        self._agent_id = settings.agent_id
        self._http = httpx.AsyncClient(
            base_url=settings.api_url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(15.0, connect=3.0),
        )
        # without the agent's token: for what is sent in the name of a container
        self._anonymous = httpx.AsyncClient(base_url=settings.api_url, timeout=httpx.Timeout(60.0, connect=3.0))

    async def launch_order(self, order: RunContainer) -> Mapping[str, Any]:
        """Everything about a container but what only this host knows."""
        path = f"/api/v1/undeterred/allocations/{order.allocation_id}/containers/{order.rank}/launch"
        response = await self._http.post(path)
        if response.status_code in (400, 404):  # the allocation ended meanwhile: trying again is pointless
            raise LaunchError("start_failed", response.json().get("message", response.text))
        response.raise_for_status()
        return response.json()

    async def report_running(self, order: RunContainer) -> bool:
        """The container runs. A courtesy for people: an API that is away does not hold the trial up."""
        try:
            response = await self._http.post(f"/api/v1/undeterred/allocations/{order.allocation_id}/running")
        except httpx.HTTPError as error:
            log.info("could not report a running container", container_id=order.container_id, error=str(error))
            return False
        return response.status_code < 500

    async def send_logs(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Deliver lines; raises if the API did not take them."""
        response = await self._http.post("/api/v1/task/logs", json={"logs": list(lines)})
        if response.status_code in (400, 413):  # for good: to repeat it would hold up every later line
            log.error("lines were refused and are left out", count=len(lines), answer=response.text[:500])
            return
        response.raise_for_status()

    async def post_as_container(self, path: str, token: str, body: bytes) -> Answer:
        """Send a container's own report. Raises: httpx.HTTPError if there is no answer."""
        headers = {"Grpc-Metadata-x-allocation-token": f"Bearer {token}"}
        response = await self._anonymous.post(path, content=body, headers=headers)
        return Answer(response.status_code, response.text)

    async def ended(self, allocations: Sequence[str]) -> set[str]:
        """Which of these allocations are over."""
        body = {"allocations": list(allocations)}
        response = await self._http.post(f"/api/v1/undeterred/agents/{self._agent_id}/reconcile", json=body)
        response.raise_for_status()
        return set(response.json()["ended"])

    async def close(self) -> None:
        """Close connections."""
        await self._http.aclose()
        await self._anonymous.aclose()


def spec_builder(settings: AgentSettings, launcher: Launcher) -> Any:
    """Completes launch orders with this host's addresses, folders and interpreter."""
    url = settings.container_api_url or settings.api_url
    parts = urlsplit(url)
    usual_python = "python3"
    if launcher.name == "process":
        usual_python = settings.trial_python or sys.executable
    start = Path(entry.__file__).read_text()

    def build(order: RunContainer, launch: Mapping[str, Any]) -> ContainerSpec:
        paths = launcher.container_paths(order.container_id)
        python: str = launch["env"].get("DET_PYTHON_EXECUTABLE") or usual_python
        env = dict(launch["env"]) | {
            "DET_MASTER": url,
            "DET_MASTER_HOST": parts.hostname or "",
            "DET_MASTER_ADDR": parts.hostname or "",
            "DET_MASTER_PORT": str(parts.port or (443 if parts.scheme == "https" else 80)),
            "DET_USE_TLS": "true" if parts.scheme == "https" else "false",
            "DET_AGENT_ID": settings.agent_id,
            "DET_CONTAINER_ID": order.container_id,
            "DET_RESOURCES_ID": order.container_id,
            "DET_RESOURCES_TYPE": "docker-container",
            "DET_SLOT_IDS": str(list(launch["slotIds"])),
            "DET_RUN_DIR": str(paths.run_dir),
            # what is left there when the container ends, we deliver
            "DET_SPOOL_DIR": f"{paths.run_dir}/spool",
            "DET_WORKDIR": str(paths.work_dir),
            "PYTHONUNBUFFERED": "1",
        }
        if launcher.name == "process":
            # `python3` and the tools beside it are those of the trial's environment
            beside = Path(python if "/" in python else usual_python).parent
            env["PATH"] = os.pathsep.join([str(beside), os.environ.get("PATH", os.defpath)])
        for mount in launch["mounts"]:
            # processes make it themselves, on their first checkpoint, unless they run as somebody who may not
            if mount["isStorage"] and (launcher.name == "docker" or launch["user"]):
                _make_storage(Path(mount["source"]))
        mounts = [Mount(Path(m["source"]), m["target"], m["readOnly"]) for m in launch["mounts"]]
        places: list[str] = []
        if launcher.name == "process":  # where Determined's own harness must see its folders
            places += [str(paths.run_dir), "/run/determined"]
        for mount in launch["mounts"]:
            if mount["isStorage"]:
                env["DET_SHARED_FS_PATH"] = mount["source"] if launcher.name == "process" else mount["target"]
                if launcher.name == "process":
                    places += [mount["source"], mount["target"]]
        return ContainerSpec(
            container_id=order.container_id,
            argv=[python, "-c", start, *places],
            env=env,
            image=launch["image"],
            workdir=str(paths.work_dir),
            mounts=mounts,
            slot_ids=launch["slotIds"],
            memory_bytes=settings.memory_mib * 2**20 * max(1, len(launch["slotIds"])) if settings.memory_mib else None,
            shm_bytes=launch["shmBytes"],
            user=launch["user"],
            is_of_gang=launch["isOfGang"],
            labels=launch["labels"],
        )

    return build


def _make_storage(path: Path) -> None:
    """Checkpoint storage that is missing is made, and open to all: containers run as many users."""
    try:
        path.mkdir(parents=True, exist_ok=False)
        path.chmod(0o777)
    except FileExistsError:
        return
    except OSError as error:
        raise LaunchError(
            "bad_spec", f"checkpoint storage {path} can't be made on this host: {error.strerror}"
        ) from None


async def reconcile(launcher: Launcher, api: ApiClient, shipper: LogShipper, spools: SpoolDelivery) -> None:
    """End copies that were given up, and remove what is over and delivered. Runs until cancelled."""
    while True:
        try:
            await _reconcile_once(launcher, api, shipper, spools)
        except (httpx.HTTPError, LaunchError) as error:
            log.info("reconciliation waits", error=str(error))
        await asyncio.sleep(_RECONCILE_EVERY_S)


async def _reconcile_once(launcher: Launcher, api: ApiClient, shipper: LogShipper, spools: SpoolDelivery) -> None:
    containers = list(await launcher.list())
    by_id = {status.container_id: status.labels.get("ai.undeterred.allocation", "") for status in containers}
    ended = await api.ended([allocation for allocation in by_id.values() if allocation])
    for status in containers:
        if by_id[status.container_id] not in ended:
            continue
        if status.running:
            log.warning("ends a container that was given up", container_id=status.container_id)
            await launcher.kill(status.container_id, 2.0)
        if await shipper.drained(status.container_id, 0.5):
            shipper.forget(status.container_id)
            spools.forget(status.container_id)
            await launcher.remove(status.container_id)


async def main(settings: AgentSettings, stop: asyncio.Event) -> None:
    """Work until asked to stop. Containers stay."""
    folder = Path(settings.folder)
    folder.mkdir(parents=True, exist_ok=True)
    launcher: Launcher
    if settings.launcher == "docker":
        launcher = DockerLauncher(owner_of(settings.agent_id, folder))
    else:
        launcher = ProcessLauncher(folder / "containers")
    try:
        await launcher.check()
    except LaunchError as error:
        log.error("this agent can't launch containers", launcher=settings.launcher, error=str(error))
        sys.exit(1)
    client = await connect(settings.temporal_address, settings.temporal_namespace, stop)
    if client is None:
        return
    api = ApiClient(settings)
    shipper = LogShipper(launcher, api.send_logs, folder / "shipping")
    shipper.resume()
    slots = AgentSlots(agent_id=settings.agent_id, slot_ids=tuple(range(settings.slots)))
    address = settings.address or address_towards(settings.api_url)
    seen = AgentSeen(agent_id=settings.agent_id, pool=settings.pool, slots=slots, address=address)
    spools = SpoolDelivery(launcher, api.post_as_container)
    containers = Containers(launcher, api, spec_builder(settings, launcher), shipper, spools)
    presence = AgentPresence(client, seen)
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
        activities=[Storage(in_containers=launcher.name == "docker").remove_files],
        activity_executor=ThreadPoolExecutor(2, "storage"),
        max_concurrent_activities=2,
    )
    loops = [asyncio.create_task(shipper.run()), asyncio.create_task(reconcile(launcher, api, shipper, spools))]
    async with worker, storage:
        await _announce(client, settings, seen)
        mark_ready()
        log.info("agent is ready", agent_id=settings.agent_id, slots=settings.slots, launcher=launcher.name)
        await stop.wait()
    for loop in loops:
        loop.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*loops)
    await spools.close()
    await api.close()


def address_towards(url: str) -> str:
    """This host's address on its way to a server: what hosts that reach the same server most likely reach as well."""
    parts = urlsplit(url)
    try:
        target = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM)[0]
        with socket.socket(target[0], socket.SOCK_DGRAM) as probe:
            probe.connect(target[4])  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return ""


async def _announce(client: Client, settings: AgentSettings, seen: AgentSeen) -> None:
    run = AgentRun(
        agent_id=settings.agent_id,
        pool=settings.pool,
        slots=seen.slots,
        address=seen.address,
        heartbeat_s=settings.heartbeat_s,
        reconnect_wait_s=settings.reconnect_wait_s,
    )
    await client.start_workflow(
        "Agent",
        run,
        id=names.agent_workflow(settings.agent_id),
        task_queue=names.ORCHESTRATOR_QUEUE,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        static_summary=f"agent “{settings.agent_id}” on {socket.gethostname()}",
    )


def run() -> NoReturn:
    """Entry point of `undeterred-agent`."""
    run_process(AgentSettings, main)


if __name__ == "__main__":
    run()
