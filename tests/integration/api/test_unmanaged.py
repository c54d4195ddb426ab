"""Experiments that are trained elsewhere: a client makes them, reports for them, and says how they stand."""

from __future__ import annotations

import time
import uuid as uuids
from datetime import timedelta
from typing import Any

import pytest
import yaml
from sqlalchemy import select, update

from api.auth import authorization, reporters
from api.services.unmanaged import give_up_silent
from database.models import Experiment, Outbox, Trial
from database.types import utc_now
from tests.integration.api.served import Caller, Served

CONFIG = "name: elsewhere\n"


async def experiment(api: Served, user: Caller) -> int:
    body = {"config": CONFIG, "unmanaged": True, "activate": True}
    created = (await user.post("/api/v1/experiments", body))["experiment"]
    assert (created["unmanaged"], created["state"]) == (True, "STATE_PAUSED")
    return created["id"]


async def trial(user: Caller, experiment_id: int, **hparams: Any) -> int:
    body = {"experimentId": experiment_id, "hparams": hparams, "unmanaged": True}
    return (await user.post("/api/v1/trials", body))["trial"]["id"]


async def state_of(user: Caller, experiment_id: int) -> str:
    return (await user.get(f"/api/v1/experiments/{experiment_id}"))["experiment"]["state"]


async def test_trial_that_is_trained_elsewhere_is_not_the_clusters_to_kill(api: Served) -> None:
    user = api.user()
    trial_id = await trial(user, await experiment(api, user))
    assert "trained elsewhere" in await user.refused(400, "POST", f"/api/v1/trials/{trial_id}/kill")


async def test_client_reports_and_resumes_when_it_trains_elsewhere(api: Served) -> None:
    user = api.user()
    experiment_id = await experiment(api, user)
    trial_id = await trial(user, experiment_id, lr=0.1)
    started = await user.post(f"/api/v1/trials/{trial_id}/start", {"trialId": trial_id, "resume": False})
    assert started == {"trialRunId": 1, "latestCheckpoint": None, "stepsCompleted": 0}
    shown = (await user.get(f"/api/v1/trials/{trial_id}"))["trial"]
    assert (shown["state"], shown["hparams"]) == ("STATE_RUNNING", {"lr": 0.1})
    assert await state_of(user, experiment_id) == "STATE_RUNNING"
    assert await user.post("/api/v1/runs/start", {"runId": trial_id}) == {"storageId": 1}
    report = {"trialId": trial_id, "trialRunId": 1, "stepsCompleted": 5, "metrics": {"avgMetrics": {"loss": 0.5}}}
    await user.post(f"/api/v1/trials/{trial_id}/metrics", {"group": "validation", "metrics": report})
    await user.post(f"/api/v1/trials/{trial_id}/progress", {"progress": 0.4, "isRaw": True})
    await user.post(f"/api/v1/trials/{trial_id}/runner/metadata", {"state": "training"})
    await user.post("/task-logs", [{"task_id": shown["taskId"], "log": "hello\n", "level": "INFO"}])
    uuid = str(uuids.uuid4())
    checkpoint = {"uuid": uuid, "taskId": shown["taskId"], "metadata": {"steps_completed": 5}, "resources": {"m": "3"}}
    await user.post("/api/v1/checkpoints", checkpoint)
    resumed = await user.post(f"/api/v1/trials/{trial_id}/start", {"resume": True})
    assert resumed == {"trialRunId": 2, "latestCheckpoint": uuid, "stepsCompleted": 5}
    await user.patch(f"/api/v1/trials/{trial_id}", {"trialId": trial_id, "state": "STATE_COMPLETED"})
    ended = (await user.get(f"/api/v1/experiments/{experiment_id}"))["experiment"]
    assert (ended["state"], ended["progress"], ended["numTrials"]) == ("STATE_COMPLETED", 1.0, 1)
    assert [line["log"] for line in await user.lines(f"/api/v1/trials/{trial_id}/logs")] == ["hello"]
    assert (await user.get(f"/api/v1/trials/{trial_id}"))["trial"]["latestValidation"] is None, "its metric is `none`"
    with api.database.read() as session:
        assert not session.scalars(select(Outbox).where(Outbox.workflow_id == f"experiment-{experiment_id}")).all()


