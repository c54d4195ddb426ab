"""What a cluster's nodes offer: their slots, who else uses them, and whether they take new pods.

Source: Kubernetes API reference, v1 Node and PodSpec; spec kubernetes.md §6.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Hashable, Mapping
from decimal import Decimal
from typing import NoReturn

import structlog
from temporalio import activity

from activities.launchers.base import LaunchError, Node, Offer
from activities.launchers.kubernetes import manifest
from activities.launchers.kubernetes.cluster import (
    Cluster,
    ClusterError,
    ClusterGone,
    Json,
    NoCluster,
    NotThere,
    part,
    parts,
    unavailable,
)
from activities.launchers.kubernetes.gangs import gangs_of, is_half_placed, next_gang, unplaced
from activities.launchers.kubernetes.manifest import PodSettings
from activities.launchers.kubernetes.mirror import Mirror
from activities.launchers.kubernetes.pods import is_of, node_of
from activities.launchers.kubernetes.resources import amount, is_open
from workflows.messages import NodeServed, NodeService, NodeState

log = structlog.get_logger()

_READ_S = 15.0
#: Between looks for gangs that have room, where nothing says that there is more of it.
_LOOK_S = 5.0
#: Changes come together: pods of a Job, or their ends.
_SETTLE_S = 0.1

_Used = dict[str, Decimal]


class Nodes:
    """The nodes that an agent's pods may go to, kept by a watch of nodes and one of all pods.

    Args:
        cluster: Its login needs to list and watch nodes and pods of all namespaces.
        settings: Of the agent's pods.
        slots_per_pod: The most of one pod, as the operator says.
        most: Slots that the agent offers at most; None: all.
    """

    def __init__(self, cluster: Cluster, settings: PodSettings, *, slots_per_pod: int, most: int | None) -> None:
        self._cluster = cluster
        self._settings = settings
        self._per_pod = slots_per_pod
        self._most = most
        self._change = asyncio.Event()
        running = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
        self._moved = asyncio.Event()
        self._nodes = Mirror(cluster, "/api/v1/nodes", {}, _name, self._note_change)
        self._pods = Mirror(cluster, "/api/v1/pods", running, _uid, self._note_change)

    @staticmethod
    async def connect(
        settings: PodSettings, where: tuple[str, str, str], *, slots_per_pod: int, most: int | None
    ) -> Nodes:
        """Read what there is, and watch it from then on.

        Args:
            settings: Of the agent's pods.
            where: Kubeconfig, context and namespace, as `Cluster.connect` has them.
            slots_per_pod: See the class, as the next one.
            most: Slots that the agent offers at most.

        Raises: LaunchError("engine_unavailable").
        """
        try:
            cluster = await Cluster.connect(*where)
        except NoCluster as error:
            raise LaunchError("engine_unavailable", str(error)) from None
        nodes = Nodes(cluster, settings, slots_per_pod=slots_per_pod, most=most)
        for mirror, what in ((nodes._nodes, "nodes"), (nodes._pods, "pods of all namespaces")):
            if not await mirror.ready(_READ_S):
                why = mirror.refused or "its API server does not answer"
                await nodes.close()
                raise LaunchError("engine_unavailable", f"{what}: {why}; its login has to list and watch them.")
        return nodes

    @activity.defn
    async def serve_node(self, order: NodeService) -> NodeServed:
        """Put a node in or out of service; says why that can't be. Idempotent."""
        try:
            await self._serve(order.node, order.state)
        except LaunchError as error:
            return NodeServed(problem=str(error))
        return NodeServed()

    async def _serve(self, name: str, state: NodeState) -> None:
        """Let this agent's pods go to a node, or keep them from it; with `out` those that are there are evicted.

        They save before they leave, and go on elsewhere. Pods of others are not concerned.

        Raises: LaunchError: `bad_spec` if there is no such node, `start_failed` if the login may not do this,
            `engine_unavailable`.
        """
        label = manifest.service_label(self._settings.agent_id)
        try:
            change = {"metadata": {"labels": {label: manifest.OUT_OF_SERVICE.get(state)}}}
            self._nodes.put(await self._cluster.patch(f"/api/v1/nodes/{name}", change))
            if state == "out":
                mine = [pod for pod in self._pods.objects.values() if is_of(pod, self._settings.agent_id)]
                await asyncio.gather(*(self._evict(pod) for pod in mine if node_of(pod) == name))
        except NotThere:
            raise LaunchError("bad_spec", f"the cluster has no node {name!r} any more") from None
        except ClusterGone as error:
            raise unavailable(error) from None
        except ClusterError as error:
            raise LaunchError(
                "start_failed",
                f"the cluster refuses it: {error}; the agent's login has to patch nodes and to create pods/eviction",
            ) from None

    async def open_gangs(self, timeout_s: float) -> NoReturn:
        """Let one gang after the other be placed, when there is room for all of its pods.

        Args:
            timeout_s: A gang of which only a part has nodes for so long gives them back: its pods are evicted.
        """
        agent_id = self._settings.agent_id
        since: dict[str, float] = {}
        while True:
            self._moved.clear()
            pods = list(self._pods.objects.values())
            nodes = [node for node in self._nodes.objects.values() if _service_of(node, self._settings) == "in"]
            gangs = gangs_of(pods, agent_id)
            since = {job: since.get(job, time.monotonic()) for job in unplaced(gangs)}
            late = {job for job, at in since.items() if time.monotonic() - at > timeout_s}
            try:
                for pod in next_gang(nodes, pods, agent_id, late):
                    await self._open(pod)
                for job in late:
                    if is_half_placed(gangs[job]):
                        log.info("a gang gives its nodes back: there is no room for the rest of it", job=job)
                        await asyncio.gather(*(self._evict(pod) for pod in gangs[job]))
            except (ClusterGone, ClusterError) as error:
                log.warning("could not have a gang placed", error=str(error))
                await asyncio.sleep(_LOOK_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._moved.wait()
            await asyncio.sleep(_SETTLE_S)

    async def _open(self, pod: Json) -> None:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        others = [gate for gate in parts(pod, "spec", "schedulingGates") if gate["name"] != manifest.GATE]
        with contextlib.suppress(NotThere):
            self._pods.put(await self._cluster.patch(path, {"spec": {"schedulingGates": others or None}}))

    def _note_change(self) -> None:
        self._change.set()
        self._moved.set()

    async def _evict(self, pod: Json) -> None:
        metadata = {key: pod["metadata"][key] for key in ("name", "namespace")}
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/eviction"
        with contextlib.suppress(NotThere):
            await self._cluster.create(path, {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata})

    def look_again(self) -> None:
        """What was seen last was of no use: `changed` returns at once."""
        self._change.set()

    async def changed(self) -> None:
        """Wait until something changed since the last look."""
        await self._change.wait()

    def offer(self) -> Offer:
        """What the nodes offer now."""
        self._change.clear()
        ours, others = _used(self._pods.objects, self._settings)
        nodes = [
            node
            for _, found in sorted(self._nodes.objects.items(), key=lambda item: str(item[0]))
            if (node := _node(found, ours, others, self._settings)).slots or node.used
        ]
        largest = max((node.slots for node in nodes), default=0)
        offered = sum(node.slots - node.foreign if node.is_open else node.used for node in nodes)
        return Offer(
            slots=offered if self._most is None else min(self._most, offered),
            slots_per_pod=max(1, min(self._per_pod, largest)),
            nodes=tuple(nodes),
        )

    async def close(self) -> None:
        """Stop watching."""
        await self._nodes.close()
        await self._pods.close()
        await self._cluster.close()


def _node(found: Json, ours: Mapping[str, _Used], others: Mapping[str, _Used], settings: PodSettings) -> Node:
    name = str(found["metadata"]["name"])
    unit = unit_of(settings)
    has = {resource: amount(part(found, "status", "allocatable"), resource) for resource in unit}
    slots = _fitting(has, unit)
    theirs = others.get(name, {})
    left = {resource: has[resource] - theirs.get(resource, Decimal(0)) for resource in unit}
    used = ours.get(name, {})
    addresses = parts(found, "status", "addresses")
    service = _service_of(found, settings)
    return Node(
        name=name,
        slots=slots,
        foreign=slots - _fitting(left, unit),
        used=int(used.get("slots", Decimal(0))),
        address=next((str(each["address"]) for each in addresses if each["type"] == "InternalIP"), ""),
        is_cordoned=bool(part(found, "spec").get("unschedulable")),
        service=service,
        is_open=service == "in" and is_open(found, settings.pod_spec),
    )


def _service_of(node: Json, settings: PodSettings) -> NodeState:
    """What operators want of a node; a value that is not ours keeps pods away as any does."""
    value = part(node, "metadata", "labels").get(manifest.service_label(settings.agent_id))
    if value is None:
        return "in"
    return "out" if value == manifest.OUT_OF_SERVICE["out"] else "drain"


def unit_of(settings: PodSettings) -> dict[str, Decimal]:
    """What a slot takes of a node, by resource: a device, or cores with their memory."""
    if settings.slot_resource != "cpu":
        return {settings.slot_resource: Decimal(1)}
    return {"cpu": Decimal(str(settings.slot_cpu)), "memory": Decimal(settings.slot_memory_mib << 20)}


def _fitting(has: Mapping[str, Decimal], unit: Mapping[str, Decimal]) -> int:
    return max(0, min(int(has[resource] // amount) for resource, amount in unit.items()))


def _used(pods: Mapping[Hashable, Json], settings: PodSettings) -> tuple[dict[str, _Used], dict[str, _Used]]:
    """By node: what pods of this agent hold, as `slots`, and what all others request, by resource.

    Our own pods without slots are among the others: on a cluster whose slots are cores, they take some.
    """
    ours: dict[str, _Used] = defaultdict(lambda: defaultdict(Decimal))
    others: dict[str, _Used] = defaultdict(lambda: defaultdict(Decimal))
    resources = unit_of(settings)
    for pod in pods.values():
        node = node_of(pod)
        if not node:
            continue
        slots = int(part(pod, "metadata", "labels").get(manifest.SLOTS) or 0)
        if slots and is_of(pod, settings.agent_id):
            ours[node]["slots"] += slots
            continue
        for container in parts(pod, "spec", "containers"):
            for resource in resources:
                others[node][resource] += amount(part(container, "resources", "requests"), resource)
    return ours, others


def _name(node: Json) -> Hashable:
    return str(node["metadata"]["name"])


def _uid(pod: Json) -> Hashable:
    return str(pod["metadata"]["uid"])
