"""A provider of accounts keeps users and groups by SCIM: as the standard's own checks want it, and nobody else's."""

from __future__ import annotations

import asyncio
import base64
import uuid
from typing import Any

import pytest
from pydantic import SecretStr

from tests.integration.api.served import Caller, Served

TOKEN = "a-token-of-the-provider-of-32-letters"
USER, GROUP = (f"urn:ietf:params:scim:schemas:core:2.0:{name}" for name in ("User", "Group"))
#: An account is active or not; and no provider looks for users and groups at once.
DEVIATIONS = {
    "check_remove_attribute: PATCH modify() did not remove attribute 'active'",
    "search_with_attributes: there is no /scim/v2/.search",
}
PATCH = "urn:ietf:params:scim:api:messages:2.0:PatchOp"


@pytest.fixture
def provider(api: Served, monkeypatch: pytest.MonkeyPatch) -> Provider:
    settings = api.parts.settings.model_copy(update={"scim_token": SecretStr(TOKEN)})
    monkeypatch.setattr(api.parts, "settings", settings)
    return Provider(api.http, {"Authorization": f"Bearer {TOKEN}"})


class Provider(Caller):
    """What such a provider does."""

    async def scim(self, status: int, method: str, path: str, body: Any = None) -> Any:
        answer = await self.ask(method, f"/scim/v2/{path}", body)
        assert answer.status_code == status, f"{answer.status_code}: {answer.text}"
        if status == 204:
            return None
        assert answer.headers["content-type"] == "application/scim+json"
        return answer.json()

    async def user(self, name: str = "", status: int = 201, **more: Any) -> Any:
        body = {"schemas": [USER], "userName": name or f"u-{uuid.uuid4().hex[:8]}", "active": True} | more
        return await self.scim(status, "POST", "Users", body)

    async def group(self, *members: Any, status: int = 201, **more: Any) -> Any:
        body = {"schemas": [GROUP], "displayName": f"g-{uuid.uuid4().hex[:8]}",
                "members": [{"value": each["id"]} for each in members]}  # fmt: skip
        return await self.scim(status, "POST", "Groups", body | more)

    async def patch(self, path: str, *operations: dict[str, Any], status: int = 200) -> Any:
        return await self.scim(status, "PATCH", path, {"schemas": [PATCH], "Operations": list(operations)})


async def test_server_passes_the_checks_of_the_standards_tester(api: Served, provider: Provider) -> None:
    # here, as loading them takes seconds, which each process would spend that looks for tests
    from httpx2 import Client
    from scim2_client.engines.httpx2 import SyncSCIMClient
    from scim2_tester import Status, check_server

    def check() -> list[Any]:
        with Client(base_url=f"{api.http.base_url}/scim/v2", headers=provider.headers) as http:
            return check_server(SyncSCIMClient(http))

    results = await asyncio.to_thread(check)
    assert len(results) > 30
    bad = {f"{each.title}: {each.reason}" for each in results if each.status in (Status.ERROR, Status.CRITICAL)}
    assert bad - DEVIATIONS == set(), repr(bad)


