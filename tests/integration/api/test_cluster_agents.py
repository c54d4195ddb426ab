"""An agent that stands for a Kubernetes cluster, as the API shows it: its nodes, their slots, and where pods run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import delete

from database.models import Agent
from tests.integration.api.served import Run, Served
from workflows import names
from workflows.messages import RecordAgent
from workflows.scheduling.model import AgentSlots

NODES: list[dict[str, Any]] = [
    {"name": "gpu-1", "slots": 4, "foreign": 1, "address": "10.0.0.1", "is_cordoned": False, "is_open": True},
    {"name": "gpu-2", "slots": 4, "foreign": 0, "address": "10.0.0.2", "is_cordoned": True, "is_open": False},
]


@pytest.fixture(autouse=True)
def none_stays(api: Served) -> Iterator[None]:
    """A cluster goes again with its test: others are about an API without any."""
    yield
    with api.database.write() as session:
        session.execute(delete(Agent).where(Agent.slots_per_pod.is_not(None)))


def a_cluster(api: Served, name: str) -> str:
    """A connected agent with two nodes, named after it."""
    slots = AgentSlots(agent_id=name, slot_ids=tuple(range(7)), slots_per_pod=4)
    api.an_agent(RecordAgent(agent_id=name, revision=1, pool=f"pool-of-{name}", slots=slots, is_connected=True))
    with api.database.write() as session:
        row = session.get_one(Agent, name)
        row.slots_per_pod = 4
        row.nodes = [node | {"name": f"{name}-{node['name']}"} for node in NODES]
        row.devices = [{"kind": "cuda", "uuid": "", "brand": "nvidia.com/gpu"}]
    return name


async def in_pods(api: Served, cluster: str) -> Run:
    """A running trial of two pods; the first is on the first node."""
    run = await api.trial(api.user())
    run = await api.next_run(run, slots=2, hosts=(cluster, cluster))
    for rank in range(2):
        await api.launch(run.allocation_id, rank)
    await report(api, run, "running", rank=0, node=f"{cluster}-gpu-1", address="10.244.0.7")
    return run


async def report(api: Served, run: Run, progress: str, **body: Any) -> None:
    await api.agent.post(f"/api/v1/undeterred/allocations/{run.allocation_id}/{progress}", body)


async def test_nodes_are_listed_with_their_slots_behind_the_agent_of_the_cluster(api: Served) -> None:
    user = api.user()
    name = a_cluster(api, "listed")
    agents = (await user.get("/api/v1/agents"))["agents"]
    mine = [agent for agent in agents if agent["id"].startswith(name)]
    assert [(agent["id"], len(agent["slots"]), agent["enabled"], agent["draining"]) for agent in mine] == [
        ("listed", 0, True, False),
        ("listed-gpu-1", 4, True, False),
        ("listed-gpu-2", 4, False, True),
    ]
    assert (mine[0]["label"], mine[1]["label"]) == ("nodes=2", "cluster=listed")
    assert mine[1]["slots"]["3"]["device"]["type"] == "TYPE_CUDA"
    assert mine[1]["slots"]["3"]["container"]["permissionDenied"] is True  # somebody else's pod
    assert mine[1]["slots"]["2"]["container"] is None
    of_old = await user.get("/agents")
    assert of_old["listed-gpu-1"]["addresses"] == "10.0.0.1"
    total = len(agents)
    page = await user.get("/api/v1/agents", offset=total - 1)
    assert (len(page["agents"]), page["pagination"]["total"]) == (1, total)


async def test_container_is_shown_on_the_node_that_it_runs_on(api: Served) -> None:
    admin = api.user(is_admin=True)
    name = a_cluster(api, "shown")
    run = await in_pods(api, name)
    shown = (await admin.get(f"/api/v1/agents/{name}-gpu-1"))["agent"]
    holders = [(shown["slots"][str(slot)]["container"] or {}).get("id") for slot in range(4)]
    assert holders == [run.allocation_id, run.allocation_id, None, "pods-of-others"]
    slots = (await admin.get(f"/api/v1/agents/{name}-gpu-2/slots"))["slots"]
    assert [slot["container"] for slot in slots] == [None] * 4
    assert (await admin.get(f"/api/v1/agents/{name}-gpu-1/slots/0"))["slot"]["container"]["id"] == run.allocation_id


async def test_agent_says_nothing_of_a_host_whose_name_it_gives_a_node(api: Served) -> None:
    admin = api.user(is_admin=True)
    slots = AgentSlots(agent_id="victim", slot_ids=(0, 1))
    api.an_agent(RecordAgent(agent_id="victim", revision=1, pool="pool-of-victim", slots=slots, is_connected=True))
    name = a_cluster(api, "liar")
    with api.database.write() as session:
        session.get_one(Agent, name).nodes = [NODES[0] | {"name": "victim", "slots": 2, "foreign": 2}]
    run = await in_pods(api, name)
    await report(api, run, "running", rank=1, node="victim", address="10.244.0.8")
    shown = (await admin.get("/api/v1/agents/victim"))["agent"]
    assert [slot["container"] for slot in shown["slots"].values()] == [None, None]
    assert (await admin.post("/api/v1/agents/victim/disable", {}))["agent"]["id"] == "victim"


async def test_rendezvous_waits_for_the_address_of_each_pod(api: Served) -> None:
    run = await in_pods(api, a_cluster(api, "gang"))
    ranks = [await api.launch(run.allocation_id, rank) for rank in range(2)]
    await report(api, run, "running", rank=0, node="n", address="10.244.0.7")
    ids = [names.container_id(run.allocation_id, rank) for rank in range(2)]
    paths = [f"/api/v1/allocations/{run.allocation_id}/resources/{each}/rendezvous?timeoutSeconds=1" for each in ids]
    for own, caller in zip(paths, ranks, strict=True):
        assert "rank 1 on gang, whose pod's address is not known yet" in await caller.refused(503, "GET", own)
    await report(api, run, "running", rank=1, node="n", address="10.244.0.8")
    found = (await ranks[0].get(paths[0]))["rendezvousInfo"]
    assert found["addresses"] == ["10.244.0.7", "10.244.0.8"]


async def test_why_says_what_a_pod_waits_for_and_where_it_runs(api: Served) -> None:
    user = api.user(is_admin=True)
    run = await api.trial(user)
    run = await api.next_run(run, slots=2, hosts=(a_cluster(api, "waits"),))
    await api.launch(run.allocation_id)
    await report(api, run, "starting", rank=0, waitsFor="0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
    told = str(await user.get(f"/api/v1/undeterred/trials/{run.trial_id}/why"))
    assert "3 Insufficient nvidia.com/gpu" in told
    await report(api, run, "running", rank=0, node="waits-gpu-1", address="10.244.0.9")
    told = str(await user.get(f"/api/v1/undeterred/trials/{run.trial_id}/why"))
    assert "waits (waits-gpu-1)" in told
    assert "Insufficient" not in told


async def test_node_is_disabled_by_admins_as_a_whole_and_only_if_its_agent_answers(api: Served) -> None:
    admin = api.user(is_admin=True)
    name = a_cluster(api, "cordon")
    node = f"/api/v1/agents/{name}-gpu-1"
    for verb in ("disable", "enable"):
        await api.user().refused(403, "POST", f"{node}/{verb}", {})
        await admin.refused(503, "POST", f"{node}/{verb}", {})
        assert "as a whole only" in await admin.refused(400, "POST", f"{node}/slots/0/{verb}", {})
    assert (await admin.get(node))["agent"]["enabled"] is True
    said = await admin.refused(400, "POST", f"{node}/disable", {"drain": True, "graceSeconds": 9})
    assert said.startswith("graceSeconds: 9: expected none")
    said = await admin.refused(400, "POST", f"/api/v1/agents/{name}-gpu-2/enable", {})
    assert f"`kubectl uncordon {name}-gpu-2`" in said
    assert (await admin.post(f"/api/v1/agents/{name}/disable", {}))["agent"]["enabled"] is False
    assert (await admin.get(f"/api/v1/agents/{name}-gpu-1"))["agent"]["enabled"] is False


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("slots", -1),
        ("slots", 100_001),
        ("slotsPerPod", 0),
        ("nodes", [{"name": "a/../b", "slots": 1}]),
        ("nodes", [{"name": "a", "slots": -1}]),
        ("nodes", [{"name": "a", "slots": 1, "foreign": -1}]),
        ("nodes", [{"name": "a", "slots": 1, "address": "x\n"}]),
        ("topology", {"nvlink": [[-1, 0]]}),
        ("topology", {"nvlink": [list(range(4097))]}),
    ],
)
async def test_report_of_a_cluster_is_bounded(api: Served, field: str, value: Any) -> None:
    body = {"pool": "default", "devices": [{"kind": "cuda"}], "slots": 4, "slotsPerPod": 2, "nodes": []}
    said = await api.agent.refused(400, "POST", "/api/v1/undeterred/agents/bad/hello", body | {field: value})
    assert field in said
