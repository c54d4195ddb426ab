"""The master: who it says it is, its configuration, its log, and its message to everybody."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import httpx
import orjson
import pytest
import structlog

from api.auth.redaction import Redactor, one_line
from api.services.master_log import LogRing
from database.types import utc_now
from tests.integration.api.served import ADMIN_PASSWORD, AGENT_TOKEN, Caller, Served

MASTER, CONFIG, LOGS = "/api/v1/master", "/api/v1/master/config", "/api/v1/master/logs"
MESSAGE = "/api/v1/master/cluster_message"


@pytest.fixture
def admin(api: Served) -> Caller:
    return api.user(is_admin=True)


async def test_roles_are_said_to_be_there_when_clients_ask(api: Served) -> None:
    """Their commands for roles and groups refuse to work otherwise."""
    assert (await api.nobody.get(MASTER))["rbacEnabled"] is True


async def test_nothing_is_sent_anywhere_when_asked_for_telemetry(api: Served) -> None:
    assert (await api.user().get(f"{MASTER}/telemetry"))["enabled"] is False


async def test_configuration_has_no_secrets_when_shown(api: Served, admin: Caller) -> None:
    shown = (await admin.get(CONFIG))["config"]
    assert shown == await admin.get("/config")
    assert shown["resource_manager"]["type"] == "agent"
    assert shown["resource_manager"]["default_compute_resource_pool"] in [
        p["pool_name"] for p in shown["resource_pools"]
    ]
    assert shown["resource_manager"]["scheduler"]["type"] == "priority"
    assert shown["checkpoint_storage"] == {"type": "shared_fs", "host_path": str(api.folder)}
    assert (shown["feature_switches"], shown["security"]["authz"]["type"]) == ([], "rbac")
    assert (shown["default_pool"], shown["log"]) == ("default", {"level": "INFO", "color": False})
    text = str(shown)
    for secret in (AGENT_TOKEN, ADMIN_PASSWORD):
        assert secret not in text
    url = api.database.url
    if "@" in url:
        assert url.split("@")[0].rpartition(":")[2] not in text
        assert "://********@" in shown["database_url"]


async def test_log_level_changes_for_every_process_when_set(api: Served, admin: Caller) -> None:
    log = structlog.get_logger()
    try:
        for body in (
            {"config": {"log": {"level": "LOG_LEVEL_ERROR"}}, "fieldMask": {"paths": ["log.level"]}},
            {"config": {"log": {"level": "LOG_LEVEL_ERROR"}}, "fieldMask": "log.level"},
            {"config": {"log": {"level": "LOG_LEVEL_ERROR", "color": False}}},
        ):
            assert await admin.patch(CONFIG, body) == {}
            assert (await admin.get(CONFIG))["config"]["log"]["level"] == "ERROR"
            await admin.patch(CONFIG, {"config": {"log": {"level": "LOG_LEVEL_INFO"}}})
            await admin.patch(CONFIG, body)
        mark = f"quiet {utc_now()}"
        log.info(mark)
        log.error(f"{mark} not")
        assert [line.message for line in api.parts.log_ring.lines() if mark in line.message] == [f"{mark} not"]
        masked = {"config": {"log": {"level": "LOG_LEVEL_TRACE"}}, "fieldMask": {"paths": ["log.color"]}}
        await admin.patch(CONFIG, masked)
        assert (await admin.get(CONFIG))["config"]["log"]["level"] == "ERROR", "the mask leaves it out"
    finally:
        await admin.patch(CONFIG, {"config": {"log": {"level": "LOG_LEVEL_INFO"}}})


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ({"config": {"log": {"level": "LOUD"}}}, 400, "TRACE, DEBUG"),
        ({"config": {"log": {"level": 3}}}, 400, "log.level"),
        ({"config": {"log": {"color": True}}}, 501, "colours"),
        ({"config": {}, "fieldMask": {"paths": ["security.key"]}}, 400, "fieldMask"),
        ({"fieldMask": 5}, 400, "fieldMask"),
        ({"fieldMask": {"paths": 5}}, 400, "fieldMask"),
    ],
)
async def test_configuration_is_refused_by_field_when_it_is_wrong(
    admin: Caller, body: Any, status: int, told: str
) -> None:
    assert told in await admin.refused(status, "PATCH", CONFIG, body)


# -- log ---------------------------------------------------------------------------------------------------------------


async def test_log_is_streamed_and_paged_as_both_generations_ask(api: Served, admin: Caller) -> None:
    for number in range(5):
        structlog.get_logger().warning("counted", number=number)
    # the application's own lines may come in between at any moment
    latest = [line["logEntry"] for line in await admin.lines(LOGS, offset=-20)]
    tail = [entry for entry in latest if entry["message"].startswith("counted")][-3:]
    assert [entry["message"] for entry in tail] == [f"counted number={number}" for number in (2, 3, 4)]
    assert {entry["level"] for entry in tail} == {"LOG_LEVEL_WARNING"}
    assert tail[0]["timestamp"].endswith("Z")
    every = await admin.lines(LOGS)
    assert (await admin.lines(LOGS, offset=1, limit=2)) == every[1:3]
    assert await admin.lines(LOGS, offset=10**9) == []
    assert (await admin.lines(LOGS, offset=-(10**9)))[: len(every)] == every
    old = [line for line in await admin.get("/logs", tail=20) if line["message"].startswith("counted")][-2:]
    assert [(line["message"], line["level"]) for line in old] == [
        ("counted number=3", "WARNING"), ("counted number=4", "WARNING")
    ]  # fmt: skip
    later = await admin.get("/logs", greater_than_id=old[0]["id"])
    assert old[1] in later
    assert old[0] not in later
    assert await admin.get("/logs", greater_than_id=10**12) == []


async def test_log_goes_on_as_lines_come_when_followed(api: Served, admin: Caller) -> None:
    async with api.http.stream("GET", LOGS, params={"follow": "true", "offset": -1}, headers=admin.headers) as stream:
        lines = stream.aiter_lines()
        await anext(lines)
        structlog.get_logger().info("came later")
        async with asyncio.timeout(5):
            assert orjson.loads(await anext(lines))["result"]["logEntry"]["message"] == "came later"


async def test_log_holds_neither_secrets_nor_control_characters_when_lines_do(api: Served, admin: Caller) -> None:
    structlog.get_logger().error(
        "login\x1b[31m\nforged line\r\x00",
        password="hunter2",
        agent_token="x",
        url=f"https://ada:secret@host/?a={AGENT_TOKEN}",
        header="Authorization: Bearer abcdef.123",
        nested={"api_key": "k", "fine": 1},
    )
    [line] = await admin.lines(LOGS, offset=-1)
    message = line["logEntry"]["message"]
    for secret in ("hunter2", "ada:secret", AGENT_TOKEN, "abcdef.123", "'k'"):
        assert secret not in message
    assert message.isprintable()
    assert "\\x1b[31m\\nforged line" in message
    assert "'fine': 1" in message


def test_ring_is_bounded_when_lines_are_long_and_many() -> None:
    ring = LogRing(Redactor([]))
    for number in range(6000):
        ring.add("INFO", f"{number}")
    ring.add("INFO", "x" * 100_000)
    lines = ring.lines()
    assert (len(lines), lines[0].message, lines[-1].id) == (5000, "1001", 6001)
    assert len(lines[-1].message) < 4100
    assert lines[-1].message.endswith("(cut)")


@pytest.mark.parametrize("text", ["\u202e", "\x9b", "\ud800", "\u2028"])
def test_line_is_one_line_of_printable_characters_when_made(text: str) -> None:
    assert one_line(f"a{text}b").isprintable()


# -- message -----------------------------------------------------------------------------------------------------------


async def test_message_is_told_to_everybody_from_its_time_on_when_set(api: Served, admin: Caller) -> None:
    now = utc_now()
    assert (
        await admin.ask(
            "PUT", MESSAGE, {"message": "Maintenance <b>soon</b>", "startTime": now.isoformat(), "duration": "2h"}
        )
    ).json() == {}
    told = (await api.nobody.get(MASTER))["clusterMessage"]
    assert told["message"] == "Maintenance <b>soon</b>"
    assert told["endTime"][:13] == (now + timedelta(hours=2)).isoformat()[:13]
    assert (await api.user().get(MESSAGE))["clusterMessage"] == told
    later = {"message": "later", "startTime": (now + timedelta(hours=1)).isoformat()}
    await admin.ask("PUT", MESSAGE, later)
    assert (await api.nobody.get(MASTER))["clusterMessage"] is None, "not yet"
    assert (await api.user().get(MESSAGE))["clusterMessage"]["message"] == "later"
    assert (await admin.ask("DELETE", MESSAGE)).json() == {}
    assert (await admin.get(MESSAGE))["clusterMessage"] is None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"message": ""}, "message"),
        ({"message": "x" * 1001}, "message"),
        ({"message": "a\x1bb"}, "message"),
        ({"startTime": None}, "startTime"),
        ({"startTime": "now"}, "startTime"),
        ({"endTime": "2020-01-01T00:00:00Z"}, "endTime"),
        ({"endTime": "2999-01-01T00:00:00Z", "duration": "1h"}, "either"),
        ({"duration": "-1h"}, "endTime"),
        ({"duration": "a while"}, "duration"),
        ({"startTime": "9999-12-31T23:00:00Z", "duration": "2h"}, "9999"),
    ],
)
async def test_message_is_refused_by_field_when_it_is_wrong(admin: Caller, changes: dict[str, Any], told: str) -> None:
    body = {"message": "fine", "startTime": "2026-01-01T00:00:00Z"} | changes
    assert told in await admin.refused(400, "PUT", MESSAGE, body)


async def test_health_is_for_everybody_when_asked(api: Served) -> None:
    async with httpx.AsyncClient(base_url=str(api.http.base_url)) as http:
        assert (await http.get("/health")).json()["database"] == "up"
