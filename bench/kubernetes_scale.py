"""A thousand pods at once: what they cost the agent of a cluster, and how long until all of them run.

`KUBECONFIG` names a cluster whose pods kwok plays on simulated nodes: a real API server, scheduler and controllers, and no containers.
The launcher and the watch of nodes are those of an agent, in this process, which does nothing else.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator

import psutil

from activities.launchers.base import ContainerSpec
from activities.launchers.kubernetes.launcher import KubernetesLauncher
from activities.launchers.kubernetes.manifest import PodSettings
from activities.launchers.kubernetes.nodes import Nodes
from bench.kubernetes import counting
from bench.measure import Figure
from tests.kubernetes.kueue import applied, kubectl

_PODS = 1000
_GPUS = 8
#: More than the pods need: the scheduler has a choice, as it does in a cluster.
_NODES = _PODS // _GPUS + 10
_LABEL = "undeterred.ai/bench"
_ON_FAKES = {
    "spec": {
        "nodeSelector": {_LABEL: "scale"},
        "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
    }
}


def figures() -> Iterator[Figure]:
    """All at once, one slot each; measured from the first request to the cluster."""
    applied(*map(_node, range(_NODES)))
    try:
        found = asyncio.run(_measured())
    finally:
        kubectl("delete", "node", "-l", f"{_LABEL}=scale", "--wait=false")
    note = f"{_PODS} pods on {_NODES} simulated nodes, all at once"
    yield Figure("Kubernetes at scale: first request -> all Jobs made", [found["submitted_s"]], "s", note=note)
    yield Figure("Kubernetes at scale: first request -> all pods run", [found["run_s"]], "s", note=note)
    yield Figure("Kubernetes at scale: all ended and removed, after that", [found["removed_s"]], "s", note=note)
    yield Figure("Kubernetes at scale: requests to the cluster a pod", [found["requests"]], "", note="a watch is one")
    yield Figure("Kubernetes at scale: CPU of the agent a pod", [found["cpu_ms"]], "ms", note="start to removal")
    yield Figure("Kubernetes at scale: memory of the agent, more than idle", [found["mib"]], "MiB", note="at its most")


def _node(number: int) -> dict[str, object]:
    has = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(_GPUS)}
    name = f"scale-{number}"
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {_LABEL: "scale", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
        },
        "status": {"capacity": has, "allocatable": has},
    }


async def _measured() -> dict[str, float]:
    settings = PodSettings(agent_id=f"scale-{uuid.uuid4().hex[:6]}", slot_memory_mib=1024, pod_spec=_ON_FAKES)
    where = os.environ["KUBECONFIG"]
    launcher = KubernetesLauncher(settings, kubeconfig=where)
    await launcher.check()
    nodes = await Nodes.connect(settings, (where, "", ""), slots_per_pod=_GPUS, most=None)
    await _until(lambda: nodes.offer().slots >= _PODS)
    specs = [
        ContainerSpec(f"scale.{number}.1-0", ["true"], {}, image="none", group=f"scale.{number}.1", slot_ids=(0,))
        for number in range(_PODS)
    ]
    this, counted = psutil.Process(), Counter[str]()
    most = idle = this.memory_info().rss
    before = this.cpu_times()
    began = time.monotonic()
    with counting(counted):
        submitted: list[float] = []
        work = asyncio.gather(*(_run(launcher, spec, submitted) for spec in specs))
        while not work.done():
            most = max(most, this.memory_info().rss)
            await asyncio.wait({work}, timeout=0.2)
        await work
        run_s = time.monotonic() - began
        for spec in specs:
            await launcher.kill(spec.container_id, 0.0)
        await asyncio.gather(*(_end(launcher, spec) for spec in specs))
    after = this.cpu_times()
    removed_s = time.monotonic() - began - run_s
    await launcher.close()
    await nodes.close()
    cpu_s = after.user + after.system - before.user - before.system
    return {
        "submitted_s": max(submitted) - began,
        "run_s": run_s,
        "removed_s": removed_s,
        "requests": sum(counted.values()) / _PODS,
        "cpu_ms": cpu_s * 1000 / _PODS,
        "mib": (most - idle) / 2**20,
    }


async def _run(launcher: KubernetesLauncher, spec: ContainerSpec, submitted: list[float]) -> None:
    await launcher.prepare(spec, _say)
    await launcher.start(spec)
    submitted.append(time.monotonic())
    await launcher.started(spec.container_id, _say)


async def _end(launcher: KubernetesLauncher, spec: ContainerSpec) -> None:
    while await launcher.wait(spec.container_id, 10.0) is None:
        pass
    await launcher.remove(spec.container_id)


def _say(text: str) -> None:
    """What a trial's log would have."""


async def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "the simulated nodes are not ready"
        await asyncio.sleep(0.1)
