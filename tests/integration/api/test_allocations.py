"""What containers and agents say and ask about allocations."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import orjson
import pytest
from sqlalchemy import update

from database.models import Allocation
from tests.integration.api.served import Caller, Run, Served, until
from workflows.messages import AllocationRef, RecordAgent
from workflows.scheduling.model import AgentSlots, Placement


def signals(run: Run) -> str:
    return f"/api/v1/allocations/{run.allocation_id}/signals"


def allocation(api: Served, run: Run) -> Allocation:
    with api.database.read() as session:
        return session.get_one(Allocation, run.allocation_id)


# -- preemption --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", ["timeout_seconds", "timeoutSeconds"])
async def test_poll_answers_no_at_once_and_tells_that_the_harness_is_there_when_it_does_not_wait(
    api: Served, spelling: str
) -> None:
    run = await api.trial(api.user())
    assert allocation(api, run).ready_at is None
    started = time.monotonic()
    assert await run.container.get(f"{signals(run)}/preemption", **{spelling: 0}) == {"preempt": False}
    assert time.monotonic() - started < 20
    first = allocation(api, run).ready_at
    assert first is not None
    await run.container.get(f"{signals(run)}/preemption", **{spelling: 0})
    assert allocation(api, run).ready_at == first


async def test_poll_answers_no_when_its_time_is_over(api: Served) -> None:
    run = await api.trial(api.user())
    started = time.monotonic()
    assert await run.container.get(f"{signals(run)}/preemption", timeout_seconds=1) == {"preempt": False}
    assert 0.9 < time.monotonic() - started < 20


@pytest.mark.parametrize("cause", ["preempted", "ended"])
async def test_every_open_poll_answers_yes_soon_when_the_trial_shall_leave_or_has_ended(
    api: Served, cause: str
) -> None:
    run = await api.trial(api.user())
    other = await api.trial(api.user())
    polls = [asyncio.create_task(run.container.get(f"{signals(run)}/preemption", timeout_seconds=60)) for _ in range(3)]
    bystander = asyncio.create_task(other.container.get(f"{signals(other)}/preemption", timeout_seconds=2))
    await until(lambda: len(api.parts.preemption._watchers.get(run.allocation_id, ())) == 3)
    started = time.monotonic()
    if cause == "preempted":
        await asyncio.to_thread(api.records.request_preemption, AllocationRef(allocation_id=run.allocation_id))
    else:
        await api.end(run)
    assert await asyncio.gather(*polls) == [{"preempt": True}] * 3
    assert time.monotonic() - started < 20
    assert await bystander == {"preempt": False}
    if cause == "preempted":
        for wait in (0, 60):
            assert await run.container.get(f"{signals(run)}/preemption", timeout_seconds=wait) == {"preempt": True}
    assert api.parts.preemption._watchers.keys().isdisjoint({run.allocation_id, other.allocation_id}), "nothing is left"


async def test_acknowledgement_keeps_its_time_when_repeated(api: Served) -> None:
    run = await api.trial(api.user())
    times = []
    for _ in range(2):
        assert await run.container.post(f"{signals(run)}/ack_preemption", {"allocationId": run.allocation_id}) == {}
        times.append(allocation(api, run).preempt_acked_at)
    assert times[0] is not None
    assert times[0] == times[1]


async def test_container_that_asks_to_leave_tries_again_when_temporal_is_away(api: Served) -> None:
    run = await api.trial(api.user())
    response = await run.container.ask("POST", f"{signals(run)}/pending_preemption")
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")


# -- the start of a container ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("slots", "shown"), [(0, 1), (1, 1), (2, 2)])
async def test_rendezvous_is_the_container_itself_when_it_is_alone(api: Served, slots: int, shown: int) -> None:
    first = await api.trial(api.user())
    run = await api.another_trial(first.experiment_id, slots=slots)
    path = f"/api/v1/allocations/{run.allocation_id}/resources/{run.allocation_id}-0/rendezvous"
    info = (await run.container.get(path))["rendezvousInfo"]
    assert info == {"addresses": ["127.0.0.1"], "rank": 0, "slots": [shown]}
    order = await api.agent.post(f"/api/v1/undeterred/allocations/{run.allocation_id}/containers/0/launch")
    assert orjson.loads(order["env"]["UNDETERRED_RENDEZVOUS"]) == info, "so that it need not ask"


async def test_slots_without_ids_are_counted(api: Served) -> None:
    """As in a cluster that chooses hosts by itself."""
    run = await api.next_run(await api.trial(api.user()))
    places = [Placement(agent_id="cluster", rank=rank, slots=4).model_dump(mode="json") for rank in (0, 1)]
    with api.database.write() as session:
        session.execute(update(Allocation).where(Allocation.id == run.allocation_id).values(placements=places))
    order = await api.agent.post(f"/api/v1/undeterred/allocations/{run.allocation_id}/containers/1/launch")
    assert order["slotIds"] == [0, 1, 2, 3]


async def a_gang(api: Served) -> tuple[Run, Caller]:
    """A run on two hosts, and its second container."""
    first = await api.trial(api.user())
    for name, address in (("agent-x", "10.0.0.8"), ("agent-y", "10.0.0.9")):
        slots = AgentSlots(agent_id=name, slot_ids=(0, 1))
        record = RecordAgent(
            agent_id=name, revision=1, pool="elsewhere", slots=slots, address=address, is_connected=True
        )  # fmt: skip
        await asyncio.to_thread(api.an_agent, record)
    run = await api.next_run(first, slots=2, hosts=("agent-x", "agent-y"))
    return run, await api.launch(run.allocation_id, 1)


def meeting(run: Run, rank: int) -> str:
    """Where a container asks for the others."""
    return f"/api/v1/allocations/{run.allocation_id}/resources/{run.allocation_id}-{rank}/rendezvous"


async def test_rendezvous_is_answered_to_all_when_the_last_one_has_come(api: Served) -> None:
    run, second = await a_gang(api)
    first_asks = asyncio.create_task(run.container.get(meeting(run, 0)))
    await asyncio.sleep(0.5)
    assert not first_asks.done()
    late = (await second.get(meeting(run, 1)))["rendezvousInfo"]
    early = (await first_asks)["rendezvousInfo"]
    assert early == {"addresses": ["10.0.0.8", "10.0.0.9"], "rank": 0, "slots": [2, 2]}
    assert late == early | {"rank": 1}
    assert (await run.container.get(meeting(run, 0)))["rendezvousInfo"] == early, "an answer may have been lost"


async def test_rendezvous_names_who_is_missing_and_so_does_why(api: Served) -> None:
    run, _ = await a_gang(api)
    said = await run.container.refused(503, "GET", f"{meeting(run, 0)}?timeoutSeconds=0.1")
    assert "rank 1 on agent-y did not come yet" in said
    told = await api.user().get(f"/api/v1/undeterred/trials/{run.trial_id}/why")
    assert "; its other containers wait for rank 1 on agent-y" in told["sentences"][0]


async def test_rendezvous_is_refused_under_the_id_of_another_container(api: Served) -> None:
    run, second = await a_gang(api)
    assert "expected that of the container" in await second.refused(400, "GET", meeting(run, 0))


async def test_containers_of_one_allocation_have_tokens_of_their_own_and_one_secret(api: Served) -> None:
    run, second = await a_gang(api)
    path = f"/api/v1/undeterred/allocations/{run.allocation_id}/containers"
    first_order, second_order = [await api.agent.post(f"{path}/{rank}/launch") for rank in (0, 1)]
    assert first_order["env"]["DET_SESSION_TOKEN"] != second_order["env"]["DET_SESSION_TOKEN"]
    assert first_order["env"]["DET_DISTRIBUTED_TOKEN"] == second_order["env"]["DET_DISTRIBUTED_TOKEN"] != ""
    assert first_order["isOfGang"]
    assert first_order["ports"] == second_order["ports"], "all of a gang meet at those of its chief"
    await second.refused(401, "GET", meeting(run, 1))  # it was launched again, with another token


async def test_newer_harness_can_start_when_it_announces_itself(api: Served) -> None:
    """A container of 0.38 dies at its start if one of these is refused."""
    run = await api.trial(api.user())
    for body in ({"runId": run.trial_id, "checkpointStorage": {"type": "shared_fs"}}, {"run_id": str(run.trial_id)}):
        assert await run.container.post("/api/v1/runs/start", body) == {"storageId": 1}
    accelerators = {
        "allocationId": run.allocation_id,
        "acceleratorData": {"acceleratorType": "x", "acceleratorUuids": []},
    }
    assert await run.container.post(f"/api/v1/allocations/{run.allocation_id}/acceleratorData", accelerators) == {}
    assert (
        await run.container.post(f"/api/v1/allocations/{run.allocation_id}/proxy_address", {"proxyAddress": "x"}) == {}
    )


@pytest.mark.parametrize("body", [{}, {"runId": None}, {"runId": "first"}, {"runId": [1]}, {"runId": 1.5}])
async def test_start_is_refused_when_the_run_is_no_number(api: Served, body: dict[str, Any]) -> None:
    run = await api.trial(api.user())
    await run.container.refused(400, "POST", "/api/v1/runs/start", body)


async def test_task_is_shown_with_its_allocations_when_asked_for(api: Served) -> None:
    user = api.user()
    run = await api.next_run(await api.trial(user))
    await run.container.post(f"/api/v1/allocations/{run.allocation_id}/ready")
    task = (await user.get(f"/api/v1/tasks/{run.task_id}"))["task"]
    assert (task["taskId"], task["taskType"], task["endTime"]) == (run.task_id, "TASK_TYPE_TRIAL", None)
    newest, oldest = task["allocations"]
    assert (newest["allocationId"], newest["isReady"], newest["state"]) == (run.allocation_id, True, "STATE_STARTING")
    assert (oldest["isReady"], oldest["state"], oldest["endTime"] is not None) == (False, "STATE_TERMINATED", True)
    assert "not found" in await user.refused(404, "GET", "/api/v1/tasks/nothing")


# -- agents ------------------------------------------------------------------------------------------------------------


async def test_launch_order_is_complete_when_an_agent_asks(api: Served) -> None:
    user = api.user()
    first = await api.trial(user, environment={"environment_variables": ["A=1", "B=x=y"]})
    run = await api.another_trial(first.experiment_id, slots=2)
    order = await api.agent.post(f"/api/v1/undeterred/allocations/{run.allocation_id}/containers/0/launch")
    env = order["env"]
    assert (env["A"], env["B"]) == ("1", "x=y")
    expected = {
        "DET_TASK_ID": run.task_id, "DET_ALLOCATION_ID": run.allocation_id, "DET_TRIAL_ID": str(run.trial_id),
        "DET_EXPERIMENT_ID": str(run.experiment_id), "DET_TRIAL_RUN_ID": "1", "DET_TRIAL_SEED": "1", "DET_TASK_TYPE": "TRIAL",
        "DET_STEPS_COMPLETED": "0", "DET_USER": user.username, "DET_UNIQUE_PORT_OFFSET": "0",
    }  # fmt: skip
    assert {key: env[key] for key in expected} == expected
    assert "DET_LATEST_CHECKPOINT" not in env
    assert orjson.loads(env["DET_HPARAMS"]) == {"lr": 0.1}
    assert orjson.loads(env["DET_EXPERIMENT_CONFIG"])["searcher"]["name"] == "single"
    assert (order["slotIds"], order["image"], order["user"]) == ([0, 1], api.parts.settings.trial_image, "")
    assert order["labels"]["ai.undeterred.allocation"] == run.allocation_id
    assert all(isinstance(value, str) for value in env.values())


async def test_launch_order_has_the_image_and_variables_of_the_hosts_devices(api: Served) -> None:
    first = await api.trial(
        api.user(),
        environment={
            "image": {"cpu": "plain:1", "cuda": "cuda:1"},
            "environment_variables": {"cpu": ["ON=cores"], "cuda": ["ON=gpus"]},
        },
    )
    for host, kind, image, on in (("with-gpus", "cuda", "cuda:1", "gpus"), ("without", "cpu", "plain:1", "cores")):
        report = {"pool": "default", "devices": [{"kind": kind, "uuid": f"{host}-0", "brand": "x"}]}
        await api.agent.refused(
            503, "POST", f"/api/v1/undeterred/agents/{host}/hello", report
        )  # noted, and to be repeated
        run = await api.next_run(first, hosts=(host,))
        order = await api.agent.post(f"/api/v1/undeterred/allocations/{run.allocation_id}/containers/0/launch")
        assert (order["image"], order["env"]["ON"]) == (image, on)
        shown = (await api.user().get(f"/api/v1/agents/{host}"))["agent"]
        assert shown["slots"] == {}, "its workflow has not recorded it yet"
        first = run


async def test_launch_order_says_how_to_get_the_image_and_what_of_the_host_it_wants(api: Served) -> None:
    login = {"username": "ada", "password": "lovelace", "serveraddress": None}
    run = await api.trial(
        api.user(),
        environment={
            "image": "registry.example.org/a:1",
            "force_pull_image": True,
            "registry_auth": login,
            "add_capabilities": ["SYS_PTRACE"],
            "drop_capabilities": ["KILL"],
        },
        resources={"devices": ["/dev/null:/dev/zero:rw"]},
        bind_mounts=[{"host_path": "/data", "container_path": "d", "propagation": "rslave"}],
        checkpoint_storage={"type": "shared_fs", "host_path": "/elsewhere"},
    )
    order = await api.agent.post(f"/api/v1/undeterred/allocations/{run.allocation_id}/containers/0/launch")
    assert (order["image"], order["forcePull"]) == ("registry.example.org/a:1", True)
    assert order["registryAuth"] == {"username": "ada", "password": "lovelace"}
    assert "lovelace" not in str(order["env"]), "it is for the pull only"
    assert (order["addCapabilities"], order["dropCapabilities"]) == (["SYS_PTRACE"], ["KILL"])
    assert order["devices"] == [{"source": "/dev/null", "target": "/dev/zero", "mode": "rw"}]
    told = [(mount["source"], mount["isStorage"], mount["isTrusted"]) for mount in order["mounts"]]
    assert told == [("/elsewhere", True, False), ("/data", False, False)]
    assert [mount["propagation"] for mount in order["mounts"]] == ["rprivate", "rslave"]


async def test_only_storage_that_the_operator_named_is_trusted(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user may name any folder as storage, also of a workspace of his own: that is no way around a host's limits."""
    user = api.user()
    workspace = (await user.post("/api/v1/workspaces", {"name": f"stored {user.username}"}))["workspace"]["id"]
    project = (await user.post(f"/api/v1/workspaces/{workspace}/projects", {"name": "p"}))["project"]["id"]
    run = await api.trial(user, checkpoint_storage={"type": "shared_fs", "host_path": "/srv/team"})
    await user.post(f"/api/v1/experiments/{run.experiment_id}/move", {"destinationProjectId": project})
    launch = f"/api/v1/undeterred/allocations/{run.allocation_id}/containers/0/launch"
    assert not (await api.agent.post(launch))["mounts"][0]["isTrusted"]
    stored = {"checkpointStorageConfig": {"type": "shared_fs", "host_path": "/srv/team"}}
    await user.patch(f"/api/v1/workspaces/{workspace}", stored)
    assert not (await api.agent.post(launch))["mounts"][0]["isTrusted"]
    own = await api.trial(user, checkpoint_storage={"type": "shared_fs", "host_path": "/srv/cluster"})
    launch = f"/api/v1/undeterred/allocations/{own.allocation_id}/containers/0/launch"
    assert not (await api.agent.post(launch))["mounts"][0]["isTrusted"]
    monkeypatch.setattr(api.parts.settings, "storage_roots", "/srv")
    assert not (await api.agent.post(launch))["mounts"][0]["isTrusted"], "containers may have made links below it"
    monkeypatch.setattr(api.parts.settings, "storage_roots", "/srv/team:/srv/cluster")
    assert (await api.agent.post(launch))["mounts"][0]["isTrusted"]


