"""Campaigns as the records have them: whose they are, what is launched once and as whom, and what is refused."""

from __future__ import annotations

import asyncio
import base64
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update
from temporalio.exceptions import ApplicationError

from activities.campaigns import Campaigns
from api.services.campaign_launches import CampaignLaunches
from database import campaigns as records
from database.models import (
    Campaign,
    CampaignContext,
    CampaignLaunch,
    CampaignRun,
    Checkpoint,
    Experiment,
    Gate,
    Task,
    User,
    UserToken,
)
from database.types import utc_now
from tests.integration.api.served import Caller, Served
from workflows.campaigns.definition import StepKind
from workflows.campaigns.plan import RunState, StepOutcome, StepState
from workflows.lifecycle.experiment import ExperimentState
from workflows.messages import (
    BeginCampaignRun,
    RecordCampaignRun,
    RecordExperiment,
    StepAsked,
    StepLaunch,
    StepSought,
)

PATH = "/api/v1/undeterred/campaigns"
TASKS = "name: tasks\nsteps:\n  one:\n    task: {entrypoint: 'true', resources: {slots: 0}}\n  two:\n    task: {entrypoint: ls}\n    after: [one]\n"
TRAIN = {"entrypoint": "python3 train.py", "searcher": {"name": "single", "metric": "loss", "max_length": 1}}
MIXED = """
name: mixed
params: {lr: 0.1}
steps:
  train:
    experiment: train.yaml
  publish:
    register: {checkpoint: "${steps.train.best_checkpoint}", model: MODEL}
    when: ${steps.train.metric} < 1
"""
TRAIN_FILE = """
entrypoint: python3 train.py
hyperparameters: {lr: "${params.lr}"}
searcher: {name: single, metric: loss, max_length: 1}
"""


def packed(**files: str) -> list[dict[str, Any]]:
    return [
        {"path": name.replace("_", "."), "content": base64.b64encode(text.encode()).decode()}
        for name, text in files.items()
    ]


async def campaign_of(owner: Caller, text: str = TASKS, **files: str) -> int:
    return (await owner.post(PATH, {"definition": text, "files": packed(**files)}))["campaign"]["id"]


async def launch(api: Served, run_id: int, step: str, kind: StepKind, config: dict[str, Any], attempt: int = 1) -> int:
    """The run's workflow orders a step, twice, as an activity that is repeated; several processes carry it out."""
    outcome = StepOutcome(state=StepState.LAUNCHING, attempt=attempt, digest=f"digest of {step}")
    order = StepLaunch(step=step, attempt=attempt, kind=kind, config=config)
    record = RecordCampaignRun(run_id=run_id, revision=attempt, outcomes={step: outcome}, launches=[order])
    for _ in range(2):
        await asyncio.to_thread(Campaigns(api.database).record_campaign_run, record)
    processes = [
        CampaignLaunches(api.database, api.parts.creator, api.parts.commands, api.parts.settings) for _ in "ab"
    ]
    await asyncio.gather(*(asyncio.to_thread(process.launch_due) for process in processes))
    with api.database.read() as session:
        mine = CampaignLaunch.run_id == run_id, CampaignLaunch.step == step, CampaignLaunch.attempt == attempt
        return session.scalars(select(CampaignLaunch.id).where(*mine)).one()


def row_of(api: Served, launch_id: int) -> CampaignLaunch:
    with api.database.read() as session:
        return session.get_one(CampaignLaunch, launch_id)


async def begun(api: Served, owner: Caller, campaign_id: int, **body: Any) -> CampaignRun:
    number = (await owner.post(f"{PATH}/{campaign_id}/runs", body))["run"]["number"]
    with api.database.read() as session:
        mine = CampaignRun.campaign_id == campaign_id, CampaignRun.number == number
        return session.scalars(select(CampaignRun).where(*mine)).one()