async def test_external_ids_name_one_experiment_and_one_trial(api: Served) -> None:
    user = api.user()
    name = f"exp {uuids.uuid4()}"
    body = {"config": CONFIG, "unmanaged": True}

    async def put() -> int:
        response = await user.ask("PUT", f"/api/v1/experiments/by-external-id/{name}", body)
        assert response.status_code == 200, response.text
        assert response.json()["experiment"]["externalExperimentId"] == name
        return response.json()["experiment"]["id"]

    experiment_id = await put()
    assert await put() == experiment_id
    wanted = {"externalTrialId": "t1", "createTrialRequest": {"experimentId": experiment_id, "unmanaged": True}}
    trials = [(await user.ask("PUT", "/api/v1/trials", wanted)).json()["trial"]["id"] for _ in range(2)]
    assert trials[0] == trials[1]
    other = await api.user().ask("PUT", f"/api/v1/experiments/by-external-id/{name}", body)
    assert other.status_code == 403


async def test_silent_trial_is_given_up(api: Served) -> None:
    user = api.user()
    experiment_id = await experiment(api, user)
    silent, alive = await trial(user, experiment_id), await trial(user, experiment_id)
    for trial_id in (silent, alive):
        await user.post(f"/api/v1/trials/{trial_id}/start", {})
    with api.database.write() as session:
        long_ago = utc_now() - timedelta(minutes=6)
        session.execute(update(Trial).where(Trial.experiment_id == experiment_id).values(heard_at=long_ago))
    await user.patch(f"/api/v1/trials/{alive}", {"trialId": alive})
    assert give_up_silent(api.database) == [silent]
    shown = (await user.get(f"/api/v1/trials/{silent}"))["trial"]
    assert (shown["state"], shown["message"]) == ("STATE_ERROR", "nothing was heard of it for 5 minutes")
    assert await state_of(user, experiment_id) == "STATE_RUNNING"
    await user.patch(f"/api/v1/trials/{alive}", {"state": "STATE_CANCELED"})
    assert await state_of(user, experiment_id) == "STATE_ERROR"


