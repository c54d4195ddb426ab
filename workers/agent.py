"""The agent: a Temporal worker on a queue of its own, one per host. It launches containers and ships their output."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import httpx
import structlog
from temporalio.client import Client
from temporalio.worker import Worker

from activities.attempts import Attempts
from activities.containers import AgentPresence, Containers
from activities.launchers.base import Launcher, LaunchError
from activities.launchers.devices import threads_of_a_slot
from activities.launchers.docker import DockerLauncher, owner_of
from activities.launchers.gpu_health import GpuHealth
from activities.launchers.gpu_topology import topology_of
from activities.launchers.host_policy import HostPolicy
from activities.launchers.process import ProcessLauncher
from activities.launchers.specification import Host, Policy, spec_builder
from activities.log_shipper import LogShipper
from activities.orphans import Orphans
from activities.spool import SpoolDelivery
from activities.storage import Storage
from api.health import Health, of_temporal
from api.pem import read
from api.temporal.connection import Connection
from determined.common.outgoing import Outgoing, configure
from determined.core._system import nvml
from workers.agent_api import ApiClient
from workers.agent_metrics import HostMetrics
from workers.connect import GivenUp, connect, connection_of, following, mark_ready
from workers.connect import run as run_process
from workers.health import answering
from workers.monitoring import served
from workers.settings import AgentSettings, parts_of
from workers.versioning import deployment_of_agents
from workflows import names

if TYPE_CHECKING:  # loaded where pods are launched: Kubernetes' client is a third of what an agent loads
    from activities.launchers.kubernetes.manifest import PodSettings
    from activities.launchers.kubernetes.nodes import Nodes
    from activities.launchers.kubernetes.schedulers import GangScheduler

log = structlog.get_logger()

#: Pods that an agent of a cluster watches at most, where its operator set no other limit.
_MOST_PODS = 5000
#: Between two looks at the GPUs.
_GPUS_S = 10.0
#: At least so long between two reports of what a cluster offers.
_OFFER_S = 2.0


def host_of(settings: AgentSettings) -> Host:
    """What launch orders are completed with here."""
    return Host(
        agent_id=settings.agent_id,
        api_url=settings.container_api_url or settings.api_url,
        policy=_policy_of(settings),
        environment=settings.handed_on(os.environ),
        slot_environment=_threads(settings),
        trial_python=settings.trial_python,
        memory_mib=settings.memory_mib,
        api_ca=read("api_ca_file", settings.api_ca_file).decode() if settings.api_ca_file else "",
        api_server_name=settings.api_server_name or "",
    )


def _threads(settings: AgentSettings) -> dict[str, str]:
    """A slot's share of the cores. Each process would take all of them, and wait for the threads of others."""
    if settings.launcher == "kubernetes" or any(device.kind != "cpu" for device in settings.devices):
        return {}
    return {"OMP_NUM_THREADS": str(threads_of_a_slot(settings.slots or 0))}


def _policy_of(settings: AgentSettings) -> Policy:
    of_host = HostPolicy.of(settings.bind_mounts, settings.host_devices, settings.capabilities)
    if settings.launcher != "kubernetes":
        return of_host
    from activities.launchers.kubernetes.policy import PodPolicy

    return PodPolicy(
        volumes=list(settings.pod_volumes),
        host_paths=[str(path) for path in of_host.bind_mounts or ()],
        capabilities=of_host.capabilities,
        service_accounts=frozenset(parts_of(settings.pod_service_accounts)),
        priority_classes=frozenset(parts_of(settings.pod_priority_classes)),
        secrets=frozenset(parts_of(settings.pod_secrets)),
    )


async def _gangs_of(settings: AgentSettings) -> GangScheduler:
    """What starts gangs on an agent's cluster. Raises: LaunchError."""
    from activities.launchers.kubernetes.cluster import Cluster, NoCluster
    from activities.launchers.kubernetes.schedulers import found

    try:
        cluster = await Cluster.connect(*_cluster_of(settings))
    except NoCluster as error:
        raise LaunchError("engine_unavailable", str(error)) from None
    try:
        gangs = await found(
            cluster,
            settings.gang,
            kueue_queue=settings.kueue_queue,
            queue=settings.gang_queue,
            scheduler=settings.gang_scheduler,
        )
    finally:
        await cluster.close()
    log.info("gangs are started by", kind=gangs.kind, queue=gangs.queue, scheduler=gangs.scheduler)
    return gangs


