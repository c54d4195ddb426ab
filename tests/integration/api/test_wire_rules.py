"""What clients of every generation rely on, on whatever route (spec rest-api.md §1)."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
import yaml
from sqlalchemy import delete, text, update
from sqlalchemy.exc import OperationalError

from api.settings import ApiSettings
from database.models import Agent
from tests.integration.api.served import Served


async def test_body_is_read_when_it_has_no_content_type_or_any(api: Served) -> None:
    user = api.user()
    path = f"/api/v1/users/{user.user_id}"
    for number, kind in enumerate([None, "application/json", "application/merge-patch+json", "text/plain", "x/y"]):
        headers = {"Content-Type": kind} if kind else {}
        response = await user.ask("PATCH", path, {"displayName": f"{number}"}, headers=headers)
        assert response.json()["user"]["displayName"] == f"{number}"


async def test_missing_body_is_an_empty_message_when_posted(api: Served) -> None:
    run = await api.trial(api.user())
    assert await run.container.post(f"/api/v1/allocations/{run.allocation_id}/ready") == {}
    assert await run.container.post(f"/api/v1/trials/{run.trial_id}/runner/metadata") == {}
    assert "it is empty" in await api.user().refused(400, "POST", "/api/v1/experiments", b"")


@pytest.mark.parametrize(
    "path", ["/api/v1/me/", "/api/v1/experiments/", "/api/v1/me//", "/api/v1/experiments/?limit=1"]
)
async def test_trailing_slash_is_tolerated_without_a_redirect_when_below_api_v1(api: Served, path: str) -> None:
    user = api.user()
    response = await user.ask("GET", path)
    assert response.status_code == 200
    assert response.json().keys() & {"user", "experiments"}
    posted = await user.ask("POST", "/api/v1/experiments/", {"config": yaml.safe_dump(api.config())})
    assert posted.status_code == 200


async def test_trailing_slash_is_not_found_when_outside_api_v1(api: Served) -> None:
    assert (await api.nobody.ask("GET", "/info/")).status_code == 404


async def test_query_is_read_in_both_spellings_when_names_have_several_words(api: Served) -> None:
    user = api.user()
    first, second = [await api.experiment(user) for _ in range(2)]
    for sort, order, users in (("sortBy", "orderBy", "userIds"), ("sort_by", "order_by", "user_ids")):
        found = await user.get(
            "/api/v1/experiments",
            **{sort: "SORT_BY_ID", order: "ORDER_BY_DESC", users: [user.user_id, 0], "whatever_else": 1},
        )
        assert [experiment["id"] for experiment in found["experiments"]] == [second, first]


async def test_error_is_readable_by_both_generations_when_something_is_wrong(api: Served) -> None:
    user = api.user()
    cases = {
        ("GET", "/api/v1/experiments/999999"): (404, 5, "NotFound"),
        ("GET", "/api/v1/experiments/abc"): (400, 3, "InvalidArgument"),
        ("GET", "/api/v1/experiments?limit=x"): (400, 3, "InvalidArgument"),
        ("GET", "/api/v1/nothing/here"): (404, 5, "NotFound"),
        ("GET", "/nothing"): (404, 5, "NotFound"),
        ("DELETE", "/api/v1/me"): (405, 3, "InvalidArgument"),
        ("POST", "/api/v1/experiments/1/fly"): (404, 5, "NotFound"),
        ("POST", "/api/v1/trials/1/curious_metrics"): (400, 3, "InvalidArgument"),
        ("GET", "/api/v1/trials/metrics/nothing"): (404, 5, "NotFound"),
    }
    for (method, path), (status, code, reason) in cases.items():
        response = await user.ask(method, path)
        assert response.status_code == status, response.text
        body = response.json()
        assert body.keys() == {"error", "message"}
        assert (body["error"]["code"], body["error"]["reason"]) == (code, reason)
        assert body["message"] == body["error"]["error"]
        assert body["message"]


@pytest.mark.parametrize("number", [2**31, 2**63 - 1, 2**63, 2**64, 10**40, -1, -(2**63) - 1])
async def test_number_is_never_a_server_error_when_it_is_out_of_any_range(api: Served, number: int) -> None:
    user = api.user()
    for path in (
        f"/api/v1/experiments/{number}", f"/api/v1/trials/{number}", f"/api/v1/users/{number}",
        f"/api/v1/experiments?offset={number}", f"/api/v1/experiments?limit={number}", f"/api/v1/users?offset={number}",
        f"/api/v1/experiments?userIds={number}", f"/api/v1/experiments?projectId={number}", f"/api/v1/trials/{number}/logs",
        f"/api/v1/trials/metrics/trial_metrics?trialIds={number}", f"/experiments/{number}/model_def",
    ):  # fmt: skip
        response = await user.ask("GET", path)
        assert response.status_code in (200, 400, 404), f"{path}: {response.text}"
    run = await api.trial(user)
    for field in ("parentId", "projectId"):
        body = {"config": yaml.safe_dump(api.config()), field: number, "validateOnly": True}
        assert (await user.ask("POST", "/api/v1/experiments", body)).status_code in (200, 400, 404)
    for body in (run.message("training", number, {"a": 1}), run.message("training", 1, {"a": number})):
        response = await run.container.ask("POST", f"/api/v1/trials/{run.trial_id}/metrics", body)
        assert response.status_code in (200, 400), response.text
    await user.get(f"/api/v1/trials/{run.trial_id}")
    await user.get(f"/api/v1/trials/{run.trial_id}/workloads")


NUL = "a\x00b"


async def test_nul_is_refused_or_dropped_when_it_comes_in_any_text(api: Served) -> None:
    """PostgreSQL can't store it. A 503 would have clients send it for ever."""
    user = api.user()
    run = await api.trial(user)
    container: list[tuple[str, str, Any]] = [
        ("POST", f"/api/v1/trials/{run.trial_id}/metrics", run.message("training", 1, {NUL: 1})),
        ("POST", f"/api/v1/trials/{run.trial_id}/metrics", run.message("training", 2, {"x": NUL})),
        ("POST", f"/api/v1/trials/{run.trial_id}/metrics", run.message(NUL, 2, {"x": 1})),
        ("POST", f"/api/v1/trials/{run.trial_id}/runner/metadata", {"state": NUL}),
        ("POST", "/api/v1/checkpoints", {"uuid": "0" * 32, "metadata": {"steps_completed": 1, "x": NUL}}),
        ("POST", "/api/v1/task/logs", {"logs": [{"log": NUL, "source": NUL}]}),
    ]
    for method, path, body in container:
        response = await run.container.ask(method, path, body)
        assert response.status_code in (200, 400), f"{path}: {response.text}"
    asked: list[tuple[str, str, Any]] = [
        ("PATCH", f"/api/v1/users/{user.user_id}", {"displayName": NUL}),
        ("PATCH", f"/api/v1/experiments/{run.experiment_id}", {"notes": NUL, "labels": [NUL]}),
        ("GET", "/api/v1/users/a%00b/by-username", None),
        ("GET", "/api/v1/tasks/a%00b", None),
        ("GET", "/api/v1/experiments?name=a%00b", None),
        ("GET", "/api/v1/checkpoints/a%00b", None),
        ("POST", "/api/v1/experiments", {"config": NUL}),
        ("POST", "/api/v1/auth/login", {"username": NUL, "password": NUL}),
    ]
    for method, path, body in asked:
        response = await user.ask(method, path, body)
        assert response.status_code in (200, 400, 401, 404), f"{path}: {response.text}"