async def test_campaign_is_created_checked_and_changed(api: Served) -> None:
    owner, other = api.user(), api.user()
    campaign_id = await campaign_of(owner, MIXED.replace("MODEL", "m"), train_yaml=TRAIN_FILE, train_py="1")
    shown = (await owner.get(f"{PATH}/{campaign_id}"))["campaign"]
    assert (shown["name"], shown["version"], shown["owner"], shown["mayEdit"]) == ("mixed", 1, owner.username, True)
    assert [(step["name"], step["kind"], step["before"]) for step in shown["steps"]] == [
        ("train", "experiment", []),
        ("publish", "register", ["train"]),
    ]
    assert shown["definition"].strip().startswith("name: mixed")
    changed = MIXED.replace("MODEL", "m").replace("lr: 0.1", "lr: 0.2")
    newer = (await owner.ask("PUT", f"{PATH}/{campaign_id}", {"definition": changed})).json()["campaign"]
    assert (newer["version"], newer["params"]) == (2, {"lr": 0.2})
    with api.database.read() as session:
        contexts = session.scalar(select(func.count()).where(CampaignContext.campaign_id == campaign_id))
    assert contexts == 1, "its files stay, once"
    assert "alone changes what it does" in await other.refused(403, "PUT", f"{PATH}/{campaign_id}", {"definition": "x"})
    listed = (await owner.get(PATH, name="MIXED", limit=1))["campaigns"]
    assert [each["id"] for each in listed] == [campaign_id]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "invalid campaign: campaign: expected a map"),
        ("name: x\nsteps: {a: {experiment: gone.yaml}}", "steps.a.experiment: 'gone.yaml': no such file"),
        ("name: x\nsteps: {a: {task: {entrypoint: '${steps.b.id}'}}}", "there is no such step"),
        ("name: x\nsteps: {a: {experiment: {entrypoint: a}}}", "steps.a.experiment: invalid experiment configuration"),
        ("name: x\nsteps: {a: {task: {entrypont: a}}}", "steps.a.task: "),
        (
            "name: x\nworkspace: w\nproject: p\nsteps: {a: {task: {entrypoint: a}}}",
            "project 'p' in workspace 'w' not found",
        ),
        (
            "name: x\nsteps: {a: {experiment: {checkpoint_storage: {type: s3, secret_key: '1'}}}}",
            "steps.a.experiment.checkpoint_storage.secret_key: it is a secret",
        ),
    ],
)
async def test_what_is_wrong_with_a_definition_is_said(api: Served, text: str, said: str) -> None:
    owner = api.user()
    for validate in (True, False):
        answer = await owner.ask("POST", PATH, {"definition": text, "validateOnly": validate})
        assert answer.status_code in (400, 404)
        assert said in answer.json()["message"]
    listed = (await owner.get(PATH))["campaigns"]
    assert owner.username not in [each["owner"] for each in listed]


async def test_validated_campaign_is_not_created(api: Served) -> None:
    owner = api.user()
    shown = (await owner.post(PATH, {"definition": TASKS, "validateOnly": True}))["campaign"]
    assert (shown["id"], len(shown["steps"])) == (0, 2)


async def test_step_is_launched_once_and_as_its_owner(api: Served) -> None:
    owner = api.user()
    campaign_id = await campaign_of(owner, MIXED.replace("MODEL", "m"), train_yaml=TRAIN_FILE, train_py="print(1)")
    run = await begun(api, owner, campaign_id)
    launch_id = await launch(api, run.id, "train", StepKind.EXPERIMENT, TRAIN)
    made = row_of(api, launch_id)
    assert (made.state, made.error) == ("LAUNCHED", "")
    with api.database.read() as session:
        experiments = session.scalars(select(Experiment).where(Experiment.owner_id == owner.user_id)).all()
        assert [each.id for each in experiments] == [made.experiment_id]
    tree = await owner.get(f"/api/v1/experiments/{made.experiment_id}/file_tree")
    assert [file["path"] for file in tree["files"]] == ["train.py", "train.yaml"]
    [message] = api.posted(run.workflow_id, "launched")
    assert (message["step"], message["attempt"], message["experiment_id"]) == ("train", 1, made.experiment_id)


async def test_end_of_an_experiment_reaches_its_step_with_what_it_left(api: Served) -> None:
    owner = api.user()
    run = await begun(api, owner, await campaign_of(owner))
    trial = await api.trial(owner)
    await trial.report("validation", 3, {"loss": 0.25, "acc": 0.9})
    uuid = f"11111111-2222-4333-8444-{trial.experiment_id:012d}"
    body = {"uuid": uuid, "metadata": {"steps_completed": 3}, "resources": {}}
    with api.database.write() as session:
        session.add(CampaignLaunch(run_id=run.id, step="one", attempt=1, kind="experiment", config={},
                                   state="LAUNCHED", experiment_id=trial.experiment_id))  # fmt: skip
    await trial.container.post("/api/v1/checkpoints", body)
    record = RecordExperiment(
        experiment_id=trial.experiment_id, revision=9, state=ExperimentState.COMPLETED, progress=1, is_terminal=True
    )
    for _ in range(2):
        await asyncio.to_thread(api.records.record_experiment, record)
    assert api.posted(run.workflow_id, "ended") == [{"step": "one", "attempt": 1}]
    asked = StepAsked(run_id=run.id, step="one", attempt=1)
    end = await asyncio.to_thread(Campaigns(api.database).step_end, asked)
    assert end.is_completed
    assert (end.outputs["metric"], end.outputs["metrics"]["acc"]) == (0.25, 0.9)
    assert end.outputs["best_checkpoint"] == end.outputs["latest_checkpoint"] == uuid
    assert end.outputs["best_trial"] == trial.trial_id