def _pods_of(settings: AgentSettings, gangs: GangScheduler) -> PodSettings:
    from activities.launchers.kubernetes.manifest import PodSettings

    return PodSettings(
        agent_id=settings.agent_id,
        pool=settings.pool,
        slot_resource=settings.slot_resource,
        slot_cpu=settings.slot_cpu,
        slot_memory_mib=settings.slot_memory_mib,
        user=settings.pod_user,
        volumes=settings.pod_volumes,
        pod_spec=settings.pod_spec,
        gangs=gangs,
        grace_s=settings.pod_grace_s,
    )


def _cluster_of(settings: AgentSettings) -> tuple[str, str, str]:
    return settings.kubeconfig, settings.kube_context, settings.kube_namespace


def launcher_of(settings: AgentSettings, pods: PodSettings | None) -> Launcher:
    """What runs this agent's containers; `pods` are those of a cluster."""
    if pods is not None:
        from activities.launchers.kubernetes.launcher import KubernetesLauncher

        where = _cluster_of(settings)
        return KubernetesLauncher(
            pods,
            kubeconfig=where[0],
            context=where[1],
            namespace=where[2],
            namespaces=parts_of(settings.workspace_namespaces),
        )
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
    pods: PodSettings | None = None
    try:
        if settings.launcher == "kubernetes":
            pods = _pods_of(settings, await _gangs_of(settings))
        launcher = launcher or launcher_of(settings, pods)
        await launcher.check()
    except LaunchError as error:
        raise GivenUp(f"this agent can't launch containers ({settings.launcher}): {error}") from None
    credential = settings.agent_token.get_secret_value() if settings.is_behind_gateway else None
    connection = connection_of(settings, credential)
    clients: list[Client] = []
    health = Health({"temporal": of_temporal(clients)})
    async with answering(settings, health):
        client = await connect(connection, stop)
        if client is not None:
            clients.append(client)
            await _work(settings, launcher, pods, connection, client, health, stop)


async def _work(
    settings: AgentSettings,
    launcher: Launcher,
    pods: PodSettings | None,
    connection: Connection,
    client: Client,
    health: Health,
    stop: asyncio.Event,
) -> None:
    folder = Path(settings.folder)
    api = ApiClient(settings)
    nodes = None if pods is None else await _nodes_of(settings, pods)
    namespaces = None
    if nodes is not None and pods is not None:
        api.offer(nodes.offer())
        from activities.launchers.kubernetes.namespaces import Namespaces

        allowed = parts_of(settings.workspace_namespaces)
        namespaces = Namespaces(_cluster_of(settings), pods, allowed)
    shipper = LogShipper(launcher, api.send_logs, folder / "shipping")
    shipper.resume()
    spools = SpoolDelivery(launcher, api.post_as_container)
    attempts = Attempts(folder / "attempts")
    library = nvml() if any(each.kind == "cuda" for each in settings.devices) else None
    gpus = GpuHealth(library, settings.devices)
    api.broken(gpus.broken())
    topology = topology_of(library, settings.devices)
    api.topology(topology)
    where = settings.agent_id, settings.pool
    metrics = HostMetrics(launcher, library, settings.devices, gpus, topology, where)
    build = spec_builder(host_of(settings), launcher)
    containers = Containers(launcher, api, build, shipper, spools, attempts, gpus.broken)
    orphans = Orphans(launcher, api, shipper, spools)
    presence = AgentPresence(orphans)
    roots = None if settings.storage_roots is None else settings.storage_roots.split(":")
    removals = Storage(api, in_containers=not launcher.sees_host, roots=roots, is_elsewhere=not launcher.runs_here)
    versions = deployment_of_agents()
    # No grace at the end: what runs is watched on by the agent that comes next, and every activity takes a cancel.
    worker = Worker(
        client,
        task_queue=names.agent_queue(settings.agent_id),
        activities=[
            containers.run_container,
            containers.kill_container,
            containers.drain_container,
            presence.presence,
            *([nodes.serve_node] if nodes is not None else []),
            *([namespaces.serve_namespace, namespaces.remove_namespace] if namespaces is not None else []),
        ],
        max_concurrent_activities=_MOST_PODS if settings.slots is None else settings.slots + 200,
        # a cancel reaches an activity only in the answer to a heartbeat: don't hold those back
        max_heartbeat_throttle_interval=timedelta(seconds=2),
        default_heartbeat_throttle_interval=timedelta(seconds=2),
        deployment_config=versions,
    )
    storage = Worker(
        client,
        task_queue=names.storage_queue(settings.pool),
        activities=[removals.remove_files],
        max_concurrent_activities=2,
        deployment_config=versions,
    )
    await attempts.end_left(client)
    loops = [asyncio.create_task(shipper.run()), asyncio.create_task(orphans.run())]
    if gpus.is_needed:
        loops.append(asyncio.create_task(_watch_gpus(api, gpus)))
    if nodes is not None:
        loops.append(asyncio.create_task(_offer_anew(api, nodes)))
        loops.append(asyncio.create_task(nodes.open_gangs(settings.gang_timeout_s)))
    try:
        async with worker, storage, following(connection, client), _metrics_served(settings, metrics):
            if await _greet(api, stop):
                health.is_started = True
                mark_ready()
                log.info("agent is ready", agent_id=settings.agent_id, slots=settings.slots, launcher=launcher.name)
                await _first_end(stop, loops)
                health.is_draining = True
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.wait(loops)
        if nodes is not None:
            await nodes.close()
        if namespaces is not None:
            await namespaces.close()
        await spools.close()
        await api.close()
        await launcher.close()