def _somebody(uid: int, gid: int) -> dict[str, Any]:
    return {"agentUid": uid, "agentUser": "somebody", "agentGid": gid, "agentGroup": "some"}


async def test_container_runs_as_the_workspace_says_or_its_owner_is(api: Served) -> None:
    admin, user = api.user(is_admin=True), api.user()
    workspace = (await user.post("/api/v1/workspaces", {"name": f"as {user.username}"}))["workspace"]["id"]
    project = (await user.post(f"/api/v1/workspaces/{workspace}/projects", {"name": "p"}))["project"]["id"]
    run = await api.trial(user)
    await user.post(f"/api/v1/experiments/{run.experiment_id}/move", {"destinationProjectId": project})
    launch = f"/api/v1/undeterred/allocations/{run.allocation_id}/containers/0/launch"
    assert (await api.agent.post(launch))["user"] == ""
    await admin.patch(f"/api/v1/users/{user.user_id}", {"agentUserGroup": _somebody(1000, 100)})
    assert (await api.agent.post(launch))["user"] == "1000:100"
    path = f"/api/v1/workspaces/{workspace}"
    await admin.patch(path, {"agentUserGroup": _somebody(0, 0)})
    assert (await api.agent.post(launch))["user"] == "0:0", "the workspace's ranks above, root too"
    assert "agentUid" in await admin.refused(400, "PATCH", path, {"agentUserGroup": {"agentUid": -1}})


