"""Webhooks: who may have them, and what is posted to them in the transaction of what they are told of."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from api.ingest import metric_webhooks
from api.ingest.log_webhooks import LogHooks
from database import webhooks
from tests.integration.api.served import Caller, Run, Served
from tests.integration.api.test_workspaces import experiment_in, give_role, project, unique, workspace
from workflows.lifecycle.experiment import ExperimentState
from workflows.messages import RecordExperiment

WEBHOOKS = "/api/v1/webhooks"
URL = "https://hooks.example.com/secret-path"


def state_change(state: str = "COMPLETED") -> dict[str, Any]:
    return {"triggerType": "TRIGGER_TYPE_EXPERIMENT_STATE_CHANGE", "condition": {"state": state}}


def task_log(regex: str) -> dict[str, Any]:
    return {"triggerType": "TRIGGER_TYPE_TASK_LOG", "condition": {"regex": regex}}


def threshold(metric: str, value: Any, operator: str = ">") -> dict[str, Any]:
    condition = {"metric": metric, "operator": operator, "value": value}
    return {"triggerType": "TRIGGER_TYPE_METRIC_THRESHOLD_EXCEEDED", "condition": condition}


CUSTOM = {"triggerType": "TRIGGER_TYPE_CUSTOM"}


async def webhook(user: Caller, *triggers: dict[str, Any], **fields: Any) -> dict[str, Any]:
    body = {"url": URL, "triggers": list(triggers) or [state_change()], "webhookType": "WEBHOOK_TYPE_DEFAULT", **fields}
    return (await user.post(WEBHOOKS, body))["webhook"]


async def told(user: Caller, hook: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a webhook, the oldest first."""
    found = await user.get(f"/api/v1/undeterred/webhooks/{hook['id']}/deliveries")
    return [delivery["payload"] for delivery in found["deliveries"]][::-1]


class Place:
    """A workspace of a user, with a project."""

    def __init__(self, api: Served) -> None:
        self.api, self.owner = api, api.user()

    async def build(self) -> Place:
        made = await workspace(self.owner)
        self.id, self.name = made["id"], made["name"]
        self.project = await project(self.owner, self.id)
        return self

    async def experiment(self, **config: Any) -> int:
        return await experiment_in(self.api, self.owner, self.project["id"], **config)

    async def run(self, **config: Any) -> Run:
        return await self.api.another_trial(await self.experiment(**config))

    async def webhook(self, *triggers: dict[str, Any], **fields: Any) -> dict[str, Any]:
        return await webhook(self.owner, *triggers, workspaceId=self.id, **fields)

    async def record(self, experiment_id: int, state: str, revision: int) -> None:
        record = RecordExperiment(
            experiment_id=experiment_id, revision=revision, state=ExperimentState(state), progress=1.0
        )
        await asyncio.to_thread(self.api.records.record_experiment, record)


@pytest.fixture
async def place(api: Served) -> Place:
    return await Place(api).build()


async def test_webhook_has_every_field_when_it_is_made(place: Place) -> None:
    name = unique("hook")
    made = await place.webhook(state_change(), task_log("boom"), CUSTOM, name=name, mode="WEBHOOK_MODE_SPECIFIC")
    assert made.keys() == {"id", "url", "triggers", "webhookType", "name", "workspaceId", "mode", "secret"}
    assert (made["url"], made["webhookType"], made["name"], made["workspaceId"], made["mode"]) == (
        URL, "WEBHOOK_TYPE_DEFAULT", name, place.id, "WEBHOOK_MODE_SPECIFIC"
    )  # fmt: skip
    assert len(made["secret"]) >= 40
    assert [(t["triggerType"], t["condition"], t["webhookId"]) for t in made["triggers"]] == [
        ("TRIGGER_TYPE_EXPERIMENT_STATE_CHANGE", {"state": "COMPLETED"}, made["id"]),
        ("TRIGGER_TYPE_TASK_LOG", {"regex": "boom"}, made["id"]),
        ("TRIGGER_TYPE_CUSTOM", {}, made["id"]),
    ]
    listed = (await place.owner.get(WEBHOOKS))["webhooks"]
    assert made in listed
    patched = await place.owner.patch(f"{WEBHOOKS}/{made['id']}", {"webhook": {"url": URL + "2"}})
    assert patched["webhook"] == made | {"url": URL + "2"}
    assert (await place.owner.ask("DELETE", f"{WEBHOOKS}/{made['id']}")).json() == {}
    await place.owner.refused(404, "PATCH", f"{WEBHOOKS}/{made['id']}", {"url": URL})