async def test_deactivated_owner_and_revoked_token_launch_nothing(api: Served) -> None:
    owner = api.user()
    run = await begun(api, owner, await campaign_of(owner))
    config = {"entrypoint": ["true"], "resources": {"slots": 0}}
    with api.database.write() as session:
        session.execute(update(User).where(User.id == owner.user_id).values(is_active=False))
    refused = row_of(api, await launch(api, run.id, "one", StepKind.TASK, config))
    assert (refused.state, "is not active" in refused.error) == ("REFUSED", True)
    assert "is not active" in api.posted(run.workflow_id, "launched")[-1]["refused"]

    admin = api.user(is_admin=True)
    made = await admin.post("/api/v1/tokens", {})
    program = Caller(api.http, {"Authorization": f"Bearer {made['token']}"})
    of_program = await begun(api, program, await campaign_of(program))
    with api.database.write() as session:
        session.execute(update(UserToken).where(UserToken.id == made["tokenId"]).values(revoked_at=utc_now()))
    refused = row_of(api, await launch(api, of_program.id, "one", StepKind.TASK, config))
    assert f"access token {made['tokenId']}" in refused.error


async def test_nothing_acts_as_an_administrator(api: Served) -> None:
    admin, owner = api.user(is_admin=True), api.user()
    private = (await owner.post("/api/v1/workspaces", {"name": f"private {owner.username}"}))["workspace"]["id"]
    run = await begun(api, admin, await campaign_of(admin))
    with api.database.write() as session:
        session.execute(update(Campaign).where(Campaign.id == run.campaign_id).values(workspace_id=private))
    refused = row_of(api, await launch(api, run.id, "one", StepKind.TASK, {"entrypoint": ["true"]}))
    assert f"workspace {private} not found" in refused.error


async def test_registration_waits_for_its_gate_and_makes_one_version(api: Served) -> None:
    owner, admin, model = api.user(), api.user(is_admin=True), f"model-{utc_now().timestamp()}"
    trial = await api.trial(owner, approve_before=[{"what": "register", "by": "admin"}])
    uuid = f"22222222-2222-4333-8444-{trial.experiment_id:012d}"
    await trial.container.post(
        "/api/v1/checkpoints", {"uuid": uuid, "metadata": {"steps_completed": 1}, "resources": {}}
    )
    run = await begun(api, owner, await campaign_of(owner))
    config = {"checkpoint": uuid, "model": model}
    launch_id = await launch(api, run.id, "one", StepKind.REGISTER, config)
    waits = row_of(api, launch_id)
    assert (waits.state, "waits for approval" in waits.error) == ("WAITING", True)
    with api.database.write() as session:
        gate_id = session.scalars(select(Gate.id).where(Gate.experiment_id == trial.experiment_id)).one()
        session.execute(update(CampaignLaunch).where(CampaignLaunch.id == launch_id).values(due_at=utc_now()))
    await admin.post(f"/api/v1/undeterred/gates/{gate_id}/approve")
    await launch(api, run.id, "one", StepKind.REGISTER, config)
    assert row_of(api, launch_id).state == "ENDED"
    [message] = api.posted(run.workflow_id, "launched")
    assert message["outputs"]["version"] == 1
    versions = (await owner.get(f"/api/v1/models/{model}/versions"))["modelVersions"]
    assert [each["checkpoint"]["uuid"] for each in versions] == [uuid]


async def test_canceled_run_launches_nothing_and_a_paused_one_waits(api: Served) -> None:
    owner = api.user()
    run = await begun(api, owner, await campaign_of(owner))
    path, config = f"{PATH}/{run.campaign_id}/runs/{run.number}", {"entrypoint": ["true"], "resources": {"slots": 0}}
    assert (await owner.post(f"{path}/pause"))["run"]["state"] == "PAUSED"
    launch_id = await launch(api, run.id, "one", StepKind.TASK, config)
    assert (row_of(api, launch_id).state, row_of(api, launch_id).error) == ("WAITING", "the run is paused")
    await owner.post(f"{path}/activate")
    await owner.post(f"{path}/kill")
    assert [wish["state"] for wish in api.posted(run.workflow_id, "want")] == ["PAUSED", "ACTIVE", "KILLING"]
    with api.database.write() as session:
        session.execute(update(CampaignLaunch).where(CampaignLaunch.id == launch_id).values(due_at=utc_now()))
    await launch(api, run.id, "one", StepKind.TASK, config)
    assert (row_of(api, launch_id).state, row_of(api, launch_id).error) == ("REFUSED", "the run was canceled")
    assert "has not ended" in await owner.refused(400, "DELETE", f"{PATH}/{run.campaign_id}")
    assert "run 9" in await owner.refused(404, "POST", f"{PATH}/{run.campaign_id}/runs/9/pause")
    assert "expected one of pause" in await owner.refused(404, "POST", f"{path}/explode")


