"""A pool whose agent stands for a cluster: trials, gangs, pauses, evictions, and how users can see why."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from activities.launchers.kubernetes.manifest import service_label
from tests.integration.test_gang import TRAIN as TRAIN_IN_GANG
from tests.kit.platform import Platform, platform
from tests.kit.scripts import TRAIN, config
from tests.kubernetes.images import TRIAL_IMAGE
from tests.kubernetes.kueue import kubectl
from tests.kubernetes.machine import BRIDGE, Machine

#: 4 of the cores of the only node would be too many: each slot is a fifth of one.
SLOT_CPU = 0.2
IN_IMAGE: dict[str, Any] = {"environment": {"image": TRIAL_IMAGE}}


@contextlib.asynccontextmanager
async def platform_of_cluster(temporal_address: str, database_url: str, folder: Path) -> AsyncIterator[Platform]:
    """A platform that pods reach; what runs in the cluster goes with it."""
    (folder / "checkpoints").mkdir()
    for each in (*folder.parents, folder, folder / "checkpoints"):
        if each.is_relative_to("/tmp") and each != Path("/tmp"):
            each.chmod(0o777)  # pods run as a user of their own
    async with platform(
        temporal_address=temporal_address,
        database_url=database_url,
        folder=folder,
        pool="gke",
        host=f"127.0.0.1,{BRIDGE}",
    ) as running:
        try:
            yield running
        finally:
            kubectl("delete", "jobs", "--all", "--wait=false")


@pytest.fixture
async def cluster(temporal_address: str, postgres_database: str, tmp_path: Path) -> AsyncIterator[Platform]:
    """A platform with one agent, which stands for the cluster."""
    async with platform_of_cluster(temporal_address, postgres_database, tmp_path) as running:
        try:
            await start_agent(running)
            yield running
        finally:
            kubectl("uncordon", "node-1")
            kubectl("label", "node", "node-1", f"{service_label('gke-one')}-")


async def start_agent(running: Platform, name: str = "one", **more: Any) -> str:
    """An agent of the cluster, whose slots are counted on its nodes."""
    wanted: dict[str, Any] = {
        "slots": None,
        "launcher": "kubernetes",
        "kubeconfig": os.environ["KUBECONFIG"],
        "slot_resource": "cpu",
        "slot_cpu": SLOT_CPU,
        "slot_memory_mib": 512,
        "slots_per_pod": 2,
        "container_api_url": f"http://{BRIDGE}:{running.port}",
    }
    return await running.start_agent(name, **(wanted | more))


async def pods(trial_id: int) -> list[dict[str, Any]]:
    """Of a trial, in whatever namespace."""
    chosen = f"determined.ai/trial_id={trial_id}"
    text = await asyncio.to_thread(kubectl, "get", "pods", "--all-namespaces", "-o", "json", "-l", chosen)
    return json.loads(text)["items"]


async def test_search_runs_on_the_slots_that_the_nodes_have(cluster: Platform) -> None:
    """As many as its processors have room for; each trial is a pod, and says on which node."""
    described = await cluster.get("/api/v1/resource-pools")
    [pool] = [pool for pool in described["resourcePools"] if pool["name"] == "gke"]
    assert 2 <= pool["slotsAvailable"] <= 10, pool
    experiment_id = await cluster.create(
        config({"name": "random", "max_trials": 3, "max_length": 5}, **IN_IMAGE), {"train.py": TRAIN}
    )
    assert (await cluster.finish(experiment_id, 120))["state"] == "STATE_COMPLETED"
    trials = await cluster.trials(experiment_id)
    assert [(trial["state"], trial["restarts"], trial["totalBatchesProcessed"]) for trial in trials] == [
        ("STATE_COMPLETED", 0, 5)
    ] * 3
    assert "step 5" in "\n".join(await cluster.logs(trials[0]["id"]))


async def test_gang_of_two_pods_finds_itself_by_their_addresses(cluster: Platform) -> None:
    experiment_id = await cluster.create(
        config({"max_length": 4}, resources={"slots_per_trial": 4}, **IN_IMAGE), {"train.py": TRAIN_IN_GANG}
    )
    assert (await cluster.finish(experiment_id, 120))["state"] == "STATE_COMPLETED"
    [trial] = await cluster.trials(experiment_id)
    lines = await cluster.logs(trial["id"])
    [told] = {line for line in lines if line.startswith("addresses")}
    addresses = json.loads(told.split("slots")[0].removeprefix("addresses"))
    assert len(set(addresses)) == 2
    assert all(each.startswith("10.244.") for each in addresses), told
    assert told.endswith("slots [2, 2]"), told
    assert sum(line == "step 4 total 1" for line in lines) == 2


def two_pods_that(**wanted: Any) -> dict[str, Any]:
    """A gang of two pods, with a part of their own."""
    return config(
        {"max_length": 4},
        resources={"slots_per_trial": 4},
        environment={"image": TRIAL_IMAGE, "pod_spec": {"spec": wanted}},
        max_restarts=0,
    )


async def until_why(cluster: Platform, experiment_id: int, wanted: str) -> None:
    """Until `det trial why` says so of its first trial."""
    found = ""

    async def says() -> bool:
        nonlocal found
        trials = await cluster.trials(experiment_id)
        if trials:
            found = json.dumps(await cluster.get(f"/api/v1/undeterred/trials/{trials[0]['id']}/why"))
        return wanted in found

    await cluster.until(says, 60, what=f"`why` says: {wanted}")


@pytest.mark.long
async def test_gang_takes_no_node_before_there_is_room_for_all_of_it(cluster: Platform) -> None:
    """Two of its pods have no room beside each other: none starts, and what is smaller goes by."""
    memory = json.loads(kubectl("get", "node", "node-1", "-o", "json"))["status"]["allocatable"]["memory"]
    most = f"{int(memory.removesuffix('Ki')) * 6 // 10}Ki"
    container = {"name": "determined-container", "resources": {"requests": {"memory": most}}}
    large = await cluster.create(two_pods_that(containers=[container]), {"train.py": TRAIN_IN_GANG})
    await until_why(cluster, large, "waits until all pods of its gang have room at once")
    small = await cluster.create(config({"max_length": 3}, **IN_IMAGE), {"train.py": TRAIN})
    assert (await cluster.finish(small, 60))["state"] == "STATE_COMPLETED"
    [trial] = await cluster.trials(large)
    assert [pod["spec"].get("nodeName") for pod in await pods(trial["id"])] == [None, None]
    await cluster.command(large, "kill")
    assert (await cluster.finish(large))["state"] == "STATE_CANCELED"


@pytest.mark.long
async def test_gang_that_gets_half_of_its_pods_gives_the_room_back(cluster: Platform) -> None:
    """The scheduler places one only, for a reason that is not counted: it gives its node back, and nothing fails."""
    [agent_id] = cluster.agents
    await cluster.stop_agent(agent_id)
    await start_agent(cluster, gang_timeout_s=5, pod_grace_s=30)
    apart = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"apart": "yes"}}}
    wanted = two_pods_that(affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}})
    wanted["environment"]["pod_spec"]["metadata"] = {"labels": {"apart": "yes"}}
    experiment_id = await cluster.create(wanted, {"train.py": TRAIN_IN_GANG})
    jobs = set[str]()

    async def another_job() -> bool:
        trials = await cluster.trials(experiment_id)
        for pod in await pods(trials[0]["id"]) if trials else []:
            jobs.add(pod["metadata"]["labels"]["batch.kubernetes.io/job-name"])
        return len(jobs) > 1

    await cluster.until(another_job, 200, what="it has given its node back, and waits anew")
    [trial] = await cluster.trials(experiment_id)
    assert trial["restarts"] == 0
    await cluster.command(experiment_id, "kill")
    assert (await cluster.finish(experiment_id, 60))["state"] == "STATE_CANCELED"


@pytest.mark.long
async def test_paused_trial_leaves_its_pod_with_a_checkpoint(cluster: Platform) -> None:
    experiment_id = await cluster.create(
        config({"max_length": 300}, hyperparameters={"sleep": 0.1}, **IN_IMAGE), {"train.py": TRAIN}
    )
    trial_id = await cluster.until_reported(experiment_id)
    await cluster.command(experiment_id, "pause")
    await cluster.until_state(experiment_id, "PAUSED")

    async def has_left() -> bool:
        return any(line.startswith("preempted at") for line in await cluster.logs(trial_id))

    await cluster.until(has_left, what="the trial has left with a checkpoint")
    await cluster.command(experiment_id, "kill")
    assert (await cluster.finish(experiment_id))["state"] == "STATE_CANCELED"


async def evict(pod: dict[str, Any]) -> None:
    """As a node that is drained does, or a queue that wants its room."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod["metadata"]["name"]}}
    path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/eviction"
    await asyncio.to_thread(kubectl, "create", "--raw", path, "-f", "-", given=json.dumps(body))