async def test_webhook_is_refused_when_a_field_is_wrong(place: Place) -> None:
    good = {"url": URL, "workspaceId": place.id, "triggers": [state_change()]}
    wrong: list[tuple[dict[str, Any], int, str]] = [
        ({"url": ""}, 400, "url"), ({"url": "ftp://x"}, 400, "url"), ({"url": "file:///etc/passwd"}, 400, "url"),
        ({"url": "http://"}, 400, "url"), ({"url": "http://x:99999"}, 400, "url"), ({"url": "http://a b"}, 400, "url"),
        ({"url": "http://x/" + "y" * 2000}, 400, "url"), ({"triggers": []}, 400, "triggers"),
        ({"triggers": [state_change("HAPPY")]}, 400, "COMPLETED"), ({"triggers": [task_log("(")]}, 400, "regex"),
        ({"triggers": [{"triggerType": "TRIGGER_TYPE_MOON"}]}, 400, "TRIGGER_TYPE_CUSTOM"),
        ({"triggers": [threshold("", 1)]}, 400, "condition.metric"),
        ({"triggers": [threshold("x" * 501, 1)]}, 400, "condition.metric"),
        ({"triggers": [threshold("loss", "high")]}, 400, "condition.value: 'high': expected a number"),
        ({"triggers": [threshold("loss", True)]}, 400, "condition.value"),
        ({"triggers": [threshold("loss", 10**400)]}, 400, "condition.value"),
        ({"triggers": [threshold("loss", 1, "~")]}, 400, "condition.operator: '~': expected one of >, >=, <, <="),
        ({"webhookType": "WEBHOOK_TYPE_FAX"}, 400, "WEBHOOK_TYPE_SLACK"), ({"mode": "x"}, 400, "WEBHOOK_MODE_SPECIFIC"),
        ({"name": "x" * 81}, 400, "name"), ({"workspaceId": 999_999}, 404, "not found"),
    ]  # fmt: skip
    before = len((await place.owner.get(WEBHOOKS))["webhooks"])
    for change, status, word in wrong:
        assert word in await place.owner.refused(status, "POST", WEBHOOKS, good | change)
    assert len((await place.owner.get(WEBHOOKS))["webhooks"]) == before


async def test_address_and_secret_are_hidden_when_the_user_may_not_change_it(api: Served, place: Place) -> None:
    hook = await place.webhook()
    viewer, foreign, admin = api.user(), api.user(), api.user(is_admin=True)
    give_role(api, viewer, place.id, "contributor")
    [shown] = [h for h in (await viewer.get(WEBHOOKS))["webhooks"] if h["id"] == hook["id"]]
    assert (shown["url"], shown["secret"]) == ("", "")
    assert "editor" in await viewer.refused(403, "DELETE", f"{WEBHOOKS}/{hook['id']}")
    assert hook["id"] not in [h["id"] for h in (await foreign.get(WEBHOOKS))["webhooks"]]
    await foreign.refused(404, "PATCH", f"{WEBHOOKS}/{hook['id']}", {"url": URL})
    body = {"url": URL, "triggers": [state_change()]}
    assert "administrators" in await place.owner.refused(403, "POST", WEBHOOKS, body), "of all workspaces"
    everywhere = (await admin.post(WEBHOOKS, body))["webhook"]
    await place.owner.refused(403, "DELETE", f"{WEBHOOKS}/{everywhere['id']}")
    assert (await admin.ask("DELETE", f"{WEBHOOKS}/{everywhere['id']}")).status_code == 200


