"""What becomes of a pod that the cluster wants to remove from a node that says nothing, without a cluster."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from activities.launchers.base import ExitCause
from activities.launchers.kubernetes import manifest
from activities.launchers.kubernetes.cluster import Cluster, ClusterGone
from activities.launchers.kubernetes.launcher import KubernetesLauncher
from activities.launchers.kubernetes.manifest import PodSettings

JOB: dict[str, Any] = {
    "metadata": {
        "name": "det-7", "namespace": "default", "uid": "u", "labels": {},
        "annotations": {manifest.CONTAINERS: '["7.a.1-0"]', manifest.LABELS: "{}", manifest.LAUNCHED: "yes"},
    },
    "spec": {}, "status": {},
}  # fmt: skip


class Known:
    """A mirror that holds still."""

    refused = None

    def __init__(self, objects: dict[Any, Any]) -> None:
        self.objects = objects

    async def ready(self, limit_s: float) -> bool:
        return True

    def next_change(self, key: Any) -> Any:
        return asyncio.get_running_loop().create_future()


class Nodes(Cluster):
    """Has one node, or none; or does not answer."""

    def __init__(self, status: str | None) -> None:
        super().__init__(None, "default")
        self._status = status
        self.asked = 0

    async def get(self, path: str, **params: str | int) -> dict[str, Any]:
        assert (path, params) == ("/api/v1/nodes", {"fieldSelector": "metadata.name=node-1"})
        self.asked += 1
        if self._status == "away":
            raise ClusterGone("GET /api/v1/nodes: no answer")
        node = {"status": {"conditions": [{"type": "Ready", "status": self._status}]}}
        return {"items": [node] if self._status else []}


def launcher_of(cluster: Cluster, *, is_to_go: bool = True, is_killed: bool = False) -> KubernetesLauncher:
    pod = {
        "metadata": {"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z" if is_to_go else None},
        "spec": {"nodeName": "node-1"},
        "status": {
            "phase": "Running",
            "containerStatuses": [{"name": manifest.MAIN, "state": {"running": {}}}],
        },
    }
    job = {**JOB, "metadata": {**JOB["metadata"], "annotations": dict(JOB["metadata"]["annotations"])}}
    if is_killed:
        job["metadata"]["annotations"][f"{manifest.KILLED}-0"] = "yes"
    launcher = KubernetesLauncher(PodSettings("gpu"))
    mirrors = {"_cluster": cluster, "_jobs": Known({"det-7": job}), "_pods": Known({("det-7", 0): pod})}
    for name, value in mirrors.items():
        setattr(launcher, name, value)
    return launcher


@pytest.mark.parametrize("status", ["Unknown", None], ids=["silent", "gone"])
async def test_it_is_lost_with_its_node(status: str | None) -> None:
    found = await launcher_of(Nodes(status)).wait("7.a.1-0", 0.0)
    assert found is not None
    assert (found.cause, found.code, found.message) == (ExitCause.LOST, None, "its node node-1 says nothing any more")


async def test_it_is_killed_where_that_was_wanted() -> None:
    found = await launcher_of(Nodes("Unknown"), is_killed=True).wait("7.a.1-0", 0.0)
    assert found is not None
    assert (found.cause, found.code) == (ExitCause.KILLED, 137)


@pytest.mark.parametrize("status", ["True", "False", "away"], ids=["well", "ill", "nothing-known"])
async def test_it_may_still_save_where_its_node_can_end_it(status: str) -> None:
    """Also where nobody can say how the node is: a trial is not begun twice for that."""
    assert await launcher_of(Nodes(status)).wait("7.a.1-0", 0.0) is None


async def test_pod_that_nobody_wants_removed_is_not_asked_about() -> None:
    """A node that is silent for a minute may be back in the next."""
    cluster = Nodes("Unknown")
    assert await launcher_of(cluster, is_to_go=False).wait("7.a.1-0", 0.0) is None
    assert cluster.asked == 0
