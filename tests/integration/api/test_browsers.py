"""Browsers: requests of other sites' pages, headers of every answer, and pages that fetch nothing from elsewhere."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import pytest

from tests.integration.api.served import PASSWORD, Caller, Served

OWN = {"Origin": "http://{}", "Sec-Fetch-Site": "same-origin", "Content-Type": "application/json"}


def by_cookie(api: Served, **headers: str) -> dict[str, str]:
    """A user's session as a browser has it."""
    token = api.user().headers["Authorization"].removeprefix("Bearer ")
    host = f"{api.http.base_url.host}:{api.http.base_url.port}"
    told = {"Cookie": f"auth={token}", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return {name: value.format(host) for name, value in told.items()}


async def test_request_by_cookie_is_taken_when_a_page_of_ours_sends_it(api: Served) -> None:
    response = await Caller(api.http, by_cookie(api, **OWN)).ask("POST", "/api/v1/auth/logout", {})
    assert response.status_code == 200, response.text
    headers = by_cookie(api, Origin="http://{}")
    assert (await api.http.post("/api/v1/auth/logout", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://{}.evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": None, "Sec-Fetch-Site": None}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=application/json"}, 415),
        ({"Content-Type": None}, 415),
    ],
)
async def test_request_by_cookie_is_refused_when_another_site_may_send_it(
    api: Served, changes: dict[str, str | None], status: int
) -> None:
    headers = by_cookie(api, **{name: value for name, value in (OWN | changes).items() if value is not None})
    for method, path in (
        ("POST", "/api/v1/auth/logout"), ("POST", "/api/v1/experiments/1/kill"), ("DELETE", "/api/v1/experiments/1"),
        ("PATCH", "/api/v1/users/1"), ("POST", "/api/v1/trials/1/metrics"), ("POST", "/logout"),
    ):  # fmt: skip
        response = await api.http.request(method, path, headers=headers, content=b'{"a": 1}')
        assert response.status_code == status, f"{method} {path}: {response.status_code} {response.text}"
    own = {name: value for name, value in headers.items() if name == "Cookie"}
    assert (await api.http.get("/api/v1/me", headers=own)).status_code == 200, "nothing was done"


async def test_login_is_refused_when_another_site_sends_it(api: Served) -> None:
    """Or it could log a browser in as somebody else."""
    user = api.user()
    login = {"username": user.username, "password": PASSWORD}
    for path in ("/api/v1/auth/login", "/login"):
        assert await api.nobody.refused(403, "POST", path, login, headers={"Origin": "http://evil.example"})


async def test_token_needs_no_origin(api: Served) -> None:
    user = api.user()
    assert (await user.ask("POST", "/api/v1/auth/logout", {})).status_code == 200


async def test_every_answer_has_the_headers_that_browsers_obey(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    answers = [
        await api.http.get("/"), await api.http.get("/docs/rest-api"), await api.http.get("/api/v1/openapi.json"),
        await api.http.get("/nothing/there"), await api.http.get("/api/v1/me"), await user.ask("GET", "/api/v1/me"),
        await user.ask("POST", "/api/v1/experiments", b"{"), await user.ask("GET", f"/api/v1/trials/{run.trial_id}/logs"),
        await run.container.ask("POST", f"/api/v1/trials/{run.trial_id}/metrics", b"{"),
        await user.ask("POST", "/api/v1/auth/logout", {}, headers={"Origin": "null"}),
    ]  # fmt: skip
    for answer in answers:
        headers = answer.headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"], answer.url
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe-eval" not in headers["content-security-policy"]
        assert headers.get_list("content-security-policy") == [headers["content-security-policy"]]
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
        assert headers["x-frame-options"] == "DENY"
        assert "access-control-allow-origin" not in headers


async def test_description_of_the_api_is_made_once_and_holds_nobody_up(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow() -> dict[str, Any]:
        made.append(True)
        assert others_were_answered.wait(30)
        return {"openapi": "3.1.0"}

    made, others_were_answered = list[bool](), threading.Event()
    monkeypatch.delattr(api.app.state, "openapi", raising=False)
    monkeypatch.setattr(api.app, "openapi", slow)
    asking = [asyncio.create_task(api.http.get("/api/v1/openapi.json")) for _ in range(5)]
    while not made:
        assert not asking[0].done()
        await asyncio.sleep(0.01)
    assert (await api.http.get("/health/live")).status_code == 200
    assert not any(task.done() for task in asking), "others are answered before it is made"
    others_were_answered.set()
    answers = await asyncio.gather(*asking)
    assert {answer.text for answer in answers} == {'{"openapi":"3.1.0"}'}
    assert answers[0].headers["content-type"] == "application/json"
    assert len(made) == 1
    del api.app.state.openapi


async def test_description_that_could_not_be_made_is_made_anew(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [MemoryError(), {"openapi": "3.1.0"}]

    def made() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.delattr(api.app.state, "openapi", raising=False)
    monkeypatch.setattr(api.app, "openapi", made)
    first, second, third = [await api.http.get("/api/v1/openapi.json") for _ in range(3)]
    assert (first.status_code, second.status_code, third.status_code) == (500, 200, 200)
    assert second.json() == third.json() == {"openapi": "3.1.0"}
    del api.app.state.openapi


async def test_page_fetches_nothing_from_elsewhere(api: Served) -> None:
    page = await api.http.get("/docs/rest-api")
    assert page.headers["content-type"].startswith("text/html")
    assert "://" not in page.text
    assert not re.search(r"<script(?! src=)|<style|style=|onclick", page.text), "its policy would not let it run"
    named = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert named
    for each in named:
        answer = await api.http.get(each)
        assert (answer.status_code, len(answer.content) > 20) == (200, True), each
    script = await api.http.get("/docs/swagger-ui-bundle.js")
    assert script.headers["content-type"].startswith("text/javascript")
    assert (await api.http.get("/redoc")).status_code == 404