async def test_evicted_trial_saves_before_it_leaves_and_goes_on(cluster: Platform) -> None:
    """An eviction by the cluster costs no step, and is nobody's failure."""
    experiment_id = await cluster.create(
        config({"max_length": 60}, hyperparameters={"sleep": 0.1}, max_restarts=0, **IN_IMAGE), {"train.py": TRAIN}
    )
    trial_id = await cluster.until_reported(experiment_id)
    [pod] = await pods(trial_id)
    await evict(pod)
    assert (await cluster.finish(experiment_id, 120))["state"] == "STATE_COMPLETED"
    [trial] = await cluster.trials(experiment_id)
    assert (trial["restarts"], trial["totalBatchesProcessed"]) == (0, 60)
    lines = await cluster.logs(trial_id)
    assert any(line.startswith("preempted at") for line in lines), lines
    [left] = [line.rpartition(" ")[2] for line in lines if line.startswith("preempted at")]
    assert f"resumed at {left}" in lines
    steps = [int(line.removeprefix("step ")) for line in lines if line.startswith("step ")]
    assert steps == list(range(1, 61)), "no step is lost, and none is done twice"


@pytest.mark.long
async def test_killed_trial_is_not_asked_to_save(cluster: Platform) -> None:
    experiment_id = await cluster.create(
        config({"max_length": 300}, hyperparameters={"sleep": 0.1}, **IN_IMAGE), {"train.py": TRAIN}
    )
    trial_id = await cluster.until_reported(experiment_id)
    await cluster.command(experiment_id, "kill")
    assert (await cluster.finish(experiment_id, 30))["state"] == "STATE_CANCELED"
    assert not any(line.startswith("preempted at") for line in await cluster.logs(trial_id))


