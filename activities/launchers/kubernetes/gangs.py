"""Gangs start all or none: their pods are gated until the cluster has room for all of them at once.

Kubernetes' scheduler places pod by pod: two gangs that each got a part of their pods would never get the
rest. So a pod of a gang has a scheduling gate, and the gates of one gang at a time are removed. Where others took the
room meanwhile, the gang gives back what it has.

Source: Kubernetes documentation, "Pod Scheduling Readiness".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal

from activities.launchers.kubernetes import manifest
from activities.launchers.kubernetes.cluster import Json, part, parts
from activities.launchers.kubernetes.pods import is_of, node_of
from activities.launchers.kubernetes.resources import amount, is_open, requested

_Room = dict[str, Decimal]


def next_gang(nodes: Iterable[Json], pods: Sequence[Json], agent_id: str, late: Collection[str] = ()) -> list[Json]:
    """The gated pods of the oldest gang of an agent that has room for all; none while another is being placed.

    Args:
        nodes: That its pods may go to.
        pods: Of all, in all namespaces, that have not ended.
        agent_id: Whose gangs.
        late: Jobs of gangs whose placing is not waited for any more.
    """
    gangs = gangs_of(pods, agent_id)
    if any(name not in late for name in unplaced(gangs)):
        return []
    waiting = [gang for gang in gangs.values() if all(map(_is_gated, gang)) and len(gang) == _size(gang[0])]
    if not waiting:
        return []
    known = {str(node["metadata"]["name"]): node for node in nodes}
    free = _free(known, pods)
    for pod in pods:  # what the scheduler is about to place counts as placed
        if not node_of(pod) and not _is_gated(pod) and is_of(pod, agent_id):
            _place(pod, known, free)
    for gang in sorted(waiting, key=lambda gang: min(pod["metadata"]["creationTimestamp"] for pod in gang)):
        room = {name: dict(has) for name, has in free.items()}
        if all(_place(pod, known, room) for pod in gang):
            return gang
    return []


def unplaced(gangs: Mapping[str, Sequence[Json]]) -> set[str]:
    """The Jobs of gangs of which a pod has no gate, and no node yet."""
    return {name for name, gang in gangs.items() if any(not _is_gated(pod) and not node_of(pod) for pod in gang)}


def is_half_placed(gang: Iterable[Json]) -> bool:
    """Whether some of its pods have a node, and others have none."""
    return len({bool(node_of(pod)) for pod in gang}) == 2


def gangs_of(pods: Iterable[Json], agent_id: str) -> Mapping[str, list[Json]]:
    """Pods of an agent's gangs, by their Job."""
    found: dict[str, list[Json]] = defaultdict(list)
    for pod in pods:
        if is_of(pod, agent_id) and _size(pod) > 1:
            found[part(pod, "metadata", "labels").get(manifest.JOB, "")].append(pod)
    return found


def _free(nodes: Mapping[str, Json], pods: Iterable[Json]) -> dict[str, _Room]:
    free: dict[str, _Room] = {}
    for name, node in nodes.items():
        allocatable = part(node, "status", "allocatable")
        free[name] = {resource: amount(allocatable, resource) for resource in allocatable}
        free[name].setdefault("pods", Decimal(110))
    for pod in pods:
        if (node := node_of(pod)) in free:
            _take(free[node], requested(pod))
    return free


def _place(pod: Json, nodes: Mapping[str, Json], free: Mapping[str, _Room]) -> bool:
    """Take the room of a pod on the node that has the least left of it for more; whether there is one."""
    wanted = requested(pod)
    fitting = [
        name
        for name, has in free.items()
        if is_open(nodes[name], pod) and all(has.get(key, Decimal(0)) >= count for key, count in wanted.items())
    ]
    if not fitting:
        return False
    _take(free[min(fitting, key=lambda name: sorted(free[name].items()))], wanted)
    return True


def _take(room: _Room, wanted: Mapping[str, Decimal]) -> None:
    for resource, count in wanted.items():
        room[resource] = room.get(resource, Decimal(0)) - count


def _size(pod: Json) -> int:
    return int(part(pod, "metadata", "labels").get(manifest.GANG) or 1)


def _is_gated(pod: Json) -> bool:
    return any(gate["name"] == manifest.GATE for gate in parts(pod, "spec", "schedulingGates"))
