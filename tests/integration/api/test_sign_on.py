"""Login by a real OpenID Connect provider, which runs in this process; and what it must not open."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import oidc_provider_mock
import pytest

from api.auth.sign_on import SignOn
from api.settings import ApiSettings, SignOnSettings
from database.models import Group, GroupMember, User
from tests.integration.api.served import Served

USERS = [
    oidc_provider_mock.User(
        sub="ada", claims={"email": "ada@example.org", "email_verified": True, "name": "Ada of Sign-On"}
    ),
    oidc_provider_mock.User(sub="eve", claims={"email": "admin", "email_verified": False}),
    oidc_provider_mock.User(sub="root", claims={"email": "admin", "email_verified": True}),
    oidc_provider_mock.User(
        sub="dev", claims={"email": "dev@example.org", "email_verified": True, "teams": ["here", "elsewhere", 7]}
    ),
    oidc_provider_mock.User(
        sub="twin", claims={"email": "twin@example.org", "email_verified": True, "name": "Ada of Sign-On"}
    ),
    oidc_provider_mock.User(sub="odd", claims={"email": "a\x00b", "email_verified": True}),
    oidc_provider_mock.User(sub="nobody", claims={"email_verified": True}),
]
LINK = re.compile(r'href="(http://localhost:49176/\?token=[^"]+)"')


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    with oidc_provider_mock.run_server_in_thread(user_claims=USERS, require_nonce=True) as server:
        yield f"http://localhost:{server.server_port}"


@pytest.fixture
def offered(api: Served, issuer: str) -> Iterator[None]:
    """The cluster has an identity provider, as long as a test runs."""
    wanted = {
        "oidc_issuer": issuer,
        "oidc_client_id": "undeterred",
        "oidc_client_secret": "secret",
        "oidc_public_url": str(api.http.base_url).rstrip("/"),
        "oidc_groups_claim": "teams",
        "oidc_creates_users": True,
    }
    settings = ApiSettings.model_validate(api.parts.settings.model_dump() | wanted)
    before = api.parts.settings, api.parts.sign_on
    api.parts.settings, api.parts.sign_on = settings, SignOn(settings, "secret of the cluster")
    yield
    api.parts.settings, api.parts.sign_on = before


@pytest.fixture
async def browser(api: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=api.http.base_url) as client:
        yield client


async def to_provider(browser: httpx.AsyncClient, **params: str) -> str:
    """Where the browser is sent."""
    response = await browser.get("/oidc/sso", params=params)
    assert response.status_code == 303, response.text
    return response.headers["location"]


async def back(browser: httpx.AsyncClient, address: str, sub: str, **form: str) -> httpx.Response:
    """Log in at the provider, and follow it back."""
    answer = await browser.post(address, data={"sub": sub, **form})
    assert answer.status_code == 302, answer.text
    return await browser.get(answer.headers["location"])


async def logged_in(browser: httpx.AsyncClient, sub: str, **params: str) -> httpx.Response:
    return await back(browser, await to_provider(browser, **params), sub)


def refused_for(response: httpx.Response) -> str:
    assert response.status_code == 303
    assert "auth=" not in response.headers.get("set-cookie", "")
    [reason] = parse_qs(urlsplit(response.headers["location"]).query)["refused"]
    return reason


def user(api: Served, name: str) -> User:
    with api.database.read() as session:
        found = session.query(User).filter_by(username=name).one()
        session.expunge(found)
        return found


async def test_provider_is_shown_to_clients_and_to_pages(api: Served, offered: None) -> None:
    [shown] = (await api.http.get("/info")).json()["sso_providers"]
    assert shown["sso_url"] == f"{str(api.http.base_url).rstrip('/')}/oidc/sso"
    [of_page] = (await api.http.get("/api/v1/master")).json()["ssoProviders"]
    assert (of_page["name"], of_page["type"], of_page["alwaysRedirect"]) == ("OIDC", "OIDC", False)


async def test_login_opens_a_session_and_goes_to_the_page_that_was_asked_for(
    api: Served, offered: None, browser: httpx.AsyncClient
) -> None:
    response = await logged_in(browser, "ada", redirect="/det/experiments/7/overview?tab=logs")
    assert response.headers["location"] == "/det/experiments/7/overview?tab=logs"
    cookie = next(each for each in response.headers.get_list("set-cookie") if each.startswith("auth="))
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    me = (await browser.get("/api/v1/me")).json()["user"]
    assert (me["username"], me["displayName"], me["remote"], me["admin"]) == (
        "ada@example.org",
        "Ada of Sign-On",
        True,
        False,
    )
    again = await logged_in(browser, "ada")
    assert again.headers["location"] == "/det/"
    assert (await browser.get("/api/v1/me")).json()["user"]["id"] == me["id"]
    login = {"username": "ada@example.org", "password": ""}
    assert (await api.http.post("/api/v1/auth/login", json=login)).status_code == 401


@pytest.mark.parametrize(
    "redirect",
    ["https://evil.example", "//evil.example/det/", "/det//evil.example", "/det/\\evil", "/detx", "javascript:alert(1)",
     "/det/\r\nset-cookie: a=b"],
)  # fmt: skip
async def test_no_page_of_another_host_is_gone_to(
    api: Served, offered: None, browser: httpx.AsyncClient, redirect: str
) -> None:
    assert (await logged_in(browser, "ada", redirect=redirect)).headers["location"] == "/det/"


async def test_account_with_a_password_is_opened_only_if_an_admin_handed_it_over(
    api: Served, offered: None, browser: httpx.AsyncClient
) -> None:
    """Who may choose a name at the provider chooses `admin`."""
    assert refused_for(await logged_in(browser, "root")) == "local"
    assert refused_for(await logged_in(browser, "eve")) == "unverified"
    assert refused_for(await logged_in(browser, "odd")) == "unnamed"
    assert refused_for(await logged_in(browser, "nobody")) == "unnamed"
    assert (await browser.get("/api/v1/me")).status_code == 401
    assert user(api, "admin").is_remote is False


async def test_account_that_is_unknown_or_deactivated_is_not_opened(
    api: Served, offered: None, browser: httpx.AsyncClient
) -> None:
    await logged_in(browser, "dev")
    with api.database.write() as session:
        session.query(User).filter_by(username="dev@example.org").one().is_active = False
    assert refused_for(await logged_in(browser, "dev")) == "inactive"
    with api.database.write() as session:
        session.query(User).filter_by(username="dev@example.org").one().is_active = True
    api.parts.settings.oidc_creates_users = False
    assert refused_for(await logged_in(browser, "stranger@example.org")) == "unverified"
    with api.database.read() as session:
        assert session.query(User).filter_by(username="stranger@example.org").count() == 0


async def test_people_of_the_same_name_have_accounts_of_their_own(
    api: Served, offered: None, browser: httpx.AsyncClient
) -> None:
    await logged_in(browser, "ada")
    assert (await logged_in(browser, "twin")).headers["location"] == "/det/"
    assert user(api, "twin@example.org").display_name in (None, "")


async def test_groups_are_those_that_the_provider_names_and_that_are_here(
    api: Served, offered: None, browser: httpx.AsyncClient
) -> None:
    with api.database.write() as session:
        session.add_all([Group(name="here"), Group(name="left")])
    await logged_in(browser, "dev")
    with api.database.write() as session:
        groups = {group.name: group.id for group in session.query(Group)}
        session.add(GroupMember(group_id=groups["left"], user_id=user(api, "dev@example.org").id))
    await logged_in(browser, "dev")
    with api.database.read() as session:
        members = session.query(GroupMember).filter_by(user_id=user(api, "dev@example.org").id)
        assert [member.group_id for member in members] == [groups["here"]]


async def test_what_was_begun_in_another_browser_or_changed_on_its_way_opens_nothing(
    api: Served, offered: None, browser: httpx.AsyncClient
) -> None:
    """Login CSRF: an attacker's code in a victim's browser must not log it in as the attacker."""
    address = await to_provider(browser)
    answer = await browser.post(address, data={"sub": "ada"})
    stolen = answer.headers["location"]
    async with httpx.AsyncClient(base_url=api.http.base_url) as victim:
        assert refused_for(await victim.get(stolen)) == "stale"
        await to_provider(victim)
        assert refused_for(await victim.get(stolen)) == "stale"
    state = parse_qs(urlsplit(stolen).query)["state"][0]
    assert refused_for(await browser.get("/oidc/callback", params={"code": "forged", "state": state})) == "failed"
    assert refused_for(await browser.get(stolen)) == "stale", "its cookie is used up"


async def test_nonce_of_another_flow_and_a_refusal_of_the_provider_open_nothing(
    api: Served, offered: None, browser: httpx.AsyncClient
) -> None:
    address = await to_provider(browser)
    other = re.sub(r"nonce=[^&]+", "nonce=of-another-flow", address)
    assert refused_for(await back(browser, other, "ada")) == "failed"
    address = await to_provider(browser)
    assert refused_for(await back(browser, address, "ada", action="deny")) == "denied"


async def test_det_gets_its_token_by_a_link_that_a_person_follows(
    api: Served, offered: None, browser: httpx.AsyncClient
) -> None:
    response = await logged_in(browser, "ada", relayState="cli")
    assert response.status_code == 200
    assert "no-store" in response.headers["cache-control"]
    assert "script" not in response.headers["content-security-policy"]
    assert not any(each.startswith("auth=") for each in response.headers.get_list("set-cookie"))
    [link] = LINK.findall(response.text)
    token = parse_qs(urlsplit(link).query)["token"][0]
    me = await api.http.get("/api/v1/me", headers={"Authorization": f"Bearer {token}"})
    assert me.json()["user"]["username"] == "ada@example.org"


async def test_provider_that_is_away_is_named_by_the_page(
    api: Served, offered: None, browser: httpx.AsyncClient
) -> None:
    broken = api.parts.settings.model_copy(update={"oidc_issuer": "http://127.0.0.1:1"})
    api.parts.sign_on = SignOn(broken, "secret of the cluster")
    response = await browser.get("/oidc/sso")
    assert response.status_code == 503
    assert "identity provider does not answer" in response.json()["message"]


async def test_cluster_without_a_provider_offers_none(api: Served, browser: httpx.AsyncClient) -> None:
    assert (await browser.get("/oidc/sso")).status_code == 404
    assert (await browser.get("/oidc/callback", params={"code": "x", "state": "y"})).status_code == 404
    assert (await api.http.get("/info")).json()["sso_providers"] == []


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("oidc_issuer", "http://login.example.org", "begins with https://"),
        ("oidc_public_url", "http://det.example.org", "begins with https://"),
        ("oidc_client_id", "", "oidc_client_id: expected with oidc_issuer"),
        ("oidc_scopes", "profile", "expected openid among them"),
    ],
)
def test_settings_that_would_be_unsafe_are_refused_by_name(field: str, value: str, said: str) -> None:
    good: dict[str, Any] = {
        "oidc_issuer": "https://login.example.org",
        "oidc_client_id": "x",
        "oidc_public_url": "https://det.example.org/",
    }
    assert SignOnSettings.model_validate(good).oidc_public_url == "https://det.example.org"
    with pytest.raises(ValueError, match=said) as error:
        SignOnSettings.model_validate(good | {field: value})
    assert field in str(error.value)