@pytest.mark.long
async def test_why_quotes_what_the_scheduler_says(cluster: Platform) -> None:
    """A pod that asks for what no node has waits, and `det trial why` says for what, until it is killed."""
    wanted = {"spec": {"nodeSelector": {"disk": "fast"}}}
    experiment_id = await cluster.create(
        config({"max_length": 5}, environment={"image": TRIAL_IMAGE, "pod_spec": wanted}), {"train.py": TRAIN}
    )
    await until_why(cluster, experiment_id, "Kubernetes has no node for it yet: 0/1 nodes are available")
    await until_why(cluster, experiment_id, "didn't match Pod's node affinity/selector")
    await cluster.command(experiment_id, "kill")
    assert (await cluster.finish(experiment_id))["state"] == "STATE_CANCELED"


@pytest.mark.long
async def test_pod_spec_that_is_not_the_users_to_give_ends_the_trial_with_its_name(cluster: Platform) -> None:
    wanted = {"spec": {"hostNetwork": True}}
    experiment_id = await cluster.create(
        config({"max_length": 5}, max_restarts=0, environment={"image": TRIAL_IMAGE, "pod_spec": wanted}),
        {"train.py": TRAIN},
    )
    assert (await cluster.finish(experiment_id, 60))["state"] == "STATE_ERROR"
    [trial] = await cluster.trials(experiment_id)
    assert any("environment.pod_spec.spec.hostNetwork" in line for line in await cluster.logs(trial["id"]))