async def test_runs_have_parameters_and_are_started_once(api: Served) -> None:
    owner = api.user()
    campaign_id = await campaign_of(owner, "params: {epochs: 3}\n" + TASKS)
    key = {"Idempotency-Key": "one run"}
    made = [await owner.post(f"{PATH}/{campaign_id}/runs", {"params": {"epochs": 5}}, headers=key) for _ in range(2)]
    assert made[0]["run"]["number"] == made[1]["run"]["number"] == 1
    assert made[0]["run"]["params"] == {"epochs": 5}
    said = await owner.refused(400, "POST", f"{PATH}/{campaign_id}/runs", {"params": {"epochs": "x"}})
    assert "params.epochs: 'x': expected a number" in said
    assert [each["number"] for each in (await owner.get(f"{PATH}/{campaign_id}/runs"))["runs"]] == [1]


async def test_what_a_schedule_starts_is_one_run_for_each_time(api: Served) -> None:
    owner = api.user()
    campaign_id = await campaign_of(owner)
    activity = Campaigns(api.database)
    begin = BeginCampaignRun(
        campaign_id=campaign_id, workflow_id=f"campaign-{campaign_id}-noon", scheduled_at=utc_now()
    )
    states = [(await asyncio.to_thread(activity.begin_campaign_run, begin)).state for _ in range(2)]
    assert states[0] is not None
    assert not states[0].is_fresh
    assert states[0] == states[1]
    end = RecordCampaignRun(run_id=states[0].run_id, revision=1, state=RunState.COMPLETED)
    await asyncio.to_thread(activity.record_campaign_run, end)
    assert (await asyncio.to_thread(activity.begin_campaign_run, begin)).state is None
    await owner.ask("DELETE", f"{PATH}/{campaign_id}")
    assert (await asyncio.to_thread(activity.begin_campaign_run, begin)).state is None


async def test_earlier_steps_are_found_as_long_as_what_they_left_is_there(api: Served) -> None:
    owner, trial = api.user(), None
    campaign_id = await campaign_of(owner)
    first, second = await begun(api, owner, campaign_id), await begun(api, owner, campaign_id)
    trial = await api.trial(owner)
    uuid = f"33333333-2222-4333-8444-{trial.experiment_id:012d}"
    await trial.container.post(
        "/api/v1/checkpoints", {"uuid": uuid, "metadata": {"steps_completed": 1}, "resources": {}}
    )
    outputs = {"id": trial.experiment_id, "best_checkpoint": uuid}
    done = StepOutcome(
        state=StepState.COMPLETED, attempt=1, digest="d", outputs=outputs, experiment_id=trial.experiment_id
    )
    activity = Campaigns(api.database)
    await asyncio.to_thread(
        activity.record_campaign_run, RecordCampaignRun(run_id=first.id, revision=1, outcomes={"one": done})
    )
    sought = StepSought(run_id=second.id, digests={"one": "d", "two": "d"})
    found = (await asyncio.to_thread(activity.find_steps, sought)).outcomes
    assert list(found) == ["one"]
    assert (found["one"].state, found["one"].reused_from, found["one"].outputs) == (
        StepState.REUSED,
        first.number,
        outputs,
    )
    with api.database.write() as session:
        session.execute(update(Checkpoint).where(Checkpoint.uuid == uuid).values(state="DELETED"))
    assert (await asyncio.to_thread(activity.find_steps, sought)).outcomes == {}


async def test_past_times_are_bounded_and_said(api: Served) -> None:
    owner = api.user()
    campaign_id = await campaign_of(owner, 'schedule: {cron: "0 * * * *"}\n' + TASKS)
    now = utc_now().replace(minute=30, second=0, microsecond=0) - timedelta(hours=2)
    wanted = {"start": (now - timedelta(hours=3)).isoformat(), "end": now.isoformat(), "dryRun": True}
    path = f"{PATH}/{campaign_id}/backfill"
    assert len((await owner.post(path, wanted))["times"]) == 3
    assert api.posted(f"campaign-{campaign_id}", "backfill_campaign") == []
    await owner.post(path, wanted | {"dryRun": False})
    assert len(api.posted(f"campaign-{campaign_id}", "backfill_campaign")) == 1
    far = wanted | {"start": (now - timedelta(days=30)).isoformat()}
    assert "more than 200 times" in await owner.refused(400, "POST", path, far)
    assert "expected a time that is over" in await owner.refused(
        400, "POST", path, wanted | {"end": "2090-01-01T00:00:00Z"}
    )
    assert "expected a time before end" in await owner.refused(400, "POST", path, wanted | {"start": wanted["end"]})


