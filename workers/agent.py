"""The agent: a Temporal worker on a queue of its own, one per host. It launches containers and ships their output."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import httpx
import structlog
from temporalio.worker import Worker

from activities.attempts import Attempts
from activities.containers import AgentPresence, Containers
from activities.launchers.base import Launcher, LaunchError
from activities.launchers.docker import DockerLauncher, owner_of
from activities.launchers.host_policy import HostPolicy
from activities.launchers.process import ProcessLauncher
from activities.launchers.specification import Host, spec_builder
from activities.log_shipper import LogShipper
from activities.orphans import Orphans
from activities.spool import SpoolDelivery
from activities.storage import Storage
from determined.common.outgoing import Outgoing, configure
from workers.agent_api import ApiClient
from workers.connect import GivenUp, connect, mark_ready
from workers.connect import run as run_process
from workers.settings import AgentSettings
from workflows import names

log = structlog.get_logger()


def host_of(settings: AgentSettings) -> Host:
    """What launch orders are completed with here."""
    return Host(
        agent_id=settings.agent_id,
        api_url=settings.container_api_url or settings.api_url,
        policy=HostPolicy.of(settings.bind_mounts, settings.host_devices, settings.capabilities),
        environment=settings.handed_on(os.environ),
        trial_python=settings.trial_python,
        memory_mib=settings.memory_mib,
    )


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
    containers = Containers(launcher, api, spec_builder(host_of(settings), launcher), shipper, spools, attempts)
    orphans = Orphans(launcher, api, shipper, spools)
    presence = AgentPresence(orphans)
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
    loops = [asyncio.create_task(shipper.run()), asyncio.create_task(orphans.run())]
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
