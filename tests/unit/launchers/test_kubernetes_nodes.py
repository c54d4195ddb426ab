"""What a cluster's nodes offer, from what the cluster says of nodes and pods; `tests/kubernetes` has real ones."""

from __future__ import annotations

from typing import Any, cast

import pytest

from activities.launchers.kubernetes import manifest
from activities.launchers.kubernetes.cluster import Cluster
from activities.launchers.kubernetes.manifest import PodSettings
from activities.launchers.kubernetes.nodes import Nodes
from activities.launchers.kubernetes.resources import is_silent

GPUS = PodSettings(agent_id="gpu")


def node(name: str, gpus: int = 4, *, ready: bool = True, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"kind": "a100"}},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": "3920m", "memory": "16Gi", "nvidia.com/gpu": str(gpus)},
            "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}],
            "addresses": [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": "10.0.0.7"}],
        },
    }


def pod(where: str, *, ours: int | None = None, **requests: str) -> dict[str, Any]:
    labels = {} if ours is None else {manifest.AGENT: "gpu", manifest.SLOTS: str(ours)}
    return {
        "metadata": {"labels": labels},
        "spec": {"nodeName": where, "containers": [{"resources": {"requests": requests}}, {}]},
    }


def offered(
    nodes: list[dict[str, Any]],
    pods: list[dict[str, Any]] | None = None,
    settings: PodSettings = GPUS,
    per_pod: int = 8,
    most: int | None = None,
) -> tuple[int, int, dict[str, tuple[int, int, bool]]]:
    """Slots, the most of a pod, and slots, others' slots and openness of each node."""
    found = Nodes(cast("Cluster", None), settings, slots_per_pod=per_pod, most=most)
    found._nodes.objects = {each["metadata"]["name"]: each for each in nodes}
    found._pods.objects = dict(enumerate(pods or []))
    offer = found.offer()
    return offer.slots, offer.slots_per_pod, {n.name: (n.slots, n.foreign, n.is_open) for n in offer.nodes}


def test_slots_are_devices_of_nodes_that_have_them() -> None:
    nodes = [node("a"), node("b", gpus=2), node("control", gpus=0)]
    assert offered(nodes) == (6, 4, {"a": (4, 0, True), "b": (2, 0, True)})
    assert offered(nodes, per_pod=1)[:2] == (6, 1)
    assert offered(nodes, most=5)[0] == 5
    assert offered([]) == (0, 1, {})


def test_pods_of_others_take_slots_and_ours_do_not() -> None:
    others = pod("a", **{"nvidia.com/gpu": "3"})
    assert offered([node("a")], [others, pod("a", ours=1, **{"nvidia.com/gpu": "1"}), pod("")]) == (
        1, 4, {"a": (4, 3, True)},
    )  # fmt: skip


def test_node_that_takes_nothing_new_offers_what_runs_there() -> None:
    """What is held there counts on: a pool would take other slots for it."""
    for closed in (node("a", unschedulable=True), node("a", ready=False)):
        found = offered([closed, node("b")], [pod("a", ours=2), pod("a", **{"nvidia.com/gpu": "1"})])
        assert found == (2 + 4, 4, {"a": (4, 1, False), "b": (4, 0, True)})


def test_taints_close_a_node_unless_the_operators_pods_tolerate_them() -> None:
    taints = [
        {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
        {"key": "soft", "effect": "PreferNoSchedule"},
    ]
    for toleration, is_open in (
        ({"key": "nvidia.com/gpu", "operator": "Exists"}, True),
        ({"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "nvidia.com/gpu", "value": "absent"}, False),
        ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}, False),
    ):
        settings = PodSettings(agent_id="gpu", pod_spec={"spec": {"tolerations": [toleration]}})
        assert offered([node("a", taints=taints)], settings=settings)[2]["a"][2] is is_open, toleration
    assert offered([node("a", taints=taints)])[0] == 0


def test_nodes_that_the_operators_pods_do_not_select_are_closed() -> None:
    for kind, slots in (("a100", 4), ("h100", 0)):
        settings = PodSettings(agent_id="gpu", pod_spec={"spec": {"nodeSelector": {"kind": kind}}})
        assert offered([node("a")], settings=settings)[0] == slots


def test_slots_of_cores_are_bound_by_memory_too_and_pods_without_slots_take_some() -> None:
    settings = PodSettings(agent_id="gpu", slot_resource="cpu", slot_cpu=0.5, slot_memory_mib=1024)
    assert offered([node("a")], settings=settings)[0] == 7  # 3.92 cores
    system = pod("a", cpu="400m", memory="14Gi")
    assert offered([node("a")], [system], settings) == (2, 7, {"a": (7, 5, True)})
    without = pod("a", ours=0, cpu="500m", memory="1Gi")
    assert offered([node("a")], [without, pod("a", ours=2, cpu="1", memory="2Gi")], settings)[0] == 6


def test_node_that_an_operator_took_out_of_service_is_closed_to_this_agent_only() -> None:
    def labelled(agent_id: str, value: str) -> dict[str, Any]:
        found = node("a")
        found["metadata"]["labels"][manifest.service_label(agent_id)] = value
        return found

    assert offered([labelled("gpu", "no-schedule")]) == (0, 4, {"a": (4, 0, False)})
    assert offered([labelled("gpu", "no-execute")], [pod("a", ours=2)]) == (2, 4, {"a": (4, 0, False)})
    assert offered([labelled("another", "no-execute")]) == (4, 4, {"a": (4, 0, True)})


def test_label_of_a_node_has_a_name_that_kubernetes_takes_whatever_the_agent_is_called() -> None:
    names = [manifest.service_label(each).partition("/")[2] for each in ("gke", "a" * 100, "a" * 99 + "b")]
    assert all(len(name) <= 63 for name in names)
    assert len(set(names)) == 3


@pytest.mark.parametrize(("status", "expected"), [("True", False), ("False", False), ("Unknown", True)])
def test_node_is_silent_when_its_kubelet_says_nothing_and_not_when_it_says_that_it_is_ill(
    status: str, expected: bool
) -> None:
    """One that is ill still ends its pods."""
    conditions = [{"type": "MemoryPressure", "status": "Unknown"}, {"type": "Ready", "status": status}]
    assert is_silent({"status": {"conditions": conditions}}) is expected