@pytest.mark.long
async def test_nodes_are_shown_as_agents_and_a_cordon_is_seen(cluster: Platform) -> None:
    agents = (await cluster.get("/api/v1/agents"))["agents"]
    [node] = [agent for agent in agents if agent["id"] == "node-1"]
    assert (node["enabled"], node["resourcePools"]) == (True, ["gke"])
    assert len(node["slots"]) >= 2
    kubectl("cordon", "node-1")

    async def is_seen() -> bool:
        return (await cluster.get("/api/v1/agents/node-1"))["agent"]["enabled"] is False

    await cluster.until(is_seen, what="the cordon is seen")
    experiment_id = await cluster.create(config({"max_length": 2}, **IN_IMAGE), {"train.py": TRAIN})
    await asyncio.sleep(2)
    assert (await cluster.experiment(experiment_id))["state"] in ("STATE_QUEUED", "STATE_ACTIVE")
    kubectl("uncordon", "node-1")
    assert (await cluster.finish(experiment_id, 60))["state"] == "STATE_COMPLETED"


@pytest.mark.long
async def test_node_that_is_disabled_is_left_after_a_checkpoint_and_comes_back(cluster: Platform) -> None:
    """`det agent disable NODE`: nothing new goes there; without --drain, what is there saves and leaves."""
    experiment_id = await cluster.create(
        config({"max_length": 60}, hyperparameters={"sleep": 0.1}, max_restarts=0, **IN_IMAGE), {"train.py": TRAIN}
    )
    trial_id = await cluster.until_reported(experiment_id)
    drained = (await cluster.post("/api/v1/agents/node-1/disable", {"drain": True}))["agent"]
    assert (drained["enabled"], drained["draining"]) == (False, True)
    await asyncio.sleep(1)
    assert not any(line.startswith("preempted at") for line in await cluster.logs(trial_id))
    disabled = (await cluster.post("/api/v1/agents/node-1/disable", {}))["agent"]
    assert (disabled["enabled"], disabled["draining"]) == (False, False)

    async def has_left() -> bool:
        return any(line.startswith("preempted at") for line in await cluster.logs(trial_id))

    await cluster.until(has_left, what="the trial has left with a checkpoint")
    await asyncio.sleep(3)  # the offer of no slots has come, and nothing goes back there
    assert len(await pods(trial_id)) <= 1
    enabled = (await cluster.post("/api/v1/agents/node-1/enable"))["agent"]
    assert enabled["enabled"] is True
    assert (await cluster.finish(experiment_id, 90))["state"] == "STATE_COMPLETED"
    [trial] = await cluster.trials(experiment_id)
    assert (trial["restarts"], trial["totalBatchesProcessed"]) == (0, 60)
    steps = [line for line in await cluster.logs(trial_id) if line.startswith("step ")]
    assert steps == [f"step {number}" for number in range(1, 61)]


@pytest.mark.long
async def test_node_that_is_cordoned_is_not_enabled_and_one_that_is_gone_is_named(cluster: Platform) -> None:
    kubectl("cordon", "node-1")

    async def is_seen() -> bool:
        return (await cluster.get("/api/v1/agents/node-1"))["agent"]["draining"] is True

    await cluster.until(is_seen, what="the cordon is seen")
    response = await cluster.http.post("/api/v1/agents/node-1/enable")
    assert response.status_code == 400
    assert "`kubectl uncordon node-1`" in response.text


@pytest.mark.long
async def test_trial_never_goes_back_to_the_node_that_a_log_policy_excluded(cluster: Platform) -> None:
    policies = [{"name": "bad", "pattern": "^NCCL fault", "action": "exclude_node"}]
    train = "import sys\nprint('NCCL fault', flush=True)\nsys.exit(1)\n"
    experiment_id = await cluster.create(
        config({"max_length": 5}, max_restarts=1, log_policies=policies, **IN_IMAGE), {"train.py": train}
    )
    await until_why(cluster, experiment_id, "Kubernetes has no node for it yet")
    await until_why(cluster, experiment_id, "never runs on node-1 again")
    await cluster.command(experiment_id, "kill")
    assert (await cluster.finish(experiment_id))["state"] == "STATE_CANCELED"