async def test_launch_is_refused_when_the_allocation_is_unknown_or_over(api: Served) -> None:
    run = await api.trial(api.user())
    await api.end(run)
    path = "/api/v1/undeterred/allocations/{}/containers/0/launch"
    assert "has ended" in await api.agent.refused(400, "POST", path.format(run.allocation_id))
    assert "not found" in await api.agent.refused(404, "POST", path.format("nothing"))


async def test_state_only_moves_forward_when_agents_say_how_far_it_is(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)

    async def told(progress: str) -> str:
        path = f"/api/v1/undeterred/allocations/{run.allocation_id}/{progress}"
        assert await api.agent.post(path) == {}
        return allocation(api, run).state

    assert await told("pulling") == "PULLING"
    [trial] = (await user.get(f"/api/v1/experiments/{run.experiment_id}/trials"))["trials"]
    assert trial["state"] == "STATE_PULLING"
    assert await told("starting") == "STARTING"
    assert await told("running") == "RUNNING"
    assert await told("pulling") == "RUNNING"
    await api.end(run)
    assert await told("running") == "TERMINATED"
    await api.agent.refused(400, "POST", f"/api/v1/undeterred/allocations/{run.allocation_id}/terminated")


async def test_ended_allocations_are_told_when_an_agent_reconciles(api: Served) -> None:
    live, over = await api.trial(api.user()), await api.trial(api.user())
    await api.end(over)
    asked = [live.allocation_id, over.allocation_id, "never heard of", over.allocation_id]
    answer = await api.agent.post("/api/v1/undeterred/agents/a/reconcile", {"allocations": asked})
    assert answer == {"ended": sorted([over.allocation_id, "never heard of"])}
    moved = {"allocations": [live.allocation_id], "pool": "another"}
    assert (await api.agent.post("/api/v1/undeterred/agents/a/reconcile", moved))["ended"] == [live.allocation_id]
    assert await api.agent.post("/api/v1/undeterred/agents/a/reconcile", {"allocations": []}) == {"ended": []}
    for wrong in (
        {},
        {"allocations": None},
        {"allocations": "x"},
        {"allocations": [[1]]},
        {"allocations": [], "pool": 1},
    ):
        await api.agent.refused(400, "POST", "/api/v1/undeterred/agents/a/reconcile", wrong)
