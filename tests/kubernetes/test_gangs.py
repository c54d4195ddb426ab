"""Gangs that a scheduler of groups starts: its API is real, and these tests place the pods in its stead."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_gang import TRAIN as TRAIN_IN_GANG
from tests.kit.platform import Platform
from tests.kit.scripts import config
from tests.kubernetes.kueue import applied, kubectl
from tests.kubernetes.machine import NODE
from tests.kubernetes.test_pool import IN_IMAGE, platform_of_cluster, pods, start_agent, until_why

pytestmark = pytest.mark.long
GROUP = "scheduling.volcano.sh"


def definition(kind: str, scope: str) -> dict[str, Any]:
    """What Kubernetes has to know of a kind of Volcano's objects."""
    plural = f"{kind.lower()}s"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1beta1", "served": True, "storage": True, "schema": schema, "subresources": {"status": {}}}
    names = {"kind": kind, "plural": plural, "singular": kind.lower()}
    spec = {"group": GROUP, "scope": scope, "names": names, "versions": [version]}
    metadata = {"name": f"{plural}.{GROUP}"}
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": metadata} | {
        "spec": spec
    }


@pytest.fixture
def volcano() -> Iterator[None]:
    """Its API, and its queue."""
    definitions = [definition("PodGroup", "Namespaced"), definition("Queue", "Cluster")]
    names = [f"crd/{each['metadata']['name']}" for each in definitions]
    applied(*definitions)
    kubectl("wait", "--for=condition=Established", *names)
    applied({"apiVersion": f"{GROUP}/v1beta1", "kind": "Queue", "metadata": {"name": "default"}, "spec": {}})
    yield
    kubectl("delete", *names)


@pytest.fixture
async def cluster(
    volcano: None, temporal_address: str, postgres_database: str, tmp_path: Path
) -> AsyncIterator[Platform]:
    async with platform_of_cluster(temporal_address, postgres_database, tmp_path) as running:
        await start_agent(running)
        yield running


async def test_gang_is_left_to_the_scheduler_that_the_cluster_has(cluster: Platform) -> None:
    """Its group is there before its pods are, says how many, is quoted while it waits, and goes with its Job."""
    experiment_id = await cluster.create(
        config({"max_length": 4}, resources={"slots_per_trial": 4}, **IN_IMAGE), {"train.py": TRAIN_IN_GANG}
    )

    async def has_groups() -> bool:
        return bool(groups())

    await cluster.until(has_groups, 60, what="its group is there")
    [group] = groups()
    name = group["metadata"]["name"]
    assert group["spec"] == {"minMember": 2, "queue": "default"}
    assert group["metadata"]["ownerReferences"][0]["name"] == name
    said = {"type": "Unschedulable", "status": "True", "reason": "NotEnoughResources", "message": "2/2 tasks in gang"}
    status = json.dumps({"status": {"conditions": [said]}})
    kubectl("patch", f"podgroups.{GROUP}", name, "--subresource=status", "--type=merge", f"--patch={status}")
    await until_why(cluster, experiment_id, "Volcano has no room for all of its pods yet: 2/2 tasks in gang")
    [trial] = await cluster.trials(experiment_id)
    waiting = await pods(trial["id"])
    assert [pod["spec"]["schedulerName"] for pod in waiting] == ["volcano"] * 2
    assert [pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] for pod in waiting] == [name] * 2
    assert not any(pod["spec"].get("schedulingGates") for pod in waiting)
    for pod in waiting:
        place(pod)
    assert (await cluster.finish(experiment_id, 120))["state"] == "STATE_COMPLETED"

    async def is_gone() -> bool:
        return not await asyncio.to_thread(groups)

    await cluster.until(is_gone, 90, what="its group is gone with its Job")


def groups() -> list[dict[str, Any]]:
    return json.loads(kubectl("get", f"podgroups.{GROUP}", "--output=json"))["items"]


def place(pod: dict[str, Any]) -> None:
    """As a scheduler does."""
    name = pod["metadata"]["name"]
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}}
    body = binding | {"target": {"apiVersion": "v1", "kind": "Node", "name": NODE}}
    path = f"/api/v1/namespaces/default/pods/{name}/binding"
    kubectl("create", f"--raw={path}", "--filename=-", given=json.dumps(body))