async def test_trial_of_a_node_that_dies_goes_on_from_its_checkpoint(cluster: Platform, node: Machine) -> None:
    """Nobody ends its pod, nor says that it ended: the cluster gives it up, and no restart is counted."""
    saving = TRAIN.replace(
        "            if context.preempt", "            if steps % 10 == 0: save()\n            if context.preempt"
    )
    experiment_id = await cluster.create(
        config({"max_length": 40}, hyperparameters={"sleep": 0.1}, max_restarts=0, **IN_IMAGE), {"train.py": saving}
    )
    trial_id = await cluster.until_reported(experiment_id)

    async def says(text: str) -> bool:
        return any(text in line for line in await cluster.logs(trial_id))

    await cluster.until(lambda: says("step 20"), what="it has saved twice")
    with node.beside_another():
        await asyncio.to_thread(node.end_node)
        try:
            await until_why(cluster, experiment_id, "its container was lost: its node node-1 says nothing any more")
        finally:
            await asyncio.to_thread(node.start_node)
    assert (await cluster.finish(experiment_id, 120))["state"] == "STATE_COMPLETED"
    [trial] = await cluster.trials(experiment_id)
    assert (trial["restarts"], trial["totalBatchesProcessed"]) == (0, 40)
    lines = await cluster.logs(trial_id)
    [resumed] = [int(line.rpartition(" ")[2]) for line in lines if line.startswith("resumed at")]
    assert resumed >= 20
    assert resumed % 10 == 0


@pytest.mark.long
async def test_agent_that_comes_back_takes_its_pods_up_again(cluster: Platform) -> None:
    experiment_id = await cluster.create(
        config({"max_length": 80}, hyperparameters={"sleep": 0.1}, max_restarts=0, **IN_IMAGE), {"train.py": TRAIN}
    )
    trial_id = await cluster.until_reported(experiment_id)
    [agent_id] = cluster.agents
    await cluster.stop_agent(agent_id)
    await start_agent(cluster)
    assert (await cluster.finish(experiment_id, 90))["state"] == "STATE_COMPLETED"
    lines = [line for line in await cluster.logs(trial_id) if line.startswith(("step", "resumed"))]
    assert lines == [f"step {number}" for number in range(1, 81)]
    [trial] = await cluster.trials(experiment_id)
    assert (trial["restarts"], trial["totalBatchesProcessed"]) == (0, 80)


@pytest.mark.long
async def test_command_runs_as_a_pod_and_its_output_is_kept(cluster: Platform) -> None:
    """A task without slots: it takes room of a node, and none of its slots."""
    text = "import os; print('from', os.environ['DET_AGENT_ID'], os.environ['DET_RESOURCES_TYPE'])"
    body = {
        "config": {
            "entrypoint": ["python3", "-c", text],
            "resources": {"slots": 0, "resource_pool": cluster.pool},
            **IN_IMAGE,
        }
    }
    command_id = (await cluster.post("/api/v1/commands", body))["command"]["id"]

    async def has_ended() -> bool:
        return (await cluster.get(f"/api/v1/tasks/{command_id}"))["task"]["endTime"] is not None

    await cluster.until(has_ended, 60, what="the command has ended")
    response = await cluster.http.get(f"/api/v1/tasks/{command_id}/logs")
    assert "from node-1 k8s-job" in response.text


@pytest.mark.long
async def test_what_is_no_longer_wanted_leaves_no_object_in_the_cluster(cluster: Platform) -> None:
    """Job, Secret and Service of an allocation go when its end is recorded and its output is delivered."""
    experiment_id = await cluster.create(
        config({"max_length": 2}, resources={"slots_per_trial": 4}, **IN_IMAGE), {"train.py": TRAIN_IN_GANG}
    )
    assert (await cluster.finish(experiment_id, 120))["state"] == "STATE_COMPLETED"

    def left() -> str:
        return kubectl("get", "jobs,secrets,services,pods", "-l", "undeterred.ai/agent=gke-one", "-o", "name")

    async def is_empty() -> bool:
        return await asyncio.to_thread(left) == ""

    await cluster.until(is_empty, 90, what=f"all is gone: {left()}")
