"""Why a trial or an experiment is where it is, from the records, and from the pool where Temporal answers."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from api.errors import Unavailable
from database.models import Agent, Allocation, Experiment, Trial
from database.types import utc_now
from tests.integration.api.served import Run, Served
from workflows import names
from workflows.lifecycle.allocation import AllocationEnd, EndCause, ExitKind
from workflows.lifecycle.trial import TrialState
from workflows.messages import AllocationRef, CloseAllocation, PoolRun, RecordAgent, RecordTrial
from workflows.scheduling.model import AgentSlots, PoolSnapshot, Request


async def why(api: Served, run: Run) -> tuple[list[str], dict[str, Any]]:
    told = await api.user().get(f"/api/v1/undeterred/trials/{run.trial_id}/why")
    return told["sentences"], told["facts"]


async def fail(api: Served, run: Run, **more: Any) -> None:
    """The run has failed, as the trial's workflow records it."""
    await asyncio.to_thread(api.records.close_allocation, CloseAllocation(allocation_id=run.allocation_id))
    end = AllocationEnd(kind=ExitKind.FAILED, cause=EndCause.USER_CODE, message="exited with code 3", code=3)
    usual: dict[str, Any] = {"trial_id": run.trial_id, "revision": 3, "state": TrialState.ACTIVE, "restarts": 1,
                             "message": end.message, "allocation_id": run.allocation_id, "end": end}  # fmt: skip
    await asyncio.to_thread(api.records.record_trial, RecordTrial(**usual | more))


def pool(api: Served, monkeypatch: pytest.MonkeyPatch, snapshot: PoolSnapshot) -> None:
    """Have the pool's workflow answer with this."""

    async def answer(name: str) -> PoolRun:
        return PoolRun(name=name, snapshot=snapshot)

    monkeypatch.setattr(api.commands, "pool", answer)


async def test_running_trial_tells_where_it_runs_and_what_a_failure_would_cost(api: Served) -> None:
    run = await api.trial(api.user(), max_restarts=2)
    sentences, facts = await why(api, run)
    assert sentences[0].startswith(f"trial {run.trial_id} got 1 slot of agent-a at ")
    await api.agent.post(f"/api/v1/undeterred/allocations/{run.allocation_id}/running")
    assert "did not come to `determined.core` yet" in (await why(api, run))[0][0]
    await run.container.post(f"/api/v1/allocations/{run.allocation_id}/ready")
    sentences, facts = await why(api, run)
    assert sentences[0].startswith(f"trial {run.trial_id} runs on agent-a since ")
    assert sentences[1:] == ["if it fails, it starts again after 1 s: restart 1 of 2", "0 of 2 restarts spent"]
    assert (facts["trialId"], facts["state"], facts["maxRestarts"]) == (run.trial_id, "ACTIVE", 2)
    assert [(r["runId"], r["agents"], r["endedAt"]) for r in facts["runs"]] == [(1, ["agent-a"], None)]


async def test_running_trial_tells_when_it_was_last_heard_of(api: Served) -> None:
    run = await api.trial(api.user())
    await api.agent.post(f"/api/v1/undeterred/allocations/{run.allocation_id}/running")
    await run.container.post(f"/api/v1/allocations/{run.allocation_id}/ready")
    await run.report("training", 1, {"loss": 1.0}, reportTime="2024-05-01T10:00:00Z")
    line = {"log": "step 1", "timestamp": "2024-05-01T10:00:01Z"}
    await run.container.post("/api/v1/task/logs", {"logs": [line | {"allocationId": run.allocation_id}]})
    sentences, facts = await why(api, run)
    assert (facts["lastReportAt"], facts["lastLineAt"]) == ("2024-05-01T10:00:00Z", "2024-05-01T10:00:01Z")
    said = "its latest report came at 2024-05-01 10:00:00 and its latest line of output came at 2024-05-01 10:00:01"
    assert sentences[1] == said