async def test_event_is_posted_with_the_state_it_tells_of_when_that_is_recorded(api: Served, place: Place) -> None:
    admin = api.user(is_admin=True)
    hook, other = await place.webhook(), await place.webhook(state_change("ERROR"))
    elsewhere = await (await Place(api).build()).webhook()
    everywhere = await webhook(admin)
    slack = await place.webhook(webhookType="WEBHOOK_TYPE_SLACK")
    experiment_id = await place.experiment(name="my model")
    await place.record(experiment_id, "STOPPING_COMPLETED", 1)
    assert await told(admin, hook) == []
    for _ in range(2):  # an activity may be done again
        await place.record(experiment_id, "COMPLETED", 2)
    await place.record(experiment_id, "STOPPING_COMPLETED", 1)  # too late
    [event] = await told(admin, hook)
    assert event.keys() == {"event_id", "event_type", "timestamp", "condition", "event_data"}
    assert (event["event_type"], event["condition"]) == ("EXPERIMENT_STATE_CHANGE", {"state": "COMPLETED"})
    experiment = event["event_data"]["experiment"]
    assert (experiment["id"], experiment["name"], experiment["state"], experiment["workspace"]) == (
        experiment_id, "my model", "COMPLETED", place.name
    )  # fmt: skip
    assert api.posted(f"webhook-delivery-{event['event_id']}", "deliver_webhook") == [
        {"delivery_id": event["event_id"]}
    ]
    assert [e["event_data"]["experiment"]["id"] for e in await told(admin, everywhere)] == [experiment_id]
    [message] = await told(admin, slack)
    assert f"Experiment {experiment_id} “my model” is COMPLETED" in message["text"]
    assert message["blocks"][0]["text"]["text"].startswith("Your experiment completed successfully")
    [attachment] = message["attachments"]
    assert attachment["blocks"][0]["text"]["text"] == f"*my model* (#{experiment_id})"
    assert f"*Workspace*: {place.name}" in str(attachment["blocks"][0]["fields"])
    assert await told(admin, other) == await told(admin, elsewhere) == []
    await admin.ask("DELETE", f"{WEBHOOKS}/{everywhere['id']}")


async def test_experiment_chooses_its_webhooks_when_its_config_says_so(place: Place) -> None:
    name = unique("chosen")
    general = await place.webhook()
    named, numbered = [await place.webhook(name=name, mode="WEBHOOK_MODE_SPECIFIC") for name in (name, unique())]
    ids = {
        key: await place.experiment(integrations={"webhooks": selection} if selection else None)
        for key, selection in {
            "none": None, "name": {"webhook_name": [name, "unknown"]}, "id": {"webhook_id": [numbered["id"], 10**6]},
            "exclude": {"exclude": True, "webhook_id": [numbered["id"]]},
        }.items()
    }  # fmt: skip
    for experiment_id in ids.values():
        await place.record(experiment_id, "COMPLETED", 1)

    async def heard(hook: dict[str, Any]) -> list[int]:
        return [event["event_data"]["experiment"]["id"] for event in await told(place.owner, hook)]

    assert await heard(general) == [ids["none"], ids["name"], ids["id"]]
    assert await heard(named) == [ids["name"]]
    assert await heard(numbered) == [ids["id"]]


