"""Gates as the records have them: who decides, what a decision leads to, and what is decided at the deadline."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import timedelta
from typing import Any

from sqlalchemy import update

from activities.webhooks import signed
from api.services import gates
from database.models import Experiment, Gate, Webhook
from database.types import utc_now
from tests.integration.api.served import Caller, Run, Served
from workflows.lifecycle.experiment import ExperimentState
from workflows.messages import RecordExperiment

_PROMOTION = {"what": "promotion", "rung": 2, "by": "admin", "webhooks": ["approvals"]}


async def at_a_gate(api: Served, owner: Caller, **rule: Any) -> tuple[Run, dict[str, Any]]:
    """An experiment whose trials wait at a gate; its workflow says so twice, as an activity that is repeated."""
    run = await api.trial(owner, approve_before=[_PROMOTION | rule])
    record = RecordExperiment(
        experiment_id=run.experiment_id, revision=3, state=ExperimentState.ACTIVE, progress=0, asked=[2]
    )
    for _ in range(2):
        await asyncio.to_thread(api.records.record_experiment, record)
    [gate] = (await owner.get("/api/v1/undeterred/gates", experimentId=run.experiment_id))["gates"]
    return run, gate


def posted(api: Served, run: Run) -> list[dict[str, Any]]:
    return api.posted(f"experiment-{run.experiment_id}", "gate_decided")


async def test_gate_is_decided_once_by_who_may(api: Served) -> None:
    owner, admin, named = api.user(), api.user(is_admin=True), api.user()
    run, gate = await at_a_gate(api, owner, users=[named.username])
    path = f"/api/v1/undeterred/gates/{gate['id']}"
    assert (gate["state"], gate["rung"], gate["mayDecide"]) == ("WAITING", 2, False)
    assert "needs the role admin" in await owner.refused(403, "POST", f"{path}/approve")
    log = await owner.lines(f"/api/v1/trials/{run.trial_id}/logs")
    assert len([line for line in log if f"`det gate approve {gate['id']}`" in line["log"]]) == 1
    decided = (await named.post(f"{path}/approve"))["gate"]
    assert (decided["state"], decided["decidedBy"]) == ("APPROVED", named.username)
    assert posted(api, run) == [{"rung": 2, "state": "APPROVED"}]
    assert "was approved already, by" in await admin.refused(400, "POST", f"{path}/deny")


async def test_access_token_decides_about_no_gate(api: Served) -> None:
    owner, admin = api.user(), api.user(is_admin=True)
    _, gate = await at_a_gate(api, owner)
    token = (await admin.post("/api/v1/tokens", {}))["token"]
    program = Caller(api.http, {"Authorization": f"Bearer {token}"})
    assert "access tokens" in await program.refused(403, "POST", f"/api/v1/undeterred/gates/{gate['id']}/approve")


async def test_signed_answer_of_a_webhook_that_the_gate_names_decides(api: Served) -> None:
    owner = api.user()
    with api.database.write() as session:
        session.add_all(
            Webhook(name=name, url="https://example.com", secret=f"secret of {name}", owner_id=owner.user_id)
            for name in ("approvals", "others")
        )
    run, gate = await at_a_gate(api, owner)
    path, now = f"/api/v1/undeterred/gates/{gate['id']}/answer", int(time.time())
    body = json.dumps({"webhook": "approvals", "approve": False}).encode()
    others = json.dumps({"webhook": "others", "approve": False}).encode()
    for content, secret, at in (
        (body, "secret of others", now),
        (others, "secret of others", now),
        (body, "secret of approvals", now - 900),
        (body.replace(b"false", b"true"), "", now),
    ):
        assert "signed" in await api.nobody.refused(403, "POST", path, content, headers=signed(secret, content, at))
    assert "signed" in await api.nobody.refused(403, "POST", path, body)
    await api.nobody.post(path, body, headers=signed("secret of approvals", body, now))
    assert posted(api, run) == [{"rung": 2, "state": "DENIED"}]


async def test_default_is_decided_at_the_deadline(api: Served) -> None:
    owner = api.user()
    run, gate = await at_a_gate(api, owner, deadline="24h", default="approve")
    gates.decide_due(api.database)
    assert not posted(api, run)
    with api.database.write() as session:
        due = update(Gate).where(Gate.id == gate["id"]).values(due_at=utc_now() - timedelta(seconds=1))
        session.execute(due)
    assert gates.decide_due(api.database) == 1
    assert gates.decide_due(api.database) == 0
    assert posted(api, run) == [{"rung": 2, "state": "APPROVED"}]


async def test_deletion_waits_for_approval_and_an_approval_is_for_one(api: Served) -> None:
    owner, admin = api.user(), api.user(is_admin=True)
    rules = [{"what": "delete", "by": "cluster_admin"}]
    experiment_id = await api.experiment(owner, approve_before=rules)
    with api.database.write() as session:
        session.execute(update(Experiment).where(Experiment.id == experiment_id).values(state="COMPLETED"))
    path = f"/api/v1/experiments/{experiment_id}"
    for _ in range(2):
        assert "waits for approval: `det gate approve" in await owner.refused(400, "DELETE", path)
    [gate] = (await admin.get("/api/v1/undeterred/gates", experimentId=experiment_id))["gates"]
    assert gate["text"] == f"{owner.username} wants to delete it"
    await admin.post(f"/api/v1/undeterred/gates/{gate['id']}/approve")
    assert (await owner.ask("DELETE", path)).status_code == 200
    with api.database.read() as session:
        assert session.get_one(Experiment, experiment_id).state == "DELETING"
        assert session.get_one(Gate, gate["id"]).is_used


async def test_registration_waits_for_approval(api: Served) -> None:
    owner, admin = api.user(), api.user(is_admin=True)
    run = await api.trial(owner, approve_before=[{"what": "register", "by": "cluster_admin"}])
    uuid = "7f6a9d7e-0b7c-4a52-9d0c-0a5b8e3d1c44"
    await run.container.post("/api/v1/checkpoints", {"uuid": uuid, "metadata": {"steps_completed": 1}, "resources": {}})
    model = (await owner.post("/api/v1/models", {"name": f"gated {run.experiment_id}"}))["model"]["name"]
    path, body = f"/api/v1/models/{model}/versions", {"modelName": model, "checkpointUuid": uuid}
    assert "waits for approval" in await owner.refused(400, "POST", path, body)
    [gate] = (await admin.get("/api/v1/undeterred/gates", experimentId=run.experiment_id))["gates"]
    await admin.post(f"/api/v1/undeterred/gates/{gate['id']}/deny")
    assert "waits for approval" in await owner.refused(400, "POST", path, body), "a new request asks again"
    [gate, _] = (await admin.get("/api/v1/undeterred/gates", experimentId=run.experiment_id))["gates"]
    await admin.post(f"/api/v1/undeterred/gates/{gate['id']}/approve")
    await owner.post(path, body)