async def test_agent_out_of_reach_is_named(api: Served) -> None:
    run = await api.trial(api.user())
    await api.agent.post(f"/api/v1/undeterred/allocations/{run.allocation_id}/running")
    await run.container.post(f"/api/v1/allocations/{run.allocation_id}/ready")
    with api.database.write() as session:
        session.merge(Agent(id="agent-a", pool="default", slot_ids=[0], is_connected=False))
    try:
        assert "agent-a is out of reach: what runs there goes on" in (await why(api, run))[0][0]
    finally:
        with api.database.write() as session:
            session.delete(session.get_one(Agent, "agent-a"))


async def test_running_trial_tells_what_joins_its_gpus_and_slots_their_groups(api: Served) -> None:
    user = api.user()
    gpus = [{"kind": "cuda", "uuid": f"GPU-{number}", "brand": "H100"} for number in range(2)]
    report = {"pool": "default", "devices": gpus, "topology": {"nvlink": [[0, 1]], "numa": [[0, 1]]}}
    await api.agent.refused(503, "POST", "/api/v1/undeterred/agents/joined/hello", report)  # noted, and to be repeated
    slots = AgentSlots(agent_id="joined", slot_ids=(0, 1))
    api.an_agent(RecordAgent(agent_id="joined", pool="default", slots=slots, is_connected=True, revision=1))
    run = await api.trial(user, resources={"slots_per_trial": 2, "prefer_gpu_topology": "strong"})
    [start] = api.posted(f"experiment-{run.experiment_id}", "start_experiment")
    assert start["template"]["closeness"] == "strong"
    run = await api.next_run(run, slots=2, hosts=("joined",))
    sentences, _ = await why(api, run)
    assert "2 slots of joined (2 GPUs joined by NVLink)" in sentences[0]
    shown = (await user.get("/api/v1/agents/joined/slots"))["slots"]
    assert [slot["groups"] for slot in shown] == ["NVLink 0, NUMA 0"] * 2


async def test_leaving_trial_tells_when_it_is_killed(api: Served) -> None:
    run = await api.trial(api.user(), preemption_timeout=90)
    await run.container.post(f"/api/v1/allocations/{run.allocation_id}/ready")
    await asyncio.to_thread(api.records.request_preemption, AllocationRef(allocation_id=run.allocation_id))
    sentences, facts = await why(api, run)
    assert "; it did not answer yet, and is killed at " in sentences[0]
    with api.database.read() as session:
        asked = session.get_one(Allocation, run.allocation_id).preempt_requested_at
    assert asked is not None
    assert facts["runs"][0]["killedAt"] == (asked + timedelta(seconds=90)).isoformat().replace("+00:00", "Z")
    await run.container.post(f"/api/v1/allocations/{run.allocation_id}/signals/ack_preemption")
    assert "; it answered at " in (await why(api, run))[0][0]


async def test_trial_in_a_back_off_tells_until_when_and_how_its_runs_ended(api: Served) -> None:
    run = await api.trial(api.user(), max_restarts=2)
    await fail(api, run, next_run_at=utc_now() + timedelta(seconds=1000))
    sentences, facts = await why(api, run)
    assert sentences[0].startswith(f"trial {run.trial_id} waits until ")
    assert sentences[0].endswith(" before it runs again: exited with code 3")
    assert any(s.startswith("run 1 on agent-a, ") and s.endswith("exited with code 3 (user_code)") for s in sentences)
    assert sentences[-1] == "1 of 2 restarts spent"
    assert facts["queue"] is None, "nobody was asked"
    assert facts["runs"][0]["cause"] == "user_code"