@contextlib.asynccontextmanager
async def _metrics_served(settings: AgentSettings, metrics: HostMetrics) -> AsyncGenerator[None]:
    """As `served`, whose end waits for a scrape that may wait for this loop."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(served(settings, metrics.registry))
        try:
            yield
        finally:
            await asyncio.to_thread(stack.close)


async def _nodes_of(settings: AgentSettings, pods: PodSettings) -> Nodes:
    """What a cluster's nodes offer, read once. Raises: GivenUp."""
    from activities.launchers.kubernetes.nodes import Nodes

    try:
        nodes = await Nodes.connect(
            pods,
            _cluster_of(settings),
            slots_per_pod=settings.slots_per_pod,
            most=settings.slots,
        )
    except LaunchError as error:
        raise GivenUp(f"this agent can't see what its cluster offers: {error}") from None
    return nodes


async def _offer_anew(api: ApiClient, nodes: Nodes) -> NoReturn:
    """Say what the cluster offers whenever that has changed; a node that comes and goes is reported now and then."""
    told = nodes.offer()
    while True:
        await nodes.changed()
        await asyncio.sleep(_OFFER_S)
        offer = nodes.offer()
        if offer == told:
            continue
        api.offer(offer)
        try:
            await api.hello()
            if not await api.present():
                nodes.look_again()
                continue
        except httpx.HTTPError as error:
            log.info("could not say what the cluster offers", error=str(error))
            nodes.look_again()
            continue
        told = offer
        log.info("the cluster offers", slots=offer.slots, nodes=len(offer.nodes))


async def _watch_gpus(api: ApiClient, gpus: GpuHealth) -> NoReturn:
    """Report which GPUs are in error whenever that has changed."""
    reported = await asyncio.to_thread(gpus.broken)
    while True:
        await asyncio.sleep(_GPUS_S)
        broken = await asyncio.to_thread(gpus.broken)
        if broken == reported:
            continue
        api.broken(broken)
        try:
            await api.hello()
        except httpx.HTTPError as error:
            log.info("could not report GPUs in error", slots=dict(broken), error=str(error))
            continue
        reported = broken
        log.warning("GPUs are in error" if broken else "no GPU is in error any more", slots=dict(broken))


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
            async with asyncio.timeout(pause):
                await stop.wait()
        except TimeoutError:
            pause = min(5.0, pause * 1.2)
    return False


def run() -> NoReturn:
    """Entry point of `undeterred-agent`."""
    run_process(AgentSettings, main)


if __name__ == "__main__":
    run()
