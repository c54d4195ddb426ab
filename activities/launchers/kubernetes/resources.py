"""Amounts of resources, and which nodes take which pods.

Source: Kubernetes API reference, v1 Node and PodSpec; Kubernetes documentation, "Taints and Tolerations".
"""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal
from typing import Any, cast

from kubernetes.utils import quantity as _quantity

from activities.launchers.kubernetes.cluster import Json, part, parts

_quantities: Any = _quantity  # without types


def amount(quantities: Json, resource: str) -> Decimal:
    """How much of a resource; 0 if it is not there."""
    return cast("Decimal", _quantities.parse_quantity(quantities.get(resource) or 0))


def requested(pod: Json) -> dict[str, Decimal]:
    """What the scheduler sets aside for a pod, by resource."""
    found: dict[str, Decimal] = defaultdict(Decimal)
    for container in parts(pod, "spec", "containers"):
        requests = part(container, "resources", "requests")
        for resource in requests:
            found[resource] += amount(requests, resource)
    for container in parts(pod, "spec", "initContainers"):  # they end before the others begin
        requests = part(container, "resources", "requests")
        for resource in requests:
            found[resource] = max(found[resource], amount(requests, resource))
    found["pods"] = Decimal(1)
    return found


def is_open(node: Json, pod: Json) -> bool:
    """Whether the scheduler may send a pod to a node: what the pod selects and tolerates counts, not its affinities."""
    spec = part(pod, "spec")
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in parts(node, "status", "conditions"))
    ready = ready and not part(node, "spec").get("unschedulable")
    labels = part(node, "metadata", "labels")
    is_chosen = all(labels.get(key) == value for key, value in part(spec, "nodeSelector").items())
    tolerations = parts(spec, "tolerations")
    taints = [each for each in parts(node, "spec", "taints") if each.get("effect") in ("NoSchedule", "NoExecute")]
    return ready and is_chosen and all(any(_tolerates(each, taint) for each in tolerations) for taint in taints)


def is_silent(node: Json) -> bool:
    """Whether its kubelet has said nothing for as long as the cluster waits for it."""
    return any(each["type"] == "Ready" and each["status"] == "Unknown" for each in parts(node, "status", "conditions"))


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    key = toleration.get("key") or ""
    if not key:
        return toleration.get("operator") == "Exists"
    if key != taint.get("key"):
        return False
    return toleration.get("operator") == "Exists" or (toleration.get("value") or "") == (taint.get("value") or "")