async def test_token_with_a_budget_starts_nothing_outside_of_it(api: Served) -> None:
    admin = api.user(is_admin=True)
    campaign_id = await campaign_of(admin, 'schedule: {cron: "0 * * * *"}\n' + TASKS)
    program = Caller(api.http, {"Authorization": f"Bearer {(await admin.post('/api/v1/tokens', {}))['token']}"})
    assert "budget of your access token" in await program.refused(403, "POST", f"{PATH}/{campaign_id}/activate")
    past = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-01T02:00:00Z"}
    assert "budget of your access token" in await program.refused(403, "POST", f"{PATH}/{campaign_id}/backfill", past)
    run = await begun(api, program, campaign_id)
    assert run.token_id is not None


async def test_old_runs_and_files_are_forgotten(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "RUNS_KEPT", 2)
    owner = api.user()
    campaign_id = await campaign_of(owner, TASKS, a_txt="1")
    for _ in range(3):
        run = await begun(api, owner, campaign_id)
        end = RecordCampaignRun(run_id=run.id, revision=1, state=RunState.COMPLETED)
        await asyncio.to_thread(Campaigns(api.database).record_campaign_run, end)
    assert [each["number"] for each in (await owner.get(f"{PATH}/{campaign_id}/runs"))["runs"]] == [3, 2]
    live = await begun(api, owner, campaign_id)
    await owner.ask("PUT", f"{PATH}/{campaign_id}", {"definition": TASKS, "files": packed(b_txt="2")})
    with api.database.read() as session:
        counted = select(func.count()).where(CampaignContext.campaign_id == campaign_id)
        assert session.scalar(counted) == 2, "a run that has begun still needs the older ones"
    end = RecordCampaignRun(run_id=live.id, revision=1, state=RunState.COMPLETED)
    await asyncio.to_thread(Campaigns(api.database).record_campaign_run, end)
    with api.database.read() as session:
        assert session.scalar(counted) == 1
        assert session.scalar(select(func.count()).select_from(Task).where(Task.owner_id == owner.user_id)) == 0


async def test_workspace_is_deleted_with_its_campaigns_once_their_runs_have_ended(api: Served) -> None:
    owner = api.user()
    name = f"of campaigns {owner.username}"
    workspace_id = (await owner.post("/api/v1/workspaces", {"name": name}))["workspace"]["id"]
    await owner.post(f"/api/v1/workspaces/{workspace_id}/projects", {"name": "p"})
    campaign_id = await campaign_of(owner, f"workspace: {name}\nproject: p\n{TASKS}")
    run = await begun(api, owner, campaign_id)
    refused = await owner.refused(400, "DELETE", f"/api/v1/workspaces/{workspace_id}")
    assert f"run 1 of campaign {campaign_id}" in refused
    end = RecordCampaignRun(run_id=run.id, revision=1, state=RunState.CANCELED)
    await asyncio.to_thread(Campaigns(api.database).record_campaign_run, end)
    assert (await owner.ask("DELETE", f"/api/v1/workspaces/{workspace_id}")).status_code == 200
    assert len(api.posted(f"campaign-{campaign_id}", records.PUT_SCHEDULE)) == 2
    with pytest.raises(ApplicationError):
        await asyncio.to_thread(Campaigns(api.database).record_campaign_run, end)


@pytest.mark.parametrize("reuse", [False, True])
async def test_run_of_a_schedule_does_every_step_unless_that_says_otherwise(api: Served, reuse: bool) -> None:
    owner = api.user()
    schedule = f"schedule: {{cron: '@daily', reuse: {str(reuse).lower()}}}\n"
    campaign_id = await campaign_of(owner, schedule + TASKS)
    begin = BeginCampaignRun(campaign_id=campaign_id, workflow_id=f"campaign-{campaign_id}-x", scheduled_at=utc_now())
    state = (await asyncio.to_thread(Campaigns(api.database).begin_campaign_run, begin)).state
    assert state is not None
    assert state.is_fresh is not reuse
    assert not (await begun(api, owner, campaign_id)).is_fresh, "what a user starts takes over"
