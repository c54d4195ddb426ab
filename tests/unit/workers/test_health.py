"""Whether a process is well: what probes are answered, at which port, and what systemd is notified of."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from api import health
from api.health import Health
from api.settings import ApiSettings
from tests.kit.servers import free_port
from workers import systemd
from workers.connect import GivenUp
from workers.health import answering
from workers.settings import GatewaySettings, HealthSettings, OrchestratorSettings


async def _up() -> bool:
    return True


async def test_a_process_is_ready_when_it_has_started_and_all_it_needs_answers() -> None:
    state: dict[str, Any] = {"is_up": False}

    async def check() -> bool:
        if state["is_up"] is None:
            raise ConnectionError("password authentication failed for user x")
        return state["is_up"]

    for is_up in (False, None):
        state["is_up"] = is_up
        well = Health({"database": check, "temporal": _up})
        assert await well.answer("live") == (200, {"status": "up"})
        assert await well.answer("startup") == (503, {"status": "starting"})
        down = {"database": "down", "temporal": "up"}
        assert await well.answer("ready") == (503, {"status": "starting", "checks": down})
        well.is_started = True
        assert await well.answer("startup") == (200, {"status": "up"})
        assert await well.answer("ready") == (503, {"status": "down", "checks": down})
    well = Health({"database": _up})
    well.is_started = True
    assert await well.answer("ready") == (200, {"status": "up", "checks": {"database": "up"}})
    draining = asyncio.create_task(well.drain(0.2))
    await asyncio.sleep(0)
    assert await well.answer("ready") == (503, {"status": "draining", "checks": {"database": "up"}})
    assert await well.answer("live") == (200, {"status": "up"})
    assert not well.ends.is_set()
    await draining
    assert well.ends.is_set()


async def test_what_hangs_is_down_and_asked_once_however_many_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_WITHIN_S", 0.1)
    asked = 0

    async def hangs() -> bool:
        nonlocal asked
        asked += 1
        await asyncio.Event().wait()
        return True

    well = Health({"database": hangs})
    for _ in range(3):
        answers = await asyncio.gather(*(well.answer("ready") for _ in range(100)))
        assert {told["checks"]["database"] for _, told in answers} == {"down"}
    assert asked == 1


async def test_an_answer_is_remembered_for_a_second() -> None:
    asked = 0

    async def check() -> bool:
        nonlocal asked
        asked += 1
        return True

    well = Health({"database": check})
    for _ in range(1000):
        await well.answer("ready")
    assert asked == 1


async def test_probes_are_answered_at_the_port_and_nothing_else_is() -> None:
    well = Health({"database": _up})
    well.is_started = True
    settings = HealthSettings(health_port=free_port())
    url = f"http://127.0.0.1:{settings.health_port}"
    async with answering(settings, well), httpx.AsyncClient(base_url=url) as http:
        await asyncio.sleep(0.2)
        for probe in ("live", "startup", "ready"):
            response = await http.get(f"/health/{probe}")
            assert (response.status_code, response.json()["status"]) == (200, "up")
            assert response.headers["cache-control"] == "no-store"
        for method, path in (("POST", "/health/ready"), ("GET", "/health"), ("GET", "/"), ("GET", "/health/ready/x")):
            assert (await http.request(method, path)).status_code == 404
        well.is_draining = True
        assert (await http.get("/health/ready")).status_code == 503
    async with httpx.AsyncClient() as http:
        with pytest.raises(httpx.ConnectError):
            await http.get(f"{url}/health/live")


async def test_a_port_that_is_taken_is_named_with_its_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(GivenUp, match=rf"health_port: {port}: expected a port that is free at 127\.0\.0\.1"):
            async with answering(HealthSettings(health_port=port), Health({})):
                pass


@pytest.mark.parametrize(
    ("model", "ports", "message"),
    [
        (
            ApiSettings,
            {"port": 8080, "metrics_port": 8080},
            "metrics_port: 8080: expected another port than that of port",
        ),
        (ApiSettings, {"proxy_port": 9000, "metrics_port": 9000}, "metrics_port: 9000: .* that of proxy_port"),
        (ApiSettings, {"port": 9000, "proxy_port": 9000}, "proxy_port: 9000: .* that of port"),
        (GatewaySettings, {"port": 8090, "health_port": 8090}, "health_port: 8090: .* that of port"),
        (OrchestratorSettings, {"metrics_port": 9464, "health_port": 9464}, "health_port: 9464: .* of metrics_port"),
    ],
)
def test_one_port_for_two_things_is_refused_by_name(model: Any, ports: dict[str, int], message: str) -> None:
    values: dict[str, Any] = {"database_url": "sqlite://", **({"agent_token": "x"} if model is ApiSettings else {})}
    with pytest.raises(ValidationError, match=message):
        model(**values, **ports)


def test_systemd_is_notified_as_long_as_the_event_loop_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    systemd.notify(systemd.READY)  # nobody listens: nothing happens
    told: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "100000")
        systemd.notify(systemd.READY)

        async def alive() -> None:
            watching = asyncio.create_task(systemd.watch())
            await asyncio.sleep(0.3)
            watching.cancel()

        running = threading.Thread(target=asyncio.run, args=(alive(),))
        running.start()
        told.extend(listener.recv(100).decode() for _ in range(5))
        running.join()
    assert told[:1] == ["READY=1"]
    assert set(told[1:]) == {"WATCHDOG=1"}
    systemd.notify(systemd.READY)  # it is gone: no reason to end
