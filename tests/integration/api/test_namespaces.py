"""Namespaces of workspaces: who may bind them, what is refused, and what follows of a record.

That a cluster has them is for `tests/kubernetes/test_namespaces.py`.
"""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest

from database.models import Agent, NamespaceBinding
from tests.integration.api.served import Caller, Served


async def cluster(api: Served) -> str:
    """An agent that stands for a cluster."""
    name = f"gke-{uuid.uuid4().hex[:8]}"
    with api.database.write() as session:
        session.add(Agent(id=name, pool="default", slot_ids=[], slots_per_pod=8, nodes=[], is_connected=True))
    return name


async def workspace(user: Caller) -> dict[str, Any]:
    return (await user.post("/api/v1/workspaces", {"name": str(uuid.uuid4())}))["workspace"]


@pytest.fixture
async def name(api: Served) -> Any:
    """A cluster, which goes again: other tests have none."""
    name = await cluster(api)
    yield name
    with api.database.write() as session:
        session.query(Agent).filter_by(slots_per_pod=8).delete()


async def test_wrong_bindings_are_refused_before_a_cluster_is_asked(api: Served, name: str) -> None:
    admin, owner = api.user(is_admin=True), api.user()
    mine = await workspace(owner)
    path = f"/api/v1/workspaces/{mine['id']}/namespace-bindings"

    async def refused(meta: Any, status: int = 400, who: Caller = admin) -> str:
        return await who.refused(status, "POST", path, {"clusterNamespaceMeta": meta})

    assert "only administrators of the cluster" in await refused({name: {"autoCreateNamespace": True}}, 403, owner)
    await refused({name: {"autoCreateNamespace": True}}, 404, api.user())
    assert "expected either namespace, or" in await refused({name: {}})
    assert "expected either namespace, or" in await refused({name: {"namespace": "a", "autoCreateNamespace": True}})
    assert "expected 1 to 63 of a-z" in await refused({name: {"namespace": "Kube_System"}})
    assert "expected 1 to 63 of a-z" in await refused({name: {"namespace": "../a"}})
    unknown = await refused({"elsewhere": {"namespace": "a"}}, 404)
    assert "cluster 'elsewhere' not found (there is: " in unknown
    assert name in unknown  # beside those of other tests
    assert "namespace" in await refused({name: {"namespace": "a" * 64}})
    assert "resourceQuota" in await refused({name: {"autoCreateNamespace": True, "resourceQuota": -1}})
    assert "clusterNamespaceMeta" in await refused({str(number): {"namespace": "a"} for number in range(101)})
    quota = f"/api/v1/workspaces/{mine['id']}/set-resource-quota"
    told = await admin.refused(400, "POST", quota, {"clusterQuotaPairs": {name: 4}})
    assert "has no namespace of its own" in told
    told = await admin.refused(400, "DELETE", f"{path}?clusterNames={name}")
    assert "is bound to no namespace" in told
    other = await cluster(api)
    told = await refused({"": {"namespace": "a"}})
    assert "expected the name of one of " in told
    assert {name, other} <= set(re.findall(r"[a-z0-9-]+", told))
    assert (await owner.get(f"/api/v1/workspaces/{mine['id']}/list-namespace-bindings"))["namespaceBindings"] == {}
    wanted = {"name": str(uuid.uuid4()), "clusterNamespaceMeta": {"elsewhere": {"namespace": "a"}}}
    await admin.refused(404, "POST", "/api/v1/workspaces", wanted)
    found = await admin.get("/api/v1/workspaces", name=wanted["name"])
    assert found["workspaces"] == [], "what can't be bound is not made"


async def test_binding_is_shown_launched_into_and_taken_back(api: Served, name: str) -> None:
    admin, owner = api.user(is_admin=True), api.user()
    mine = await workspace(owner)
    default = "/api/v1/namespace-bindings/workspace-ids-with-default-bindings"
    assert mine["id"] in (await owner.get(default))["workspaceIds"]
    with api.database.write() as session:
        bound = NamespaceBinding(workspace_id=mine["id"], cluster=name, namespace="own-1", own="own-1", quota=8)
        session.add(bound)
        session.add(NamespaceBinding(workspace_id=mine["id"], cluster="agent-a", namespace="team", own=""))
    path = f"/api/v1/workspaces/{mine['id']}"
    assert (await owner.get(f"{path}/list-namespace-bindings"))["namespaceBindings"] == {
        "agent-a": {
            "workspaceId": mine["id"], "clusterName": "agent-a", "namespace": "team", "autoCreateNamespace": False,
        },
        name: {"workspaceId": mine["id"], "clusterName": name, "namespace": "own-1", "autoCreateNamespace": True},
    }  # fmt: skip
    assert (await owner.get(f"{path}/get-k8s-resource-quotas"))["resourceQuotas"] == {name: 8}
    assert (await owner.get(path))["workspace"]["autoCreatedNamespace"] == "own-1"
    assert mine["id"] not in (await owner.get(default))["workspaceIds"]
    project = await owner.post(f"{path}/projects", {"name": "p"})
    run = await api.another_trial(await api.experiment(owner))
    launch = f"/api/v1/undeterred/allocations/{run.allocation_id}/containers/0/launch"
    assert (await api.agent.post(launch))["namespace"] == "", "its workspace is another one"
    move = {"destinationProjectId": project["project"]["id"]}
    await owner.post(f"/api/v1/experiments/{run.experiment_id}/move", move)
    assert (await api.agent.post(launch))["namespace"] == "team"
    await admin.ask("DELETE", f"{path}/namespace-bindings?clusterNames={name}")
    assert list((await owner.get(f"{path}/list-namespace-bindings"))["namespaceBindings"]) == ["agent-a"]
    assert (await owner.get(path))["workspace"]["autoCreatedNamespace"] == "own-1", "it is there until it is deleted"


async def test_own_namespace_goes_with_its_workspace(api: Served, name: str) -> None:
    owner = api.user()
    mine = await workspace(owner)
    with api.database.write() as session:
        session.add(NamespaceBinding(workspace_id=mine["id"], cluster=name, namespace="", own=f"own-{mine['id']}"))
        session.add(NamespaceBinding(workspace_id=mine["id"], cluster="other", namespace="team", own=""))
    assert (await owner.ask("DELETE", f"/api/v1/workspaces/{mine['id']}")).json() == {"completed": True}
    [order] = api.posted(f"remove-namespace-{name}-own-{mine['id']}", "remove_namespace")
    assert order == {"agent_id": name, "workspace_id": mine["id"], "namespace": f"own-{mine['id']}"}
    assert api.posted("remove-namespace-other-team", "remove_namespace") == [], "that is not ours to remove"