@pytest.mark.parametrize("body", [b"5", b"[]", b"[1]", b'"x"', b"true", b"{]", b"\x00", b"NaN"])
async def test_body_of_the_wrong_kind_is_a_client_error_when_posted_anywhere(api: Served, body: bytes) -> None:
    admin = api.user(is_admin=True)
    run = await api.trial(admin)
    trial, allocation = f"/api/v1/trials/{run.trial_id}", f"/api/v1/allocations/{run.allocation_id}"
    for caller, method, path in (
        (admin, "POST", "/api/v1/auth/login"), (admin, "POST", "/api/v1/users"),
        (admin, "PATCH", f"/api/v1/users/{admin.user_id}"), (admin, "POST", "/api/v1/experiments"),
        (admin, "PATCH", f"/api/v1/experiments/{run.experiment_id}"), (run.container, "POST", f"{trial}/metrics"),
        (run.container, "POST", f"{trial}/metrics/batch"), (run.container, "POST", f"{trial}/training_metrics"),
        (run.container, "POST", f"{trial}/early_exit"), (run.container, "POST", f"{trial}/runner/metadata"),
        (run.container, "POST", f"{trial}/searcher/completed_operation"), (run.container, "POST", "/api/v1/runs/start"),
        (run.container, "POST", "/api/v1/checkpoints"), (run.container, "POST", "/api/v1/task/logs"),
        (api.agent, "POST", "/api/v1/undeterred/agents/a/reconcile"),
        (run.container, "POST", f"{allocation}/acceleratorData"), (run.container, "POST", f"{allocation}/ready"),
    ):  # fmt: skip
        response = await caller.ask(method, path, body)
        assert response.status_code == 400, f"{path}: {response.status_code} {response.text}"