async def test_queued_trial_tells_its_place_when_the_pool_answers(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await api.trial(api.user())
    await fail(api, run)
    holder = names.trial_workflow(run.trial_id)
    agents = {"agent-a": AgentSlots(agent_id="agent-a", slot_ids=(0, 1))}
    other = Request(allocation_id="other", holder="trial-0", slots=2)
    mine = Request(allocation_id=f"{run.task_id}.2", holder=holder, slots=4)
    pool(api, monkeypatch, PoolSnapshot(agents=agents, queue={each.allocation_id: each for each in (other, mine)}))
    sentences, facts = await why(api, run)
    assert sentences[0] == (
        f"trial {run.trial_id} waits for 4 slots of pool `default`: place 2 of 2 in the queue, 2 of 2 slots free; it "
        "never fits: the pool's agents are too small or too few"
    )
    assert (facts["queue"]["place"], facts["queue"]["fitsEver"]) == (2, False)
    told = await api.user().get(f"/api/v1/undeterred/experiments/{run.experiment_id}/why")
    assert told["sentences"][1:] == ["1 trial: 1 waiting for slots", sentences[0]]
    assert told["facts"]["open"][0]["queue"] == facts["queue"]


async def test_rest_is_told_when_temporal_is_away(api: Served) -> None:
    run = await api.trial(api.user())
    await fail(api, run)
    sentences, facts = await why(api, run)
    assert sentences[0].endswith("whether it waits for some is not known: Temporal does not answer")
    assert any("exited with code 3 (user_code)" in sentence for sentence in sentences)
    assert facts["queueError"] == "Temporal does not answer"
    told = await api.user().get(f"/api/v1/undeterred/experiments/{run.experiment_id}/why")
    assert "Temporal does not answer" in told["sentences"][2]
    with pytest.raises(Unavailable):
        await api.commands.pool("default")


async def test_log_policies_are_told(api: Served) -> None:
    policies = [{"name": "x", "pattern": "corrupt", "action": "cancel_retries"},
                {"name": "y", "pattern": "NCCL", "action": "exclude_node"}]  # fmt: skip
    run = await api.trial(api.user(), log_policies=policies)
    lines = [{"allocationId": run.allocation_id, "agentId": "agent-a", "containerId": "c" + run.allocation_id,
              "lineOffset": n, "log": text} for n, text in enumerate(["shard 1 is corrupt", "NCCL died"])]  # fmt: skip
    await api.agent.post("/api/v1/task/logs", {"logs": lines})
    sentences, facts = await why(api, run)
    reason = "the log policy `x` matched the line `shard 1 is corrupt`"
    assert f"if it fails, it ends in ERROR without a restart: {reason}" in sentences
    assert f"in run 1, {reason}" in sentences
    assert "never runs on agent-a again: the log policy `y` matched the line `NCCL died`" in sentences
    assert list(facts["excluded"]) == ["agent-a"]


async def test_ended_trial_tells_its_message(api: Served) -> None:
    run = await api.trial(api.user())
    await fail(api, run, state=TrialState.ERROR, is_terminal=True, message="trial exceeded max restarts (0): exited")
    sentences, _ = await why(api, run)
    assert sentences[0].startswith(f"trial {run.trial_id} ended as ERROR at ")
    assert sentences[0].endswith(": trial exceeded max restarts (0): exited")
    told = await api.user().get(f"/api/v1/undeterred/experiments/{run.experiment_id}/why")
    assert told["sentences"][1] == "1 trial: 1 in error"


async def test_paused_experiment_tells_who_paused_it(api: Served) -> None:
    run = await api.trial(api.user())
    with api.database.write() as session:
        experiment = session.get_one(Experiment, run.experiment_id)
        experiment.state = "PAUSED"
        experiment.commanded, experiment.commanded_by, experiment.commanded_at = "pause", "ada", utc_now()
        session.get_one(Trial, run.trial_id).state = "PAUSED"
    await asyncio.to_thread(api.records.close_allocation, CloseAllocation(allocation_id=run.allocation_id))
    assert (await why(api, run))[0][0].startswith(f"trial {run.trial_id} is paused by ada at ")
    told = await api.user().get(f"/api/v1/undeterred/experiments/{run.experiment_id}/why")
    assert told["sentences"][0].startswith(f"experiment {run.experiment_id} is paused by ada at ")
    assert told["sentences"][1] == "1 trial: 1 paused"


async def test_unknown_trials_and_experiments_are_not_found(api: Served) -> None:
    for kind in ("trials", "experiments"):
        assert "999999 not found" in await api.user().refused(404, "GET", f"/api/v1/undeterred/{kind}/999999/why")
