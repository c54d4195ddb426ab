"""Workspaces have namespaces of a real cluster: made, limited, used by trials, and removed with the workspace."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.platform import Platform
from tests.kit.scripts import TRAIN, config
from tests.kubernetes.kueue import applied, kubectl
from tests.kubernetes.test_pool import IN_IMAGE, SLOT_CPU, platform_of_cluster, pods, start_agent

pytestmark = pytest.mark.long


@pytest.fixture
def team() -> Iterator[str]:
    """A namespace that operators made."""
    name = f"team-{uuid.uuid4().hex[:8]}"
    applied({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
async def cluster(temporal_address: str, postgres_database: str, tmp_path: Path) -> AsyncIterator[Platform]:
    """A platform whose agent may use the namespaces of teams."""
    async with platform_of_cluster(temporal_address, postgres_database, tmp_path) as running:
        policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                  "metadata": {"name": "det-pods", "namespace": "default"},
                  "spec": {"podSelector": {"matchLabels": {"undeterred.ai/agent": "gke-one"}},
                           "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": {}}]}]}}  # fmt: skip
        applied(policy)
        try:
            await start_agent(running, workspace_namespaces="team-*")
            yield running
        finally:
            kubectl("delete", "networkpolicy", "det-pods")
            kubectl("delete", "namespace", "-l", "undeterred.ai/agent=gke-one", "--wait=false")


async def made(cluster: Platform, **more: Any) -> tuple[dict[str, Any], int]:
    """A workspace, and the number of a project in it."""
    answer = await cluster.post("/api/v1/workspaces", {"name": f"Vision {uuid.uuid4().hex[:6]}"} | more)
    project = await cluster.post(f"/api/v1/workspaces/{answer['workspace']['id']}/projects", {"name": "p"})
    return answer, project["project"]["id"]


async def test_trial_runs_in_the_namespace_that_is_made_for_its_workspace(cluster: Platform) -> None:
    answer, project = await made(cluster, clusterNamespaceMeta={"": {"autoCreateNamespace": True}},
                                 clusterQuotaPairs={"": 1})  # fmt: skip
    space = answer["workspace"]
    name = answer["namespaceBindings"]["gke-one"]["namespace"]
    assert name.startswith(space["name"].lower().replace(" ", "") + "-default-")
    assert name.endswith(f"-{space['id']}")
    [quota] = json.loads(kubectl("get", "resourcequotas", "-n", name, "-o", "json"))["items"]
    assert quota["metadata"]["name"] == f"{name}-quota"
    assert quota["spec"]["hard"] == {"requests.cpu": f"{int(SLOT_CPU * 1000)}m"}
    assert "det-pods" in kubectl("get", "networkpolicies", "-n", name, "-o", "name")
    path = f"/api/v1/workspaces/{space['id']}"
    assert (await cluster.get(f"{path}/get-k8s-resource-quotas"))["resourceQuotas"] == {"gke-one": 1}
    first = await cluster.create(
        config({"max_length": 400}, hyperparameters={"sleep": 0.1}, **IN_IMAGE),
        {"train.py": TRAIN},
        project_id=project,
    )
    trial_id = await cluster.until_reported(first)
    assert [pod["metadata"]["namespace"] for pod in await pods(trial_id)] == [name]
    second = await cluster.create(config({"max_length": 3}, **IN_IMAGE), {"train.py": TRAIN}, project_id=project)

    async def is_told() -> bool:
        found = await cluster.trials(second)
        told = json.dumps(await cluster.get(f"/api/v1/undeterred/trials/{found[0]['id']}/why")) if found else ""
        return f"exceeded quota: {name}-quota" in told

    await cluster.until(is_told, 60, what="the trial beyond the quota says why it waits")
    await cluster.command(first, "kill")
    assert (await cluster.finish(first, 60))["state"] == "STATE_CANCELED"
    await cluster.command(second, "kill")
    assert (await cluster.finish(second, 60))["state"] == "STATE_CANCELED"
    await cluster.until(
        lambda: kubectl("get", "jobs,secrets", "-n", name, "-o", "name") == "", 60, what="what is over is removed"
    )
    for each in (first, second):
        await cluster.delete(f"/api/v1/experiments/{each}")
    await cluster.delete(path)

    async def is_gone() -> bool:
        return name not in kubectl("get", "namespaces", "-o", "name", "--field-selector", "status.phase=Active")

    await cluster.until(is_gone, 60, what="the namespace goes with its workspace")


async def test_namespace_that_is_there_is_used_while_it_is_bound(cluster: Platform, team: str) -> None:
    answer, project = await made(cluster)
    path = f"/api/v1/workspaces/{answer['workspace']['id']}/namespace-bindings"
    for namespace, told in (("kube-system", "none of the namespaces that this agent may use"),
                            ("team-nowhere", "has no namespace 'team-nowhere'")):  # fmt: skip
        refused = await cluster.refused(path, {"clusterNamespaceMeta": {"": {"namespace": namespace}}})
        assert told in refused
    bound = {"clusterNamespaceMeta": {"gke-one": {"namespace": team}}}
    assert (await cluster.post(path, bound))["namespaceBindings"]["gke-one"]["namespace"] == team
    refused = await cluster.refused(path, {"clusterNamespaceMeta": {"": {"namespace": team, "resourceQuota": 4}}})
    assert "its operator sets its ResourceQuota" in refused
    wanted = config({"max_length": 40}, hyperparameters={"sleep": 0.1}, **IN_IMAGE)
    first = await cluster.create(wanted, {"train.py": TRAIN}, project_id=project)
    trial_id = await cluster.until_reported(first)
    await cluster.delete(f"{path}?clusterNames=gke-one")
    second = await cluster.create(config({"max_length": 3}, **IN_IMAGE), {"train.py": TRAIN}, project_id=project)
    other_id = await cluster.until_reported(second)
    assert [pod["metadata"]["namespace"] for pod in await pods(trial_id)] == [team]
    assert [pod["metadata"]["namespace"] for pod in await pods(other_id)] == ["default"]
    for each in (first, second):
        assert (await cluster.finish(each, 60))["state"] == "STATE_COMPLETED"
    assert "step 40" in "\n".join(await cluster.logs(trial_id))