async def test_managed_trials_take_metrics_of_who_may_change_them_and_nothing_else(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    report = {"trialRunId": 1, "stepsCompleted": 5, "metrics": {"avgMetrics": {"loss": 0.5}}}
    path = f"/api/v1/trials/{run.trial_id}"
    await user.post(f"{path}/metrics", {"group": "validation", "metrics": report})
    assert (await user.get(path))["trial"]["latestValidation"]["metrics"]["avgMetrics"] == {"loss": 0.5}
    other = api.user()
    told = await other.refused(403, "POST", f"{path}/metrics", {"group": "validation", "metrics": report})
    assert "needs the role editor" in told
    files = {"uuid": str(uuids.uuid4()), "taskId": run.task_id, "state": "STATE_COMPLETED", "resources": {"a": "1"},
             "metadata": {"steps_completed": 5}}  # fmt: skip
    assert "managed by the cluster" in await user.refused(403, "POST", "/api/v1/checkpoints", files)
    assert "only unmanaged" in await user.refused(400, "PATCH", path, {"state": "STATE_COMPLETED"})
    assert "only unmanaged" in await user.refused(400, "POST", f"{path}/start", {})
    body = {"experimentId": run.experiment_id, "hparams": {}, "unmanaged": True}
    assert "only unmanaged" in await user.refused(400, "POST", "/api/v1/trials", body)


async def test_reports_of_users_are_looked_up_once_a_second(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """They cost what a container's cost: no thread and no query before the writer. A right that is lost is lost then."""
    user = api.user()
    run = await api.trial(user)
    lookups: list[int] = []
    monkeypatch.setattr(
        reporters, "readable_trial", lambda *rest: lookups.append(1) or authorization.readable_trial(*rest)
    )

    async def report(step: int, status: int = 200) -> None:
        metrics = {"trialRunId": 1, "stepsCompleted": step, "metrics": {"avgMetrics": {"x": 1.0}}}
        answer = await user.ask("POST", f"/api/v1/trials/{run.trial_id}/training_metrics", metrics)
        assert answer.status_code == status, answer.text

    began = time.monotonic()
    for step in range(20):
        await report(step)
    assert len(lookups) <= 1 + (time.monotonic() - began)
    with api.database.write() as session:
        session.execute(update(Experiment).where(Experiment.id == run.experiment_id).values(owner_id=1))
    api.parts.auth.forget()
    await report(20, 403)


async def test_validation_of_a_user_starts_the_search_of_a_paused_experiment(api: Served) -> None:
    """Or its decision would be lost: nobody else has told the workflow anything yet."""
    user = api.user()
    searcher = {"name": "async_halving", "metric": "loss", "max_trials": 4, "num_rungs": 2, "divisor": 2, "max_time": 10,
                "time_metric": "batches"}  # fmt: skip
    experiment_id = await api.created(user, activate=False, searcher=searcher)
    trial_id = (await user.get(f"/api/v1/experiments/{experiment_id}/trials"))["trials"][0]["id"]
    metrics = {"trialRunId": 0, "stepsCompleted": 5, "metrics": {"avgMetrics": {"loss": 0.5, "batches": 5}}}
    await user.post(f"/api/v1/trials/{trial_id}/validation_metrics", metrics)
    with api.database.read() as session:
        kinds = session.scalars(
            select(Outbox.kind).where(Outbox.workflow_id == f"experiment-{experiment_id}").order_by(Outbox.id)
        )
        assert list(kinds) == ["start_experiment", "validation_reported"]


@pytest.mark.parametrize(
    ("method", "path", "body", "told"),
    [
        ("POST", "/api/v1/trials", {"experimentId": "{id}"}, "unmanaged: false"),
        ("PATCH", "/api/v1/trials/{trial}", {"state": "STATE_HAPPY"}, "state: 'STATE_HAPPY': expected one of"),
        (
            "PUT",
            "/api/v1/trials",
            {"createTrialRequest": {"experimentId": "{id}", "unmanaged": True}},
            "externalTrialId",
        ),
        ("PUT", "/api/v1/experiments/by-external-id/" + "x" * 256, {"config": CONFIG}, "255 printable"),
        ("POST", "/api/v1/experiments", {"config": CONFIG, "unmanaged": True, "parentId": "{id}"}, "can't be a fork"),
        ("POST", "/api/v1/experiments", {"config": "name: [", "unmanaged": True}, "config"),
    ],
)
async def test_request_is_refused_when_it_is_wrong(
    api: Served, method: str, path: str, body: dict[str, Any], told: str
) -> None:
    user = api.user()
    experiment_id = await experiment(api, user)
    trial_id = await trial(user, experiment_id)

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(item) for key, item in value.items()}
        return experiment_id if value == "{id}" else value

    assert told in await user.refused(400, method, path.replace("{trial}", str(trial_id)), filled(body))


async def test_started_trial_is_not_started_again_unless_it_resumes(api: Served) -> None:
    user = api.user()
    trial_id = await trial(user, await experiment(api, user))
    await user.post(f"/api/v1/trials/{trial_id}/start", {})
    assert "has run before" in await user.refused(400, "POST", f"/api/v1/trials/{trial_id}/start", {})
    with api.database.read() as session:
        assert session.scalars(select(Experiment.is_unmanaged).join(Trial).where(Trial.id == trial_id)).one()


async def test_trial_that_was_trained_before_has_its_own_times(api: Served) -> None:
    user = api.user()
    body = {"config": yaml.safe_dump(api.config()), "unmanaged": True}
    experiment_id = (await user.post("/api/v1/experiments", body))["experiment"]["id"]
    wanted = {"experimentId": experiment_id, "unmanaged": True}
    trial_id = (await user.post("/api/v1/trials", wanted))["trial"]["id"]
    path, times = f"/api/v1/trials/{trial_id}", {"startTime": "2020-01-01T00:00:00Z", "endTime": "2020-01-02T00:00:00Z"}
    await user.post(f"{path}/start", {})
    shown = (await user.patch(path, {"state": "STATE_COMPLETED", **times}))["trial"]
    assert (shown["startTime"][:10], shown["endTime"][:10]) == ("2020-01-01", "2020-01-02")
    experiment = (await user.get(f"/api/v1/experiments/{experiment_id}"))["experiment"]
    assert (experiment["startTime"][:10], experiment["endTime"][:10]) == ("2020-01-01", "2020-01-02")
    for wrong, said in (
        ({"startTime": "2999-01-01T00:00:00Z"}, "startTime"),
        ({"state": "STATE_COMPLETED", "endTime": "2019-01-01T00:00:00Z"}, "endTime"),
        ({"state": "STATE_COMPLETED", "endTime": "2999-01-01T00:00:00Z"}, "endTime"),
        ({"endTime": "2020-01-02T00:00:00Z"}, "endTime: expected with it the state"),
    ):
        assert said in await user.refused(400, "PATCH", path, wrong)