async def test_body_is_refused_when_it_is_larger_than_any_context(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is that of a context as base64; asked for without sending it."""
    user = api.user()
    request = httpx.Request("POST", f"{api.http.base_url}/api/v1/experiments", headers=user.headers, content=b"{")
    request.headers["Content-Length"] = str(200 * 2**20)
    reader, writer = await asyncio.open_connection("127.0.0.1", api.http.base_url.port)
    head = f"POST /api/v1/experiments HTTP/1.1\r\nHost: x\r\nAuthorization: {user.headers['Authorization']}\r\n"
    writer.write(f"{head}Content-Length: {200 * 2**20}\r\n\r\n".encode())
    assert b" 413 " in await asyncio.wait_for(reader.readline(), 10)
    writer.close()


async def test_answer_is_503_with_a_hint_when_the_database_is_away(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = api.user()
    await user.get("/api/v1/me")

    def read() -> Any:
        raise OperationalError("SELECT 1", {}, Exception("connection refused"))

    with monkeypatch.context() as patch:
        patch.setattr(api.parts.database, "read", read)
        response = await user.ask("GET", "/api/v1/users")
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert response.json()["error"]["reason"] == "Unavailable"
        assert (await api.nobody.ask("GET", "/health")).status_code == 503
    assert (await api.nobody.get("/health"))["status"] == "up"


async def test_answer_tells_nothing_of_the_inside_when_there_is_a_bug(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("secret path /srv/x")

    monkeypatch.setattr("api.routes.users.wire_user", broken)
    response = await api.user().ask("GET", "/api/v1/me")
    assert response.status_code == 500
    assert "secret" not in response.text
    assert response.json()["error"]["reason"] == "Internal"


async def test_first_request_of_every_client_is_answered_when_nobody_is_logged_in(api: Served) -> None:
    from packaging.version import Version

    info, master = await api.nobody.get("/info"), await api.nobody.get("/api/v1/master")
    assert info["version"] == master["version"] == "0.38.1", "the newest client warns of any other"
    assert info["undeterred_version"] == master["undeterredVersion"]
    Version(info["undeterred_version"])
    assert info["cluster_id"] == info["master_id"] == master["clusterId"] == master["masterId"]
    assert info["cluster_name"] == ApiSettings.model_fields["cluster_name"].default
    assert (master["hasCustomLogo"], master["strictJobQueueControl"]) == (False, False), "0.38 fails without them"


async def test_pool_and_agent_are_shown_with_their_slots_when_an_agent_is_recorded(api: Served) -> None:
    from workflows.messages import RecordAgent
    from workflows.scheduling.model import AgentSlots

    user = api.user()
    run = await api.trial(user)
    slots = AgentSlots(agent_id="agent-a", slot_ids=(0, 1))
    api.an_agent(RecordAgent(agent_id="agent-a", revision=1, pool="default", slots=slots, is_connected=True))
    with api.database.write() as session:  # other tests take it out of service
        session.execute(update(Agent).where(Agent.id == "agent-a").values(is_enabled=True, disabled_slots=[]))
        session.execute(delete(Agent).where(Agent.pool == "default", Agent.id != "agent-a"))
    [agent] = [found for found in (await user.get("/api/v1/agents"))["agents"] if found["id"] == "agent-a"]
    assert (agent["id"], agent["enabled"], agent["resourcePools"], sorted(agent["slots"])) == (
        "agent-a",
        True,
        ["default"],
        ["0", "1"],
    )
    assert agent["slots"]["0"]["container"]["id"], "held by a trial of these tests"
    assert agent["slots"]["1"]["container"] is None or run.allocation_id
    [pool] = [p for p in (await user.get("/api/v1/resource-pools"))["resourcePools"] if p["name"] == "default"]
    assert (pool["name"], pool["slotsAvailable"], pool["numAgents"], pool["defaultComputePool"]) == (
        "default",
        2,
        1,
        True,
    )


async def test_tables_are_intact_when_names_look_like_sql(api: Served) -> None:
    user = api.user()
    for evil in ("'; DROP TABLE users; --", "%", "_", "\\", "%27"):
        assert (await user.get("/api/v1/experiments", name=evil, users=evil))["experiments"] == []
        await user.refused(400, "GET", "/api/v1/experiments", params={"sortBy": evil})
    with api.database.read() as session:
        assert session.execute(text("SELECT count(*) FROM users")).scalar()
