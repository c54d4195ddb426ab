"""Which gang is placed next, from what a cluster says of its nodes and pods; `tests/kubernetes` has real ones."""

from __future__ import annotations

from typing import Any

from activities.launchers.kubernetes import manifest
from activities.launchers.kubernetes.gangs import gangs_of, is_half_placed, next_gang, unplaced


def node(name: str, gpus: int = 8, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"kind": name}},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": "64", "nvidia.com/gpu": str(gpus), "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(
    job: str, gpus: int, *, size: int = 1, where: str = "", gated: bool = False, made: int = 0, **spec: Any
) -> dict[str, Any]:
    labels = {manifest.AGENT: "gke", manifest.GANG: str(size), manifest.JOB: job}
    gates = [{"name": manifest.GATE}] if gated else []
    container = {"resources": {"requests": {"cpu": "1", "nvidia.com/gpu": str(gpus)}}}
    return {
        "metadata": {"name": job, "labels": labels, "creationTimestamp": f"2026-11-25T10:00:{made:02d}Z"},
        "spec": {"nodeName": where, "schedulingGates": gates, "containers": [container], **spec},
    }


def gang(job: str, gpus: int, count: int = 2, **more: Any) -> list[dict[str, Any]]:
    return [pod(job, gpus, size=count, gated=True, **more) for _ in range(count)]


def opened(nodes: list[dict[str, Any]], pods: list[dict[str, Any]], late: tuple[str, ...] = ()) -> list[str]:
    return [each["metadata"]["name"] for each in next_gang(nodes, pods, "gke", late)]


def test_oldest_gang_with_room_for_all_of_its_pods_is_placed() -> None:
    nodes = [node("a"), node("b")]
    assert opened(nodes, gang("first", 8)) == ["first", "first"]
    assert opened(nodes, [*gang("younger", 4, made=9), *gang("older", 4, made=1)]) == ["older", "older"]
    assert opened(nodes, [*gang("large", 8, 3, made=1), *gang("small", 8, made=9)]) == ["small", "small"]
    assert opened(nodes, gang("too large", 9)) == []


def test_room_is_what_pods_of_all_leave() -> None:
    nodes = [node("a"), node("b")]
    others = pod("others", 1, where="b")
    others["metadata"]["labels"] = {}
    assert opened(nodes, [others, *gang("g", 8)]) == []
    assert opened(nodes, [others, *gang("g", 7)]) == ["g", "g"]
    assert opened(nodes, [pod("about to be placed", 2), *gang("g", 7)]) == []


def test_nodes_that_a_pod_may_not_go_to_do_not_count() -> None:
    assert opened([node("a"), node("b", unschedulable=True)], gang("g", 8)) == []
    tainted = node("b", taints=[{"key": "spot", "effect": "NoSchedule"}])
    assert opened([node("a"), tainted], gang("g", 8)) == []
    assert opened([node("a"), tainted], gang("g", 8, tolerations=[{"key": "spot", "operator": "Exists"}])) == ["g", "g"]
    assert opened([node("a"), node("b")], gang("g", 8, nodeSelector={"kind": "a"})) == []
    assert opened([node("a"), node("b")], gang("g", 4, nodeSelector={"kind": "a"})) == ["g", "g"]


def test_one_gang_at_a_time_is_placed_and_one_that_is_late_is_not_waited_for() -> None:
    nodes = [node("a"), node("b")]
    in_flight = [pod("first", 1, size=2, where="a"), pod("first", 1, size=2)]
    assert opened(nodes, [*in_flight, *gang("second", 1)]) == []
    assert opened(nodes, [*in_flight, *gang("second", 1)], late=("first",)) == ["second", "second"]
    gangs = gangs_of([*in_flight, *gang("second", 1)], "gke")
    assert unplaced(gangs) == {"first"}
    assert [is_half_placed(each) for each in gangs.values()] == [True, False]


def test_gang_waits_for_pods_that_its_job_has_not_made_yet() -> None:
    assert opened([node("a")], gang("g", 1, 3)[:2]) == []


def test_pods_of_other_agents_are_not_opened() -> None:
    assert next_gang([node("a")], gang("g", 1), "another") == []