async def test_nobody_else_is_answered(api: Served, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    basic = base64.b64encode(f"anybody:{TOKEN}".encode()).decode()
    assert (await Caller(api.http, {"Authorization": f"Basic {basic}"}).ask("GET", "/scim/v2/Users")).status_code == 200
    wrong = base64.b64encode(b"admin:admin").decode()
    for headers in ({}, api.user(is_admin=True).headers, api.agent.headers, {"Authorization": f"Basic {wrong}"},
                    {"Authorization": "Basic ?"}, {"Authorization": f"Digest {TOKEN}"}):  # fmt: skip
        answer = await Caller(api.http, headers).ask("GET", "/scim/v2/Users")
        assert (answer.status_code, answer.json()["status"]) == (401, "401")
    monkeypatch.setattr(api.parts, "settings", api.parts.settings.model_copy(update={"scim_token": None}))
    assert (await provider.ask("GET", "/scim/v2/Users")).status_code == 404


async def test_user_is_made_changed_deactivated_and_taken_over_again(api: Served, provider: Provider) -> None:
    admin = api.user(is_admin=True)
    name = f"bob-{uuid.uuid4().hex[:6]}@example.org"
    made = await provider.user(name, displayName="Bob", externalId="00u1", emails=[{"value": name, "primary": True}])
    assert (made["userName"], made["displayName"], made["active"], made["externalId"]) == (name, "Bob", True, "00u1")
    assert made["meta"]["location"].endswith(f"/scim/v2/Users/{made['id']}")
    path = f"Users/{made['id']}"
    shown = (await admin.get(f"/api/v1/users/{made['id']}"))["user"]
    assert (shown["username"], shown["remote"], shown["admin"]) == (name, True, False)
    found = await provider.scim(200, "GET", f'Users?filter=userName eq "{name.upper()}"')
    assert [each["id"] for each in found["Resources"]] == [made["id"]], "a name is one whatever its case"
    assert "uniqueness" in str(await provider.user(name.upper(), status=409))

    session = api.session_of(int(made["id"]), name)
    assert (await session.ask("GET", "/api/v1/me")).status_code == 200
    for value in ("False", False):  # as Entra ID writes it, and as others do
        told = await provider.patch(path, {"op": "Replace", "path": "active", "value": value})
        assert told["active"] is False
    assert (await session.ask("GET", "/api/v1/me")).status_code == 401, "sessions end at once"
    told = await provider.patch(path, {"op": "replace", "value": {"active": True, "displayName": "Robert"}})
    assert (told["active"], told["displayName"]) == (True, "Robert")
    told = await provider.scim(
        200, "PUT", path, {"schemas": [USER], "userName": f"x{name}", "name": {"givenName": "B"}}
    )
    assert (told["userName"], told.get("displayName"), told["active"]) == (f"x{name}", None, True)

    await provider.scim(204, "DELETE", path)
    for method in ("GET", "DELETE"):
        await provider.scim(404, method, path)
    assert (await admin.get(f"/api/v1/users/{made['id']}"))["user"]["active"] is False
    again = await provider.user(f"x{name}")
    assert (again["id"], again["active"]) == (made["id"], True), "the account with its work is taken over again"


async def test_accounts_and_groups_of_the_cluster_are_not_the_providers(api: Served, provider: Provider) -> None:
    admin, local = api.user(is_admin=True), api.user()
    await provider.user(local.username, status=409)
    for method, body in (("GET", None), ("PUT", {"schemas": [USER], "userName": "x1"}), ("DELETE", None)):
        await provider.scim(404, method, f"Users/{local.user_id}", body)
    name = f"ops-{uuid.uuid4().hex[:6]}"
    group = (await admin.post("/api/v1/groups", {"name": name}))["group"]
    await provider.group(displayName=name, status=409)
    await provider.scim(404, "DELETE", f"Groups/{group['groupId']}")
    for path in ("Users?count=200", "Groups"):
        shown = await provider.scim(200, "GET", path)
        assert not {local.username, name} & {
            each.get("userName", each.get("displayName")) for each in shown["Resources"]
        }
    made = await provider.user(local.username.upper() + "x")
    assert "uniqueness" in str(await provider.patch(
        f"Users/{made['id']}", {"op": "replace", "path": "userName", "value": local.username.upper()}, status=409))  # fmt: skip
    # handed over by an administrator, it is
    await admin.ask("PATCH", f"/api/v1/users/{local.user_id}", {"remote": True})
    assert (await provider.user(local.username))["id"] == str(local.user_id)


async def test_members_follow_the_provider_and_those_of_administrators_stay(api: Served, provider: Provider) -> None:
    admin, local = api.user(is_admin=True), api.user()
    one, two = await provider.user(), await provider.user()
    group = await provider.group(one)
    path = f"Groups/{group['id']}"
    await admin.ask("PUT", f"/api/v1/groups/{group['id']}", {"addUsers": [local.user_id]})

    async def members() -> set[int]:
        told = await admin.get(f"/api/v1/groups/{group['id']}")
        return {each["id"] for each in told["group"]["users"]}

    ids = [int(each["id"]) for each in (one, two)]
    assert await members() == {ids[0], local.user_id}
    await provider.patch(path, {"op": "Add", "path": "members", "value": [{"value": two["id"]}]})
    assert await members() == {*ids, local.user_id}
    shown = await provider.scim(200, "GET", path)
    assert {each["value"] for each in shown["members"]} == {one["id"], two["id"]}
    assert "members" not in await provider.scim(200, "GET", f"{path}?excludedAttributes=members")
    assert (await provider.scim(200, "GET", f"Users/{two['id']}"))["groups"][0]["value"] == group["id"]
    await provider.patch(path, {"op": "remove", "path": f'members[value eq "{one["id"]}"]'})
    assert await members() == {ids[1], local.user_id}
    await provider.patch(path, {"op": "Remove", "path": "members", "value": [{"value": two["id"]}]})  # Entra ID's way
    assert await members() == {local.user_id}
    said = await provider.patch(path, {"op": "add", "path": "members", "value": [{"value": "999999"}]}, status=400)
    assert "members: user '999999' not found" in said["detail"]
    await provider.scim(204, "DELETE", path)
    await provider.scim(404, "GET", path)


async def test_last_administrator_stays(api: Served, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await provider.user()
    asked: list[set[int]] = []

    def keep(session: Any, *, without: set[int]) -> None:
        asked.append(without)

    monkeypatch.setattr("api.services.users.keep_an_administrator", keep)
    await provider.scim(204, "DELETE", f"Users/{made['id']}")
    assert asked == [{int(made["id"])}]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "told"),
    [
        ("GET", 'Users?filter=userName eq', None, 400, "invalidFilter"),
        ("GET", 'Users?filter=shoeSize eq 7', None, 400, "invalidFilter"),
        ("GET", "Users?count=many", None, 400, "count"),
        ("GET", "Users?startIndex=99999999999", None, 400, "startIndex"),
        ("GET", "Users/../users", None, 404, "404"),
        ("GET", "Users/x", None, 404, "User 'x' not found"),
        ("GET", "Schemas/urn:x", None, 404, "not found"),
        ("GET", "Devices", None, 404, "/scim/v2/Devices"),
        ("POST", "Schemas", {}, 405, "405"),
        ("POST", "Users", b"{", 400, "Invalid JSON"),
        ("POST", "Users", [], 400, "JSON object"),
        ("POST", "Users", {"schemas": [USER]}, 400, "userName"),
        ("POST", "Users", {"schemas": [USER], "userName": 7}, 400, "userName"),
        ("POST", "Users", {"schemas": [USER], "userName": "é" * 9}, 400, "ASCII"),
        ("POST", "Users", {"schemas": [USER], "userName": "long-id", "externalId": "x" * 256}, 400, "externalId"),
        ("POST", "Groups", {"schemas": [GROUP], "displayName": "x" * 121}, 400, "1 to 120"),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_said_as_the_standard_has_it(
    provider: Provider, method: str, path: str, body: Any, status: int, told: str
) -> None:
    answer = await provider.ask(method, f"/scim/v2/{path}", body)
    assert answer.status_code == status, answer.text
    assert told in answer.text
    if not path.startswith("Users/.."):
        assert answer.json()["schemas"] == ["urn:ietf:params:scim:api:messages:2.0:Error"]


async def test_lists_are_paged_and_filtered(provider: Provider) -> None:
    names = sorted(
        [(await provider.user(f"page-{uuid.uuid4().hex[:6]}", externalId=f"e{n}"))["userName"] for n in range(3)]
    )
    filters = ('userName sw "page-" and active eq true', 'not (userName sw "u") and userName co "age-"')
    for text in filters:
        found = await provider.scim(200, "GET", f"Users?filter={text}&startIndex=2&count=1")
        assert (found["totalResults"], found["itemsPerPage"], found["startIndex"]) == (3, 1, 2)
    found = await provider.scim(200, "GET", f"Users?filter={filters[0]}&attributes=userName")
    assert sorted(each["userName"] for each in found["Resources"]) == names
    assert "active" not in found["Resources"][0]
    found = await provider.scim(200, "GET", 'Users?filter=externalId eq "e1"')
    assert found["totalResults"] == 1
    assert (await provider.scim(200, "GET", "Users?count=0"))["Resources"] == []


async def test_changes_are_in_the_audit_log(api: Served, provider: Provider) -> None:
    made = await provider.user()
    entries = (await api.user(is_admin=True).get("/api/v1/undeterred/audit", limit=1))["entries"]
    assert (entries[0]["actor"], entries[0]["route"]) == ("scim", "/scim/v2/{kind}")
    assert made["id"]