async def test_line_is_told_once_for_each_task_when_it_matches(
    api: Served, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.ingest.log_webhooks._FRESH_S", 0.0)
    hook = await place.webhook(task_log(r"loss is (nan|inf)"))
    first, second = [await place.run() for _ in range(2)]
    foreign = await api.trial(api.user())

    async def say(run: Run, *lines: str) -> None:
        logs = [
            {"taskId": run.task_id, "allocationId": run.allocation_id, "agentId": "agent-a", "log": line}
            for line in lines
        ]
        await api.agent.post("/api/v1/task/logs", {"logs": logs})

    await say(first, "loss is 1.0\n")
    assert await told(place.owner, hook) == []
    await say(first, "step 2: loss is nan\n", "step 3: loss is inf\n")
    await say(first, "step 4: loss is nan\n")
    monkeypatch.setattr(api.parts.logs, "hooks", LogHooks(api.database))  # another process, which remembers nothing
    await say(first, "step 5: loss is nan\n")
    await say(foreign, "loss is nan\n")
    [event] = await told(place.owner, hook)
    assert (event["event_type"], event["condition"]) == ("TASK_LOG", {"regex": "loss is (nan|inf)"})
    assert event["event_data"]["task_log"] == {
        "task_id": first.task_id, "node_name": "agent-a", "triggering_log": "step 2: loss is nan"
    }  # fmt: skip
    await say(second, "loss is inf\n")
    assert len(await told(place.owner, hook)) == 2
    await place.owner.ask("DELETE", f"{WEBHOOKS}/{hook['id']}")
    await say(await place.run(), "loss is nan\n")


async def test_code_tells_what_it_wants_when_it_posts_an_event(api: Served, place: Place) -> None:
    hook = await place.webhook(CUSTOM, name=unique(), mode="WEBHOOK_MODE_SPECIFIC")
    unnamed = await place.webhook(CUSTOM, name=unique(), mode="WEBHOOK_MODE_SPECIFIC")
    slack = await place.webhook(CUSTOM, name=unique(), mode="WEBHOOK_MODE_SPECIFIC", webhookType="WEBHOOK_TYPE_SLACK")
    named = {"integrations": {"webhooks": {"webhook_name": [hook["name"], slack["name"]]}}}
    run, other = await place.run(**named), await api.trial(api.user())
    data = {"title": "half way", "description": "loss 0.1", "level": "LOG_LEVEL_INFO"}
    body = {"data": data, "experimentId": run.experiment_id, "trialId": run.trial_id}
    assert await run.container.post(f"{WEBHOOKS}/custom", body) == {}
    [event] = await told(place.owner, hook)
    assert event["event_type"] == "CUSTOM"
    assert event["event_data"]["experiment"]["id"] == run.experiment_id
    assert event["event_data"]["custom"] == {
        "title": "half way", "description": "loss 0.1", "level": "INFO", "trial_id": run.trial_id
    }  # fmt: skip
    assert await told(place.owner, unnamed) == []
    [message] = await told(place.owner, slack)
    assert [block["text"]["text"] for block in message["blocks"]] == ["*half way* (info)", "loss 0.1"]
    await other.container.refused(404, "POST", f"{WEBHOOKS}/custom", body)
    await run.container.refused(404, "POST", f"{WEBHOOKS}/custom", body | {"trialId": other.trial_id})
    for wrong in ({"level": "LOUD"}, {"title": "x" * 501}, {"description": "x" * 10_001}, {"title": "a\x00b"}):
        await run.container.refused(400, "POST", f"{WEBHOOKS}/custom", body | {"data": data | wrong})


async def test_events_are_refused_when_too_many_wait(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("database.webhooks.MOST_WAITING", 3)
    hook = await place.webhook(CUSTOM, name=unique(), mode="WEBHOOK_MODE_SPECIFIC")
    experiment_id = await place.experiment(integrations={"webhooks": {"webhook_id": [hook["id"]]}})
    body = {"data": {"title": "x"}, "experimentId": experiment_id}
    answers = [await place.owner.ask("POST", f"{WEBHOOKS}/custom", body) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 400]
    assert "wait for their webhooks" in answers[-1].json()["message"]


async def test_test_says_that_it_is_on_its_way_when_temporal_is_away(place: Place) -> None:
    hook = await place.webhook()
    answer = await place.owner.post(f"{WEBHOOKS}/{hook['id']}/test")
    assert answer == {"completed": False, "error": "it is still on its way"}
    [event] = await told(place.owner, hook)
    assert event["event_data"] == {"test": True, "webhook": {"id": hook["id"], "name": ""}}


@pytest.mark.parametrize("mode", ["WEBHOOK_MODE_WORKSPACE", ""])
async def test_custom_trigger_is_refused_when_experiments_do_not_name_the_webhook(place: Place, mode: str) -> None:
    body = {"url": URL, "triggers": [state_change(), CUSTOM], "workspaceId": place.id, "mode": mode}
    assert "custom triggers only work with WEBHOOK_MODE_SPECIFIC" in await place.owner.refused(
        400, "POST", WEBHOOKS, body
    )
    assert (await place.owner.get(WEBHOOKS))["webhooks"] == [
        each for each in (await place.owner.get(WEBHOOKS))["webhooks"] if each["workspaceId"] != place.id
    ]


async def test_slack_is_shown_the_line_and_cannot_be_made_to_call_a_channel(
    api: Served, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.ingest.log_webhooks._FRESH_S", 0.0)
    hook = await place.webhook(task_log("bad"), webhookType="WEBHOOK_TYPE_SLACK")
    run = await place.run(name="<!channel> & co")
    line = "a bad line: <!everyone> ``` <http://evil.example|click> " + "x" * 5000
    sent = {"taskId": run.task_id, "allocationId": run.allocation_id, "log": line}
    await api.agent.post("/api/v1/task/logs", {"logs": [sent]})
    [message] = await told(place.owner, hook)
    texts = [block["text"]["text"] for block in message["blocks"]]
    assert f"trial ID: `{run.trial_id}`" in texts[0]
    assert texts[1].startswith("```a bad line: &lt;!everyone&gt; ` ` ` &lt;http")
    assert texts[3] == "```bad```"
    assert len(message["text"]) <= 3000
    assert all(len(text) <= 3000 for text in texts)
    state = await place.webhook(webhookType="WEBHOOK_TYPE_SLACK")
    await place.record(run.experiment_id, "COMPLETED", 2)
    assert "<" not in str(await told(place.owner, state))
    await place.owner.ask("DELETE", f"{WEBHOOKS}/{hook['id']}")


async def test_test_of_slack_is_a_message_that_slack_takes(place: Place) -> None:
    hook = await place.webhook(webhookType="WEBHOOK_TYPE_SLACK", name=unique())
    await place.owner.post(f"{WEBHOOKS}/{hook['id']}/test")
    [message] = await told(place.owner, hook)
    assert message["blocks"] == [{"type": "section", "text": {"type": "plain_text", "text": message["text"]}}]


async def test_metric_is_told_of_once_for_each_crossing_and_trial(
    api: Served, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_webhooks, "_FRESH_S", 0.0)
    hook = await place.webhook(threshold("accuracy", 0.9, ">="))
    slack = await place.webhook(threshold("loss", 0.5, "<"), webhookType="WEBHOOK_TYPE_SLACK")
    elsewhere = await (await Place(api).build()).webhook(threshold("accuracy", 0.9))
    specific = await place.webhook(threshold("accuracy", 0.9), mode="WEBHOOK_MODE_SPECIFIC")
    run = await place.run(name="my <model>")
    reports: list[tuple[int, dict[str, Any]]] = [
        (1, {"accuracy": 0.5}), (2, {"accuracy": 0.9}), (3, {"accuracy": 0.95}), (4, {"loss": 0.4}),
        (5, {"accuracy": 0.91}), (6, {"accuracy": "NaN"}), (7, {"accuracy": 0.97}), (8, {"accuracy": 0.1}),
        (9, {"accuracy": "Infinity"}),
    ]  # fmt: skip
    for step, metrics in reports:
        await run.report("validation", step, metrics)
        await run.report("validation", step, metrics)  # a repeat is no crossing
    await run.report("training", 10, {"accuracy": 1.0, "loss": 0.0})
    other = await api.another_trial(run.experiment_id)
    await other.report("validation", 1, {"accuracy": 1.0})
    events = await told(place.owner, hook)
    assert [(each["event_data"]["metric"]["trial_id"], each["event_data"]["metric"]["steps"]) for each in events] == [
        (run.trial_id, 2), (run.trial_id, 7), (run.trial_id, 9), (other.trial_id, 1)]  # fmt: skip
    assert events[0]["event_type"] == "METRIC_THRESHOLD_EXCEEDED"
    assert events[0]["condition"] == {"metric": "accuracy", "operator": ">=", "value": 0.9}
    assert events[0]["event_data"]["metric"] == {
        "trial_id": run.trial_id, "metric": "accuracy", "value": 0.9, "steps": 2}  # fmt: skip
    assert events[0]["event_data"]["experiment"]["id"] == run.experiment_id
    [message] = await told(place.owner, slack)
    assert "my &lt;model&gt;” : loss" in message["text"].replace("”:", "” :")
    assert await told(api.user(is_admin=True), elsewhere) == []
    assert await told(place.owner, specific) == []


async def test_reports_are_stored_when_the_events_of_a_webhook_are_too_many(
    api: Served, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_webhooks, "_FRESH_S", 0.0)
    monkeypatch.setattr(webhooks, "MOST_WAITING", 2)
    hook = await place.webhook(threshold("loss", 0.5))
    run = await place.run()
    for step in range(1, 9):
        await run.report("validation", step, {"loss": float(step % 2)})
    assert len(await told(place.owner, hook)) == 2
    assert (await place.owner.get(f"/api/v1/trials/{run.trial_id}"))["trial"]["latestValidation"]["totalBatches"] == 8
