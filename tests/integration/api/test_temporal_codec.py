"""The codec server: payloads of histories for administrators, and for the pages of Temporal's Web UI alone."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from temporalio.api.common.v1 import Payload

from api.middleware.temporal_ui import CODEC
from api.temporal.connection import Connection
from tests.integration.api.served import Served

UI = "https://temporal.example.org:8233"
DECODE = f"{CODEC}/decode"
PLAIN = {"metadata": {"encoding": base64.b64encode(b"json/plain").decode()}, "data": base64.b64encode(b'"x"').decode()}


@pytest.fixture
def keys(api: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cluster has keys, and knows where Temporal's Web UI is."""
    keys = tmp_path / "keys"
    keys.write_text(f"first {base64.b64encode(os.urandom(32)).decode()}\n")
    settings = api.parts.settings.model_copy(
        update={"temporal_encryption_keys_file": str(keys), "temporal_ui": f"{UI}/some/path"}
    )
    monkeypatch.setattr(api.parts, "settings", settings)
    monkeypatch.setattr(api.parts.commands, "_connection", Connection(settings))
    return keys


async def encoded(api: Served) -> list[dict[str, Any]]:
    """A small value, and one that is compressed as well; each encrypted."""
    codec = api.parts.commands._connection.converter.payload_codec
    assert codec is not None
    payloads = [
        Payload(metadata={"encoding": b"json/plain"}, data=data) for data in (b'"x"', b'"' + b"y" * 200_000 + b'"')
    ]
    return [MessageToDict(payload) for payload in await codec.encode(payloads)]


async def test_administrator_sees_what_was_encrypted_and_what_never_was(api: Served, keys: Path) -> None:
    admin, sent = api.user(is_admin=True), await encoded(api)
    assert base64.b64decode(sent[0]["metadata"]["encoding"]) == b"binary/encrypted"
    found = (await admin.post(DECODE, {"payloads": [*sent, PLAIN]}))["payloads"]
    assert found[0] == found[2] == PLAIN
    assert base64.b64decode(found[1]["data"])[:3] == b'"yy'
    await api.user().refused(403, "POST", DECODE, {"payloads": sent})


async def test_what_can_not_be_decoded_is_refused_with_the_reason(api: Served, keys: Path) -> None:
    admin, sent = api.user(is_admin=True), await encoded(api)
    for payloads in ([{"data": 7}], [{"metadata": {"encoding": 7}}], [{"x": 1}]):
        said = await admin.refused(400, "POST", DECODE, {"payloads": payloads})
        assert said.startswith("payloads: ")
    keys.write_text(f"other {base64.b64encode(os.urandom(32)).decode()}\n")
    api.parts.commands._connection = Connection(api.parts.settings)
    assert "key 'first'" in await admin.refused(400, "POST", DECODE, {"payloads": sent})


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "https://temporal.example.org", f"{UI}.evil.example"]
)
async def test_pages_of_other_origins_are_refused(api: Served, keys: Path, origin: str) -> None:
    cookie = f"auth={api.user(is_admin=True).headers['Authorization'].removeprefix('Bearer ')}"
    headers = {"Origin": origin, "Cookie": cookie, "Sec-Fetch-Site": "same-site", "Content-Type": "application/json"}
    for method in ("OPTIONS", "POST"):
        answer = await api.http.request(method, DECODE, headers=headers, content=b'{"payloads": []}')
        assert answer.status_code in (403, 405)
        assert "access-control-allow-origin" not in answer.headers


async def test_page_of_temporals_web_ui_asks_with_the_session_of_its_user_and_for_nothing_else(
    api: Served, keys: Path
) -> None:
    cookie = f"auth={api.user(is_admin=True).headers['Authorization'].removeprefix('Bearer ')}"
    headers = {"Origin": UI, "Cookie": cookie, "Sec-Fetch-Site": "same-site", "Content-Type": "application/json"}
    asked = {"Origin": UI, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-namespace"}
    preflight = await api.http.request("OPTIONS", DECODE, headers=asked)
    assert preflight.status_code == 204
    answer = await api.http.post(DECODE, headers=headers, json={"payloads": await encoded(api)})
    assert answer.json()["payloads"][0] == PLAIN
    for each in (preflight, answer):
        assert each.headers["access-control-allow-origin"] == UI
        assert each.headers["access-control-allow-credentials"] == "true"
    assert "x-namespace" in preflight.headers["access-control-allow-headers"]
    for path in ("/api/v1/auth/logout", f"{CODEC}/encode"):
        refused = await api.http.post(path, headers=headers, json={})
        assert refused.status_code == 403
        assert "access-control-allow-origin" not in refused.headers
    without = await api.http.post(DECODE, headers={"Origin": UI}, json={"payloads": []})
    assert without.status_code == 401


async def test_address_is_told(api: Served) -> None:
    assert (await api.nobody.get("/api/v1/master"))["temporalCodec"] == CODEC
